"""Attention over keys and values that were gathered: the passes on one device.

A segment is a pass: gathers of K and V (all at once, or by slices of heads while the slice before computes),
attention, and in backward reductions of dK and dV, or a ring that carries them home.
"""

from __future__ import annotations

import numpy as np

from sp_profiler.analysis.context_parallel.lines import (
    ATTENTION,
    BACKWARD,
    FORWARD,
    GATHER,
    HOPS,
    RECOMPUTE,
    REDUCE,
    Line,
)
from sp_profiler.analysis.context_parallel.measure import Reads
from sp_profiler.analysis.context_parallel.segments import Segments, segments_of
from sp_profiler.trace.tables import NONE, Int64

PAYLOADS = ("kv", "k", "v", "dkv", "dk", "dv")
_KV, _K, _V, _DKV, _DK, _DV = range(6)


def read_gathers(line: Line, group: int) -> Reads:
    """The passes of a group that gathers keys and values. The first transfer of each kind is hop 0; ring step
    s is the attention launched after transfer s of the pass and before the next."""
    of_group = line.group == group
    gathers = of_group & (line.what == GATHER)
    returns = of_group & np.isin(line.what, (REDUCE, *HOPS))
    segments = segments_of(line, gathers | returns)
    is_gather = gathers[segments.member]
    hop, payload = _numbered(segments, is_gather)
    place = np.arange(len(segments.member)) - segments.first[segments.segment]
    steps = int(np.diff(segments.first).max(initial=1)) + 1
    is_attention = line.what[segments.attention] == ATTENTION
    row = segments.attention[is_attention]
    slot = segments.slot[is_attention]
    segment = np.searchsorted(segments.first[:-1] + np.arange(segments.count), slot, side="right") - 1
    step = slot - segments.first[segment] - segment  # 0: before the first transfer, else 1 + its place
    ran = np.zeros((max(segments.count, 1), steps), np.bool_)
    ran[segment, step] = True
    return Reads(
        member=segments.member,
        of_pass=segments.segment,
        payload=payload,
        hop=hop,
        beside=np.where(ran[segments.segment, place + 1], place + 1, NONE),
        row=row,
        row_pass=segment,
        row_step=step,
        phase=_phases(line, segments, is_gather),
        is_read=_is_whole(segments, is_gather, len(row) > 0, ran),
        steps=steps,
        payloads=PAYLOADS,
    )


def _numbered(segments: Segments, is_gather: np.ndarray) -> tuple[Int64, Int64]:
    """Of each transfer its number among those of its kind in its pass, and what it carries.

    Two of a kind are K and V; any other number carries both.
    """
    hop, payload = np.zeros(len(is_gather), np.int64), np.zeros(len(is_gather), np.int64)
    for kind, whole, parts in ((is_gather, _KV, (_K, _V)), (~is_gather, _DKV, (_DK, _DV))):
        at = np.flatnonzero(kind)
        counts = np.bincount(segments.segment[at], minlength=segments.count)
        before = np.cumsum(counts) - counts
        number = np.arange(len(at)) - before[segments.segment[at]]
        hop[at] = number
        two = counts[segments.segment[at]] == 2
        payload[at] = np.where(two, np.array(parts)[np.minimum(number, 1)], whole)
        hop[at] = np.where(two, 0, number)
    return hop, payload


def _phases(line: Line, segments: Segments, is_gather: np.ndarray) -> Int64:
    told = line.phase[segments.member[segments.first[:-1]]]
    gives_back = np.bincount(segments.segment[~is_gather], minlength=segments.count) > 0
    alone = (told == BACKWARD) & ~gives_back
    has_gradients = bool(gives_back.any())
    phase = np.where(told == NONE, FORWARD, told)
    # Gathers alone inside backward are a forward that it repeats, where backward gives gradients back.
    phase = np.where(alone & has_gradients, RECOMPUTE, phase)
    return np.where(gives_back, BACKWARD, phase).astype(np.int64)


def _is_whole(segments: Segments, is_gather: np.ndarray, attends: bool, ran: np.ndarray) -> np.ndarray:
    """Passes that begin with a gather and, where attention is known at all, hold some."""
    begins = np.asarray(is_gather[segments.first[:-1]], np.bool_)
    return begins & (np.asarray(ran.any(axis=1), np.bool_)[: segments.count] | (not attends))
