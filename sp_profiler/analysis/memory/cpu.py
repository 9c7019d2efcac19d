"""The CPU side of a trace as the memory analyses ask it: what runs around an instant, and in which phase."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sp_profiler.classify.annotations import Annotations, read_annotations
from sp_profiler.classify.nesting import Nest, build_nest, last_exceeding
from sp_profiler.classify.phases import Phases, find_phases, is_step_event
from sp_profiler.classify.tables import Phase, Step
from sp_profiler.trace.tables import NONE, Bool, Category, Events, Int8, Int32, Int64, Trace

_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
_ALLOCATES = re.compile(r"^aten::(?:(?:new_)?empty(?:_like|_strided|_permuted)?|resize_)$")
"""Operators that only allocate: who calls them tells more."""


@dataclass(frozen=True)
class PhaseRuns:
    """Stretches of time in which one phase runs, in order; each lasts until the next begins.

    A border is where backward begins after forward; several micro-batches give several in a step.
    """

    start_ns: Int64
    phase: Int8

    def at(self, times_ns: Int64) -> Int64:
        """The run that each instant falls into, -1 before the first."""
        return np.searchsorted(self.start_ns, times_ns, side="right") - 1

    def phase_at(self, times_ns: Int64) -> Int8:
        return np.append(self.phase, np.int8(Phase.UNKNOWN))[self.at(times_ns)]

    @cached_property
    def borders_ns(self) -> Int64:
        """The first backward work after forward work, each time."""
        return self.start_ns[self._follows(Phase.BACKWARD, Phase.FORWARD)]

    @cached_property
    def after_optimizer_ns(self) -> Int64:
        """The first forward work after an optimizer's step, each time."""
        return self.start_ns[self._follows(Phase.FORWARD, Phase.OPTIMIZER)]

    def _follows(self, phase: Phase, before: Phase) -> Bool:
        found = self.phase == int(phase)
        found[1:] &= self.phase[:-1] == int(before)
        found[:1] = False
        return found


@dataclass(frozen=True)
class CpuSide:
    """Operators and ranges of one file, nested by thread. Columns have one value per position of the nest and
    one more for NONE."""

    trace: Trace
    steps: tuple[Step, ...]
    nest: Nest
    annotations: Annotations
    phases: Phases
    operator: Int64  # nearest operator
    made_by: Int64  # nearest operator that is more than an allocation
    zero_grad: Int64  # nearest `zero_grad` of an optimizer

    @cached_property
    def thread_of(self) -> dict[int, int]:
        """String code of a thread's tid -> its number in the nest."""
        first = np.unique(self.nest.thread, return_index=True)[1]
        tids = self.trace.events.tid[self.nest.row[first]].tolist()
        return dict(zip(tids, self.nest.thread[first].tolist(), strict=True))

    def threads(self, tids: Int32) -> Int64:
        """The nest's thread of each tid, NONE for one on which nothing ran."""
        distinct, place = np.unique(tids, return_inverse=True)
        numbers = np.array([self.thread_of.get(code, NONE) for code in distinct.tolist()], dtype=np.int64)
        return numbers[place.reshape(-1)] if len(distinct) else np.zeros(0, dtype=np.int64)

    def around(self, thread: Int64, times_ns: Int64) -> Int64:
        """The innermost operator or range around each instant of a thread: a position, NONE without one."""
        return innermost_around(self.trace.events, self.nest, thread, times_ns)

    @cached_property
    def main_threads(self) -> Int64:
        """Threads that drive the training: with steps or the optimizer on them, else with most operators.

        Forward work on other threads (gloo's, loaders') says nothing about the phase.
        """
        events = self.trace.events
        drives = is_step_event(self.trace)[self.nest.row] | (self.phases.optimizer[:-1] != NONE)
        if drives.any():
            return np.unique(self.nest.thread[drives])
        records = (events.sequence[self.nest.row] >= 0) & (events.fwd_thread[self.nest.row] <= 0)
        counted = self.nest.thread[records if records.any() else np.ones(len(records), np.bool_)]
        return np.array([np.bincount(counted).argmax()]) if len(counted) else np.zeros(0, np.int64)

    @cached_property
    def runs(self) -> PhaseRuns:
        """Phases over time, from all operators of the main threads and, on any thread, from what lies inside
        autograd nodes or an optimizer.

        What runs between backward and the optimizer's step (clipping, reductions) belongs to the latter.
        `zero_grad` begins no run: it may stand between forward and backward.
        """
        events = self.trace.events
        phase = self.phases.phase[:-1]
        operators = events.category[self.nest.row] == int(Category.CPU_OP)
        operators &= self.zero_grad[:-1] == NONE
        forward = operators & (phase == Phase.FORWARD) & np.isin(self.nest.thread, self.main_threads)
        others = (phase == Phase.BACKWARD) | (phase == Phase.OPTIMIZER)
        marks = np.flatnonzero(forward | others)
        marks = marks[np.argsort(events.start_ns[self.nest.row[marks]], kind="stable")]
        start, phase = events.start_ns[self.nest.row[marks]], phase[marks]
        start, phase = _changes(start, phase)
        between = np.zeros(len(phase), dtype=np.bool_)
        between[1:-1] = (
            (phase[1:-1] == Phase.FORWARD) & (phase[:-2] == Phase.BACKWARD) & (phase[2:] == Phase.OPTIMIZER)
        )
        phase[between] = Phase.OPTIMIZER
        return PhaseRuns(*_changes(start, phase))

    def phase_at(self, positions: Int64, times_ns: Int64) -> Int8:
        """The phase of events: what the operators around say, else what runs at that time."""
        phase = self.phases.phase[positions]
        inside = (phase == Phase.BACKWARD) | (phase == Phase.OPTIMIZER)
        told = np.where(inside, phase, self.runs.phase_at(times_ns))
        return np.where(self.zero_grad[positions] != NONE, np.int8(Phase.OPTIMIZER), told).astype(np.int8)

    def name_at(self, positions: Int64) -> Int32:
        """String code of the event at each position, NONE for NONE."""
        return np.append(self.trace.events.name[self.nest.row], np.int32(NONE))[positions]

    def stack(self, position: int) -> list[str]:
        """Names of what lies around the event at a position, outermost first."""
        names: list[str] = []
        codes, pool = self.trace.events.name, self.trace.strings.pool
        at = int(self.nest.parent[position]) if position != NONE else NONE
        while at != NONE:
            code = int(codes[self.nest.row[at]])
            names.append(pool[code] if code >= 0 else "")
            at = int(self.nest.parent[at])
        return names[::-1]


def _changes(start: Int64, phase: Int8) -> tuple[Int64, Int8]:
    """Neighbouring runs of one phase made one."""
    fresh = np.ones(len(phase), dtype=np.bool_)
    fresh[1:] = phase[1:] != phase[:-1]
    return start[fresh], phase[fresh]


def innermost_around(events: Events, nest: Nest, thread: Int64, times_ns: Int64) -> Int64:
    """The innermost event of a nest around each instant of a thread: a position, NONE without one."""
    start = events.start_ns[nest.row]
    before = np.zeros(len(times_ns), dtype=np.int64)
    for number in np.unique(thread[thread != NONE]).tolist():
        here = np.flatnonzero(thread == number)
        first, last = np.searchsorted(nest.thread, (number, number + 1))
        before[here] = first + np.searchsorted(start[first:last], times_ns[here], side="right")
    found = last_exceeding(events.end_ns[nest.row], before, times_ns)
    same = (found != NONE) & (np.append(nest.thread, NONE)[found] == thread)
    return np.where(same, found, NONE)


def read_cpu_side(trace: Trace, steps: tuple[Step, ...]) -> CpuSide:
    """Nest the operators and ranges of a trace; calls of the runtime allocate nothing and stay out."""
    events, strings = trace.events, trace.strings
    nest = build_nest(events, (Category.CPU_OP, Category.CPU_ANNOTATION))
    annotations = read_annotations(trace, nest)
    name = events.name[nest.row]
    operator = events.category[nest.row] == int(Category.CPU_OP)
    allocates = strings.match(name, lambda text: bool(_ALLOCATES.match(text)))
    zero_grad = strings.match(name, lambda text: bool(_ZERO_GRAD.match(text)))
    return CpuSide(
        trace=trace,
        steps=steps,
        nest=nest,
        annotations=annotations,
        phases=find_phases(trace, nest, annotations),
        operator=nest.nearest(operator),
        made_by=nest.nearest(operator & ~allocates),
        zero_grad=nest.nearest(zero_grad),
    )
