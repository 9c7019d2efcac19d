"""One trace in, its classified activities out."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp_profiler.classify.context import Context, build_context
from sp_profiler.classify.cpu import classify_cpu
from sp_profiler.classify.device import classify_device
from sp_profiler.classify.gemm import RULES
from sp_profiler.classify.gloo import gloo_rows
from sp_profiler.classify.tables import Activities, Classified
from sp_profiler.trace.tables import Trace


def classify(
    trace: Trace, run_json: dict[str, Any] | None = None, *, use_annotations: bool = True
) -> Classified:
    """Say of each activity of one rank what it is and where it was launched from.

    `run_json` is the content of the run's run.json, which names groups that the trace does not.
    `use_annotations=False` reads the trace as if nobody had written `sp::` ranges into it. The
    result depends on the trace alone otherwise; its columns are described in `classify/tables.py`.
    Never raises for what a trace holds: what cannot be known is None, NONE or `unknown`.
    """
    context = build_context(trace, run_json, use_annotations=use_annotations)
    cpu_only = trace.is_cpu_only
    activities, collectives = classify_cpu(context) if cpu_only else classify_device(context)
    cpu_comm = None if cpu_only else _cpu_communication_ns(context, activities)
    return Classified(
        activities=activities,
        collectives=collectives,
        groups=context.book.groups,
        steps=context.steps,
        names=context.annotations.names,
        rules=RULES,
        is_cpu_only=cpu_only,
        cpu_comm_ns=cpu_comm,
        ledger=context.ledger.entries,
    )


def _cpu_communication_ns(context: Context, activities: Activities) -> int | None:
    """The union of gloo's ranges in a file whose activities are the device's; None without a device event."""
    if not len(activities):
        return None
    events = context.trace.events
    rows = gloo_rows(context.trace)
    if not len(rows):
        return 0
    start, end = events.start_ns[rows], events.end_ns[rows]
    reached = np.maximum.accumulate(end)
    fresh = np.maximum(start, np.append(start[0], reached[:-1]))  # rows are sorted by start
    return int(np.maximum(end - fresh, 0).sum())
