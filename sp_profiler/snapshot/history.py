"""The blocks of one device, from the history and from what the allocator held at its end.

The end is the truth: recording mostly begins after the model was built, and a ring buffer forgets the oldest
events, so live bytes before an event are those after it with the event undone. Counted from blocks that is
the same: what is alive at the end and was not allocated in the history was alive all the time, and what is
freed without an allocation was alive from before until then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.memory.blocks import BEFORE
from sp_profiler.snapshot.tables import DeviceSnapshot, Events, Ints
from sp_profiler.snapshot.worker.protocol import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    INACTIVE,
    NONE,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
)
from sp_profiler.trace.tables import Bool

ROUNDING = 512
"""The allocator hands out multiples of this (kMinBlockSize in c10/cuda/CUDACachingAllocator.cpp)."""


@dataclass(frozen=True)
class History:
    """Blocks as columns, in order of birth; positions are places among the device's events.

    A block lives until its free is *completed*: one that another stream still uses cannot be had by others.
    `bytes` is what the program asked for, `held` what the allocator set aside for it: its own figure where
    the block is alive at the end, else `bytes` rounded up to 512 (where all its sizes and addresses are).
    """

    events: int  # at least 1
    bytes: Ints
    held: Ints
    address: Ints
    birth: Ints  # BEFORE for what was alive when the history begins
    death: Ints  # `events` for what is alive at the end
    free_requested: Ints  # position, `events` where nobody asked yet
    made: Ints  # number of the stack of the allocation
    freed: Ints  # number of the stack of the free
    category: Ints  # number of a text: torch's own word for the tensor, of its memory profiler
    label: Ints  # number of a text: the program's own (`_set_memory_metadata`)
    free_missing: Bool  # ended by an allocation of its address
    freed_twice: Ints  # positions of frees of an address that was free already
    lost: int  # blocks without a free that are not there at the end
    appeared: int  # blocks at the end whose address was freed last
    sizes_differ: int  # blocks of another size at the end, or at their free, than when they were allocated
    usable: bool  # False: allocations or frees were not recorded, so that only the end is known

    def __len__(self) -> int:
        return len(self.bytes)

    def alive_after(self, position: int) -> Ints:
        return np.flatnonzero((self.birth <= position) & (position < self.death))


@dataclass(frozen=True)
class _Groups:
    """Events of one address from one allocation to the next (or to the end): one block each."""

    head: Ints  # position of the first event
    is_made: Bool  # it begins with its allocation
    requested: Ints  # position of the first request to free it, or -1
    completed: Ints  # position of the first completed free, or -1
    is_last: Bool  # of its address
    successor: Ints  # position of the allocation that follows at the same address
    freed_twice: Ints


def blocks_of(device: DeviceSnapshot) -> History:
    """Pair the history of a device with what it held at the end."""
    events = device.events
    kinds = np.bincount(events.action, minlength=3)
    usable = bool(kinds[ALLOC]) and bool(kinds[FREE_REQUESTED] + kinds[FREE_COMPLETED])
    if not usable and kinds[:3].any():
        usable = bool(kinds[ALLOC]) and _all_there(device)
    count = max(len(events.action), 1)  # without a history the snapshot itself is the only event
    groups = _grouped(events) if usable else None
    return _joined(device, groups, count, usable or not kinds[:3].any())


def _all_there(device: DeviceSnapshot) -> bool:
    """Whether all that was allocated is there at the end, so that nothing was freed."""
    made = device.events.address[device.events.action == ALLOC]
    active = device.blocks.address[device.blocks.state != INACTIVE]
    return len(np.unique(made)) == len(made) and bool(np.isin(made, active).all())


def _grouped(events: Events) -> _Groups:
    rows = np.flatnonzero(events.action <= FREE_COMPLETED)
    order = rows[np.argsort(events.address[rows], kind="stable")]
    action, address = events.action[order], events.address[order]
    new = np.append(True, address[1:] != address[:-1])
    starts = np.flatnonzero(new | (action == ALLOC))
    far = len(order)
    places = np.arange(far)
    first = {
        kind: np.minimum.reduceat(np.where(action == kind, places, far), starts)
        for kind in (FREE_REQUESTED, FREE_COMPLETED)
    }
    last = np.append(new[starts[1:]], True)
    of_row = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, far)))
    again = (action == FREE_COMPLETED) & (places != first[FREE_COMPLETED][of_row])
    position = np.append(order, NONE)
    return _Groups(
        head=order[starts],
        is_made=action[starts] == ALLOC,
        requested=position[first[FREE_REQUESTED]],
        completed=position[first[FREE_COMPLETED]],
        is_last=last,
        successor=np.append(order[starts[1:]], NONE),
        freed_twice=np.sort(order[again]),
    )


def _joined(device: DeviceSnapshot, groups: _Groups | None, count: int, usable: bool) -> History:
    """Blocks of the history, then those known only from the end."""
    events, end = device.events, device.blocks
    active = np.flatnonzero(end.state != INACTIVE)
    active = active[np.argsort(end.address[active], kind="stable")]
    active = active[np.append(True, np.diff(end.address[active]) != 0)] if len(active) else active
    if groups is None:
        born = np.full(len(active), BEFORE, dtype=np.int64)
        return _from_end(device, active, born, count, usable)
    address = events.address[groups.head]
    was_completed, was_requested = groups.completed != NONE, groups.requested != NONE
    # Without completed frees (skipped, or not yet: another stream) the request is all there is to go by.
    by_request = ~was_completed & was_requested & ~groups.is_last
    missing = ~was_completed & ~was_requested & ~groups.is_last
    death = np.select(
        [was_completed, by_request, missing], [groups.completed, groups.requested, groups.successor], count
    )
    open_ = death == count
    place = np.searchsorted(end.address[active], address)
    there = np.append(end.address[active], NONE)[place] == address
    ends = np.where(open_ & there, np.append(active, NONE)[place], NONE)
    vanished = open_ & ~there
    death[vanished & was_requested] = groups.requested[vanished & was_requested]
    lost = vanished & ~was_requested
    death[lost] = np.maximum(count - 1, groups.head[lost])
    sizes, held, differ = _sizes(events.size[groups.head], address, ends, device)
    freed_size = np.append(events.size, NONE)[np.where(was_completed, groups.completed, groups.requested)]
    # A free may tell what the allocator held instead: that is more, and a multiple of its rounding.
    as_held = (freed_size > sizes) & (freed_size % ROUNDING == 0)
    contradicts = groups.is_made & (freed_size != NONE) & (freed_size != sizes) & ~as_held
    differ += int(contradicts.sum())
    made = np.where(groups.is_made, events.stack[groups.head], NONE)
    made = np.where(made == NONE, np.append(end.stack, NONE)[ends], made)
    birth = np.where(groups.is_made, groups.head, BEFORE)
    asked = np.where(was_requested, groups.requested, np.where(was_completed, groups.completed, count))
    freed = np.where(asked < count, np.append(events.stack, NONE)[asked], NONE)
    label = np.where(groups.is_made, events.label[groups.head], NONE)
    from_history = History(
        events=count,
        bytes=sizes,
        held=held,
        address=address,
        birth=birth,
        death=death,
        free_requested=asked,
        made=made,
        freed=freed,
        category=np.where(groups.is_made, events.category[groups.head], NONE),
        label=np.where(label == NONE, np.append(end.label, NONE)[ends], label),
        free_missing=missing,
        freed_twice=groups.freed_twice,
        lost=int(lost.sum()),
        appeared=0,
        sizes_differ=differ,
        usable=True,
    )
    rest = np.setdiff1d(active, ends[ends != NONE])
    last = _last_death(address, death, end.address[rest])
    others = _from_end(device, rest, last, count, True)
    return _concatenated(from_history, others)


def _sizes(asked: Ints, address: Ints, ends: Ints, device: DeviceSnapshot) -> tuple[Ints, Ints, int]:
    """Bytes asked for, bytes held, and how many blocks at the end contradict their allocation."""
    end = device.blocks
    rounded = asked
    if not (end.size % ROUNDING).any() and not (address % ROUNDING).any():
        rounded = np.maximum(-(-asked // ROUNDING) * ROUNDING, ROUNDING)
    if not len(end.size):
        return asked, rounded, 0
    there = ends != NONE
    size, requested = end.size[ends], end.requested[ends]
    differs = there & (requested != NONE) & (requested != asked) & (size != asked)
    return np.where(differs, requested, asked), np.where(there, size, rounded), int(differs.sum())


def _last_death(address: Ints, death: Ints, wanted: Ints) -> Ints:
    """For each wanted address where its last block of the history died, BEFORE where there was none."""
    last: dict[int, int] = {}
    if len(wanted):
        here = np.isin(address, wanted)
        for place, when in zip(address[here].tolist(), death[here].tolist(), strict=True):
            last[place] = max(when, last.get(place, BEFORE))
    return np.array([last.get(place, BEFORE) for place in wanted.tolist()], dtype=np.int64)


def _from_end(device: DeviceSnapshot, rows: Ints, birth: Ints, count: int, usable: bool) -> History:
    """Blocks that only the end tells of."""
    end = device.blocks
    size, requested = end.size[rows], end.requested[rows]
    none = np.full(len(rows), NONE, dtype=np.int64)
    forever = np.full(len(rows), count, dtype=np.int64)
    return History(
        events=count,
        bytes=np.where(requested == NONE, size, requested),
        held=size,
        address=end.address[rows],
        birth=birth,
        death=forever,
        free_requested=np.where(end.state[rows] == 0, forever, BEFORE),
        made=end.stack[rows],
        freed=none,
        category=none,
        label=end.label[rows],
        free_missing=np.zeros(len(rows), dtype=np.bool_),
        freed_twice=np.zeros(0, dtype=np.int64),
        lost=0,
        appeared=int((birth != BEFORE).sum()),
        sizes_differ=0,
        usable=usable,
    )


_COLUMNS = (
    "bytes",
    "held",
    "address",
    "birth",
    "death",
    "free_requested",
    "made",
    "freed",
    "category",
    "label",
    "free_missing",
)


def _concatenated(first: History, second: History) -> History:
    """Both, in order of birth."""
    columns = {name: np.concatenate((getattr(first, name), getattr(second, name))) for name in _COLUMNS}
    order = np.lexsort((columns["death"], columns["birth"]))
    return History(
        events=first.events,
        **{name: column[order] for name, column in columns.items()},
        freed_twice=first.freed_twice,
        lost=first.lost,
        appeared=second.appeared,
        sizes_differ=first.sizes_differ,
        usable=first.usable,
    )


def live_bytes(history: History, sizes: Ints) -> tuple[int, Ints]:
    """Bytes alive before the first event and after each, of blocks with these sizes (`bytes`, or `held`)."""
    change = np.zeros(history.events + 1, dtype=np.int64)
    born = history.birth != BEFORE
    np.add.at(change, history.birth[born], sizes[born])
    np.subtract.at(change, history.death, sizes)
    before = int(sizes[~born].sum())
    return before, before + np.cumsum(change[:-1])


def reserved_bytes(device: DeviceSnapshot) -> Ints | None:
    """Bytes held from the device after each event; None where the segments' history contradicts the end."""
    action, size = device.events.action, device.events.size
    more = np.isin(action, (SEGMENT_ALLOC, SEGMENT_MAP))
    less = np.isin(action, (SEGMENT_FREE, SEGMENT_UNMAP))
    change = np.where(more, size, 0) - np.where(less, size, 0)
    end = int(device.segments.size.sum())
    if not len(change):
        return np.array([end], dtype=np.int64)
    after = end - (int(change.sum()) - np.cumsum(change))
    return None if after.min() < 0 else after
