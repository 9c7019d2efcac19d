"""A web server for tests: files of a folder, and answers that go wrong, under its own address."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


@dataclass
class Web:
    """Files of `folder` under `url`. What a client asks for is in `asked`, with its Authorization."""

    folder: Path
    port: int = 0
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def gets(self, ending: str) -> int:
        """How often a path that ends so was fetched."""
        return sum(how == "GET" and path.partition("?")[0].endswith(ending) for how, path, _ in self.asked)


class _Handler(SimpleHTTPRequestHandler):
    """Paths beginning with a word do something else: /moved/X redirects to /X, /status/N/X answers N, /cut/X
    ends before its end, /unfinished/X answers 404 and goes on, /silent/X says nothing, /signed/X wants a
    query, /closed/X a password, /outside/ is an index that links elsewhere, /ranged/X gives parts."""

    def __init__(self, web: Web, *args: object, **options: object) -> None:
        self.web = web
        super().__init__(*args, directory=os.fspath(web.folder), **options)  # type: ignore[arg-type]

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002 (its name there)
        """Tests have nothing to say on stderr."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.web.asked.append((self.command, self.path, self.headers.get("Authorization")))
        what, _, rest = self.path.lstrip("/").partition("/")
        act = getattr(self, f"_{what}", None)
        if act is not None:
            act(rest)
        elif self.command == "HEAD":
            super().do_HEAD()
        else:
            super().do_GET()

    def _as(self, path: str) -> None:
        self.path = f"/{path}"
        super().do_HEAD() if self.command == "HEAD" else super().do_GET()

    def _moved(self, rest: str) -> None:
        self.send_response(302)
        self.send_header("Location", f"/{rest}")
        self.end_headers()

    def _around(self, rest: str) -> None:
        self._moved(f"around/{rest}")

    def _status(self, rest: str) -> None:
        self.send_error(int(rest.partition("/")[0]), "secret words of the server")

    def _cut(self, rest: str) -> None:
        if not (self.web.folder / rest).is_file():
            self.send_error(404)
            return
        data = (self.web.folder / rest).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2])

    def _unfinished(self, _: str) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"part")
        self.rfile.read(1)  # until the client goes

    def _silent(self, rest: str) -> None:
        time.sleep(float(rest.partition("/")[0]))

    def _signed(self, rest: str) -> None:
        parts = urlsplit(rest)
        if parse_qs(parts.query).get("signature") != ["hush"]:
            self.send_error(403)
        else:
            self._as(parts.path)

    def _closed(self, rest: str) -> None:
        if self.headers.get("Authorization") is None:
            self.send_error(401)
        else:
            self._as(rest)

    def _outside(self, rest: str) -> None:
        port = self.web.port
        links = (
            f"http://127.0.0.1:{port}/one.pt.trace.json",
            "/one.pt.trace.json",
            "../one.pt.trace.json",
            "https://example.invalid/x.pt.trace.json",
            "?sort=name",
            "a/b/deep.pt.trace.json",
        )
        page = "".join(f'<a href="{link}">x</a>' for link in links).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page if not rest else b"")

    def _ranged(self, rest: str) -> None:
        data = (self.web.folder / rest).read_bytes()
        asked = (self.headers.get("Range") or "").removeprefix("bytes=")
        first, last = 0, len(data) - 1
        if asked:
            first, last = int(asked.split("-")[0]), min(int(asked.split("-")[1]), last)
        self.send_response(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[first : last + 1])


@contextmanager
def serve(folder: Path) -> Iterator[Web]:
    """Serve a folder on loopback while the block runs."""
    web = Web(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, web))
    server.daemon_threads = True
    web.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
