"""Memory on a page: the section of a run's report, and a page of its own (`sp-profile memory`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from sp_profiler.report.page_parts import QUIET, ZOOMABLE, Drawn, Panel, Part, for_page, part_of, plot
from sp_profiler.report.table import listing_table


def memory_part(memory: Memory | None) -> Part:
    """The memory section of a page."""
    if memory is None:
        return Part(f"{NOT_RECORDED}.")
    return part_of(_figures(memory), [listing_table(one) for one in memory_view.listings(memory)])


def _figures(memory: Memory) -> Iterator[Drawn]:
    """Plots by id, in the order of the page; None where there is nothing to draw."""
    several = memory_sentences.several_devices(memory)
    top, most = leading(memory), keeps_most(memory.ranks)
    if top is not None:
        where = memory_sentences.device_name(top, several)
        parts = [where, *(["by category"] if top.curve and top.curve.by_category else [])]
        parts += ["bands: phases"] if top.curve and top.curve.phases else []
        text = "; ".join([*parts, "drag to zoom, double-click to reset"])
        curve = memory_figures.live_bytes(top)
        yield "memory-curve", curve, Panel("Live memory over time", text, "wide"), ZOOMABLE
    peaks = Panel("What the peak is made of", "by category, rank by rank")
    yield "memory-peak", memory_figures.peak_composition(memory), peaks, QUIET
    if most is not None:
        where = memory_sentences.device_name(most, several)
        border = top_border(most)
        step = "" if border is None or border.step is None else f", step {border.step}"
        beside = memory.saved and memory.ranks  # two plots on the left: this one is as high as both
        kept = Panel(
            "Kept for backward, by layer", f"{where}{step}; freed in backward", "tall" if beside else ""
        )
        yield "memory-border", memory_figures.border_by_layer(most, 420 if beside else 240), kept, QUIET
    saved = memory_view.most_saved(memory)
    if saved is not None:
        rank = "" if saved.rank is None else f"rank {saved.rank}; "
        beside = Panel("Saved tensors beside theory", f"{rank}by hooks, each storage once")
        yield "memory-saved", memory_figures.saved_beside_theory(saved), beside, QUIET
    if most is not None:
        drawn = len(memory_figures.drawn_blocks(most))
        where = memory_sentences.device_name(most, several)
        text = f"{where}; from birth to free, the {drawn} largest of a step"
        lives = Panel("Lifetimes of the largest blocks", text, "wide")
        yield "memory-lifetimes", memory_figures.lifetimes(most), lives, ZOOMABLE


def memory_comparison(reports: Sequence[Report]) -> Part:
    """What several runs keep for backward, side by side; nothing where none has a memory section."""
    tables = [listing_table(one) for one in memory_compare.listings(reports)]
    known = [(run_label(r), b) for r in ordered(reports) if (b := memory_compare.border_of(r)) is not None]
    if len(known) < 2:
        return Part("", tables=tables)
    figure = memory_figures.kept_by_run([visible(name) for name, _ in known], [b for _, b in known])
    panel = Panel(
        "What stays alive from forward to backward", "by category, of the rank that keeps most", "wide"
    )
    return Part("", {"memory-runs": plot(figure, QUIET)}, {"memory-runs": panel}, tables)


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
