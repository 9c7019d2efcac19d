"""Memory on a page: the section of a run's report, and a page of its own (`sp-profile memory`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sp_profiler import __version__
from sp_profiler.analysis.memory.results import Memory
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import memory_view, quality, view
from sp_profiler.report.memory import NOT_RECORDED
from sp_profiler.report.memory_sentences import sentences
from sp_profiler.report.page import render_page
from sp_profiler.report.page_parts import for_page


@dataclass(frozen=True)
class MemoryPart:
    """What a page shows of memory: plots by their id, their captions, and tables."""

    told: str  # why there is none; empty where there is
    plots: dict[str, Any] = field(default_factory=dict)
    captions: dict[str, tuple[str, str]] = field(default_factory=dict)  # title and what is drawn
    tables: list[view.Table] = field(default_factory=list)


def part(memory: Memory | None) -> MemoryPart:
    """The memory section of a page."""
    if memory is None:
        return MemoryPart(f"{NOT_RECORDED}.")
    tables = [view.listing_table(one) for one in memory_view.listings(memory)]
    return MemoryPart("", tables=tables)


def render_html(memory: Memory | None, name: str, *, ledger: Sequence[LedgerEntry] = ()) -> str:
    """The memory of a run or of snapshots as a page of its own. Works offline."""
    shown = part(memory)
    return render_page(
        "memory.html.j2",
        {"plots": shown.plots, "tables": [for_page(table) for table in shown.tables]},
        title=name,
        memory=shown,
        sentences=[shown.told] if memory is None else sentences(memory),
        quality=quality.shown(ledger),
        version=__version__,
    )
