"""Memory on a page: the section of a run's report, and a page of its own (`sp-profile memory`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import plotly.graph_objects as go

from sp_profiler import __version__
from sp_profiler.analysis.memory.kept import keeps_most, top_border
from sp_profiler.analysis.memory.results import Memory
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import memory_compare, memory_figures, memory_sentences, memory_view, quality
from sp_profiler.report.compare_table import ordered, run_label
from sp_profiler.report.format import visible
from sp_profiler.report.memory import NOT_RECORDED, leading, why_none
from sp_profiler.report.memory_sentences import sentences
from sp_profiler.report.model import Report
from sp_profiler.report.page import render_page
from sp_profiler.report.page_parts import QUIET, ZOOMABLE, for_page, plot
from sp_profiler.report.table import Table, listing_table


@dataclass(frozen=True)
class Shown:
    """A panel with a plot: its title, what is drawn, and the class that says how wide it is."""

    title: str
    text: str
    width: str = ""


@dataclass(frozen=True)
class MemoryPart:
    """What a page shows of memory: plots by their id, the panels they stand in, and tables."""

    told: str  # why there is none; empty where there is
    plots: dict[str, Any] = field(default_factory=dict)
    panels: dict[str, Shown] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)


def memory_part(memory: Memory | None) -> MemoryPart:
    """The memory section of a page."""
    if memory is None:
        return MemoryPart(f"{NOT_RECORDED}.")
    plots: dict[str, Any] = {}
    panels: dict[str, Shown] = {}
    for name, figure, panel, config in _figures(memory):
        if figure is not None:
            plots[name], panels[name] = plot(figure, config), panel
    tables = [listing_table(one) for one in memory_view.listings(memory)]
    return MemoryPart("", plots, _without_holes(panels), tables)


def _without_holes(panels: dict[str, Shown]) -> dict[str, Shown]:
    """The grid has two columns: a panel of half the width without another beside it gets all of it."""
    halves = [name for name, panel in panels.items() if panel.width != "wide"]
    if len(halves) == 2:  # a high one needs two beside it
        return {name: replace(p, width="" if name in halves else p.width) for name, p in panels.items()}
    if len(halves) == 1:
        return {name: replace(panel, width="wide") for name, panel in panels.items()}
    return panels


def _figures(memory: Memory) -> Iterator[tuple[str, go.Figure | None, Shown, dict[str, Any]]]:
    """Plots by id, in the order of the page; None where there is nothing to draw."""
    several = memory_sentences.several_devices(memory)
    top, most = leading(memory), keeps_most(memory.ranks)
    if top is not None:
        where = memory_sentences.device_name(top, several)
        parts = [where, *(["by category"] if top.curve and top.curve.by_category else [])]
        parts += ["bands: phases"] if top.curve and top.curve.phases else []
        text = "; ".join([*parts, "drag to zoom, double-click to reset"])
        curve = memory_figures.live_bytes(top)
        yield "memory-curve", curve, Shown("Live memory over time", text, "wide"), ZOOMABLE
    peaks = Shown("What the peak is made of", "by category, rank by rank")
    yield "memory-peak", memory_figures.peak_composition(memory), peaks, QUIET
    if most is not None:
        where = memory_sentences.device_name(most, several)
        border = top_border(most)
        step = "" if border is None or border.step is None else f", step {border.step}"
        beside = memory.saved and memory.ranks  # two plots on the left: this one is as high as both
        kept = Shown(
            "Kept for backward, by layer", f"{where}{step}; freed in backward", "tall" if beside else ""
        )
        yield "memory-border", memory_figures.border_by_layer(most, 420 if beside else 240), kept, QUIET
    saved = memory_view.most_saved(memory)
    if saved is not None:
        rank = "" if saved.rank is None else f"rank {saved.rank}; "
        beside = Shown("Saved tensors beside theory", f"{rank}by hooks, each storage once")
        yield "memory-saved", memory_figures.saved_beside_theory(saved), beside, QUIET
    if most is not None:
        drawn = len(memory_figures.drawn_blocks(most))
        where = memory_sentences.device_name(most, several)
        text = f"{where}; from birth to free, the {drawn} largest of a step"
        lives = Shown("Lifetimes of the largest blocks", text, "wide")
        yield "memory-lifetimes", memory_figures.lifetimes(most), lives, ZOOMABLE


def memory_comparison(reports: Sequence[Report]) -> MemoryPart:
    """What several runs keep for backward, side by side; nothing where none has a memory section."""
    tables = [listing_table(one) for one in memory_compare.listings(reports)]
    known = [(run_label(r), b) for r in ordered(reports) if (b := memory_compare.border_of(r)) is not None]
    if len(known) < 2:
        return MemoryPart("", tables=tables)
    figure = memory_figures.kept_by_run([visible(name) for name, _ in known], [b for _, b in known])
    panel = Shown(
        "What stays alive from forward to backward", "by category, of the rank that keeps most", "wide"
    )
    return MemoryPart("", {"memory-runs": plot(figure, QUIET)}, {"memory-runs": panel}, tables)


def render_html(memory: Memory | None, name: str, *, ledger: Sequence[LedgerEntry] = ()) -> str:
    """The memory of a run or of snapshots as a page of its own. Works offline."""
    shown = memory_part(memory)
    return render_page(
        "memory.html.j2",
        {"plots": shown.plots, "tables": [for_page(table) for table in shown.tables]},
        title=name,
        memory=shown,
        sentences=[f"{why_none(ledger)}."] if memory is None else sentences(memory),
        quality=quality.shown(ledger),
        version=__version__,
    )
