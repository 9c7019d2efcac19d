"""A plan as one HTML page that works offline."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from sp_profiler.planning.long_context.model import LongContextPlan
from sp_profiler.report import quality, view
from sp_profiler.report.page import render_page
from sp_profiler.report.page_parts import for_page, plot
from sp_profiler.report.planned import figures, long_context_figures
from sp_profiler.report.planned.shown import AnyPlan, shown


def render(plan: AnyPlan) -> str:
    """Sentences, recommendation, charts and tables of a plan."""
    told = shown(plan)
    plots: dict[str, Any] = {}
    titles: list[tuple[str, str, str]] = []  # id, title, what is drawn
    for panel in panels(plan):
        if isinstance(panel.figure, go.Figure):
            plots[panel.id] = plot(panel.figure, panel.config)
            titles.append((panel.id, panel.title, panel.text))
    tables = [view.listing_table(one) for one in told.listings]
    return render_page(
        "plan.html.j2",
        {"plots": plots, "tables": [for_page(table) for table in tables]},
        title=told.title,
        told=told,
        panels=titles,
        plots=plots,
        tables=tables,
        quality=quality.shown(told.data_quality),
    )


def panels(plan: AnyPlan) -> list[figures.Panel]:
    """The charts of a plan, some of them None."""
    return long_context_figures.panels(plan) if isinstance(plan, LongContextPlan) else figures.panels(plan)
