"""A small model of torch's caching allocator that writes what `torch.cuda.memory._snapshot()` would.

It knows the truth: live and reserved bytes after each event. Sizes are rounded up to 512, requests up to
1 MiB come from segments of 2 MiB, larger ones from 20 MiB or a segment of their own; pieces are split and
joined. `expandable` maps pages of 2 MiB at the end of one range instead.
"""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sp_profiler.analysis.memory.results import MemoryFigures
from sp_profiler.ledger import LedgerEntry
from sp_profiler.snapshot.analyze import analyze_snapshot
from sp_profiler.snapshot.read import read_snapshot

MIB = 1 << 20
Frame = dict[str, Any]


def frame(name: str, file: str = "/home/me/train.py", line: int = 1) -> Frame:
    return {"name": name, "filename": file, "line": line}


def native(name: str) -> Frame:
    return {"name": name, "filename": "??", "line": 0}


TORCH = "/venv/lib/python3.11/site-packages/torch"
MAIN = frame("main", line=90)
CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1773)
ENGINE = native("torch::autograd::Engine::evaluate_function(...)")
NODE = native("torch::autograd::generated::MmBackward0::apply(...)")
EMPTY = native("at::detail::empty_generic(...)")
STEP = frame("step", f"{TORCH}/optim/adam.py", 223)


def forward(name: str = "forward", line: int = 10, file: str = "/home/me/model.py") -> list[Frame]:
    """Innermost first, as torch writes stacks."""
    return [
        EMPTY,
        frame("forward", f"{TORCH}/nn/modules/linear.py", 125),
        CALL,
        frame(name, file, line),
        CALL,
        MAIN,
    ]


def backward() -> list[Frame]:
    return [EMPTY, NODE, ENGINE]


def optimizer(name: str = "_init_group") -> list[Frame]:
    return [EMPTY, frame(name, f"{TORCH}/optim/adam.py", 187), STEP, frame("main", line=99)]


@dataclass
class Piece:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: list[Frame] = field(default_factory=list)


@dataclass
class Segment:
    address: int
    stream: int
    small: bool
    expandable: bool
    pieces: list[Piece]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


class Allocator:
    """One device. `events` and, in step with it, `live` and `reserved` after each."""

    def __init__(self, device: int = 0, *, expandable: bool = False, capacity: int = 1 << 40) -> None:
        self.device = device
        self.expandable = expandable
        self.capacity = capacity
        self.segments: list[Segment] = []
        self.events: list[dict[str, Any]] = []
        self.live: list[int] = []
        self.reserved: list[int] = []
        self._next_address = 0x7F00_0000_0000
        self._time_us = 1_700_000_000_000_000

    def alloc(self, size: int, frames: list[Frame] = [MAIN], stream: int = 0, **more: Any) -> int | None:  # noqa: B006
        """The address, or None where the device is full (an `oom` event)."""
        rounded = max(-(-size // 512) * 512, 512)
        small = rounded <= MIB
        found = self._free_piece(rounded, stream, small) or self._grown(rounded, stream, small, frames)
        if found is None:
            held = sum(segment.size for segment in self.segments)
            self._record("oom", None, rounded, frames, stream, device_free=self.capacity - held)
            return None
        segment, piece = found
        left = piece.size - rounded
        if left >= (512 if small else MIB + 1) or (left and self.expandable):
            rest = Piece(piece.address + rounded, left)
            segment.pieces.insert(segment.pieces.index(piece) + 1, rest)
            piece.size = rounded
        piece.requested, piece.state, piece.frames = size, "active_allocated", frames
        self._record("alloc", piece.address, size, frames, stream, **more)
        return piece.address

    def free(self, address: int, frames: list[Frame] = [MAIN], *, completed: bool = True) -> None:  # noqa: B006
        segment, piece = self._piece(address)
        piece.state = "active_awaiting_free"
        self._record("free_requested", address, piece.requested, frames, segment.stream)
        if completed:
            self.complete(address, frames)

    def complete(self, address: int, frames: list[Frame] = [MAIN]) -> None:  # noqa: B006
        segment, piece = self._piece(address)
        size, piece.state, piece.requested, piece.frames = piece.requested, "inactive", 0, []
        at = segment.pieces.index(piece)
        for other in (at + 1, at - 1):
            if 0 <= other < len(segment.pieces) and segment.pieces[other].state == "inactive":
                low, high = min(at, other), max(at, other)
                segment.pieces[low].size += segment.pieces[high].size
                del segment.pieces[high]
                at = low
        self._record("free_completed", address, size, frames, segment.stream)

    def empty_cache(self) -> None:
        for segment in list(self.segments):
            if all(piece.state == "inactive" for piece in segment.pieces):
                self.segments.remove(segment)
                action = "segment_unmap" if segment.expandable else "segment_free"
                self._record(action, segment.address, segment.size, [], segment.stream)

    def _free_piece(self, size: int, stream: int, small: bool) -> tuple[Segment, Piece] | None:
        fitting = [
            (piece.size, piece.address, segment, piece)
            for segment in self.segments
            if segment.stream == stream and segment.small == small
            for piece in segment.pieces
            if piece.state == "inactive" and piece.size >= size
        ]
        return min(fitting, key=lambda one: one[:2])[2:] if fitting else None

    def _grown(
        self, size: int, stream: int, small: bool, frames: list[Frame]
    ) -> tuple[Segment, Piece] | None:
        own = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.expandable:
            own = -(-size // (2 * MIB)) * 2 * MIB
        if sum(segment.size for segment in self.segments) + own > self.capacity:
            self.empty_cache()
        if sum(segment.size for segment in self.segments) + own > self.capacity:
            return None
        if self.expandable:
            return self._mapped(own, stream, small, frames)
        piece = Piece(self._next_address, own)
        segment = Segment(piece.address, stream, small, False, [piece])
        self._next_address += own + 64 * MIB
        self.segments.append(segment)
        self._record("segment_alloc", segment.address, own, frames, stream)
        return segment, piece

    def _mapped(self, size: int, stream: int, small: bool, frames: list[Frame]) -> tuple[Segment, Piece]:
        """Pages at the end of this stream's range; what was unused before them joins."""
        segment = next((s for s in self.segments if s.stream == stream and s.small == small), None)
        if segment is None:
            segment = Segment(self._next_address, stream, small, True, [])
            self._next_address += 1 << 36
            self.segments.append(segment)
        at = segment.address + segment.size
        last = segment.pieces[-1] if segment.pieces else None
        if last is not None and last.state == "inactive":
            last.size += size
        else:
            last = Piece(at, size)
            segment.pieces.append(last)
        self._record("segment_map", at, size, frames, stream)
        return segment, last

    def _piece(self, address: int) -> tuple[Segment, Piece]:
        return next((s, p) for s in self.segments for p in s.pieces if p.address == address)

    def _record(
        self, action: str, address: int | None, size: int, frames: list[Frame], stream: int, **more: Any
    ) -> None:
        self._time_us += 3
        entry = {"action": action, "size": size, "stream": stream, "time_us": self._time_us, **more}
        if address is not None:
            entry["addr"] = address
        if frames:
            entry["frames"] = frames
        self.events.append(entry)
        pieces = [piece for segment in self.segments for piece in segment.pieces]
        self.live.append(sum(piece.requested for piece in pieces if piece.state != "inactive"))
        self.reserved.append(sum(piece.size for piece in pieces))

    def end_segments(self) -> list[dict[str, Any]]:
        return [
            {
                "device": self.device,
                "address": one.address,
                "total_size": one.size,
                "allocated_size": sum(p.size for p in one.pieces if p.state == "active_allocated"),
                "active_size": sum(p.size for p in one.pieces if p.state != "inactive"),
                "requested_size": sum(p.requested for p in one.pieces if p.state != "inactive"),
                "stream": one.stream,
                "segment_type": "small" if one.small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": one.expandable,
                "frames": [],
                "blocks": [
                    {
                        "address": piece.address,
                        "size": piece.size,
                        "requested_size": piece.requested,
                        "state": piece.state,
                        "frames": piece.frames,
                    }
                    for piece in one.pieces
                ],
            }
            for one in self.segments
        ]


def snapshot(*allocators: Allocator, last: int | None = None, **more: Any) -> dict[str, Any]:
    """The snapshot of these devices; `last` keeps that many events of each, as the ring buffer does."""
    devices = max((one.device for one in allocators), default=-1) + 1
    traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
    for one in allocators:
        traces[one.device] = one.events[len(one.events) - last :] if last is not None else one.events
    expandable = any(one.expandable for one in allocators)
    return {
        "segments": [segment for one in allocators for segment in one.end_segments()],
        "device_traces": traces,
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "max_split_size": -1,
            "expandable_segments": expandable,
        },
        "external_annotations": [],
        **more,
    }


def write(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


_number = itertools.count()


def must(address: int | None) -> int:
    assert address is not None
    return address


def figures(place: Path, content: object) -> tuple[MemoryFigures, tuple[LedgerEntry, ...]]:
    """Of a snapshot with one device, written to this file or into this folder."""
    path = write(place / f"{next(_number)}.pickle" if place.is_dir() else place, content)
    (one,), ledger = analyze_snapshot(read_snapshot(str(path)))
    return one, ledger
