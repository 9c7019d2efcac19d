"""A real chromium, driven over the DevTools protocol through a pair of pipes.

`--remote-debugging-pipe` speaks the protocol on file descriptors 3 and 4 (JSON, ended by a null byte),
so no port, no driver program and no websocket client is needed, and a page can be clicked, not only
loaded.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    # One process draws all pages, one after the other: otherwise each starts another, which compiles the
    # page's scripts again (a fifth of all CPU time).
    "--renderer-process-limit=1",
    "--disable-site-isolation-trials",
    "--disable-features=BackForwardCache,SpareRendererForSitePerProcess",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Page:
    """One tab. `problems` collects exceptions, console errors, and refusals by the content policy."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self.session: str | None = None
        self.problems: list[str] = []
        self.requests: list[str] = []

    def send(self, method: str, timeout_s: float = 60, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + timeout_s
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _receive(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            if not chunk:
                raise AssertionError(f"the browser did not answer {what}")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        method = event.get("method")
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"][:80])

    def open(self, path: Path) -> None:
        self.problems.clear()
        self.requests.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")

    def visit(self, url: str) -> None:
        """Open an address; what came before is forgotten, with what it was still asking for."""
        self.send("Page.navigate", url="about:blank")
        self.wait_for("location.href === 'about:blank'")
        self.problems.clear()
        self.requests.clear()
        self.send("Page.navigate", url=url)
        self.wait_for(
            f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url[:30])})"
        )

    def mouse(self, kind: str, x: float, y: float) -> None:
        """A mouse event at a point of the page: `mouseMoved`, `mousePressed`, `mouseReleased`."""
        button = "none" if kind == "mouseMoved" else "left"
        clicks = 0 if kind == "mouseMoved" else 1
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=clicks)

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def show(self, text: str, folder: Path, scheme: str = "light") -> None:
        """Open a report's page, given as its text, and wait until its figures are drawn."""
        path = folder / "page.html"
        path.write_text(text, encoding="utf-8")
        self.media(scheme)
        self.open(path)
        self.wait_for("document.documentElement.dataset.plots")
        assert self.run("document.documentElement.dataset.plots") == "drawn", self.problems

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression (promises awaited)."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, condition: str, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > deadline:
                raise AssertionError(f"never became true: {condition}; problems: {self.problems}")
            time.sleep(0.05)

    def media(self, scheme: str, *, printing: bool = False) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media="print" if printing else "screen", features=features)

    def size(self, width: int, height: int = 900) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def chromium(executable: str, profile: Path) -> Iterator[Page]:
    """A browser with an empty profile and one page; ended, with all its processes, on leaving."""
    child_in, to_browser = os.pipe()
    from_browser, child_out = os.pipe()

    def place_pipes() -> None:
        # Copies first: one of the two may already sit where the other has to go.
        reading, writing = os.dup(child_in), os.dup(child_out)
        os.dup2(reading, 3)
        os.dup2(writing, 4)

    process = subprocess.Popen(
        [executable, *FLAGS, f"--user-data-dir={profile}"],
        preexec_fn=place_pipes,
        close_fds=False,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(child_in)
    os.close(child_out)
    try:
        page = Page(to_browser, from_browser)
        target = page.send("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.send(f"{domain}.enable")
        page.size(1360)
        yield page
    finally:
        _end(process, to_browser, from_browser)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One browser for the tests of a file that imports this name."""
    executable = find_chromium()
    if executable is None:
        pytest.skip("no chromium on this machine")
    with chromium(executable, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def _end(process: subprocess.Popen[bytes], *pipes: int) -> None:
    """Closing the pipe ends the browser; its own process group is killed if that does not."""
    for pipe in pipes:
        os.close(pipe)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(timeout=10)
