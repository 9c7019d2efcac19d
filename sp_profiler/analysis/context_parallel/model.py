"""The model of a ring step, max(m/beta + alpha, attention), fitted to what was measured (Liu et al. 2023,
arXiv 2310.01889, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sp_profiler.analysis.context_parallel.families import RING, SELF_ATTENTION, Passes
from sp_profiler.analysis.context_parallel.hops import PassHops
from sp_profiler.analysis.context_parallel.lines import PHASES
from sp_profiler.analysis.context_parallel.results import StepModel
from sp_profiler.analysis.context_parallel.tables import Rows, Shown
from sp_profiler.trace.tables import NONE, Bool, Int64


def models_of(
    group: str, members: Sequence[int], shown: Sequence[Shown], hops: PassHops, rows: Rows
) -> list[StepModel]:
    """One for each phase of a ring. `members` are the places in `shown` of the group's families."""
    found: list[StepModel] = []
    members = [s for s in members if shown[s].family.kind in (RING, SELF_ATTENTION)]
    mine = np.isin(hops.shown, members)
    for phase, name in enumerate(PHASES):
        chosen = mine & (hops.phase == phase)
        if chosen.any():
            one = _model(group, name, members, shown, hops, np.flatnonzero(chosen), phase, rows)
            if one is not None:
                found.append(one)
    return found


def _model(
    group: str,
    name: str,
    members: Sequence[int],
    shown: Sequence[Shown],
    hops: PassHops,
    chosen: Int64,
    phase: int,
    rows: Rows,
) -> StepModel | None:
    """What a hop takes is the median over hops of its size, without the wait for the peer where ranks were
    matched."""
    time = np.where(hops.transfer_ns >= 0, hops.transfer_ns, hops.dur_ns)[chosen]
    kinds, kind = np.unique(hops.payload[chosen] * 2**40 + hops.bytes[chosen], return_inverse=True)
    cost = np.array([int(np.median(time[kind == k])) for k in range(len(kinds))], np.int64)
    size = np.array([int(hops.bytes[chosen][kind == k][0]) for k in range(len(kinds))], np.int64)
    steps = [_steps(shown[s].family.passes, phase) for s in members]
    carried = [_carried(shown[s].family.passes, hops, chosen, kind, cost, s, rows, phase) for s in members]
    attention, lasted = (np.concatenate([one[i] for one in steps]) for i in range(2))
    beside = np.concatenate([one[0] for one in carried])
    last = np.concatenate([one[1] for one in carried])
    if not attention.any():
        return None
    measured = (lasted > 0) & (attention >= 0)
    overlapped = _overlapped(members, shown, hops, chosen, rows)
    model = np.maximum(beside, attention) if overlapped is not False else beside + attention
    residual = np.abs(model - lasted)[measured] / lasted[measured]
    whole = np.concatenate(
        [
            (one.end_ns - one.begin_ns)[one.is_whole & (one.phase == phase)]
            for one in (shown[s].family.passes for s in members)
        ]
    )
    by_pass = np.maximum(beside, attention).sum(axis=1) + last
    typical = beside[beside > 0]
    latency, speed = _latency(cost, size)
    return StepModel(
        group=group,
        phase=name,
        ring_steps=int(measured.sum()),
        hop_bytes=_carried_bytes(hops, chosen),
        hop_ns=int(np.median(typical)) if len(typical) else None,
        latency_ns=latency,
        bytes_per_s=speed,
        attention_ns=int(np.median(attention[attention > 0])),
        measured_pass_ns=int(np.median(whole)),
        model_pass_ns=int(np.median(by_pass)),
        residual_ratio=float(min(np.median(residual), 1.0)) if len(residual) else None,
        is_this_machine_only=any(shown[s].is_cpu for s in members),
        schedule=None if overlapped is None else "overlapped" if overlapped else "in-turn",
    )


def _steps(passes: Passes, phase: int) -> tuple[Int64, Int64]:
    """Attention of each ring step of the whole passes, and how long the step lasted: until the next begins,
    the last to the end of its attention; NONE where nothing tells. Shape (passes, steps)."""
    chosen = passes.is_whole & (passes.phase == phase)
    begin, end = passes.step_begin_ns[chosen], passes.step_end_ns[chosen]
    following = np.concatenate((begin[:, 1:], end[:, -1:]), axis=1)
    lasted = np.where((begin >= 0) & (following >= 0), following - begin, NONE)
    return passes.attention_ns[chosen], lasted


def _carried(
    passes: Passes,
    hops: PassHops,
    chosen: Int64,
    kind: Int64,
    cost: Int64,
    shown: int,
    rows: Rows,
    phase: int,
) -> tuple[Int64, Int64]:
    """What the hops beside each ring step of the whole passes take by the model, and what no step is beside:
    shapes (passes, steps) and (passes,)."""
    count, steps = passes.attention_ns.shape
    table = np.zeros((count, steps + 1), np.int64)
    mine = hops.shown[chosen] == shown
    at = chosen[mine]
    place = hops.of_pass[at] - rows.first_pass[shown]
    np.add.at(table, (place, np.minimum(hops.hop[at], steps)), cost[kind[mine]])
    whole = passes.is_whole & (passes.phase == phase)
    return table[whole, :steps], table[whole, steps]


def _carried_bytes(hops: PassHops, chosen: Int64) -> int | None:
    """Bytes beside one ring step: the most frequent sum; None where a size is not known."""
    if (hops.bytes[chosen] < 0).any():
        return None
    cells, cell = np.unique(hops.of_pass[chosen] * 2**20 + hops.hop[chosen], return_inverse=True)
    sums = np.zeros(len(cells), np.int64)
    np.add.at(sums, cell, hops.bytes[chosen])
    sizes, counts = np.unique(sums, return_counts=True)
    return int(sizes[counts == counts.max()].max())


def _latency(cost: Int64, size: Int64) -> tuple[int | None, float | None]:
    """alpha in ns and beta in bytes/s from the smallest and the largest hop, as far as a line through both
    has a positive slope and no negative latency."""
    known = size >= 0
    cost, size = cost[known], size[known]
    if len(size) < 2 or size.min() == size.max():
        return None, None
    low, high = int(np.median(cost[size == size.min()])), int(np.median(cost[size == size.max()]))
    if high <= low:
        return None, None
    per_byte = (high - low) / int(size.max() - size.min())
    latency = low - per_byte * int(size.min())
    return (round(latency), 1e9 / per_byte) if latency >= 0 else (None, None)


def _overlapped(
    members: Sequence[int], shown: Sequence[Shown], hops: PassHops, chosen: Int64, rows: Rows
) -> bool | None:
    """Whether most hops run beside some computation; None where no ring step has attention and a hop.

    On a CPU, where ranks share the cores, what was launched says it better than the times do.
    """
    modes = [shown[s].family.is_async for s in members if shown[s].is_cpu]
    if modes and None not in modes:
        return sum(map(bool, modes)) * 2 > len(modes)
    together = apart = 0
    for s in members:
        passes = shown[s].family.passes
        is_mine: Bool = rows.is_whole & (rows.shown == s) & (rows.beside >= 0)
        at = np.flatnonzero(is_mine)
        place = rows.of_pass[at] - rows.first_pass[s]
        known = np.isin(rows.of_pass[at], hops.of_pass[chosen])
        known &= passes.step_end_ns[place, rows.beside[at]] >= 0
        at, place = at[known], place[known]
        hidden = rows.hidden_ns[at] > 0
        together += int(hidden.sum())
        apart += int((~hidden).sum())
    return together * 2 > together + apart if together + apart else None
