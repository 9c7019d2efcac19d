"""The page: header, tabs, one view at a time. What it shows is what its URL says (`state`)."""

from __future__ import annotations

import importlib
import time
import traceback
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards import downloads, parts, scripts, uploads
from dashboards.state import VIEWS, link, parse, state_of
from dashboards.state import State as Shown
from dashboards.store import Failed, Opened, Reading, RunRef, Store
from sp_profiler import __version__
from sp_profiler.report import quality
from sp_profiler.report.format import counted, visible
from sp_profiler.report.html import chips

TITLES = {
    "overview": "Overview",
    "timeline": "Timeline",
    "overlap": "Overlap",
    "across": "Across ranks",
    "memory": "Memory",
    "ring": "Ring",
    "compare": "Compare",
}

_PATIENCE_S = 1.2  # a run that is there within this time is shown at once, without a word of waiting

_DARK = ["e6eaf0", "c3cad4", "a3adbb", "7b8797", "2c3542", "242d39", "1f2732", "161c25", "11161d", "0e1319"]
"""Mantine's shades of a dark page, from ink to ground, to match the palette of reports."""

_THEME: Any = {
    "primaryColor": "indigo",
    "defaultRadius": "sm",
    "fontFamily": "inherit",
    "colors": {"dark": [f"#{shade}" for shade in _DARK]},
}


@dataclass(frozen=True)
class Settings:
    """`paths` are what the user named, for the page that has nothing to show; `perfetto` is the origin of the
    page that traces are handed to."""

    paths: tuple[str, ...] = ()
    perfetto: str = downloads.PERFETTO


def create_app(store: Store, settings: Settings | None = None) -> Dash:
    """The Dash app over a store. It binds no address: `server.serve` does."""
    scripts.load_tables_late()
    app = Dash(
        __name__,
        title="sp-profile",
        update_title="",  # type: ignore[arg-type]
        assets_folder="assets",
        suppress_callback_exceptions=True,  # views come and go
        serve_locally=True,
        eager_loading=False,
        add_log_handler=False,
        enable_mcp=False,
    )
    app.layout = lambda: _layout(store)
    views = {name: importlib.import_module(f"dashboards.views.{name}") for name in VIEWS}
    store.on_read = views["overview"].prepare
    _navigation(app)
    _page(app, store, settings or Settings(), views)
    for view in views.values():
        if hasattr(view, "register"):
            view.register(app, store)
    downloads.register(app, store)
    uploads.register(app, store)
    return app


def _layout(store: Store) -> dmc.MantineProvider:
    store.refresh()
    tabs = [dcc.Link(TITLES[view], id=f"tab-{view}", href="/") for view in VIEWS]
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="scheme"),
            dcc.Store(id="shown"),
            dcc.Store(id="again"),
            dcc.Store(id="poll"),
            dcc.Store(id="waiting"),
            html.Header(
                [
                    html.Span("sp-profile", className="brand"),
                    html.Div(id="which", style={"display": "contents"}),
                    html.Span(className="spacer"),
                    _upload_button(store, "Upload"),
                    html.Div(id="actions", style={"display": "contents"}),
                    html.Button("?", id="help", className="plain", title="keyboard (?)"),
                    html.Button("◐", id="theme", className="plain", title="light or dark (t)"),
                ],
                className="top",
            ),
            html.Nav(tabs, className="tabs", **parts.attrs({"aria-label": "Views"})),
            html.Main(html.Div(id="content", children=_loading("Loading…"))),
            _keys(),
        ],
        id="provider",
        theme=_THEME,
        defaultColorScheme="light",
    )


def _upload_button(store: Store, text: str) -> html.Button | None:
    """Opens the list of files; the page's script does the rest."""
    if store.uploads is None:
        return None
    most = store.uploads.limit_bytes
    asked = parts.attrs({"data-upload": str(most), "data-too-big": uploads.too_big(most)})
    told = "traces of one run, a file a rank; they can also be dropped on the page"
    return html.Button(text, className="plain", title=told, **asked)


def _keys() -> dmc.Modal:
    rows = [
        ("1 … 7", "the views, left to right"),
        ("t", "light or dark"),
        ("w s", "timeline: closer, wider"),
        ("a d", "timeline: left, right"),
        ("0 f", "timeline: the step, the whole trace"),
        ("?", "this list"),
    ]
    lines = [
        html.Tr([html.Td([html.Kbd(key) for key in keys.split()]), html.Td(text)]) for keys, text in rows
    ]
    return dmc.Modal(
        html.Table(html.Tbody(lines), className="plain"), id="keys", title="Keyboard", opened=False
    )


def _navigation(app: Dash) -> None:
    """What the page does by itself: the URL and the theme."""

    def here(name: str) -> ClientsideFunction:
        return ClientsideFunction("sp", name)

    app.clientside_callback(
        here("scheme"),
        Output("scheme", "data"),
        Output("provider", "forceColorScheme"),
        Input("url", "search"),
    )
    app.clientside_callback(
        here("tabs"), *(Output(f"tab-{view}", "href") for view in VIEWS), Input("url", "search")
    )
    search = Output("url", "search", allow_duplicate=True)
    app.clientside_callback(
        here("toggle"), search, Input("theme", "n_clicks"), State("url", "search"), prevent_initial_call=True
    )
    app.clientside_callback(
        here("go"),
        search,
        Input({"set": ALL}, "value"),
        State({"set": ALL}, "id"),
        State("url", "search"),
        prevent_initial_call=True,
    )

    app.clientside_callback(here("later"), Output("waiting", "data"), Input("again", "data"))

    @app.callback(Output("keys", "opened"), Input("help", "n_clicks"), prevent_initial_call=True)
    def _open(_: int | None) -> bool:
        return True


def _page(app: Dash, store: Store, settings: Settings, views: dict[str, ModuleType]) -> None:
    @app.callback(
        Output("which", "children"),
        Output("actions", "children"),
        Output("content", "children"),
        Output("again", "data"),
        Output("shown", "data"),
        Input("url", "search"),
        Input("scheme", "data"),
        Input("poll", "data"),
        State("shown", "data"),
    )
    def _show(search: str | None, scheme: str | None, _: int | None, shown: Any) -> tuple[Any, ...]:
        state = state_of(search, scheme)
        asked = parse(search)
        ref = store.ref(state.run)
        if ref is None:
            return _which(store, None, None, asked), None, _no_run(store, state, settings), None, None
        is_poll = ctx.triggered_id == "poll"
        found = store.ask(ref, wait_s=0 if is_poll else _PATIENCE_S)
        if isinstance(found, Reading):
            which = no_update if is_poll else _which(store, ref, None, asked)
            return which, None, _reading(ref, found), time.monotonic(), None
        if isinstance(found, Failed):
            failed = parts.notice(f"{visible(ref.name)} cannot be shown", visible(found.text), kind="bad")
            return _which(store, ref, None, asked), None, failed, None, None
        view = views[state.view]
        key = repr((state.view, ref.id, id(found), state.theme, getattr(view, "key", _no_key)(found, state)))
        if key == shown:
            return no_update, no_update, no_update, None, no_update
        try:
            content = view.layout(store, found, state)
        except Exception:  # noqa: BLE001 - one view that fails leaves the others
            traceback.print_exc()
            told = (
                "This is a defect of sp-profile; what it was doing is on the terminal. The other views work."
            )
            content = parts.notice("This view failed", told, kind="bad")
        shown_as = parts.attrs({"data-view": state.view, "data-run": ref.id, "data-theme": state.theme or ""})
        return (
            _which(store, ref, found, asked),
            downloads.menu(found, settings.perfetto),
            html.Div(content, **shown_as),
            None,
            key,
        )


def _no_key(opened: Opened, state: Shown) -> Any:
    return None


def _which(store: Store, ref: RunRef | None, opened: Opened | None, state: Shown) -> list[Any]:
    """Which run is shown, which others there are, and how good its data is."""
    runs = store.runs()
    if not runs:
        return []
    select = dmc.Select(
        id={"set": "run"},
        data=[{"value": one.id, "label": visible(one.name)} for one in runs],
        value=None if ref is None else ref.id,
        searchable=len(runs) > 8,
        allowDeselect=False,
        size="xs",
        w=230,
        **parts.attrs({"aria-label": "Run"}),
    )
    told = [] if opened is None else [html.Li(visible(one)) for one in chips(opened.report)]
    about = html.Ul(told, className="chips", **parts.attrs({"aria-label": "About the run"}))
    return [select, about, None if opened is None else _quality(opened, state)]


def _quality(opened: Opened, state: Shown) -> dcc.Link | None:
    """What the ledger holds, in every view; the whole of it is on the overview."""
    entries = quality.shown(opened.report.data_quality)
    if not entries:
        return None
    there = link(state, view="overview", t=None, pick=None)
    return dcc.Link(
        f"Data quality: {quality.totals(entries)}",
        href=there,
        className=f"quality {entries[0].severity}",
        title="what was repaired, dropped or assumed, and why some figures are null",
    )


def _loading(text: str) -> html.Section:
    return html.Section([dmc.Loader(size="sm"), html.P(text)], className="notice", role="status")


def _reading(ref: RunRef, found: Reading) -> html.Section:
    share = found.done / max(found.total, 1)
    bar = html.Div(html.I(style={"width": f"{share * 100:.0f}%"}), className="progress")
    files = counted(len(ref.files.files), "trace")
    return html.Section(
        [
            html.H2(f"Reading {visible(ref.name)}"),
            bar,
            html.P(f"{files}, {share * 100:.0f} % done. Big traces are kept: next time they open at once."),
        ],
        className="notice",
        role="status",
    )


def _no_run(store: Store, state: Shown, settings: Settings) -> html.Section:
    if store.runs():
        return parts.notice(
            "There is no such run here",
            "The link names a run that this dashboard does not know. Choose one above.",
            kind="bad",
        )
    drop = _drop_area(store)
    if settings.paths and store.trouble:
        return parts.notice(
            "Nothing to show", visible(store.trouble), "Name a folder with traces of torch.profiler.", *drop
        )
    return parts.notice(
        "No run is open",
        "sp-profile dashboard PATH... opens traces of torch.profiler: files, folders, or folders of runs.",
        "sp-profile run demo makes four runs in about a minute; load this page again when they are there.",
        *drop,
        f"sp-profile {__version__}",
    )


def _drop_area(store: Store) -> list[Any]:
    button = _upload_button(store, "Choose traces")
    if button is None:
        return []
    told = "Drop the traces of one run here, a file a rank, or "
    where = " They stay on the machine of this server until it ends."
    return [html.Span([html.Span([told, button]), html.Small(where)], className="drop")]
