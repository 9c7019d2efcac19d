"""Memory as rows for the data files: `memory_peaks`, `memory_borders`, `memory_blocks`, `saved_tensors`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from sp_profiler.analysis.memory.results import (
    BorderFigures,
    Memory,
    MemoryBlock,
    MemoryFigures,
    SavedTensors,
    SavedTerm,
)
from sp_profiler.report.json import to_plain

_WHERE = ["rank", "device_type", "device"]
_PEAK = [
    "source", "file", "events", "peak_bytes", "peak_ns", "is_relative", "peak_step", "peak_phase",
    "peak_reserved_bytes", "peak_by_category", "start_bytes", "end_bytes", "across_border_bytes",
    "blocks_count", "unpaired_count", "totals_checked", "totals_disagree",
]  # fmt: skip
_BORDER_MAPS = ("module", "layer", "category", "operator")

COLUMNS: dict[str, list[str]] = {
    "memory_peaks": [*_WHERE, *_PEAK],
    "memory_borders": [*_WHERE, "step", "border_ns", "by", "key", "bytes"],
    "memory_blocks": [*_WHERE, *(f.name for f in fields(MemoryBlock))],
    "saved_tensors": ["rank", *(f.name for f in fields(SavedTerm))],
}

Row = dict[str, Any]


def rows(memory: Memory | None, table: str) -> Iterator[Row]:
    """The rows of one of `COLUMNS`; none where memory was not recorded."""
    if memory is None:
        return
    if table == "saved_tensors":
        for saved in memory.saved:
            yield from _terms(saved)
        return
    of_device = {"memory_peaks": _peak, "memory_borders": _borders, "memory_blocks": _blocks}[table]
    for one in memory.ranks:
        where = {"rank": one.rank, "device_type": one.device_type, "device": one.device}
        for row in of_device(one):
            yield where | row


def _terms(saved: SavedTensors) -> Iterator[Row]:
    for term in saved.terms:
        yield {"rank": saved.rank} | to_plain(term)


def _peak(one: MemoryFigures) -> Iterator[Row]:
    yield {name: to_plain(getattr(one, name)) for name in _PEAK}


def _borders(one: MemoryFigures) -> Iterator[Row]:
    for border in one.borders:
        for by in _BORDER_MAPS:
            yield from _border(border, by)


def _border(border: BorderFigures, by: str) -> Iterator[Row]:
    for key, count in getattr(border, f"by_{by}").items():
        yield {"step": border.step, "border_ns": border.border_ns, "by": by, "key": key, "bytes": count}


def _blocks(one: MemoryFigures) -> Iterator[Row]:
    """A block's stack is one text, outermost first, parts separated by ` > `; its address is hexadecimal,
    because addresses may exceed int64."""
    for block in one.blocks or ():
        address = None if block.address is None else hex(block.address)
        yield to_plain(block) | {"stack": " > ".join(block.stack) or None, "address": address}
