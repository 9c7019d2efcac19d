"""A plan as Markdown, sentences first."""

from __future__ import annotations

from sp_profiler.report import markdown
from sp_profiler.report.planned.shown import AnyPlan, shown


def render(plan: AnyPlan) -> str:
    """The whole plan as one document."""
    told = shown(plan)
    steps = "\n".join(
        f"{place}. **{markdown.escape(step.title)}.** {markdown.escape(step.reason)}"
        for place, step in enumerate(told.steps, 1)
    )
    parts = [
        f"# Plan: {markdown.escape(told.settings)}",
        _bullets(told.sentences),
        f"## Recommendation\n\n{steps}" if steps else "",
        *(markdown.listing(one) for one in told.listings),
        f"## Assumptions\n\n{_bullets(told.assumptions)}",
        f"## Sources\n\n{_bullets(told.sources)}" if told.sources else "",
        markdown.ledger(list(told.data_quality)),
        f"_{markdown.escape(told.tool)}; exact bytes and nanoseconds are in plan.json._",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _bullets(texts: list[str]) -> str:
    return "\n".join(f"- {markdown.escape(text)}" for text in texts)
