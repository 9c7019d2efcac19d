"""What a report needs of each rank, small enough to travel, and merged in any order to that of a run.

A `RankReport` is made where a rank's collectives are, and holds no more of it than figures, sums by kind, and
the collectives worth showing. Merging adds; what could grow with the number of ranks (collectives, steps,
ledger entries, names of groups) is bounded by rules that do not depend on the order of merging: the worst are
kept, and names become coarser once there are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import TypeVar

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Numbers
from sp_profiler.analysis.kind_figures import KindFigures, added, kind_figures
from sp_profiler.analysis.kinds import CollectiveKinds, KindEntry
from sp_profiler.analysis.results import (
    CollectiveFigures,
    Coverage,
    Figures,
    GroupFigures,
    RankFigures,
    RankResult,
    StepFigures,
)
from sp_profiler.analysis.totals import added_parts, total_coverage
from sp_profiler.fleet.filled import RankAcross
from sp_profiler.fleet.names import LONG, pattern, short_name
from sp_profiler.fleet.sums import (
    CodeSum,
    GemmSum,
    added_gemms,
    added_ledgers,
    added_steps,
    gemm_sum,
    ledger_sums,
    step_across,
)
from sp_profiler.report.build import TraceFacts, merge_groups
from sp_profiler.report.model import StepAcross

MOST_COLLECTIVES = 2_000
"""Collectives that a fleet's report lists, the most exposed ones ..."""
MOST_OF_TRACE = 256
"""... and of one trace."""
MOST_STEPS = 1_000
"""Windows (rank, device, step) that it lists, the most exposed ones."""
MOST_GROUPS = 64
"""Groups told apart; of more the collectives are summed by pattern, `tp[8 ranks]`."""
MOST_KINDS = 8_192
"""Kinds of collectives; of more neither layers, kernels nor operations are told apart, in this order."""
MOST_PARTS = 50_000
"""Entries by module and layer in rows of ranks and steps; of more each row keeps the largest `KEPT_PARTS`."""
KEPT_PARTS = 8
OTHERS = "(others)"
"""What stands for the modules or layers that a row does not keep."""
MOST_RANKS_OF_KINDS = 1_000_000
"""Pairs of kind and rank; of more nobody knows which ranks have a kind."""

PLACE = 1 << 32
"""A collective's id while ranks are apart: place of its trace times this, plus its row."""

GROUP_PARTS = ("exposed_by_group_ns", "exposed_union_by_group_ns")
_NAME_PARTS = ("exposed_by_module_ns", "exposed_by_layer_ns")
AnyFigures = TypeVar("AnyFigures", bound=Figures)
Parts = dict[str, int]


@dataclass(frozen=True)
class TracePart:
    place: int
    collectives: int
    facts: TraceFacts


@dataclass(frozen=True)
class RankRow:
    place: int
    number: int  # of the device in its trace
    windows: int
    figures: RankFigures


@dataclass(frozen=True)
class StepRow:
    place: int
    number: int  # of the window in its trace
    figures: StepFigures


@dataclass(frozen=True)
class KindsPart:
    """`CollectiveKinds` in plain fields: `entry_of_row` are places in `entries`, `pairs` of kind and rank."""

    entries: tuple[KindEntry, ...]
    rows: tuple[CollectiveFigures, ...]
    entry_of_row: tuple[int, ...]
    pairs: int


@dataclass(frozen=True)
class RankReport:
    """Of one trace, or of several merged. Survives JSON by msgspec with its type.

    `coarse` counts the steps by which kinds of collectives became coarser (`MOST_KINDS`); `parts` the entries
    by module and layer that the rows of ranks and steps had.
    """

    traces: tuple[TracePart, ...]
    ranks: tuple[RankRow, ...]
    steps: tuple[StepRow, ...]
    numbers: tuple[int, ...]
    windows: int
    step_sums: tuple[StepAcross, ...]
    kinds: KindsPart
    sums: tuple[KindFigures, ...]
    collectives: tuple[CollectiveFigures, ...]
    groups: tuple[GroupFigures, ...]
    gemms: tuple[GemmSum, ...]
    coverage: Coverage
    ledger: tuple[CodeSum, ...]
    by_name: dict[str, Parts]
    parts: int
    coarse: int = 0
    across: RankAcross = field(default_factory=RankAcross)

    @property
    def is_by_pattern(self) -> bool:
        """Whether kinds name groups by pattern."""
        return len(self.groups) > MOST_GROUPS


# --- of one rank ---------------------------------------------------------------------------------------


def rank_report(place: int, facts: TraceFacts, result: RankResult, across: RankAcross) -> RankReport:
    """What a report needs of one trace.

    `place`: that of the trace among those of the report, in the order of ranks, from 0. `result`: filled with
    what the other ranks tell and its causes settled, as `engine.compare_ranks` leaves it; `across`: what its
    collectives add to the groups of the run.
    """
    table = Collectives.of(result.collectives)
    table = table.changed(id=Numbers(np.arange(len(table)) + place * PLACE))
    kinds = CollectiveKinds.of(table)
    exposed = np.lexsort((table.numbers("id").values, -table.numbers("exposed_share_ns").values))
    ranks = [_renamed(rank) for rank in result.ranks]
    steps = [_renamed(step) for step in result.steps]
    whole = RankReport(
        traces=(TracePart(place, len(table), facts),),
        ranks=tuple(
            RankRow(place, number, sum(step.device == rank.device for step in steps), rank)
            for number, rank in enumerate(ranks)
        ),
        steps=tuple(StepRow(place, number, step) for number, step in enumerate(steps)),
        numbers=tuple(sorted({step.step for step in steps if step.step is not None})),
        windows=len(steps),
        step_sums=tuple(step_across(steps)),
        kinds=_plain(_named(kinds, short_name).with_examples_only(), len(kinds.entries)),
        sums=tuple(_renamed_sums(kind_figures(table), short_name)),
        collectives=tuple(_shortened(one) for one in table.take(exposed[:MOST_OF_TRACE])),
        groups=tuple(merge_groups(_group(one) for one in result.groups)),
        gemms=added_gemms(gemm_sum(one) for one in result.gemms),
        coverage=result.coverage,
        ledger=ledger_sums(place, result.ledger),
        by_name={name: added_parts(getattr(rank, name) for rank in ranks) for name in _NAME_PARTS},
        parts=sum(len(getattr(row, name)) for row in (*ranks, *steps) for name in _NAME_PARTS),
        across=across,
    )
    return _bounded(whole)


def _renamed(figures: AnyFigures) -> AnyFigures:
    """The figures of a rank or step with the names that a fleet gives groups."""
    return replace(
        figures, **{name: added_parts([getattr(figures, name)], short_name) for name in GROUP_PARTS}
    )


def _shortened(one: CollectiveFigures) -> CollectiveFigures:
    """A collective without the list of a large group's ranks: its group's name tells them."""
    ranks = one.ranks if len(one.ranks) <= LONG else []
    return replace(one, group=None if one.group is None else short_name(one.group), ranks=ranks)


def _group(one: GroupFigures) -> GroupFigures:
    name = short_name(one.group)
    return replace(one, group=name, ranks=one.ranks if name == one.group else [])


def _renamed_sums(sums: Iterable[KindFigures], name_of: Callable[[str], str]) -> list[KindFigures]:
    return added(replace(one, group=None if one.group is None else name_of(one.group)) for one in sums)


def _named(kinds: CollectiveKinds, name_of: Callable[[str], str]) -> CollectiveKinds:
    """The kinds with other names of groups."""
    return kinds.changed(
        lambda kind: replace(kind, group=None if kind.group is None else name_of(kind.group))
    )


def _plain(kinds: CollectiveKinds, pairs: int) -> KindsPart:
    order = sorted(range(len(kinds.entries)), key=lambda place: str(kinds.entries[place].kind))
    at = {number: place for place, number in enumerate(kinds.numbers[order].tolist())}
    by_id = np.argsort(kinds.rows.numbers("id").values)
    return KindsPart(
        tuple(kinds.entries[place] for place in order),
        tuple(_shortened(one) for one in kinds.rows.take(by_id)),
        tuple(at[number] for number in kinds.entry_of_row[by_id].tolist()),
        pairs,
    )


def kinds_in(part: KindsPart) -> CollectiveKinds:
    """The kinds of a report as rules ask for them."""
    numbers = np.arange(len(part.entries))
    return CollectiveKinds(
        part.entries, numbers, Collectives.of(part.rows), np.array(part.entry_of_row, np.int64)
    )


# --- merged --------------------------------------------------------------------------------------------


def merge(reports: Sequence[RankReport]) -> RankReport:
    """The reports of several ranks as one. Associative, and in any order the same; needs at least one."""
    kinds = CollectiveKinds.merged([kinds_in(report.kinds) for report in reports])
    groups = merge_groups(group for report in reports for group in report.groups)
    whole = RankReport(
        traces=_in_order(reports, lambda report: report.traces, lambda one: (one.place,)),
        ranks=_in_order(reports, lambda report: report.ranks, lambda row: (row.place, row.number)),
        steps=_in_order(reports, lambda report: report.steps, lambda row: (row.place, row.number)),
        numbers=tuple(sorted({number for report in reports for number in report.numbers})),
        windows=sum(report.windows for report in reports),
        step_sums=tuple(added_steps(one for report in reports for one in report.step_sums)),
        kinds=_plain(kinds, sum(report.kinds.pairs for report in reports)),
        sums=tuple(added(one for report in reports for one in report.sums)),
        collectives=_in_order(reports, lambda report: report.collectives, lambda one: (one.id,)),
        groups=tuple(groups),
        gemms=added_gemms(one for report in reports for one in report.gemms),
        coverage=total_coverage([report.coverage for report in reports]),
        ledger=added_ledgers(one for report in reports for one in report.ledger),
        by_name={name: added_parts(report.by_name[name] for report in reports) for name in _NAME_PARTS},
        parts=sum(report.parts for report in reports),
        coarse=max(report.coarse for report in reports),
        across=RankAcross.merged([report.across for report in reports]),
    )
    return _bounded(whole)


Row = TypeVar("Row")


def _in_order(
    reports: Sequence[RankReport],
    rows: Callable[[RankReport], Sequence[Row]],
    place: Callable[[Row], tuple[int, ...]],
) -> tuple[Row, ...]:
    return tuple(sorted((row for report in reports for row in rows(report)), key=place))


def _bounded(report: RankReport) -> RankReport:
    """The report within the bounds. What is decided depends on sums and sets that only grow with ranks."""
    steps = nsmallest(
        MOST_STEPS, report.steps, key=lambda row: (-(row.figures.exposed_ns or 0), row.place, row.number)
    )
    shown = nsmallest(MOST_COLLECTIVES, report.collectives, key=lambda one: (-one.exposed_share_ns, one.id))
    report = replace(
        report,
        steps=tuple(sorted(steps, key=lambda row: (row.place, row.number))),
        collectives=tuple(sorted(shown, key=lambda one: one.id)),
    )
    if report.parts > MOST_PARTS:
        report = _with_few_parts(report)
    if any(len(parts) > MOST_PARTS for parts in report.by_name.values()):
        report = replace(
            report, by_name={name: {OTHERS: sum(parts.values())} for name, parts in report.by_name.items()}
        )
    return _with_few_kinds(report)


def _with_few_parts(report: RankReport) -> RankReport:
    ranks = tuple(replace(row, figures=_few(row.figures)) for row in report.ranks)
    steps = tuple(replace(row, figures=_few(row.figures)) for row in report.steps)
    return replace(report, ranks=ranks, steps=steps)


def _few(figures: AnyFigures) -> AnyFigures:
    return replace(figures, **{name: _largest_parts(getattr(figures, name)) for name in _NAME_PARTS})


def _largest_parts(parts: Parts) -> Parts:
    """The largest, and the sum of the others; itself when it is that already."""
    if OTHERS in parts or len(parts) <= KEPT_PARTS:
        return parts
    kept = nsmallest(KEPT_PARTS, parts.items(), key=lambda part: (-part[1], part[0]))
    rest = sum(parts.values()) - sum(ns for _, ns in kept)
    return dict(kept) | {OTHERS: rest}


_COARSER = (
    ({}, {}),
    ({}, {"layer": None}),
    ({"kernel": None}, {"layer": None, "phase": None}),
    ({"kernel": None, "op": None, "group": None}, {"layer": None, "phase": None, "op": None, "group": None}),
)
"""Fields of `Kind` and of `KindFigures` that are given up, step by step."""


def _with_few_kinds(report: RankReport) -> RankReport:
    kinds, sums = kinds_in(report.kinds), list(report.sums)
    if report.is_by_pattern:
        kinds, sums = _named(kinds, pattern), _renamed_sums(sums, pattern)
    coarse = report.coarse
    while True:
        of_kind, of_sums = _COARSER[coarse]
        kinds = kinds.changed(lambda kind, names=of_kind: replace(kind, **names)) if of_kind else kinds
        sums = added(replace(one, **of_sums) for one in sums) if of_sums else sums
        if max(len(kinds.entries), len(sums)) <= MOST_KINDS or coarse == len(_COARSER) - 1:
            break
        coarse += 1
    if report.kinds.pairs > MOST_RANKS_OF_KINDS:
        kinds = kinds.without_ranks()
    kinds = kinds.with_examples_only()
    sums.sort(key=lambda one: (-one.exposed_share_ns, str(one)))
    return replace(report, kinds=_plain(kinds, report.kinds.pairs), sums=tuple(sums), coarse=coarse)
