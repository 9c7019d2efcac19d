"""How evenly attention is divided among the ranks of a ring, measured and by counting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sp_profiler.analysis.context_parallel.families import GATHERS, RING, SELF_ATTENTION
from sp_profiler.analysis.context_parallel.lines import FORWARD, PHASES
from sp_profiler.analysis.context_parallel.medians import medians
from sp_profiler.analysis.context_parallel.results import Balance, Hop
from sp_profiler.analysis.context_parallel.tables import Shown, kind_of
from sp_profiler.analysis.context_parallel.told import Told
from sp_profiler.theory.ring import limit_balance, score_balance
from sp_profiler.trace.tables import Int64

Work = list[list[int | None]]


def ring_ranks(members: Sequence[Shown]) -> list[int]:
    """The ranks of a group in their order around the ring; empty where nobody knows them."""
    named = next((one.family.ranks for one in members if one.family.ranks), ())
    if named:
        return list(named)
    seen = sorted({one.rank for one in members if one.rank is not None})
    size = next((one.family.size for one in members if one.family.size), None)
    return seen if len(seen) == size else []


def work_of(members: Sequence[Shown], ranks: Sequence[int], phase: int) -> Work | None:
    """Median attention of each rank in each ring step; None where no rank shows a pass of the phase."""
    rows: dict[int, list[int]] = {}
    for one in members:
        passes = one.family.passes
        chosen = np.flatnonzero(passes.is_whole & (passes.phase == phase))
        if one.rank is None or len(chosen) == 0 or not passes.attention_ns[chosen].any():
            continue
        attention = passes.attention_ns[chosen]
        if one.family.kind == GATHERS:
            attention = attention.sum(axis=1, keepdims=True)
        row = _medians(attention)
        rows[one.rank] = (
            [a + b for a, b in zip(rows[one.rank], row, strict=True)] if one.rank in rows else row
        )
    if not rows:
        return None
    steps = max(map(len, rows.values()))
    return [list(rows[rank]) if rank in rows else [None] * steps for rank in ranks]


def _medians(attention: Int64) -> list[int]:
    passes, steps = attention.shape
    key = np.tile(np.arange(steps), passes)
    return medians(key, attention.reshape(-1), steps).tolist()


def contiguous_by_work(work: Work | None, size: int) -> bool:
    """Whether ranks compute exactly the blocks that a causal mask leaves where each holds a stretch of the
    sequence: rank i those of steps 0 to i. No other layout leaves a block out."""
    if work is None or len(work) != size or any(len(row) != size for row in work):
        return False
    known = [(i, row) for i, row in enumerate(work) if None not in row]
    fits = all(bool(row[s]) == (s <= i) for i, row in known for s in range(size))
    return fits and any(i < size - 1 for i, _ in known)


def balance_of(
    group: str,
    members: Sequence[Shown],
    hops: Sequence[Hop],
    told: Told,
    layout: str | None,
    causal: bool | None,
) -> list[Balance]:
    """One for each phase that is shown. `hops` are those of the group."""
    kind = kind_of(members)
    ranks = ring_ranks(members)
    if kind not in (RING, SELF_ATTENTION, GATHERS) or not ranks:
        return []
    found: list[Balance] = []
    for phase, name in enumerate(PHASES):
        work = work_of(members, ranks, phase)
        if work is None:
            continue
        scores = _scores(kind, told, len(ranks), layout, causal)
        if scores is not None and len(scores[0]) != len(work[0]):
            scores = None
        limit = None
        if kind == RING and causal is not None and (layout is not None or not causal):
            limit = float(limit_balance(layout or "contiguous", ranks=len(ranks), causal=causal))
        elif kind == SELF_ATTENTION:
            limit = 1.0
        lost, ratio = _lost(work)
        sums = {
            part: _sums(hops, ranks, name, part) for part in ("imbalance_ns", "communication_ns", "skew_ns")
        }
        found.append(
            Balance(
                group=group,
                phase=name,
                ranks=ranks,
                work_ns=work,
                scores=scores,
                measured_ratio=ratio,
                ideal_ratio=None if scores is None else float(score_balance(scores)),
                limit_ratio=limit,
                lost_ns=lost,
                **sums,
            )
        )
    return found


def _scores(
    kind: str, told: Told, size: int, layout: str | None, causal: bool | None
) -> list[list[int]] | None:
    if kind == SELF_ATTENTION:  # a mask hides scores, and saves no work
        whole = told.scores(size, None, False)
        return None if whole is None else [row * 2 for row in whole]
    scores = told.scores(size, layout, causal)
    if scores is not None and kind == GATHERS:
        return [[sum(row)] for row in scores]
    return scores


def _lost(work: Work) -> tuple[list[int] | None, float | None]:
    """Per rank the steps' maxima less its own work, and ideal over slowest; None where a rank is unknown."""
    rows = [[value for value in row if value is not None] for row in work]
    if any(len(row) != len(work[0]) for row in rows):
        return None, None
    slowest = sum(max(step) for step in zip(*rows, strict=True))
    total = sum(map(sum, rows))
    return [slowest - sum(row) for row in rows], total / (len(rows) * slowest) if slowest else None


def _sums(hops: Sequence[Hop], ranks: Sequence[int], phase: str, part: str) -> list[int] | None:
    """By rank the sum over its hops; None where one of them is not known, or a rank shows none."""
    by_rank: dict[int, list[int | None]] = {}
    for hop in hops:
        if hop.phase == phase and hop.rank is not None:
            by_rank.setdefault(hop.rank, []).append(getattr(hop, part))
    sums: list[int] = []
    for rank in ranks:
        values = [value for value in by_rank.get(rank, [None]) if value is not None]
        if len(values) != len(by_rank.get(rank, [None])):
            return None
        sums.append(sum(values))
    return sums


assert FORWARD == 0, "phases are numbered as they are named"
