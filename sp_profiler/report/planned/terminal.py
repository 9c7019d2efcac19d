"""A plan on a terminal or in a pipe: sentences, then compact tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sp_profiler.report import terminal
from sp_profiler.report.planned.shown import AnyPlan, shown

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 48
"""Of a table on the screen: schemes are compared line by line."""


def print_plan(plan: AnyPlan, console: Console | None = None) -> None:
    """Print it (by default on stdout)."""
    out = terminal.console_for(console)
    told = shown(plan)
    terminal.print_line(out, f"Plan: {told.settings}", "bold")
    for place, sentence in enumerate(told.sentences):
        terminal.print_line(out, sentence, "bold" if place == 0 else "")
    if told.steps:
        out.print()
        terminal.print_line(out, "Recommended, in this order:", "bold")
    for place, step in enumerate(told.steps, 1):
        terminal.print_line(out, f"{place}. {step.title}. {step.reason}")
    for one in told.listings:
        if one.id not in told.not_on_screen:
            terminal.print_listing(out, one, MOST_ROWS)
    if told.lines:
        out.print()
    for line in told.lines:
        terminal.print_line(out, line)
    if told.machine is not None or told.steps:
        out.print()
        terminal.print_line(out, "Assumed: " + " ".join(told.assumptions), "dim")
    if told.sources:
        terminal.print_line(out, "Sources: " + "; ".join(told.sources) + ".", "dim")
    terminal.print_ledger(out, told.data_quality)
