"""The report as Markdown, to read, to paste into an issue, to keep beside a commit.

Text from a trace is escaped: it makes no table cell, no heading, no link, no HTML and no code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import context_compare, context_view, memory_compare, memory_view, quality, view
from sp_profiler.report.compare_table import compare_table
from sp_profiler.report.evidence import readable
from sp_profiler.report.format import cell_text, shown_group, visible
from sp_profiler.report.memory import NOT_RECORDED
from sp_profiler.report.model import Report
from sp_profiler.report.table import Column, Table, listing_table, rest_row
from sp_profiler.report.view import per_text
from sp_profiler.report.view_ranks import Listing, left_out

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|~$#@&])")
_LINK = re.compile(
    r"(?i)(:)(?=//)|(?<=www)(\.)|(:)(?=[a-z0-9_+-]+:)"
)  # GitHub makes links and pictures of these
_ROWS = 20
"""Rows of a table, whose last line then says what the others add up to; the data files hold them all."""
_SAME_NAME = (
    "collectives", "ranks", "steps", "groups", "gemms", "contention", "bandwidth", "clocks", "stragglers",
    "unmatched", "left_out",
)  # fmt: skip
_DATA_FILES = {name: name for name in _SAME_NAME} | {
    "memory-ranks": "memory_peaks",
    "memory-border": "memory_borders",
    "memory-blocks": "memory_blocks",
    "memory-peak-blocks": "memory_blocks",
    "memory-saved": "saved_tensors",
    "context-schemes": "context_schemes",
    "context-hops": "context_hops",
    "context-hops-ranks": "context_hops",
    "context-balance": "context_balance",
    "context-steps": "context_balance",
    "context-ranks": "context_balance",
    "context-models": "context_models",
    "context-copies": "context_layout_copies",
}
"""Id of a table -> the CSV that holds all of its rows."""


def escape(text: object) -> str:
    """Text that Markdown (CommonMark and GitHub's) shows as it stands, on one line.

    Only for places inside a line that we began ourselves: what acts at the start of a line is not escaped.
    """
    return _LINK.sub(lambda found: "\\" + found[0], _SPECIAL.sub(r"\\\1", visible(text)))


def render(report: Report) -> str:
    """The whole report, sentences first."""
    parts = [
        f"# Communication overlap of {escape(report.run.name)}",
        "\n".join(f"- {escape(sentence)}" for sentence in report.summary),
        _figures(report),
        _findings(report),
        *(_view_table(table) for table in view.tables(report)),
        *(listing(one) for one in context_view.listings(report.context_parallel)),
        _memory(report),
        _left_out(report),
        ledger(report.data_quality),
        _environment(report),
        f"_{escape(report.tool.name)} {escape(report.tool.version)}; exact nanoseconds are in report.json._",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_comparison(reports: Sequence[Report], title: str) -> str:
    """The side-by-side table of several runs."""
    table = compare_table(reports)
    header = ["Run", *(f"{column.label} ({column.unit})" for column in table.columns)]
    rows = [[name, *cells] for name, cells in table.rows]
    parts = [
        f"# {escape(title)}",
        pipe_table(header, rows, numeric=range(1, len(header))),
        table.note,
        *(escape(sentence) for sentence in context_compare.answers(reports)),
        *(listing(one) for one in context_compare.listings(reports)),
        *(escape(sentence) for sentence in memory_compare.answers(reports)),
        *(listing(one) for one in memory_compare.listings(reports)),
    ]
    return "\n\n".join(parts) + "\n"


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[object]], numeric: Iterable[int] = ()) -> str:
    """A table whose cells are escaped here; columns in the places `numeric` are flush right."""
    right = set(numeric)
    lines = [
        " | ".join(escape(cell) for cell in header),
        " | ".join("--:" if place in right else "---" for place in range(len(header))),
        *(" | ".join(escape(cell) for cell in row) for row in rows),
    ]
    return "\n".join(f"| {line} |" for line in lines)


def _figures(report: Report) -> str:
    rows = [
        [shown.label, shown.text, shown.note] for shown in (*view.cards(report), *view.more_figures(report))
    ]
    return f"## Figures, {per_text(report)}\n\n{pipe_table(['Figure', 'Value', 'What it is'], rows, [1])}"


def _findings(report: Report) -> str:
    if not report.findings:
        return ""
    lines: list[str] = []
    for finding in report.findings:
        lines.append(f"- **{finding.severity}** {escape(finding.text)}")
        lines += [f"  What to do: {escape(finding.advice)}"] if finding.advice else []
        lines += [f"  - {escape(key)}: {_plain(value)}" for key, value in _flat(finding.evidence)]
    return "## Findings\n\n" + "\n".join(lines)


def _flat(evidence: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Evidence as lines: each of several examples is one."""
    for key, value in readable("", evidence).items():
        if isinstance(value, list) and any(isinstance(one, dict) for one in value):
            yield from ((f"{key} {place}", one) for place, one in enumerate(value, 1))
        else:
            yield key, value


def _plain(value: Any) -> str:
    """A value of the evidence in words, not as Python writes it."""
    if isinstance(value, dict):
        return ", ".join(f"{escape(key)} {_plain(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(part) for part in value)
    return escape(value)


def _memory(report: Report) -> str:
    if report.memory is None:
        return f"## Memory\n\n{escape(NOT_RECORDED)}."
    return "\n\n".join(listing(one) for one in memory_view.listings(report.memory))


def listing(one: Listing) -> str:
    """A table of `view_ranks` or `memory_view` as a section."""
    return _view_table(listing_table(one))


def _view_table(table: Table) -> str:
    columns = table.columns
    header = [f"{column.label} ({column.unit})" if column.unit else column.label for column in columns]
    rest = rest_row(table, min(_ROWS, len(table.rows)))
    rows = [
        [_cell(column, value) for column, value in zip(columns, row, strict=True)]
        for row in [*table.rows[:_ROWS], *([] if rest is None else [rest])]
    ]
    numeric = [place for place, column in enumerate(columns) if column.kind != "text"]
    note = f"{escape(table.note)}\n\n" if table.note else ""
    where = "" if rest is None or table.all_at else f"\n\n{where_all_are(table.id)}"
    return f"## {table.title}\n\n{note}{pipe_table(header, rows, numeric)}{where}"


def _cell(column: Column, value: object) -> str:
    text = cell_text(column.kind, value)
    return shown_group(text) if column.label == "Group" else text


def where_all_are(name: str) -> str:
    """Where the rows are that a table of this id leaves out."""
    if name == "kinds":
        return "All of them are made of the collectives in report.json or collectives.csv (--format csv)."
    known = "exposed" if name.startswith("exposed-") else _DATA_FILES.get(name)
    return f"All rows are in {known}.csv (--format csv)." if known else "All of it is in the JSON report."


def _left_out(report: Report) -> str:
    told = left_out(report)
    return listing(told) if told.rows else ""


def ledger(told: Sequence[LedgerEntry]) -> str:
    """The section on data quality, empty where there is nothing to tell."""
    entries = quality.shown(told)
    if not entries:
        return ""
    rows = [
        [
            e.severity,
            e.count,
            e.text,
            e.code,
            e.file or "",
            "" if e.first_offset is None else e.first_offset,
        ]
        for e in entries
    ]
    header = ["Severity", "Count", "What", "Code", "File", "First at byte"]
    return f"## Data quality\n\n{pipe_table(header, rows, (1, 5))}"


def _environment(report: Report) -> str:
    rows: list[list[object]] = []
    for key, value in (("workload", report.run.workload), *report.environment.items()):
        if isinstance(value, dict):
            rows += [[f"{key}.{name}", part] for name, part in value.items() if part is not None]
        elif isinstance(value, list):
            more = [f"and {len(value) - _ROWS} more"] if len(value) > _ROWS else []
            rows.append([key, "; ".join([*(str(part) for part in value[:_ROWS]), *more])])
        elif value is not None:
            rows.append([key, value])
    return f"## Environment\n\n{pipe_table(['Name', 'Value'], rows)}" if rows else ""
