#!/usr/bin/env python3
"""What the dashboard costs: `benchmarks/dashboard.py TRACE...` (a big one: `benchmarks/big_trace.py`).

Of each run: the time to open it the first time and once it is kept, its first view and timeline, and over
many zooms, from the whole trace to single activities, the server's time and the size of an answer as it is
sent. Then, in chromium, how long a page takes until its first view can be read, and what it waits for: in a
browser that was never there and in one that was. Wall time of this machine; say if it was busy.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from plotly.utils import PlotlyJSONEncoder

from dashboards.app import create_app
from dashboards.state import State
from dashboards.store import Opened, Store
from dashboards.views import overview, timeline
from sp_profiler.trace.find import find_runs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from browser_helpers import Page, chromium, find_chromium

Result = TypeVar("Result")
ZOOMS = 200
VISITS = 5
FIRST_VIEW = ("sentence", "bars", "findings")

# Asked in every frame, and noted once the frame in which it is there has been painted. All of it is there
# where `plotly` is: it has then drawn all figures over the bars that stood in their place.
WATCH = """
(() => {
  const wanted = {
    sentence: () => document.querySelector('#content .lead p b'),
    bars: () => document.querySelector('#content .poster .track i, #content .main-svg .bars path'),
    findings: () => document.querySelector('#content [aria-label=Findings] li'),
    plotly: () => {
      const all = [...document.querySelectorAll('#content .drawn')];
      return all.length && all.every((one) => one.querySelector('.main-svg .bars path'));
    },
  };
  window.seen = {};
  const channel = new MessageChannel(); // answers come after the frame, and wait for no other timer
  channel.port1.onmessage = ({ data }) => {
    for (const name of data) window.seen[name] = performance.now();
  };
  const look = () => {
    const there = Object.keys(wanted).filter((name) => wanted[name]());
    there.forEach((name) => delete wanted[name]);
    if (there.length) channel.port2.postMessage(there);
    if (Object.keys(wanted).length) requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})();
"""

# What came when, in ms since the page was asked for.
LANDMARKS = """
(() => {
  const all = performance.getEntriesByType('resource');
  const of = (part) => all.filter((one) => one.name.includes(part));
  const last = (list) => Math.max(...list.map((one) => one.responseEnd));
  const asked = of('_dash-update-component')[0];
  return {
    'first paint': performance.getEntriesByName('first-paint')[0]?.startTime,
    'scripts sent': last(of('.js').filter((one) => one.responseEnd < of('_dash-layout')[0].startTime)),
    'scripts run': of('_dash-layout')[0].startTime,
    'layout drawn': asked.startTime,
    'view answered': asked.responseEnd,
    'kB sent': all.reduce((sum, one) => sum + one.transferSize, 0) / 1e3,
  };
})()
"""


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Milliseconds, and the result."""
    begun = time.perf_counter()
    result = work()
    return (time.perf_counter() - begun) * 1e3, result


def opened(paths: Sequence[str]) -> tuple[Store, Opened]:
    store = Store(lambda: find_runs(paths))
    found = store.ask(store.runs()[0], wait_s=3600)
    assert isinstance(found, Opened), found
    return store, found


def sent(answer: Any) -> bytes:
    return json.dumps(answer, cls=PlotlyJSONEncoder).encode()


def zooms(span_ns: int, seed: int = 1) -> list[State]:
    """Windows of all widths at random places, the whole trace first."""
    pick = random.Random(seed)
    states = [State(view="timeline", t=(0, span_ns))]
    for number in range(ZOOMS):
        width = max(int(span_ns * 0.5 ** (number % 24)), 100)
        start = pick.randrange(max(span_ns - width, 1))
        states.append(State(view="timeline", t=(start, start + width)))
    return states


def one_zoom(store: Store, run: Opened, state: State) -> bytes:
    figure, axis, told = timeline.draw(store, run, state)
    return sent([figure, axis, told])


def measure(paths: Sequence[str]) -> None:
    first_ms, _ = timed(lambda: opened(paths))
    kept_ms, (store, run) = timed(lambda: opened(paths))
    app_ms, _ = timed(lambda: create_app(store))
    view_ms, layout = timed(lambda: sent(overview.layout(store, run, State())))
    lane_ms, _ = timed(lambda: one_zoom(store, run, State(view="timeline")))
    lanes = store.lanes(run, run.ranks[0])
    states = zooms(lanes.span[1] - lanes.span[0])
    answers = [timed(lambda state=state: one_zoom(store, run, state)) for state in states]
    times = sorted(ms for ms, _ in answers)
    sizes = [len(answer) for _, answer in answers]
    print(f"{run.ref.name}: {len(lanes)} activities in the first of {len(run.ranks)} traces")
    print(f"  opened: {first_ms:.0f} ms, then {kept_ms:.0f} ms; the app made: {app_ms:.0f} ms")
    print(f"  overview: {view_ms:.0f} ms, {len(layout) / 1e3:.0f} kB; first timeline: {lane_ms:.0f} ms")
    print(
        f"  {len(times)} zooms: median {statistics.median(times):.1f} ms, 99 % below "
        f"{times[int(len(times) * 0.99)]:.1f} ms, most {times[-1]:.1f} ms; "
        f"largest answer {max(sizes) / 1e3:.0f} kB, median {statistics.median(sizes) / 1e3:.0f} kB"
    )


@contextmanager
def served(path: str) -> Iterator[str]:
    """The address of `sp-profile dashboard PATH`, in a process of its own, once it has read the run."""
    command = [sys.executable, "-m", "sp_profiler", "dashboard", path, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(word for word in server.stdout.readline().split() if word.startswith("http"))
        finally:
            server.terminate()


def visit(page: Page, url: str) -> dict[str, float]:
    """Milliseconds until each part of the first view was painted, and until what comes before it."""
    page.visit(url)
    page.wait_for("window.seen && window.seen.plotly", 120)
    found = {**page.run(LANDMARKS), **page.run("window.seen")}
    found["first view"] = max(found[name] for name in FIRST_VIEW)
    page.visit("about:blank")
    return found


@contextmanager
def browser(executable: str) -> Iterator[Page]:
    """A browser that was never there, at rest. Without the inspector: it makes plotly take half a second
    more, since it wants to know where each function of 5 MB stands whenever one throws."""
    with tempfile.TemporaryDirectory() as profile, chromium(executable, Path(profile)) as page:
        for domain in ("Runtime", "Log", "Network"):
            page.send(f"{domain}.disable")
        page.send("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        time.sleep(1)
        yield page


def measure_pages(path: str, executable: str) -> None:
    """Each visit with a browser of its own, and a second one with the same browser."""
    new: list[dict[str, float]] = []
    known: list[dict[str, float]] = []
    with served(path) as url:
        with browser(executable) as page:
            visit(page, url)  # the run is read
        for _ in range(VISITS):
            with browser(executable) as page:
                new.append(visit(page, url))
                known.append(visit(page, url))
    print(f"  pages, medians of {VISITS} in ms (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores):")
    for name, visits in (("new browser", new), ("known browser", known)):
        times = sorted(one["first view"] for one in visits)
        print(f"    {name}: first view {statistics.median(times):.0f}, {times[0]:.0f} to {times[-1]:.0f}")
        middle = {key: statistics.median(one.get(key) or 0 for one in visits) for key in visits[0]}
        del middle["first view"]
        told = sorted(
            ((key, value) for key, value in middle.items() if key != "kB sent"), key=lambda one: one[1]
        )
        print(
            f"      {', '.join(f'{key} {value:.0f}' for key, value in told)}; {middle['kB sent']:.0f} kB sent"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", metavar="TRACE")
    executable = find_chromium()
    for path in parser.parse_args().paths:
        measure([path])
        if executable is None:
            print("  no chromium: pages not measured")
        else:
            measure_pages(path, executable)


if __name__ == "__main__":
    main()
