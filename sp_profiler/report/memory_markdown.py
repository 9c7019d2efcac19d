"""Memory as Markdown: the section alone, as `sp-profile memory` writes it."""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler import __version__
from sp_profiler.analysis.memory.results import Memory
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import markdown, memory_view
from sp_profiler.report.memory import why_none
from sp_profiler.report.memory_sentences import sentences


def render_markdown(memory: Memory | None, name: str, *, ledger: Sequence[LedgerEntry] = ()) -> str:
    """The memory of a run or of snapshots as one document, sentences first."""
    told = [f"{why_none(ledger)}."] if memory is None else sentences(memory)
    parts = [
        f"# Memory of {markdown.escape(name)}",
        "\n".join(f"- {markdown.escape(sentence)}" for sentence in told),
        *([] if memory is None else [markdown.listing(one) for one in memory_view.listings(memory)]),
        markdown.ledger(ledger),
        f"_sp-profiler {__version__}; exact bytes are in the JSON output._",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
