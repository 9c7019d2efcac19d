"""What an interval means, and every operation on intervals: the one place that knows.

Intervals are half-open, `[start, end)`, in int64 nanoseconds. Empty ones vanish, touching ones merge.
A `TimeSet` is a union of intervals in its only normal form, so that each measure is a prefix sum and a
`searchsorted`: everything here is vectorised and exact for times below 2**62 ns (146 years).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sp_profiler.trace.tables import Int64

_BEFORE_ALL = -(2**62)  # an end before every instant; differences with times stay inside int64


@dataclass(frozen=True)
class TimeSet:
    """A set of instants: disjoint, non-empty, non-touching intervals, sorted.

    `start` and `end` are int64 arrays of equal length in nanoseconds. Made by `union`.
    """

    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def _before(self) -> Int64:
        """`_before[i]`: total length of the first `i` intervals; shape (n + 1,)."""
        return _prefix_sums(self.end - self.start)

    @cached_property
    def _ends(self) -> Int64:
        """The ends, with one before all instants in front; shape (n + 1,)."""
        return np.concatenate((np.array([_BEFORE_ALL], np.int64), self.end))

    @property
    def measure(self) -> int:
        """Its length in nanoseconds."""
        return int(self._before[-1])

    def covered_before(self, instant: Int64) -> Int64:
        """How much of the set lies before each instant, in nanoseconds; the shape of `instant`."""
        begun = np.searchsorted(self.start, instant, side="left")
        return self._before[begun] - np.maximum(self._ends[begun] - instant, 0)

    def overlap(self, start: Int64, end: Int64) -> Int64:
        """`|[start_i, end_i) ∩ set|` for each i, in nanoseconds. Needs `start <= end`."""
        return self.covered_before(end) - self.covered_before(start)


def _prefix_sums(values: np.ndarray) -> Int64:
    """The sum of the first i values at place i; shape (n + 1,)."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def time_set(start: Int64, end: Int64) -> TimeSet:
    """A `TimeSet` from arrays that are in normal form already."""
    return TimeSet(np.asarray(start, np.int64), np.asarray(end, np.int64))


EMPTY = time_set(np.zeros(0, np.int64), np.zeros(0, np.int64))


def union(start: Int64, end: Int64) -> TimeSet:
    """The union of any intervals (any order, overlapping, empty ones allowed).

    With starts and ends sorted apart, the i-th end lies before the (i+1)-th start exactly where nothing
    runs in between; two plain sorts are all it takes, no permutation has to be carried along.
    """
    filled = end > start
    if not filled.all():
        start, end = start[filled], end[filled]
    if len(start) == 0:
        return EMPTY
    starts, ends = _sorted(start), _sorted(end)
    gap = starts[1:] > ends[:-1]
    return time_set(starts[np.concatenate(([True], gap))], ends[np.concatenate((gap, [True]))])


def _distinct(values: Int64) -> Int64:
    """Sorted, each value once. On times one sort is several times faster than the hashing of `np.unique`."""
    values = np.sort(values)
    return values[np.concatenate(([True], values[1:] != values[:-1]))]


def _sorted(values: Int64) -> Int64:
    """Activities come sorted by start, so looking first is usually cheaper than sorting."""
    return values if (values[1:] >= values[:-1]).all() else np.sort(values)


def unite(*sets: TimeSet) -> TimeSet:
    """The union of sets."""
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def intersect(a: TimeSet, b: TimeSet) -> TimeSet:
    """The instants in both sets.

    Where sorted starts S and sorted ends E of both sets are listed together, at least two intervals run
    exactly during the `[S[i+1], E[i])` that are not empty.
    """
    # A stable sort of two sorted runs is one merge.
    starts = np.sort(np.concatenate((a.start, b.start)), kind="stable")
    ends = np.sort(np.concatenate((a.end, b.end)), kind="stable")
    both = starts[1:] < ends[:-1]
    return time_set(starts[1:][both], ends[:-1][both])


def complement(a: TimeSet, low: int, high: int) -> TimeSet:
    """`[low, high)` without the set."""
    start = np.concatenate((np.array([low], np.int64), a.end))
    end = np.concatenate((a.start, np.array([high], np.int64)))
    start, end = np.maximum(start, low), np.minimum(end, high)
    keep = start < end
    return time_set(start[keep], end[keep])


def subtract(a: TimeSet, b: TimeSet) -> TimeSet:
    """The instants of `a` that are not in `b`."""
    if len(a) == 0 or len(b) == 0:
        return a
    return intersect(a, complement(b, int(a.start[0]), int(a.end[-1])))


def clip(a: TimeSet, low: int, high: int) -> TimeSet:
    """The part of the set inside `[low, high)`."""
    start, end = np.maximum(a.start, low), np.minimum(a.end, high)
    keep = start < end
    return time_set(start[keep], end[keep])


@dataclass(frozen=True)
class Pieces:
    """Intervals cut at the borders of windows: piece i is `[start, end)` of `owner`, inside `window`.

    All columns int64 and of equal length, sorted by (owner, window); no piece is empty.
    """

    owner: Int64
    window: Int64
    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def length(self) -> Int64:
        return self.end - self.start


def cut_at_windows(start: Int64, end: Int64, window_start: Int64, window_end: Int64) -> Pieces:
    """Cut intervals at windows, which are sorted and disjoint (they may touch, be empty, leave gaps).

    What lies in no window is in no piece.
    """
    first = np.searchsorted(window_end, start, side="right")
    last = np.searchsorted(window_start, end, side="left")
    owner, window = expand_ranges(first, np.maximum(first, last))
    piece_start = np.maximum(start[owner], window_start[window])
    piece_end = np.minimum(end[owner], window_end[window])
    keep = piece_start < piece_end
    return Pieces(owner[keep], window[keep], piece_start[keep], piece_end[keep])


def sum_by(key: Int64, values: Int64, size: int) -> Int64:
    """Exact int64 sums of `values` by `key` in `range(size)` (`bincount` would go through float64)."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, key, values)
    return sums


def expand_ranges(low: Int64, high: Int64) -> tuple[Int64, Int64]:
    """All pairs (i, j) with `low_i <= j < high_i`, sorted; two int64 arrays. Needs `low <= high`."""
    counts = high - low
    owner = np.repeat(np.arange(len(low)), counts)
    offset = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - (offset - low)[owner]


def chunks_of(counts: Int64, limit: int) -> Iterator[slice]:
    """Slices of neighbouring items whose counts add up to about `limit` at most (one item may exceed it)."""
    total = np.cumsum(counts)
    low = 0
    while low < len(counts):
        done = int(total[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(total, done + limit, side="right")))
        yield slice(low, high)
        low = high


def union_by_key(key: Int64, start: Int64, end: Int64) -> tuple[Int64, TimeSet]:
    """The union of the intervals of each key in one go: (key of each interval, intervals).

    The returned intervals are sorted by (key, start) and disjoint within a key; across keys they may
    overlap, so the second part is a list of intervals in a `TimeSet`'s clothes only within one key.
    """
    filled = end > start
    key, start, end = key[filled], start[filled], end[filled]
    if len(key) == 0:
        return key, EMPTY
    # Each key gets a stretch of the axis of its own; one union then does them all.
    base = int(start.min())
    span = int(end.max()) - base + 1
    keys, rank = np.unique(key, return_inverse=True)
    keys_at_once = max(1, 2**62 // span)
    parts: list[tuple[Int64, Int64, Int64]] = []
    for low in range(0, len(keys), keys_at_once):
        here = slice(None) if len(keys) <= keys_at_once else (rank >= low) & (rank < low + keys_at_once)
        shift = (rank[here] - low) * span - base
        merged = union(start[here] + shift, end[here] + shift)
        which = merged.start // span
        back = base - which * span
        parts.append((keys[which + low], merged.start + back, merged.end + back))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return columns[0], time_set(columns[1], columns[2])


_PAIRS_AT_ONCE = 4_000_000


def divide_equally(start: Int64, end: Int64, within: TimeSet) -> Int64:
    """Divide the instants of `within` among the intervals that run then; nanoseconds for each interval.

    Each stretch of length L in which the same n intervals run gives floor(L/n) to each of them, and its
    spare nanoseconds one each to the first of them in the order of the arrays. The parts therefore sum to
    `|within ∩ ∪ intervals|` exactly (DESIGN: Per collective).
    """
    share = np.zeros(len(start), np.int64)
    filled = np.flatnonzero(end > start)
    if len(filled) == 0 or len(within) == 0:
        return share
    start, end = start[filled], end[filled]
    points = _distinct(np.concatenate((start, end, within.start, within.end)))
    first, last = np.searchsorted(points, start), np.searchsorted(points, end)
    running = _running(first, last, len(points))
    inside = _running(np.searchsorted(points, within.start), np.searchsorted(points, within.end), len(points))
    length = np.where((running > 0) & (inside > 0), np.diff(points), 0)
    each, spare = np.divmod(length, np.maximum(running, 1))
    total = _prefix_sums(each)
    part = total[last] - total[first]
    # Only stretches with spare nanoseconds are looked at one by one.
    uneven = spare > 0
    if uneven.any():
        place = _prefix_sums(uneven)
        part += _spare_nanoseconds(place[first], place[last], spare[uneven], running[uneven])
    share[filled] = part
    return share


@dataclass(frozen=True)
class Shares:
    """The shares of `divide_equally`, stretch by stretch; int64 columns, sorted by (owner, start).

    `owner` is the interval's place; in `[start, end)` the same intervals run. `ns` is what the interval gets
    of the stretch: 0 where others got its only nanoseconds.
    """

    owner: Int64
    start: Int64
    end: Int64
    ns: Int64


def divided_stretches(start: Int64, end: Int64, within: TimeSet) -> Shares:
    """What `divide_equally` gives, with where in time: the sums by owner are the same."""
    nothing = np.zeros(0, np.int64)
    filled = np.flatnonzero(end > start)
    if len(filled) == 0 or len(within) == 0:
        return Shares(nothing, nothing, nothing, nothing)
    start, end = start[filled], end[filled]
    points = _distinct(np.concatenate((start, end, within.start, within.end)))
    running = _running(np.searchsorted(points, start), np.searchsorted(points, end), len(points))
    inside = _running(np.searchsorted(points, within.start), np.searchsorted(points, within.end), len(points))
    shared = np.flatnonzero((running > 0) & (inside > 0))
    begins, stops = points[shared], points[shared + 1]
    each, spare = np.divmod(stops - begins, running[shared])
    owner, stretch = expand_ranges(np.searchsorted(begins, start), np.searchsorted(begins, end))
    order = np.argsort(stretch, kind="stable")  # intervals in their order within each stretch
    first = np.cumsum(running[shared]) - running[shared]
    place = np.empty(len(owner), np.int64)
    place[order] = np.arange(len(owner)) - first[stretch[order]]
    ns = each[stretch] + (place < spare[stretch])
    return Shares(filled[owner], begins[stretch], stops[stretch], ns)


def _running(first: Int64, last: Int64, points: int) -> Int64:
    """How many intervals `[first_i, last_i)` of places run after each point but the last."""
    return np.cumsum(np.bincount(first, minlength=points) - np.bincount(last, minlength=points))[:-1]


def _spare_nanoseconds(first: Int64, last: Int64, spare: Int64, running: Int64) -> Int64:
    """How many spare nanoseconds each interval gets: interval i runs in stretches `[first_i, last_i)`."""
    got = np.zeros(len(first), np.int64)
    for chunk in chunks_of(running, _PAIRS_AT_ONCE):
        low, high = chunk.start, chunk.stop
        here = np.flatnonzero((first < high) & (last > low))
        owner, stretch = expand_ranges(np.maximum(first[here], low) - low, np.minimum(last[here], high) - low)
        order = np.argsort(stretch, kind="stable")  # stretches in turn, intervals in their order within
        begins = np.cumsum(running[chunk]) - running[chunk]
        place = np.arange(len(order)) - begins[stretch[order]]
        lucky = place < spare[chunk][stretch[order]]
        np.add.at(got, here[owner[order[lucky]]], 1)
    return got
