"""The process that imports HTA: `python -m sp_profiler.interop.hta_worker REQUEST ANSWER` (JSON files).

HolisticTraceAnalysis 0.5 and its continuation traceinsight 0.6 share the import `hta`. They print, keep
global options, read whole files and may fail in many ways: all of that stays in this process.

REQUEST: {"action": "figures" | "critical-path", "files": {rank: path}, "last_step": bool, "names": [...],
          "rank": int, "annotation": str}. Rounding is chosen by HTA_DISABLE_NS_ROUNDING in the environment.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

LONGEST = 10


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What HTA says; raises whatever HTA raises."""
    from hta.trace_analysis import TraceAnalysis  # pyright: ignore[reportMissingImports]

    files = {int(rank): path for rank, path in request["files"].items()}
    analysis = TraceAnalysis(trace_files=files, include_last_profiler_step=request["last_step"])
    action = _critical_path if request["action"] == "critical-path" else _figures
    return {"tool": tool()} | action(analysis, request)


def tool() -> str:
    """The distribution that provides `hta`, with its version."""
    for name in ("traceinsight", "HolisticTraceAnalysis"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "hta of unknown version"


def _figures(analysis: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Overlap and time breakdown per rank, what HTA takes each kernel name for, and what else it counts."""
    from hta.utils.utils import get_kernel_type  # pyright: ignore[reportMissingImports]

    ranks: dict[str, dict[str, float | None]] = {str(rank): {} for rank in request["files"]}
    for row in analysis.get_comm_comp_overlap(visualize=False).to_dict("records"):
        ranks[str(int(row["rank"]))]["overlap_ratio"] = _finite(row["comp_comm_overlap_pctg"], 0.01)
    for row in analysis.get_temporal_breakdown(visualize=False).to_dict("records"):
        for ours, theirs in (
            ("idle_ns", "idle_time(us)"),
            ("compute_ns", "compute_time(us)"),
            ("other_busy_ns", "non_compute_time(us)"),
            ("span_ns", "kernel_time(us)"),
        ):
            ranks[str(int(row["rank"]))][ours] = _finite(row[theirs], 1000.0)
    return {
        "ranks": ranks,
        "kinds": {name: get_kernel_type(name) for name in request["names"]},
        "besides": _besides(analysis, get_kernel_type) if request["names"] else [],
    }


def _besides(analysis: Any, kind_of: Callable[[str], str]) -> list[dict[str, Any]]:
    """Events that HTA takes for device activities and we do not.

    HTA asks for an argument `stream` only, which operators of Triton kernels and synchronisation records
    have too.
    """
    from sp_profiler.trace.schema import category_of, is_sync_name
    from sp_profiler.trace.tables import DEVICE_CATEGORIES

    text = analysis.t.symbol_table.get_sym_table()
    found: dict[tuple[str, str], list[float]] = {}
    for rank in analysis.t.get_ranks():
        events = analysis.t.get_trace(rank)
        counted = events[events["stream"].ne(-1)]
        for category, name, us in zip(counted["cat"], counted["name"], counted["dur"], strict=True):
            if category_of(text[category]) not in DEVICE_CATEGORIES or is_sync_name(text[name]):
                part = found.setdefault((text[name], text[category]), [0, 0.0])
                part[0] += 1
                part[1] += us
    return [
        {"name": name, "category": category, "kind": kind_of(name), "count": count, "ns": round(us * 1000)}
        for (name, category), (count, us) in sorted(found.items())
    ]


def _critical_path(analysis: Any, request: dict[str, Any]) -> dict[str, Any]:
    found = analysis.critical_path_analysis(
        rank=request["rank"], annotation=request["annotation"], instance_id=0
    )
    if found is None:
        raise ValueError("HTA found nothing to analyse")
    graph, is_complete = found
    edges = graph.get_critical_path_breakdown()
    if edges is None or not len(edges):
        raise ValueError("HTA found no critical path")
    kinds: dict[str, float] = {}
    parts: dict[tuple[str, str], list[float]] = {}
    for edge in edges.to_dict("records"):
        kind, duration = edge["bound_by"] or "dependency", float(edge["duration"])
        kinds[kind] = kinds.get(kind, 0.0) + duration
        name = edge["s_name"] if isinstance(edge["s_name"], str) else "(no event)"
        part = parts.setdefault((kind, name), [0, 0.0])
        part[0] += 1
        part[1] += duration
    longest = sorted(parts.items(), key=lambda item: (-item[1][1], item[0]))[:LONGEST]
    return {
        "is_complete": bool(is_complete),
        "by_kind_ns": {kind: round(us * 1000) for kind, us in sorted(kinds.items(), key=lambda k: -k[1])},
        "longest": [
            {"name": name, "kind": kind, "count": int(count), "ns": round(us * 1000)}
            for (kind, name), (count, us) in longest
        ],
    }


def _finite(value: Any, factor: float) -> float | None:
    return float(value) * factor if math.isfinite(value) else None


def _place(error: Exception) -> str:
    """Where a failure without words happened: `in add_edge (critical_path_analysis.py, line 1019)`."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "nobody knows where"
    last = frames[-1]
    return f"in {last.name} ({os.path.basename(last.filename)}, line {last.lineno})"


def main(request_path: str, answer_path: str) -> None:
    """Write the answer, or {"error": sentence} when HTA fails."""
    with open(request_path) as file:
        request = json.load(file)
    try:
        result = answer(request)
    except Exception as error:  # noqa: BLE001  whatever a foreign tool raises is its answer
        text = (str(error).strip().splitlines() or [_place(error)])[0]
        result = {"error": f"{type(error).__name__}: {text}", "tool": tool()}
    with open(answer_path, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
