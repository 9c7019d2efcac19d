"""Two blocks of attention with no launch of a hop in between, told apart.

After the last hop of a forward the block beside it is launched, and then the one that it brought. Each rule
says how many activities the first has; the first rule that knows decides:

ranges   each block has an annotated range of its own
wait     the second is launched after the wait for the hop
count    the first has as many activities as the step before
names    the names of the first half come again in the second
time     the second needs the hop: it begins after its end
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.context_parallel.lines import ATTENTION, Line
from sp_profiler.analysis.context_parallel.segments import Segments
from sp_profiler.classify.tables import Collective
from sp_profiler.trace.tables import NONE, Bool, Int64

FIRST, SECOND, NEITHER = range(3)
_FAR = 2**62


@dataclass(frozen=True)
class Blocks:
    """What was read of a ring: of each attention its pass and step, of each kernel its pass and hop."""

    line: Line
    segments: Segments
    row_pass: Int64
    row_step: Int64
    of_pass: Int64
    hop: Int64
    rows: tuple[Collective, ...]


@dataclass(frozen=True)
class _Tails:
    """Attention of all slots with two blocks, slot by slot in order of launch."""

    blocks: Blocks
    where: Int64  # index into the segments' attention
    number: Int64  # its slot
    place: Int64  # in its slot
    begins: Int64  # where each slot begins
    count: Int64  # activities of each slot
    row: Int64  # of the line
    hop: Int64  # the last kernel of the hop that each slot follows

    def counted(self, mark: Bool) -> Int64:
        """How many activities of each slot are marked."""
        found = np.zeros(len(self.count), np.int64)
        np.add.at(found, self.number, mark)
        return found


def halves_of(blocks: Blocks, tail: Bool) -> Int64:
    """Of each attention FIRST or SECOND (FIRST where it shares its slot with no other block). NEITHER is
    what an annotated range beyond the two holds: the softmax of ring self-attention."""
    halves = np.full(len(tail), FIRST, np.int64)
    where = np.flatnonzero(tail)
    if len(where) == 0:
        return halves
    tails = _tails_of(blocks, where)
    cut = np.full(len(tails.count), NONE, np.int64)
    for rule in _RULES:
        found = rule(tails)
        cut = np.where(cut == NONE, found, cut)
    halves[tails.where] = np.where(tails.place >= cut[tails.number], SECOND, FIRST)
    end = _range_begins(tails, 2)
    halves[tails.where[(end[tails.number] != NONE) & (tails.place >= end[tails.number])]] = NEITHER
    return halves


def _tails_of(blocks: Blocks, where: Int64) -> _Tails:
    width = int(blocks.row_step.max()) + 2
    cell = blocks.row_pass[where] * width + blocks.row_step[where]
    cells, number, count = np.unique(cell, return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    where, number = where[order], number[order]
    begins = np.cumsum(count) - count
    return _Tails(
        blocks,
        where,
        number,
        np.arange(len(where)) - begins[number],
        begins,
        count,
        blocks.segments.attention[where],
        _hop_before(blocks, *np.divmod(cells, width)),
    )


def _hop_before(blocks: Blocks, pass_: Int64, step: Int64) -> Int64:
    """The last kernel of the last hop that travels beside these steps of passes, or before them."""
    width = int(max(blocks.hop.max(initial=0), step.max(initial=0))) + 1
    cells = blocks.of_pass * width + blocks.hop
    order = np.argsort(cells, kind="stable")
    return order[np.searchsorted(cells[order], pass_ * width + step, side="right") - 1]


def _by_ranges(tails: _Tails) -> Int64:
    return _range_begins(tails, 1)


def _range_begins(tails: _Tails, nth: int) -> Int64:
    """Where the nth range after the first begins in each slot, its end without one; NONE without ranges."""
    ranges = tails.blocks.line.range_ns[tails.row]
    changes = (tails.place > 0) & (ranges != np.roll(ranges, 1))
    total = np.cumsum(changes)
    ordinal = total - (total - changes)[tails.begins][tails.number]
    at = np.full(len(tails.count), _FAR, np.int64)
    np.minimum.at(at, tails.number[ordinal == nth], tails.place[ordinal == nth])
    named = np.minimum.reduceat(ranges, tails.begins) != NONE
    return np.where(named, np.minimum(at, tails.count), NONE)


def _by_wait(tails: _Tails) -> Int64:
    blocks = tails.blocks
    hops = blocks.line.collective[blocks.segments.member[tails.hop]].tolist()
    waits = [blocks.rows[at].wait_start_ns for at in hops]
    wait = np.array([NONE if ns is None else ns for ns in waits], np.int64)
    launch = blocks.line.launch_ns[tails.row]
    early = tails.counted((launch != NONE) & (launch < wait[tails.number]))
    return np.where((wait != NONE) & (early > 0), early, NONE)


def _by_count(tails: _Tails) -> Int64:
    """As many as the step before of the same pass, where there are as many or twice as many."""
    blocks, lead = tails.blocks, tails.where[tails.begins]
    pass_, step = blocks.row_pass[lead], blocks.row_step[lead]
    width = int(blocks.row_step.max()) + 2
    # A merge of two blocks may be called a softmax: it is no block.
    known = (blocks.row_step >= 0) & (blocks.line.what[blocks.segments.attention] == ATTENTION)
    cells, counts = np.unique(blocks.row_pass[known] * width + blocks.row_step[known], return_counts=True)
    wanted = pass_ * width + step - 1
    at = np.minimum(np.searchsorted(cells, wanted), len(cells) - 1)
    before = np.where((step > 0) & (cells[at] == wanted), counts[at], 0)
    fits = (before > 0) & ((tails.count == before) | (tails.count >= 2 * before))
    return np.where(fits, before, NONE)


def _by_names(tails: _Tails) -> Int64:
    name, half = tails.blocks.line.name[tails.row], tails.count // 2
    twin = np.minimum(np.arange(len(name)) + half[tails.number], len(name) - 1)
    same = (tails.place >= half[tails.number]) | (name == name[twin])
    repeated = np.logical_and.reduceat(same, tails.begins) & (tails.count % 2 == 0)
    return np.where(repeated, half, NONE)


def _by_time(tails: _Tails) -> Int64:
    blocks = tails.blocks
    ended = blocks.line.end_ns[blocks.segments.member[tails.hop]]
    early = tails.counted(blocks.line.start_ns[tails.row] < ended[tails.number])
    return np.maximum(early, 1)


_RULES: tuple[Callable[[_Tails], Int64], ...] = (_by_ranges, _by_wait, _by_count, _by_names, _by_time)
