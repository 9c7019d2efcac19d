"""The passes of a ring on one device: which shift is which hop, and which attention is which block."""

from __future__ import annotations

from collections import Counter

import numpy as np

from sp_profiler.analysis.context_parallel.lines import (
    ATTENTION,
    BACKWARD,
    DKV,
    EXCHANGE,
    FORWARD,
    HOPS,
    KV,
    OPEN,
    RECOMPUTE,
    REDUCE,
    Line,
)
from sp_profiler.analysis.context_parallel.measure import Reads
from sp_profiler.analysis.context_parallel.reading import Reading, read, ring_size
from sp_profiler.analysis.context_parallel.segments import Segments, segments_of
from sp_profiler.classify.tables import Collective
from sp_profiler.trace.tables import NONE, Bool, Int64

_LETTERS = np.zeros(16, np.uint8)
_LETTERS[[KV, DKV, OPEN, REDUCE]] = [ord(letter) for letter in "kdur"]
PAYLOADS = ("kv", "k", "v", "kv+dkv", "dkv", "dk", "dv")
_PAYLOAD = {name: code for code, name in enumerate(PAYLOADS)}


def read_ring(
    line: Line, group: int, rows: tuple[Collective, ...], size: int | None
) -> tuple[Reads, Counter[str], int | None, int, bool]:
    """The passes of a group's ring, how many segments were read as which kind, its size, how many segments
    fit nothing, and whether sends and receives are kernels of their own."""
    member = (line.group == group) & np.isin(line.what, (*HOPS, REDUCE))
    segments = segments_of(line, member, line.what == EXCHANGE)
    letters = _LETTERS[_told_apart(line, segments.member, rows)]
    slots = np.full(len(segments.has_attention), ord("."), np.uint8)
    slots[segments.has_attention] = ord("A")
    slots[segments.has_softmax] = ord("S")
    texts = [
        (
            letters[segments.members_of(s)].tobytes().decode(),
            slots[segments.slots_of(s)].tobytes().decode(),
        )
        for s in range(segments.count)
    ]
    pairs = _in_pairs(line, segments.member, rows)
    first = segments.first[:-1]
    told = line.phase[segments.member[first]].tolist()
    # Of an unknown phase what nobody explains may be backward's.
    behind = [
        one == BACKWARD or (one == NONE and "u" in hops) for one, (hops, _) in zip(told, texts, strict=True)
    ]
    if size is None:
        size = ring_size(text for text, back in zip(texts, behind, strict=True) if not back)
    readings = [
        None if size is None else read(*text, size, back, pairs)
        for text, back in zip(texts, behind, strict=True)
    ]
    kinds = Counter(reading.kind for reading in readings if reading is not None)
    reads = _assembled(line, segments, readings, size or 0, rows)
    return reads, kinds, size, sum(reading is None for reading in readings), pairs


def _told_apart(line: Line, member: Int64, rows: tuple[Collective, ...]) -> Int64:
    """What each shift is, those that nobody explains by their size: in forward only K and V travel."""
    what = line.what[member].astype(np.int64)
    open_ = what == OPEN
    if not open_.any():
        return what
    what[open_ & np.isin(line.phase[member], (FORWARD, RECOMPUTE))] = KV
    numbers: dict[tuple[str | None, int | None], int] = {}
    shapes = [(rows[at].dtype, rows[at].bytes) for at in line.collective[member].tolist()]
    sizes = np.array([numbers.setdefault(shape, len(numbers)) for shape in shapes], np.int64)
    forward = np.unique(sizes[(what == KV) & np.isin(line.phase[member], (FORWARD, RECOMPUTE))])
    open_ = what == OPEN
    others = np.unique(sizes[open_])
    if len(forward) and len(others) > 1 and np.isin(forward, others).any():
        what[open_] = np.where(np.isin(sizes[open_], forward), KV, DKV)
    return what


def _in_pairs(line: Line, member: Int64, rows: tuple[Collective, ...]) -> bool:
    """Whether some kernels only send and others only receive."""
    ends = [rows[at] for at in line.collective[member].tolist()]
    only_send = any(one.target is not None and one.source is None for one in ends)
    only_receive = any(one.source is not None and one.target is None for one in ends)
    return only_send and only_receive


def _assembled(
    line: Line,
    segments: Segments,
    readings: list[Reading | None],
    size: int,
    rows: tuple[Collective, ...],
) -> Reads:
    """The tables of all segments. One that fits nothing is a pass that was not read, without blocks."""
    members, slots = len(segments.member), len(segments.has_attention)
    of_pass, payload, hop = (np.zeros(members, np.int64) for _ in range(3))
    slot_pass, slot_step = np.full(slots, NONE, np.int64), np.full(slots, NONE, np.int64)
    slot_tail, slot_kind = np.zeros(slots, np.bool_), np.zeros(slots, np.bool_)
    phase: list[int] = []
    is_read: list[bool] = []
    arrays: dict[int, tuple[np.ndarray, ...]] = {}
    for s, reading in enumerate(readings):
        at, on, base = segments.members_of(s), segments.slots_of(s), len(phase)
        told = int(line.phase[segments.member[at.start]])
        if reading is None:
            of_pass[at] = slot_pass[on] = base
            phase.append(FORWARD if told == NONE else told)
            is_read.append(False)
            continue
        if id(reading) not in arrays:  # readings are cached: few are different
            arrays[id(reading)] = _arrays(reading)
        passes, payloads, hops, where, steps, tails = arrays[id(reading)]
        of_pass[at], payload[at], hop[at] = passes + base, payloads, hops
        slot_pass[on], slot_step[on], slot_tail[on] = where + base, steps, tails
        slot_kind[on] = reading.kind != "ring"
        has_gradients = any(name.endswith("dkv") or name in ("dk", "dv") for name in reading.payload)
        for repeats in reading.repeats:
            known = BACKWARD if has_gradients else FORWARD if told == NONE else told
            # Shifts of K and V alone inside backward are a forward that it repeats.
            alone = known == BACKWARD and not has_gradients and reading.kind == "ring"
            phase.append(RECOMPUTE if repeats or alone else known)
            is_read.append(True)
    row_pass, row_step = slot_pass[segments.slot], slot_step[segments.slot].copy()
    tail = slot_tail[segments.slot] & (row_step >= 0)
    is_attention = line.what[segments.attention] == ATTENTION
    _split_tails(line, segments, row_pass, row_step, tail & is_attention, of_pass, hop, slot_kind, rows)
    kept = is_attention & (row_pass >= 0)
    steps = size * (2 if any(r is not None and r.kind != "ring" for r in readings) else 1)
    is_reduction = line.what[segments.member] == REDUCE
    beside = np.where((hop < steps) & ~is_reduction, hop, NONE)
    return Reads(
        member=segments.member,
        of_pass=of_pass,
        payload=payload,
        hop=hop,
        beside=beside,
        row=segments.attention[kept],
        row_pass=row_pass[kept],
        row_step=row_step[kept],
        phase=np.array(phase, np.int64),
        is_read=np.array(is_read, np.bool_),
        steps=max(steps, 1),
        payloads=PAYLOADS,
    )


def _arrays(reading: Reading) -> tuple[np.ndarray, ...]:
    codes = [_PAYLOAD[name] for name in reading.payload]
    columns = (reading.of_pass, codes, reading.hop, reading.slot_pass, reading.slot_step)
    return (*(np.array(column, np.int64) for column in columns), np.array(reading.slot_is_tail, np.bool_))


def _split_tails(
    line: Line,
    segments: Segments,
    row_pass: Int64,
    row_step: Int64,
    tail: Bool,
    of_pass: Int64,
    hop: Int64,
    slot_kind: Bool,
    rows: tuple[Collective, ...],
) -> None:
    """Divide the attention after the last hop into the block beside it and the block that it brought.

    By annotated ranges, of which each block has one; else by the wait for the hop, else by as many
    activities as the step before has, by names that come twice, or by the end of the hop.
    """
    where = np.flatnonzero(tail)
    if len(where) == 0:
        return
    group = row_pass[where] * (int(row_step.max()) + 2) + row_step[where]
    _, number, count = np.unique(group, return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    where, number = where[order], number[order]
    begins = np.cumsum(count) - count
    place = np.arange(len(where)) - begins[number]
    row = segments.attention[where]
    hop_of = _hop_of(segments, row_pass[where[begins]], row_step[where[begins]], of_pass, hop)
    cut = np.full(len(count), NONE, np.int64)
    last = np.full(len(count), NONE, np.int64)  # from here on no block: a softmax of its own

    ranges = line.range_ns[row]
    changes = (place > 0) & (ranges != np.roll(ranges, 1))
    ordinal = np.cumsum(changes) - (np.cumsum(changes) - changes)[begins][number]
    named = np.minimum.reduceat(ranges, begins) != NONE
    for nth, into in ((1, cut), (2, last)):
        at = np.full(len(count), _FAR, np.int64)
        np.minimum.at(at, number[ordinal == nth], place[ordinal == nth])
        into[named] = np.minimum(at, count)[named]

    wait = np.array([_wait(rows[at]) for at in line.collective[segments.member[hop_of]].tolist()], np.int64)
    launched = line.launch_ns[row]
    early = np.zeros(len(count), np.int64)
    np.add.at(early, number, (launched != NONE) & (launched < wait[number]))
    usable = (cut == NONE) & (wait != NONE) & (early > 0)
    cut[usable] = early[usable]

    before = _activities_before(row_pass, row_step, where, begins)
    usable = (cut == NONE) & (before > 0) & ((count == before) | (count >= 2 * before))
    cut[usable] = np.where(count == before, count, before)[usable]

    name = line.name[row]
    half = count // 2
    twin = np.minimum(np.arange(len(row)) + half[number], len(row) - 1)
    same = (place >= half[number]) | (name == name[twin])
    repeated = (np.logical_and.reduceat(same, begins)) & (count % 2 == 0)
    usable = (cut == NONE) & repeated
    cut[usable] = half[usable]

    ended = line.end_ns[segments.member[hop_of]]
    started = np.zeros(len(count), np.int64)
    np.add.at(started, number, line.start_ns[row] < ended[number])
    usable = cut == NONE
    cut[usable] = np.maximum(started, 1)[usable]

    row_step[where] += place >= cut[number]
    whole_rows = slot_kind[segments.slot[where]] & (last[number] != NONE) & (place >= last[number])
    row_step[where[whole_rows]] = NONE


_FAR = 2**62


def _hop_of(segments: Segments, pass_: Int64, step: Int64, of_pass: Int64, hop: Int64) -> Int64:
    """The last kernel of the hop that travels beside a step of a pass."""
    width = int(max(hop.max(initial=0), step.max(initial=0))) + 1
    cells = of_pass * width + hop
    order = np.argsort(cells, kind="stable")
    at = np.searchsorted(cells[order], pass_ * width + step, side="right") - 1
    return order[at]


def _wait(one: Collective) -> int:
    return NONE if one.wait_start_ns is None else one.wait_start_ns


def _activities_before(row_pass: Int64, row_step: Int64, where: Int64, begins: Int64) -> Int64:
    """How many activities the step before each tail has, in its own pass; 0 without one."""
    pass_, step = row_pass[where[begins]], row_step[where[begins]]
    width = int(row_step.max()) + 2
    known = row_step >= 0
    cells, counts = np.unique(row_pass[known] * width + row_step[known], return_counts=True)
    wanted = pass_ * width + step - 1
    at = np.minimum(np.searchsorted(cells, wanted), len(cells) - 1)
    return np.where((step > 0) & (cells[at] == wanted), counts[at], 0)
