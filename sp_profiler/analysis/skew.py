"""Who waited for whom (DESIGN section 4: Across ranks).

    skew_wait = last arrival - start, transfer = end - last arrival      (on one time axis)

An arrival is the start of the activity on the device. A wait is charged to the rank that arrived last, unless
another arrived so shortly before that the clocks cannot tell them apart: a tie is nobody's lateness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.clocks import Clocks
from sp_profiler.analysis.matching import Ends
from sp_profiler.analysis.results import Straggler
from sp_profiler.analysis.sequence import rows_by_value
from sp_profiler.trace.tables import NONE, Bool, Int64

APART_NS = 50_000
"""Ends of one collective that differ by more than this are an anomaly of the collective, not skew."""
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Instances:
    """What is known of each instance; a row each, and a last row that stands for "no instance"."""

    last_ns: Int64  # last arrival on the common time axis
    last_member: Int64
    second_ns: Int64  # the arrival before it; of one alone its own
    first_end_ns: Int64
    last_end_ns: Int64
    size: Int64
    tie_ns: Int64
    together: Bool
    is_usable: Bool  # on one time axis, and its starts and ends are arrivals and departures

    @property
    def impossible(self) -> Bool:
        """A rank left before the last arrived, though all must end together: no match, or no clock."""
        shared = self.is_usable & self.together & (self.size > 1)
        return shared & (self.last_ns - self.first_end_ns > self.tie_ns)

    @property
    def apart(self) -> Bool:
        """Ends disagree after alignment: an anomaly of the collective."""
        shared = self.is_usable & self.together & ~self.impossible
        return shared & (self.last_end_ns - self.first_end_ns > np.maximum(APART_NS, 2 * self.tie_ns))


@dataclass(frozen=True)
class Skew:
    """Per row of the run's arrivals; int64 columns, NONE where not known."""

    wait_ns: Int64
    transfer_ns: Int64
    is_bound: Bool  # ranks are missing, or nobody knows when the last arrived: transfer is an upper bound
    blamed: Int64  # the member that arrived last and made this row wait
    instance: Int64  # the instance that decides, NONE without one
    tied_ns: Int64  # waited for ranks that arrived last together


def instances_of(ends: Ends, instance: Int64, count: int, clocks: Clocks) -> Instances:
    """Arrivals and ends of each instance. `instance` holds every number below `count`."""
    rows = np.flatnonzero(instance >= 0)
    start = ends.start_ns[rows] - clocks.offset_ns[ends.member[rows]]
    order = np.lexsort((start, instance[rows]))
    rows, start = rows[order], start[order]
    number, member = instance[rows], ends.member[rows]
    end = ends.end_ns[rows] - clocks.offset_ns[member]
    first = np.searchsorted(number, np.arange(count))
    last = np.searchsorted(number, np.arange(count), side="right") - 1
    axis = clocks.component[member]

    def reduced(how: np.ufunc, column: np.ndarray) -> np.ndarray:
        values = how.reduceat(column, first) if count else column[:0]
        return np.append(values, np.zeros(1, column.dtype))

    def picked(column: np.ndarray, at: Int64) -> np.ndarray:
        return np.append(column[at], np.zeros(1, column.dtype))

    return Instances(
        last_ns=picked(start, last),
        last_member=picked(member, last),
        second_ns=picked(start, np.maximum(last - 1, first)),
        first_end_ns=reduced(np.minimum, end),
        last_end_ns=reduced(np.maximum, end),
        size=np.append(last - first + 1, 0),
        tie_ns=reduced(np.maximum, clocks.tie_ns[member]),
        together=picked(ends.together[rows], first),
        is_usable=reduced(np.logical_and, ends.is_measured[rows])
        & (reduced(np.maximum, axis) == reduced(np.minimum, axis)),
    )


def skew_of(ends: Ends, instance: Int64, found: Instances, clocks: Clocks, complete: Bool, rows: int) -> Skew:
    """Waits and transfers of all rows of the run.

    `complete`: which instances have all their ranks. A row with several ends (a send/recv with several
    peers) waits for the last of them.
    """
    usable = found.is_usable & ~found.impossible & ((found.size > 1) | np.append(complete, False))
    of = np.where(instance >= 0, instance, len(complete))
    end_of_row = _last_per_row(ends.row, np.where(usable[of], found.last_ns[of], _NEVER), rows)
    has = end_of_row >= 0
    e = end_of_row[has]  # the end that decides for each row that has any
    at, member = of[e], ends.member[e]
    start, end = (column[e] - clocks.offset_ns[member] for column in (ends.start_ns, ends.end_ns))
    last, tie = found.last_ns[at], found.tie_ns[at]
    # Who leaves before the last arrives did not wait for it (the root of a broadcast), unless the clocks
    # cannot tell: then it waited all the time, and no longer, for a wait is part of its collective.
    known = usable[at] & (end >= last - tie)
    alone = ~usable[at] & ends.is_measured[e]
    wait = np.where(known, np.clip(last - start, 0, end - start), NONE)
    transfer = np.where(known, np.clip(end - last, 0, end - start), np.where(alone, end - start, NONE))
    waited = known & (wait > 0) & (found.last_member[at] != member)
    is_tie = last - found.second_ns[at] <= tie
    whole = _all_per_row(ends.row, np.append(complete, False)[of], rows)[has]

    def column(values: np.ndarray, missing: int) -> np.ndarray:
        result = np.full(rows, missing, values.dtype)
        result[has] = values
        return result

    return Skew(
        wait_ns=column(wait, NONE),
        transfer_ns=column(transfer, NONE),
        is_bound=column(~(known & whole), True),
        blamed=column(np.where(waited & ~is_tie, found.last_member[at], NONE), NONE),
        instance=column(np.where(usable[at], at, NONE), NONE),
        tied_ns=column(np.where(waited & is_tie, wait, 0), 0),
    )


def _last_per_row(row: Int64, value: Int64, rows: int) -> Int64:
    """For each row the index of its entry with the largest value, NONE for a row without entries."""
    order = np.lexsort((value, row))
    result = np.full(rows, NONE, np.int64)
    result[row[order]] = order  # the last assignment of a row wins: the largest
    return result


def _all_per_row(row: Int64, verdict: Bool, rows: int) -> Bool:
    """Whether the verdict holds for all entries of each row."""
    result = np.ones(rows, np.bool_)
    result[row[~verdict]] = False
    return result


def stragglers_of(
    skew: Skew, chosen: Bool, member_rank: Sequence[int | None], group: Sequence[str | None], group_of: Int64
) -> list[Straggler]:
    """Ranks by the time the others lost to them.

    `chosen`: rows inside the windows. `group_of`: the key of each row, whose name is in `group`.
    """
    rows = np.flatnonzero(chosen & (skew.blamed >= 0))
    cost: dict[int, int] = {}
    count: dict[int, int] = {}
    by_group: dict[int, dict[str, int]] = {}
    for member, of_member in rows_by_value(skew.blamed[rows]).items():
        mine = rows[of_member]
        rank = member_rank[member]
        if rank is None:
            continue
        cost[rank] = cost.get(rank, 0) + int(skew.wait_ns[mine].sum())
        count[rank] = count.get(rank, 0) + len(np.unique(skew.instance[mine]))
        for code in np.unique(group_of[mine]).tolist():
            part = int(skew.wait_ns[mine[group_of[mine] == code]].sum())
            name = group[code] or "unknown"
            into = by_group.setdefault(rank, {})
            into[name] = into.get(name, 0) + part
    ranked = sorted(cost, key=lambda rank: (-cost[rank], rank))
    return [
        Straggler(
            rank, cost[rank], count[rank], dict(sorted(by_group[rank].items(), key=lambda p: (-p[1], p[0])))
        )
        for rank in ranked
    ]
