"""Tracks as events of the Chrome trace format, in the form that ui.perfetto.dev reads without loss.

Slices are pairs of begin and end events (ph B, E), not complete ones (ph X). Perfetto reads the µs of an
event as float64 and cuts them to ns, so that of two complete events that touch the second may begin before
the first ends; one of them is then dropped. Begin and end of one instant stay in the order of the file. And
what reads activities (HTA, this tool) reads complete events only: it finds in the new file what it found in
the old.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sp_profiler.export.layout import CATEGORY, Layout
from sp_profiler.export.tracks import DeviceTracks, Link, Slice
from sp_profiler.trace.write import ns_to_text

_FIRST_ID = 900_000_001
"""Processes and threads are numbered from here on, far above what systems and devices use."""
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
            tid = next(self._numbers)
            yield _named("thread_name", pid, tid, name=track.name)
            yield _named("thread_sort_index", pid, tid, sort_index=number)
            for one in track.slices():
                yield from self._slice(one, pid, tid)
        for counter in device.counters:
            for time_ns, values in counter.points():
                args = dict(zip(counter.series, values, strict=True))
                yield self._event("C", time_ns, pid, pid, name=counter.name, args=args)

    def _slice(self, one: Slice, pid: int, tid: int) -> Iterator[bytes]:
        yield self._event("B", one.start_ns, pid, tid, name=one.name, args=one.args)
        if one.link is not None:
            yield from self._flow(one, one.link, pid, tid)
        yield self._event("E", one.end_ns, pid, tid)

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


def _named(what: str, pid: int, tid: int, **args: Any) -> bytes:
    return _encode({"ph": "M", "cat": CATEGORY, "name": what, "ts": 0, "pid": pid, "tid": tid, "args": args})
