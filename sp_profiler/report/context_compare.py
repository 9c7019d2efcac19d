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
    exposure,
    families,
)
from sp_profiler.report.context_cells import INT, MS, PARTS, RATIO, TEXT, Row, part_cells, without_empty
from sp_profiler.report.format import listed, percent, visible
from sp_profiler.report.model import Report, by_step, windows_of
from sp_profiler.report.view_ranks import Listing

_WORTH = 0.005  # a difference in balance that is worth a sentence


def listings(reports: Sequence[Report]) -> list[Listing]:
    """The table that answers at one look; none where no run has context parallelism."""
    made = side_by_side(reports)
    return [made] if made.rows else []


def time_of(report: Report) -> Exposure | None:
    """Sums over all ranks of a run's hops and other transfers; None where none was measured."""
    hops = [hop for family in families(report.context_parallel) for hop in family.hops]
    return exposure(hops) if hops else None


def side_by_side(reports: Sequence[Report]) -> Listing:
    """A row per run and scheme."""
    rows = [
        _row(report, family) for report in ordered(reports) for family in families(report.context_parallel)
    ]
    whole = all(by_step(report) for report in reports)
    columns = (
        ("Run", TEXT, ""),
        ("Hidden, forward", RATIO, "%"),
        ("Hidden, backward", RATIO, "%"),
        ("Even, measured", RATIO, "%"),
        ("By counting", RATIO, "%"),
        ("Exposed", MS, "ms"),
        *PARTS,
        ("Layout copies", MS, "ms"),
        ("Scheme", TEXT, ""),
        ("Layout", TEXT, ""),
        ("Ranks", INT, ""),
    )
    optional = (*(label for label, *_ in PARTS), "Layout copies", "By counting", "Layout")
    shown, made = without_empty(columns, rows, optional)
    note = (
        "Hidden: of the time of hops and other transfers, each by itself: two at once both count. Even: an "
        "even division of attention over the sum of the ring steps' slowest ranks, of forward and backward "
        "the lower one."
    )
    basis = f"means per {'step and ' if whole else ''}rank"
    return Listing(
        "context-compare", "Context parallelism side by side", shown, made, note, basis, first_dropped=()
    )


def _row(report: Report, family: Family) -> Row:
    """Times are null where no transfer was measured."""
    count = windows_of(report)
    _, *times = part_cells(family.exposure(), count if family.hops else 0)
    ratios = [family.exposure(phase).hidden_ratio for phase in ("forward", "backward")]
    copies = sum(one.copy_ns for one in family.layout_copies) / count if family.layout_copies else None
    one = family.first
    name = SCHEME_NAMES[one.scheme].split(" (")[0]
    ranks = len(one.ranks) * len(family.schemes)
    return [run_label(report), *ratios, *evenness(family), *times, copies, name, one.layout, ranks]


def evenness(family: Family) -> tuple[float | None, float | None]:
    """Measured and counted, of forward and backward the lower one."""
    found = balances(family)
    measured = [one.measured_ratio for one in found if one.measured_ratio is not None]
    ideal = [one.ideal_ratio for one in found if one.ideal_ratio is not None]
    return min(measured, default=None), min(ideal, default=None)


def answers(reports: Sequence[Report]) -> list[str]:
    """Whether hops are hidden in each run, and how even their work is, in a sentence each."""
    rows = [(r, family) for r in ordered(reports) for family in families(r.context_parallel)]
    hidden = [(visible(run_label(r)), family.exposure().hidden_ratio) for r, family in rows]
    told = [
        f"{name} hides {'nothing' if not ratio else percent(ratio)}"
        for name, ratio in hidden
        if ratio is not None
    ]
    said = []
    if told:
        first, *rest = told
        said.append("; ".join([f"{first} of the time of its transfers", *rest]) + ".")
    return [*said, *_uneven(rows)]


def _uneven(rows: Sequence[tuple[Report, Family]]) -> list[str]:
    """The layouts that divide a causal mask unevenly, beside those that do not; by counting where known."""
    by_layout: dict[str, list[float]] = {}
    for _, family in rows:
        _, ideal = evenness(family)
        one = family.first  # ring self-attention computes all scores, whatever the mask
        if one.layout and one.causal and one.scheme != "ring-self-attention" and ideal is not None:
            by_layout.setdefault(one.layout, []).append(ideal)
    lowest_first = sorted(by_layout.items(), key=lambda pair: min(pair[1]))
    if not lowest_first or min(lowest_first[0][1]) > 1 - _WORTH:
        return []
    parts = [f"{_range(ratios)} even in {layout}" for layout, ratios in lowest_first]
    return [f"By counting, causal attention is {listed(parts)}."]


def _range(ratios: Sequence[float]) -> str:
    """`57 %`, of runs with other lengths or numbers of ranks `57 % to 67 %`."""
    least, most = percent(min(ratios)), percent(max(ratios))
    return least if least == most else f"{least} to {most}"


def summary(report: Report) -> list[dict[str, Any]] | None:
    """For the comparison's JSON: exact sums of each scheme; None where none was found."""
    kinds = families(report.context_parallel)
    return [_summary(family) for family in kinds] if report.context_parallel is not None else None


def _summary(family: Family) -> dict[str, Any]:
    one, whole = family.first, family.exposure()
    measured, ideal = evenness(family)
    known = bool(family.hops)
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
