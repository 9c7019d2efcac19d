"""The collectives of a rank with what the other ranks tell of them, and its sums by group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sp_profiler.analysis.bandwidth import bandwidth, bus_factor
from sp_profiler.analysis.collective_table import Collectives, exact_sum
from sp_profiler.analysis.columns import Column, Numbers, Words
from sp_profiler.analysis.joined import NO_GROUP, Joined
from sp_profiler.analysis.overlap import IdentityError
from sp_profiler.analysis.results import Bandwidth, RankResult
from sp_profiler.classify.tables import Group
from sp_profiler.trace.tables import NONE, Int64


@dataclass(frozen=True)
class GroupAcross:
    """What a group's figures gain."""

    skew_wait_ns: int | None
    bandwidth: list[Bandwidth] | None


class GroupSums:
    """Sums over all ranks, by group and operation."""

    def __init__(self) -> None:
        self.wait: dict[str, int] = {}  # by group
        self.sums: dict[tuple[str, str], list[int]] = {}  # count, bytes, transfer_ns, how many are bounds
        self.factor: dict[tuple[str, str], float | None] = {}  # busbw / algbw, as the first rank has it

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
                self.wait[group] = self.wait.get(group, 0) + exact_sum(wait.values[waited])
            mine &= measured
            if not mine.any():
                continue
            sums = self.sums.setdefault((group, op), [0, 0, 0, 0])
            parts = (exact_sum(bytes_[mine]), exact_sum(transfer.or_zero()[mine]), int(is_bound[mine].sum()))
            for place, part in enumerate((int(mine.sum()), *parts)):
                sums[place] += part
            if (group, op) not in self.factor:
                self.factor[(group, op)] = bus_factor(op, sizes.get(group))

    def result(self) -> dict[str, GroupAcross]:
        by_group: dict[str, list[Bandwidth]] = {}
        for (group, op), (count, size, transfer, bounds) in self.sums.items():
            algbw, factor = size / transfer, self.factor[(group, op)]
            busbw = None if factor is None else algbw * factor
            one = Bandwidth(op, count, size, transfer, algbw, busbw, bounds > 0)
            by_group.setdefault(group, []).append(one)
        names = dict.fromkeys((*self.wait, *by_group))
        return {
            name: GroupAcross(
                self.wait.get(name),
                sorted(by_group[name], key=lambda b: (-b.transfer_ns, b.op)) if name in by_group else None,
            )
            for name in names
        }


@dataclass(frozen=True)
class FromOthers:
    """What the other ranks tell of a rank's collectives; int64 columns, NONE where not known."""

    figure: Int64  # row of RankResult.collectives
    wait_ns: Int64
    transfer_ns: Int64
    is_bound: Int64  # 1 or 0
    apart_ns: Int64  # how far its ranks' ends are apart, 0 where they agree


def from_others(run: Joined, place: int) -> FromOthers:
    """What `run` tells of the collectives of one of its ranks that lie inside the windows."""
    arrivals, first = run.arrivals[place], int(run.first_row[place])
    inside = np.flatnonzero(arrivals.figure >= 0)
    rows = first + inside
    instance = run.skew.instance[rows]
    apart = run.instances.apart[instance]  # NONE is the last row: no instance
    span = run.instances.last_end_ns - run.instances.first_end_ns
    return FromOthers(
        figure=arrivals.figure[inside],
        wait_ns=run.skew.wait_ns[rows],
        transfer_ns=run.skew.transfer_ns[rows],
        is_bound=run.skew.is_bound[rows].astype(np.int64),
        apart_ns=np.where(apart, span[instance], 0),
    )


def sizes_of(groups: Iterable[Group], assumed_size: int | None) -> dict[str, int | None]:
    """The number of ranks of each of a rank's groups, and of the group that nothing names."""
    sizes: dict[str, int | None] = {g.key: g.size or len(g.ranks) or None for g in groups}
    sizes[NO_GROUP] = sizes.get(NO_GROUP, assumed_size)
    return sizes


def fill(result: RankResult, run: Joined, place: int, sums: GroupSums) -> RankResult:
    """The result with waits, transfers and bandwidths in its collectives."""
    arrivals = run.arrivals[place]
    sizes = sizes_of(arrivals.groups, run.assumed_size)
    return fill_with(result, from_others(run, place), sizes, arrivals.is_cpu, sums)


def fill_with(
    result: RankResult,
    others: FromOthers,
    sizes: Mapping[str, int | None],
    is_cpu: bool,
    sums: GroupSums,
) -> RankResult:
    """The same from columns; `sizes` are those of its groups."""
    collectives = Collectives.of(result.collectives)
    at = np.full(len(collectives), NONE, np.int64)  # of each collective its row of `others`
    at[others.figure] = np.arange(len(others.figure))
    if (at < 0).any():
        raise IdentityError("a collective inside the windows has no arrival")
    transfer = Numbers.but(others.transfer_ns[at])
    is_bound = np.where(transfer.is_known, others.is_bound[at], NONE)
    filled = collectives.changed(
        skew_wait_ns=Numbers.but(others.wait_ns[at]),
        transfer_ns=transfer,
        transfer_is_bound=Words(is_bound.astype(np.int32), (False, True)),
        note=_with_notes(collectives.column("note"), others.apart_ns[at]),
    )
    if not is_cpu:
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
