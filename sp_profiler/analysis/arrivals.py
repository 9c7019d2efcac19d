"""The communication of one rank as the other ranks need it: when it arrives at each collective, and leaves.

Columns, not objects: a run of many ranks is matched over millions of rows. All collectives of the trace are
here, also those outside the chosen windows, so that windows which differ leave the match alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.tables import Classified, Collective, Group, Kind
from sp_profiler.trace.tables import NONE, Bool, Int64

SEND_RECV = "send_recv"
UNKNOWN_OP = "unknown"
_MOST = 2**62  # a number in a trace may exceed int64


@dataclass(frozen=True)
class Arrivals:
    """The collectives of one rank, sorted by (device, start_ns); int64 columns, NONE (-1) where not known."""

    source: Int64  # place in Classified.collectives
    figure: Int64  # row of RankResult.collectives, NONE outside the chosen windows
    device: Int64
    start_ns: Int64
    end_ns: Int64
    op: Int64  # index into `ops`
    group: Int64  # index into `groups`
    bytes: Int64
    seq: Int64
    is_measured: Bool  # start is the arrival and end the end: no fused kernel, no gloo send/recv
    ops: tuple[str, ...]
    groups: tuple[Group, ...]
    peer_row: Int64  # one entry per peer of a send/recv: its row here ...
    peer: Int64  # ... and the peer's (global) rank
    host: str | None = None
    base_time_ns: int = 0
    is_cpu: bool = False

    def __len__(self) -> int:
        return len(self.source)


def arrivals_of(
    classified: Classified,
    figure: Int64,
    rank: int | None,
    host: str | None = None,
    base_time_ns: int = 0,
) -> Arrivals:
    """The arrivals of a rank. `figure`: of each of Classified.collectives its row in the result's."""
    activities, found = classified.activities, classified.collectives
    activity = _column([one.activity for one in found])
    order = np.lexsort((activities.start_ns[activity], activities.device[activity]))
    rows = [found[i] for i in order.tolist()]
    activity = activity[order]
    ops: dict[str, int] = {}
    groups: dict[str, int] = {}
    by_key: list[Group] = []
    for one in rows:
        if one.group is not None and one.group.key not in groups:
            groups[one.group.key] = len(by_key)
            by_key.append(one.group)
    op = [ops.setdefault(one.op or UNKNOWN_OP, len(ops)) for one in rows]
    ends = [
        (i, peer)
        for i, one in enumerate(rows)
        if one.op == SEND_RECV
        for peer in _peers(one, rank)
        if peer != rank
    ]
    return Arrivals(
        source=order.astype(np.int64),
        figure=figure[order],
        device=activities.device[activity].astype(np.int64),
        start_ns=activities.start_ns[activity],
        end_ns=activities.end_ns[activity],
        op=_column(op),
        group=_column([NONE if one.group is None else groups[one.group.key] for one in rows]),
        bytes=_column([_number(one.bytes) for one in rows]),
        seq=_column([_number(one.seq) for one in rows]),
        is_measured=np.array([one.bandwidth_known for one in rows], np.bool_)
        & (activities.kind[activity] != Kind.FUSED),
        ops=tuple(ops),
        groups=tuple(by_key),
        peer_row=_column([row for row, _ in ends]),
        peer=_column([peer for _, peer in ends]),
        host=host,
        base_time_ns=base_time_ns,
        is_cpu=classified.is_cpu_only,
    )


def _peers(one: Collective, rank: int | None) -> tuple[int, ...]:
    """The other ends of a send/recv as global ranks.

    Metadata that number the peers within the group are known by a number that is no rank of the group. A
    send/recv that names nobody in a group of two goes to the other one.
    """
    ranks = one.group.ranks if one.group is not None else ()
    peers = one.peers
    if not ranks:
        return peers
    if not peers:
        return tuple(other for other in ranks if other != rank) if len(ranks) == 2 and rank in ranks else ()
    if all(peer in ranks for peer in peers):
        return peers
    if all(0 <= peer < len(ranks) for peer in peers):
        return tuple(ranks[peer] for peer in peers)
    return peers


def _number(value: int | None) -> int:
    return NONE if value is None or value < 0 else min(value, _MOST)


def _column(values: Sequence[int]) -> Int64:
    return np.array(values, np.int64)
