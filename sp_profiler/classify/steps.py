"""The profiled steps, and which of them a moment on the CPU belongs to."""

from __future__ import annotations

import numpy as np

from sp_profiler.classify.phases import is_step_event, step_number
from sp_profiler.classify.tables import OUTSIDE_STEPS, UNKNOWN_STEP, Step
from sp_profiler.trace.tables import NONE, Int32, Int64, Trace


def find_steps(trace: Trace) -> tuple[Step, ...]:
    """The `ProfilerStep#k` ranges on the CPU, sorted by start; device copies of them are not ranges."""
    events, pool = trace.events, trace.strings.pool
    rows = np.flatnonzero(is_step_event(trace))
    starts, durations = events.start_ns[rows].tolist(), events.dur_ns[rows].tolist()
    numbers = [step_number(pool[code]) or 0 for code in events.name[rows].tolist()]
    steps = {
        Step(number, start, start + dur)
        for number, start, dur in zip(numbers, starts, durations, strict=True)
    }
    return tuple(sorted(steps, key=lambda step: (step.start_ns, step.end_ns, step.number)))


def steps_at(steps: tuple[Step, ...], times_ns: Int64) -> Int32:
    """The number of the step whose range holds each time; UNKNOWN_STEP where the time is NONE.

    By time, not by thread: autograd launches from a thread of its own.
    """
    found = np.full(len(times_ns), OUTSIDE_STEPS, dtype=np.int32)
    if steps:
        starts = np.array([step.start_ns for step in steps], dtype=np.int64)
        ends = np.array([step.end_ns for step in steps], dtype=np.int64)
        numbers = np.array([step.number for step in steps], dtype=np.int32)
        at = np.searchsorted(starts, times_ns, side="right") - 1
        inside = (at >= 0) & (times_ns < ends[at])
        found = np.where(inside, numbers[at], found)
    return np.where(times_ns == NONE, np.int32(UNKNOWN_STEP), found).astype(np.int32)
