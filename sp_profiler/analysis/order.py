"""Two ranks' collectives of one group, aligned without a sequence number.

Order alone shifts when one window misses a collective, so order is checked by operation and size and by time:
on aligned clocks no rank leaves a collective before the last arrives, and the ends agree.
"""

from __future__ import annotations

import numpy as np

from sp_profiler.analysis.hosts import middle
from sp_profiler.analysis.line import Line, overlapping, same_kind
from sp_profiler.analysis.pairs import in_order
from sp_profiler.trace.tables import NONE, Int64

_SHIFTS = 8  # how many places two windows may differ at one end, beyond their difference in length


def align(master: Line, line: Line) -> Int64:
    """The row of `master` that each row of `line` is, NONE where it is none. The clocks are aligned.

    The anchors are pairs that are each other's nearest by end, of the same kind, and (where the operation
    ends together) overlap. Between two anchors, as many on both sides, all of the same kind: in order.
    Of operations that need not end together (sends and receives) the ends say nothing: see `pairs`.
    """
    if not (master.together.any() or line.together.any()):
        return in_order(master, line)
    found = np.full(len(line), NONE, np.int64)
    if not len(master) or not len(line):
        return found
    to_master, to_line = _nearest(master.end_ns, line.end_ns), _nearest(line.end_ns, master.end_ns)
    rows = np.flatnonzero(to_line[to_master] == np.arange(len(line)))
    at = to_master[rows]
    one, two = master.take(at), line.take(rows)
    good = same_kind(one, two) & (overlapping(one, two) | ~one.together)
    rows, at = rows[good], at[good]
    rising = at > np.r_[NONE, np.maximum.accumulate(at)[:-1]] if len(at) else good[:0]
    rows, at = rows[rising], at[rising]
    found[rows] = at
    _fill(master, line, found, rows, at)
    return found


def _nearest(where: Int64, points: Int64) -> Int64:
    """For each point the row of the nearest value in `where` (any order)."""
    order = np.argsort(where, kind="stable")
    ordered = where[order]
    after = np.clip(np.searchsorted(ordered, points), 0, len(where) - 1)
    before = np.maximum(after - 1, 0)
    is_before = np.abs(points - ordered[before]) <= np.abs(ordered[after] - points)
    return order[np.where(is_before, before, after)]


def _fill(master: Line, line: Line, found: Int64, rows: Int64, at: Int64) -> None:
    left, right = np.r_[NONE, rows], np.r_[rows, len(line)]
    low, high = np.r_[NONE, at], np.r_[at, len(master)]
    same = (right - left == high - low) & (right - left > 1)
    for gap in np.flatnonzero(same).tolist():
        mine = np.arange(left[gap] + 1, right[gap])
        theirs = np.arange(low[gap] + 1, high[gap])
        one, two = master.take(theirs), line.take(mine)
        if (same_kind(one, two) & (overlapping(one, two) | ~one.together)).all():
            found[mine] = theirs


def same_clock_matches(one: Line, two: Line, within_ns: int) -> int:
    """How many match by order when both clocks are taken for one; 0 unless the ends then agree."""
    at = align(one, two)
    rows = np.flatnonzero((at >= 0) & two.together)
    if not len(rows):
        return 0
    apart = np.abs(two.end_ns[rows] - one.end_ns[at[rows]])
    return int((at >= 0).sum()) if np.median(apart) < within_ns else 0


def estimate_shift(one: Line, two: Line, within_ns: int) -> int:
    """How far the clock of `two` is ahead of `one`'s, from their collectives alone.

    Candidates: one clock; the windows begin together, end together, or differ by a few collectives at an end.
    Among those whose ends agree about as well as the best, the one that matches most wins, then the smallest.
    """
    candidates = {0}
    difference = len(two) - len(one)
    for places in {
        0,
        difference,
        *range(-_SHIFTS, _SHIFTS + 1),
        *range(difference - _SHIFTS, difference + 1),
    }:
        shift = _shift_at(one, two, places)
        if shift is not None:
            candidates.add(shift)
            if places in (0, difference) and _fits(one, two, shift, within_ns) == min(len(one), len(two)):
                return 0 if same_clock_matches(one, two, within_ns) == min(len(one), len(two)) else shift
    scored = [(_score(one, two, shift), shift) for shift in candidates]
    most = max(matched for (matched, _), _ in scored)
    likely = [(score, shift) for score, shift in scored if 2 * score[0] >= most and score[0] > 0]
    if not likely:
        return 0
    best = min(apart for (_, apart), _ in likely)
    close = [(matched, -abs(shift), shift) for (matched, apart), shift in likely if apart <= 3 * best + 2000]
    return max(close)[2]


def _shift_at(one: Line, two: Line, places: int) -> int | None:
    """The median difference of ends when row i of `one` is row i + places of `two`."""
    first = max(0, -places)
    count = min(len(one) - first, len(two) - first - places)
    if count <= 0:
        return None
    a = one.take(np.arange(first, first + count))
    b = two.take(np.arange(first + places, first + places + count))
    same = same_kind(a, b)
    return middle((b.end_ns - a.end_ns)[same]) if same.any() else None


def _score(one: Line, two: Line, shift: int) -> tuple[int, float]:
    """Matched collectives, and the median disagreement of their ends."""
    moved = two.moved(-shift)
    at = align(one, moved)
    rows = np.flatnonzero(at >= 0)
    if not len(rows):
        return 0, float("inf")
    return len(rows), float(np.median(np.abs(moved.end_ns[rows] - one.end_ns[at[rows]])))


def _fits(one: Line, two: Line, shift: int, within_ns: int) -> int:
    matched, apart = _score(one, two, shift)
    return matched if apart < within_ns else 0
