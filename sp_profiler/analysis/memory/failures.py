"""Allocations that failed, as the `[OutOfMemory]` instants of a trace tell them."""

from __future__ import annotations

import numpy as np

from sp_profiler.analysis.memory.blocks import BEFORE
from sp_profiler.analysis.memory.composition import Composition
from sp_profiler.analysis.memory.results import OutOfMemory
from sp_profiler.trace.tables import NONE, MemoryEvents


def failed_allocations(
    memory: MemoryEvents, key: tuple[int, int], composition: Composition | None
) -> list[OutOfMemory]:
    """What one device did not give, in order of time, and what held its memory then.

    By operator, where a snapshot tells frames. What the device had left, a trace does not say.
    """
    here = (memory.device_type == key[0]) & (memory.device_id == key[1]) & memory.failed
    rows = np.flatnonzero(here)
    rows = rows[np.argsort(memory.ts_ns[rows], kind="stable")]
    return [_failure(memory, row, composition) for row in rows.tolist()]


def _failure(memory: MemoryEvents, row: int, composition: Composition | None) -> OutOfMemory:
    time = int(memory.ts_ns[row])
    allocated, reserved = _told(memory.total_allocated[row]), _told(memory.total_reserved[row])
    by_operator: dict[str, int] = {}
    by_category: dict[str, int] = {}
    if composition is not None:
        last = int(np.searchsorted(composition.timeline.time_ns, time, side="right")) - 1
        position = max(last, BEFORE)
        by_operator, by_category = composition.by_operator(position), composition.by_category(position)
    return OutOfMemory(
        time_ns=time,
        asked_bytes=abs(int(memory.bytes[row])),
        device_free_bytes=None,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        reserved_unused_bytes=None if allocated is None or reserved is None else reserved - allocated,
        largest_unused_bytes=None,
        by_frame=by_operator,
        by_category=by_category,
    )


def _told(value: int) -> int | None:
    return None if value == NONE else int(value)
