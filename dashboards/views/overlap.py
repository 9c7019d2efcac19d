"""Overlap: what hides per layer, where communication is exposed, and every collective with filters."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
import numpy as np
from dash import ClientsideFunction, Dash, Input, Output, State, html, no_update
from flask import Response, request

from dashboards import downloads, parts
from dashboards.collective import details
from dashboards.state import FILTERS, parse, search, state_of
from dashboards.state import State as Shown
from dashboards.store import Opened, Store
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.report import tables, view
from sp_profiler.report.figures import rank_name
from sp_profiler.report.format import counted, duration, percent, short_group, visible
from sp_profiler.report.overlap_figures import hiding_by_layer
from sp_profiler.report.page_parts import QUIET, plot
from sp_profiler.report.sentences import op_name
from sp_profiler.report.table import Table
from sp_profiler.report.why import told_of_cause
from sp_profiler.trace.tables import Bool, Int64

MOST_ROWS = 400
"""Collectives listed at once, the most exposed ones; filters find the others."""

_HIGH = 470


def layout(store: Store, opened: Opened, state: Shown) -> list[Any]:
    report, theme = opened.report, state.theme or "light"
    if not len(report.collectives):
        told = "This run holds no collective: nothing communicates, or the trace does not show it."
        return [parts.notice("No communication", told)]
    cards = view.cards(report)[1:]
    made: list[Any] = [parts.cards(cards), html.Div(_layers(opened, theme), className="grid")]
    made.append(_filters(opened, state))
    rows = chosen(opened, state)
    listed = parts.panel(
        "Collectives",
        "click a row for what hid it",
        html.P(summary(opened, rows), id="overlap-told", className="note"),
        _grid(opened, rows, theme),
        tools=html.A(
            "CSV",
            id="overlap-csv",
            href=csv_address(opened, state),
            className="plain",
            download="",
            title="the collectives that these filters leave, all columns",
        ),
    )
    side = html.Div(details(store, opened, state), id="overlap-pick")
    made.append(html.Div([listed, side], className="beside"))
    return [*made, *_tables(opened, theme)]


def _layers(opened: Opened, theme: str) -> list[Any]:
    titles = {"dgrad": "dgrad collectives by layer", None: "All collectives by layer"}
    drawn = {purpose: hiding_by_layer(opened.report, purpose) for purpose in titles}
    found = {purpose: figure for purpose, figure in drawn.items() if figure is not None}
    text = "mean per step and rank"
    width = "wide" if len(found) == 1 else ""
    return [
        parts.panel(
            titles[purpose],
            text,
            parts.graph(f"layers-{purpose or 'all'}", plot(figure, QUIET), theme, label=titles[purpose]),
            width=width,
        )
        for purpose, figure in found.items()
    ]


def _tables(opened: Opened, theme: str) -> list[Any]:
    report = opened.report
    made = (
        view.kinds_table(report),
        *view.exposed_tables(report),
        view.contention_table(report),
        view.gemms_table(report),
    )
    return parts.tables("By kind, cause, purpose, module…", [one for one in made if one.rows], theme)


# --- filters -----------------------------------------------------------------------------------------


def _group(key: str) -> str:
    """A group as the URL says it: short, as readers see it."""
    return short_group(key)[:200]


def _words(table: Collectives, name: str) -> list[str]:
    return sorted({str(word) for word in table.words(name).distinct()})


def _filters(opened: Opened, state: Shown) -> html.Div:
    table = Collectives.of(opened.report.collectives)
    steps = sorted(set(table.numbers("step").values[table.numbers("step").is_known].tolist()))
    ranks = [one.rank for one in opened.ranks if one.rank is not None]
    groups = {_group(key) for key in table.words("group").distinct()}
    choices: dict[str, tuple[str, list[tuple[str, str]]]] = {
        "op": ("operation", [(one, op_name(one)) for one in _words(table, "op")]),
        "group": ("group", [(one, visible(one)) for one in sorted(groups)]),
        "purpose": ("purpose", [(one, one) for one in _words(table, "purpose")]),
        "phase": ("phase", [(one, one) for one in _words(table, "phase")]),
        "cause": ("cause", [(one, told_of_cause(one)[0].lower()) for one in _words(table, "cause")]),
        "step": ("step", [(str(one), f"step {one}") for one in steps]),
        "of": ("rank", [(str(one), rank_name(one)) for one in ranks]),
    }
    made: list[Any] = [
        dmc.TextInput(
            id={"set": "q"},
            value=state.q,
            placeholder="module or kernel",
            size="xs",
            w=180,
            debounce=400,
            **parts.attrs({"aria-label": "Search module or kernel"}),
        )
    ]
    for name, (text, values) in choices.items():
        now = getattr(state, name)
        if len(values) > 1 or now not in ("", None):
            made.append(_choice(name, text, values, "" if now is None else str(now)))
    return html.Div(made, className="bar", role="search", **parts.attrs({"aria-label": "Filters"}))


def _choice(name: str, text: str, values: list[tuple[str, str]], now: str) -> dmc.Select:
    data = [{"value": value, "label": shown} for value, shown in values]
    if now and now not in {value for value, _ in values}:
        data.append({"value": now, "label": visible(now)})
    return dmc.Select(
        id={"set": name},
        data=data,
        value=now or None,
        placeholder=f"any {text}",
        clearable=True,
        searchable=len(values) > 8,
        limit=parts.MOST_CHOICES,
        size="xs",
        w=150,
        **parts.attrs({"aria-label": text.capitalize()}),
    )


def chosen(opened: Opened, state: Shown) -> Int64:
    """The places of the collectives that the filters of the URL leave, most exposed first."""
    table = Collectives.of(opened.report.collectives)
    keep: Bool = np.ones(len(table), np.bool_)
    for name in ("op", "purpose", "phase", "cause"):
        asked = getattr(state, name)
        if asked:
            keep &= table.words(name).where(lambda word, asked=asked: word == asked)
    if state.group:
        keep &= table.words("group").where(
            lambda key: key is not None and short_group(key)[:200] == state.group
        )
    for name, asked in (("step", state.step), ("rank", state.of)):
        if asked is not None:
            column = table.numbers(name)
            keep &= column.is_known & (column.or_zero() == asked)
    if state.q:
        needle = state.q.lower()
        found = [
            table.words(name).where(lambda word: needle in (word or "").lower())
            for name in ("module", "kernel")
        ]
        keep &= found[0] | found[1]
    rows = np.flatnonzero(keep)
    return rows[np.lexsort((rows, -table.numbers("exposed_share_ns").values[rows]))]


def summary(opened: Opened, rows: Int64) -> str:
    """What the chosen collectives add up to."""
    table = Collectives.of(opened.report.collectives).take(rows)
    if len(table) == 0:
        return "No collective passes these filters."
    whole = table.total("dur_ns")
    over = table.total("overlapped_ns")
    told = [
        f"{counted(len(table), 'collective')}, {duration(whole)} in all",
        f"{duration(over)} of it overlapped ({percent(over / whole if whole else None)})",
        f"{duration(table.total('exposed_share_ns'))} of the run's exposed time",
    ]
    hideable = table.total("hideable_ns")
    if hideable:
        hidden = table.total("hidden_ns")
        told.append(
            f"{duration(hidden)} of {duration(hideable)} hideable hidden ({percent(hidden / hideable)})"
        )
    if len(table) > MOST_ROWS:
        told.append(f"the {MOST_ROWS} most exposed are listed")
    return "; ".join(told)


def csv_address(opened: Opened, state: Shown) -> str:
    """Where the chosen collectives are had as CSV."""
    kept = {name: getattr(state, name) for name in FILTERS}
    return f"/export/{opened.ref.id}/collectives{search(Shown(**kept))}"


def _table(opened: Opened, rows: Int64) -> Table:
    collectives = Collectives.of(opened.report.collectives)
    starts = collectives.numbers("start_ns").values
    return view.collectives_table(list(collectives.take(rows[:MOST_ROWS])), int(starts.min()))


def _grid(opened: Opened, rows: Int64, theme: str) -> Any:
    columns = [parts.column_def(str(n), column) for n, column in enumerate(_table(opened, rows).columns)]
    keyed = grid_rows(opened, rows)
    return parts.grid_of("grid-collectives", columns, keyed, theme, _HIGH, getRowId="params.data.key")


def grid_rows(opened: Opened, rows: Int64) -> list[dict[str, Any]]:
    """The rows with a key of text, as ag-grid wants it: the collective's id."""
    return [row | {"key": str(row["0"])} for row in parts.row_data(_table(opened, rows))]


def register(app: Dash, store: Store) -> None:
    url = Output("url", "search", allow_duplicate=True)
    app.clientside_callback(
        ClientsideFunction("sp", "pickRow"),
        url,
        Input("grid-collectives", "cellClicked"),
        State("url", "search"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("grid-collectives", "rowData"),
        Output("overlap-told", "children"),
        Output("overlap-pick", "children"),
        Output("overlap-csv", "href"),
        Input("url", "search"),
        State("scheme", "data"),
        prevent_initial_call=True,
    )
    def _filtered(search: str | None, scheme: str | None) -> tuple[Any, ...]:
        state = state_of(search, scheme)
        ref = store.ref(state.run)
        found = None if ref is None or state.view != "overlap" else store.ask(ref, wait_s=0)
        if not isinstance(found, Opened) or not len(found.report.collectives):
            return (no_update,) * 4
        rows = chosen(found, state)
        under = details(store, found, state)
        return grid_rows(found, rows), summary(found, rows), under, csv_address(found, state)

    @app.server.get("/export/<run>/collectives")
    def _csv(run: str) -> Response:
        found = downloads.opened(store, run)
        rows = chosen(found, parse(request.query_string.decode("ascii", "replace")))
        text = tables.csv_text(tables.to_polars(found.report, "collectives")[rows])
        return downloads.attachment(found, "collectives.csv", text, "text/csv")
