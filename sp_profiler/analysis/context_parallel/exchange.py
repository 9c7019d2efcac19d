"""All-to-alls around attention (Ulysses): the passes on one device, and the copies that lay tensors out.

A pass is attention with the all-to-alls before it (q, k and v, or all in one) and those after it. Between two
layers other work is done, or another phase, module or layer begins; where nothing tells them apart, as many
all-to-alls as first seen belong to each side.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from sp_profiler.analysis.context_parallel.families import Copies
from sp_profiler.analysis.context_parallel.lines import (
    ATTENTION,
    BACKWARD,
    BORDER,
    COPY,
    EXCHANGE,
    FORWARD,
    Line,
)
from sp_profiler.analysis.context_parallel.measure import Reads
from sp_profiler.analysis.intervals import union_by_key
from sp_profiler.trace.tables import NONE, Bool, Int64

PAYLOADS = ("qkv", "q", "k", "v", "kv", "out", "dout", "dqkv")
_CODE = {name: code for code, name in enumerate(PAYLOADS)}
_BEFORE = {1: ("qkv",), 2: ("q", "kv"), 3: ("q", "k", "v")}


def read_exchanges(line: Line, group: int) -> Reads:
    """The passes of a group's all-to-alls, numbered in each pass in order of launch."""
    member = np.flatnonzero((line.group == group) & (line.what == EXCHANGE))
    attention = np.flatnonzero(line.what == ATTENTION)
    # The run of a transfer: how many stretches of attention have begun before it.
    between = np.searchsorted(member, attention)
    stretches = np.unique(between)
    runs = np.searchsorted(stretches, np.arange(len(member)), side="right")
    parts = _parts(line, member, runs, len(stretches))
    counts = _usual_counts(line, member, parts)
    before: list[list[int]] = [[] for _ in stretches]
    after: list[list[int]] = [[] for _ in stretches]
    for run, of_run in enumerate(parts):
        left, right = _divided(line, member, of_run, counts, run, len(stretches))
        if run:
            after[run - 1] = left
        if run < len(stretches):
            before[run] = right
    at, of_pass, hop, payload, phase, usual = [], [], [], [], [], Counter[tuple[int, int, int]]()
    for number, (one, two) in enumerate(zip(before, after, strict=True)):
        phase.append(_phase(line, member, [*one, *two]))
        usual[phase[-1], len(one), len(two)] += 1
        for place, which in enumerate([*one, *two]):
            at.append(which)
            of_pass.append(number)
            hop.append(place)
            payload.append(_CODE[_payload(phase[-1], len(one), place)])
    most = {
        one: max(
            (pair for pair in usual if pair[0] == one and min(pair[1:])),
            key=lambda p: (usual[p], p),
            default=None,
        )
        for one in set(phase)
    }
    is_read = [
        most[one] == (one, len(left), len(right))
        for one, left, right in zip(phase, before, after, strict=True)
    ]
    order = np.argsort(np.array(at, np.int64), kind="stable")
    return Reads(
        member=member[np.array(at, np.int64)[order]],
        of_pass=np.array(of_pass, np.int64)[order],
        payload=np.array(payload, np.int64)[order],
        hop=np.array(hop, np.int64)[order],
        beside=np.full(len(at), NONE, np.int64),
        row=attention,
        row_pass=np.searchsorted(stretches, between),
        row_step=np.zeros(len(attention), np.int64),
        phase=np.array(phase, np.int64),
        is_read=np.array(is_read, np.bool_),
        steps=1,
        payloads=PAYLOADS,
    )


def _parts(line: Line, member: Int64, runs: Int64, stretches: int) -> list[list[list[int]]]:
    """The transfers of each run, cut where something else lies between: indices into `member`."""
    block = np.cumsum(line.what == BORDER)[member]
    marks = (runs, block, line.key[member], line.phase[member])
    begins = np.ones(len(member), np.bool_)
    begins[1:] = np.any([mark[1:] != mark[:-1] for mark in marks], axis=0)
    found: list[list[list[int]]] = [[] for _ in range(stretches + 1)]
    for low, high in zip(
        np.flatnonzero(begins).tolist(), [*np.flatnonzero(begins)[1:].tolist(), len(member)], strict=True
    ):
        found[int(runs[low])].append(list(range(low, high)))
    return found


def _usual_counts(line: Line, member: Int64, parts: list[list[list[int]]]) -> Counter[tuple[int, int, int]]:
    """How many transfers stand before (0) and after (1) attention in a phase, where nothing is in doubt."""
    seen: Counter[tuple[int, int, int]] = Counter()
    for run, of_run in enumerate(parts):
        if len(of_run) == 2 or (of_run and run in (0, len(parts) - 1)):
            if run:
                seen[_phase(line, member, of_run[0]), 1, len(of_run[0])] += 1
            if run < len(parts) - 1:
                seen[_phase(line, member, of_run[-1]), 0, len(of_run[-1])] += 1
    return seen


def _divided(
    line: Line,
    member: Int64,
    of_run: list[list[int]],
    counts: Counter[tuple[int, int, int]],
    run: int,
    stretches: int,
) -> tuple[list[int], list[int]]:
    """What of a run belongs to the attention before it, and what to the one after it."""
    every = [at for part in of_run for at in part]
    if run == 0:
        return [], of_run[-1] if of_run else []
    if run == stretches:
        return (of_run[0] if of_run else []), []
    if len(of_run) == 1:
        phase = _phase(line, member, every)
        usual = [
            n for (of, side, n), _ in counts.most_common() if of == phase and side == 1 and n < len(every)
        ]
        cut = usual[0] if usual else (1 if phase != BACKWARD else len(every) - 1)
        return every[:cut], every[cut:]
    # More than two parts: linears lie between the transfers of one side, in forward before attention.
    phase = _phase(line, member, of_run[0])
    cut = len(of_run[0]) if phase != BACKWARD else len(every) - len(of_run[-1])
    turned = [k for k in range(1, len(of_run)) if _phase(line, member, of_run[k]) != phase]
    if turned:
        cut = sum(map(len, of_run[: turned[0]]))
    return every[:cut], every[cut:]


def _phase(line: Line, member: Int64, which: list[int]) -> int:
    known = line.phase[member[np.array(which, np.int64)]]
    known = known[known != NONE]
    return int(np.bincount(known).argmax()) if len(known) else FORWARD


def _payload(phase: int, before: int, place: int) -> str:
    if phase == BACKWARD:
        return "dout" if place < before else "dqkv"
    if place >= before:
        return "out"
    return _BEFORE[before][place] if before in _BEFORE else "qkv"


def copies_of(line: Line, group: int, reads: Reads, whole: Bool) -> tuple[Copies, ...]:
    """Copies next to the all-to-alls of whole passes, with nothing but copies in between, by phase."""
    moved = np.isin(line.what, (COPY, EXCHANGE)) & ((line.what == COPY) | (line.group == group))
    run = np.cumsum(np.concatenate(([True], moved[1:] != moved[:-1]))) if len(line) else np.zeros(0, np.int64)
    pass_of = np.full(int(run.max(initial=0)) + 1, NONE, np.int64)
    pass_of[run[reads.member][::-1]] = reads.of_pass[::-1]  # of several transfers in a run the first
    copies = np.flatnonzero(moved & (line.what == COPY))
    owner = pass_of[run[copies]]
    copies, owner = copies[owner >= 0], owner[owner >= 0]
    copies, owner = copies[whole[owner]], owner[whole[owner]]
    phase = reads.phase[owner]
    key, merged = union_by_key(phase, line.start_ns[copies], line.end_ns[copies])
    return tuple(
        Copies(
            one,
            int((whole & (reads.phase == one)).sum()),
            int(line.moves[copies[phase == one]].sum()),
            int((merged.end - merged.start)[key == one].sum()),
        )
        for one in np.unique(reads.phase[whole]).tolist()
    )
