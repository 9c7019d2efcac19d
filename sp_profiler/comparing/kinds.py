"""Collectives of both runs, kind by kind: what they expose, what that is made of, and why it changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from sp_profiler.comparing.figures import largest_first
from sp_profiler.comparing.groups import Groups
from sp_profiler.comparing.model import Delta, KindChange, Part, Unit
from sp_profiler.comparing.noise import LEAST_BYTES, LEAST_RATIO, SHARE_OF_BYTES, delta
from sp_profiler.comparing.parts import Sums, added, parts, rounded
from sp_profiler.comparing.side import Side, resolution_ns
from sp_profiler.comparing.table import KIND, SideTable
from sp_profiler.trace.tables import Int64

Because = Callable[[KindChange], str]


@dataclass(frozen=True)
class _Run:
    """One run's kinds. `row`: kind -> its place in what follows."""

    table: SideTable
    row: dict[tuple[Any, ...], int]
    code: Int64
    sums: list[Sums]
    share_async: list[float | None]
    exposed_by_cause: dict[str, Int64]

    @staticmethod
    def of(table: SideTable) -> _Run:
        kinds, code = table.kinds(KIND)
        row = {kind: place for place, kind in enumerate(kinds)}
        by_cause = {cause: table.table.exposed_by_cause(cause) for cause in table.causes() or ()}
        return _Run(
            table, row, code, table.sums(code, len(kinds)), table.share_async(code, len(kinds)), by_cause
        )

    def sums_of(self, kind: tuple[Any, ...]) -> Sums:
        return self.sums[self.row[kind]] if kind in self.row else Sums(self.table.side.windows)

    def samples(self, values: Int64) -> Callable[[tuple[Any, ...]], list[float] | None]:
        """Of a kind the sums of each step, per window."""
        every = self.table.per_step(self.code, len(self.row), values)

        def of(kind: tuple[Any, ...]) -> list[float] | None:
            return None if every is None or kind not in self.row else every[self.row[kind]]

        return of


def kind_changes(
    base: Side, here: Side, groups: Groups, because: Because
) -> tuple[list[KindChange], list[Part]]:
    """Every kind of either run, largest difference first, and the parts of all exposed time.

    Needs all collectives of both runs (`Side.has_all_collectives`). `because` says a change in words.
    """
    runs = [_Run.of(SideTable(side, groups, place)) for place, side in enumerate((base, here))]
    kinds = list(dict.fromkeys([*runs[0].row, *runs[1].row]))
    maker = _Maker(base, here, groups, runs[0], runs[1])
    made = [maker.change(kind, because) for kind in kinds]
    made.sort(key=lambda one: (-abs(one.exposed.contribution), one.op or "", one.group, one.purpose))
    exposed = [side.mean(lambda f: f.exposed_ns) or 0 for side in (base, here)]
    whole = added(parts(runs[0].sums_of(kind), runs[1].sums_of(kind)) for kind in kinds)
    return made, rounded(whole, int(exposed[1] - exposed[0]))


class _Maker:
    """Makes the changes of single kinds from the columns of both runs."""

    def __init__(self, base: Side, here: Side, groups: Groups, one: _Run, two: _Run) -> None:
        self._runs = (one, two)
        self._groups = groups
        self._resolution = resolution_ns(base, here)
        self._has_one_step = min(base.samples_count, here.samples_count) < 2
        self._has_causes = all(run.table.causes() is not None for run in self._runs)
        self._causes = list(dict.fromkeys(c for run in self._runs for c in run.exposed_by_cause))
        self._samples: dict[str, list[Callable[[tuple[Any, ...]], list[float] | None]]] = {}
        for name in ("exposed_share_ns", "overlapped_ns", "skew_wait_ns", "transfer_ns", "hideable_ns"):
            self._sample(name, "", [run.table.column(name) for run in self._runs])
        self._sample("dur_ns", "", [run.table.inside_ns for run in self._runs])
        self._sample("count", "", [np.ones(len(run.code), np.int64) for run in self._runs])
        for cause in self._causes:
            none = [np.zeros(len(run.code), np.int64) for run in self._runs]
            values = [
                run.exposed_by_cause.get(cause, zero) for run, zero in zip(self._runs, none, strict=True)
            ]
            self._sample("exposed_by_cause_ns", cause, values)
        for role in dict.fromkeys(role for run in self._runs for role in run.table.partners[0]):
            self._sample("hidden_ns", role, [run.table.hidden_under(role) for run in self._runs])

    def _sample(self, figure: str, name: str, values: Sequence[Int64]) -> None:
        """Keep how to get a figure's single steps, kind by kind, of both runs."""
        self._samples[f"{figure}.{name}"] = [
            run.samples(one) for run, one in zip(self._runs, values, strict=True)
        ]

    def change(self, kind: tuple[Any, ...], because: Because) -> KindChange:
        one, two = (run.sums_of(kind) for run in self._runs)
        exposed = self._time("exposed_share_ns", kind, one.share, two.share)
        came_in = int(exposed.contribution)
        op, group, purpose = kind
        made = KindChange(
            op=op,
            group=group,
            base_groups=self._keys(0, kind),
            here_groups=self._keys(1, kind),
            purpose=purpose,
            exposed=exposed,
            figures=self._figures(kind, one, two),
            parts=rounded(parts(one, two), came_in),
            by_cause=self._by_cause(kind),
            became=self._became(kind),
            because="",
        )
        return replace(made, because=because(made))

    def _keys(self, place: int, kind: tuple[Any, ...]) -> list[str]:
        """The groups of one run that are meant by the common name."""
        if kind not in self._runs[place].row:
            return []
        for match in self._groups.matches:
            if match.name == kind[1]:
                return list((match.base, match.here)[place])
        return []

    def _there(self, kind: tuple[Any, ...]) -> tuple[bool, bool]:
        return kind in self._runs[0].row, kind in self._runs[1].row

    def _time(self, figure: str, kind: tuple[Any, ...], one: int | None, two: int | None) -> Delta:
        values = [
            None if ns is None else round(Fraction(ns, run.table.side.windows))
            for ns, run in zip((one, two), self._runs, strict=True)
        ]
        return self._delta(figure, "", "ns", values, kind, self._resolution)

    def _delta(
        self,
        figure: str,
        name: str,
        unit: Unit,
        values: Sequence[float | None],
        kind: tuple[Any, ...],
        resolution: float,
    ) -> Delta:
        get = self._samples[f"{figure}.{name}"]
        samples = (get[0](kind), get[1](kind))
        is_counted = unit == "count" and self._has_one_step  # a number of things strays in no step
        return delta(
            figure,
            name,
            unit,
            *values,
            resolution=resolution,
            samples=None if is_counted else samples,
            noise_from="counted" if is_counted else None,
            is_there=self._there(kind),
        )

    def _figures(self, kind: tuple[Any, ...], one: Sums, two: Sums) -> list[Delta]:
        there = self._there(kind)
        counts = [sums.count / sums.windows for sums in (one, two)]
        sizes = [None if s.bytes is None else s.bytes / s.count for s in (one, two)]
        largest = max((size for size in sizes if size is not None), default=0.0)
        hideable = [self._hideable(place, kind) for place in (0, 1)]
        found = [
            self._delta("count", "", "count", counts, kind, 1e-9),
            self._time("dur_ns", kind, one.duration, two.duration),
            self._time("overlapped_ns", kind, one.overlapped, two.overlapped),
            self._time("skew_wait_ns", kind, one.skew_wait, two.skew_wait),
            self._time("transfer_ns", kind, one.transfer, two.transfer),
            *(self._hidden(kind, role, one, two, hideable) for role in self._roles(one, two, hideable)),
            self._time("hideable_ns", kind, *hideable),
            delta(
                "bytes", "", "bytes", *sizes, is_there=there, noise_from="counted",
                resolution=max(LEAST_BYTES, SHARE_OF_BYTES * largest),
            ),
            delta(
                "is_async", "", "ratio", *self._shares(kind), is_there=there, noise_from="counted",
                resolution=LEAST_RATIO,
            ),
        ]  # fmt: skip
        return [one for one in found if one.base is not None or one.here is not None]

    def _hideable(self, place: int, kind: tuple[Any, ...]) -> int | None:
        """The sum over those with a known partner; None where none has one."""
        run = self._runs[place]
        if kind not in run.row:
            return None
        mine = run.code == run.row[kind]
        known = run.table.table.numbers("hideable_ns").is_known & mine
        return int(run.table.column("hideable_ns")[known].sum()) if known.any() else None

    def _hidden(
        self, kind: tuple[Any, ...], role: str, one: Sums, two: Sums, hideable: Sequence[int | None]
    ) -> Delta:
        """What runs under partners of one role; 0 where there are partners that hide nothing."""
        values = [
            None if known is None else round(Fraction(sums.under.get(role, 0), sums.windows))
            for sums, known in zip((one, two), hideable, strict=True)
        ]
        return self._delta("hidden_ns", role, "ns", values, kind, self._resolution)

    def _roles(self, one: Sums, two: Sums, hideable: Sequence[int | None]) -> list[str]:
        return [] if hideable == [None, None] else list(dict.fromkeys([*one.under, *two.under]))

    def _shares(self, kind: tuple[Any, ...]) -> list[float | None]:
        return [run.share_async[run.row[kind]] if kind in run.row else None for run in self._runs]

    def _became(self, kind: tuple[Any, ...]) -> Literal["async", "sync"] | None:
        shares = self._shares(kind)
        if shares == [0.0, 1.0]:
            return "async"
        return "sync" if shares == [1.0, 0.0] else None

    def _by_cause(self, kind: tuple[Any, ...]) -> list[Delta]:
        if not self._has_causes:
            return []
        found: list[Delta] = []
        for cause in self._causes:
            values = [
                round(Fraction(self._of_cause(run, cause, kind), run.table.side.windows))
                for run in self._runs
            ]
            if any(values):
                found.append(self._delta("exposed_by_cause_ns", cause, "ns", values, kind, self._resolution))
        return largest_first(found)

    def _of_cause(self, run: _Run, cause: str, kind: tuple[Any, ...]) -> int:
        if kind not in run.row or cause not in run.exposed_by_cause:
            return 0
        return int(run.exposed_by_cause[cause][run.code == run.row[kind]].sum())
