"""How many of something each rank has, as runs of ranks with equal numbers: few where ranks are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from sp_profiler.analysis.columns import Numbers
from sp_profiler.trace.tables import NONE, Int64

RankRun = tuple[int, int, int]
"""(first, last, n): each of the ranks first..last has n. Rank -1 is one that nobody knows."""


def runs_of(key: Int64, rank: Numbers, count: int) -> list[tuple[RankRun, ...]]:
    """Of each key in `range(count)` how many rows each rank has."""
    ranks = np.where(rank.is_known, rank.or_zero(), NONE)
    known, code = np.unique(ranks, return_inverse=True)
    pairs, rows = np.unique(key * max(len(known), 1) + code, return_counts=True)
    counts: list[dict[int, int]] = [{} for _ in range(count)]
    of_pair = known[pairs % max(len(known), 1)].tolist()
    for place, one, number in zip(
        (pairs // max(len(known), 1)).tolist(), of_pair, rows.tolist(), strict=True
    ):
        counts[place][one] = number
    return [runs(one.items()) for one in counts]


def runs(counts: Iterable[tuple[int, int]]) -> tuple[RankRun, ...]:
    """The runs of (rank, number); the longest there are, so equal numbers give equal runs."""
    found: list[RankRun] = []
    for rank, number in sorted(counts):
        if found and rank > 0 and found[-1][1] == rank - 1 and found[-1][2] == number:
            found[-1] = (found[-1][0], rank, number)
        else:
            found.append((rank, rank, number))
    return tuple(found)


def added_runs(several: Sequence[tuple[RankRun, ...] | None]) -> tuple[RankRun, ...] | None:
    """The numbers of all, rank by rank; None where one of them is not known."""
    if len(several) == 1:
        return several[0]
    if any(one is None for one in several):
        return None
    every = sorted(run for one in several for run in one or ())
    if any(two[0] <= one[1] for one, two in pairwise(every)):
        counts: Counter[int] = Counter()
        for first, last, number in every:
            for rank in range(first, last + 1):
                counts[rank] += number
        return runs(counts.items())
    found: list[RankRun] = []
    for first, last, number in every:
        if found and first > 0 and found[-1][1] == first - 1 and found[-1][2] == number:
            found[-1] = (found[-1][0], last, number)
        else:
            found.append((first, last, number))
    return tuple(found)
