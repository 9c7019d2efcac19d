"""Which stretch of time is looked at: the windows of a device, and what lies outside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp_profiler.analysis.intervals import EMPTY, TimeSet, intersect, time_set, union
from sp_profiler.analysis.results import LeftOut
from sp_profiler.classify.tables import OUTSIDE_STEPS, UNKNOWN_STEP, Activities, Classified, Kind, Step
from sp_profiler.errors import UsageError
from sp_profiler.ledger import Ledger
from sp_profiler.trace.tables import NONE, Bool, Category, Int64, Trace

_BEFORE_ALL, _AFTER_ALL = -(2**62), 2**62
_MOVED = (
    "steps would begin before the step before them, or after the next one; their windows were moved between"
)


@dataclass(frozen=True)
class WindowRule:
    """What the user asked for: each profiled step, or the whole trace; of the steps perhaps only some.

    `steps` is half-open, `(3, 6)` for `--steps 3:6`, and goes with the rule "step".
    """

    rule: Literal["step", "trace"] = "step"
    steps: tuple[int, int] | None = None


@dataclass(frozen=True)
class Windows:
    """The chosen windows of one device: sorted, disjoint, touching where their steps follow each other.

    `start_ns` and `end_ns` are int64; `step` holds the number of each, None for the whole trace.
    """

    step: tuple[int | None, ...]
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.step)

    @property
    def covered(self) -> TimeSet:
        """The instants inside any window."""
        return union(self.start_ns, self.end_ns)

    def holding(self, instants: Int64) -> Int64:
        """The window in which each instant stands, -1 for none; the shape of `instants`.

        The last instant of a window counts too where no window follows: the whole trace ends with its last
        event, which may be empty.
        """
        window = np.searchsorted(self.start_ns, instants, side="right") - 1
        stands = (window >= 0) & (instants <= self.end_ns[np.maximum(window, 0)])
        return np.where(stands, window, -1)

    def measure(self, instants: TimeSet) -> Int64:
        """How much of a set lies in each window, in nanoseconds; shape (windows,)."""
        return instants.overlap(self.start_ns, self.end_ns)


def profiled_steps(classified: Classified) -> tuple[Step, ...]:
    """The step ranges, sorted by start, copies of one range (another thread, a nested range) merged.

    Numbers may have gaps and may come again later (several profiling sessions in one file); those are
    steps of their own.
    """
    steps: list[Step] = []
    for step in sorted(classified.steps, key=lambda step: (step.start_ns, -step.end_ns)):
        last = steps[-1] if steps else None
        if last and last.number == step.number and step.start_ns < last.end_ns:
            steps[-1] = Step(last.number, last.start_ns, max(last.end_ns, step.end_ns))
        else:
            steps.append(step)
    return tuple(steps)


def check_rule(rule: WindowRule, steps: tuple[Step, ...], path: str) -> None:
    """Raise UsageError when the rule asks for steps that this trace cannot give."""
    if rule.steps is None:
        return
    if rule.rule != "step":
        raise UsageError("steps can be chosen only with the window rule 'step'")
    low, high = rule.steps
    if not any(low <= step.number < high for step in steps):
        there = ", ".join(str(number) for number in sorted({step.number for step in steps})[:20])
        found = f"it holds {there}" if there else "it holds no ProfilerStep range"
        raise UsageError(f"none of the steps {low}:{high} is in {path}: {found}")


def launching_step(steps: tuple[Step, ...], activities: Activities) -> Int64:
    """For each activity the place in `steps` of the step that launched it, -1 for none known."""
    place = np.full(len(activities), NONE, np.int64)
    numbers = np.array([step.number for step in steps], np.int64)
    if len(numbers) == 0:
        return place
    order = np.argsort(numbers, kind="stable")
    distinct, first = np.unique(numbers[order], return_index=True)
    found = np.minimum(np.searchsorted(distinct, activities.step), len(distinct) - 1)
    known = distinct[found] == activities.step
    place[known] = order[first[found[known]]]
    if len(distinct) < len(numbers):
        # A number that comes twice: the launch says which of the two.
        starts = np.array([step.start_ns for step in steps], np.int64)
        by_time = np.searchsorted(starts, activities.launch_ns, side="right") - 1
        exact = known & (by_time >= 0) & (activities.launch_ns != NONE)
        exact &= numbers[np.maximum(by_time, 0)] == activities.step
        place[exact] = by_time[exact]
    return place


def device_windows(
    trace: Trace, classified: Classified, rows: Int64, rule: WindowRule, ledger: Ledger
) -> Windows:
    """The chosen windows of the device whose activities are `rows` (at least one; rows of Activities).

    DESIGN: Windows. Step k begins at the earliest kernel that it launched on this device; where it
    launched none, and in CPU-only files, at the start of its CPU range. Each step lasts until the next
    begins, the last one until the later of its range's end and the end of what it launched.
    """
    activities = classified.activities
    steps = profiled_steps(classified)
    start, end = activities.start_ns[rows], activities.end_ns[rows]
    if rule.rule == "trace" or not steps:
        if rule.rule == "step":
            ledger.add("no-step-ranges", "note", "no ProfilerStep range: the whole trace is one window")
        return Windows((None,), start.min(keepdims=True), end.max(keepdims=True))

    place = launching_step(steps, activities)[rows]
    is_kernel = trace.events.category[activities.event[rows]] == Category.KERNEL
    if classified.is_cpu_only:
        is_kernel = np.zeros(len(rows), np.bool_)
    borders = _window_starts(steps, start, end, place, is_kernel, ledger)
    ends_of_last = end[place == len(steps) - 1]
    borders.append(max(borders[-1], steps[-1].end_ns, int(ends_of_last.max(initial=steps[-1].end_ns))))
    _note_launched_elsewhere(activities, rows, borders, ledger)

    low, high = rule.steps or (_BEFORE_ALL, _AFTER_ALL)
    chosen = [i for i, step in enumerate(steps) if low <= step.number < high]
    axis = np.array(borders, np.int64)
    return Windows(tuple(steps[i].number for i in chosen), axis[chosen], axis[[i + 1 for i in chosen]])


def _window_starts(
    steps: tuple[Step, ...], start: Int64, end: Int64, place: Int64, is_kernel: Bool, ledger: Ledger
) -> list[int]:
    """t_k of every step, never falling.

    The definition alone can fall: a step that launched nothing has its CPU range's start, and by then the
    device may not have begun the step before. Such a step begins when the device is done with what earlier
    steps launched, but not after a later step's first kernel. A kernel that ran before the step before
    began (on a stream of its own) cannot begin its step; the next one does.
    """
    kernels = np.flatnonzero(is_kernel & (place >= 0))
    kernels = kernels[np.lexsort((start[kernels], place[kernels]))]
    bounds = np.searchsorted(place[kernels], np.arange(len(steps) + 1))
    first: list[int | None] = []
    latest, moved = _BEFORE_ALL, 0
    for k in range(len(steps)):
        own = start[kernels[bounds[k] : bounds[k + 1]]]
        later = own[np.searchsorted(own, latest) :]
        moved += len(later) < len(own)
        latest = int(later[0]) if len(later) else latest
        first.append(latest if len(later) else None)

    done = np.full(len(steps), _BEFORE_ALL, np.int64)
    np.maximum.at(done, place[place >= 0], end[place >= 0])
    done = np.maximum.accumulate(done)
    starts: list[int] = []
    for k, (kernel, not_after) in enumerate(zip(first, _next_known(first), strict=True)):
        if kernel is not None:
            starts.append(kernel)
            continue
        previous = starts[-1] if starts else _BEFORE_ALL
        begin = steps[k].start_ns if steps[k].start_ns >= previous else max(previous, int(done[k - 1]))
        starts.append(min(begin, not_after))
        moved += starts[-1] != steps[k].start_ns
    if moved:
        ledger.add("window-start-moved", "note", _MOVED, count=moved)
    return starts


def _next_known(first: list[int | None]) -> list[int]:
    """For each step the first kernel of the nearest step from it on that has one."""
    known, result = _AFTER_ALL, list[int]()
    for value in reversed(first):
        known = known if value is None else value
        result.append(known)
    return result[::-1]


def _note_launched_elsewhere(activities: Activities, rows: Int64, borders: list[int], ledger: Ledger) -> None:
    """Say what counts in a window although no step launched it: nothing is attributed in silence."""
    inside = (activities.start_ns[rows] < borders[-1]) & (activities.end_ns[rows] > borders[0])
    for step, code, text in (
        (
            OUTSIDE_STEPS,
            "launched-outside-steps",
            "activities launched outside every step; counted in the step in which they run",
        ),
        (
            UNKNOWN_STEP,
            "launch-not-in-trace",
            "activities whose launch is not in the trace; counted in the step in which they run",
        ),
    ):
        count = int(np.count_nonzero(inside & (activities.step[rows] == step)))
        if count:
            ledger.add(code, "note", text, count=count)


LEFT_OUT_KINDS = {
    "communication": (Kind.COMMUNICATION, Kind.FUSED),
    "computation": (Kind.COMPUTATION, Kind.FUSED),
    "memory": (Kind.MEMORY,),
}


def left_out(activities: Activities, rows: Int64, windows: Windows) -> list[LeftOut]:
    """What of the device's activities lies in no chosen window, by reason and kind (unions, in ns).

    An activity without duration counts as an event where it stands: nothing is dropped in silence.
    """
    start, end, kind = activities.start_ns[rows], activities.end_ns[rows], activities.kind[rows]
    alone = (start == end) & (windows.holding(start) < 0)
    result: list[LeftOut] = []
    for reason, outside in _outside(windows, int(start.min()), int(end.max()) + 1):
        here = (outside.overlap(start, end) > 0) | (alone & (outside.overlap(start, start + 1) > 0))
        for name, kinds in LEFT_OUT_KINDS.items():
            mine = np.isin(kind, kinds) & here
            if mine.any():
                ns = intersect(union(start[mine], end[mine]), outside).measure
                result.append(LeftOut(reason, name, int(np.count_nonzero(mine)), ns))
    return result


def _outside(windows: Windows, low: int, high: int) -> list[tuple[str, TimeSet]]:
    """The time around and between the windows, inside [low, high)."""
    first, last = int(windows.start_ns[0]), int(windows.end_ns[-1])
    stretches = [("before-first-window", _stretch(low, first)), ("after-last-window", _stretch(last, high))]
    gaps = windows.end_ns[:-1] < windows.start_ns[1:]
    if gaps.any():
        between = union(windows.end_ns[:-1][gaps], windows.start_ns[1:][gaps])
        stretches.append(("between-windows", between))
    return stretches


def _stretch(low: int, high: int) -> TimeSet:
    return time_set(np.array([low]), np.array([high])) if low < high else EMPTY
