"""Memory on a terminal: the whole section alone (`sp-profile memory`), and its part in a run's report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sp_profiler.analysis.memory.results import Memory
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import memory_compare, memory_view
from sp_profiler.report.memory import NOT_RECORDED, why_none
from sp_profiler.report.memory_sentences import sentences

if TYPE_CHECKING:
    from rich.console import Console

    from sp_profiler.report.model import Report

IN_REPORT = ("memory-ranks", "memory-saved", "memory-difference", "memory-opportunities", "memory-oom")
"""The tables that a run's report shows on a terminal; the others are in its page and files."""


def render_terminal(
    memory: Memory | None,
    name: str,
    *,
    ledger: Sequence[LedgerEntry] = (),
    console: Console | None = None,
) -> None:
    """Print the memory of a run or of snapshots (by default on stdout). None: why there is none."""
    from sp_profiler.report import terminal

    out = terminal.console_for(console)
    terminal.print_line(out, name, "bold")
    if memory is None:
        terminal.print_line(out, f"{why_none(ledger)}.")
    else:
        for place, sentence in enumerate(sentences(memory)):
            terminal.print_line(out, sentence, "bold" if place == 0 else "")
        for one in memory_view.listings(memory):
            terminal.print_listing(out, one)
    terminal.print_ledger(out, ledger)


def print_in_report(memory: Memory | None, console: Console) -> None:
    """The tables of memory that belong into a run's report; its sentences are among the report's."""
    from sp_profiler.report import terminal

    if memory is None:
        console.print()
        terminal.print_line(console, f"{NOT_RECORDED}.", "dim")
        return
    for one in memory_view.listings(memory):
        if one.id in IN_REPORT:
            terminal.print_listing(console, one)


def print_comparison(reports: Sequence[Report], console: Console) -> None:
    """What the runs keep for backward, side by side, and the blocks that some have and others lack."""
    from sp_profiler.report import terminal

    for one in memory_compare.listings(reports):
        terminal.print_listing(console, one)
        terminal.print_line(console, one.note, "dim")
    for sentence in memory_compare.answers(reports):
        terminal.print_line(console, sentence)
