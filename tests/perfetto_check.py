"""A reader of exported traces that shares nothing with the exporter: json, exact decimals, and its own rules.

`read_export` checks what Perfetto asks of a Chrome trace and gives back the added tracks:

* slices (ph X) of an added thread do not overlap, also as Perfetto reads their times: float64 µs, rounded to
  ns, which is exact below 2^53 ns and wrong by up to a step and a half of float64 beyond
* each flow has one start and one end, the start first, both inside a slice of their thread
* a counter has the same series at every point, whole numbers, and its times rise
* processes and threads that are added are named, and the trace itself uses none of them
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

OURS = "sp-profile"
FLOWS = ("s", "t", "f")


@dataclass(frozen=True)
class Bar:
    """A slice of an added track; times are the file's own, in ns."""

    start: int
    end: int
    name: str
    args: dict[str, Any]

    @property
    def dur(self) -> int:
        return self.end - self.start


@dataclass
class Export:
    document: Any
    original: list[dict[str, Any]]  # the events that are not ours
    added: list[dict[str, Any]]
    tracks: dict[str, dict[str, list[Bar]]] = field(default_factory=dict)  # process, thread
    counters: dict[str, dict[str, list[tuple[int, dict[str, int]]]]] = field(default_factory=dict)
    flows: list[tuple[Any, Any]] = field(default_factory=list)  # start and end events

    def bars(self, device: str, track: str) -> list[Bar]:
        """Slices of the tracks of this name and of their further lanes, of the process that ends so."""
        (process,) = [name for name in self.tracks if name.endswith(f", {device}")]
        lanes = self.tracks[process].items()
        bars = [bar for name, bars in lanes for bar in bars if name == track or name.startswith(f"{track} (")]
        return sorted(bars, key=lambda bar: bar.start)


def text_of(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def _refuse(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON")


def strictly_parsed(text: bytes) -> Any:
    """The document as any JSON reader takes it: no NaN, valid UTF-8; numbers exact."""
    return json.loads(text.decode("utf-8"), parse_float=Decimal, parse_constant=_refuse)


def ns_of(micros: Any) -> int:
    exact = Decimal(micros) * 1000
    assert exact == exact.to_integral_value(), f"{micros} µs is no whole number of ns"
    return int(exact)


def safe_gap_ns(micros: Any) -> float:
    """How far apart slices must be that Perfetto may not take for overlapping."""
    exact = ns_of(micros)
    if abs(exact) < 2**53:
        assert round(float(micros) * 1000.0) == exact
        return 0
    return 3 * math.ulp(float(micros)) * 1000


def read_export(path: Path) -> Export:
    """Read and check an exported trace; AssertionError where it is not well formed."""
    document = strictly_parsed(text_of(path))
    events = document["traceEvents"] if isinstance(document, dict) else document
    ours = [event.get("cat") == OURS for event in events]
    first = ours.index(True) if True in ours else len(ours)
    assert all(ours[first:]), "what is added is one stretch at the end"
    export = Export(document, events[:first], events[first:])
    names = _names(export)
    _slices(export, names)
    _counters(export, names)
    _flows(export)
    return export


def _names(export: Export) -> dict[tuple[str, Any], str]:
    """The names of processes (with None) and threads; nothing of the trace is renamed."""
    taken = {
        str(event[key]) for event in export.original for key in ("pid", "tid") if event.get(key) is not None
    }
    processes: dict[Any, str] = {}
    threads: dict[Any, tuple[Any, str]] = {}
    for event in export.added:
        assert event["ph"] in "MXCsf"
        if event["ph"] in "MXC":
            for number in (event["pid"], event["tid"]):
                assert type(number) is int
                assert str(number) not in taken
        if event["ph"] == "M" and event["name"] == "process_name":
            assert event["pid"] not in processes
            processes[event["pid"]] = event["args"]["name"]
        if event["ph"] == "M" and event["name"] == "thread_name":
            assert event["tid"] not in threads
            threads[event["tid"]] = (event["pid"], event["args"]["name"])
    assert len(set(processes.values())) == len(processes)
    sorted_of = {"process_sort_index": "pid", "thread_sort_index": "tid"}
    for what, key in sorted_of.items():
        indices = [(e["pid"], e["args"]["sort_index"]) for e in export.added if e.get("name") == what]
        assert len(set(indices)) == len(indices)
        known = {e[key] for e in export.added if e.get("name") == what}
        assert known == (set(processes) if key == "pid" else set(threads))
    found: dict[tuple[str, Any], str] = {("process", pid): name for pid, name in processes.items()}
    for tid, (pid, name) in threads.items():
        assert pid in processes
        found["thread", (pid, tid)] = name
    return found


def _slices(export: Export, names: dict[tuple[str, Any], str]) -> None:
    for what, key in names:
        if what == "process":
            export.tracks[names[what, key]] = {}
    last: dict[Any, int] = {}
    for what, thread in names:
        if what == "thread":
            tracks = export.tracks[names["process", thread[0]]]
            assert names[what, thread] not in tracks, "tracks of a process have names of their own"
            tracks[names[what, thread]] = []
    for event in export.added:
        if event["ph"] == "X":
            thread = (event["pid"], event["tid"])
            start, dur = ns_of(event["ts"]), ns_of(event["dur"])
            assert dur >= 0
            gap = start - last.get(thread, -(2**70))
            assert gap >= safe_gap_ns(event["ts"]), "slices of a track do not overlap"
            last[thread] = start + dur
            assert list(event["args"]) == ["report"]
            bar = Bar(start, start + dur, event["name"], event["args"]["report"])
            export.tracks[names["process", thread[0]]][names["thread", thread]].append(bar)


def _counters(export: Export, names: dict[tuple[str, Any], str]) -> None:
    for event in export.added:
        if event["ph"] != "C":
            continue
        process = names["process", event["pid"]]
        points = export.counters.setdefault(process, {}).setdefault(event["name"], [])
        assert {type(value) for value in event["args"].values()} == {int}
        now = ns_of(event["ts"])
        if points:
            assert points[-1][0] < now
            assert points[-1][1].keys() == event["args"].keys()
        points.append((now, event["args"]))


def _flows(export: Export) -> None:
    taken = {event["id"] for event in export.original if event.get("ph") in FLOWS and "id" in event}
    ends: dict[Any, list[Any]] = defaultdict(list)
    for event in export.added:
        if event["ph"] in "sf":
            ends[event["id"]].append(event)
    spans = _spans(export) if ends else {}
    for number, pair in ends.items():
        assert number not in taken
        begin, end = pair
        assert (begin["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert begin["name"] == end["name"]
        assert ns_of(begin["ts"]) <= ns_of(end["ts"])
        for event in pair:
            now = ns_of(event["ts"])
            here = spans[str(event["pid"]), str(event["tid"])]
            assert any(low <= now < high for low, high in here.get(now, ())), "a flow is bound to a slice"
        export.flows.append((begin, end))


def _spans(export: Export) -> dict[Any, dict[int, list[tuple[int, int]]]]:
    """For each thread its slices by the instant at which flows may be bound: where one begins, or in it."""
    instants: dict[Any, set[int]] = defaultdict(set)
    for event in export.added:
        if event["ph"] in "sf":
            instants[str(event["pid"]), str(event["tid"])].add(ns_of(event["ts"]))
    spans: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for event in (*export.original, *export.added):
        thread = (str(event.get("pid")), str(event.get("tid")))
        if event.get("ph") == "X" and thread in instants:
            start = ns_of(event["ts"])
            spans[thread].append((start, start + ns_of(event["dur"])))
    found: dict[Any, dict[int, list[tuple[int, int]]]] = {}
    for thread, asked in instants.items():
        by_instant: dict[int, list[tuple[int, int]]] = defaultdict(list)
        queue = sorted(spans[thread])
        active: list[tuple[int, int]] = []
        at = 0
        for now in sorted(asked):
            while at < len(queue) and queue[at][0] <= now:
                active.append(queue[at])
                at += 1
            active = [span for span in active if span[1] > now]
            by_instant[now] = active
        found[thread] = by_instant
    return found
