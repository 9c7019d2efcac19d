"""A check on a terminal or in a pipe: a table for each run, then a sentence for each budget that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sp_profiler.checking import shown
from sp_profiler.checking.result import Check, RunCheck, failed

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"holds": "green", "broken": "bold red", "unknown": "bold yellow", "skipped": "dim"}


def print_check(check: Check, console: Console | None = None) -> None:
    """Print it (by default on stdout). Runs that could not be read are told on stderr, not here."""
    from sp_profiler.report import terminal

    out = terminal.console_for(console)
    readable = [run for run in check.runs if run.error is None]
    for number, run in enumerate(readable):
        if number:
            out.print()
        _print_run(run, out)
    if len(check.runs) > 1:
        out.print()
        terminal.print_line(out, shown.totals(check), "bold")
    for line in (*shown.notes(check), *shown.sources(check)):
        terminal.print_line(out, line, "dim")


def _print_run(run: RunCheck, out: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from sp_profiler.report import terminal
    from sp_profiler.report.format import visible

    terminal.print_line(out, f"{run.name}: {shown.headline(run)}", "bold")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for place, head in enumerate(shown.HEADER):
        table.add_column(head.lower(), justify="right" if place > 1 else "left", overflow="fold")
    for verdict in run.verdicts:
        cells = [Text(visible(cell)) for cell in shown.row(verdict)]
        cells[1].stylize(_STYLES[verdict.state])
        table.add_row(*cells)
    out.print(table, highlight=False)
    for verdict in failed(run):
        terminal.print_line(out, f"{verdict.budget}: {verdict.text}", _STYLES[verdict.state])
