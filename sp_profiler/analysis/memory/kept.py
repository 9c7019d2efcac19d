"""Which of the listed blocks a border's figures are made of."""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler.analysis.memory.results import BorderFigures, MemoryBlock, MemoryFigures


def keeps_most(figures: Sequence[MemoryFigures]) -> MemoryFigures | None:
    """The device on which most is alive from forward to backward; None where no border is known."""
    known = [one for one in figures if one.across_border_bytes is not None]
    return max(known, key=lambda one: one.across_border_bytes or 0, default=None)


def top_border(one: MemoryFigures) -> BorderFigures | None:
    """The border that `across_border_bytes` is of: the one with most, of equal ones the first."""
    return max(one.borders, key=lambda border: border.bytes, default=None)


def kept_blocks(one: MemoryFigures, border: BorderFigures) -> list[MemoryBlock]:
    """The listed blocks alive at the border and freed in backward, largest first.

    All that the border's figures count, unless the device has more blocks than are listed.
    """
    kept = [block for block in one.blocks or () if _is_kept(block, border.border_ns)]
    return sorted(kept, key=lambda block: (-block.bytes, block.birth_ns or 0))


def _is_kept(block: MemoryBlock, border_ns: int) -> bool:
    born_before = block.birth_ns is None or block.birth_ns < border_ns
    freed_after = block.death_ns is not None and block.death_ns >= border_ns
    return block.phase != "backward" and block.freed_phase == "backward" and born_before and freed_after
