"""A check as Markdown: for the summary of a CI job, a comment, an issue. Text from traces is escaped."""

from __future__ import annotations

from sp_profiler.checking import shown
from sp_profiler.checking.result import Check, RunCheck, failed
from sp_profiler.report.markdown import escape, pipe_table

_SIGNS = {"holds": "✅", "broken": "❌", "unknown": "❓", "skipped": "➖"}


def render(check: Check) -> str:
    """What fails first, then every budget."""
    title = "Communication budgets hold" if check.holds else "Communication budgets do not hold"
    parts = [f"## {'✅' if check.holds else '❌'} {title}"]
    parts += [part for run in check.runs for part in _run(run)]
    parts += [escape(one) for one in (*shown.notes(check), *shown.sources(check))]
    parts.append(f"_{escape(check.tool.name)} {escape(check.tool.version)}_")
    return "\n\n".join(parts) + "\n"


def _run(run: RunCheck) -> list[str]:
    parts = [f"### {escape(run.name)}: {escape(shown.headline(run))}"]
    wrong = failed(run)
    if wrong:
        parts.append(
            "\n".join(f"- {_SIGNS[one.state]} **{escape(one.budget)}** {escape(one.text)}" for one in wrong)
        )
    if run.verdicts:
        parts.append(_table(run))
    return parts


def _table(run: RunCheck) -> str:
    rows = [
        [budget, f"{_SIGNS[one.state]} {word}", *amounts]
        for one in run.verdicts
        for budget, word, *amounts in [shown.row(one)]
    ]
    return pipe_table(shown.HEADER, rows, numeric=(2, 3))
