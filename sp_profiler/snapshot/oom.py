"""Why an allocation failed: what was asked for, what there was, and who held the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sp_profiler.analysis.memory.blocks import NO_OPERATOR, Blocks
from sp_profiler.analysis.memory.results import OutOfMemory
from sp_profiler.snapshot.frames import StackNames, Told
from sp_profiler.snapshot.history import History
from sp_profiler.snapshot.layout import SMALL_BYTES, SMALL_SEGMENT_BYTES, Layout
from sp_profiler.snapshot.tables import DeviceSnapshot, Ints, Snapshot
from sp_profiler.snapshot.worker.protocol import NONE, OUT_OF_MEMORY

EXPLAINED = 50
"""How many failed allocations of a device are explained, the last ones; a loop that retries makes many."""
_LARGEST_BLOCKS = 20
# From c10/cuda/CUDACachingAllocator.cpp: what is asked of the device for a request that no piece can serve.
_LARGE_SEGMENT_BYTES = 20 << 20  # kLargeBuffer
_OWN_SEGMENT_BYTES = 10 << 20  # kMinLargeAlloc
_SEGMENT_ROUNDING = 2 << 20  # kRoundLarge


def failed_allocations(device: DeviceSnapshot) -> Ints:
    """Positions of the allocations that failed."""
    return np.flatnonzero(device.events.action == OUT_OF_MEMORY)


def explain(
    snapshot: Snapshot, device: DeviceSnapshot, history: History, blocks: Blocks, told: Told
) -> list[OutOfMemory]:
    """The last `EXPLAINED` failed allocations, oldest first; `blocks` are those of `history`, row by row."""
    if not history.usable:
        return [_bare(snapshot, device, told, int(p)) for p in failed_allocations(device)[-EXPLAINED:]]
    layout = Layout(device)
    held = replace(blocks, bytes=history.held)
    found: list[OutOfMemory] = []
    for position in failed_allocations(device)[-EXPLAINED:][::-1].tolist():
        layout.back_to(position)
        found.append(_explained(snapshot, device, history, held, told, layout, position))
    return found[::-1]


def _bare(snapshot: Snapshot, device: DeviceSnapshot, told: Told, position: int) -> OutOfMemory:
    """What the entry itself says."""
    events = device.events
    stack, time_us, free = (int(c[position]) for c in (events.stack, events.time_us, events.address))
    return OutOfMemory(
        time_ns=None if time_us == NONE else time_us * 1000,
        asked_bytes=int(events.size[position]),
        device_free_bytes=None if free == NONE else free,
        allocated_bytes=None,
        reserved_bytes=None,
        reserved_unused_bytes=None,
        largest_unused_bytes=None,
        asked_by=None if stack == NONE else told.sites[told.site[stack]],
        stack=StackNames(snapshot.stacks).shown(stack),
        expandable_segments=snapshot.expandable_segments,
    )


def _explained(
    snapshot: Snapshot,
    device: DeviceSnapshot,
    history: History,
    held: Blocks,
    told: Told,
    layout: Layout,
    position: int,
) -> OutOfMemory:
    bare = _bare(snapshot, device, told, position)
    alive = history.alive_after(position)
    allocated = int(history.held[alive].sum())
    reserved = layout.reserved_bytes
    unused = layout.unused(history, alive)
    stream, private = int(device.events.stream[position]), bool(device.events.private[position])
    usable = unused.usable(bare.asked_bytes, stream, private)
    awaiting = alive[history.free_requested[alive] <= position]
    contradicts = reserved < allocated
    return replace(
        bare,
        allocated_bytes=allocated,
        reserved_bytes=None if contradicts else reserved,
        reserved_unused_bytes=None if contradicts else reserved - allocated,
        largest_unused_bytes=None if contradicts else int(unused.bytes.max(initial=0)),
        largest_usable_bytes=None if contradicts else int(usable.max(initial=0)),
        awaiting_free_bytes=int(history.held[awaiting].sum()),
        by_frame=held.sums(held.made_by, alive, NO_OPERATOR),
        by_category=dict(sorted(held.sums_by_category(alive).items(), key=lambda part: -part[1])),
        largest_blocks=held.shown(held.largest(alive, _LARGEST_BLOCKS)),
        reason=_reason(bare, None if contradicts else int(unused.bytes.sum())),
    )


def _reason(bare: OutOfMemory, unused: int | None) -> str:
    """Whether there was enough in pieces, not enough at all, or enough that this process could not have.

    A request that no piece serves needs a segment of its own from the device, larger than itself.
    """
    free, asked = bare.device_free_bytes, bare.asked_bytes
    if free is not None and free >= segment_bytes(asked):
        return "limit"
    if free is None or unused is None:
        return "unknown"
    return "fragmentation" if unused + free >= asked else "full"


def segment_bytes(asked: int) -> int:
    """What the allocator asks of the device for a request that no unused piece can serve."""
    if asked <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if asked < _OWN_SEGMENT_BYTES:
        return _LARGE_SEGMENT_BYTES
    return -(-asked // _SEGMENT_ROUNDING) * _SEGMENT_ROUNDING
