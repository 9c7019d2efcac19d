"""Parts of a page as its script reads them: a plot with both themes and sizes, a table, a section of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class Panel:
    """A panel with a plot: its title, what is drawn, and the class that says how wide it is."""

    title: str
    text: str
    width: str = ""


@dataclass(frozen=True)
class Part:
    """A section of a page (`section.html.j2`): plots by their id, the panels they stand in, and tables."""

    told: str = ""  # why there is none; empty where there is
    plots: dict[str, Any] = field(default_factory=dict)
    panels: dict[str, Panel] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)


Drawn = tuple[str, go.Figure | None, Panel, dict[str, Any]]
"""A plot's id, the figure (None: nothing to draw), its panel, and `QUIET` or `ZOOMABLE`."""


def part_of(drawn: Iterable[Drawn], tables: list[Table]) -> Part:
    """The section of these plots and tables."""
    plots: dict[str, Any] = {}
    panels: dict[str, Panel] = {}
    for name, figure, panel, config in drawn:
        if figure is not None:
            plots[name], panels[name] = plot(figure, config), panel
    return Part("", plots, _without_holes(panels), tables)


def _without_holes(panels: dict[str, Panel]) -> dict[str, Panel]:
    """The grid has two columns: a panel of half the width without another beside it gets all of it."""
    halves = [name for name, panel in panels.items() if panel.width != "wide"]
    if len(halves) == 2:  # a high one needs two beside it
        return {name: replace(p, width="" if name in halves else p.width) for name, p in panels.items()}
    if len(halves) == 1:
        return {name: replace(panel, width="wide") for name, panel in panels.items()}
    return panels


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
