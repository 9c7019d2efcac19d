"""All-to-alls around attention (Ulysses): the passes on one device, and the copies that lay tensors out.

A pass is attention with the all-to-alls before it (q, k and v, or all in one) and those after it. Between two
layers other work is done, or another phase, module or layer begins; where nothing tells them apart, as many
all-to-alls as first seen belong to each side.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.context_parallel.families import Copies
from sp_profiler.analysis.context_parallel.lines import (
    ATTENTION,
    BACKWARD,
    BORDER,
    COPY,
    EXCHANGE,
    FORWARD,
    PHASES,
    RECOMPUTE,
    Line,
)
from sp_profiler.analysis.context_parallel.measure import Reads
from sp_profiler.analysis.intervals import union_by_key
from sp_profiler.trace.tables import NONE, Bool, Int64

PAYLOADS = ("qkv", "q", "k", "v", "kv", "out", "dout", "dqkv")
_CODE = {name: code for code, name in enumerate(PAYLOADS)}
_BEFORE = {1: ("qkv",), 2: ("q", "kv"), 3: ("q", "k", "v")}


@dataclass(frozen=True)
class _Pass:
    """Rows of the line: the all-to-alls before attention and after it, and the attention."""

    phase: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    attention: Int64

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.phase, len(self.before), len(self.after)


def read_exchanges(line: Line, group: int) -> Reads:
    """The passes of a group's all-to-alls, numbered in each pass in order of launch.

    A forward that backward repeats lies inside a pass of backward, and is read by itself; it may end with its
    attention, because its result is not needed.
    """
    again = line.phase == RECOMPUTE
    exchanges = (line.group == group) & (line.what == EXCHANGE)
    attends = line.what == ATTENTION
    found = [
        one
        for some in (~again, again)
        for one in _passes(line, np.flatnonzero(exchanges & some), np.flatnonzero(attends & some))
    ]
    usual = Counter(one.counts for one in found)
    most = {
        phase: max(
            (c for c in usual if c[0] == phase and c[1] and (c[2] or phase == RECOMPUTE)),
            key=lambda c: (usual[c], c),
            default=None,
        )
        for phase in {one.phase for one in found}
    }
    members = [(row, n, k) for n, one in enumerate(found) for k, row in enumerate((*one.before, *one.after))]
    members.sort()
    rows = np.array([row for row, _, _ in members], np.int64)
    of_pass = np.array([n for _, n, _ in members], np.int64)
    hop = np.array([k for _, _, k in members], np.int64)
    payload = [_CODE[_payload(found[n].phase, len(found[n].before), k)] for _, n, k in members]
    attention = np.concatenate([one.attention for one in found]) if found else rows[:0]
    row_pass = np.repeat(np.arange(len(found)), [len(one.attention) for one in found])
    order = np.argsort(attention, kind="stable")
    return Reads(
        member=rows,
        of_pass=of_pass,
        payload=np.array(payload, np.int64),
        hop=hop,
        beside=np.full(len(rows), NONE, np.int64),
        row=attention[order],
        row_pass=row_pass[order],
        row_step=np.zeros(len(attention), np.int64),
        phase=np.array([one.phase for one in found], np.int64),
        is_read=np.array([most[one.phase] == one.counts for one in found], np.bool_),
        steps=1,
        payloads=PAYLOADS,
    )


def _passes(line: Line, member: Int64, attention: Int64) -> list[_Pass]:
    """The passes of these transfers and this attention; attention without any is none."""
    if len(member) == 0:
        return []
    # The run of a transfer: how many stretches of attention have begun before it.
    between = np.searchsorted(member, attention)
    stretches, first = np.unique(between, return_index=True)
    runs = np.searchsorted(stretches, np.arange(len(member)), side="right")
    parts = _parts(line, member, runs, len(stretches))
    counts = _usual_counts(line, member, parts)
    blocks = np.split(attention, first[1:]) if len(first) else []
    keys = [int(line.key[rows[0]]) for rows in blocks]
    divided = [
        _divided(line, member, of_run, counts, keys[max(run - 1, 0) : run + 1], run, len(stretches))
        for run, of_run in enumerate(parts)
    ]
    found: list[_Pass] = []
    for (_, before), (after, _), rows in zip(divided[:-1], divided[1:], blocks, strict=False):
        if before or after:
            phase = _phase(line, member, [*before, *after])
            found.append(_Pass(phase, tuple(member[before].tolist()), tuple(member[after].tolist()), rows))
    return found


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
    keys: list[int],
    run: int,
    stretches: int,
) -> tuple[list[int], list[int]]:
    """What of a run belongs to the attention before it, and what to the one after it; `keys` are of these."""
    every = [at for part in of_run for at in part]
    if run == 0:
        return [], of_run[-1] if of_run else []
    if run == stretches:
        return (of_run[0] if of_run else []), []
    if len(of_run) == 1:
        phase, key = _phase(line, member, every), int(line.key[member[every[0]]])
        if keys[0] != keys[1] and key in keys:
            return (every, []) if key == keys[0] else ([], every)
        if phase == RECOMPUTE and counts[phase, 0, len(every)]:
            return [], every
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
    cell = run * (len(PHASES) + 1) + line.phase + 1  # of a run with transfers of several phases its own
    pass_of = np.full(int(cell.max(initial=0)) + 1, NONE, np.int64)
    pass_of[cell[reads.member][::-1]] = reads.of_pass[::-1]  # of several transfers the first
    copies = np.flatnonzero(moved & (line.what == COPY))
    owner = pass_of[cell[copies]]
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
