"""The memory section alone as files: which file each format makes, and what is in it."""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler.analysis.memory.results import Memory
from sp_profiler.ledger import LedgerEntry

SINGLE_FILE = {"json": "memory.json", "html": "memory.html", "markdown": "memory.md"}


def file_names(formats: Sequence[str]) -> list[str]:
    """The names of all files that these formats make of one memory section."""
    from sp_profiler.report.memory_tables import COLUMNS

    singles = [SINGLE_FILE[one] for one in formats if one in SINGLE_FILE]
    return singles + [f"{table}.{one}" for one in formats if one not in SINGLE_FILE for table in COLUMNS]


def render(
    memory: Memory | None, name: str, ledger: Sequence[LedgerEntry], output: str
) -> dict[str, str | bytes]:
    """What one format makes of a section: file name to content."""
    if output == "json":
        from sp_profiler.report.memory import memory_json

        return {SINGLE_FILE[output]: memory_json(memory, name, ledger=ledger)}
    if output == "html":
        from sp_profiler.report.memory_html import render_html

        return {SINGLE_FILE[output]: render_html(memory, name, ledger=ledger)}
    if output == "markdown":
        from sp_profiler.report.memory_markdown import render_markdown

        return {SINGLE_FILE[output]: render_markdown(memory, name, ledger=ledger)}
    from sp_profiler.report.memory_tables import COLUMNS, rows
    from sp_profiler.report.tables import file_of

    return {
        f"{table}.{output}": file_of(list(rows(memory, table)), columns, output)
        for table, columns in COLUMNS.items()
    }
