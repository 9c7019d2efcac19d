"""The collectives of one run in columns, under names and numbers that both runs agree on."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from sp_profiler.analysis.columns import Records, Words
from sp_profiler.analysis.intervals import sum_by
from sp_profiler.comparing.groups import Groups
from sp_profiler.comparing.parts import Sums
from sp_profiler.comparing.side import Side
from sp_profiler.trace.tables import Bool, Int64

KIND = ("op", "group", "purpose")
SITE = ("op", "group", "purpose", "phase", "module", "layer")


class SideTable:
    """`place`: 0 for the base, 1 for the run beside it."""

    def __init__(self, side: Side, groups: Groups, place: int) -> None:
        self.side = side
        self.table = side.collectives
        self._groups = groups
        self._place = place

    def kinds(self, names: tuple[str, ...]) -> tuple[list[tuple[Any, ...]], Int64]:
        """The distinct combinations with common names of groups, and which one each collective has."""
        kinds, code = self.table.kinds(*names)
        at = names.index("group")
        named = [(*kind[:at], self._groups.name(self._place, kind[at]), *kind[at + 1 :]) for kind in kinds]
        distinct = {kind: number for number, kind in enumerate(dict.fromkeys(named))}
        codes = np.array([distinct[kind] for kind in named], np.int64)
        return list(distinct), codes[code] if len(codes) else code

    @cached_property
    def step(self) -> Int64:
        """The place of the launching step among the run's; -1 outside of all."""
        column = self.table.numbers("step")
        places = self.side.ordinal_of
        if not places:
            return np.zeros(len(self.table), np.int64)
        numbers = np.array(sorted(places), np.int64)
        values = column.or_zero()
        found = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        return np.where(column.is_known & (numbers[found] == values), found, -1)

    @cached_property
    def inside_ns(self) -> Int64:
        """What of each lies inside the windows."""
        return self.column("overlapped_ns") + self.column("exposed_ns")

    def column(self, name: str) -> Int64:
        return self.table.numbers(name).or_zero()

    @cached_property
    def waits_known(self) -> Bool:
        """Of which the wait and the transfer are known and make up what lies inside the windows."""
        wait, transfer = self.table.numbers("skew_wait_ns"), self.table.numbers("transfer_ns")
        whole = wait.or_zero() + transfer.or_zero() == self.inside_ns
        return wait.is_known & transfer.is_known & whole

    @cached_property
    def partners(self) -> tuple[list[str], Int64]:
        """The roles of partners, and each collective's (their number: no partner)."""
        column = self.table.column("partner")
        if not isinstance(column, Records) or not len(self.table):
            return [], np.zeros(len(self.table), np.int64)
        words = column.field("what")
        assert isinstance(words, Words)
        roles = [str(word) for word in words.table]
        code = words.codes.astype(np.int64)
        return roles, np.where(column.is_known & (code >= 0), code, len(roles))

    def sums(self, code: Int64, size: int) -> list[Sums]:
        """The sums of each kind."""
        totals = {
            name: sum_by(code, self.column(name), size)
            for name in ("overlapped_ns", "exposed_ns", "exposed_share_ns", "skew_wait_ns", "transfer_ns")
        }
        count = np.bincount(code, minlength=size)
        known = np.bincount(code, weights=self.waits_known, minlength=size) == count
        sizes = self.table.numbers("bytes")
        all_sizes = np.bincount(code, weights=sizes.is_known, minlength=size) == count
        total_bytes = sum_by(code, sizes.or_zero(), size)
        under = self._under(code, size)
        return [
            Sums(
                self.side.windows,
                int(count[kind]),
                int(totals["overlapped_ns"][kind] + totals["exposed_ns"][kind]),
                int(totals["overlapped_ns"][kind]),
                int(totals["exposed_ns"][kind]),
                int(totals["exposed_share_ns"][kind]),
                int(totals["skew_wait_ns"][kind]) if known[kind] else None,
                int(totals["transfer_ns"][kind]) if known[kind] else None,
                (int(total_bytes[kind]) or None) if all_sizes[kind] else None,
                under[kind],
            )
            for kind in range(size)
        ]

    def _under(self, code: Int64, size: int) -> list[dict[str, int]]:
        """Hidden ns of each kind by the role of the partner."""
        found: list[dict[str, int]] = [{} for _ in range(size)]
        for name in dict.fromkeys(self.partners[0]):
            for kind, ns in enumerate(sum_by(code, self.hidden_under(name), size).tolist()):
                if ns:
                    found[kind][name] = ns
        return found

    def hidden_under(self, name: str) -> Int64:
        """What of each runs under its partner, where that is of a role."""
        roles, role = self.partners
        mine = np.isin(role, [place for place, one in enumerate(roles) if one == name])
        return np.where(mine, self.column("hidden_ns"), 0)

    def per_step(self, code: Int64, size: int, values: Int64) -> list[list[float]] | None:
        """Of each kind the sum of values in each step, per window of that step; None where steps are few."""
        steps = self.side.steps
        if not steps:
            return None
        inside = self.step >= 0
        place = code * len(steps) + self.step
        sums = sum_by(place[inside], values[inside], size * len(steps)).reshape(size, len(steps))
        return (sums / np.array([len(step) for step in steps])).tolist()

    def share_async(self, code: Int64, size: int) -> list[float | None]:
        """The part of each kind that is asynchronous; None where it is not known of all."""
        words = self.table.words("is_async")
        truth = words.where(lambda value: value is True)
        known = words.where(lambda value: value is not None)
        count = np.bincount(code, minlength=size)
        true, told = (np.bincount(code, weights=mask, minlength=size) for mask in (truth, known))
        return [
            float(true[kind] / count[kind]) if count[kind] and told[kind] == count[kind] else None
            for kind in range(size)
        ]

    def causes(self) -> list[str] | None:
        """The causes that a run tells; None where it tells none."""
        told = self.side.report.totals.exposed_by_cause_ns
        return None if told is None else list(told)
