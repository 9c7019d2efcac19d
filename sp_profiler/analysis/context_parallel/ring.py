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
from sp_profiler.analysis.context_parallel.tails import NEITHER, SECOND, Blocks, halves_of
from sp_profiler.classify.tables import Collective
from sp_profiler.trace.tables import NONE, Int64

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
    readings = _read_all(texts, behind, size, pairs)
    if not any(readings):  # no ring of this size: of as many steps as it shows
        steps = ring_size(text for text, back in zip(texts, behind, strict=True) if not back)
        readings = _read_all(texts, behind, steps, pairs)
    kinds = Counter(reading.kind for reading in readings if reading is not None)
    reads = _assembled(line, segments, readings, rows)
    return reads, kinds, size, sum(reading is None for reading in readings), pairs


def _read_all(
    texts: list[tuple[str, str]], behind: list[bool], size: int | None, pairs: bool
) -> list[Reading | None]:
    if size is None:
        return [None] * len(texts)
    return [read(*text, size, back, pairs) for text, back in zip(texts, behind, strict=True)]


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
    rows: tuple[Collective, ...],
) -> Reads:
    """The tables of all segments. One that fits nothing is a pass that was not read, without blocks."""
    members, slots = len(segments.member), len(segments.has_attention)
    of_pass, payload, hop = (np.zeros(members, np.int64) for _ in range(3))
    slot_pass, slot_step = np.full(slots, NONE, np.int64), np.full(slots, NONE, np.int64)
    slot_tail, slot_border, slot_kind = (np.zeros(slots, np.bool_) for _ in range(3))
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
        passes, payloads, hops, where, steps, tails, borders = arrays[id(reading)]
        of_pass[at], payload[at], hop[at] = passes + base, payloads, hops
        slot_pass[on], slot_step[on], slot_tail[on] = where + base, steps, tails
        slot_border[on] = borders
        slot_kind[on] = reading.kind != "ring"
        has_gradients = any(name.endswith("dkv") or name in ("dk", "dv") for name in reading.payload)
        for repeats in reading.repeats:
            known = BACKWARD if has_gradients else FORWARD if told == NONE else told
            # Shifts of K and V alone inside backward are a forward that it repeats.
            alone = known == BACKWARD and not has_gradients and reading.kind == "ring"
            phase.append(RECOMPUTE if repeats or alone else known)
            is_read.append(True)
    row_pass, row_step = slot_pass[segments.slot].copy(), slot_step[segments.slot].copy()
    border = slot_border[segments.slot]
    tail = (slot_tail[segments.slot] | border) & (row_step >= 0)
    is_attention = line.what[segments.attention] == ATTENTION
    halves = halves_of(Blocks(line, segments, row_pass, row_step, of_pass, hop, rows), tail & is_attention)
    second = halves == SECOND
    row_step = np.where(second & border, 0, row_step + second)
    row_step[(halves == NEITHER) & slot_kind[segments.slot]] = NONE
    row_pass += second & border
    kept = is_attention & (row_pass >= 0)
    steps = max((reading.steps for reading in readings if reading is not None), default=1)
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
        steps=steps,
        payloads=PAYLOADS,
    )


def _arrays(reading: Reading) -> tuple[np.ndarray, ...]:
    codes = [_PAYLOAD[name] for name in reading.payload]
    columns = (reading.of_pass, codes, reading.hop, reading.slot_pass, reading.slot_step)
    marks = (reading.slot_is_tail, reading.slot_is_border)
    return (
        *(np.array(column, np.int64) for column in columns),
        *(np.array(column, np.bool_) for column in marks),
    )
