"""A comparison on a terminal or in a pipe: the sentences, and tables of what changed beyond noise."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sp_profiler.comparing.compare import deltas
from sp_profiler.comparing.model import Comparison
from sp_profiler.comparing.tables import sections
from sp_profiler.report import terminal
from sp_profiler.report.format import counted

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = (
    "change-parts", "change-exposed-parts", "change-kinds", "change-ratios", "change-role",
    "change-gemms", "change-memory", "change-memory-across-border-by-category", "change-context-ratios",
    "change-context", "change-contention",
)  # fmt: skip
_ROWS = 12


def print_comparison(found: Comparison, console: Console | None = None) -> None:
    """Print what changed (by default on stdout)."""
    out = terminal.console_for(console)
    terminal.print_line(out, f"{found.here.label} beside {found.base.label}", "bold")
    for place, sentence in enumerate(found.summary):
        terminal.print_line(out, sentence, "bold" if place == 0 else "")
    for note in found.notes:
        terminal.print_line(out, note, "dim")
    for section in sections(found):
        changed = section.only_changed
        if changed.id in _SHOWN and changed.rows:
            terminal.print_listing(out, changed, _ROWS)
    out.print()
    terminal.print_line(out, tally(found), "dim")


def tally(found: Comparison) -> str:
    """How many figures were compared, and how many of them changed."""
    counts = Counter(one.verdict for one in deltas(found) if one.verdict != "unknown")
    changed = counts["changed"] + counts["came"] + counts["went"]
    alone = counts["only-base"] + counts["only-here"]
    parts = [f"{changed} beyond noise", f"{counts['within-noise']} within", f"{counts['equal']} equal"]
    parts += [f"{alone} in one run only"] if alone else []
    parts += [f"{counts['noise-unknown']} of unknown noise"] if counts["noise-unknown"] else []
    return f"{counted(sum(counts.values()), 'figure')} compared: {', '.join(parts)}."
