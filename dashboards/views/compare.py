"""Compare: two runs, what changed, largest first, and the same stretch of their timelines side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from dashboards import parts
from dashboards.state import State as Shown
from dashboards.state import state_of
from dashboards.store import Failed, Opened, Reading, RunRef, Store
from dashboards.views import timeline
from sp_profiler.analysis.lanes import Budget, view
from sp_profiler.comparing.bars import bars
from sp_profiler.comparing.compare import compare
from sp_profiler.comparing.model import Comparison
from sp_profiler.comparing.tables import MAIN, sections
from sp_profiler.report.backward import layer_backward
from sp_profiler.report.compare_table import compare_table, run_label
from sp_profiler.report.format import visible
from sp_profiler.report.lane_figures import DrawnRank, is_binned, lane_figure
from sp_profiler.report.page_parts import QUIET, ZOOMABLE, plot
from sp_profiler.report.table import listing_table

_AXIS = {"axis": "compare"}  # see `timeline.AXIS`


@dataclass(frozen=True)
class Pair:
    """The run that is shown, and what it is compared with."""

    here: Opened
    base: Opened


def key(opened: Opened, state: Shown) -> Any:
    return state.base


def base_of(store: Store, opened: Opened, state: Shown) -> RunRef | None:
    """The run that the URL names, else the one that differs least in its settings, else any other."""
    others = [ref for ref in store.runs() if ref.id != opened.ref.id]
    asked = next((ref for ref in others if ref.id == state.base), None)
    mine = _settings(opened.ref)
    return asked or min(others, key=lambda ref: len(mine.items() ^ _settings(ref).items()), default=None)


def _settings(ref: RunRef) -> dict[str, str]:
    workload = (ref.files.run_json or {}).get("workload")
    given = workload if isinstance(workload, dict) else {}
    return {key: str(value) for key, value in given.items()}


def layout(store: Store, opened: Opened, state: Shown) -> list[Any]:
    ref = base_of(store, opened, state)
    if ref is None:
        told = "Name two runs, or a folder of runs: sp-profile dashboard RUN-A RUN-B"
        return [parts.notice("There is no other run", told)]
    bar = _bar(store, opened, ref)
    base = store.ask(ref, wait_s=20)
    if isinstance(base, Reading):
        return [bar, parts.notice(f"Reading {visible(ref.name)}", "Load the page again in a moment.")]
    if isinstance(base, Failed):
        return [bar, parts.notice(f"{visible(ref.name)} cannot be shown", visible(base.text), kind="bad")]
    pair = Pair(opened, base)
    theme = state.theme or "light"
    found = compare(base.report, opened.report)
    lead = html.Section([html.P(parts.emphasised(text)) for text in found.summary], className="lead")
    notes = [html.P(visible(text), className="note") for text in found.notes]
    return [
        bar,
        lead,
        *notes,
        _side_by_side(pair),
        *_changes(found, theme),
        *_timelines(store, pair, state),
        *_backward(pair, theme),
    ]


def _bar(store: Store, opened: Opened, ref: RunRef) -> html.Div:
    others = [
        {"value": one.id, "label": visible(one.name)} for one in store.runs() if one.id != opened.ref.id
    ]
    select = dmc.Select(
        id={"set": "base"},
        data=others,
        value=ref.id,
        allowDeselect=False,
        searchable=len(others) > 8,
        size="xs",
        w=230,
        **parts.attrs({"aria-label": "Compare with"}),
    )
    return html.Div([html.Span(f"{visible(opened.ref.name)} against"), select], className="bar")


def _side_by_side(pair: Pair) -> html.Section:
    table = compare_table([pair.base.report, pair.here.report])
    head = [html.Th("Run"), *(html.Th(f"{one.label} [{one.unit}]", className="num") for one in table.columns)]
    lines = [
        html.Tr([html.Td(visible(name)), *(html.Td(cell, className="num") for cell in cells)])
        for name, cells in table.rows
    ]
    inside = html.Table([html.Thead(html.Tr(head)), html.Tbody(lines)], className="plain")
    return parts.panel("Side by side", table.note, html.Div(inside, className="scroll"))


def _changes(found: Comparison, theme: str) -> list[Any]:
    """Bars of what changed, and every figure of both in tables."""
    drawn = bars(found)
    odd = len(drawn) % 2
    panels = [
        parts.panel(one.title, one.text, parts.graph(one.id, plot(one.figure, QUIET), theme, label=one.title),
                    width="wide" if odd and not place else "")
        for place, one in enumerate(drawn)
    ]  # fmt: skip
    tables = [listing_table(one.listing) for one in sections(found) if one.listing.id in MAIN]
    return [html.Div(panels, className="grid"), *parts.tables("In numbers", tables, theme)]


def _backward(pair: Pair, theme: str) -> list[Any]:
    reports = [pair.base.report, pair.here.report]
    figure = layer_backward(reports, [run_label(one) for one in reports])
    if figure is None:
        return []
    graph = parts.graph("backward", plot(figure, ZOOMABLE), theme, label="One layer's backward")
    return [parts.panel("One layer's backward", "both on one time scale", graph)]


# --- the timelines of both, from the start of a step -----------------------------------------------------


def _timelines(store: Store, pair: Pair, state: Shown) -> list[Any]:
    drawn = draw(store, pair, state)
    if drawn is None:
        return []
    figure, axis, told = drawn
    config: Any = parts.ZOOMED | {"scrollZoom": True, "doubleClick": "autosize"}
    graph = dcc.Graph(id="both", figure=figure, config=config, responsive=True,
                      style={"height": f"{figure['layout']['height']}px"})  # fmt: skip
    moves = [one for one in timeline.MOVES if one[0] != "whole"]
    main = parts.panel(
        "The same stretch of both", "from the start of a step; scroll to zoom, drag to move",
        html.Div(parts.legend(figure["data"]), id="both-legend"),
        html.Div(graph, className="plot", role="img", **parts.attrs({"aria-label": "both timelines"})),
        html.P(told, id="both-told", className="note"), tools=timeline.buttons("compare", moves),
    )  # fmt: skip
    return [main, dcc.Store(id=_AXIS, data=axis)]


def draw(store: Store, pair: Pair, state: Shown) -> tuple[dict[str, Any], dict[str, Any], str] | None:
    """Lanes of both on one axis, whose zero is the start of the step that each run's report draws."""
    plain = replace(state, t=None, pick=None, rank=None)
    found = []
    for opened in (pair.base, pair.here):
        first = timeline.first_rank(opened, plain)
        if first is None or not len(lanes := store.lanes(opened, first)):
            return None
        found.append((opened, first, lanes, timeline.window_of(opened, lanes, plain)))
    zero = found[0][3].start_ns
    span = max(one[3].end_ns - one[3].start_ns for one in found)
    start, end = (0, span) if state.t is None or state.t[0] >= span else (state.t[0], min(state.t[1], span))
    margin = (end - start) // 4
    ranks = []
    for opened, first, lanes, window in found:
        shift = window.start_ns - zero
        low = window.start_ns + start
        seen = view(lanes, low - margin, low + (end - start) + margin, 1900, Budget().shared(2))
        name = visible(run_label(opened.report))
        ranks.append(DrawnRank(lanes, seen, name, shift, lambda place, r=first: r.first_collective + place))
    figure = lane_figure(ranks, zero, zero + start, zero + end, state.theme or "light")
    figure["layout"]["xaxis"]["title"]["text"] = "ms since the start of the step"
    axis = {"span": span, "start": start, "end": end, "binned": is_binned(ranks)}
    return figure, axis, timeline.told_of(ranks, end - start)


def register(app: Dash, store: Store) -> None:
    search = Output("url", "search", allow_duplicate=True)
    place = State({"axis": ALL}, "data"), State("url", "search")
    zoom, move = ClientsideFunction("sp", "zoom"), ClientsideFunction("sp", "move")
    app.clientside_callback(zoom, search, Input("both", "relayoutData"), *place, prevent_initial_call=True)
    app.clientside_callback(
        move, search, Input({"move": ALL, "of": "compare"}, "n_clicks"), *place, prevent_initial_call=True
    )

    @app.callback(
        Output("both", "figure"),
        Output("both-legend", "children"),
        Output("both-told", "children"),
        Output(_AXIS, "data"),
        Input("url", "search"),
        State("scheme", "data"),
        prevent_initial_call=True,
    )
    def _redraw(search: str | None, scheme: str | None) -> tuple[Any, ...]:
        state = state_of(search, scheme)
        ref = store.ref(state.run)
        here = None if ref is None or state.view != "compare" else store.ask(ref, wait_s=0)
        other = base_of(store, here, state) if isinstance(here, Opened) else None
        base = None if other is None else store.ask(other, wait_s=0)
        if not isinstance(here, Opened) or not isinstance(base, Opened):
            return (no_update,) * 4
        drawn = draw(store, Pair(here, base), state)
        if drawn is None:
            return (no_update,) * 4
        figure, axis, told = drawn
        return figure, parts.legend(figure["data"]), told, axis
