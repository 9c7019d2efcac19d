"""Collectives whose ends disagree although the clocks are aligned: an anomaly, not skew."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.joined import NO_GROUP, Joined

NAMED = 5
"""Collectives pointed to."""


@dataclass(frozen=True)
class EndsApart:
    """Collectives whose ranks' ends disagree on aligned clocks."""

    collectives: int
    largest_ns: int
    groups: list[str]
    ops: list[str]
    ranks: list[int]  # whose end is furthest from the others' in any of them
    figures: list[tuple[int, int]]  # (result, row of its collectives) of the largest


def ends_apart(run: Joined) -> EndsApart | None:
    apart = np.flatnonzero(run.instances.apart[:-1] & run.shown)
    if not len(apart):
        return None
    largest = largest_apart(run)
    rows = np.flatnonzero(np.isin(run.matched.instance, apart))
    end = run.ends.end_ns[rows] - run.clocks.offset_ns[run.ends.member[rows]]
    number = run.matched.instance[rows]
    order = np.lexsort((end, number))
    firsts = np.searchsorted(number[order], apart)
    lasts = np.searchsorted(number[order], apart, side="right") - 1
    median = end[order][(firsts + lasts) // 2]
    is_late = end[order][lasts] - median >= median - end[order][firsts]
    furthest = run.ends.member[rows[order[np.where(is_late, lasts, firsts)]]]
    keys = np.unique(run.key_of[apart]).tolist()
    return EndsApart(
        collectives=len(apart),
        largest_ns=largest[0][0],
        groups=sorted({run.ends.keys[key].label or NO_GROUP for key in keys}),
        ops=sorted({run.ends.ops[op] for op in np.unique(run.ends.op[rows]).tolist()}),
        ranks=sorted({r for m in np.unique(furthest).tolist() if (r := run.member_rank[m]) is not None}),
        figures=[place for _, figures in largest for place in figures],
    )


def largest_apart(run: Joined) -> list[tuple[int, list[tuple[int, int]]]]:
    """The collectives whose ends are furthest apart, a few of them: how far, and (result, row of its
    collectives) of their parts inside the windows."""
    apart = np.flatnonzero(run.instances.apart[:-1] & run.shown)
    span = run.instances.last_end_ns - run.instances.first_end_ns
    largest = apart[np.argsort(-span[apart], kind="stable")][:NAMED]
    return [(int(span[one]), _figures_of(run, one)) for one in largest.tolist()]


def _figures_of(run: Joined, instance: int) -> list[tuple[int, int]]:
    places: list[tuple[int, int]] = []
    for row in run.ends.row[run.matched.instance == instance].tolist():
        place = int(np.searchsorted(run.first_row, row, side="right")) - 1
        figure = int(run.arrivals[place].figure[row - run.first_row[place]])
        if figure >= 0:
            places.append((run.taking[place], figure))
    return places
