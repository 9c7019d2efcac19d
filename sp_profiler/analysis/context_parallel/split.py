"""Exposed time of transfers, divided: communication, imbalance, skew.

    exposed = communication + imbalance + skew

What is exposed after the last of its ranks arrived is communication. Of what is exposed before, imbalance is
the part that attention explains, and the rest is skew. To know it, all ranks are replayed with nothing but
what was measured of attention and of transfers:

    a block begins when the block before it, and the transfer that had ended when it began, have ended;
    a rank arrives when the attention launched before, and the transfer that it followed, have ended;
    a transfer ends its measured time after the last of its ranks arrived.

As long as a rank waits in this replay, it waits because of attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.context_parallel.medians import medians
from sp_profiler.analysis.context_parallel.tables import Rows
from sp_profiler.analysis.hosts import middle
from sp_profiler.trace.tables import NONE, Int64


@dataclass(frozen=True)
class Split:
    """By row; int64 ns, NONE where ranks were not matched."""

    communication_ns: Int64
    imbalance_ns: Int64
    skew_ns: Int64


def split(rows: Rows) -> Split:
    """Divide the exposed time of all rows."""
    known = rows.waited_ns >= 0
    exposed_wait = np.where(known, np.minimum(rows.exposed_wait_ns, rows.exposed_ns), 0)
    waits = np.minimum(_replayed_waits(rows), np.maximum(rows.waited_ns, 0))
    imbalance = np.minimum(waits, exposed_wait)
    return Split(
        np.where(known, rows.exposed_ns - exposed_wait, NONE),
        np.where(known, imbalance, NONE),
        np.where(known, exposed_wait - imbalance, NONE),
    )


def _replayed_waits(rows: Rows) -> Int64:
    """How long each row waits in the replay: the k-th transfers of all ranks together, k = 0, 1, ..."""
    count = len(rows.shown)
    turn = _turns(rows)
    order = np.lexsort((rows.shown, turn))
    place = np.empty(count + 1, np.int64)
    place[order], place[-1] = np.arange(count), count
    family, before = rows.shown[order], rows.before_ns[order]
    needs, follows = place[rows.needs[order]], place[rows.follows[order]]
    took = _took(rows)[order]
    meets = place[rows.meets]
    entries = np.lexsort((meets, rows.meeting, turn[rows.meets]))
    meets, meeting, when = meets[entries], rows.meeting[entries], turn[rows.meets][entries]
    begins = np.flatnonzero(
        np.concatenate(([True], (np.diff(meeting) != 0) | (np.diff(when) != 0)))[: len(meets)]
    )
    turns = np.arange(int(turn.max(initial=-1)) + 2)
    bounds = np.searchsorted(turn[order], turns).tolist()
    first_meeting = np.searchsorted(when[begins], turns).tolist()
    begins = np.append(begins, len(meets))
    sizes = np.diff(begins)

    ended = np.zeros(count + 1, np.int64)  # the last place answers for NONE
    clock = np.zeros(int(family.max(initial=-1)) + 1, np.int64)
    waits = np.zeros(count, np.int64)
    for k in turns[:-1].tolist():
        low, high = bounds[k], bounds[k + 1]
        of = family[low:high]
        ready = np.maximum(clock[of], ended[needs[low:high]]) + before[low:high]
        arrival = np.maximum(ready, ended[follows[low:high]])
        clock[of] = ready
        met = arrival.copy()
        some = slice(first_meeting[k], first_meeting[k + 1])
        if some.stop > some.start:
            start = int(begins[some.start])
            here = meets[start : int(begins[some.stop])] - low
            latest = np.maximum.reduceat(arrival[here], begins[some] - start)
            np.maximum.at(met, here, np.repeat(latest, sizes[some]))
        waits[low:high] = met - arrival
        ended[low:high] = met + took[low:high]
    result = np.empty(count, np.int64)
    result[order] = waits
    return result


def _took(rows: Rows) -> Int64:
    """What each transfer takes without a wait; where that is not known the median of those of its size, else
    all its time."""
    known = rows.transfer_ns >= 0
    if known.all():
        return rows.transfer_ns
    sizes, size = np.unique(rows.bytes, return_inverse=True)
    usual = medians(size[known], rows.transfer_ns[known], len(sizes))[size]
    whole = rows.end_ns - rows.start_ns
    return np.where(known, rows.transfer_ns, np.where(usual >= 0, np.minimum(usual, whole), whole))


def _turns(rows: Rows) -> Int64:
    """When the replay comes to each row: its place in its family, moved so that those who meet come together
    also where a window begins later on one rank."""
    families = int(rows.shown.max(initial=-1)) + 1
    first = np.searchsorted(rows.shown, np.arange(families))
    place = np.arange(len(rows.shown)) - first[rows.shown]
    order = np.argsort(rows.meeting, kind="stable")
    one, two = rows.meets[order[:-1]], rows.meets[order[1:]]
    same = rows.meeting[order[:-1]] == rows.meeting[order[1:]]
    one, two = one[same], two[same]
    pair = rows.shown[one] * families + rows.shown[two]
    links: dict[int, list[tuple[int, int]]] = {}
    by_pair = np.argsort(pair, kind="stable")
    names, begins = np.unique(pair[by_pair], return_index=True)
    stops = np.append(begins[1:], len(pair))[: len(begins)]
    for name, low, high in zip(names.tolist(), begins.tolist(), stops.tolist(), strict=True):
        some = by_pair[low:high]
        a, b = divmod(name, families)
        shift = middle(place[one[some]] - place[two[some]])
        links.setdefault(a, []).append((b, shift))
        links.setdefault(b, []).append((a, -shift))
    moved: dict[int, int] = {}
    for family in range(families):
        if family in moved:
            continue
        moved[family] = 0
        reached = [family]
        for a in reached:
            for b, shift in links.get(a, []):
                if b not in moved:
                    moved[b] = moved[a] + shift
                    reached.append(b)
    shifts = np.array([moved[family] for family in range(families)], np.int64)
    turn = place + shifts[rows.shown]
    return turn - int(turn.min(initial=0))
