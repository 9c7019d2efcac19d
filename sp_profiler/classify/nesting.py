"""Which CPU event lies in which: the parent of every operator, range and runtime call on its thread.

Built once for a file, without a Python loop over events; questions about ancestors (the innermost
range of ours, the autograd node, ...) are then a few gathers each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sp_profiler.trace.tables import NONE, Bool, Category, Events, Int64

NESTED = (Category.CPU_OP, Category.CPU_ANNOTATION, Category.RUNTIME)
"""Categories that make the forest. Python frames stay out: they are many and say nothing here."""


def last_exceeding(values: Int64, before: Int64, thresholds: Int64) -> Int64:
    """For each query the greatest index j < before with values[j] > threshold, NONE without one.

    A descent in a tree of block maxima: O(log n) array operations for all queries together, exact for
    any input (intervals that overlap without nesting, as rounded times give, need no special case).
    """
    levels = [values]
    while len(levels[-1]) > 1:
        last = levels[-1]
        if len(last) % 2:
            last = np.append(last, np.iinfo(np.int64).min)
        levels.append(np.maximum(last[0::2], last[1::2]))
    found_level = np.full(len(before), NONE, dtype=np.int64)
    block = np.asarray(before, dtype=np.int64).copy()
    active = np.flatnonzero(block > 0)
    for level, maxima in enumerate(levels):  # up: the nearest block to the left that holds an answer
        odd = active[(block[active] & 1) == 1]
        hit = maxima[block[odd] - 1] > thresholds[odd]
        found_level[odd[hit]] = level
        block[odd] -= 1
        active = active[(block[active] > 0) & (found_level[active] == NONE)]
        block[active] >>= 1
    answer = np.full(len(before), NONE, dtype=np.int64)
    for level in range(len(levels) - 1, -1, -1):  # down: its rightmost answer
        here = np.flatnonzero(found_level == level)
        if level == 0:
            answer[here] = block[here]
            break
        right = 2 * block[here] + 1
        below = levels[level - 1]
        inside = right < len(below)
        take = np.zeros(len(here), dtype=np.bool_)
        take[inside] = below[right[inside]] > thresholds[here[inside]]
        block[here] = np.where(take, right, right - 1)
        found_level[here] = level - 1
    return answer


@dataclass(frozen=True)
class Nest:
    """A forest of CPU events, sorted by (thread, start, longest first, row).

    Positions (not rows) are the currency: `row[position]` is a row of Events, `position[row]` its
    inverse (NONE for events outside the forest), `parent[position]` the innermost event that is open
    on the same thread when this one starts (NONE at the root).
    """

    row: Int64
    position: Int64
    parent: Int64
    thread: Int64  # dense number of the thread

    @cached_property
    def _inner(self) -> Int64:
        """Positions that have something inside, so that they can be ancestors: few beside the others."""
        has_inside = np.zeros(len(self.row) + 1, dtype=np.bool_)  # the last place takes the NONE
        has_inside[self.parent] = True
        return np.flatnonzero(has_inside[:-1])

    @cached_property
    def _parent_in_inner(self) -> Int64:
        """Place in `_inner` of each position's parent, one past its end at the root."""
        place = np.full(len(self.row) + 1, len(self._inner), dtype=np.int64)
        place[self._inner] = np.arange(len(self._inner))
        return place[self.parent]

    def nearest(self, marked: Bool) -> NDArray[Any]:
        """For each position the position of the nearest marked event among itself and its ancestors.

        `marked` has one value per position. The result has one more, the last NONE, so that it can be
        gathered with NONE. int32: a dozen of these are kept at a time, of a file's every operator.
        """
        size = len(self.row)
        nearest = np.full(size + 1, NONE, dtype=np.int32)
        if not marked.any():
            return nearest
        inner, root = self._inner, len(self._inner)
        pointer = np.append(self._parent_in_inner[inner], root)
        own = np.flatnonzero(marked[inner])
        pointer[own] = own
        while True:  # doubling: as many rounds as the logarithm of the depth
            jumped = pointer[pointer]
            if np.array_equal(jumped, pointer):
                break
            pointer = jumped
        answer = np.append(inner, NONE).astype(np.int32)[pointer]
        nearest[:-1] = answer[self._parent_in_inner]
        own = np.flatnonzero(marked)
        nearest[own] = own
        return nearest


def thread_numbers(events: Events, rows: Int64) -> Int64:
    """A number for the thread (pid, tid) of each row: dense, in order of the string codes."""
    width = int(events.tid[rows].max(initial=0)) + 2
    key = (events.pid[rows].astype(np.int64) + 1) * width + events.tid[rows].astype(np.int64) + 1
    bound = (int(events.pid[rows].max(initial=0)) + 2) * width
    if bound > len(rows):
        return np.unique(key, return_inverse=True)[1].astype(np.int64).reshape(-1)
    seen = np.zeros(bound, dtype=np.bool_)  # few threads have many events: sorting the keys would be slow
    seen[key] = True
    return (np.cumsum(seen) - 1)[key]


def _parents(start: Int64, end: Int64) -> Int64:
    """The innermost event that is open when each starts, on whatever thread: the last one that ends later.

    An event that holds any holds the one that follows it. Of those the nearest is the parent most often;
    where it ended before, the others are searched.
    """
    holds = np.append(end[:-1] > start[1:], np.zeros(min(len(end), 1), dtype=np.bool_))
    inner = np.flatnonzero(holds)
    before = np.cumsum(holds) - holds  # so many of them stand before each
    ends = np.append(end[inner], np.iinfo(np.int64).min)  # the last place answers for place -1
    place = before - 1
    left = np.flatnonzero(ends[place] <= start)
    place[left] = last_exceeding(ends[:-1], before[left], start[left])
    return np.append(inner, NONE)[place]


def build_nest(events: Events, categories: tuple[Category, ...] = NESTED) -> Nest:
    """The forest of the events of these categories."""
    rows = np.flatnonzero(np.isin(events.category, [int(c) for c in categories])).astype(np.int64)
    return nest_of(events, rows, thread_numbers(events, rows))


def nest_of(events: Events, rows: Int64, thread: Int64) -> Nest:
    """The forest of the events at these rows, on threads of these numbers."""
    order = np.lexsort((-events.dur_ns[rows], events.start_ns[rows], thread))
    rows, thread = rows[order], thread[order]
    position = np.full(len(events) + 1, NONE, dtype=np.int64)  # the last place answers for row NONE
    position[rows] = np.arange(len(rows))
    start = events.start_ns[rows]
    parent = _parents(start, start + events.dur_ns[rows])
    same = (parent != NONE) & (thread[parent] == thread)
    return Nest(rows, position, np.where(same, parent, NONE), thread)
