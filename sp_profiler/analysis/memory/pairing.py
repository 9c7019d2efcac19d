"""Allocations and frees paired by address, without a Python loop over events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.memory.blocks import BEFORE
from sp_profiler.analysis.memory.order import DeviceEvents
from sp_profiler.analysis.memory.results import Unpaired
from sp_profiler.trace.tables import Bool, Int64


@dataclass(frozen=True)
class Pairs:
    """The blocks of one device and the events that belong to none. Positions are places among the events.

    An address that is allocated while it is still taken ends the block that had it: its free is missing,
    and when it happened nobody knows, only that it was before.
    """

    birth: Int64  # per block: position of the allocation, BEFORE for a free without one
    death: Int64  # position of the free or of what ended it, the number of events for what stays alive
    bytes: Int64
    address: np.ndarray
    free_missing: Bool  # ended by an allocation of its address
    freed_twice: Int64  # positions of frees of an address that was free already
    without_address: Int64  # positions of events without an address
    sizes_differ: int  # pairs whose free tells other bytes than its allocation

    def __len__(self) -> int:
        return len(self.birth)


def pair(events: DeviceEvents) -> Pairs:
    """Pair every allocation with the next free of its address; blocks in order of birth (then of death)."""
    count = len(events)
    with_address = np.flatnonzero(events.address != 0).astype(np.int64)
    # Grouped by address, in order within each: a block is two neighbours, an allocation and a free.
    at = with_address[np.argsort(events.address[with_address], kind="stable")]
    address, sizes = events.address[at], events.bytes[at]
    allocates = sizes > 0
    same = np.zeros(len(at) + 1, dtype=np.bool_)  # same[i]: the events i-1 and i have one address
    same[1:-1] = address[1:] == address[:-1]
    alone = np.flatnonzero(~allocates & ~(same[:-1] & np.append(False, allocates[:-1])))
    twice = alone[same[alone]]
    orphan = alone[~same[alone]]
    made = np.flatnonzero(allocates)
    followed = same[made + 1]
    after = np.minimum(made + 1, max(len(at) - 1, 0))
    death = np.where(followed, at[after] if len(at) else 0, count)
    paired = followed & ~allocates[after] if len(at) else followed
    birth = np.concatenate((np.full(len(orphan), BEFORE, np.int64), at[made]))
    death = np.concatenate((at[orphan], death)).astype(np.int64)
    order = np.lexsort((death, birth))
    return Pairs(
        birth=birth[order],
        death=death[order],
        bytes=np.concatenate((-sizes[orphan], sizes[made]))[order],
        address=np.concatenate((address[orphan], address[made]))[order],
        free_missing=np.concatenate((np.zeros(len(orphan), np.bool_), followed & ~paired))[order],
        freed_twice=np.sort(at[twice]),
        without_address=np.flatnonzero(events.address == 0).astype(np.int64),
        sizes_differ=int((paired & (sizes[after] != -sizes[made])).sum()) if len(at) else 0,
    )


def live_bytes(events: DeviceEvents, pairs: Pairs) -> tuple[int, Int64]:
    """Bytes of the known blocks before the first event and after each one.

    Events without an address count as they are.
    """
    change = np.zeros(len(events) + 1, dtype=np.int64)
    born = pairs.birth != BEFORE
    np.add.at(change, pairs.birth[born], pairs.bytes[born])
    np.subtract.at(change, pairs.death, pairs.bytes)
    change[pairs.without_address] += events.bytes[pairs.without_address]
    before = int(pairs.bytes[~born].sum())
    return before, before + np.cumsum(change[:-1])


def unpaired(events: DeviceEvents, pairs: Pairs, limit: int) -> tuple[int, list[Unpaired]]:
    """How many events and blocks lack their other half, and at most `limit` of them.

    What should not happen comes first, within a kind the largest.
    """
    alive = np.flatnonzero((pairs.death == len(events)) & ~pairs.free_missing)
    kinds = (
        ("freed-twice", pairs.freed_twice),
        ("allocated-twice", pairs.birth[pairs.free_missing]),
        ("freed-without-allocation", pairs.death[pairs.birth == BEFORE]),
        ("alive-at-end", pairs.birth[alive]),
        ("without-address", pairs.without_address),
    )
    listed: list[Unpaired] = []
    for kind, positions in kinds:
        sizes = np.abs(events.bytes[positions])
        chosen = positions[np.argsort(-sizes, kind="stable")[: limit - len(listed)]].tolist()
        listed += [
            Unpaired(
                kind=kind,
                bytes=abs(int(events.bytes[position])),
                address=int(events.address[position]) or None,
                time_ns=int(events.time_ns[position]),
            )
            for position in chosen
        ]
    return sum(len(positions) for _, positions in kinds), listed
