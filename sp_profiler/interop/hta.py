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

from sp_profiler.analysis.results import CriticalPath, CriticalPathPart
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.model import Report

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
    ranks = [rank for rank in report.ranks if rank.rank is not None and rank.file]
    if not ranks:
        raise HtaError("no file tells its rank")
    first = min(ranks, key=lambda rank: rank.rank or 0)
    steps = report.window.steps
    step = steps[len(steps) // 2] if steps else None
    request = {
        "action": "critical-path",
        "files": {str(first.rank): os.path.abspath(first.file)},
        "last_step": True,
        "rank": first.rank,
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

    `hta_ns` is HTA as it is by default. `hta_exact_ns` is HTA without rounding and with the last step, the
    fair comparison. What lies between the two is `rounding` and `dropped_step`; what lies between ours and
    the exact one is how kernels are classified (`classification`).
    """

    rank: int
    figure: str
    ours: float | None
    hta_exact: float | None
    hta: float | None
    classification: float | None
    dropped_step: float | None
    rounding: float | None


@dataclass(frozen=True)
class Misclassified:
    """A kernel that HTA takes for something else than we do."""

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


def compare(report: Report, kernels: Mapping[str, tuple[str, int, int]]) -> Comparison:
    """HTA's figures beside those of a report made with the window rule "trace". Raises HtaError.

    `kernels` maps each name to (our kind, its total ns, its count), see `kinds_of`.
    """
    files = {str(rank.rank): os.path.abspath(rank.file) for rank in report.ranks if rank.rank is not None}
    if not files:
        raise HtaError("no file tells its rank")
    request = {"action": "figures", "files": files, "names": list(kernels)}
    exact = ask(request | {"last_step": True})
    without_last = ask(request | {"last_step": False, "names": []})
    default = ask(request | {"last_step": False, "names": []}, rounding=True)
    differences: list[Difference] = []
    for rank in files:
        ours = _ours(report, int(rank))
        for figure in FIGURES:
            theirs = [answer["ranks"].get(rank, {}).get(figure) for answer in (exact, without_last, default)]
            differences.append(
                Difference(
                    rank=int(rank),
                    figure=figure,
                    ours=ours[figure],
                    hta_exact=theirs[0],
                    hta=theirs[2],
                    classification=_minus(theirs[0], ours[figure]),
                    dropped_step=_minus(theirs[1], theirs[0]),
                    rounding=_minus(theirs[2], theirs[1]),
                )
            )
    return Comparison(exact["tool"], differences, _misclassified(kernels, exact["kinds"]))


def _ours(report: Report, rank: int) -> dict[str, float | None]:
    """Our figures in HTA's words: all devices of a rank together."""
    mine = [one for one in report.ranks if one.rank == rank]

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
    """Most time first. What HTA calls OTHER it leaves out of every figure."""
    same = {"communication": "COMMUNICATION", "computation": "COMPUTATION", "memory": "MEMORY"}
    found = [
        Misclassified(name, kind, theirs[name].lower(), ns, count)
        for name, (kind, ns, count) in kernels.items()
        if name in theirs and theirs[name] != same.get(kind)
    ]
    return sorted(found, key=lambda one: (-one.ns, one.name))


def kinds_of(traces: Sequence[Any]) -> dict[str, tuple[str, int, int]]:
    """Each activity name of some traces: (our kind, total ns, count)."""
    import numpy as np

    from sp_profiler.classify import classify
    from sp_profiler.classify.tables import Kind

    found: dict[str, tuple[str, int, int]] = {}
    for trace in traces:
        activities = classify(trace).activities
        dur = activities.end_ns - activities.start_ns
        for code in np.unique(activities.name).tolist():
            rows = activities.name == code
            name = trace.strings[code] or ""
            kind = Kind(int(activities.kind[rows][0])).name.lower()
            _, ns, count = found.get(name, (kind, 0, 0))
            found[name] = (kind, ns + int(dur[rows].sum()), count + int(rows.sum()))
    return found
