"""What can be taken along: the reports and tables of a run. Figures are saved by their own mode bar."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dash import Dash, html
from flask import Response, abort

from dashboards import parts
from dashboards.store import Opened, Store
from sp_profiler.export.perfetto import export_run
from sp_profiler.export.places import places_of
from sp_profiler.report import save, tables

REPORTS = {"html": "text/html", "json": "application/json", "markdown": "text/markdown"}


def menu(opened: Opened) -> list[Any]:
    """Links in the header."""
    run = opened.ref.id
    names = {"html": "HTML report", "json": "JSON report", "markdown": "Markdown report"}
    links = [html.A(text, href=f"/export/{run}/report/{kind}", download="") for kind, text in names.items()]
    perfetto = "for ui.perfetto.dev: the trace with tracks of what is exposed and overlapped"
    links.append(html.A("Perfetto traces", href=f"/export/{run}/perfetto", download="", title=perfetto))
    links += [
        html.A(f"{name}.csv", href=f"/export/{run}/table/{name}", download="") for name in tables.TABLES
    ]
    return [html.Details([html.Summary("Export"), html.Div(links, className="links")], className="menu")]


def csv_link(opened: Opened, table: str, text: str = "CSV") -> html.A:
    """A link to one table as CSV, beside it."""
    return html.A(text, href=f"/export/{opened.ref.id}/table/{table}", className="plain", download="",
                  title=f"all rows of {table}")  # fmt: skip


def register(app: Dash, store: Store) -> None:
    """The addresses below /export."""
    server = app.server

    def opened(run: str) -> Opened:
        ref = store.ref(run)
        found = None if ref is None else store.ask(ref, wait_s=600)
        if not isinstance(found, Opened):
            abort(404)
        return found

    @server.get("/export/<run>/report/<kind>")
    def _report(run: str, kind: str) -> Response:
        if kind not in REPORTS:
            abort(404)
        found = opened(run)
        ((name, content),) = save.render(found.report, kind).items()
        return _attachment(found, name, content, REPORTS[kind])

    @server.get("/export/<run>/table/<table>")
    def _table(run: str, table: str) -> Response:
        if table not in tables.TABLES:
            abort(404)
        found = opened(run)
        text = tables.csv_text(tables.to_polars(found.report, table))
        return _attachment(found, f"{table}.csv", text, "text/csv")

    @server.get("/export/<run>/perfetto")
    def _perfetto(run: str) -> Response:
        found = opened(run)
        with tempfile.TemporaryDirectory(prefix="sp-profile-export-") as folder:
            file = _perfetto_file(store, found, Path(folder))
            handle = file.open("rb")  # the folder may go: what is open stays readable
        headers = {"Content-Disposition": f'attachment; filename="{parts.safe_name(file.name)}"'}
        return Response(handle, mimetype="application/octet-stream", headers=headers, direct_passthrough=True)


def _perfetto_file(store: Store, found: Opened, folder: Path) -> Path:
    """The export of the run's trace, or an archive of those of all its ranks."""
    files = found.ref.files
    (places,) = places_of([files], f"{folder}/", force=False)
    done = export_run(files, places, store.rule, limits=store.limits, decode=store.decode)
    written = list(done.files.values())
    if len(written) == 1:
        return written[0]
    archive = folder / f"{parts.safe_name(files.name)}-perfetto.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as into:  # most are packed already
        for one in written:
            into.write(one, one.name)
    return archive


def _attachment(found: Opened, name: str, content: str | bytes | Iterable[str], kind: str) -> Response:
    """A file to save, never a page to show: what is in it came from a trace."""
    file = f"{parts.safe_name(found.ref.name)}-{name}"
    headers = {"Content-Disposition": f'attachment; filename="{file}"'}
    return Response(content, mimetype=kind, headers=headers)  # type: ignore[arg-type]
