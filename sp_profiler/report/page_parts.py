"""Parts of a page as its script reads them: a plot with both themes and sizes, a table."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from sp_profiler.report import figures
from sp_profiler.report.format import short_group
from sp_profiler.report.palette import theme_patch
from sp_profiler.report.table import Table, plain_table

# plotly 4 offers to upload a chart to its makers' cloud: a profile leaves the machine by no button of ours.
_LOCAL = {"plotlyServerURL": "", "showSendToCloud": False, "showLink": False, "showEditInChartStudio": False}
QUIET = {**_LOCAL, "displayModeBar": False, "responsive": True}
ZOOMABLE = {
    **_LOCAL,
    "responsive": True,
    "displaylogo": False,
    "displayModeBar": "hover",
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
}


def plot(figure: go.Figure, config: dict[str, Any]) -> dict[str, Any]:
    """A figure for the page; `config` is `QUIET` or `ZOOMABLE`."""
    figure.update_layout(showlegend=False)  # the page draws its own: it wraps, and never meets the mode bar
    plain = figure.to_plotly_json()
    axes = figures.axes_of(figure)
    themes = {theme: theme_patch(theme, axes) for theme in ("light", "dark")}
    narrow, wide = figures.narrow_patch(figure)
    return {
        "data": plain["data"],
        "layout": plain["layout"],
        "config": config,
        "themes": themes,
        "sizes": {"narrow": narrow, "wide": wide},
    }


def for_page(table: Table) -> dict[str, Any]:
    """The table for the page's script; keys of groups are shown short, `full` has them whole."""
    plain = plain_table(table)
    full: dict[str, str] = {}
    for place, column in enumerate(table.columns):
        if column.label != "Group":
            continue
        for row in plain["rows"]:
            if isinstance(row[place], str) and (short := short_group(row[place])) != row[place]:
                full[short] = row[place]
                row[place] = short
    return plain | {"full": full}
