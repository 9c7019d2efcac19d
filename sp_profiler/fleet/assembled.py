"""The report of a fleet from the merged reports of its ranks: what an ordinary report holds, bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from sp_profiler.analysis.across import AcrossRanks
from sp_profiler.analysis.bandwidth import bus_factor
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.filled import GroupAcross
from sp_profiler.analysis.results import (
    Bandwidth,
    CollectiveFigures,
    ContentionFigures,
    GroupFigures,
    Straggler,
    Unmatched,
)
from sp_profiler.analysis.totals import added_parts
from sp_profiler.fleet.merge import (
    GROUP_PARTS,
    KEPT_PARTS,
    MOST_GROUPS,
    MOST_PARTS,
    MOST_RANKS_OF_KINDS,
    OTHERS,
    PLACE,
    RankReport,
    kinds_in,
)
from sp_profiler.fleet.names import pattern, ranks_in, short_name
from sp_profiler.fleet.sums import gemm_figures, ledger_entries
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import build
from sp_profiler.report.model import Fleet, Report, Timeline

Across = Mapping[str, GroupAcross]


def report_of(
    merged: RankReport,
    *,
    name: str,
    path: str,
    run_json: dict[str, Any] | None,
    run_ledger: Sequence[LedgerEntry],
    across: AcrossRanks,
    contention: list[ContentionFigures] | None,
    rule: Literal["step", "trace"],
    timeline: Timeline | None,
    collectives_at: str,
) -> Report:
    """The report of a run from all its ranks.

    `across`: what was found between ranks, its `results` empty; `ends_apart.figures` are (place, row of the
    trace's collectives). `collectives_at`: the folder that holds all collectives, for the ledger.
    """
    first_ids = list(accumulate((one.collectives for one in merged.traces), initial=0))
    groups = _groups(merged, {short_name(key): one for key, one in across.groups.items()})
    found = replace(
        across,
        groups=groups.across,
        stragglers=None if across.stragglers is None else [_straggler(one) for one in across.stragglers],
        unmatched=[_unmatched(one) for one in across.unmatched],
        ledger=(*across.ledger, *_bounds_told(merged, first_ids[-1], collectives_at, groups)),
    )
    return build.report_of(
        _gathered(merged, first_ids, groups, collectives_at),
        name=name,
        path=path,
        run_json=run_json,
        run_ledger=run_ledger,
        across=found,
        contention=contention,
        context_parallel=None,
        rule=rule,
        timeline=timeline,
        memory=(),
    )


def _gathered(
    merged: RankReport, first_ids: Sequence[int], groups: _Groups, collectives_at: str
) -> build.Gathered:
    kinds = kinds_in(merged.kinds)
    by_name: dict[str, dict[str, int]] = {}
    if merged.parts > MOST_PARTS:  # else the rows of ranks add up to it
        by_name |= {name: _largest_first(parts) for name, parts in merged.by_name.items()}
    if groups.shown_as:

        def shown_as(group: str) -> str:
            return groups.shown_as.get(group, group)

        by_name |= {
            name: _largest_first(added_parts((getattr(row.figures, name) for row in merged.ranks), shown_as))
            for name in GROUP_PARTS
        }
    return build.Gathered(
        facts=[one.facts for one in merged.traces],
        ranks=[row.figures for row in merged.ranks],
        steps=[row.figures for row in merged.steps],
        numbers=merged.numbers,
        windows=merged.windows or 1,
        collectives=_numbered(_listed(merged), first_ids),
        kinds=replace(kinds, rows=_numbered(kinds.rows, first_ids)),
        first_ids=first_ids,
        groups=groups.figures,
        gemms=gemm_figures(merged.gemms),
        coverage=merged.coverage,
        ledgers=[ledger_entries(merged.ledger)],
        by_name=by_name,
        fleet=Fleet(
            windows=merged.windows,
            rank_windows=[row.windows for row in merged.ranks],
            collectives=first_ids[-1],
            collectives_at=collectives_at,
            kinds=list(merged.sums),
            steps=list(merged.step_sums),
        ),
    )


def _listed(merged: RankReport) -> list[CollectiveFigures]:
    """The collectives of the report: the most exposed, and those that findings may name."""
    rows = {one.id: one for one in (*merged.kinds.rows, *merged.collectives)}
    return [rows[number] for number in sorted(rows)]


def _numbered(rows: Sequence[CollectiveFigures], first_ids: Sequence[int]) -> Collectives:
    """Numbered through the run, as an ordinary report numbers them."""
    return Collectives.of([replace(one, id=first_ids[one.id // PLACE] + one.id % PLACE) for one in rows])


def _largest_first(parts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(parts.items(), key=lambda part: (part[0] == OTHERS, -part[1], part[0])))


# --- groups --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Groups:
    """The groups that the report lists. `shown_as`: the row that stands for a group which has none itself."""

    figures: list[GroupFigures]
    across: dict[str, GroupAcross]
    shown_as: dict[str, str]


def _groups(merged: RankReport, across: Across) -> _Groups:
    """All groups, or the `MOST_GROUPS` most exposed and one row for the others of each pattern."""
    every = [replace(one, ranks=one.ranks or ranks_in(one.group) or []) for one in merged.groups]
    shown, others = every[:MOST_GROUPS], every[MOST_GROUPS:]
    kept = {one.group: across[one.group] for one in shown if one.group in across}
    kept |= {key: one for key, one in across.items() if key not in {group.group for group in every}}
    by_pattern: dict[str, list[GroupFigures]] = {}
    for one in others:
        by_pattern.setdefault(pattern(one.group), []).append(one)
    shown_as: dict[str, str] = {}
    for name, same in by_pattern.items():
        if len(same) == 1:
            shown += same
            kept |= {one.group: across[one.group] for one in same if one.group in across}
            continue
        row = _together(f"{name} x {len(same)}", same)
        shown.append(row)
        shown_as |= {one.group: row.group for one in same}
        told = [across[one.group] for one in same if one.group in across]
        if told:
            kept[row.group] = _across_together(told, row.size)
    return _Groups(shown, kept, shown_as)


def _together(name: str, groups: Sequence[GroupFigures]) -> GroupFigures:
    """The sums of several groups under one name; their ranks are not listed."""
    (whole,) = build.merge_groups(replace(one, group=name, ranks=[]) for one in groups)
    sizes = {one.size if one.size is not None else len(one.ranks) or None for one in groups}
    return replace(whole, size=sizes.pop() if len(sizes) == 1 else None)


def _across_together(several: Sequence[GroupAcross], size: int | None) -> GroupAcross:
    waits = [one.skew_wait_ns for one in several if one.skew_wait_ns is not None]
    sums: dict[str, list[Bandwidth]] = {}
    for one in several:
        for each in one.bandwidth or ():
            sums.setdefault(each.op, []).append(each)
    made = [_bandwidth(op, same, size) for op, same in sums.items()]
    made.sort(key=lambda one: (-one.transfer_ns, one.op))
    return GroupAcross(sum(waits) if waits else None, made or None)


def _bandwidth(op: str, several: Sequence[Bandwidth], size: int | None) -> Bandwidth:
    moved, ns = sum(one.bytes for one in several), sum(one.transfer_ns for one in several)
    algbw, factor = moved / ns if ns else None, bus_factor(op, size)
    busbw = None if algbw is None or factor is None else algbw * factor
    count, is_bound = sum(one.collectives for one in several), any(one.is_bound for one in several)
    return Bandwidth(op, count, moved, ns, algbw, busbw, is_bound)


def _straggler(one: Straggler) -> Straggler:
    return replace(one, cost_by_group_ns={short_name(key): ns for key, ns in one.cost_by_group_ns.items()})


def _unmatched(one: Unmatched) -> Unmatched:
    return replace(one, group=None if one.group is None else short_name(one.group))


# --- what is bounded is told -----------------------------------------------------------------------------


def _bounds_told(
    merged: RankReport, collectives: int, collectives_at: str, groups: _Groups
) -> list[LedgerEntry]:
    """What the report leaves out, and where it is."""
    told: list[tuple[str, str, int]] = []
    listed, windows = len(_listed(merged)), len(merged.steps)
    if listed < collectives:
        text = (
            f"collectives lists {listed} of {collectives}: the most exposed, and those that findings name; "
            f"all are in every sum, and in {collectives_at}, a Parquet file for each trace"
        )
        told.append(("collectives-on-disk", text, collectives - listed))
    if windows < merged.windows:
        text = (
            f"steps lists the {windows} most exposed of {merged.windows} (one for each rank, device and "
            "step); fleet.steps sums each step over all ranks"
        )
        told.append(("steps-most-exposed", text, merged.windows - windows))
    if groups.shown_as:
        text = (
            f"groups lists the {MOST_GROUPS} most exposed groups by themselves and sums up the others by "
            "name and size; fleet.kinds and findings name groups by these alone"
        )
        told.append(("groups-by-pattern", text, len(groups.shown_as)))
    if merged.parts > MOST_PARTS:
        text = (
            f"the rows of ranks and steps name the {KEPT_PARTS} modules and layers with most exposed time, "
            f"the others together as {OTHERS}; the totals name all"
        )
        told.append(("parts-most-exposed", text, merged.parts))
    if merged.kinds.pairs > MOST_RANKS_OF_KINDS:
        text = "findings do not name ranks: there are too many kinds of collectives on too many ranks"
        told.append(("ranks-of-findings-unknown", text, 1))
    if merged.coarse:
        lost = ("layers", "layers, phases and kernels", "layers, phases, kernels, operations and groups")
        what = lost[merged.coarse - 1]
        text = f"there are too many kinds of collectives: fleet.kinds does not tell apart {what}"
        told.append(("kinds-coarse", text, 1))
    return [LedgerEntry(code, "note", text, count=count) for code, text, count in told]
