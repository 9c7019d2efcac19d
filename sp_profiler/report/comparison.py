"""Several runs side by side: as JSON values, as Markdown, and as files beside the folders of the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sp_profiler import __version__
from sp_profiler.comparing.model import SCHEMA, SCHEMA_VERSION
from sp_profiler.report import context_compare, memory_compare
from sp_profiler.report.json import to_plain
from sp_profiler.report.model import Report
from sp_profiler.report.save import COMPARISON_FILES, write

PAGE, DATA = COMPARISON_FILES
TITLE = "Runs side by side"


def comparison(reports: Sequence[Report]) -> dict[str, Any]:
    """What each run was and its figures, per rank and in total."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "sp-profiler", "version": __version__},
        "runs": [run_figures(report) for report in reports],
    }


def run_figures(report: Report) -> dict[str, Any]:
    """What one run was, and its figures."""
    return {
        "name": report.run.name,
        "workload": to_plain(report.run.workload),
        "summary": report.summary,
        "totals": to_plain(report.totals),
        "ranks": to_plain(report.ranks),
        "memory": memory_compare.summary(report),
        "context_parallel": context_compare.summary(report),
    }


def render(reports: Sequence[Report], output: str) -> str:
    """The comparison as text: "json", or "markdown" (the side-by-side table)."""
    if output == "json":
        return json.dumps(comparison(reports), indent=1) + "\n"
    from sp_profiler.report import markdown

    return markdown.render_comparison(reports, TITLE)


def save(
    reports: Sequence[Report], folder: Path, title: str, links: Sequence[str | None] | None = None
) -> Path:
    """Write `index.html` and `comparison.json` into the folder; returns the page.

    `links` are the relative URLs of the runs' own pages, by default `<run name>/report.html`. Raises
    UsageError when a file cannot be written.
    """
    from sp_profiler.report import html

    write(folder / PAGE, html.render_comparison(reports, title, links))
    write(folder / DATA, render(reports, "json"))
    return folder / PAGE
