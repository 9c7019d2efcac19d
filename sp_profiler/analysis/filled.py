"""The collectives of a rank with what the other ranks tell of them, and its sums by group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sp_profiler.analysis.bandwidth import bandwidth, bus_factor
from sp_profiler.analysis.collective_table import Collectives, exact_sum
from sp_profiler.analysis.columns import Column, Numbers, Words
from sp_profiler.analysis.joined import NO_GROUP, Joined
from sp_profiler.analysis.overlap import IdentityError
from sp_profiler.analysis.results import Bandwidth, RankResult
from sp_profiler.trace.tables import NONE, Int64


@dataclass(frozen=True)
class GroupAcross:
    """What a group's figures gain."""

    skew_wait_ns: int | None
    bandwidth: list[Bandwidth] | None


class GroupSums:
    """Sums over all ranks, by group and operation."""

    def __init__(self) -> None:
        self._wait: dict[str, int] = {}
        self._sums: dict[tuple[str, str], list[int]] = {}
        self._factor: dict[tuple[str, str], float | None] = {}

    def add(self, collectives: Collectives, sizes: Mapping[str, int | None]) -> None:
        """Add a rank's collectives; `sizes` are those of its groups."""
        wait, transfer = collectives.numbers("skew_wait_ns"), collectives.numbers("transfer_ns")
        bytes_, bound = collectives.numbers("bytes").or_zero(), collectives.words("transfer_is_bound")
        measured = collectives.numbers("algbw_gbps").is_known & collectives.words("op").where(bool)
        is_bound = bound.where(bool)
        kinds, kind = collectives.kinds("group", "op")
        for code, (named, op) in enumerate(kinds):
            mine, group = kind == code, named or NO_GROUP
            waited = mine & wait.is_known
            if waited.any():
                self._wait[group] = self._wait.get(group, 0) + exact_sum(wait.values[waited])
            mine &= measured
            if not mine.any():
                continue
            sums = self._sums.setdefault((group, op), [0, 0, 0, 0])
            parts = (exact_sum(bytes_[mine]), exact_sum(transfer.or_zero()[mine]), int(is_bound[mine].sum()))
            for place, part in enumerate((int(mine.sum()), *parts)):
                sums[place] += part
            if (group, op) not in self._factor:
                self._factor[(group, op)] = bus_factor(op, sizes.get(group))

    def result(self) -> dict[str, GroupAcross]:
        by_group: dict[str, list[Bandwidth]] = {}
        for (group, op), (count, size, transfer, bounds) in self._sums.items():
            algbw, factor = size / transfer, self._factor[(group, op)]
            busbw = None if factor is None else algbw * factor
            one = Bandwidth(op, count, size, transfer, algbw, busbw, bounds > 0)
            by_group.setdefault(group, []).append(one)
        names = dict.fromkeys((*self._wait, *by_group))
        return {
            name: GroupAcross(
                self._wait.get(name),
                sorted(by_group[name], key=lambda b: (-b.transfer_ns, b.op)) if name in by_group else None,
            )
            for name in names
        }


def fill(result: RankResult, run: Joined, place: int, sums: GroupSums) -> RankResult:
    """The result with waits, transfers and bandwidths in its collectives."""
    arrivals, first = run.arrivals[place], int(run.first_row[place])
    inside = np.flatnonzero(arrivals.figure >= 0)
    rows = first + inside
    collectives = Collectives.of(result.collectives)
    at = np.full(len(collectives), NONE, np.int64)  # of each collective its row of the run
    at[arrivals.figure[inside]] = rows
    if (at < 0).any():
        raise IdentityError("a collective inside the windows has no arrival")
    instance = run.skew.instance[at]
    apart = run.instances.apart[instance]  # NONE is the last row: no instance
    span = run.instances.last_end_ns - run.instances.first_end_ns
    transfer = Numbers.but(run.skew.transfer_ns[at])
    is_bound = np.where(transfer.is_known, run.skew.is_bound[at], NONE)
    sizes: dict[str, int | None] = {g.key: g.size or len(g.ranks) or None for g in arrivals.groups}
    sizes[NO_GROUP] = sizes.get(NO_GROUP, run.assumed_size)  # of the group that nothing names
    filled = collectives.changed(
        skew_wait_ns=Numbers.but(run.skew.wait_ns[at]),
        transfer_ns=transfer,
        transfer_is_bound=Words(is_bound.astype(np.int32), (False, True)),
        note=_with_notes(collectives.column("note"), np.where(apart, span[instance], 0)),
    )
    if not arrivals.is_cpu:
        algbw, busbw = _bandwidths(filled, sizes)
        filled = filled.changed(algbw_gbps=algbw, busbw_gbps=busbw)
    sums.add(filled, sizes)
    return replace(result, collectives=filled)


def _bandwidths(collectives: Collectives, sizes: Mapping[str, int | None]) -> tuple[Numbers, Numbers]:
    """algbw and busbw of each (`analysis.bandwidth`), float64."""
    kinds, kind = collectives.kinds("group", "op")
    size, transfer = collectives.numbers("bytes"), collectives.numbers("transfer_ns")
    ones = [bandwidth(op, sizes.get(group or NO_GROUP), 1, 1) for group, op in kinds]
    counts = np.array([known is not None for known, _ in ones], np.bool_)[kind]
    factor = np.array([np.nan if factor is None else factor for _, factor in ones], np.float64)[kind]
    known = counts & (size.or_zero() != 0) & (transfer.or_zero() != 0)
    algbw = np.zeros(len(collectives))
    np.divide(size.or_zero(), transfer.or_zero(), out=algbw, where=known)
    with_factor = known & ~np.isnan(factor)
    busbw = np.where(with_factor, algbw * np.nan_to_num(factor), 0.0)
    return Numbers(algbw, known), Numbers(busbw, with_factor)


def _with_notes(notes: Column[str], apart_ns: Int64) -> Column[str]:
    if not apart_ns.any():
        return notes
    told = zip(notes.tolist(), apart_ns.tolist(), strict=True)
    return Words.of([_with_note(note, apart) for note, apart in told])


def _with_note(note: str | None, apart_ns: int) -> str | None:
    if not apart_ns:
        return note
    text = f"its ranks' ends are {apart_ns} ns apart on aligned clocks"
    return f"{note}; {text}" if note else text
