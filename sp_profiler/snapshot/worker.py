"""Reads one pickle from stdin, admits no globals, and writes plain columns to stdout. Run as a script.

A pickle is a program, and its words for "call this" need a global: one that may name none can only build
numbers, text, lists, tuples and dicts. What such data can still do is exhaust memory or time, or crash the
interpreter (hashing nested tuples); so this runs in a process of its own, under limits it sets itself before
the first byte is read, and hands back columns, never objects.

Only the standard library is imported, and nothing of this package: the process starts in milliseconds and
runs in isolated mode.

Output: `MAGIC`, the length of the header in 8 bytes (big endian), the header as JSON, then the columns in
its order as native int64 arrays. A refusal is a header with `refused` (a kind) and `detail`.
"""

from __future__ import annotations

import gc
import gzip
import io
import json
import os
import pickle
import resource
import sys
from array import array
from typing import Any, BinaryIO

MAGIC = b"SPSNAP1\n"
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "user_defined",
)
EVENT_COLUMNS = (
    "device",
    "action",
    "address",
    "size",
    "stream",
    "time_us",
    "stack",
    "category",
    "label",
    "private",
)
STATES = ("active_allocated", "active_awaiting_free", "inactive")
NONE = -1  # a number or text that the snapshot does not hold
MAX_BYTES = 1 << 42  # of one block or segment; more is no GPU's
MAX_ADDRESS = (1 << 63) - 1 - MAX_BYTES
MAX_DEVICES = 256  # of one process; torch is compiled for fewer
_OPEN_FILES = 16
_FRAMES = 2_000  # of one stack
_TEXT = 2_000  # characters of one text
_PENDING = {"active_pending_free": 1}  # as torch's C++ writer calls it
_GZIP = b"\x1f\x8b"


class Refused(Exception):
    """The pickle is none of a snapshot; `kind` is known to the reading side."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.detail = detail


class PlainUnpickler(pickle.Unpickler):
    """Builds numbers, text, lists, tuples, dicts and sets, and nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise Refused("global", f"{module_name}.{global_name}"[:200])

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("persistent")


class Bounded(io.RawIOBase):
    """A stream that ends with `Refused` after so many bytes: against files that unpack without end."""

    def __init__(self, source: BinaryIO, limit: int) -> None:
        self._source = source
        self._limit = self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._source.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise Refused("inflated", str(self._limit))
        buffer[: len(data)] = data
        return len(data)


class Table:
    """Columns of int64 of equal length; a row is whole or absent."""

    def __init__(self, *names: str) -> None:
        self.columns = {name: array("q") for name in names}
        self._adders = [column.append for column in self.columns.values()]
        self.malformed = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def add(self, *row: Any) -> bool:
        """Append a row; one with what is no int64 is counted as malformed and leaves nothing."""
        length = len(self)
        try:
            for add, value in zip(self._adders, row, strict=True):
                add(value)
        except (TypeError, OverflowError):
            self.malformed += 1
            for column in self.columns.values():
                del column[length:]
            return False
        return True


class Pool:
    """Texts and stacks, each kept once. Everything loaded stays alive, so an id is a name."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.frames = Table("file", "line", "function", "origin")
        self._frame_ids: dict[tuple[int, int, int, int], int] = {}
        self._frame_of: dict[int, int] = {}
        self.stack_frames = array("q")
        self.stack_ends = array("q")
        self._stack_ids: dict[tuple[int, ...], int] = {}
        self._stack_of: dict[int, int] = {}

    def text(self, value: Any) -> int:
        if not isinstance(value, str):
            return NONE
        known = self.texts.get(value)
        if known is None:
            cut = value if len(value) <= _TEXT else value[: _TEXT - 1] + "…"
            known = self.texts.setdefault(cut, len(self.texts))
        return known

    def stack(self, frames: Any) -> int:
        """The number of a list of frames, innermost first; NONE for one that is empty or absent."""
        if not isinstance(frames, (list, tuple)) or not frames:
            return NONE
        known = self._stack_of.get(id(frames))
        if known is None:
            known = self._stack_of[id(frames)] = self._new_stack(frames)
        return known

    def _new_stack(self, frames: Any) -> int:
        of = self._frame_of
        ids = []
        for frame in frames[:_FRAMES]:
            number = of.get(id(frame))
            if number is None:
                number = of[id(frame)] = self._frame(frame)
            if number != NONE:
                ids.append(number)
        if not ids:
            return NONE
        key = tuple(ids)
        known = self._stack_ids.get(key)
        if known is None:
            known = self._stack_ids[key] = len(self.stack_ends)
            self.stack_frames.extend(key)
            self.stack_ends.append(len(self.stack_frames))
        return known

    def _frame(self, frame: Any) -> int:
        if not isinstance(frame, dict):
            return NONE
        line = frame.get("line")
        line = line if isinstance(line, int) and 0 <= line < 1 << 31 else 0
        origin = self.text(frame.get("fx_original_trace"))  # of a compiled graph: where its source stood
        key = (self.text(frame.get("filename")), line, self.text(frame.get("name")), origin)
        known = self._frame_ids.get(key)
        if known is None:
            known = self._frame_ids[key] = len(self.frames)
            self.frames.add(*key)
        return known


def size_of(value: Any) -> int | None:
    """A size that a GPU can have; None (which no column takes) otherwise."""
    return value if isinstance(value, int) and 0 <= value <= MAX_BYTES else None


def address_of(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= MAX_ADDRESS else None


def optional_size(value: Any) -> int:
    known = size_of(value)
    return NONE if known is None else known


def optional_time(value: Any) -> int:
    if isinstance(value, float) and abs(value) < 1 << 53:
        value = int(value)
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else NONE


def pool_of(value: Any) -> tuple[int, int]:
    if isinstance(value, (tuple, list)) and len(value) == 2:
        first, second = value
        if isinstance(first, int) and isinstance(second, int) and max(abs(first), abs(second)) < 1 << 62:
            return first, second
    return NONE, NONE


class Extraction:
    """The columns of one snapshot."""

    def __init__(self, max_events: int) -> None:
        self.pool = Pool()
        self._max_events = max_events
        self.events = Table(*EVENT_COLUMNS)
        self.segments = Table(
            "device", "address", "size", "allocated", "active", "stream", "small", "private", "expandable"
        )
        self.blocks = Table("segment", "address", "size", "requested", "state", "stack", "label")
        self.annotations = Table("device", "time_us", "name", "is_end")
        self.unknown_actions = 0
        self.traces = 0

    def run(self, root: Any) -> dict[str, Any]:
        if isinstance(root, list):  # torch.cuda.memory_snapshot(), and all there was before torch 2.0
            root = {"segments": root}
        if not isinstance(root, dict):
            raise Refused("shape", type(root).__name__)
        segments, traces = root.get("segments"), root.get("device_traces")
        if not isinstance(segments, list) or not (traces is None or isinstance(traces, (list, tuple))):
            raise Refused("shape", "dict")
        if segments and not any(isinstance(one, dict) and "total_size" in one for one in segments):
            raise Refused("shape", "list")
        self.add_segments(segments)
        for device, trace in enumerate(traces or ()):
            if not isinstance(trace, (list, tuple)):
                self.events.malformed += 1
            elif device >= MAX_DEVICES:
                self.events.malformed += len(trace)
            elif trace:
                self.traces += 1
                self.add_trace(device, trace)
        self.add_annotations(root.get("external_annotations"))
        return {
            "has_traces": traces is not None,
            "traces": self.traces,
            "unknown_actions": self.unknown_actions,
            "settings": settings_of(root.get("allocator_settings")),
        }

    def add_segments(self, segments: list[Any]) -> None:
        for segment in segments:
            if not isinstance(segment, dict):
                self.segments.malformed += 1
                continue
            device = segment.get("device", 0)
            number = len(self.segments)
            added = self.segments.add(
                device if isinstance(device, int) and 0 <= device < MAX_DEVICES else None,
                address_of(segment.get("address")),
                size_of(segment.get("total_size")),
                optional_size(segment.get("allocated_size")),
                optional_size(segment.get("active_size")),
                segment.get("stream", 0),
                int(segment.get("segment_type") == "small"),
                int(any(part > 0 for part in pool_of(segment.get("segment_pool_id")))),
                int(segment.get("is_expandable") is True),
            )
            blocks = segment.get("blocks")
            if added and isinstance(blocks, (list, tuple)):
                self.add_blocks(number, self.segments.columns["address"][number], blocks)
            elif added:
                self.blocks.malformed += 1

    def add_blocks(self, segment: int, address: int, blocks: Any) -> None:
        """The blocks of a segment, laid end to end where they tell no address."""
        if len(self.blocks) + len(blocks) > self._max_events:
            raise Refused("events", str(self._max_events))
        for block in blocks:
            if not isinstance(block, dict):
                self.blocks.malformed += 1
                continue
            state = block.get("state")
            size = size_of(block.get("size"))
            place = address_of(block.get("address", address))
            code = _PENDING.get(state) if isinstance(state, str) else None
            if code is None and state in STATES:
                code = STATES.index(state)
            requested, frames = requested_of(block)
            self.blocks.add(
                segment,
                place,
                size,
                requested,
                code,
                self.pool.stack(frames),
                self.pool.text(block.get("user_metadata") or None),
            )
            address = (address if place is None else place) + (size or 0)

    def add_trace(self, device: int, trace: Any) -> None:
        codes = {action: code for code, action in enumerate(ACTIONS)}
        stack, text, add = self.pool.stack, self.pool.text, self.events.add
        if len(self.events) + len(trace) > self._max_events:
            raise Refused("events", str(self._max_events))
        for entry in trace:
            if not isinstance(entry, dict):
                self.events.malformed += 1
                continue
            action = entry.get("action")
            code = codes.get(action) if isinstance(action, str) else None
            if code is None:
                self.unknown_actions += 1
                continue
            place = entry.get("device_free") if code == 7 else entry.get("addr", 0 if code > 7 else None)
            size = entry.get("size", 0)
            add(
                device,
                code,
                optional_size(place) if code == 7 else address_of(place),
                size_of(size),
                entry.get("stream", 0),
                optional_time(entry.get("time_us")),
                stack(entry.get("frames")),
                text(entry.get("category")),
                text(entry.get("user_metadata") or None),
                int(any(part > 0 for part in pool_of(entry.get("pool_id")))),
            )

    def add_annotations(self, annotations: Any) -> None:
        if not isinstance(annotations, (list, tuple)):
            return
        for one in annotations:
            if isinstance(one, dict) and one.get("stage") in ("START", "END"):
                name, time_us = self.pool.text(one.get("name")), optional_time(one.get("time_us"))
                if name != NONE and time_us != NONE:
                    self.annotations.add(one.get("device", 0), time_us, name, int(one["stage"] == "END"))


def requested_of(block: dict[Any, Any]) -> tuple[int, Any]:
    """What the program asked for, and where; before torch 2.1 both stood in the block's `history`."""
    frames = block.get("frames")
    requested = optional_size(block.get("requested_size"))
    history = block.get("history")
    if isinstance(history, (list, tuple)) and history and isinstance(history[0], dict):
        frames = frames or history[0].get("frames")
        if requested == NONE:
            requested = optional_size(history[0].get("real_size"))
    return requested, frames


def settings_of(settings: Any) -> dict[str, Any]:
    """What the allocator was told, as far as the explanations need it."""
    if not isinstance(settings, dict):
        return {}
    kept: dict[str, Any] = {}
    if isinstance(settings.get("expandable_segments"), bool):
        kept["expandable_segments"] = settings["expandable_segments"]
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if isinstance(settings.get(name), str):
            kept["conf"] = settings[name][:_TEXT]
    if isinstance(settings.get("max_split_size"), int) and 0 <= settings["max_split_size"] <= MAX_BYTES:
        kept["max_split_size"] = settings["max_split_size"]
    return kept


def limit(memory_bytes: int, cpu_s: int) -> None:
    """What this process may use from here on. No files can be written and no processes be started."""
    for what, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(what)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # At the soft bound of CPU time comes the signal that says why, at the hard one SIGKILL.
        room = 1 if what == resource.RLIMIT_CPU and least != hard else 0
        resource.setrlimit(what, (least, least + room))


def load(source: BinaryIO, inflated_bytes: int) -> tuple[Any, bool]:
    """The object that the pickle builds, and whether bytes follow it. Raises `Refused`."""
    buffered = io.BufferedReader(source) if isinstance(source, io.RawIOBase) else source
    head = buffered.peek(4)[:4] if isinstance(buffered, io.BufferedReader) else b""
    unpacked = gzip.GzipFile(fileobj=buffered) if head[:2] == _GZIP else buffered
    stream = io.BufferedReader(Bounded(unpacked, inflated_bytes), 1 << 20)  # type: ignore[arg-type]
    first = stream.peek(4)[:4]
    if not first:
        raise Refused("empty")
    if first[:4] == b"PK\x03\x04":
        raise Refused("zip")
    gc.disable()  # only acyclic data can matter here, and collecting over millions of dicts takes minutes
    try:
        root = PlainUnpickler(stream, encoding="utf-8", errors="replace").load()
    except (Refused, MemoryError):
        raise
    except Exception:
        if is_pickle(first):
            raise
        raise Refused("no-pickle") from None
    return root, bool(stream.read(1))


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins so is meant as a pickle: of protocol 2 to 5, or of the older ones."""
    return (head[:1] == b"\x80" and head[1:2] <= b"\x05") or head[:1] in (b"(", b"]", b"}")


def refusal(error: BaseException) -> dict[str, Any]:
    """What to say of an error that reading the pickle raised."""
    if isinstance(error, Refused):
        return {"refused": error.kind, "detail": error.detail}
    if isinstance(error, MemoryError):
        return {"refused": "memory", "detail": ""}
    if isinstance(error, EOFError) or "truncated" in str(error) or "exhausted" in str(error):
        return {"refused": "truncated", "detail": ""}
    return {"refused": "broken", "detail": f"{type(error).__name__}"}


def answer(out: BinaryIO, header: dict[str, Any], columns: list[array[int]]) -> None:
    text = json.dumps(header).encode("ascii")
    out.write(MAGIC + len(text).to_bytes(8, "big") + text)
    for column in columns:
        out.write(memoryview(column).cast("B"))
    out.flush()


def extract(source: BinaryIO, limits: dict[str, int]) -> tuple[dict[str, Any], list[array[int]]]:
    """Header and columns of the snapshot in `source`. Raises `Refused` and whatever the pickle provokes."""
    root, trailing = load(source, limits["inflated_bytes"])
    extraction = Extraction(limits["events"])
    told = extraction.run(root)
    pool = extraction.pool
    tables = {
        "events": extraction.events,
        "segments": extraction.segments,
        "blocks": extraction.blocks,
        "annotations": extraction.annotations,
        "frames": pool.frames,
    }
    layout = [[f"{name}.{key}", len(t)] for name, t in tables.items() for key in t.columns]
    columns = [column for table in tables.values() for column in table.columns.values()]
    layout += [["stacks.frames", len(pool.stack_frames)], ["stacks.ends", len(pool.stack_ends)]]
    header = {
        **told,
        "trailing": trailing,
        "malformed": {name: table.malformed for name, table in tables.items()},
        "texts": list(pool.texts),
        "layout": layout,
    }
    return header, [*columns, pool.stack_frames, pool.stack_ends]


def main() -> None:
    limits: dict[str, int] = json.loads(sys.argv[1])
    out = sys.stdout.buffer
    limit(limits["memory_bytes"], limits["cpu_s"])
    try:
        header, columns = extract(io.FileIO(0), limits)  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - whatever a hostile file provokes is told as a refusal
        gc.enable()
        header, columns = refusal(error), []
    answer(out, header, columns)
    os._exit(0)  # freeing millions of objects one by one would only take time


if __name__ == "__main__":
    main()
