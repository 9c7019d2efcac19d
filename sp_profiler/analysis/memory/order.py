"""The allocator's events of one device in the order in which the allocator did its work.

Files order events by thread or by the profiler's buffers, and the recorder takes an event's time a moment
after the allocator counted it, so events of two threads may stand in the other order in time. `Total
Allocated` is what the allocator counted under its lock: it tells the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.trace.tables import NONE, Bool, Int32, Int64, MemoryEvents

MOST_BYTES = 1 << 50
"""No device holds a petabyte: larger figures are faults of the file, and their sums would leave int64."""
_AHEAD = 64
"""How many events an event may stand from its place, and ..."""
_AHEAD_NS = 1_000_000
"""... how much later it may be stamped: threads that lose the processor between counting and stamping."""
_SEARCHES = 50_000
"""Beyond so many the totals do not tell an order."""


@dataclass(frozen=True)
class DeviceEvents:
    """Allocations (`bytes` > 0) and frees (< 0) of one device, in the allocator's order."""

    row: Int64  # row of Trace.memory
    time_ns: Int64  # as stamped; may decrease where the totals tell another order
    address: np.ndarray  # uint64, 0 where the file has none
    bytes: Int64
    total: Int64  # the file's total after the event; only where `has_total`
    has_total: Bool
    moved: int  # events that stand elsewhere than their times say
    empty: int  # events of 0 bytes, which neither allocate nor free: left out
    impossible: int  # events of more than MOST_BYTES: left out

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class CheckedTotals:
    """The running total against the file's own.

    After a disagreement the count goes on from the file's figure, so that one missing event counts once.
    """

    checked: int
    disagree: int
    first: int | None  # position of the first event that disagrees
    start_bytes: int | None  # allocated before the first event
    total: Int64  # after each event: the file's own, between them the running sum

    @property
    def trusted(self) -> bool:
        """Whether the totals are what they seem: some recorders write a constant, or count something else."""
        return self.disagree <= self.checked // 2


def device_keys(memory: MemoryEvents) -> list[tuple[int, int]]:
    """(device type, device id) of every device of the file, sorted."""
    keys = np.unique(np.stack((memory.device_type, memory.device_id), axis=1), axis=0)
    return [(int(kind), int(number)) for kind, number in keys]


def device_events(memory: MemoryEvents, key: tuple[int, int]) -> DeviceEvents:
    """The events of one device in the allocator's order.

    By time, equal times in file order; where the totals contradict that and a near event fits, that one
    comes first.
    """
    here = (memory.device_type == key[0]) & (memory.device_id == key[1]) & ~memory.failed
    possible = (memory.bytes < MOST_BYTES) & (memory.bytes > -MOST_BYTES)
    rows = np.flatnonzero(here & possible & (memory.bytes != 0)).astype(np.int64)
    rows = rows[np.argsort(memory.ts_ns[rows], kind="stable")]
    has_total = _has_total(memory, rows)
    moved = 0
    if has_total.all() and len(rows) > 1:
        order = _by_totals(
            memory.ts_ns[rows], memory.bytes[rows], memory.total_allocated[rows], memory.tid[rows]
        )
        moved = int((order != np.arange(len(rows))).sum())
        rows = rows[order]
    return DeviceEvents(
        row=rows,
        time_ns=memory.ts_ns[rows],
        address=memory.address[rows],
        bytes=memory.bytes[rows],
        total=memory.total_allocated[rows],
        has_total=_has_total(memory, rows),
        moved=moved,
        empty=int((here & (memory.bytes == 0)).sum()),
        impossible=int((here & ~possible).sum()),
    )


def _has_total(memory: MemoryEvents, rows: Int64) -> Bool:
    total = memory.total_allocated[rows]
    return (total != NONE) & (total < MOST_BYTES) & (total > -MOST_BYTES)


def _by_totals(time_ns: Int64, sizes: Int64, total: Int64, thread: Int32) -> Int64:
    """The order, as places in the given one, in which each total follows from the one before.

    The order within a thread stays. Only the stretches that disagree are walked; what no near event
    explains stays where it is.
    """
    before = total - sizes
    order = np.arange(len(total), dtype=np.int64)
    bad = np.flatnonzero(before[1:] != total[:-1]) + 1
    if len(bad) > len(total) // 2:
        return order  # totals that mean something else
    reach = 0  # up to here the order was changed, so that every place must be looked at
    searches = 0
    for place in bad.tolist():
        at = max(place, reach)
        while searches < _SEARCHES and at < len(order) and (at == place or at <= reach):
            if before[order[at]] != total[order[at - 1]]:
                searches += 1
                reach = max(reach, _bring_forward(order, at, time_ns, before, total, thread))
            at += 1
    return order


def _bring_forward(order: Int64, at: int, time_ns: Int64, before: Int64, total: Int64, thread: Int32) -> int:
    """Move the nearest event that follows from the one before `at` there, unless more totals disagree then.

    Returns the place after the last one that changed, 0 where nothing did.
    """
    ahead = order[at + 1 : at + 1 + _AHEAD]
    fits = (before[ahead] == total[order[at - 1]]) & (time_ns[ahead] - time_ns[order[at]] <= _AHEAD_NS)
    for step in np.flatnonzero(fits).tolist():
        stop = at + step + 2
        if (thread[order[at : stop - 1]] == thread[ahead[step]]).any():
            continue
        old = order[at - 1 : stop + 1]
        new = old.copy()
        new[1 : step + 3] = np.roll(old[1 : step + 3], 1)
        if _breaks(before, total, new) <= _breaks(before, total, old):
            order[at - 1 : stop + 1] = new
            return stop
    return 0


def _breaks(before: Int64, total: Int64, order: Int64) -> int:
    return int((before[order[1:]] != total[order[:-1]]).sum())


def check_totals(events: DeviceEvents) -> CheckedTotals | None:
    """Compare the running total with the file's at every event that has one; None where none has."""
    known = np.flatnonzero(events.has_total)
    if len(known) == 0:
        return None
    sums = np.cumsum(events.bytes)
    told = events.total[known]
    # The file's total minus our sum: constant as long as both agree.
    offset = told - sums[known]
    broken = np.flatnonzero(offset[1:] != offset[:-1]) + 1
    holds = np.searchsorted(known, np.arange(len(sums)), side="right") - 1
    return CheckedTotals(
        checked=len(known),
        disagree=len(broken),
        first=int(known[broken[0]]) if len(broken) else None,
        start_bytes=int(offset[0]),
        total=sums + offset[np.maximum(holds, 0)],
    )
