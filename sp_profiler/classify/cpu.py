"""CPU-only (gloo) files (DESIGN: CPU runs): the CPU is one device, operators' self time its computation.

Communication is every `gloo:*` range, on whatever thread. Computation: on each thread every instant
belongs to the innermost operator that covers it, and counts when that operator computes. Neither leaf
operators (`aten::mm` has children) nor outermost ones (a functional collective waits inside an outer
`aten::mm`) would measure overlap rightly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from sp_profiler.changed import changer
from sp_profiler.classify.blocking import declared_async, thread_sat_idle, with_reducer_waits
from sp_profiler.classify.collectives import (
    annotated_peers,
    full_elements,
    range_bytes,
    tensors,
    unified_op,
)
from sp_profiler.classify.context import Context, annotated_phase
from sp_profiler.classify.dtypes import dtype_bytes, dtype_name
from sp_profiler.classify.gemm import is_gemm_op
from sp_profiler.classify.gloo import gloo_rows, is_gloo, is_point_to_point, match_launches
from sp_profiler.classify.nesting import build_nest, last_exceeding, thread_numbers
from sp_profiler.classify.phases import is_autograd_node
from sp_profiler.classify.purpose import decide_purpose, purposes_of
from sp_profiler.classify.roles import Computations, roles_of
from sp_profiler.classify.steps import steps_at
from sp_profiler.classify.tables import Activities, Collective, Group, Kind, Role
from sp_profiler.trace.tables import NONE, Bool, Category, Int64, Trace

_NO_COMPUTATION = re.compile(
    r"^(?:c10d|_?c10d_functional\w*|_dtensor|symm_mem|autograd|profiler|torch|record_param_comms|sp)(?:::|\.|$)"
    r"|^Optimizer\."
)
_NAMESPACED = re.compile(r"^[A-Za-z_]\w*::\w")
_purposed = changer(Collective, "purpose", "purpose_rule")


def computes(name: str) -> bool:
    """Whether an operator of this name is computation when it is the innermost one.

    It is in `aten::` or a user's namespace, and neither a collective (`c10d::*`), an autograd node, the
    optimizer's frame nor a range.
    """
    return bool(_NAMESPACED.match(name)) and not (
        _NO_COMPUTATION.match(name) or is_autograd_node(name) or is_gloo(name)
    )


@dataclass(frozen=True)
class Stretches:
    """Maximal stretches of time in which one operator is the innermost of its thread."""

    row: Int64
    start_ns: Int64
    end_ns: Int64


def innermost_stretches(trace: Trace) -> Stretches:
    """Divide each thread's time among its innermost operators; empty stretches are left out."""
    events = trace.events
    nest = build_nest(events, (Category.CPU_OP,))
    if not len(nest.row):
        return Stretches(*(np.empty(0, np.int64) for _ in range(3)))
    start, end = events.start_ns[nest.row], events.end_ns[nest.row]
    first = np.flatnonzero(np.diff(nest.thread, prepend=-1))
    borders: list[Int64] = []
    opened: list[Int64] = []
    for low, high in zip(first.tolist(), [*first[1:].tolist(), len(start)], strict=True):
        times = np.unique(np.concatenate((start[low:high], end[low:high])))
        borders.append(times)
        opened.append(low + np.searchsorted(start[low:high], times, side="right"))
    time, before = np.concatenate(borders), np.concatenate(opened).astype(np.int64)
    thread = np.repeat(np.arange(len(borders)), [len(times) for times in borders])
    inner = last_exceeding(end, before, time)
    inner = np.where((inner != NONE) & (nest.thread[inner] == thread), inner, NONE)
    # The last border of a thread opens nothing: no operator ends after it.
    change = np.flatnonzero((np.diff(inner, prepend=-2) != 0) | (np.diff(thread, prepend=-1) != 0))
    until = np.append(time[change[1:]], time[-1])
    holds = inner[change] != NONE
    return Stretches(nest.row[inner[change][holds]], time[change][holds], until[holds])


def _worker_threads(trace: Trace, gloo: Int64, rows: Int64) -> Bool:
    """Which of `rows` ran on a thread that carries a gloo range other than send/recv."""
    names = trace.events.name[gloo]
    carries = gloo[~trace.strings.match(names, is_point_to_point)]
    both = thread_numbers(trace.events, np.concatenate((carries, rows)))
    return np.isin(both[len(carries) :], both[: len(carries)])


def classify_cpu(context: Context) -> tuple[Activities, tuple[Collective, ...]]:
    """Activities and collectives of a CPU-only file."""
    trace, events = context.trace, context.trace.events
    gloo = gloo_rows(trace)
    stretches = innermost_stretches(trace)
    counts = trace.strings.match(events.name[stretches.row], computes)
    counts &= ~_worker_threads(trace, gloo, stretches.row)
    launched = match_launches(context, gloo)

    row = np.concatenate((gloo, stretches.row[counts]))
    start = np.concatenate((events.start_ns[gloo], stretches.start_ns[counts]))
    end = np.concatenate((events.end_ns[gloo], stretches.end_ns[counts]))
    communicates = np.arange(len(row)) < len(gloo)
    # Where it was launched: an operator from its own place, a collective from its launcher's.
    position = np.concatenate((launched.position, context.nest.position[stretches.row[counts]]))
    itself = np.concatenate((launched.itself, np.zeros(int(counts.sum()), dtype=np.bool_)))
    order = np.lexsort((row, start))
    row, start, end = row[order], start[order], end[order]
    communicates, position, itself = communicates[order], position[order], itself[order]

    computing = np.flatnonzero(~communicates)
    role = np.full(len(row), Role.UNKNOWN, dtype=np.int8)
    rule = np.zeros(len(row), dtype=np.int32)
    is_gemm = trace.strings.match(events.name[row], is_gemm_op) & ~communicates
    phase = context.phases.phase[position]
    launch_ns = context.start_at(position)
    nothing = np.zeros(len(computing), dtype=np.bool_)
    role[computing], rule[computing] = roles_of(
        context,
        Computations(
            events.name[row[computing]],
            launch_ns[computing],
            phase[computing].astype(np.int8),
            is_gemm[computing],
            *(nothing,) * 4,
        ),
        lambda nearest: nearest[position[computing]],
    )
    collective = np.full(len(row), NONE, dtype=np.int32)
    collective[communicates] = np.arange(len(gloo), dtype=np.int32)
    annotations = context.annotations
    activities = Activities(
        event=row,
        name=events.name[row],
        device=np.zeros(len(row), dtype=np.int32),
        stream=_in_order_of_appearance(thread_numbers(events, row)),
        start_ns=start,
        end_ns=end,
        kind=np.where(communicates, np.int8(Kind.COMMUNICATION), np.int8(Kind.COMPUTATION)),
        role=role,
        role_rule=rule,
        phase=phase.astype(np.int8),
        launch_ns=launch_ns,
        step=steps_at(context.steps, launch_ns),
        module=context.module_at(annotations.with_module[position]).astype(np.int32),
        layer=context.layer_at(annotations.with_layer[position]).astype(np.int32),
        is_gemm=is_gemm,
        range_start_ns=context.start_at(annotations.innermost[position]),
        node=context.row_at(context.phases.node[position]),
        recomputed=context.phases.recompute[position],
        collective=collective,
    )
    collectives = _collectives(context, activities, position, itself, launched.annotated)
    rows = np.flatnonzero(communicates)
    purposes = purposes_of(context, activities, rows, collectives, lambda nearest: nearest[position])
    collectives = tuple(_purposed(one, *its) for one, its in zip(collectives, purposes, strict=True))
    return activities, with_reducer_waits(context, activities, collectives, position)


def _in_order_of_appearance(numbers: Int64) -> Int64:
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int64)


def _collectives(
    context: Context, activities: Activities, position: Int64, itself: Bool, annotated: bool
) -> tuple[Collective, ...]:
    found: list[Collective] = []
    rows = np.flatnonzero(activities.collective != NONE)
    launchers, ranges = np.unique(position[rows], return_counts=True)
    in_pieces = set(launchers[(ranges > 1) & (launchers != NONE)].tolist())
    for activity in rows.tolist():
        launcher = int(position[activity])
        if itself[activity]:
            found.append(_from_post(context, activities, activity))
        elif launcher != NONE and annotated:
            found.append(_from_annotation(context, activities, activity, launcher))
        else:
            found.append(_from_range(context, activities, activity, launcher, launcher in in_pieces))
    posted = sum(not collective.bandwidth_known for collective in found)
    if posted:
        context.ledger.add(
            "p2p-interval-is-post-to-wait",
            "assumption",
            "gloo's send/recv ranges run from post to wait on the calling thread and say nothing of the "
            "transfer: they count as communication and get no bandwidth",
            count=posted,
        )
    return tuple(found)


def _from_annotation(context: Context, activities: Activities, activity: int, launcher: int) -> Collective:
    """A collective whose metadata are its sp::comm range."""
    annotation = context.annotations.range_at(launcher)
    fields = annotation.fields
    purpose, purpose_rule = decide_purpose(annotation)
    launch, launch_end = context.span_at(launcher)
    wait = context.waits.of_range(annotation, launch) if annotation.is_async is not False else None
    stated = annotated_phase(annotation)
    if stated is not None:
        activities.phase[activity] = stated
    return Collective(
        activity=activity,
        op=unified_op(fields.get("op")),
        group=context.book.from_key(fields.get("group")),
        bytes=annotation.bytes,
        dtype=dtype_name(fields.get("dtype")),
        seq=annotation.seq,
        is_async=annotation.is_async,
        purpose=purpose,
        purpose_rule=purpose_rule,
        module=annotation.module,
        layer=annotation.layer,
        partner_what=fields.get("partner"),
        launch_ns=launch,
        launch_end_ns=launch_end,
        wait_start_ns=wait[0] if wait is not None else None,
        wait_end_ns=wait[1] if wait is not None else None,
        peers=annotated_peers(annotation),
        bandwidth_known=not _is_posted(context, activities, activity),
        source=annotation.source,
        target=annotation.target,
    )


def _from_range(
    context: Context, activities: Activities, activity: int, launcher: int, is_piece: bool = False
) -> Collective:
    """A collective without annotation: what its own range and its c10d operator say.

    `is_piece`: the operator shows as several ranges, of which each has its own bytes.
    """
    events, strings = context.trace.events, context.trace.strings
    row = int(activities.event[activity])
    group = context.book.only_group()
    op = unified_op(strings[int(activities.name[activity])])
    nbytes, dtype = range_bytes(op, strings[int(events.dims[row])], strings[int(events.types[row])])
    launch = launch_end = is_async = None
    sat_idle = False
    if launcher != NONE:
        operator = int(context.nest.row[launcher])
        launch, launch_end = context.span_at(launcher)
        name = strings[int(events.name[operator])] or ""
        is_async = declared_async(name, strings[int(events.concrete[operator])])
        sat_idle = thread_sat_idle(context, launcher, int(activities.end_ns[activity]))
        op = unified_op(name) or op
        nbytes = nbytes if is_piece else _operator_bytes(context, op, operator, dtype, group)
    purpose, purpose_rule = decide_purpose(None)
    return Collective(
        activity=activity,
        op=op,
        group=group,
        bytes=nbytes,
        dtype=dtype,
        seq=None,
        is_async=is_async,
        purpose=purpose,
        purpose_rule=purpose_rule,
        module=None,
        layer=None,
        partner_what=None,
        launch_ns=launch,
        launch_end_ns=launch_end,
        wait_start_ns=None,
        wait_end_ns=None,
        bandwidth_known=not _is_posted(context, activities, activity),
        thread_sat_idle=sat_idle,
    )


def _from_post(context: Context, activities: Activities, activity: int) -> Collective:
    """A send or receive known by its range alone: posted where it begins, waited for until it ends.

    When the waiting begins is not told. Nothing else is launched by a thread that waits, so the end bounds
    it: what the thread launched inside the range, it launched between post and wait.
    """
    start, end = int(activities.start_ns[activity]), int(activities.end_ns[activity])
    module, layer = int(activities.module[activity]), int(activities.layer[activity])
    return replace(
        _from_range(context, activities, activity, NONE),
        module=context.annotations.names[module] if module != NONE else None,
        layer=layer if layer != NONE else None,
        launch_ns=start,
        launch_end_ns=start,
        wait_start_ns=end,
        wait_end_ns=end,
    )


def _operator_bytes(
    context: Context, op: str | None, operator: int, dtype: str | None, group: Group | None
) -> int | None:
    """Bytes by the tensors of a c10d operator: the greatest is the full one, in list forms one shard."""
    events, strings = context.trace.events, context.trace.strings
    width = dtype_bytes(dtype)
    given = [
        count
        for count, _ in tensors(strings[int(events.dims[operator])], strings[int(events.types[operator])])
    ]
    if width is None or not given:
        return None
    if op in ("all_gather", "reduce_scatter") and len(set(given)) == 1:
        shard = given[0]
        size = group.size if group is not None else None
        return None if size is None else (full_elements(op, shard, shard, size) or 0) * width
    whole = sum(given) if op == "all_reduce" else max(given)
    return whole * width


def _is_posted(context: Context, activities: Activities, activity: int) -> bool:
    return is_point_to_point(context.trace.strings[int(activities.name[activity])] or "")
