"""A sweep on a terminal or in a pipe: sentences, then its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sp_profiler.report import terminal
from sp_profiler.report.format import counted
from sp_profiler.sweeps.model import Sweep
from sp_profiler.sweeps.tables import listings, planned
from sp_profiler.sweeps.view import machine, title

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 400


def print_sweep(sweep: Sweep, console: Console | None = None) -> None:
    """Print it (by default on stdout)."""
    out = terminal.console_for(console)
    terminal.print_line(out, title(sweep), "bold")
    for place, sentence in enumerate(sweep.sentences):
        terminal.print_line(out, sentence, "bold" if place == 0 else "")
    for one in listings(sweep):
        if one.id not in ("failures", "skipped"):  # the sentences name them
            terminal.print_listing(out, one, MOST_ROWS)
    _print_skipped(sweep, out)
    terminal.print_line(out, machine(sweep), "dim")


def print_planned(sweep: Sweep, done: dict[str, str]) -> None:
    """The cells as they would be run, with what theory says of them; `done`: name -> status."""
    out = terminal.console_for(None)
    terminal.print_line(out, title(sweep), "bold")
    terminal.print_listing(out, planned(sweep, done), MOST_ROWS)
    _print_skipped(sweep, out)
    terminal.print_line(out, "Nothing was run.", "dim")


def _print_skipped(sweep: Sweep, out: Console) -> None:
    for one in sweep.skipped:
        count = counted(one.combinations, "combination")
        terminal.print_line(out, f"skipped, {one.what}: {one.reason} ({count})", "dim")
