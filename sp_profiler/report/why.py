"""Why communication stays exposed, as the page shows it: one row per cause, explained."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sp_profiler.report.format import duration, percent
from sp_profiler.report.model import Report, windows_of


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


_TOLD = {  # the cause's name, what it means, what changes it (docs/causes.md)
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


def cause_rows(report: Report) -> list[CauseRow]:
    """The causes with a part in the exposed time, largest first; means per window (`view.per_text`)."""
    parts = {key: ns for key, ns in (report.totals.exposed_by_cause_ns or {}).items() if ns}
    whole, count = sum(parts.values()), windows_of(report)
    mostly = [c.cause for c in report.collectives]
    rows = []
    for key, ns in sorted(parts.items(), key=lambda part: (-part[1], part[0])):
        name, meaning, change = _TOLD.get(key, (key, "", ""))
        path, share = f"totals.exposed_by_cause_ns.{key}", ns / whole
        told = (duration(ns / count), percent(share))
        rows.append(
            CauseRow(key, path, json.dumps(ns), name, meaning, change, *told, share, mostly.count(key))
        )
    return rows
