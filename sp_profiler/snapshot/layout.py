"""How the allocator's segments lay at an instant, and which pieces of them nobody used."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sp_profiler.snapshot.history import History
from sp_profiler.snapshot.tables import DeviceSnapshot, Ints
from sp_profiler.snapshot.worker.protocol import SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP
from sp_profiler.trace.tables import Bool

SMALL_BYTES = 1 << 20
"""Requests up to this come from the pool of small blocks (kSmallSize of the allocator)."""
SMALL_SEGMENT_BYTES = 2 << 20
"""Segments of that pool (kSmallBuffer)."""


@dataclass(frozen=True)
class Segment:
    size: int
    stream: int
    small: bool
    private: bool
    expandable: bool


@dataclass(frozen=True)
class Unused:
    """Pieces of segments without a block, one value each."""

    bytes: Ints
    stream: Ints
    small: Bool
    private: Bool

    def usable(self, asked: int, stream: int, private: bool) -> Ints:
        """Sizes of the pieces that a request may have: of its stream, its pool, and its kind of size."""
        fits = (self.stream == stream) & (self.private == private) & (self.small == (asked <= SMALL_BYTES))
        return self.bytes[fits]


class Layout:
    """The segments of a device, walked from the end backwards."""

    def __init__(self, device: DeviceSnapshot) -> None:
        self._events = device.events
        self._left = np.flatnonzero(
            (device.events.action >= SEGMENT_ALLOC) & (device.events.action <= SEGMENT_UNMAP)
        ).tolist()
        columns = device.segments
        rows = zip(
            columns.address.tolist(),
            columns.size.tolist(),
            columns.stream.tolist(),
            columns.small.tolist(),
            columns.private.tolist(),
            columns.expandable.tolist(),
            strict=True,
        )
        self._at = {a: Segment(s, st, bool(sm), bool(p), bool(e)) for a, s, st, sm, p, e in rows}
        self._starts = sorted(self._at)

    def back_to(self, position: int) -> None:
        """Undo the segment events after a position; positions must be asked for from last to first."""
        while self._left and self._left[-1] > position:
            self._undo(self._left.pop())

    def _undo(self, position: int) -> None:
        events = self._events
        action, address, size = (
            int(events.action[position]),
            int(events.address[position]),
            int(events.size[position]),
        )
        if action in (SEGMENT_ALLOC, SEGMENT_MAP):
            self._take_out(address, address + size)
            return
        self._put(
            address,
            Segment(
                size,
                int(events.stream[position]),
                size <= SMALL_SEGMENT_BYTES and action == SEGMENT_FREE,
                bool(events.private[position]),
                action == SEGMENT_UNMAP,
            ),
        )

    def _put(self, address: int, segment: Segment) -> None:
        if segment.size and address not in self._at:
            self._starts.insert(bisect_right(self._starts, address), address)
            self._at[address] = segment

    def _take_out(self, start: int, end: int) -> None:
        """Remove a range; of what it cuts, the rest stays."""
        place = max(bisect_right(self._starts, start) - 1, 0)
        while place < len(self._starts) and self._starts[place] < end:
            address = self._starts[place]
            one = self._at[address]
            if address + one.size <= start:
                place += 1
                continue
            del self._starts[place], self._at[address]
            for low, high in ((address, start), (end, address + one.size)):
                if low < high:
                    kept = Segment(high - low, one.stream, one.small, one.private, one.expandable)
                    self._put(low, kept)
                    place += low < start

    def _joined(self) -> Iterator[tuple[int, Segment]]:
        """The segments by address, neighbouring mappings of one expandable segment as one."""
        last: tuple[int, Segment] | None = None
        for address in self._starts:
            one = self._at[address]
            if (
                last is not None
                and last[1].expandable
                and one.expandable
                and last[0] + last[1].size == address
                and last[1].stream == one.stream
            ):
                size = last[1].size + one.size
                last = last[0], Segment(size, one.stream, last[1].small, last[1].private, True)
                continue
            if last is not None:
                yield last
            last = address, one
        if last is not None:
            yield last

    @property
    def reserved_bytes(self) -> int:
        return sum(one.size for one in self._at.values())

    def unused(self, history: History, alive: Ints) -> Unused:
        """The pieces without a block when these blocks are alive."""
        segments = list(self._joined())
        starts = np.array([address for address, _ in segments], dtype=np.int64)
        ends = starts + np.array([one.size for _, one in segments], dtype=np.int64)
        order = alive[np.argsort(history.address[alive], kind="stable")]
        low, high = history.address[order], history.address[order] + history.held[order]
        of = np.searchsorted(starts, low, side="right") - 1
        inside = of >= 0
        inside[inside] = low[inside] < ends[of[inside]]
        low, high, of = low[inside], high[inside], of[inside]
        # The ends of what is taken and the starts of what comes next, within each segment.
        everywhere = np.arange(len(segments))
        piece_from = np.concatenate((starts, high))
        piece_to = np.concatenate((low, ends))
        from_of, to_of = np.concatenate((everywhere, of)), np.concatenate((of, everywhere))
        by_from = np.lexsort((piece_from, from_of))
        by_to = np.lexsort((piece_to, to_of))
        sizes = np.maximum(piece_to[by_to] - piece_from[by_from], 0)
        owner = from_of[by_from]
        kept = sizes > 0
        return Unused(
            sizes[kept],
            np.array([one.stream for _, one in segments], dtype=np.int64)[owner[kept]],
            np.array([one.small for _, one in segments], dtype=np.bool_)[owner[kept]],
            np.array([one.private for _, one in segments], dtype=np.bool_)[owner[kept]],
        )
