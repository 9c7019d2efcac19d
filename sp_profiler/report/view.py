"""What the HTML page shows of a report: figures with their exact values, and tables.

A figure shown on the page is a field of the report: `path` names it (`totals.comm_ns`), `value` is the
field itself, and the text is made from that value and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sp_profiler.analysis.kind_figures import KindFigures
from sp_profiler.analysis.results import CollectiveFigures, Figures
from sp_profiler.report import many_ranks, view_ranks
from sp_profiler.report.figures import by_kind
from sp_profiler.report.format import UNKNOWN, counted, duration, percent
from sp_profiler.report.model import Fleet, Report, by_step, windows_by_rank, windows_of
from sp_profiler.report.table import MOST_ROWS, Column, Table, listing_table, table_of

AnyFigures = TypeVar("AnyFigures", bound=Figures)


@dataclass(frozen=True)
class Shown:
    """A field of the report as the page shows it. `raw` is the exact value as JSON (`null` included)."""

    path: str
    label: str
    text: str
    raw: str
    note: str = ""
    share: float | None = None  # for a bar, 0..1


def _ns(report: Report, name: str, text: str, note: str = "") -> Shown:
    """A sum of nanoseconds, shown as the mean per window, with its share of the window."""
    value = getattr(report.totals, name)
    window = report.totals.window_ns
    mean = None if value is None else value / windows_of(report)
    share = value / window if value is not None and window else None
    return Shown(f"totals.{name}", text, duration(mean), json.dumps(value), note, share)


def _ratio(report: Report, name: str, text: str, note: str = "", unknown: str = UNKNOWN) -> Shown:
    value = getattr(report.totals, name)
    shown = unknown if value is None else percent(value)
    return Shown(f"totals.{name}", text, shown, json.dumps(value), note, value)


def _if_all_hidden(report: Report) -> Shown:
    """Of the slowest rank, so a mean over its own steps only."""
    value = report.totals.step_ns_if_all_hidden
    mean = None if value is None else value / max(len(report.window.steps), 1)
    note = "slowest rank, if everything hideable were hidden"
    return Shown(
        "totals.step_ns_if_all_hidden", "Step if all hidden", duration(mean), json.dumps(value), note
    )


def cards(report: Report) -> list[Shown]:
    """The four figures on top."""
    totals, per = report.totals, per_text(report)
    count = windows_of(report)

    def mean(ns: int | None) -> str:
        return duration(None if ns is None else ns / count)

    what = "Step time" if by_step(report) else "Trace span"
    exposed_share = (
        totals.exposed_ns / totals.window_ns if totals.exposed_ns is not None and totals.window_ns else None
    )
    nothing = "none" if _without_communication(report) else UNKNOWN
    return [
        _ns(report, "window_ns", what, _of_which(report)),
        _ns(report, "exposed_ns", "Exposed communication", f"{percent(exposed_share)} of the time, {per}"),
        _ratio(
            report,
            "wgrad_overlap_ratio",
            "dgrad communication under wgrad",
            f"{mean(totals.wgrad_overlapped_ns)} of {mean(totals.dgrad_comm_ns)}"
            if totals.dgrad_comm_ns
            else _without_dgrad(report),
            "none" if _without_dgrad(report).startswith("no dgrad") else nothing,
        ),
        _ratio(
            report,
            "hidden_of_hideable",
            "Hidden of hideable",
            f"{mean(totals.partner_hidden_ns)} of {mean(totals.partner_hideable_ns)}"
            if totals.partner_hideable_ns is not None
            else _without_communication(report) or "no collective has a known partner",
            nothing,
        ),
    ]


def _of_which(report: Report) -> str:
    """What the step time is a mean of; the slowest rank where there are several."""
    several = len({(r.rank, r.file) for r in report.ranks}) > 1
    if not several:
        return "mean" if windows_of(report) > 1 else ""
    counts = windows_by_rank(report)
    means = ((r.window_ns or 0) / counts.get((r.rank, r.device), 1) for r in report.ranks)
    slowest = max(means, default=0)
    return f"mean; slowest rank {duration(slowest)}"


def _without_communication(report: Report) -> str:
    return "no communication in this run" if report.totals.comm_ns == 0 else ""


def _without_dgrad(report: Report) -> str:
    """Why no share of dgrad communication can be told: none there, or nobody knows which it is."""
    if report.totals.dgrad_comm_ns is None:
        return "of no collective the purpose is known"
    known = report.coverage.purpose_known_ratio
    none = (
        "no dgrad communication in this run" if known in (None, 1.0) else "no collective is known to be dgrad"
    )
    return _without_communication(report) or none


def per_text(report: Report) -> str:
    return "mean per step and rank" if by_step(report) else "mean per rank"


def more_figures(report: Report) -> list[Shown]:
    """The other totals, in the order in which they add up."""
    unknown = report.totals.partner_unknown
    is_cpu = report.run.device_type == "cpu"  # there overlap does not shorten a step, so nothing is promised
    without = f"; {counted(unknown, 'collective')} without a known partner" if unknown else ""
    return [
        _ns(report, "comm_ns", "Communication", "union of all collectives"),
        _ns(report, "overlapped_ns", "Overlapped", "communication while computation runs"),
        _ratio(report, "overlap_ratio", "Overlap ratio", "overlapped of communication"),
        _ns(report, "compute_ns", "Computation", "union of all kernels that compute"),
        _ns(report, "memory_op_only_ns", "Copies only", "copies and memsets beside nothing else"),
        _ns(report, "idle_ns", "Idle", "nothing runs on the device"),
        *_on_device(report),
        _ns(report, "dgrad_comm_ns", "dgrad communication", "gradients of activations"),
        _ns(report, "wgrad_overlapped_ns", "dgrad communication under wgrad", "while wgrad runs"),
        _ns(
            report,
            "partner_hidden_ns",
            "Hidden under the partner",
            f"each collective under its own GEMMs{without}",
        ),
        _ns(report, "partner_hideable_ns", "Hideable", "the shorter of collective and partner"),
        *([] if is_cpu else [_if_all_hidden(report)]),
    ]


def _on_device(report: Report) -> list[Shown]:
    """Figures that only runs on devices have, as far as they are known."""
    totals = report.totals
    shown = []
    if totals.host_bound_ns is not None:
        shown.append(_ns(report, "host_bound_ns", "Idle, host-bound", "what runs next was not launched yet"))
    if totals.net_gain_ns is not None:
        shown.append(
            _ns(report, "slowdown_ns", "GEMM slowdown", "what overlapped GEMMs lose to communication")
        )
        shown.append(_ns(report, "net_gain_ns", "Net gain of overlap", "overlapped less the slowdown"))
    return shown


def tables(report: Report) -> list[Table]:
    """The sortable tables, most asked first."""
    made = [
        kinds_table(report),
        _collectives_table(report),
        *(listing_table(one) for one in (*many_ranks.listings(report), *view_ranks.listings(report))),
        *exposed_tables(report),
        _ranks_table(report),
        _steps_table(report),
        _groups_table(report),
        gemms_table(report),
        contention_table(report),
    ]
    return [table for table in made if table.rows]


_KIND_NAMES = ("op", "group", "purpose")
_KIND_SUMS = {
    "count": "collectives",
    "asynchronous": "asynchronous",
    "bytes": "bytes",
    "dur": "dur_ns",
    "overlapped": "overlapped_ns",
    "exposed": "exposed_ns",
    "share": "exposed_share_ns",
}


def kinds_table(report: Report) -> Table:
    """Collectives by operation, group and purpose."""

    def get(item: tuple[tuple[str, str, str], KindFigures], key: str) -> Any:
        names, sums = item
        return getattr(sums, _KIND_SUMS[key]) if key in _KIND_SUMS else names[_KIND_NAMES.index(key)]

    columns = [
        Column("op", "Collective", "text"),
        Column("group", "Group", "text"),
        Column("purpose", "Purpose", "text"),
        Column("count", "Count", "int"),
        Column("asynchronous", "Async", "int"),
        Column("bytes", "Size", "bytes"),
        Column("dur", "Duration", "ms", "ms"),
        Column("overlapped", "Overlapped", "ms", "ms"),
        Column("exposed", "Exposed", "ms", "ms"),
        Column("share", "Share of exposed", "ms", "ms"),
    ]
    items = sorted(by_kind(report).items(), key=lambda item: -item[1].exposed_share_ns)
    table = table_of(
        "kinds",
        "Collectives by kind",
        columns,
        items,
        get,
        "Most exposed first. Sums over all ranks and steps.",
        ("count", "dur", "overlapped", "exposed", "share"),
    )
    return table if report.fleet is None else replace(table, all_at="fleet.kinds in report.json")


def _collectives_table(report: Report) -> Table:
    items = sorted(report.collectives, key=lambda c: (-c.exposed_share_ns, c.id))
    table = collectives_table(items, min((c.start_ns for c in report.collectives), default=0))
    return table if report.fleet is None else _of_all(table, report.fleet, report)


def _of_all(table: Table, fleet: Fleet, report: Report) -> Table:
    """The table of the listed collectives, where they are not all."""
    if fleet.collectives == len(report.collectives):
        return table
    sums = {
        place: sum(getattr(one, column.key) for one in fleet.kinds)
        for place, column in enumerate(table.columns)
        if place in table.sums
    }
    note = (
        f"{counted(len(report.collectives), 'collective')} of {counted(fleet.collectives, 'collective')}, "
        "the most exposed and those that findings name; most exposed first, start counts from the first of "
        f"them. All are in {fleet.collectives_at}, a Parquet file for each trace."
    )
    return replace(
        table,
        title="The most exposed collectives",
        note=note,
        total=fleet.collectives,
        sums=sums,
        all_at=fleet.collectives_at,
    )


def collectives_table(items: Sequence[CollectiveFigures], origin_ns: int) -> Table:
    """These collectives in their order; `origin_ns`: where their starts count from."""

    def get(c: Any, key: str) -> Any:
        if key == "start":
            return c.start_ns - origin_ns
        if key == "partner":
            return c.partner.what if c.partner else None
        if key == "is_async":
            return None if c.is_async is None else "async" if c.is_async else "sync"
        return getattr(c, key)

    columns = [
        Column("id", "#", "int"),
        Column("rank", "Rank", "int"),
        Column("step", "Step", "int"),
        Column("op", "Op", "text"),
        Column("group", "Group", "text"),
        Column("purpose", "Purpose", "text"),
        Column("module", "Module", "text"),
        Column("bytes", "Size", "bytes"),
        Column("is_async", "Launch", "text"),
        Column("dur_ns", "Duration", "us", "µs"),
        Column("overlapped_ns", "Overlapped", "us", "µs"),
        Column("exposed_ns", "Exposed", "us", "µs"),
        Column("cause", "Cause", "text"),
        Column("skew_wait_ns", "Waited", "us", "µs"),
        Column("partner", "Partner", "text"),
        Column("hideable_ns", "Hideable", "us", "µs"),
        Column("hidden_ns", "Hidden", "us", "µs"),
        Column("queue_delay_ns", "Launch to start", "us", "µs"),
        Column("start", "Start", "ms", "ms"),
        Column("phase", "Phase", "text"),
        Column("kernel", "Kernel", "text"),
    ]
    if any(c.busbw_gbps is not None for c in items):
        columns.insert(-1, Column("busbw_gbps", "busbw", "number", "GB/s"))
    return table_of(
        "collectives",
        "Every collective",
        columns,
        items,
        get,
        "Most exposed first; start counts from the first collective.",
        ("dur_ns", "overlapped_ns", "exposed_ns"),
    )


def exposed_tables(report: Report) -> list[Table]:
    """Where communication is exposed, by each grouping; none where one row would hold all of it."""
    totals = report.totals
    groupings = (
        ("Cause", totals.exposed_by_cause_ns or {}),
        ("Purpose", totals.exposed_by_purpose_ns),
        ("Operation", totals.exposed_by_op_ns),
        ("Group", totals.exposed_by_group_ns),
        ("Phase", totals.exposed_by_phase_ns),
        ("Layer", totals.exposed_by_layer_ns),
        ("Module", totals.exposed_by_module_ns),
    )
    made = [_exposed_table(by, parts, totals.exposed_ns) for by, parts in groupings]
    return [table for table in made if table.total > 1 or table.id in ("exposed-cause", "exposed-purpose")]


def _exposed_table(by: str, parts: Mapping[str, int], whole: int | None) -> Table:
    columns = [
        Column("key", by, "text"),
        Column("ns", "Exposed", "ms", "ms"),
        Column("share", "Of all exposed", "ratio", "%"),
    ]
    rows = [
        {"key": key, "ns": ns, "share": ns / whole if whole else None}
        for key, ns in sorted(parts.items(), key=lambda part: -part[1])
        if ns
    ]
    return table_of(
        f"exposed-{by.lower()}",
        f"Exposed by {by.lower()}",
        columns,
        rows,
        lambda row, key: row[key],
        "Sums over all ranks and steps.",
        ("ns", "share"),
    )


_FIGURES = [
    Column("window_ns", "Window", "ms", "ms"),
    Column("compute_ns", "Compute", "ms", "ms"),
    Column("comm_ns", "Comm", "ms", "ms"),
    Column("overlapped_ns", "Overlapped", "ms", "ms"),
    Column("exposed_ns", "Exposed", "ms", "ms"),
    Column("memory_op_only_ns", "Copies only", "ms", "ms"),
    Column("idle_ns", "Idle", "ms", "ms"),
    Column("wgrad_overlapped_ns", "dgrad under wgrad", "ms", "ms"),
    Column("wgrad_overlap_ratio", "Of dgrad", "ratio", "%"),
    Column("hidden_of_hideable", "Hidden of hideable", "ratio", "%"),
]
_ADDED = tuple(column.key for column in _FIGURES if column.kind == "ms")
_RANK = [Column("rank", "Rank", "int"), Column("device", "Device", "int")]


def _ranks_table(report: Report) -> Table:
    columns = [*_RANK, *_FIGURES]
    if report.run.device_type != "cpu":
        columns.append(Column("step_ns_if_all_hidden", "If all hidden", "ms", "ms"))
    items, order = _most_exposed_first(report, report.ranks)
    return table_of("ranks", "Ranks", columns, items, note=f"Sums over all steps{order}.", adds=_ADDED)


def _most_exposed_first(report: Report, rows: Sequence[AnyFigures]) -> tuple[Sequence[AnyFigures], str]:
    """The rows of few ranks in their order, of many the most exposed first; and a word on it."""
    if not many_ranks.has_many(report) and len(rows) <= MOST_ROWS:
        return rows, ""
    return sorted(rows, key=lambda one: -(one.exposed_ns or 0)), "; most exposed first"


def _steps_table(report: Report) -> Table:
    columns = [*_RANK, Column("step", "Step", "int"), *_FIGURES]
    items, order = _most_exposed_first(report, report.steps)
    note = f"Each step of each rank by itself{order}."
    table = table_of("steps", "Steps", columns, items, note=note, adds=_ADDED)
    if report.fleet is None or report.fleet.windows == len(report.steps):
        return table
    note = (
        f"The {len(report.steps)} most exposed of {report.fleet.windows}, each step of each rank by itself."
    )
    sums = {place: getattr(report.totals, columns[place].key) for place in table.sums}
    return replace(table, note=note, total=report.fleet.windows, sums=sums, all_at="the traces")


def _groups_table(report: Report) -> Table:
    columns = [
        Column("group", "Group", "text"),
        Column("size", "Ranks", "int"),
        Column("backend", "Backend", "text"),
        Column("collectives", "Collectives", "int"),
        Column("bytes", "Size", "bytes"),
        Column("comm_ns", "Comm", "ms", "ms"),
        Column("overlapped_ns", "Overlapped", "ms", "ms"),
        Column("exposed_share_ns", "Share of exposed", "ms", "ms"),
        Column("skew_wait_ns", "Waited", "ms", "ms"),
    ]
    adds = ("collectives", "bytes", "comm_ns", "overlapped_ns", "exposed_share_ns", "skew_wait_ns")
    note = "Sums over all ranks and steps."
    return table_of("groups", "Process groups", columns, report.groups, note=note, adds=adds)


def gemms_table(report: Report) -> Table:
    """GEMMs by kernel, shape, type and role."""
    columns = [
        Column("role", "Role", "text"),
        Column("shape", "Shape", "text"),
        Column("dtype", "Dtype", "text"),
        Column("count", "Count", "int"),
        Column("total_ns", "Total", "ms", "ms"),
        Column("mean", "Mean", "us", "µs"),
        Column("tflops", "Rate", "number", "TFLOP/s"),
        Column("share_of_peak", "Of peak", "ratio", "%"),
        Column("name", "Kernel", "text"),
    ]

    def get(gemm: Any, key: str) -> Any:
        return gemm.total_ns // max(gemm.count, 1) if key == "mean" else getattr(gemm, key)

    note = "Sums over all ranks and steps; most time first."
    return table_of("gemms", "GEMMs", columns, report.gemms, get, note, ("count", "total_ns"))


def contention_table(report: Report) -> Table:
    """GEMMs while communication overlaps them, and while not."""
    columns = [
        Column("role", "Role", "text"),
        Column("shape", "Shape", "text"),
        Column("dtype", "Dtype", "text"),
        Column("overlapped_count", "Overlapped", "int"),
        Column("median_overlapped_ns", "Median", "us", "µs"),
        Column("alone_count", "Alone", "int"),
        Column("median_alone_ns", "Median", "us", "µs"),
        Column("slowdown_ratio", "Slowdown", "number", "×"),
        Column("slowdown_ns", "Lost", "ms", "ms"),
        Column("from_baseline", "From baseline", "text"),
    ]
    note = (
        "GEMMs while communication overlaps at least half of each, and the others; 5 of each at least. "
        "Lost is the sum over all ranks and steps."
    )
    items = [one for one in report.contention or () if one.overlapped_count]
    return table_of(
        "contention", "What overlap costs the GEMMs", columns, items, note=note, adds=("slowdown_ns",)
    )
