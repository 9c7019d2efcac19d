"""How long interval algebra takes: 4 M computation and 1 M communication intervals of one device.

    python benchmarks/intervals.py [--compute 4000000] [--comm 1000000] [--repeat 3]

Prints CPU seconds (the best of the repeats) and how many times longer an event sweep takes, the usual way:
all starts and ends sorted together, counters of what runs cumulated, lengths summed where both run. Both
must find the same nanoseconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from sp_profiler.analysis.intervals import divide_equally, intersect, subtract, union, unite
from sp_profiler.trace.tables import Int64

T = TypeVar("T")


def intervals(count: int, mean_ns: int, gap_ns: int, seed: int) -> tuple[Int64, Int64]:
    """Sorted by start as activities are; some overlap, as on several streams."""
    rng = np.random.default_rng(seed)
    start = 1_700_000_000_000_000_000 + np.cumsum(rng.integers(1, 2 * gap_ns, count))
    return start, start + rng.integers(1, 2 * mean_ns, count)


def event_sweep(compute: tuple[Int64, Int64], comm: tuple[Int64, Int64]) -> tuple[int, int, int]:
    """|C|, |K|, |C ∩ K| by sorting all events; the baseline."""
    times = np.concatenate((*compute, *comm))
    n, m = len(compute[0]), len(comm[0])
    change_k = np.repeat(np.array([1, -1, 0, 0]), (n, n, m, m))
    change_c = np.repeat(np.array([0, 0, 1, -1]), (n, n, m, m))
    order = np.argsort(times, kind="stable")
    length = np.diff(times[order])
    in_k = np.cumsum(change_k[order])[:-1] > 0
    in_c = np.cumsum(change_c[order])[:-1] > 0
    return int(length[in_c].sum()), int(length[in_k].sum()), int(length[in_c & in_k].sum())


def set_algebra(compute: tuple[Int64, Int64], comm: tuple[Int64, Int64]) -> tuple[int, int, int]:
    """The same by `sp_profiler.analysis.intervals`."""
    k, c = union(*compute), union(*comm)
    return c.measure, k.measure, intersect(c, k).measure


def timed(function: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds, and the result."""
    begin = time.process_time()
    result = function()
    return time.process_time() - begin, result


def best(repeat: int, function: Callable[[], T]) -> tuple[float, T]:
    """The smallest CPU time of the repeats, and the result."""
    return min((timed(function) for _ in range(max(1, repeat))), key=lambda run: run[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--compute", type=int, default=4_000_000, help="computation intervals")
    parser.add_argument("--comm", type=int, default=1_000_000, help="communication intervals")
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    compute = intervals(asked.compute, mean_ns=8_000, gap_ns=10_000, seed=1)
    comm = intervals(asked.comm, mean_ns=30_000, gap_ns=40_000, seed=2)

    swept, expected = best(asked.repeat, lambda: event_sweep(compute, comm))
    ours, found = best(asked.repeat, lambda: set_algebra(compute, comm))
    if found != expected:
        raise SystemExit(f"the two ways disagree: {found} and {expected}")
    k, c = union(*compute), union(*comm)
    each, overlapped = best(asked.repeat, lambda: k.overlap(*comm))
    exposed = subtract(c, k)
    shared, share = best(asked.repeat, lambda: divide_equally(*comm, exposed))
    if int(share.sum()) != exposed.measure:
        raise SystemExit("the shares do not sum to the exposed time")
    busy, _ = best(asked.repeat, lambda: unite(c, k).measure)

    print(f"{asked.compute:,} computation and {asked.comm:,} communication intervals")
    rows = (
        ("event sweep: |C|, |K|, |C ∩ K|", swept, "1.0 (baseline)"),
        ("unions and intersection: the same", ours, f"{swept / ours:.1f} times faster"),
        ("busy: union of both unions", busy, ""),
        (f"overlap of each of {len(overlapped):,} collectives", each, ""),
        (f"exposed share of each of {len(share):,} collectives", shared, ""),
    )
    for what, seconds, note in rows:
        print(f"  {what:48} {seconds:7.3f} s  {note}".rstrip())


if __name__ == "__main__":
    main()
