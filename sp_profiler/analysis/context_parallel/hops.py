"""Each hop of each rank over all its whole passes of a phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sp_profiler.analysis.context_parallel.families import BOTH, RING, SELF_ATTENTION
from sp_profiler.analysis.context_parallel.lines import PHASES
from sp_profiler.analysis.context_parallel.medians import medians
from sp_profiler.analysis.context_parallel.results import Hop
from sp_profiler.analysis.context_parallel.split import Split
from sp_profiler.analysis.context_parallel.tables import Rows, Shown
from sp_profiler.analysis.intervals import sum_by, union_by_key
from sp_profiler.trace.tables import NONE, Bool, Int64

_ORDER = ("q", "qkv", "kv", "k", "v", "kv+dkv", "dkv", "dout", "dk", "dv", "dqkv", "out")
"""In which order a pass has them, in reports."""
Larger = Literal["transfer", "attention", "equal"]


@dataclass(frozen=True)
class PassHops:
    """A row for each hop of each whole pass; int64 columns, NONE where not known."""

    shown: Int64
    of_pass: Int64
    phase: Int64
    payload: Int64
    hop: Int64
    dur_ns: Int64  # from the first kernel's start to the last one's end
    transfer_ns: Int64
    attention_ns: Int64
    bytes: Int64
    kernel: Int64  # row of `Rows`, of each kernel ...
    of: Int64  # ... and whose hop it is


def pass_hops(rows: Rows, shown: Sequence[Shown]) -> PassHops:
    """Kernels put together to hops."""
    kernel = np.flatnonzero(rows.is_whole)
    key = (rows.of_pass[kernel] * max(len(rows.payloads), 1) + rows.payload[kernel]) * 2**20 + rows.hop[
        kernel
    ]
    _, first, of = np.unique(key, return_index=True, return_inverse=True)
    count = len(first)
    lead = kernel[first]
    begin = np.full(count, 2**62, np.int64)
    end = np.full(count, -(2**62), np.int64)
    np.minimum.at(begin, of, rows.start_ns[kernel])
    np.maximum.at(end, of, rows.end_ns[kernel])
    in_pairs = np.array([one.family.in_pairs for one in shown], np.bool_)[rows.shown[lead]]
    # What is sent is received as well: where kernels do one of the two, a hop is one way's.
    way = np.where(in_pairs[of], rows.way[kernel], BOTH)
    size, transfer = (_of_one_way(each(rows, kernel, of * 3 + way, count * 3)) for each in (_sizes, _times))
    return PassHops(
        shown=rows.shown[lead],
        of_pass=rows.of_pass[lead],
        phase=_by_pass(shown, "phase")[rows.of_pass[lead]],
        payload=rows.payload[lead],
        hop=rows.hop[lead],
        dur_ns=end - begin,
        transfer_ns=np.where(_all(of, rows.transfer_ns[kernel] >= 0, count), transfer, NONE),
        attention_ns=_beside(rows, lead, shown),
        bytes=np.where(_all(of, rows.bytes[kernel] >= 0, count), size, NONE),
        kernel=kernel,
        of=of,
    )


def _sizes(rows: Rows, kernel: Int64, key: Int64, count: int) -> Int64:
    return sum_by(key, rows.bytes[kernel], count)


def _times(rows: Rows, kernel: Int64, key: Int64, count: int) -> Int64:
    """K and V may travel at the same time: their time is that of the two together."""
    taken = np.maximum(rows.transfer_ns[kernel], 0)
    owner, travels = union_by_key(key, rows.end_ns[kernel] - taken, rows.end_ns[kernel])
    return sum_by(owner, travels.end - travels.start, count)


def _of_one_way(amount: Int64) -> Int64:
    """Of each hop the larger of its ways: BOTH, SENDS, RECEIVES side by side."""
    return amount.reshape(-1, 3).max(axis=1)


def _by_pass(shown: Sequence[Shown], name: str) -> Int64:
    return np.concatenate([getattr(one.family.passes, name) for one in shown])


def _all(of: Int64, verdict: Bool, count: int) -> Bool:
    result = np.ones(count, np.bool_)
    result[of[~verdict]] = False
    return result


def _beside(rows: Rows, lead: Int64, shown: Sequence[Shown]) -> Int64:
    """The attention that runs beside each hop; NONE where none does, or none is known in its family."""
    found = np.full(len(lead), NONE, np.int64)
    for s, one in enumerate(shown):
        attention = one.family.passes.attention_ns
        mine = np.flatnonzero((rows.shown[lead] == s) & (rows.beside[lead] >= 0))
        if len(mine) and attention.any():
            at = lead[mine]
            found[mine] = attention[rows.of_pass[at] - rows.first_pass[s], rows.beside[at]]
    return found


def hops_of(hops: PassHops, rows: Rows, parts: Split, shown: Sequence[Shown]) -> list[Hop]:
    """The report's rows, sorted by group, rank, device, phase, payload and hop."""
    if len(hops.shown) == 0:
        return []
    names = list(rows.payloads)
    rank_of_payload = np.array([_ORDER.index(name) for name in names], np.int64)[hops.payload]
    columns = np.stack((hops.shown, hops.phase, rank_of_payload, hops.hop))
    order = np.lexsort(columns[::-1])
    begins = np.ones(len(order), np.bool_)
    begins[1:] = np.any(columns[:, order[1:]] != columns[:, order[:-1]], axis=0)
    key = np.empty(len(order), np.int64)
    key[order] = np.cumsum(begins) - 1
    count = int(begins.sum())
    lead = order[begins]
    passes = np.bincount(key, minlength=count)
    kernel_key = key[hops.of]
    sums = {
        name: sum_by(kernel_key, column[hops.kernel], count)
        for name, column in (
            ("hidden_ns", rows.hidden_ns),
            ("exposed_ns", rows.exposed_ns),
            ("communication_ns", parts.communication_ns),
            ("imbalance_ns", parts.imbalance_ns),
            ("skew_ns", parts.skew_ns),
        )
    }
    matched = _all(kernel_key, parts.communication_ns[hops.kernel] >= 0, count)
    both = (hops.transfer_ns >= 0) & (hops.attention_ns >= 0)
    compared = _all(key, both, count)
    wins = sum_by(key, (both & (hops.transfer_ns > hops.attention_ns)).astype(np.int64), count)
    dur, transfer, attention, size = (
        medians(key, column, count)
        for column in (hops.dur_ns, hops.transfer_ns, hops.attention_ns, hops.bytes)
    )
    found: list[Hop] = []
    for k, at in enumerate(lead.tolist()):
        one = shown[int(hops.shown[at])]
        is_ring = one.family.kind in (RING, SELF_ATTENTION)
        source, target = one.family.ends[int(hops.phase[at])] if is_ring else (None, None)
        found.append(
            Hop(
                group=one.group,
                rank=one.rank,
                device=one.device,
                phase=PHASES[int(hops.phase[at])],
                payload=names[int(hops.payload[at])],
                hop=int(hops.hop[at]),
                passes=int(passes[k]),
                source=source,
                target=target,
                bytes=_known(size[k]),
                dur_ns=int(dur[k]),
                transfer_ns=_known(transfer[k]),
                attention_ns=_known(attention[k]),
                larger=_larger(int(transfer[k]), int(attention[k])) if compared[k] else None,
                passes_transfer_larger=int(wins[k]) if compared[k] else None,
                hidden_ns=int(sums["hidden_ns"][k]),
                exposed_ns=int(sums["exposed_ns"][k]),
                **{
                    name: int(sums[name][k]) if matched[k] else None
                    for name in ("communication_ns", "imbalance_ns", "skew_ns")
                },
            )
        )
    return found


def _known(value: int) -> int | None:
    return None if value < 0 else int(value)


def _larger(transfer_ns: int, attention_ns: int) -> Larger:
    if transfer_ns == attention_ns:
        return "equal"
    return "transfer" if transfer_ns > attention_ns else "attention"
