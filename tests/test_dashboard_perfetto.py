"""A trace is handed to a page of Perfetto: the handshake with a page that stands in for it, and pictures."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from browser_helpers import Page, page  # noqa: F401 - a fixture
from serving import answering

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from dashboards import server
from dashboards.app import Settings, create_app
from dashboards.downloads import PERFETTO
from dashboards.store import Opened, Store
from sp_profiler.trace.find import find_runs

DEMO = Path(__file__).resolve().parent.parent / "traces/demo"

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# What ui.perfetto.dev does: it hears nothing at first, answers each PING, and takes what comes with a trace.
STUB = """<!doctype html><script>
setTimeout(() => addEventListener('message', (event) => {
  if (event.data === 'PING') { if (ANSWERS) event.source.postMessage('PONG', event.origin); return; }
  const { buffer, title, fileName } = event.data.perfetto;
  const about = new URLSearchParams({ title, fileName, from: event.origin });
  fetch('/took?' + about, { method: 'POST', body: buffer });
}), 300);
</script>"""


class Perfetto(ThreadingHTTPServer):
    """Stands in for ui.perfetto.dev; `took` holds what was handed to it."""

    daemon_threads = True

    def __init__(self, *, answers: bool) -> None:
        self.took: list[tuple[str, bytes]] = []
        self.page = STUB.replace("ANSWERS", "true" if answers else "false").encode()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(cast(Perfetto, self.server).page)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        cast(Perfetto, self.server).took.append((self.path, body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Nothing on the terminal of the tests."""


@contextmanager
def beside(perfetto: Perfetto | None) -> Iterator[tuple[str, Opened]]:
    """The dashboard over one run of the demo: its address, and the run."""
    store = Store(lambda: find_runs([str(DEMO / "tp-async")]))
    bound = server.listen(server.Address(port=0))
    address = server.Address(port=bound.getsockname()[1])
    app = create_app(store, Settings(perfetto=perfetto.origin) if perfetto else Settings())
    server.guard(app, address)
    found = store.ask(store.runs()[0], wait_s=120)
    assert isinstance(found, Opened)
    if perfetto:
        threading.Thread(target=perfetto.serve_forever, daemon=True).start()
    try:
        with answering(server.make_server(app, bound)):
            yield address.url, found
    finally:
        if perfetto:
            perfetto.shutdown()
            perfetto.server_close()


def press(page: Page, what: str) -> None:  # noqa: F811
    """A click as by a hand: without one a browser opens no window."""
    page.wait_for(f"document.querySelector('.menu {what}')", 120)
    page.run("document.querySelector('.menu').open = true")
    page.run(f"document.querySelector('.menu {what}').scrollIntoView({{block: 'nearest'}})")
    spot = page.run(
        f"(() => {{ const b = document.querySelector('.menu {what}').getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    page.click(*spot)


def test_a_trace_is_handed_over_window_to_window(page: Page) -> None:  # noqa: F811
    perfetto = Perfetto(answers=True)
    with beside(perfetto) as (url, run):
        page.visit(f"{url}?view=timeline&rank=1")
        page.wait_for("document.querySelector('.menu [data-perfetto]')", 120)
        assert perfetto.took == []
        assert "the trace stays in this browser" in page.run("document.querySelector('.menu').textContent")
        press(page, "[data-perfetto]")
        page.wait_for("document.querySelector('#told')?.textContent === 'Perfetto has the trace.'", 60)
        deadline = time.monotonic() + 60
        while not perfetto.took and time.monotonic() < deadline:
            page.wait_for("new Promise(done => setTimeout(() => done(true), 100))")
        ((about, trace),) = perfetto.took
        assert "tp-async%2C+rank+1" in about
        assert ".perfetto.json" in about
        assert f"from={url.rstrip('/').replace(':', '%3A').replace('/', '%2F')}" in about
        number = next(one.number for one in run.ranks if one.rank == 1)
        export = page.run(
            f"fetch('/export/{run.ref.id}/perfetto/{number}').then(a => a.arrayBuffer())"
            ".then(b => btoa(Array.from(new Uint8Array(b), c => String.fromCharCode(c)).join('')))"
        )
        assert gzip.decompress(trace) == gzip.decompress(base64.b64decode(export))
        assert json.loads(gzip.decompress(trace))["distributedInfo"]["rank"] == 1
        assert page.problems == []


def test_what_does_not_answer_gets_nothing_and_the_trace_is_saved(page: Page) -> None:  # noqa: F811
    perfetto = Perfetto(answers=False)
    with beside(perfetto) as (url, _):
        page.visit(url)
        page.wait_for("document.querySelector('.menu [data-perfetto]')", 120)
        page.run(
            "window.links = [];"
            " HTMLAnchorElement.prototype.click = function () { links.push(this.pathname); };"
            " window.now = Date.now; window.late = 0; Date.now = () => window.now() + window.late"
        )
        press(page, "[data-perfetto]")
        page.wait_for("document.querySelector('#told')")
        page.run("window.late = 60000")  # as if half a minute had passed
        page.wait_for("window.links.length === 1", 60)
        assert page.run("window.links[0]").endswith("/perfetto/0")
        assert "saved instead" in page.run("document.querySelector('#told').textContent")
        page.run("window.open = () => null")  # a browser that opens no windows
        press(page, "[data-perfetto]")
        page.wait_for("window.links.length === 2", 60)
        assert perfetto.took == []
        assert page.problems == []


def test_without_a_click_nothing_is_loaded_from_perfetto(page: Page) -> None:  # noqa: F811
    with beside(None) as (url, _):
        page.visit(url)
        page.wait_for("document.querySelector('.menu [data-perfetto]')", 120)
        assert page.run("document.querySelector('[data-perfetto]').dataset.at") == PERFETTO
        assert [one for one in page.requests if "perfetto.dev" in one] == []


def test_pictures_are_pictures(page: Page) -> None:  # noqa: F811
    with beside(None) as (url, _):
        page.visit(url)
        page.wait_for("document.querySelector('#content .js-plotly-plot .main-svg')", 120)
        page.run(
            "window.saved = []; const create = URL.createObjectURL; URL.createObjectURL = (blob) => {"
            " const read = new FileReader(); read.onload = () => saved.push(read.result);"
            " read.readAsDataURL(blob); return create(blob); }"
        )
        count = page.run("document.querySelectorAll('#content .js-plotly-plot').length")
        assert count > 0
        for kind, start in (("png", b"\x89PNG\r\n\x1a\n"), ("svg", b"<svg")):
            page.run("window.saved.length = 0")
            press(page, f"[data-save={kind}]")
            of_kind = f"window.saved.filter(one => one.startsWith('data:image/{kind}'))"
            page.wait_for(f"{of_kind}.length >= {count}", 60)
            for one in page.run(of_kind):
                data = base64.b64decode(one.partition(",")[2])
                assert data.startswith(start)
                assert len(data) > 1000
        assert page.problems == []
