"""A plan as Markdown, sentences first."""

from __future__ import annotations

from sp_profiler.planning.model import Plan
from sp_profiler.report import markdown
from sp_profiler.report.planned import view


def render(plan: Plan) -> str:
    """The whole plan as one document."""
    assumed = "\n".join(f"- {markdown.escape(text)}" for text in plan.assumptions)
    sources = [] if plan.machine is None else plan.machine.sources
    parts = [
        f"# Plan: {markdown.escape(view.settings(plan))}",
        "\n".join(f"- {markdown.escape(sentence)}" for sentence in view.sentences(plan)),
        *(markdown.listing(one) for one in view.listings(plan)),
        f"## Assumptions\n\n{assumed}",
        "## Sources\n\n" + "\n".join(f"- {markdown.escape(text)}" for text in sources) if sources else "",
        markdown.ledger(plan.data_quality),
        f"_{markdown.escape(plan.tool.name)} {markdown.escape(plan.tool.version)}, torch "
        f"{markdown.escape(plan.tool.torch)}; exact bytes and nanoseconds are in plan.json._",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
