"""What runs of one family say beside each other, in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler.report.compare_table import run_label
from sp_profiler.report.format import percent, visible
from sp_profiler.report.model import Report


def family_answer(reports: Sequence[Report]) -> list[str]:
    """How much of its dgrad communication wgrad hides in each run; nothing where no run tells.

    Runs that hide most come first. A run whose ratio is unknown is not named: it says nothing.
    """
    known = [(r.totals.wgrad_overlap_ratio, r) for r in reports if r.totals.wgrad_overlap_ratio is not None]
    if not known:
        return []
    known.sort(key=lambda pair: -pair[0])
    parts = [_hides(report, ratio, first=not place) for place, (ratio, report) in enumerate(known)]
    return ["; ".join(parts) + "."]


def _hides(report: Report, ratio: float, *, first: bool) -> str:
    name = visible(run_label(report))
    if not ratio:
        return f"{name} hides none of its dgrad communication under wgrad" if first else f"{name} hides none"
    text = f"{name} hides {percent(ratio)}" + (" of its dgrad communication under wgrad" if first else "")
    hiding = report.totals.hiding_by_purpose.get("dgrad")
    if hiding is None or hiding.hidden_of_hideable is None:
        return text
    share = percent(hiding.hidden_of_hideable)  # of dgrad alone; the table beside it tells of all purposes
    return f"{text}, {share} of the dgrad communication that could be hidden"
