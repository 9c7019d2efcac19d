"""What the live bytes of a device consist of, at one instant and over time.

The parts always sum to the total. Beside the known blocks there are three: what was allocated before the
first event and is never freed (no event tells of it but the first total); blocks that were freed without an
event, which the file's totals still count; and what nothing explains, by which totals and events disagree
(the ledger says so, too; where totals tell less than the blocks it is negative).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sp_profiler.analysis.memory.blocks import (
    BEFORE,
    BEFORE_RECORDING,
    FREED_UNSEEN,
    NO_MODULE,
    NO_OPERATOR,
    UNEXPLAINED,
    UNKNOWN,
    Blocks,
    Timeline,
    phase_name,
)
from sp_profiler.analysis.memory.results import CATEGORIES, MemoryCurve, PhaseStretch
from sp_profiler.classify.tables import Phase
from sp_profiler.trace.tables import NONE, Int64

CURVE_POINTS = 2_000


@dataclass(frozen=True)
class Composition:
    """`unseen_category` is what the bytes allocated before the first event and never freed count as."""

    timeline: Timeline
    blocks: Blocks
    unseen_category: int

    @cached_property
    def unseen_bytes(self) -> int:
        """Allocated before the first event and never freed."""
        known = int(self.blocks.bytes[self.blocks.birth == BEFORE].sum())
        start = self.timeline.start_bytes
        return max(0, start - known) if start is not None else 0

    def total_after(self, position: int) -> int:
        """Live bytes after an event, BEFORE for before the first one."""
        if position == BEFORE:
            known = int(self.blocks.bytes[self.blocks.birth == BEFORE].sum())
            return known if self.timeline.start_bytes is None else self.timeline.start_bytes
        return int(self.timeline.total[position])

    def by_category(self, position: int) -> dict[str, int]:
        """Live bytes by category after an event, in the order of CATEGORIES."""
        rows = self.blocks.alive_after(position)
        parts = self.blocks.sums_by_category(rows)
        self._add(parts, CATEGORIES[self.unseen_category], self.unseen_bytes)
        self._add(parts, CATEGORIES[UNKNOWN], self._beside_blocks(position, rows))
        return {name: parts[name] for name in CATEGORIES if name in parts}

    def by_operator(self, position: int) -> dict[str, int]:
        """The same by the operator that made them (`Blocks.made_by`), largest first."""
        rows = self.blocks.alive_after(position)
        return self._named(self.blocks.sums(self.blocks.made_by, rows, NO_OPERATOR), position, rows)

    def by_module(self, position: int) -> dict[str, int]:
        """The same by module."""
        rows = self.blocks.alive_after(position)
        return self._named(self.blocks.sums(self.blocks.module, rows, NO_MODULE), position, rows)

    def _named(self, parts: dict[str, int], position: int, rows: Int64) -> dict[str, int]:
        unseen = self._freed_unseen(position)
        self._add(parts, BEFORE_RECORDING, self.unseen_bytes)
        self._add(parts, FREED_UNSEEN, unseen)
        self._add(parts, UNEXPLAINED, self._beside_blocks(position, rows) - unseen)
        return dict(sorted(parts.items(), key=lambda item: (-item[1], item[0])))

    def _freed_unseen(self, position: int) -> int:
        if self.timeline.is_relative:
            return 0  # then the totals are those of the blocks
        gone = self.blocks.freed_unseen & (self.blocks.death <= position)
        return int(self.blocks.bytes[gone].sum())

    def _beside_blocks(self, position: int, rows: Int64) -> int:
        return self.total_after(position) - int(self.blocks.bytes[rows].sum()) - self.unseen_bytes

    @staticmethod
    def _add(parts: dict[str, int], name: str, size: int) -> None:
        if size:
            parts[name] = parts.get(name, 0) + size

    def curve(self, positions: Int64) -> dict[str, list[int]]:
        """Live bytes of each category after the events at these positions; without those never alive."""
        count = len(self.timeline)
        curves: dict[str, list[int]] = {}
        explained = np.full(len(positions), self.unseen_bytes, dtype=np.int64)
        found = np.unique(self.blocks.category).tolist()
        for code in sorted({*found, self.unseen_category if self.unseen_bytes else UNKNOWN, UNKNOWN}):
            here = self.blocks.category == code
            change = np.zeros(count + 2, dtype=np.int64)  # place i: at event i-1; 0: before the first
            np.add.at(change, self.blocks.birth[here] + 1, self.blocks.bytes[here])
            np.subtract.at(change, self.blocks.death[here] + 1, self.blocks.bytes[here])
            live = np.cumsum(change)[positions + 1]
            explained += live
            if code == self.unseen_category:
                live = live + self.unseen_bytes
            if code == UNKNOWN:
                live = live + self.timeline.total[positions] - explained
            if live.any():
                curves[CATEGORIES[code]] = live.tolist()
        return curves


def peak_position(timeline: Timeline, start_bytes: int) -> int:
    """The first event after which most is allocated; BEFORE where it never exceeds the start."""
    if len(timeline) == 0:
        return BEFORE
    at = int(timeline.total.argmax())
    return at if int(timeline.total[at]) > start_bytes else BEFORE


def drawn_curve(timeline: Timeline, composition: Composition | None) -> MemoryCurve:
    """Live bytes over time in at most `CURVE_POINTS` points (and the ends).

    Drawn are the highest and the lowest point of each of equal stretches of time, so that no peak is lost.
    """
    positions = drawn_positions(timeline)
    return MemoryCurve(
        time_ns=timeline.time_ns[positions].tolist(),
        allocated_bytes=timeline.total[positions].tolist(),
        by_category=composition.curve(positions) if composition is not None else {},
        phases=phase_stretches(timeline),
    )


def phase_stretches(timeline: Timeline) -> list[PhaseStretch]:
    """The phases of each step as the events show them, in order of time."""
    if len(timeline) == 0:
        return []
    key = timeline.step.astype(np.int64) * len(Phase) + timeline.phase
    first = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    last = np.append(first[1:], len(timeline)) - 1
    return [
        PhaseStretch(
            phase=name,
            step=None if timeline.step[low] == NONE else int(timeline.step[low]),
            start_ns=int(timeline.time_ns[low]),
            end_ns=int(timeline.time_ns[high]),
        )
        for low, high in zip(first.tolist(), last.tolist(), strict=True)
        if (name := phase_name(timeline.phase[low])) is not None
    ]


def drawn_positions(timeline: Timeline) -> Int64:
    """Positions of the events to draw, sorted."""
    count = len(timeline)
    if count <= CURVE_POINTS:
        return np.arange(count, dtype=np.int64)
    time, total = timeline.time_ns, timeline.total
    stretches = CURVE_POINTS // 2
    span = max(1, int(time[-1] - time[0]))
    # int64 cannot hold the product of a day in nanoseconds and the number of stretches, float64 the quotient.
    stretch = np.minimum((time - time[0]) / span * stretches, stretches - 1).astype(np.int64)
    first = np.flatnonzero(np.append(True, stretch[1:] != stretch[:-1]))
    by_size = np.lexsort((np.arange(count), total, stretch))
    low, high = by_size[first], by_size[np.append(first[1:], count) - 1]
    return np.unique(np.concatenate((low, high, [0, count - 1, int(total.argmax())])))
