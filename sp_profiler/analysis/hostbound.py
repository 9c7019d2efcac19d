"""When the device had nothing to do because the host had not launched it yet."""

from __future__ import annotations

import numpy as np

from sp_profiler.analysis.intervals import complement, cut_at_windows, sum_by, union, unite
from sp_profiler.analysis.overlap import DeviceSets
from sp_profiler.analysis.steps import Windows
from sp_profiler.classify.tables import Classified
from sp_profiler.trace.tables import NONE, Int64


def host_bound_ns(classified: Classified, rows: Int64, sets: DeviceSets, windows: Windows) -> Int64 | None:
    """For each window the idle time before the launch of what runs next on the device; shape (windows,).

    An idle stretch ends where an activity starts. As long as that activity (the first launched of those
    that start then) had not been launched, the host held the device up; the rest of the stretch is launch
    latency or a dependency. A stretch whose next activity has no known launch is not counted. None for CPU
    runs, where an operator launches itself, and where no launch is known.
    """
    activities = classified.activities
    launch = activities.launch_ns[rows]
    if classified.is_cpu_only or not (launch != NONE).any():
        return None
    start = activities.start_ns[rows]
    order = np.argsort(start, kind="stable")
    start, launch = start[order], launch[order]
    first = np.flatnonzero(np.concatenate(([True], start[1:] != start[:-1])))
    # Of activities that start together the earliest launch counts; an unknown one among them says nothing.
    earliest = np.minimum.reduceat(np.where(launch == NONE, np.iinfo(np.int64).max, launch), first)
    start = start[first]
    busy = unite(sets.comm, sets.compute, sets.memory)
    if len(busy) == 0:
        return np.zeros(len(windows), np.int64)
    gaps = complement(busy, int(busy.start[0]), int(busy.end[-1]))
    following = np.minimum(np.searchsorted(start, gaps.end, side="left"), len(start) - 1)
    known = (start[following] == gaps.end) & (earliest[following] < np.iinfo(np.int64).max)
    until = np.clip(earliest[following], gaps.start, gaps.end)
    waiting = union(gaps.start[known], until[known])
    pieces = cut_at_windows(waiting.start, waiting.end, windows.start_ns, windows.end_ns)
    return sum_by(pieces.window, pieces.length, len(windows))
