"""A sweep as Markdown: sentences and every row of its tables, to keep beside a commit."""

from __future__ import annotations

from sp_profiler.report.format import cell_text
from sp_profiler.report.markdown import escape, ledger, pipe_table
from sp_profiler.report.view_ranks import Listing
from sp_profiler.sweeps.model import Sweep
from sp_profiler.sweeps.tables import listings
from sp_profiler.sweeps.view import machine, title


def render(sweep: Sweep) -> str:
    """The whole sweep."""
    parts = [
        f"# {escape(title(sweep))}",
        "\n".join(f"- {escape(sentence)}" for sentence in sweep.sentences),
        *(section(one) for one in listings(sweep)),
        ledger(sweep.data_quality),
        f"_{escape(machine(sweep))} Exact nanoseconds and bytes are in sweep.json._",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def section(one: Listing) -> str:
    """A listing with all of its rows."""
    heads = [f"{label} ({unit})" if unit else label for label, _, unit in one.columns]
    kinds = [kind for _, kind, _ in one.columns]
    rows = ([cell_text(kind, value) for kind, value in zip(kinds, row, strict=True)] for row in one.rows)
    table = pipe_table(heads, rows, [place for place, kind in enumerate(kinds) if kind != "text"])
    return f"## {escape(one.title)}\n\n" + (f"{escape(one.note)}\n\n" if one.note else "") + table
