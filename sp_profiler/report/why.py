"""Why communication stays exposed, as the page shows it: one row per cause, explained."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sp_profiler.analysis.kind_figures import together
from sp_profiler.report.format import counted, duration, percent
from sp_profiler.report.model import Report, kinds_of, windows_of


@dataclass(frozen=True)
class CauseRow:
    """`raw` is the field `path` of the report as JSON; `share` is of all exposed time, 0..1."""

    key: str
    path: str
    raw: str
    name: str
    meaning: str
    change: str
    text: str
    percent: str
    share: float
    collectives: int


_FINDINGS = {  # the findings that say of a cause what to change
    "peer-skew": ("peer-skew",),
    "synchronous": ("synchronous-with-partner", "synchronous-without-partner"),
    "partner-too-short": ("launched-after-partner", "partner-too-short"),
    "late-partner": ("late-partner",),
    "queued": ("queued",),
    "no-partner": ("launched-after-partner", "no-partner"),
    "unknown": ("exposed-for-unknown-cause",),
}

_TOLD = {  # the cause's name, what it means, what changes it where no finding says more (docs/causes.md)
    "peer-skew": (
        "Waiting for a late peer",
        "before the last rank of the group arrived",
        "find why that rank is late: uneven work, data loading, a slower device; overlap does not cure it",
    ),
    "synchronous": (
        "Synchronous",
        "the collective blocks, so nothing can run beside it",
        "with independent work at hand: launch it asynchronously before that work, wait after it",
    ),
    "partner-too-short": (
        "Longer than its partner",
        "the part that outlasts the computation it runs under",
        "more tokens per rank, a smaller group, fewer bytes or faster links",
    ),
    "late-partner": (
        "Partner starts late",
        "before the computation it could run under started",
        "keep the host ahead, and launch the partner right behind the collective",
    ),
    "queued": (
        "Queued",
        "began late behind other collectives, after its partner had ended",
        "a process group of its own, or a stream of higher priority",
    ),
    "no-partner": (
        "No partner",
        "asynchronous, but no computation was launched before the wait",
        "wait later, with computation in between",
    ),
    "unknown": (
        "Unknown",
        "the trace lacks the launch or the wait",
        "record whole steps with CPU activities, or annotate",
    ),
}


def told_of_cause(key: str) -> tuple[str, str]:
    """A cause's name, and what it means."""
    name, meaning, _ = _TOLD.get(key, (key, "", ""))
    return name, meaning


def cause_rows(report: Report) -> list[CauseRow]:
    """The causes with a part in the exposed time, largest first; means per window (`view.per_text`)."""
    parts = {key: ns for key, ns in (report.totals.exposed_by_cause_ns or {}).items() if ns}
    whole, count = sum(parts.values()), windows_of(report)
    mostly = {one.cause: one.collectives for one in together(kinds_of(report), ("cause",))}
    rows = []
    for key, ns in sorted(parts.items(), key=lambda part: (-part[1], part[0])):
        name, meaning, change = _TOLD.get(key, (key, "", ""))
        change = _advice(report, key) or change
        path, share = f"totals.exposed_by_cause_ns.{key}", ns / whole
        told = (duration(ns / count), percent(share))
        rows.append(
            CauseRow(key, path, json.dumps(ns), name, meaning, change, *told, share, mostly.get(key, 0))
        )
    return rows


def _advice(report: Report, cause: str) -> str:
    """What the findings of this report advise about a cause; nothing where they name none.

    They looked at the collectives: whether a partner is there, whether the gradients of data parallelism
    are meant. Where two of them speak of one cause, each says of how many collectives.
    """
    told = [f for f in report.findings if f.code in _FINDINGS.get(cause, ()) and f.advice]
    if len(told) == 1:
        return told[0].advice or ""
    return " ".join(f"{counted(f.evidence['collectives'], 'collective')}: {f.advice}" for f in told)
