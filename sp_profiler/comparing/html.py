"""A comparison as one HTML file that works offline: sentences, bars of what changed, and every figure."""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler.comparing.bars import bars
from sp_profiler.comparing.model import Comparison
from sp_profiler.comparing.tables import sections
from sp_profiler.comparing.terminal import tally
from sp_profiler.report.backward import layer_backward
from sp_profiler.report.compare_table import compare_table, run_label
from sp_profiler.report.model import Report
from sp_profiler.report.page import render_page
from sp_profiler.report.page_parts import QUIET, ZOOMABLE, Drawn, Panel, for_page, part_of
from sp_profiler.report.table import listing_table


def render(found: Comparison, reports: Sequence[Report]) -> str:
    """The page. `reports`: the base and the other run, whose timelines are drawn where they have any."""
    drawn: list[Drawn] = [(one.id, one.figure, Panel(one.title, one.text), QUIET) for one in bars(found)]
    backward = layer_backward(reports, [run_label(report) for report in reports])
    text = "both on one time scale; drag to zoom, double-click to reset"
    drawn.append(("backward", backward, Panel("One layer's backward", text, "wide"), ZOOMABLE))
    shown = part_of(drawn, [listing_table(one.listing) for one in sections(found)])
    return render_page(
        "compare.html.j2",
        {"plots": shown.plots, "tables": [for_page(table) for table in shown.tables]},
        title=f"{found.here.label} beside {found.base.label}",
        found=found,
        table=compare_table(reports),
        part=shown,
        tally=tally(found),
        cpu=all(run.device_type == "cpu" for run in (found.base, found.here)),
    )
