"""Context parallelism on one rank: each device's families, read from the order of launches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from sp_profiler.analysis.context_parallel.exchange import copies_of, read_exchanges
from sp_profiler.analysis.context_parallel.families import (
    EXCHANGES,
    GATHERS,
    RING,
    UNKNOWN,
    DeviceContext,
    Family,
)
from sp_profiler.analysis.context_parallel.gather import read_gathers
from sp_profiler.analysis.context_parallel.lines import (
    DKV,
    EXCHANGE,
    GATHER,
    HOPS,
    KV,
    OPEN,
    PHASES,
    REDUCE,
    Line,
    line_of,
)
from sp_profiler.analysis.context_parallel.measure import CUT, INSIDE, OUTSIDE, Reads, measured
from sp_profiler.analysis.context_parallel.ring import read_ring
from sp_profiler.analysis.exposure import DeviceCollectives, Exposure
from sp_profiler.changed import changer
from sp_profiler.classify.tables import Classified, Collective, Group
from sp_profiler.trace.tables import Int8, Int64, Trace

_with_peers = changer(Collective, "peers")


def context_of(
    trace: Trace,
    classified: Classified,
    device: int,
    rows: Int64,
    collectives: DeviceCollectives,
    exposed: Exposure,
) -> DeviceContext | None:
    """The context parallelism of the device whose activities are `rows`; None where it shows none."""
    line = line_of(trace, classified, rows, collectives)
    if line is None:
        return None
    inside = _inside(classified, collectives, exposed)
    families: list[Family] = []
    for group in range(len(line.groups)):
        kinds = set(np.unique(line.what[line.group == group]).tolist())
        if kinds & {*HOPS, EXCHANGE, GATHER, REDUCE}:
            families += _families(line, group, kinds, trace, collectives, inside)
    return DeviceContext(device, classified.is_cpu_only, tuple(families)) if families else None


def _inside(classified: Classified, collectives: DeviceCollectives, exposed: Exposure) -> Int8:
    """Of each collective whether it lies INSIDE the windows, is CUT (also where its step's window ends before
    it runs), or OUTSIDE: of a step that was not chosen."""
    step = classified.activities.step[collectives.activity]
    runs = exposed.window >= 0
    whole = runs & (exposed.inside_ns == collectives.end_ns - collectives.start_ns)
    chosen = runs | np.isin(step, step[runs])
    return np.select([whole, chosen], [INSIDE, CUT], OUTSIDE).astype(np.int8)


def _families(
    line: Line, group: int, kinds: set[int], trace: Trace, collectives: DeviceCollectives, inside: Int8
) -> list[Family]:
    found: list[Family] = []
    rows = collectives.rows
    members = np.flatnonzero(line.group == group)
    first = rows[int(line.collective[members[line.collective[members] >= 0][0]])]
    named = first.group
    size = (named.size or len(named.ranks) or None) if named is not None else None
    if GATHER in kinds:
        reads = read_gathers(line, group)
        found.append(_family(GATHERS, named, size, line, reads, collectives, inside))
    elif kinds & {KV, OPEN}:
        found.append(_ring(line, group, named, size, trace, collectives, inside))
    elif kinds & {DKV, REDUCE}:
        found.append(_unread(line, group, named, size, collectives))
    if EXCHANGE in kinds:
        reads = read_exchanges(line, group)
        if len(reads.phase) and len(reads.member):
            one = _family(EXCHANGES, named, size, line, reads, collectives, inside)
            found.append(replace(one, copies=copies_of(line, group, reads, one.passes.is_whole)))
        else:
            found.append(_unread(line, group, named, size, collectives))
    return found


def _family(
    kind: str,
    named: Group | None,
    size: int | None,
    line: Line,
    reads: Reads,
    collectives: DeviceCollectives,
    inside: Int8,
) -> Family:
    passes, transfers = measured(line, reads, collectives.rows, inside, collectives.id)
    told = [collectives.rows[at] for at in line.collective[reads.member].tolist()]
    ops = Counter(one.op or "" for one in told)
    modes = Counter(one.is_async for one in told if one.is_async is not None)
    return Family(
        kind=kind,
        group=None if named is None else named.key,
        ranks=() if named is None else named.ranks,
        size=size,
        ends=(),
        in_pairs=False,
        op=min(ops, key=lambda op: (-ops[op], op)) if ops else "",
        is_async=max(modes, key=lambda mode: (modes[mode], mode)) if modes else None,
        unread=0,
        passes=passes,
        transfers=transfers,
    )


def _unread(
    line: Line, group: int, named: Group | None, size: int | None, collectives: DeviceCollectives
) -> Family:
    """Transfers of attention that form no passes."""
    empty = np.zeros(0, np.int64)
    reads = Reads(
        empty, empty, empty, empty, empty, empty, empty, empty, empty, empty.astype(np.bool_), 1, ("kv",)
    )
    one = _family(UNKNOWN, named, size, line, reads, collectives, np.zeros(len(collectives), np.int8))
    mine = np.flatnonzero((line.group == group) & (line.what >= KV))
    ops = Counter(collectives.rows[at].op or "" for at in line.collective[mine].tolist())
    return replace(one, unread=len(mine), op=min(ops, key=lambda op: (-ops[op], op)))


def _ring(
    line: Line,
    group: int,
    named: Group | None,
    size: int | None,
    trace: Trace,
    collectives: DeviceCollectives,
    inside: Int8,
) -> Family:
    reads, kinds, size, unread, in_pairs = read_ring(line, group, collectives.rows, size)
    kind = max(kinds, key=lambda one: (kinds[one], one)) if kinds else UNKNOWN
    if len(kinds) > 1 or kind == UNKNOWN:
        # Forward and backward must be of one kind; ring self-attention leaves less doubt than a plain ring.
        kind = "ring-self-attention" if "ring-self-attention" in kinds else kind
    one = _family(kind, named, size, line, reads, collectives, inside)
    phase = reads.phase[reads.of_pass]
    members = [reads.member[phase == code] for code in range(len(PHASES))]
    if kind == RING and (around := _both_ways(line, reads, collectives.rows)):
        nobody = ((None, None),) * len(PHASES)
        return replace(one, size=size, unread=unread, in_pairs=in_pairs, ends=nobody, both_ways=around)
    if kind == UNKNOWN or (
        kind == RING and not all(_is_constant(line, m, collectives.rows) for m in members)
    ):
        return replace(one, kind=UNKNOWN, size=size, unread=unread)
    ends = tuple(_neighbours(line, m, collectives.rows, named, trace.rank) for m in members)
    peers = [
        pair
        for m, between in zip(members, ends, strict=True)
        for pair in _completed(line, m, collectives, between, in_pairs, trace.rank)
    ]
    return replace(one, size=size, unread=unread, in_pairs=in_pairs, ends=ends, peers=tuple(peers))


def _neighbours(
    line: Line, member: Int64, rows: tuple[Collective, ...], named: Group | None, rank: int | None
) -> tuple[int | None, int | None]:
    """The ranks before and after this one: what most shifts say; of one the other lies opposite."""
    told = [rows[at] for at in line.collective[member].tolist()]
    sources = Counter(one.source for one in told if one.source is not None)
    targets = Counter(one.target for one in told if one.target is not None)
    ranks = named.ranks if named is not None else ()
    source, target = (min(c, key=lambda r: (-c[r], r)) if c else None for c in (sources, targets))
    source, target = _as_global(source, ranks), _as_global(target, ranks)
    if rank in ranks and (source is None) != (target is None):
        place = ranks.index(rank)
        known = target if target is not None else source
        if known in ranks:
            opposite = ranks[(2 * place - ranks.index(known)) % len(ranks)]
            source, target = (opposite, target) if source is None else (source, opposite)
    if source is None and target is None and len(ranks) == 2 and rank in ranks:
        source = target = ranks[1 - ranks.index(rank)]
    return source, target


def _as_global(end: int | None, ranks: tuple[int, ...]) -> int | None:
    """Metadata that number the ends within the group are known by a number that is no rank of it."""
    if end is None or not ranks or end in ranks or not 0 <= end < len(ranks):
        return end
    return ranks[end]


def _is_constant(line: Line, member: Int64, rows: tuple[Collective, ...]) -> bool:
    """Whether all shifts go the same way: to one rank, from one rank."""
    told = [rows[at] for at in line.collective[member].tolist()]
    sources = {one.source for one in told if one.source is not None}
    targets = {one.target for one in told if one.target is not None}
    return len(sources) <= 1 and len(targets) <= 1


def _both_ways(line: Line, reads: Reads, rows: tuple[Collective, ...]) -> tuple[int, ...]:
    """The two neighbours of a ring of which every hop sends as much to one as to the other; else empty."""
    told = [rows[at] for at in line.collective[reads.member].tolist()]
    targets = sorted({one.target for one in told if one.target is not None})
    sources = sorted({one.source for one in told if one.source is not None})
    if len(targets) != 2 or (sources and sources != targets):
        return ()
    sent: dict[tuple[int, int, int], Counter[int]] = {}
    places = zip(reads.of_pass.tolist(), reads.payload.tolist(), reads.hop.tolist(), strict=True)
    for one, place in zip(told, places, strict=True):
        sent.setdefault(place, Counter()).update([one.target] if one.target is not None else [])
    even = all(counts[targets[0]] == counts[targets[1]] > 0 for counts in sent.values())
    return tuple(targets) if even else ()


def _completed(
    line: Line,
    member: Int64,
    collectives: DeviceCollectives,
    ends: tuple[int | None, int | None],
    in_pairs: bool,
    rank: int | None,
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The ends of shifts whose metadata name fewer than the two that they have."""
    source, target = ends
    if in_pairs or source is None or target is None:
        return ()
    both = tuple(sorted({source, target} - {rank}))
    rows = ((int(at), collectives.rows[int(at)]) for at in line.collective[member])
    return tuple(
        (int(collectives.id[at]), both)
        for at, one in rows
        if one.op == "send_recv" and set(one.peers) != set(both)
    )


def with_all_peers(classified: Classified, contexts: list[DeviceContext | None]) -> Classified:
    """The classification with both ends of each shift of a ring: metadata of a batch name one of them."""
    peers = [pair for one in contexts if one is not None for family in one.families for pair in family.peers]
    if not peers:
        return classified
    collectives = list(classified.collectives)
    for number, ends in peers:
        collectives[number] = _with_peers(collectives[number], ends)
    return replace(classified, collectives=tuple(collectives))
