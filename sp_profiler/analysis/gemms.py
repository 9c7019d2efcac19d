"""Which GEMMs ran, of which shape, in which role, and how fast.

FLOP = 2·B·M·N·K of the operator that launched the kernel; where an operator launched several GEMM kernels
its FLOP are divided among them by their time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sp_profiler.analysis.intervals import sum_by
from sp_profiler.analysis.results import GemmFigures, Known
from sp_profiler.analysis.steps import Windows
from sp_profiler.classify.dtypes import dtype_name
from sp_profiler.classify.links import first_with_key
from sp_profiler.classify.shapes import first_operand, product_of
from sp_profiler.classify.tables import Activities, Classified, Kind, Role
from sp_profiler.theory.hardware import find_device, peak_tflops
from sp_profiler.trace.tables import NONE, Category, Int64, Trace


def gemm_dtype(operator: str, types: str | None) -> str | None:
    """torch's name of the first matrix's dtype, from `Input type` (JSON text); None for no plain product."""
    place = first_operand(operator)
    if place is None or not types:
        return None
    try:
        word: Any = json.loads(types)[place]
    except (ValueError, IndexError, TypeError, KeyError):
        return None
    return dtype_name(word) if isinstance(word, str) else None


def linked_operators(trace: Trace, activities: Activities, rows: Int64, is_cpu_only: bool) -> Int64:
    """The event row of the CPU operator that launched each activity, NONE where the trace does not say.

    By `External id`, the kernel's own or that of its launching runtime call. On the CPU an activity is a
    stretch of the operator itself.
    """
    events = trace.events
    event = activities.event[rows]
    if is_cpu_only:
        return event
    calls = np.flatnonzero((events.category == Category.RUNTIME) & (events.correlation > 0))
    correlation = np.where(events.correlation[event] > 0, events.correlation[event], NONE)
    call = first_with_key(events.correlation[calls], calls, correlation)
    external = events.external_id[event]
    if np.array_equal(external, events.correlation[event]):
        external = np.full(len(rows), NONE, np.int64)  # some versions write the correlation there
    external = np.where((external <= 0) & (call != NONE), events.external_id[call], external)
    operators = np.flatnonzero((events.category == Category.CPU_OP) & (events.external_id > 0))
    wanted = np.where(external > 0, external, NONE)
    return first_with_key(events.external_id[operators], operators, wanted)


def gemm_figures(
    trace: Trace, classified: Classified, rows: Int64, windows: Windows
) -> tuple[list[GemmFigures], Known]:
    """The GEMMs among `rows` that run in a window, by (name, shape, dtype, role), longest total first.

    Also how much of their time has a known role. TFLOP/s are None on the CPU, where a core's share says
    nothing of the machine; their share of the device's peak where the device is a known one.
    """
    activities = classified.activities
    rows = rows[activities.is_gemm[rows] & np.isin(activities.kind[rows], (Kind.COMPUTATION, Kind.FUSED))]
    rows = rows[windows.covered.overlap(activities.start_ns[rows], activities.end_ns[rows]) > 0]
    if len(rows) == 0:
        return [], Known()
    dur = activities.end_ns[rows] - activities.start_ns[rows]
    role = activities.role[rows].astype(np.int64)
    known = Known(int(dur[role != Role.UNKNOWN].sum()), int(dur.sum()))
    operator = linked_operators(trace, activities, rows, classified.is_cpu_only)
    found = _by_shape(trace, activities, rows, operator, classified.is_cpu_only)
    name = device_name(trace, int(activities.device[rows[0]]))
    return [_with_peak(one, name) for one in found], known


def device_name(trace: Trace, device: int) -> str | None:
    """The name that the trace's `deviceProperties` give a device; None where they do not."""
    listed = [one for one in trace.metadata.devices if one.get("id") == device]
    name = listed[0].get("name") if listed else None
    return name if isinstance(name, str) else None


def _with_peak(gemm: GemmFigures, device: str | None) -> GemmFigures:
    peak = peak_tflops(find_device(device), gemm.dtype, gemm.name)
    if gemm.tflops is None or peak is None:
        return gemm
    return replace(gemm, share_of_peak=gemm.tflops / peak)


def _by_shape(
    trace: Trace, activities: Activities, rows: Int64, operator: Int64, is_cpu_only: bool
) -> list[GemmFigures]:
    events = trace.events
    dur = activities.end_ns[rows] - activities.start_ns[rows]

    def of_operator(column: np.ndarray) -> Int64:
        return np.where(operator == NONE, NONE, column[operator]).astype(np.int64)

    described = (events.name, events.dims, events.types)
    columns = (activities.name[rows], activities.role[rows], *(of_operator(column) for column in described))
    first, kind = _kinds(columns)
    count = _operators(kind, activities.event[rows]) if is_cpu_only else np.bincount(kind)
    total = sum_by(kind, dur, len(first))
    operations = _operations(kind, operator, dur, len(first))
    table = np.stack([column[first] for column in columns], axis=1)

    merged: dict[tuple[str, str | None, str | None, str], GemmFigures] = {}
    flop: dict[tuple[str, str | None, str | None, str], float | None] = {}
    for i, (name, role, op, dims, types) in enumerate(table.tolist()):
        op_name = trace.strings[op] or ""
        shape = product_of(op_name, trace.strings[dims], None)
        dtype = gemm_dtype(op_name, trace.strings[types])
        text = None if shape is None else str(shape)
        key = (trace.strings[name] or "", text, dtype, Role(role).name.lower())
        old = merged.get(key) or GemmFigures(*key, count=0, total_ns=0, tflops=None)
        merged[key] = replace(old, count=old.count + int(count[i]), total_ns=old.total_ns + int(total[i]))
        if shape is not None and not is_cpu_only:
            flop[key] = (flop.get(key) or 0.0) + shape.flop * float(operations[i])
    gemms = [_with_speed(one, flop.get(key)) for key, one in merged.items()]
    return sorted(gemms, key=lambda g: (-g.total_ns, g.name, g.shape or "", g.role, g.dtype or ""))


def _kinds(columns: Sequence[np.ndarray]) -> tuple[Int64, Int64]:
    """(a row of each kind, the kind of each row): rows that are equal in every column are of one kind."""
    kind = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        code = np.unique(column, return_inverse=True)[1]
        kind = np.unique(kind * (int(code.max()) + 1) + code, return_inverse=True)[1]
    return np.unique(kind, return_index=True)[1], kind


def _operators(kind: Int64, event: Int64) -> Int64:
    """How many operators each kind has; on the CPU one operator is many stretches."""
    pairs = np.unique(kind * (int(event.max()) + 1) + event)
    return np.bincount(pairs // (int(event.max()) + 1))


def _operations(kind: Int64, operator: Int64, dur: Int64, kinds: int) -> np.ndarray:
    """How many operators' work each kind of GEMM did; an operator's kernels share it by their time."""
    _, which = np.unique(operator, return_inverse=True)
    of_operator = sum_by(which, dur, int(which.max()) + 1)[which]
    part = np.where(operator == NONE, 0.0, dur / np.maximum(of_operator, 1))
    return np.bincount(kind, weights=part, minlength=kinds)


def _with_speed(gemm: GemmFigures, flop: float | None) -> GemmFigures:
    known = flop and gemm.total_ns
    return replace(gemm, tflops=flop / gemm.total_ns / 1e3 if known and flop else None)
