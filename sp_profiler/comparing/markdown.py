"""A comparison as Markdown: the sentences, and tables of what changed beyond noise."""

from __future__ import annotations

from sp_profiler.comparing.model import Comparison, RunFacts
from sp_profiler.comparing.tables import sections
from sp_profiler.comparing.terminal import tally
from sp_profiler.report import markdown
from sp_profiler.report.format import counted


def render(found: Comparison) -> str:
    """The document. Text from a trace is escaped; all figures are in the JSON and HTML outputs."""
    tables = [one.only_changed for one in sections(found)]
    parts = [
        f"# {markdown.escape(found.here.label)} beside {markdown.escape(found.base.label)}",
        "\n".join(f"- {markdown.escape(sentence)}" for sentence in found.summary),
        "\n".join(f"- {markdown.escape(note)}" for note in found.notes),
        "\n".join(
            f"- {which}: {_told(run)}" for which, run in (("Base", found.base), ("This run", found.here))
        ),
        *(markdown.listing(one) for one in tables if one.rows),
        f"_{tally(found)} {markdown.escape(found.tool.name)} {markdown.escape(found.tool.version)}_",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _told(run: RunFacts) -> str:
    steps = counted(run.steps, "step") if run.window_rule == "step" else "the whole trace"
    return f"{markdown.escape(run.name)} ({counted(len(run.ranks), 'rank')}, {steps})"
