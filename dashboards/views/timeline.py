"""Timeline: lanes per rank and stream, exposed stretches above; what a click on a collective tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
import numpy as np
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from dashboards import parts
from dashboards.collective import clock_shifts, details, picked, rank_of
from dashboards.state import State as Shown
from dashboards.state import link, state_of
from dashboards.store import Opened, RankRef, Store
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.lanes import Budget, Lanes, view
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.report.figures import rank_name
from sp_profiler.report.format import counted, duration, milliseconds, short_group, visible
from sp_profiler.report.lane_figures import DrawnRank, Mark, is_binned, lane_figure
from sp_profiler.report.sentences import op_name
from sp_profiler.report.why import told_of_cause

PIXELS = 1300
_MARGIN = 0.25  # of the window, drawn on either side: panning meets what is already there
_MOST_RANKS = 8  # drawn together
_MOST_LISTED = 14
_AROUND, _AROUND_NS = 8, 200_000  # what is shown on either side of a picked collective: times its length


AXIS = {"axis": "timeline"}
"""Where the axis lies, for the page's script; it asks for any: on the way to another view there is none."""


@dataclass(frozen=True)
class Window:
    """What is in view of the first rank, in ns of its clock; `zero_ns` is the axis' zero."""

    zero_ns: int
    span_ns: int
    start_ns: int
    end_ns: int


def key(opened: Opened, state: Shown) -> Any:
    return (first_rank(opened, state), state.ranks)


def layout(store: Store, opened: Opened, state: Shown) -> list[Any]:
    first = first_rank(opened, state)
    if first is None or not len(store.lanes(opened, first)):
        return [parts.notice("Nothing ran", "This trace holds no activity that could be drawn.")]
    figure, axis, told = draw(store, opened, state)
    config: Any = parts.ZOOMED | {"scrollZoom": True, "doubleClick": "autosize"}
    graph = dcc.Graph(
        id="timeline",
        figure=figure,
        config=config,
        responsive=True,
        style={"height": f"{figure['layout']['height']}px"},
    )
    text = "scroll to zoom, drag to move, click a collective for what hid it"
    main = parts.panel(
        "Timeline", text, html.Div(parts.legend(figure["data"]), id="timeline-legend"),
        html.Div(graph, className="plot", role="img", **parts.attrs({"aria-label": "timeline"})),
        html.P(told, id="timeline-told", className="note"), tools=buttons("timeline", MOVES),
    )  # fmt: skip
    under = html.Div(_under(store, opened, state), id="pick", className="split")
    return [_bar(opened, state, first), main, under, dcc.Store(id=AXIS, data=axis)]


def _under(store: Store, opened: Opened, state: Shown) -> list[Any]:
    """Below the timeline: the most exposed collectives in view, and the picked one."""
    first = first_rank(opened, state)
    found = None if first is None else _in_view(store, opened, first, state)
    return [one for one in (found, details(store, opened, state)) if one is not None]


def _in_view(store: Store, opened: Opened, first: RankRef, state: Shown) -> html.Section | None:
    window = window_of(opened, store.lanes(opened, first), state)
    table = Collectives.of(opened.report.collectives)
    start, length = table.numbers("start_ns").values, table.numbers("dur_ns").values
    rank = table.numbers("rank")
    mine = (rank.or_zero() == first.rank) & rank.is_known if first.rank is not None else ~rank.is_known
    rows = np.flatnonzero(mine & (start < window.end_ns) & (start + length > window.start_ns))
    if len(rows) == 0:
        return None
    share = table.numbers("exposed_share_ns").values[rows]
    shown = rows[np.lexsort((start[rows], -share))][:_MOST_LISTED]
    lines = [_line(opened.report.collectives[row], window, state) for row in shown.tolist()]
    words, numbers = ("Collective", "Group", "Purpose"), ("At [ms]", "Duration [ms]", "Exposed [ms]")
    head = [html.Th(text) for text in words] + [html.Th(text, className="num") for text in numbers]
    inside = html.Table(
        [html.Thead(html.Tr([*head, html.Th("Cause")])), html.Tbody(lines)], className="plain"
    )
    text = f"{rank_name(first.rank)}; the {len(shown)} most exposed of {len(rows)}"
    return parts.panel("Collectives in view", text, html.Div(inside, className="scroll"))


def _line(one: CollectiveFigures, window: Window, state: Shown) -> html.Tr:
    group = "–" if one.group is None else visible(short_group(one.group))
    here = (window.start_ns - window.zero_ns, window.end_ns - window.zero_ns)
    name = dcc.Link(visible(op_name(one.op)), href=link(state, pick=one.id, t=here))
    numbers = (one.start_ns - window.zero_ns, one.dur_ns, one.exposed_ns)
    cells = [html.Td(name), html.Td(group), html.Td(one.purpose)]
    cells += [html.Td(milliseconds(ns), className="num") for ns in numbers]
    cause = "–" if one.cause is None else told_of_cause(one.cause)[0].lower()
    return html.Tr([*cells, html.Td(cause)], className="here" if one.id == state.pick else "")


def first_rank(opened: Opened, state: Shown) -> RankRef | None:
    """The rank asked for, else that of the picked collective, else the drawn step's, else the first."""
    asked = next((rank for rank in opened.ranks if rank.rank == state.rank), None)
    if state.rank is not None and asked is not None:
        return asked
    one = picked(opened, state) if state.rank is None else None
    if one is not None and rank_of(opened, one) is not None:
        return rank_of(opened, one)
    drawn = opened.report.timeline
    found = next((rank for rank in opened.ranks if drawn is not None and rank.rank == drawn.rank), None)
    return found or next(iter(opened.ranks), None)


def _bar(opened: Opened, state: Shown, first: RankRef) -> html.Div | None:
    if len(opened.ranks) < 2:
        return None
    names = {str(one.rank): rank_name(one.rank) for one in opened.ranks if one.rank is not None}
    choices = [{"value": value, "label": name} for value, name in names.items()]
    rank = dmc.Select(
        id={"set": "rank"},
        data=choices,
        value=str(first.rank),
        size="xs",
        w=130,
        allowDeselect=False,
        searchable=len(choices) > 8,
        limit=parts.MOST_CHOICES,
        **parts.attrs({"aria-label": "Rank"}),
    )
    beside = dmc.MultiSelect(
        id={"set": "ranks"},
        data=[one for one in choices if one["value"] != str(first.rank)],
        value=[str(one) for one in state.ranks],
        size="xs",
        maxValues=_MOST_RANKS - 1,
        placeholder="beside it: other ranks",
        clearable=True,
        searchable=True,
        limit=parts.MOST_CHOICES,
        w=300,
        **parts.attrs({"aria-label": "Other ranks"}),
    )
    return html.Div([rank, beside], className="bar")


MOVES = (
    ("left", "◀", "left (a)"),
    ("right", "▶", "right (d)"),
    ("in", "+", "closer (w)"),
    ("out", "−", "wider (s)"),
    ("step", "Step", "the step that reports show (0)"),
    ("whole", "All", "the whole trace (f)"),
)


def buttons(of: str, moves: Sequence[tuple[str, str, str]]) -> html.Span:
    """Buttons that move the window; the page's script answers to them."""
    made = [
        html.Button(
            text,
            id={"move": how, "of": of},
            className="plain",
            title=title,
            **parts.attrs({"data-move": how}),
        )
        for how, text, title in moves
    ]
    return html.Span(made, className="buttons")


def window_of(opened: Opened, lanes: Lanes, state: Shown) -> Window:
    """The URL's zoom, else around the picked collective, else the step that reports draw, else all."""
    zero, end = lanes.span
    span = end - zero
    if state.t is not None and state.t[0] < span:
        return Window(zero, span, zero + state.t[0], zero + min(state.t[1], span))
    one = picked(opened, state)
    if one is not None and one.rank == lanes.rank:
        around = max(_AROUND * one.dur_ns, _AROUND_NS)
        start = max(one.start_ns - around, zero)
        return Window(zero, span, start, max(min(one.start_ns + one.dur_ns + around, end), start + 1))
    drawn = opened.report.timeline
    if drawn is not None and drawn.rank == lanes.rank and drawn.end_ns > drawn.start_ns:
        return Window(zero, span, max(drawn.start_ns, zero), max(drawn.end_ns, zero + 1))
    if len(lanes.steps):
        _, _, start, stop = lanes.steps[-1].tolist()
        if stop > start:
            return Window(zero, span, max(start, zero), max(stop, zero + 1))
    return Window(zero, span, zero, end)


def draw(store: Store, opened: Opened, state: Shown) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The figure, where its axis lies (for the page's script), and a line that says what is drawn."""
    first = first_rank(opened, state)
    assert first is not None
    lanes = store.lanes(opened, first)
    window = window_of(opened, lanes, state)
    ranks = drawn_ranks(store, opened, first, state, window)
    figure = lane_figure(ranks, window.zero_ns, window.start_ns, window.end_ns, state.theme or "light",
                         _marks(opened, first, state))  # fmt: skip
    axis = {
        "span": window.span_ns,
        "start": window.start_ns - window.zero_ns,
        "end": window.end_ns - window.zero_ns,
        "binned": is_binned(ranks),
    }
    return figure, axis, told_of(ranks, window.end_ns - window.start_ns)


def drawn_ranks(
    store: Store, opened: Opened, first: RankRef, state: Shown, window: Window
) -> list[DrawnRank]:
    more = [rank for rank in opened.ranks if rank.rank in state.ranks and rank is not first]
    chosen = [first, *more[: _MOST_RANKS - 1]]
    budget = Budget().shared(len(chosen))
    shifts = clock_shifts(opened)
    mine = shifts.get(first.rank, 0)
    width = window.end_ns - window.start_ns
    margin = int(width * _MARGIN)
    made = []
    for rank in chosen:
        lanes = store.lanes(opened, rank)
        shift = shifts.get(rank.rank, 0) - mine
        start, end = window.start_ns - margin + shift, window.end_ns + margin + shift
        seen = view(lanes, start, end, int(PIXELS * (1 + 2 * _MARGIN)), budget)
        name = rank_name(rank.rank) if len(chosen) > 1 else ""
        made.append(DrawnRank(lanes, seen, name, shift, lambda place, r=rank: r.first_collective + place))
    return made


def _marks(opened: Opened, first: RankRef, state: Shown) -> list[Mark]:
    one = picked(opened, state)
    if one is None or one.rank != first.rank:
        return []
    marks = [Mark(one.start_ns, one.start_ns + one.dur_ns, "")]
    known = one.cause_evidence
    if known is not None and known.partner_start_ns is not None and known.partner_end_ns is not None:
        marks.append(Mark(known.partner_start_ns, known.partner_end_ns, "", is_main=False))
    return marks


def told_of(ranks: list[DrawnRank], width_ns: int) -> str:
    """How much is in view, and how it is drawn."""
    seen = sum(one.activities for rank in ranks for one in rank.view.lanes)
    width = duration(width_ns)
    parts_of = [f"{width} in view, {counted(seen, 'activity', 'activities')}"]
    if is_binned(ranks):
        bin_ns = float(ranks[0].view.edges[1] - ranks[0].view.edges[0])
        parts_of.append(f"full lanes as shares of {duration(bin_ns)}; zoom in for single activities")
    left_out = sum(rank.view.lanes_left_out for rank in ranks)
    if left_out:
        parts_of.append(f"{counted(left_out, 'less busy lane')} not drawn")
    return "; ".join(parts_of)


def register(app: Dash, store: Store) -> None:
    def here(name: str) -> ClientsideFunction:
        return ClientsideFunction("sp", name)

    search = Output("url", "search", allow_duplicate=True)
    place = State({"axis": ALL}, "data"), State("url", "search")
    once = {"prevent_initial_call": True}
    app.clientside_callback(here("zoom"), search, Input("timeline", "relayoutData"), *place, **once)
    app.clientside_callback(here("pick"), search, Input("timeline", "clickData"), *place, **once)
    app.clientside_callback(
        here("move"), search, Input({"move": ALL, "of": "timeline"}, "n_clicks"), *place, **once
    )
    app.clientside_callback(
        here("unpick"), search, Input({"unpick": ALL}, "n_clicks"), State("url", "search"), **once
    )

    @app.callback(
        Output("timeline", "figure"),
        Output("timeline-legend", "children"),
        Output("timeline-told", "children"),
        Output(AXIS, "data"),
        Output("pick", "children"),
        Input("url", "search"),
        State("scheme", "data"),
        prevent_initial_call=True,
    )
    def _redraw(search: str | None, scheme: str | None) -> tuple[Any, ...]:
        state = state_of(search, scheme)
        ref = store.ref(state.run)
        found = None if ref is None or state.view != "timeline" else store.ask(ref, wait_s=0)
        if not isinstance(found, Opened) or first_rank(found, state) is None:
            return (no_update,) * 5
        figure, axis, told = draw(store, found, state)
        return figure, parts.legend(figure["data"]), visible(told), axis, _under(store, found, state)
