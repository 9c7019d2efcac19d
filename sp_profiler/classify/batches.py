"""What a batch of sends and receives (`batch_isend_irecv`) did: one kernel, and records before its launch.

torch records each send and receive as it is posted and launches the kernel of them all when the batch ends,
outside of every record. So the records of a batch are those of the launching thread that launched nothing
themselves and stand between the launch of the batch's kernel and the one before it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.collectives import SEND_RECV, collective_bytes, unified_op
from sp_profiler.classify.context import Context
from sp_profiler.trace.tables import NONE, Category, CollectiveArgs, Int64


@dataclass(frozen=True)
class Batch:
    """The sends and receives of one kernel. Peers are global ranks, as metadata number them."""

    args: CollectiveArgs  # of its first record: what is common to all
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    bytes: int | None  # what it sends or, where that is more, receives

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(sorted({*self.sources, *self.targets}))

    @property
    def source(self) -> int | None:
        """The one rank that it receives from; None for several, or none."""
        return self.sources[0] if len(self.sources) == 1 else None

    @property
    def target(self) -> int | None:
        return self.targets[0] if len(self.targets) == 1 else None


class Batches:
    """Finds the batch of a launch. `launches`: positions of the launches of all communication kernels."""

    def __init__(self, context: Context, launches: Int64) -> None:
        nest, events = context.nest, context.trace.events
        self._context = context
        told = np.array([_is_posted(args) for args in context.trace.collectives] + [False], np.bool_)
        posted = told[events.collective[nest.row]] & (events.category[nest.row] == int(Category.CPU_OP))
        launches = np.unique(launches[launches != NONE])
        launched = nest.nearest(posted)[launches]
        posted[launched[launched != NONE]] = False  # a send by itself: its kernel is launched inside
        start = events.start_ns[nest.row]
        self._posted: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._launches: dict[int, list[int]] = defaultdict(list)
        for position in np.flatnonzero(posted).tolist():
            self._posted[int(nest.thread[position])].append((int(start[position]), position))
        for position in launches.tolist():
            self._launches[int(nest.thread[position])].append(int(start[position]))
        for found in (*self._posted.values(), *self._launches.values()):
            found.sort()

    def of(self, launch: int) -> Batch | None:
        """The batch whose kernel was launched at this position; None where no record was left before it."""
        nest, events = self._context.nest, self._context.trace.events
        thread, at = int(nest.thread[launch]), int(events.start_ns[nest.row[launch]])
        posted, launches = self._posted.get(thread, []), self._launches.get(thread, [])
        earlier = bisect_left(launches, at)
        after = launches[earlier - 1] if earlier else -1
        mine = posted[bisect_left(posted, (after, 0)) : bisect_left(posted, (at, 0))]
        records = [
            self._context.trace.collectives[int(events.collective[nest.row[position]])]
            for _, position in mine
        ]
        rank = self._context.trace.metadata.rank
        last = records[-1] if records else None
        return _batch([args for args in records if _group(args) == _group(last)], rank) if last else None


def _group(args: CollectiveArgs | None) -> tuple[str | None, str | None]:
    return (None, None) if args is None else (args.group_name, args.group_ranks)


def _is_posted(args: CollectiveArgs) -> bool:
    """A send or receive by name; `coalesced` stands for the batch itself."""
    return unified_op(args.name) == SEND_RECV and "coalesced" not in (args.name or "").lower()


def _batch(records: Sequence[CollectiveArgs], rank: int | None) -> Batch:
    sent: list[int | None] = []
    received: list[int | None] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for args in records:
        sends = "recv" not in (args.name or "").lower()
        end = args.dst_rank if sends else args.src_rank
        if end is not None and end >= 0 and end != rank:
            (targets if sends else sources).add(end)
        (sent if sends else received).append(collective_bytes(SEND_RECV, args, None))
    sums = [_sum(sizes) for sizes in (sent, received) if sizes]
    known = [total for total in sums if total is not None]
    nbytes = max(known) if len(known) == len(sums) else None
    return Batch(records[0], tuple(sorted(sources)), tuple(sorted(targets)), nbytes)


def _sum(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
