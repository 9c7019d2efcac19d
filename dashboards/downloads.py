"""What can be taken along: reports and tables of a run. Figures of a view are saved by the page itself."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dash import Dash, html
from flask import Response, abort

from dashboards import parts
from dashboards.store import Opened, Store
from sp_profiler.export.perfetto import export_run
from sp_profiler.export.places import places_of
from sp_profiler.report import save, tables
from sp_profiler.report.format import visible

REPORTS = {"html": "text/html", "json": "application/json", "markdown": "text/markdown"}

PERFETTO = "https://ui.perfetto.dev"


def menu(found: Opened, perfetto_at: str = PERFETTO) -> list[Any]:
    """Links in the header. `perfetto_at` is the origin of the page that traces are handed to."""
    run = found.ref.id
    names = {"html": "HTML report", "json": "JSON report", "markdown": "Markdown report"}
    links: list[Any] = [
        html.A(text, href=f"/export/{run}/report/{kind}", download="") for kind, text in names.items()
    ]
    perfetto = "for ui.perfetto.dev: the trace with tracks of what is exposed and overlapped"
    links.append(html.A("Perfetto traces", href=f"/export/{run}/perfetto", download="", title=perfetto))
    links += _open_in_perfetto(found, perfetto_at)
    for kind in ("PNG", "SVG"):
        save_as = parts.attrs({"data-save": kind.lower()})
        links.append(html.Button(f"Figures of this view as {kind}", className="link", **save_as))
    links += [
        html.A(f"{name}.csv", href=f"/export/{run}/table/{name}", download="") for name in tables.TABLES
    ]
    return [html.Details([html.Summary("Export"), html.Div(links, className="links")], className="menu")]


def _open_in_perfetto(found: Opened, perfetto_at: str) -> list[Any]:
    """A button that the page's script answers, and what it does, said before it is done."""
    ranks = [{"rank": one.rank, "number": one.number} for one in found.ranks]
    asked = parts.attrs(
        {
            "data-perfetto": f"/export/{found.ref.id}/perfetto",
            "data-at": perfetto_at,
            "data-title": visible(found.ref.name),
            "data-ranks": json.dumps(ranks),
        }
    )
    host = urlsplit(perfetto_at).netloc
    told = f"loads a page of {host} from the network; the trace stays in this browser"
    return [html.Button("Open this rank in Perfetto", className="link", **asked), html.Small(told)]


def csv_link(found: Opened, table: str, text: str = "CSV") -> html.A:
    """A link to one table as CSV, beside it."""
    return html.A(text, href=f"/export/{found.ref.id}/table/{table}", className="plain", download="",
                  title=f"all rows of {table}")  # fmt: skip


def opened(store: Store, run: str) -> Opened:
    """The run of this id, read if need be; ends the request with 404 where there is none."""
    ref = store.ref(run)
    found = None if ref is None else store.ask(ref, wait_s=600)
    if not isinstance(found, Opened):
        abort(404)
    return found


def register(app: Dash, store: Store) -> None:
    """The addresses below /export."""
    server = app.server

    @server.get("/export/<run>/report/<kind>")
    def _report(run: str, kind: str) -> Response:
        if kind not in REPORTS:
            abort(404)
        found = opened(store, run)
        ((name, content),) = save.render(found.report, kind).items()
        return attachment(found, name, content, REPORTS[kind])

    @server.get("/export/<run>/table/<table>")
    def _table(run: str, table: str) -> Response:
        if table not in tables.TABLES:
            abort(404)
        found = opened(store, run)
        text = tables.csv_text(tables.to_polars(found.report, table))
        return attachment(found, f"{table}.csv", text, "text/csv")

    @server.get("/export/<run>/perfetto")
    @server.get("/export/<run>/perfetto/<int:number>")
    def _perfetto(run: str, number: int | None = None) -> Response:
        found = opened(store, run)
        trace = next((one.file for one in found.ranks if one.number == number), None)
        if number is not None and trace is None:
            abort(404)
        with tempfile.TemporaryDirectory(prefix="sp-profile-export-") as folder:
            file = _perfetto_file(store, found, Path(folder), trace)
            handle = file.open("rb")  # the folder may go: what is open stays readable
        headers = {"Content-Disposition": f'attachment; filename="{parts.safe_name(file.name)}"'}
        return Response(handle, mimetype="application/octet-stream", headers=headers, direct_passthrough=True)


def _perfetto_file(store: Store, found: Opened, folder: Path, trace: str | None = None) -> Path:
    """The export of one trace, of the run's only one, or an archive of those of all its ranks."""
    files = found.ref.files
    (places,) = places_of([files], f"{folder}/", force=False)
    done = export_run(files, places, store.rule, limits=store.limits, decode=store.decode)
    if trace is not None:
        return done.files[trace]
    written = list(done.files.values())
    if len(written) == 1:
        return written[0]
    archive = folder / f"{parts.safe_name(files.name)}-perfetto.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as into:  # most are packed already
        for one in written:
            into.write(one, one.name)
    return archive


def attachment(found: Opened, name: str, content: str | bytes | Iterable[str], kind: str) -> Response:
    """A file to save, never a page to show: what is in it came from a trace."""
    file = f"{parts.safe_name(found.ref.name)}-{name}"
    headers = {"Content-Disposition": f'attachment; filename="{file}"'}
    return Response(content, mimetype=kind, headers=headers)  # type: ignore[arg-type]
