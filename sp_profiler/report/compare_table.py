"""The side-by-side table of several runs, the same in the terminal, in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sp_profiler.report.format import milliseconds, percent
from sp_profiler.report.model import Report, by_step, windows_of


@dataclass(frozen=True)
class CompareColumn:
    """`unit` stands in the header; `path` names the field of the report that the cells come from."""

    label: str
    unit: str
    path: str


@dataclass(frozen=True)
class CompareTable:
    columns: list[CompareColumn]
    rows: list[tuple[str, list[str]]]  # the run's label, one text per column
    note: str


_NS = (
    ("step", "window_ns"),
    ("compute", "compute_ns"),
    ("comm", "comm_ns"),
    ("overlapped", "overlapped_ns"),
    ("exposed", "exposed_ns"),
)
_UNDER_WGRAD_NS = (("dgrad comm", "dgrad_comm_ns"), ("under wgrad", "wgrad_overlapped_ns"))
_UNDER_WGRAD = ("wgrad hides", "of dgrad comm", "wgrad_overlap_ratio")
_UNDER_ATTENTION = ("under attention", "ms", "totals.overlapped_by_role_ns.attention")
_HIDDEN = ("hidden", "of all hideable", "hidden_of_hideable")

CONTEXT_MODES = ("ring", "rsa", "ulysses", "usp")
_ORDER = {
    "mode": ("ddp", "tp", "sp", *CONTEXT_MODES),
    "layout": ("zigzag", "striped", "contiguous"),
    "save": ("full", "shard"),
    "comm": ("sync", "async"),
    "recompute": ("none", "selective", "full"),
}


def ordered(reports: Sequence[Report]) -> list[Report]:
    """Runs in the order in which they are compared: families together, sync above async, full above shard.

    Runs that say nothing of these come last, in the order given.
    """

    def place(report: Report) -> list[int]:
        workload = {"recompute": "none", **(report.run.workload or {})}  # runs of old do not say it
        said = [(workload.get(key), known) for key, known in _ORDER.items()]
        return [known.index(value) if value in known else len(known) for value, known in said]

    return sorted(reports, key=place)


def compare_table(reports: Sequence[Report]) -> CompareTable:
    """One row per run; times in ms, means per step and rank; of the whole trace in runs without steps.

    What is under wgrad is told where any run has communication of gradients of activations, what is under
    attention where any run divides the sequence.
    """
    has_dgrad = any(report.totals.dgrad_comm_ns != 0 for report in reports)
    has_context = any((report.run.workload or {}).get("mode") in CONTEXT_MODES for report in reports)
    times = (*_NS, *(_UNDER_WGRAD_NS if has_dgrad else ()))
    columns = [(CompareColumn(text, "ms", f"totals.{name}"), _mean(name)) for text, name in times]
    if has_context:
        columns.append((CompareColumn(*_UNDER_ATTENTION), _mean_under_attention))
    for text, unit, name in (*((_UNDER_WGRAD,) if has_dgrad else ()), _HIDDEN):
        columns.append((CompareColumn(text, unit, f"totals.{name}"), _ratio(name)))
    whole = {id(report) for report in reports if not by_step(report) and report.totals.window_ns is not None}
    is_mixed = len(whole) < sum(report.totals.window_ns is not None for report in reports)
    mark = "*" if is_mixed else ""
    rows = [
        (f"{run_label(report)}{mark if id(report) in whole else ''}", [cell(report) for _, cell in columns])
        for report in ordered(reports)
    ]
    return CompareTable([column for column, _ in columns], rows, _note(bool(whole), is_mixed))


def _note(some_whole: bool, is_mixed: bool) -> str:
    """What the times are means of."""
    if not some_whole:
        return "Times are means per step and rank."
    if not is_mixed:
        return "The runs have no steps: times are means per rank over the whole trace."
    return "Times are means per step and rank; runs marked * have no steps: whole trace."


def _mean(name: str) -> Callable[[Report], str]:
    def cell(report: Report) -> str:
        value = getattr(report.totals, name)
        return milliseconds(None if value is None else value / windows_of(report))

    return cell


def _mean_under_attention(report: Report) -> str:
    totals = report.totals
    value = None if totals.comm_ns is None else totals.overlapped_by_role_ns.get("attention", 0)
    return milliseconds(None if value is None else value / windows_of(report))


def _ratio(name: str) -> Callable[[Report], str]:
    def cell(report: Report) -> str:
        value = getattr(report.totals, name)
        return "–" if value is None else percent(value)

    return cell


def run_label(report: Report) -> str:
    """The workload in the words people use (`TP async`, `SP recompute`), else the run's name."""
    return workload_label(report.run.workload or {}, report.run.name)


def workload_label(workload: Mapping[str, Any], name: str) -> str:
    """The same of run.json's `workload`; `name` where it is none of the shipped ones."""
    mode, comm, save = workload.get("mode"), workload.get("comm"), workload.get("save")
    recompute = workload.get("recompute") or "none"
    again = "" if recompute == "none" else f", {recompute} recompute"
    if mode == "sp":
        known = {("full", "sync"): "SP basic", ("shard", "async"): "SP recompute"}
        return known.get((str(save), str(comm)), f"SP save={save} {comm}") + again
    if mode == "tp":
        return f"TP {comm}{again}"
    if mode == "ddp":
        return f"DDP{again}"
    if mode in CONTEXT_MODES:
        return _context_label(workload) + again
    return name


def _context_label(workload: Mapping[str, Any]) -> str:
    """`Ring zigzag async`, `USP 2 striped sync, SP 2, no mask, attention only`."""
    names = {"ring": "Ring", "rsa": "Ring self-attention", "ulysses": "Ulysses", "usp": "USP"}
    words = [
        names[str(workload["mode"])],
        workload.get("ulysses"),
        workload.get("layout"),
        workload.get("comm"),
    ]
    label = " ".join(str(word) for word in words if word)
    parts = workload.get("tp") or 1
    if parts > 1:
        label += f", {str(workload.get('inside') or 'tp').upper()} {parts}"
    label += "" if workload.get("causal", True) else ", no mask"
    return label + (", attention only" if workload.get("attention_only") else "")
