#!/usr/bin/env python3
"""What the dashboard costs: `benchmarks/dashboard.py TRACE...` (a big one: `benchmarks/big_trace.py`).

Of each run: the time to open it the first time and once it is kept, its first view and timeline, and over
many zooms, from the whole trace to single activities, the server's time and the size of an answer as it is
sent. Wall time of this machine; say if it was busy.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from plotly.utils import PlotlyJSONEncoder

from dashboards.app import create_app
from dashboards.state import State
from dashboards.store import Opened, Store
from dashboards.views import overview, timeline
from sp_profiler.trace.find import find_runs

Result = TypeVar("Result")
ZOOMS = 200


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", metavar="TRACE")
    for path in parser.parse_args().paths:
        measure([path])


if __name__ == "__main__":
    main()
