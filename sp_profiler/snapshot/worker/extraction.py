"""From the plain data of a pickle to the columns of a snapshot; nothing in it is believed unseen."""

from __future__ import annotations

from array import array
from typing import Any

from columns import MAX_TEXT, Pool, Table
from protocol import ACTIONS, AWAITING_FREE, MAX_DEVICES, NONE, OUT_OF_MEMORY, STATES
from unpickling import Refused

MAX_BYTES = 1 << 42  # of one block or segment; more is no GPU's
MAX_ADDRESS = (1 << 63) - 1 - MAX_BYTES
_PENDING = {"active_pending_free": AWAITING_FREE}  # as torch's C++ writer calls it
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


def extract(root: Any, max_events: int) -> tuple[dict[str, Any], list[array[int]]]:
    """Header and columns of what a pickle built. Raises `Refused` for what is no snapshot."""
    extraction = Extraction(max_events)
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
        "malformed": {name: table.malformed for name, table in tables.items()},
        "texts": list(pool.texts),
        "layout": layout,
    }
    return header, [*columns, pool.stack_frames, pool.stack_ends]


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
        """Fills the columns; returns what the header tells beside them. Raises `Refused`."""
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
            if code == OUT_OF_MEMORY:
                place = optional_size(entry.get("device_free"))
            else:  # what comes behind it in ACTIONS has no address
                place = address_of(entry.get("addr", 0 if code > OUT_OF_MEMORY else None))
            add(
                device,
                code,
                place,
                size_of(entry.get("size", 0)),
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
            kept["conf"] = settings[name][:MAX_TEXT]
    if isinstance(settings.get("max_split_size"), int) and 0 <= settings["max_split_size"] <= MAX_BYTES:
        kept["max_split_size"] = settings["max_split_size"]
    return kept
