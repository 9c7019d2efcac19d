"""Blocks of memory as columns: what traces and snapshots are turned into, and all figures are made from.

Everything about time is asked by *position*: the place of an event in the order in which the allocator did
its work. A block is alive after the events `birth <= i < death`, so equal timestamps need no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from sp_profiler.analysis.memory.results import CATEGORIES, MemoryBlock
from sp_profiler.classify.tables import Phase
from sp_profiler.trace.tables import NONE, Bool, Int8, Int32, Int64

BEFORE = -1
"""`birth` of a block that was alive when the recording began."""

NO_OPERATOR = "(no operator)"
NO_MODULE = "(no module)"
BEFORE_RECORDING = "(before the recording)"
FREED_UNSEEN = "(freed unseen)"
UNEXPLAINED = "(not explained)"
NO_LAYER = "none"

_CODE = {name: code for code, name in enumerate(CATEGORIES)}
PARAMETER = _CODE["parameter-optimizer"]
GRADIENT = _CODE["gradient"]
ACTIVATION = _CODE["activation"]
COMMUNICATION = _CODE["communication"]
TEMPORARY = _CODE["temporary"]
BEFORE_WINDOW = _CODE["before-window"]
UNKNOWN = _CODE["unknown"]

_PHASES = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}


def phase_name(phase: int) -> str | None:
    """The word for a phase in results, None for one that nobody knows."""
    return _PHASES.get(Phase(phase))


@dataclass(frozen=True)
class Timeline:
    """The allocator's events on one device, in its order; all columns have one value per event.

    `total` is what is allocated after each event: the file's own figure where it has one, otherwise the live
    bytes of the known blocks. `time_ns` never decreases.
    """

    time_ns: Int64
    total: Int64  # bytes
    reserved: Int64 | None  # bytes held from the device, NONE where not told; None: never told
    phase: Int8  # Phase in which each event happened
    step: Int32  # number of the profiled step, NONE outside
    start_bytes: int | None  # allocated before the first event; None: not known
    is_relative: bool = False  # totals count from what was allocated when the recording began

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(frozen=True)
class Blocks:
    """The blocks of one device, whole or in part; all columns have one value per block.

    String columns are codes into `names`, NONE (-1) for none.
    """

    bytes: Int64
    address: np.ndarray  # uint64
    birth: Int64  # position of the allocation in the timeline, BEFORE without one
    death: Int64  # position of the free; the timeline's length for what is alive at its end
    birth_ns: Int64  # NONE where `birth` is BEFORE
    death_ns: Int64  # NONE where nothing tells when it was freed
    category: Int8  # place in results.CATEGORIES
    operator: Int32  # the innermost operator around the allocation
    made_by: Int32  # the innermost one that is more than an allocation (`aten::empty`): what figures are by
    phase: Int8  # classify.tables.Phase
    step: Int32  # NONE outside of steps
    module: Int32
    layer: Int32
    freed_by: Int32
    freed_phase: Int8
    crosses_border: Bool
    freed_unseen: Bool  # its address was allocated again: its free is missing, and totals still count it
    names: Sequence[str]
    stack_of: Callable[[int], list[str]] = field(default=lambda row: [], compare=False)

    def __len__(self) -> int:
        return len(self.bytes)

    def alive_after(self, position: int) -> Int64:
        """Rows of the blocks that are alive after the event at this position."""
        return np.flatnonzero((self.birth <= position) & (position < self.death))

    def sums(self, codes: Int32, rows: Int64, none: str) -> dict[str, int]:
        """Bytes of these rows by a string column, largest first; `none` names what has no string.

        `codes` has one value per block.
        """
        picked, sizes = codes[rows], self.bytes[rows]
        return _largest_first(_summed(picked, sizes), lambda code: none if code == NONE else self.names[code])

    def sums_by_category(self, rows: Int64) -> dict[str, int]:
        """Bytes of these rows by category, in the order of CATEGORIES; those without a block are absent."""
        return {CATEGORIES[code]: total for code, total in _summed(self.category[rows], self.bytes[rows])}

    def sums_by_layer(self, rows: Int64) -> dict[str, int]:
        """Bytes of these rows by layer, in order; what belongs to none comes last (NO_LAYER)."""
        found = dict(_summed(self.layer[rows], self.bytes[rows]))
        outside = found.pop(NONE, None)
        known = {str(layer): total for layer, total in found.items()}
        return known if outside is None else {**known, NO_LAYER: outside}

    def sums_by_layer_and_category(self, rows: Int64) -> dict[str, dict[str, int]]:
        """Bytes of these rows by layer as in `sums_by_layer`, and within each by category."""
        layers = self.sums_by_layer(rows)
        number = self.layer[rows]
        return {
            name: self.sums_by_category(rows[number == (NONE if name == NO_LAYER else int(name))])
            for name in layers
        }

    def largest(self, rows: Int64, count: int) -> Int64:
        """At most `count` of these rows, largest first, the older of equal ones first."""
        order = np.lexsort((self.birth[rows], -self.bytes[rows]))
        return rows[order[:count]]

    def shown(self, rows: Int64) -> list[MemoryBlock]:
        """These rows as results."""
        return [self._block(row) for row in rows.tolist()]

    def _block(self, row: int) -> MemoryBlock:
        birth, death = _or_none(self.birth_ns[row]), _or_none(self.death_ns[row])
        return MemoryBlock(
            bytes=int(self.bytes[row]),
            category=CATEGORIES[self.category[row]],
            birth_ns=birth,
            death_ns=death,
            lifetime_ns=None if birth is None or death is None else max(0, death - birth),
            address=int(self.address[row]) or None,
            operator=self._text(self.operator[row]),
            stack=self.stack_of(row),
            phase=phase_name(self.phase[row]),
            step=_or_none(self.step[row]),
            module=self._text(self.module[row]),
            layer=_or_none(self.layer[row]),
            freed_by=self._text(self.freed_by[row]),
            freed_phase=phase_name(self.freed_phase[row]),
            crosses_border=bool(self.crosses_border[row]),
            made_by=self._text(self.made_by[row]),
        )

    def _text(self, code: int) -> str | None:
        return None if code < 0 else self.names[code]


def _or_none(value: int) -> int | None:
    return None if value == NONE else int(value)


def _summed(keys: np.ndarray, sizes: Int64) -> list[tuple[int, int]]:
    """(key, sum of sizes) for each distinct key, sorted by key; sums are exact integers."""
    distinct, place = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(sums, place.reshape(-1), sizes)
    return list(zip(distinct.tolist(), sums.tolist(), strict=True))


def _largest_first(sums: list[tuple[int, int]], name: Callable[[int], str]) -> dict[str, int]:
    ordered = sorted(sums, key=lambda pair: (-pair[1], name(pair[0])))
    return {name(code): total for code, total in ordered}
