"""Two ranks' sends and receives to each other, aligned without a sequence number.

They are in order on both sides: NCCL hands a pair's messages over one after the other. Their ends do not
agree, for a hop of a ring ends when the last of its two neighbours is done with it. What tells how far two
windows differ is that a message's two kernels run at the same time at least as long as the transfer takes.
"""

from __future__ import annotations

import numpy as np

from sp_profiler.analysis.line import Line, overlapping, same_kind
from sp_profiler.trace.tables import NONE, Int64

_SHIFTS = 8  # how many places two windows may differ at one end, beyond their difference in length


def in_order(master: Line, line: Line) -> Int64:
    """The row of `master` that each row of `line` is, NONE where it is none. The clocks are aligned.

    The two are laid beside each other at every place; where most run at the same time (of those the ends
    that lie nearest) is right, unless going through both with gaps makes more of them do so.
    """
    count = len(line)
    found = np.full(count, NONE, np.int64)
    if not count or not len(master):
        return found
    difference = len(master) - count
    places = sorted(
        {*range(-_SHIFTS, _SHIFTS + 1), *range(difference - _SHIFTS, difference + _SHIFTS + 1)}, key=abs
    )
    best: tuple[int, float, int] | None = None
    for by in places:
        rows = np.arange(max(0, -by), min(count, len(master) - by))
        if not len(rows):
            continue
        one, two = master.take(rows + by), line.take(rows)
        alike = same_kind(one, two)
        together = int((alike & overlapping(one, two)).sum())
        apart = float(np.median(np.abs(one.end_ns - two.end_ns)))
        if best is None or (together, -apart) > (best[0], -best[1]):
            best = (together, apart, by)
            found = np.full(count, NONE, np.int64)
            found[rows[alike]] = (rows + by)[alike]
    with_gaps = _with_gaps(master, line)
    return with_gaps if best is None or (with_gaps >= 0).sum() > best[0] else found


def _with_gaps(master: Line, line: Line) -> Int64:
    """Those that run at the same time, in order; of two that do not, the one that ends first is alone."""
    found = np.full(len(line), NONE, np.int64)
    i = k = 0
    starts = master.start_ns.tolist(), line.start_ns.tolist()
    ends = master.end_ns.tolist(), line.end_ns.tolist()
    kinds = list(zip(master.op.tolist(), master.token.tolist(), strict=True))
    others = list(zip(line.op.tolist(), line.token.tolist(), strict=True))
    while i < len(master) and k < len(line):
        meets = starts[0][i] <= ends[1][k] and starts[1][k] <= ends[0][i]
        if meets and _alike(kinds[i], others[k]):
            found[k] = i
            i, k = i + 1, k + 1
        elif ends[0][i] <= ends[1][k]:
            i += 1
        else:
            k += 1
    return found


def _alike(one: tuple[int, int], two: tuple[int, int]) -> bool:
    return one[0] == two[0] and (one[1] == two[1] or NONE in (one[1], two[1]))


def meet(master: Line, line: Line) -> tuple[int, int]:
    """How many of two lines' sends are each other's on one clock, and how many of these run together."""
    at = in_order(master, line)
    rows = np.flatnonzero(at >= 0)
    return len(rows), int(overlapping(master.take(at[rows]), line.take(rows)).sum())
