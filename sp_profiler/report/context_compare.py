"""Context parallelism of several runs side by side: what is hidden, and how even the work is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp_profiler.report.compare_table import ordered, run_label
from sp_profiler.report.context import (
    SCHEME_NAMES,
    Exposure,
    Family,
    balances,
    copy_sums,
    exposure,
    families,
)
from sp_profiler.report.format import listed, percent, visible
from sp_profiler.report.model import Report, by_step, windows_of
from sp_profiler.report.view_ranks import Listing

_WORTH = 0.005  # a difference in balance that is worth a sentence


def listings(reports: Sequence[Report]) -> list[Listing]:
    """The table that answers at one look; none where no run has context parallelism."""
    made = side_by_side(reports)
    return [made] if made.rows else []


def time_of(report: Report) -> Exposure | None:
    """Sums over all ranks of a run's hops and all-to-alls; None where there are none."""
    kinds = families(report.context_parallel)
    if not any(family.hops or family.layout_copies for family in kinds):
        return None
    parts = [_time(family) for family in kinds]
    names = ("hidden_ns", "exposed_ns", "communication_ns", "imbalance_ns", "skew_ns", "unknown_ns")
    return Exposure(*(sum(getattr(one, name) for one in parts) for name in names))


def _time(family: Family) -> Exposure:
    """Of a family that is no ring its all-to-alls, of which the causes are not divided like a hop's."""
    if family.hops:
        return exposure(family.hops)
    took = sum(one.comm_ns for one in family.layout_copies)
    exposed = sum(one.exposed_ns for one in family.layout_copies)
    return Exposure(took - exposed, exposed, 0, 0, 0, exposed)


def side_by_side(reports: Sequence[Report]) -> Listing:
    """A row per run and scheme."""
    rows = [
        _row(report, family) for report in ordered(reports) for family in families(report.context_parallel)
    ]
    whole = all(by_step(report) for report in reports)
    columns = (
        ("Run", "text", ""),
        ("Scheme", "text", ""),
        ("Layout", "text", ""),
        ("Ranks", "int", ""),
        ("Hidden, forward", "ratio", "%"),
        ("Hidden, backward", "ratio", "%"),
        ("Exposed", "ms", "ms"),
        ("Communication", "ms", "ms"),
        ("Imbalance", "ms", "ms"),
        ("Skew", "ms", "ms"),
        ("Even, measured", "ratio", "%"),
        ("By counting", "ratio", "%"),
        ("Layout copies", "ms", "ms"),
    )
    optional = ("Skew", "Imbalance", "Communication", "Layout copies", "By counting", "Layout")
    kept = [
        at
        for at, (name, *_) in enumerate(columns)
        if name not in optional or any(row[at] is not None for row in rows)
    ]
    note = (
        "Hidden: of the time of hops and all-to-alls. Even: an even division of attention over the sum of "
        "the ring steps' slowest ranks, of forward and backward the lower one."
    )
    return Listing(
        "context-compare",
        "Context parallelism side by side",
        [columns[at] for at in kept],
        [[row[at] for at in kept] for row in rows],
        note,
        f"means per {'step and ' if whole else ''}rank",
        (),
        [kept.index(place) for place in (1, 3, 12, 9) if place in kept],
    )


def _row(report: Report, family: Family) -> list[Any]:
    count = windows_of(report)
    whole = _time(family)
    parts: list[float | None] = [whole.communication_ns, whole.imbalance_ns, whole.skew_ns]
    parts = [None if whole.unknown_ns else ns / count for ns in parts if ns is not None]
    ratios = [family.exposure(phase).hidden_ratio for phase in ("forward", "backward")]
    if not family.hops:
        ratios = [_hidden_of_copies(family, phase) for phase in ("forward", "backward")]
    measured, ideal = evenness(family)
    copies = sum(one.copy_ns for one in family.layout_copies) / count if family.layout_copies else None
    one = family.first
    name = SCHEME_NAMES[one.scheme].split(" (")[0]
    return [
        run_label(report), name, one.layout, len(one.ranks) * len(family.schemes), *ratios,
        whole.exposed_ns / count if family.hops or family.layout_copies else None, *parts, measured, ideal,
        copies,
    ]  # fmt: skip


def _hidden_of_copies(family: Family, phase: str) -> float | None:
    sums = [one for one in copy_sums(family) if one.phase == phase and one.comm_ns]
    took = sum(one.comm_ns for one in sums)
    return (took - sum(one.exposed_ns for one in sums)) / took if took else None


def evenness(family: Family) -> tuple[float | None, float | None]:
    """Measured and counted, of forward and backward the lower one."""
    found = balances(family)
    measured = [one.measured_ratio for one in found if one.measured_ratio is not None]
    ideal = [one.ideal_ratio for one in found if one.ideal_ratio is not None]
    return min(measured, default=None), min(ideal, default=None)


def answers(reports: Sequence[Report]) -> list[str]:
    """Whether hops are hidden in each run, and how even their work is, in a sentence each."""
    rows = [(r, family) for r in ordered(reports) for family in families(r.context_parallel)]
    hidden = [(visible(run_label(r)), _time(family).hidden_ratio) for r, family in rows]
    told = [
        f"{name} hides {'nothing' if not ratio else percent(ratio)}"
        for name, ratio in hidden
        if ratio is not None
    ]
    said = []
    if told:
        first, *rest = told
        said.append("; ".join([f"{first} of the time of its hops", *rest]) + ".")
    return [*said, *_uneven(rows)]


def _uneven(rows: Sequence[tuple[Report, Family]]) -> list[str]:
    """The layouts that divide a causal mask unevenly, beside those that do not; by counting where known."""
    by_layout: dict[str, float] = {}
    for _, family in rows:
        _, ideal = evenness(family)
        if family.first.layout and family.first.causal and ideal is not None:
            by_layout.setdefault(family.first.layout, ideal)
    if not by_layout or min(by_layout.values()) > 1 - _WORTH:
        return []
    parts = [
        f"{percent(ratio)} even in {layout}"
        for layout, ratio in sorted(by_layout.items(), key=lambda p: p[1])
    ]
    return [f"By counting, causal attention is {listed(parts)}."]


def summary(report: Report) -> list[dict[str, Any]] | None:
    """For the comparison's JSON: exact sums of each scheme; None where none was found."""
    kinds = families(report.context_parallel)
    return [_summary(family) for family in kinds] if report.context_parallel is not None else None


def _summary(family: Family) -> dict[str, Any]:
    one, whole = family.first, _time(family)
    measured, ideal = evenness(family)
    known = bool(family.hops or family.layout_copies)
    return {
        "scheme": one.scheme,
        "layout": one.layout,
        "causal": one.causal,
        "sets_of_ranks": [scheme.ranks for scheme in family.schemes],
        "hidden_ns": whole.hidden_ns if known else None,
        "exposed_ns": whole.exposed_ns if known else None,
        "exposed_parts_ns": whole.parts if known else None,
        "hidden_ratio": whole.hidden_ratio,
        "measured_balance_ratio": measured,
        "ideal_balance_ratio": ideal,
        "layout_copy_ns": sum(c.copy_ns for c in family.layout_copies) if family.layout_copies else None,
    }
