"""The report on a terminal or in a pipe: the main sentences first, then compact tables.

Names from a trace are `Text`, never markup, with control characters written out. Into a pipe goes plain
text: no colours, no cursor movements, and lines wide enough for the tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sp_profiler.analysis.kind_figures import together
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import context_compare, context_view, many_ranks, memory_terminal, quality
from sp_profiler.report.compare_table import compare_table
from sp_profiler.report.format import (
    UNKNOWN,
    cell_text,
    counted,
    duration,
    milliseconds,
    percent,
    shown_group,
    visible,
)
from sp_profiler.report.model import Report, by_step, kinds_of, windows_by_rank, windows_of
from sp_profiler.report.view_ranks import Listing, listings

PIPE_WIDTH = 120
_ROWS = 16
_LONGEST = 40  # characters of a name in a table
_REASONS = {
    "before-first-window": "before the first window",
    "after-last-window": "after the last window",
    "between-windows": "between windows",
}
_STYLE = {
    "loss": "bold red",
    "repair": "red",
    "warning": "bold red",
    "assumption": "yellow",
    "advice": "cyan",
}


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the summary of one run (by default on stdout)."""
    out = console_for(console)
    print_line(out, report.run.name, "bold")
    for place, sentence in enumerate(report.summary):
        print_line(out, sentence, "bold" if place == 0 else "")
    for table in (
        *(_listing(one, out) for one in many_ranks.listings(report)),
        _ranks(report, out),
        _purposes(report, out),
        *(_listing(one, out) for one in listings(report) if one.id != "unmatched"),
        _causes(report, out),
        _contention(report, out),
    ):
        if table is not None:
            _gap(out)
            _print(out, table)
    for one in context_view.in_terminal(report.context_parallel):
        print_listing(out, one)
    memory_terminal.print_in_report(report.memory, out)
    _findings(out, report)
    _left_out(out, report)
    print_ledger(out, report.data_quality)


_SPARE = ("compute", "dgrad comm", "comm", "hidden", "overlapped")
"""Columns of the comparison that a narrow terminal does without, in this order."""


def print_comparison(reports: Sequence[Report], console: Console | None = None) -> None:
    """Print the side-by-side table of several runs."""
    out = console_for(console)
    compared = compare_table(reports)
    heads = {c.label: f"{c.label}\n{c.unit}".replace(" ", "\n", 1) for c in compared.columns}
    rows = [[name, *cells] for name, cells in compared.rows]
    spare = [heads[label] for label in _SPARE if label in heads]
    _print(out, _fitted(out, None, ["run", *heads.values()], rows, spare))
    print_line(out, compared.note, "dim")
    for one in context_compare.listings(reports):
        print_listing(out, one)
    for sentence in context_compare.answers(reports):
        print_line(out, sentence)
    memory_terminal.print_comparison(reports, out)
    if reports and all(report.run.device_type == "cpu" for report in reports):
        print_line(out, "CPU runs: read them for structure (what runs under what), not for speed.", "dim")


def _fitted(
    out: Console, title: str | None, heads: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]
) -> Table:
    """A table as wide as the console allows: columns in `spare` are dropped in turn until it fits."""
    kept = list(range(len(heads)))
    table = _filled(title, heads, rows, kept)
    unlimited = out.options.update(width=10_000)
    for name in spare:
        if out.measure(table, options=unlimited).maximum <= out.width:
            break
        kept.remove(heads.index(name))
        table = _filled(title, heads, rows, kept)
    return table


def _filled(
    title: str | None, heads: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[int]
) -> Table:
    table = _table(title)
    for place in kept:
        table.add_column(heads[place], justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(row[place]) for place in kept))
    return table


def console_for(console: Console | None) -> Console:
    """The console to print on; a pipe is as wide as the tables need."""
    out = Console() if console is None else console
    if not out.is_terminal and out.width < PIPE_WIDTH:
        out.width = PIPE_WIDTH
    return out


def _text(value: object, style: str = "") -> Text:
    return Text(visible(value), style=style)


def print_line(out: Console, text: str, style: str = "") -> None:
    """A line of text, never markup."""
    out.print(_text(text, style), highlight=False, soft_wrap=not out.is_terminal)


def _gap(out: Console) -> None:
    out.print()


def _print(out: Console, renderable: Table) -> None:
    """A table under its title, which may be wider than the table."""
    if renderable.title is not None:
        print_line(out, str(renderable.title), "bold")
        renderable.title = None
    out.print(renderable, highlight=False)


def _table(title: str | None = None) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _ranks(report: Report, out: Console) -> Table | None:
    if not report.ranks or report.totals.window_ns is None:
        return None
    several = len({r.device for r in report.ranks}) > 1
    fields = {
        "time": "window_ns",
        "compute": "compute_ns",
        "comm": "comm_ns",
        "overlapped": "overlapped_ns",
        "exposed": "exposed_ns",
        "under\nwgrad": "wgrad_overlapped_ns",
        "copies\nonly": "memory_op_only_ns",
        "idle": "idle_ns",
    }
    rows: list[list[str]] = []
    windows = windows_by_rank(report)
    for r in sorted(report.ranks, key=lambda r: -(r.exposed_ns or 0))[:_ROWS]:
        values = [getattr(r, name) for name in fields.values()]
        count = windows.get((r.rank, r.device), 1)
        cells = [milliseconds(None if value is None else value / count) for value in values]
        ratio = "–" if r.hidden_of_hideable is None else percent(r.hidden_of_hideable)
        name = UNKNOWN if r.rank is None else str(r.rank)
        rows.append([f"{name} device {r.device}" if several else name, *cells, ratio])
    heads = ["rank", *fields, "hidden of\nhideable"]
    title = f"By rank, {'ms per step' if by_step(report) else 'ms, whole trace'}, most exposed first"
    table = _fitted(out, title, heads, rows, ["copies\nonly", "idle", "compute", "comm"])
    if len(report.ranks) > _ROWS:
        table.caption = f"the {_ROWS} most exposed of {len(report.ranks)}"
    return table


def _ms_per(report: Report) -> str:
    return "ms per step and rank" if by_step(report) else "ms per rank"


def _purposes(report: Report, out: Console) -> Table | None:
    purposes = together(kinds_of(report), ("purpose",))
    if not purposes:
        return None
    count = windows_of(report)
    rows: list[list[str]] = []
    for one in sorted(purposes, key=lambda one: -one.exposed_share_ns):
        purpose = one.purpose or UNKNOWN
        hiding = report.totals.hiding_by_purpose.get(purpose)
        known = hiding is not None and hiding.hidden_of_hideable is not None
        ratio = percent(hiding.hidden_of_hideable) if hiding is not None and known else "–"
        times = (one.dur_ns, one.overlapped_ns, one.exposed_share_ns)
        rows.append([purpose, str(one.collectives), *(milliseconds(ns / count) for ns in times), ratio])
    heads = ["purpose", "collectives", "duration", "overlapped", "exposed", "hidden of\nhideable"]
    title = (
        f"By purpose, {_ms_per(report)}; collectives of all ranks{' and steps' if by_step(report) else ''}"
    )
    return _fitted(out, title, heads, rows, ["duration", "overlapped"])


def _causes(report: Report, out: Console) -> Table | None:
    """Why communication stays exposed."""
    parts = {key: ns for key, ns in (report.totals.exposed_by_cause_ns or {}).items() if ns}
    if not parts:
        return None
    count, whole = windows_of(report), sum(parts.values())
    mostly = {one.cause: one.collectives for one in together(kinds_of(report), ("cause",))}
    rows = [
        [cause, milliseconds(ns / count), percent(ns / whole), str(mostly.get(cause, 0))]
        for cause, ns in sorted(parts.items(), key=lambda part: -part[1])
    ]
    title = f"Exposed by cause, {_ms_per(report)}"
    return _fitted(out, title, ["cause", "exposed", "share", "collectives\nmostly so"], rows, ["share"])


def _contention(report: Report, out: Console) -> Table | None:
    """What overlap costs the GEMMs, where it could be compared."""
    known = [one for one in report.contention or () if one.slowdown_ratio is not None]
    if not known:
        return None
    rows = [
        [
            f"{one.role} {one.shape}",
            one.dtype or "–",
            f"{one.slowdown_ratio or 0:.2f}",
            milliseconds(one.median_overlapped_ns),
            milliseconds(one.median_alone_ns),
            str(one.overlapped_count),
        ]
        for one in sorted(known, key=lambda one: -(one.slowdown_ns or 0))[:_ROWS]
    ]
    heads = ["GEMM", "dtype", "slowdown", "overlapped", "alone", "overlapped\nGEMMs"]
    table = _fitted(out, "GEMMs beside communication, median ms of each", heads, rows, ["dtype", heads[5]])
    if len(known) > _ROWS:
        table.caption = f"the {_ROWS} that lose most of {len(known)}"
    return table


def print_listing(out: Console, one: Listing, most: int = _ROWS) -> None:
    """A table below a free line, of at most so many rows."""
    _gap(out)
    _print(out, _listing(one, out, most))


def _listing(one: Listing, out: Console, most: int = _ROWS) -> Table:
    """A table of ranks beside each other, or of memory. Columns that do not fit are left out."""
    heads = [f"{_small(label)}\n{unit}".strip() or "bound" for label, _, unit in one.columns]
    rows = [
        [_short(cell_text(kind, value)) for (_, kind, _), value in zip(one.columns, row, strict=True)]
        for row in one.rows[:most]
    ]
    last_first = range(len(heads) - 1, 1, -1)  # the first two stay
    first = [place % len(heads) for place in one.first_dropped]
    table = _fitted(
        out,
        f"{one.title}, {one.basis}" if one.basis else one.title,
        heads,
        rows,
        list(dict.fromkeys(heads[at] for at in (*(at for at in first if at in last_first), *last_first))),
    )
    if len(one.rows) > most:
        table.caption = f"the first {most} of {len(one.rows)}"
    return table


def _small(label: str) -> str:
    """A label as terminals show it, names as they are: `Rank` -> `rank`, `TP sync`."""
    return label.lower() if label[1:] == label[1:].lower() else label


def _short(text: str) -> str:
    """A group of 64 ranks has a long name; both its ends tell it apart."""
    text = shown_group(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 12]}…{text[-11:]}"


def _findings(out: Console, report: Report) -> None:
    for finding in report.findings:
        _gap(out)
        line = Text.assemble((f"{finding.severity}: ", _STYLE.get(finding.severity, "")), _text(finding.text))
        out.print(line, highlight=False, soft_wrap=not out.is_terminal)
        if finding.advice:
            print_line(out, f"  {finding.advice}")


def _left_out(out: Console, report: Report) -> None:
    sums: dict[tuple[str, str], list[int]] = {}
    for rank in report.ranks:
        for entry in rank.left_out:
            total = sums.setdefault((entry.kind, entry.reason), [0, 0])
            total[0] += entry.events
            total[1] += entry.ns
    if not sums:
        return
    _gap(out)
    parts = [
        f"{duration(ns)} of {kind} {_REASONS.get(reason, visible(reason))} ({counted(n, 'event')})"
        for (kind, reason), (n, ns) in sums.items()
    ]
    print_line(out, f"Left out, all ranks: {'; '.join(parts)}.")


def print_ledger(out: Console, ledger: Sequence[LedgerEntry]) -> None:
    """What a person is shown of the ledger, worst first."""
    entries = quality.shown(ledger)
    if not entries:
        return
    _gap(out)
    print_line(out, f"Data quality: {quality.totals(entries)}.")
    for entry in entries[:_ROWS]:
        times = f" (×{entry.count})" if entry.count != 1 else ""
        style = _STYLE.get(entry.severity, "dim")
        line = Text.assemble("  ", (entry.severity, style), _text(f" {entry.text}{times}"))
        out.print(line, highlight=False, soft_wrap=not out.is_terminal)
    if len(entries) > _ROWS:
        print_line(out, f"  {len(entries) - _ROWS} more kinds: see data_quality in the JSON report.")
