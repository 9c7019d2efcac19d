"""Tracks as events of the Chrome trace format, in the form that ui.perfetto.dev reads without loss.

Slices are complete events (ph X). Perfetto drops one that begins before another of its thread ends and
ends after it, and it reads times as float64 µs, rounded to ns. That is exact below 2^53 ns. Times of the
epoch lie beyond: there a slice may move by some steps of float64, so that two which only touch may
overlap, and slices that are not a safe distance apart get threads of their own (`exposed`, `exposed (2)`,
...). Our arguments lie under one key, because tools take some names in `args` (stream, device) for a
kernel's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sp_profiler.export.layout import CATEGORY, Layout
from sp_profiler.export.tracks import DeviceTracks, Link, Slice
from sp_profiler.trace.write import ns_to_text

_FIRST_ID = 900_000_001
"""Processes and threads are numbered from here on, far above what systems and devices use."""
_EXACT_NS = 1 << 53
_STEPS_APART = 4
"""Both slices may be read one step of float64 away, and multiplying by 1000 rounds again."""
LINK = "partner"
"""Name of the flow from a collective to what it should hide under."""

_encode = msgspec.json.encode


def events_of(
    devices: Sequence[DeviceTracks], layout: Layout, rank: int | None, base_time_ns: int
) -> Iterator[bytes]:
    """The JSON of every event to add. `base_time_ns` is the file's, which its own times do not hold."""
    writer = _Writer(layout, base_time_ns)
    whose = "rank unknown" if rank is None else f"rank {rank}"
    for place, device in enumerate(devices):
        yield from writer.device(device, f"sp-profile: {whose}, {device.name}", place)


class _Writer:
    def __init__(self, layout: Layout, base_time_ns: int) -> None:
        taken = {*layout.pids, *layout.tids}
        self._numbers = (n for n in itertools.count(_FIRST_ID) if str(n) not in taken)
        self._links = itertools.count(layout.largest_id + 1)
        self._layout = layout
        self._base = base_time_ns

    def device(self, device: DeviceTracks, name: str, place: int) -> Iterator[bytes]:
        pid = next(self._numbers)
        yield _named("process_name", pid, pid, name=name)
        yield _named("process_labels", pid, pid, labels="added by sp-profile export")
        # Above everything else: what the profiler writes has sort indices of 0 and more.
        yield _named("process_sort_index", pid, pid, sort_index=place - 1000)
        for number, track in enumerate(device.tracks):
            lanes: list[tuple[int, int]] = []  # tid, and from when on it is free
            for one in track.slices():
                place = self._lane(one, lanes)
                if place == len(lanes):
                    lanes.append((next(self._numbers), 0))
                    yield from _thread(pid, lanes[-1][0], track.name, place, 100_000 * number + place)
                tid = lanes[place][0]
                lanes[place] = (tid, one.end_ns)
                yield from self._slice(one, pid, tid)
        for counter in device.counters:
            for time_ns, values in counter.points():
                args = dict(zip(counter.series, values, strict=True))
                yield self._event("C", time_ns, pid, pid, name=counter.name, args=args)

    def _lane(self, one: Slice, lanes: Sequence[tuple[int, int]]) -> int:
        """The place of the first lane on which the slice is safe, that of a new one where none is."""
        begins = one.start_ns - self._base
        apart = 0 if abs(begins) < _EXACT_NS else math.ceil(_STEPS_APART * math.ulp(begins / 1000) * 1000)
        return next((i for i, (_, end) in enumerate(lanes) if end + apart <= one.start_ns), len(lanes))

    def _slice(self, one: Slice, pid: int, tid: int) -> Iterator[bytes]:
        dur = msgspec.Raw(ns_to_text(one.end_ns - one.start_ns).encode())
        args = {"report": one.args}
        yield self._event("X", one.start_ns, pid, tid, dur=dur, name=one.name, args=args)
        if one.link is not None:
            yield from self._flow(one, one.link, pid, tid)

    def _flow(self, one: Slice, link: Link, pid: int, tid: int) -> Iterator[bytes]:
        """Both ends stand where a slice begins, so no rounding moves them out; the earlier is first."""
        ours = (one.start_ns, pid, tid)
        theirs = (
            link.start_ns,
            self._layout.pids.get(link.pid, link.pid),
            self._layout.tids.get(link.tid, link.tid),
        )
        first, last = (ours, theirs) if one.start_ns <= link.start_ns else (theirs, ours)
        number = next(self._links)
        yield self._event("s", *first, name=LINK, id=number)
        yield self._event("f", *last, name=LINK, id=number, bp="e")

    def _event(self, phase: str, time_ns: int, pid: Any, tid: Any, **more: Any) -> bytes:
        time = msgspec.Raw(ns_to_text(time_ns - self._base).encode())
        return _encode({"ph": phase, "cat": CATEGORY, "ts": time, "pid": pid, "tid": tid, **more})


def _thread(pid: int, tid: int, name: str, lane: int, sort_index: int) -> Iterator[bytes]:
    yield _named("thread_name", pid, tid, name=name if lane == 0 else f"{name} ({lane + 1})")
    yield _named("thread_sort_index", pid, tid, sort_index=sort_index)


def _named(what: str, pid: int, tid: int, **args: Any) -> bytes:
    return _encode({"ph": "M", "cat": CATEGORY, "name": what, "ts": 0, "pid": pid, "tid": tid, "args": args})
