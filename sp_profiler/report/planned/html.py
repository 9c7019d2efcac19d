"""A plan as one HTML page that works offline."""

from __future__ import annotations

from typing import Any

from sp_profiler.planning.model import Plan
from sp_profiler.report import quality, view
from sp_profiler.report.format import counted
from sp_profiler.report.page import render_page
from sp_profiler.report.page_parts import QUIET, ZOOMABLE, for_page, plot
from sp_profiler.report.planned import figures
from sp_profiler.report.planned import view as planned_view

TITLE = "Plan of parallel schemes"


def render(plan: Plan) -> str:
    """Sentences, charts and tables of a plan."""
    plots: dict[str, Any] = {}
    panels: list[tuple[str, str, str]] = []  # id, title, what is drawn
    size = f"{counted(planned_view.largest(plan)[0].layers, 'layer')}, one rank"
    drawn = (
        ("plan-saved", figures.saved(plan), QUIET, "Kept for backward", f"by term; {size}"),
        ("plan-layers", figures.by_layers(plan), ZOOMABLE, "Peak by layers", "estimated, of one rank"),
        ("plan-step", figures.step(plan), QUIET, "One step", f"estimated; {size}"),
        ("plan-comm", figures.communication(plan), QUIET, "Communication", f"estimated; {size}"),
    )
    for name, figure, config, title, text in drawn:
        if figure is not None:
            plots[name] = plot(figure, config)
            panels.append((name, title, text))
    tables = [view.listing_table(one) for one in planned_view.listings(plan)]
    return render_page(
        "plan.html.j2",
        {"plots": plots, "tables": [for_page(table) for table in tables]},
        title=TITLE,
        plan=plan,
        settings=planned_view.settings(plan),
        sentences=planned_view.sentences(plan),
        panels=panels,
        plots=plots,
        tables=tables,
        quality=quality.shown(plan.data_quality),
    )
