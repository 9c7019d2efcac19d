"""A comparison as files: which file each format makes, and what is in it."""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler.comparing.model import Comparison
from sp_profiler.report.model import Report

SINGLE_FILE = {"json": "comparison.json", "html": "comparison.html", "markdown": "comparison.md"}


def render(found: Comparison, reports: Sequence[Report], output: str) -> str:
    """The text of one format: json, markdown or html. `reports`: the base and the other run."""
    if output == "json":
        from sp_profiler.comparing import document

        return document.render(found)
    if output == "markdown":
        from sp_profiler.comparing import markdown

        return markdown.render(found)
    from sp_profiler.comparing import html

    return html.render(found, reports)


def file_names(formats: Sequence[str]) -> list[str]:
    return [SINGLE_FILE[one] for one in formats]
