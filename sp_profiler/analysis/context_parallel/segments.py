"""Transfers of one group, cut into runs with nothing but attention in between, and the attention in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.context_parallel.lines import ATTENTION, BACKWARD, BORDER, RECOMPUTE, Line
from sp_profiler.trace.tables import NONE, Bool, Int64


@dataclass(frozen=True)
class Segments:
    """Members are transfers in order of launch. Slot `first[s] + s` is what runs before the first member of
    segment s, and each member has a slot after it: `member + segment + 1`. Int64 columns."""

    member: Int64  # row of the line
    segment: Int64  # of each member
    first: Int64  # first member of each segment, with the number of members appended
    attention: Int64  # rows of the line that are attention (or a softmax), with a slot each
    slot: Int64
    has_attention: Bool  # by slot
    has_softmax: Bool

    @property
    def count(self) -> int:
        return len(self.first) - 1

    def slots_of(self, segment: int) -> slice:
        return slice(int(self.first[segment]) + segment, int(self.first[segment + 1]) + segment + 1)

    def members_of(self, segment: int) -> slice:
        return slice(int(self.first[segment]), int(self.first[segment + 1]))


def segments_of(line: Line, is_member: Bool, is_border: Bool | None = None) -> Segments:
    """Segments of these transfers. A border (or a product that is no attention) ends one, and so does another
    step, phase, module, layer or node of backward."""
    borders = (line.what == BORDER) if is_border is None else is_border | (line.what == BORDER)
    block = np.cumsum(borders)
    member = np.flatnonzero(is_member)
    behind = np.isin(line.phase[member], (BACKWARD, RECOMPUTE))
    marks = (
        block[member],
        line.key[member],
        line.phase[member],
        np.where(behind, line.node[member], NONE),
    )
    begins = np.ones(len(member), np.bool_)
    launched = line.launch_ns[member] != NONE
    both = launched[1:] & launched[:-1]  # of what was launched before the trace nobody knows them
    begins[1:] = (marks[0][1:] != marks[0][:-1]) | (
        both & np.any([mark[1:] != mark[:-1] for mark in marks[1:]], axis=0)
    )
    segment = np.cumsum(begins) - 1
    first = np.append(np.flatnonzero(begins), len(member))

    attention = np.flatnonzero((line.what == ATTENTION) | line.is_softmax)
    before = np.searchsorted(member, attention, side="left") - 1  # the member launched before it
    after = np.minimum(before + 1, len(member) - 1)
    fits_before = (before >= 0) & _together(line, block, member[np.maximum(before, 0)], attention)
    fits_after = (before + 1 < len(member)) & _together(line, block, member[after], attention)
    fits_after &= begins[after]
    kept = fits_before | fits_after
    slot = np.where(fits_before, before + segment[before] + 1, after + segment[after])[kept]
    attention = attention[kept]
    slots = len(member) + len(first) - 1
    has_attention, has_softmax = np.zeros(slots, np.bool_), np.zeros(slots, np.bool_)
    has_attention[slot] = True
    has_softmax[slot[line.is_softmax[attention]]] = True
    return Segments(member, segment, first, attention, slot, has_attention, has_softmax)


def _together(line: Line, block: Int64, member: Int64, row: Int64) -> Bool:
    """Whether nothing lies between a transfer and an attention, and their phases, where known, are one."""
    one, two = line.phase[member], line.phase[row]
    return (block[member] == block[row]) & ((one == two) | (one == NONE) | (two == NONE))
