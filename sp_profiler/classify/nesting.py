"""Which CPU event lies in which: the parent of every operator, range and runtime call on its thread.

Built once for a file, without a Python loop over events; questions about ancestors (the innermost
range of ours, the autograd node, ...) are then a few gathers each.
"""

from __future__ import annotations

from dataclasses import dataclass
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

    def nearest(self, marked: Bool) -> NDArray[Any]:
        """For each position the position of the nearest marked event among itself and its ancestors.

        `marked` has one value per position. The result has one more, the last NONE, so that it can be
        gathered with NONE. int32: a dozen of these are kept at a time, of a file's every operator.
        """
        size = len(self.row)
        if not marked.any():
            return np.full(size + 1, NONE, dtype=np.int32)
        pointer = np.empty(size + 1, np.int32)
        pointer[:-1] = np.where(self.parent == NONE, size, self.parent)
        pointer[-1] = size
        pointer[:-1][marked] = np.flatnonzero(marked)
        while True:  # doubling: as many rounds as the logarithm of the depth
            jumped = pointer[pointer]
            if np.array_equal(jumped, pointer):
                return np.where(pointer == size, np.int32(NONE), pointer)
            pointer = jumped


def thread_numbers(events: Events, rows: Int64) -> Int64:
    """A number for the thread (pid, tid) of each row: dense, in order of the string codes."""
    width = int(events.tid[rows].max(initial=0)) + 2
    key = (events.pid[rows].astype(np.int64) + 1) * width + events.tid[rows].astype(np.int64) + 1
    return np.unique(key, return_inverse=True)[1].astype(np.int64).reshape(-1)


def build_nest(events: Events, categories: tuple[Category, ...] = NESTED) -> Nest:
    """The forest of the events of these categories."""
    rows = np.flatnonzero(np.isin(events.category, [int(c) for c in categories])).astype(np.int64)
    thread = thread_numbers(events, rows)
    order = np.lexsort((-events.dur_ns[rows], events.start_ns[rows], thread))
    rows, thread = rows[order], thread[order]
    position = np.full(len(events) + 1, NONE, dtype=np.int64)  # the last place answers for row NONE
    position[rows] = np.arange(len(rows))
    here = np.arange(len(rows))
    parent = last_exceeding(events.end_ns[rows], here, events.start_ns[rows])
    same = (parent != NONE) & (thread[parent] == thread)
    return Nest(rows, position, np.where(same, parent, NONE), thread)
