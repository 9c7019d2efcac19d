"""Plotly figures of why communication is exposed, for the dashboard."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go

from sp_profiler.analysis.causes import CAUSES
from sp_profiler.analysis.results import RankFigures
from sp_profiler.report import figures
from sp_profiler.report.model import Report, by_step
from sp_profiler.report.palette import TIME, Look

CAUSE = {
    "peer-skew": Look("exposed: waiting for a late peer", "#C65A2E", "\\"),
    "synchronous": Look("exposed: synchronous", "#D55E00", "x"),
    "partner-too-short": Look("exposed: longer than its partner", "#E58A4A", "|"),
    "late-partner": Look("exposed: partner starts late", "#CC79A7", "-"),
    "queued": Look("exposed: queued", "#8C6BB1", "+"),
    "no-partner": Look("exposed: no partner", "#A6761D", "/"),
    "unknown": Look("exposed: cause unknown", "#C3A79A", "."),
}
"""Causes of exposed time, in the order in which they are drawn: warm colours, as all that is exposed."""


def step_by_cause(report: Report) -> go.Figure:
    """One bar per rank and device: computation only, overlapped, exposed by cause, copies, idle.

    Where nothing is known of causes, exposed time is one part.
    """

    def of_cause(cause: str) -> Callable[[RankFigures], int]:
        return lambda r: (r.exposed_by_cause_ns or {}).get(cause, 0)

    parts: list[tuple[Look, Callable[[RankFigures], int]]] = [
        (TIME["compute"], lambda r: (r.compute_ns or 0) - (r.overlapped_ns or 0)),
        (TIME["overlapped"], lambda r: r.overlapped_ns or 0),
        *((CAUSE[cause], of_cause(cause)) for cause in CAUSES),
        (TIME["exposed"], lambda r: (r.exposed_ns or 0) if r.exposed_by_cause_ns is None else 0),
        (TIME["memory"], lambda r: r.memory_op_only_ns or 0),
        (TIME["idle"], lambda r: r.idle_ns or 0),
    ]
    return figures.by_rank(
        report, parts, lambda r: r.window_ns or 0, "ms per step" if by_step(report) else "ms"
    )
