"""A plan on a terminal or in a pipe: sentences, then compact tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sp_profiler.planning.model import Plan
from sp_profiler.report import terminal
from sp_profiler.report.planned import view

if TYPE_CHECKING:
    from rich.console import Console


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Print it (by default on stdout)."""
    out = terminal.console_for(console)
    terminal.print_line(out, f"Plan: {view.settings(plan)}", "bold")
    for place, sentence in enumerate(view.sentences(plan)):
        terminal.print_line(out, sentence, "bold" if place == 0 else "")
    for one in view.listings(plan):
        terminal.print_listing(out, one)
    if plan.machine is not None:
        out.print()
        terminal.print_line(out, "Assumed: " + " ".join(plan.assumptions), "dim")
        terminal.print_line(out, "Sources: " + "; ".join(plan.machine.sources) + ".", "dim")
    terminal.print_ledger(out, plan.data_quality)
