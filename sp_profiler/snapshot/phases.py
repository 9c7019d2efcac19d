"""In which phase, step and module the allocator's events of a snapshot happened.

The stack of an event tells its phase; where it does not, a `record_function` range around it
(`global_record_annotations=True`); a stretch between two events of one phase belongs to that phase.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.tables import Phase
from sp_profiler.snapshot.frames import Told
from sp_profiler.snapshot.history import History
from sp_profiler.snapshot.ranges import Ranges
from sp_profiler.snapshot.tables import DeviceSnapshot, Events, Ints
from sp_profiler.snapshot.worker.protocol import ALLOC, FREE_COMPLETED, NONE
from sp_profiler.trace.tables import Bool, Int8

MOST_BORDERS = 2_000
"""With more changes from forward to backward than this both run beside each other, without a border."""


@dataclass(frozen=True)
class Phases:
    """One value per event of a device, except where said otherwise."""

    phase: Int8
    run: Ints  # number of the stretch of one phase, also of what follows without one; NONE before the first
    step_borders: Ints  # positions: the first event of each later step
    borders: Ints  # positions: the first event of each backward that follows forward
    borders_dropped: int  # so many that phases must be those of threads beside each other
    frees_told: bool  # frees carry stacks of their own
    assumed: int  # allocations without a Python frame that are taken as backward's


def phases_of(device: DeviceSnapshot, history: History, told: Told, ranges: Ranges) -> Phases:
    """Where each event stands."""
    events = device.events
    count = len(events.action)
    frees_told = _frees_have_stacks(history)
    by_stack = np.append(told.phase, np.int8(Phase.UNKNOWN))
    phase = by_stack[events.stack]
    if not frees_told:
        phase[(events.action > ALLOC) & (events.action <= FREE_COMPLETED)] = Phase.UNKNOWN
    phase = np.where(phase == Phase.UNKNOWN, ranges.phase, phase).astype(np.int8)
    frameless = _frameless(events, phase, told)
    phase[frameless] = Phase.BACKWARD
    known = np.flatnonzero(phase != Phase.UNKNOWN)
    run = np.full(count, NONE, dtype=np.int64)
    borders = np.zeros(0, dtype=np.int64)
    step_borders = np.zeros(0, dtype=np.int64)
    if len(known):
        changes = np.append(True, np.diff(phase[known]) != 0)
        run_of_known = np.cumsum(changes)
        before = np.searchsorted(known, np.arange(count), side="right")
        run = np.append(NONE, run_of_known)[before]
        borders = known[changes][_after_forward(phase[known][changes])]
        step_borders = _after_optimizer(phase, known, changes)
        phase = _filled(phase, known, before)
    dropped = len(borders) if len(borders) > MOST_BORDERS else 0
    if len(ranges.step_starts):
        step_borders = ranges.step_starts[1:]
    return Phases(
        phase,
        run,
        step_borders,
        borders[: 0 if dropped else None],
        dropped,
        frees_told,
        int(frameless.sum()),
    )


def _frees_have_stacks(history: History) -> bool:
    """Whether frees carry their own stacks: without `context="all"` torch repeats the allocation's."""
    told = (history.freed != NONE) & (history.birth >= 0)
    return bool(told.any()) and bool((history.made[told] != history.freed[told]).mean() > 0.01)


def _frameless(events: Events, phase: Int8, told: Told) -> Bool:
    """Allocations without any frame where all others have Python's: made by autograd's own threads."""
    allocations = events.action == ALLOC
    without = allocations & (events.stack == NONE) & (phase == Phase.UNKNOWN)
    only_python = bool(told.has_python.any()) and not told.has_native.any()
    forward = np.flatnonzero(phase == Phase.FORWARD)
    if not only_python or not len(forward):
        return np.zeros(len(phase), dtype=np.bool_)
    without[: forward[0]] = False
    return without


def _after_forward(phases: Int8) -> Bool:
    """Which stretches are a backward with a forward since the one before. Neighbours differ."""
    kept = np.isin(phases, (Phase.FORWARD, Phase.BACKWARD))
    places = np.flatnonzero(kept)
    found = np.zeros(len(phases), dtype=np.bool_)
    if len(places) > 1:
        here, last = phases[places[1:]], phases[places[:-1]]
        found[places[1:]] = (here == Phase.BACKWARD) & (last == Phase.FORWARD)
    return found


def _after_optimizer(phase: Int8, known: Ints, changes: Bool) -> Ints:
    """Where each optimizer step is followed by something else."""
    stretches = phase[known][changes]
    starts = known[changes]
    return starts[1:][stretches[:-1] == Phase.OPTIMIZER]


def _filled(phase: Int8, known: Ints, before: Ints) -> Int8:
    """Events of unknown phase between two of one phase, or between forward and backward, take the former."""
    last = np.append(Phase.UNKNOWN, phase[known])[before].astype(np.int8)
    following = np.append(phase[known], Phase.UNKNOWN)[np.minimum(before, len(known))].astype(np.int8)
    between = (last == following) | ((last == Phase.FORWARD) & (following == Phase.BACKWARD))
    return np.where((phase == Phase.UNKNOWN) & between, last, phase).astype(np.int8)
