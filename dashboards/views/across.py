"""Across ranks: who waited in which collective, who was late, bandwidth against size, clocks."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, html

from dashboards import downloads, parts
from dashboards.state import State as Shown
from dashboards.store import Opened, Store
from sp_profiler.report import across_figures, many_ranks, view_ranks
from sp_profiler.report.format import counted
from sp_profiler.report.page_parts import QUIET, ZOOMABLE, plot
from sp_profiler.report.table import listing_table


def layout(store: Store, opened: Opened, state: Shown) -> list[Any]:
    report, theme = opened.report, state.theme or "light"
    listed = (*many_ranks.listings(report), *view_ranks.listings(report))
    tables = [listing_table(one) for one in listed]
    wide, halves = _panels(opened, theme)
    if not wide and not halves and not tables:
        told = "One rank alone has nobody to wait for: name the folder with the traces of all ranks."
        if len(opened.ranks) > 1:
            told = "No collective of these ranks could be matched with its like on the others."
        return [parts.notice("Nothing to compare", told)]
    return [
        html.Div(wide, className="grid"),
        html.Div(halves, className="grid times"),
        *parts.tables("In numbers", tables, theme, {one.id: _csv(opened, one.id) for one in tables}),
    ]


_CSV = {"stragglers": "stragglers", "bandwidth": "bandwidth", "clocks": "clocks", "unmatched": "unmatched"}


def _csv(opened: Opened, table: str) -> Any:
    return downloads.csv_link(opened, _CSV[table]) if table in _CSV else None


def _panels(opened: Opened, theme: str) -> tuple[list[Any], list[Any]]:
    """The map of waits, and what stands below it side by side."""
    report = opened.report
    made: list[Any] = []
    found = across_figures.waits(report)
    if found is not None:
        text = "how long each rank waited for the last one; click a cell to see it in the timeline"
        text += f"; {counted(found.left_out, 'call')} with less waiting left out" if found.left_out else ""
        less = counted(found.ranks_left_out, "rank")
        text += f"; {less} that wait less in these left out" if found.ranks_left_out else ""
        graph = parts.graph("waits", plot(across_figures.wait_map(found), ZOOMABLE), theme, label="Waiting")
        made.append(parts.panel("Waiting, rank by collective", text, graph, width="wide"))
    lost = across_figures.lost_to(report)
    rates = across_figures.bandwidth_by_size(report)
    halves = []
    width = "wide" if lost is None or rates is None else ""
    if lost is not None:
        graph = parts.graph("lost", plot(lost, QUIET), theme, label="Stragglers")
        halves.append(
            parts.panel(
                "Who the others waited for", "time lost to the rank that came last", graph, width=width
            )
        )
    if rates is not None:
        graph = parts.graph("rates", plot(rates, ZOOMABLE), theme, label="Bandwidth")
        text = "busbw, from the last arrival to the end; 1 GB = 1e9 bytes; click a point"
        halves.append(parts.panel("Bandwidth against message size", text, graph, width=width))
    return made, halves


def register(app: Dash, store: Store) -> None:
    for name in ("waits", "rates"):
        app.clientside_callback(
            ClientsideFunction("sp", "toTimeline"),
            Output("url", "search", allow_duplicate=True),
            Input(f"graph-{name}", "clickData"),
            State("url", "search"),
            prevent_initial_call=True,
        )
