"""The collectives of a rank with what the other ranks tell of them, and its sums by group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from sp_profiler.analysis.bandwidth import bandwidth, bus_factor
from sp_profiler.analysis.changed import changer
from sp_profiler.analysis.joined import NO_GROUP, Joined
from sp_profiler.analysis.results import Bandwidth, CollectiveFigures, RankResult

_with_transfer = changer(
    CollectiveFigures,
    "skew_wait_ns",
    "transfer_ns",
    "transfer_is_bound",
    "algbw_gbps",
    "busbw_gbps",
    "note",
)


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

    def add(self, one: CollectiveFigures, size: int | None) -> None:
        group = one.group or NO_GROUP
        if one.skew_wait_ns is not None:
            self._wait[group] = self._wait.get(group, 0) + one.skew_wait_ns
        if one.algbw_gbps is None or one.op is None or one.bytes is None or one.transfer_ns is None:
            return
        sums = self._sums.setdefault((group, one.op), [0, 0, 0, 0])
        for place, part in enumerate((1, one.bytes, one.transfer_ns, bool(one.transfer_is_bound))):
            sums[place] += part
        if (group, one.op) not in self._factor:
            self._factor[(group, one.op)] = bus_factor(one.op, size)

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
    rows = slice(first, first + len(arrivals))
    instance = run.skew.instance[rows]
    apart = run.instances.apart[instance]  # NONE is the last row: no instance
    span = run.instances.last_end_ns - run.instances.first_end_ns
    columns: Iterable[tuple[int, int, int, bool, int]] = zip(
        arrivals.figure.tolist(),
        run.skew.wait_ns[rows].tolist(),
        run.skew.transfer_ns[rows].tolist(),
        run.skew.is_bound[rows].tolist(),
        np.where(apart, span[instance], 0).tolist(),
        strict=True,
    )
    sizes = [group.size or len(group.ranks) or None for group in arrivals.groups]
    assumed = run.assumed_size  # of the group that nothing names
    collectives = list(result.collectives)
    group_of = arrivals.group.tolist()
    for (figure, wait, transfer, is_bound, apart_ns), group in zip(columns, group_of, strict=True):
        if figure < 0:
            continue
        old = collectives[figure]
        size = sizes[group] if group >= 0 else assumed
        known = transfer >= 0
        speed = (None, None) if arrivals.is_cpu or not known else bandwidth(old.op, size, old.bytes, transfer)
        new = _with_transfer(
            old,
            None if wait < 0 else wait,
            transfer if known else None,
            is_bound if known else None,
            *speed,
            _with_note(old.note, apart_ns),
        )
        collectives[figure] = new
        sums.add(new, size)
    return replace(result, collectives=tuple(collectives))


def _with_note(note: str | None, apart_ns: int) -> str | None:
    if not apart_ns:
        return note
    text = f"its ranks' ends are {apart_ns} ns apart on aligned clocks"
    return f"{note}; {text}" if note else text
