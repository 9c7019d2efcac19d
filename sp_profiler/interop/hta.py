"""HTA (`pip install 'sp-profiler[hta]'`): its critical path, and its figures beside ours.

HTA runs in a process of its own (`hta_worker`): nothing here imports it, and whatever it does, the report
stands. Where it is absent or fails, the answer is an `HtaError` whose text says why.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sp_profiler.analysis.intervals import intersect, sum_by, unite
from sp_profiler.analysis.overlap import device_sets
from sp_profiler.analysis.results import CriticalPath, CriticalPathPart
from sp_profiler.classify.tables import Activities, Classified, Kind
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.model import Report
from sp_profiler.trace.remote import is_remote
from sp_profiler.trace.tables import NONE, Trace

TIMEOUT_S = 900.0
NOT_ASKED = "not-analysed-critical-path"
INSTALL = "HTA is not installed: pip install 'sp-profiler[hta]'"


class HtaError(Exception):
    """HTA is absent or failed; the text is a sentence."""


def is_installed() -> bool:
    return importlib.util.find_spec("hta") is not None


def ask(
    request: Mapping[str, Any], *, rounding: bool = False, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """HTA's answer to a request (see `hta_worker`). Raises HtaError."""
    if not is_installed():
        raise HtaError(INSTALL)
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "0" if rounding else "1", "MPLBACKEND": "Agg"}
    with tempfile.TemporaryDirectory(prefix="sp-profile-hta-") as folder:
        question, reply = Path(folder, "request.json"), Path(folder, "answer.json")
        question.write_text(json.dumps(request))
        command = [sys.executable, "-m", "sp_profiler.interop.hta_worker", str(question), str(reply)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise HtaError(f"HTA did not finish within {timeout_s:.0f} s") from None
        if not reply.exists():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise HtaError(f"HTA's process ended without an answer: {last}")
        answer = json.loads(reply.read_text())
    if "error" in answer:
        raise HtaError(f"{answer['tool']} failed: {answer['error']}")
    return answer


# --- critical path ---------------------------------------------------------------------------------


def _local(file: str) -> str:
    """Where HTA finds a trace. Raises HtaError for a URL."""
    if is_remote(file):
        raise HtaError(f"it reads local files only: download {file}")
    return os.path.abspath(file)


def with_critical_path(report: Report) -> Report:
    """The report with HTA's critical path of one step of its lowest rank, or with the reason why not."""
    kept = [entry for entry in report.data_quality if entry.code != NOT_ASKED]
    try:
        found = critical_path(report)
    except HtaError as error:
        entry = LedgerEntry("critical-path-failed", "note", f"critical_path is null: {error}")
        return replace(report, critical_path=None, data_quality=[*kept, entry])
    return replace(report, critical_path=found, data_quality=kept)


def critical_path(report: Report) -> CriticalPath:
    """HTA's critical path of the middle step (the whole trace where there is none). Raises HtaError."""
    if report.run.device_type == "cpu":
        raise HtaError("a CPU run holds no device activity, of which HTA's critical path is made")
    if not report.ranks:
        raise HtaError("the report holds no rank")
    first = min(report.ranks, key=lambda rank: rank.rank or 0)
    number = first.rank or 0
    steps = report.window.steps
    step = steps[len(steps) // 2] if steps else None
    request = {
        "action": "critical-path",
        "files": {str(number): _local(first.file)},
        "last_step": True,
        "rank": number,
        "annotation": "" if step is None else f"ProfilerStep#{step}",
    }
    answer = ask(request)
    return CriticalPath(
        rank=first.rank,
        step=step,
        source=answer["tool"],
        total_ns=sum(answer["by_kind_ns"].values()),
        by_kind_ns=answer["by_kind_ns"],
        longest=[CriticalPathPart(**part) for part in answer["longest"]],
        is_complete=answer["is_complete"],
    )


# --- figures beside ours ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One figure of one rank: ours, HTA's, and why they differ. Times in ns; None: HTA gives no number.

    `hta` is HTA as it is by default, `hta_exact` HTA without rounding and with the last step, the fair
    comparison: between the two lie `rounding` and `dropped_step`. Between ours and the exact one lie
    `launch_unseen` (where the traces hold several steps HTA drops kernels whose launch is not in the trace or
    behind the last step) and `classification` (what `Comparison.misclassified` lists). Ours + the four
    differences = hta.
    """

    rank: int
    figure: str
    ours: float | None
    hta_exact: float | None
    hta: float | None
    launch_unseen: float | None
    classification: float | None
    dropped_step: float | None
    rounding: float | None


@dataclass(frozen=True)
class Misclassified:
    """Events that HTA takes for something else than we do.

    `ours`: the kind, or the category in parentheses of what is no device activity for us: `(cpu_op)`.
    """

    name: str
    ours: str
    hta: str
    ns: int
    count: int


@dataclass(frozen=True)
class Comparison:
    tool: str
    differences: list[Difference]
    misclassified: list[Misclassified]


FIGURES = ("overlap_ratio", "compute_ns", "idle_ns", "other_busy_ns", "span_ns")


def compare(report: Report, looked: Looked) -> Comparison:
    """HTA's figures beside those of a report made with the window rule "trace". Raises HtaError."""
    if report.run.device_type == "cpu":
        raise HtaError("a CPU run holds no device activity, of which HTA's figures are made")
    if len({rank.file for rank in report.ranks}) > 1 and any(rank.rank is None for rank in report.ranks):
        raise HtaError("not every file tells its rank, by which HTA tells them apart")
    files = {str(rank.rank or 0): _local(rank.file) for rank in report.ranks}
    request = {"action": "figures", "files": files, "names": list(looked.kernels)}
    exact = ask(request | {"last_step": True})
    without_last = ask(request | {"last_step": False, "names": []})
    default = ask(request | {"last_step": False, "names": []}, rounding=True)
    differences: list[Difference] = []
    for rank in files:
        ours, inside = _ours(report, int(rank)), looked.kept_by_hta[int(rank)]
        for figure in FIGURES:
            theirs = [answer["ranks"].get(rank, {}).get(figure) for answer in (exact, without_last, default)]
            differences.append(
                Difference(
                    rank=int(rank),
                    figure=figure,
                    ours=ours[figure],
                    hta_exact=theirs[0],
                    hta=theirs[2],
                    launch_unseen=_minus(inside[figure], ours[figure]),
                    classification=_minus(theirs[0], inside[figure]),
                    dropped_step=_minus(theirs[1], theirs[0]),
                    rounding=_minus(theirs[2], theirs[1]),
                )
            )
    wrong = _misclassified(looked.kernels, exact["kinds"]) + _besides(exact["besides"])
    return Comparison(exact["tool"], differences, sorted(wrong, key=lambda one: (-one.ns, one.name)))


def _ours(report: Report, rank: int) -> dict[str, float | None]:
    """Our figures in HTA's words: all devices of a rank together."""
    mine = [one for one in report.ranks if (one.rank or 0) == rank]

    def total(name: str) -> int | None:
        known = [value for one in mine if (value := getattr(one, name)) is not None]
        return sum(known) if known else None

    comm, compute, busy = total("comm_ns"), total("compute_ns"), total("busy_ns")
    overlapped = total("overlapped_ns")
    return {
        "overlap_ratio": overlapped / comm if overlapped is not None and comm else None,
        "compute_ns": compute,
        "idle_ns": total("idle_ns"),
        "other_busy_ns": None if busy is None or compute is None else busy - compute,
        "span_ns": total("window_ns"),
    }


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _misclassified(
    kernels: Mapping[str, tuple[str, int, int]], theirs: Mapping[str, str]
) -> list[Misclassified]:
    """Activities of ours. What HTA calls OTHER counts for it as busy, and in nothing else."""
    same = {"communication": "COMMUNICATION", "computation": "COMPUTATION", "memory": "MEMORY"}
    return [
        Misclassified(name, kind, theirs[name].lower(), ns, count)
        for name, (kind, ns, count) in kernels.items()
        if name in theirs and theirs[name] != same.get(kind)
    ]


def _besides(theirs: Sequence[Mapping[str, Any]]) -> list[Misclassified]:
    """What only HTA takes for device activities."""
    return [
        Misclassified(one["name"], f"({one['category']})", one["kind"].lower(), one["ns"], one["count"])
        for one in theirs
    ]


@dataclass(frozen=True)
class Looked:
    """Our side of the comparison, from the traces themselves.

    `kernels`: each activity name with our kind, its total ns and its count. `kept_by_hta`: by rank, our
    figures of what HTA keeps: where the traces together hold several profiled steps, kernels whose launch
    is in the trace and not behind the last one.
    """

    kernels: dict[str, tuple[str, int, int]]
    kept_by_hta: dict[int, dict[str, float | None]]


def look(traces: Sequence[Trace]) -> Looked:
    """Classify the traces and measure them as HTA does: whole activities, no windows."""
    from sp_profiler.classify import classify

    kernels: dict[str, tuple[str, int, int]] = {}
    numbers: set[int] = set()
    by_rank: dict[int, tuple[Trace, Classified]] = {}
    for trace in traces:
        classified = by_rank[trace.rank or 0] = (trace, classify(trace))
        _add_kernels(kernels, trace, classified[1].activities)
        numbers.update(step.number for step in classified[1].steps)
    kept = {rank: _kept_by_hta(*one, drops=len(numbers) > 1) for rank, one in by_rank.items()}
    return Looked(kernels, kept)


def _add_kernels(kernels: dict[str, tuple[str, int, int]], trace: Trace, activities: Activities) -> None:
    dur = activities.end_ns - activities.start_ns
    codes, place = np.unique(activities.name, return_inverse=True)
    total, count = sum_by(place, dur, len(codes)), np.bincount(place, minlength=len(codes))
    kind = np.zeros(len(codes), np.int64)
    kind[place] = activities.kind
    for code, one, ns, number in zip(
        codes.tolist(), kind.tolist(), total.tolist(), count.tolist(), strict=True
    ):
        name = trace.strings[code] or ""
        _, old_ns, old_count = kernels.get(name, ("", 0, 0))
        kernels[name] = (Kind(one).name.lower(), old_ns + ns, old_count + number)


def _kept_by_hta(trace: Trace, classified: Classified, *, drops: bool) -> dict[str, float | None]:
    """Our figures of the activities that HTA keeps; it keeps all where `drops` is false.

    HTA finds a launch by its correlation, and takes "no correlation" for one that every host event has.
    """
    activities = classified.activities
    kept = np.ones(len(activities), np.bool_)
    if drops:
        last = max((step.end_ns for step in classified.steps), default=NONE)
        launched = (activities.launch_ns != NONE) & (activities.launch_ns <= last)
        kept = launched | (trace.events.correlation[activities.event] == NONE)
    sums = dict.fromkeys(("comm", "overlapped", "compute", "busy", "span"), 0)
    for device in np.unique(activities.device[kept]).tolist():
        rows = np.flatnonzero(kept & (activities.device == device))
        sets = device_sets(activities, rows)
        busy = unite(sets.comm, sets.compute, sets.memory)
        sums["comm"] += sets.comm.measure
        sums["overlapped"] += intersect(sets.comm, sets.compute).measure
        sums["compute"] += sets.compute.measure
        sums["busy"] += busy.measure
        sums["span"] += int(activities.end_ns[rows].max() - activities.start_ns[rows].min())
    return {
        "overlap_ratio": sums["overlapped"] / sums["comm"] if sums["comm"] else None,
        "compute_ns": sums["compute"],
        "idle_ns": sums["span"] - sums["busy"],
        "other_busy_ns": sums["busy"] - sums["compute"],
        "span_ns": sums["span"],
    }
