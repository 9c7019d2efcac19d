"""What one device was given, in order of launch: attention, transfers that may share a sequence, and what
lies between.

Passes are read from this order alone: the device runs kernels late and on several streams, but a schedule
launches each transfer beside the block of attention that it is to hide under.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.exposure import DeviceCollectives
from sp_profiler.classify.collectives import SEND_RECV
from sp_profiler.classify.tables import Classified, Collective, Kind, Phase, Role
from sp_profiler.trace.tables import NONE, Bool, Int8, Int64, Trace

NOTHING, ATTENTION, BORDER, COPY, KV, DKV, OPEN, EXCHANGE, GATHER, REDUCE = range(10)
"""What a row of the line is. BORDER: a matrix product that is no attention, or the optimizer: between two of
them lies at most one layer's attention. OPEN: a shift of a ring of which nobody says what it carries."""
HOPS = (KV, DKV, OPEN)
FORWARD, BACKWARD, RECOMPUTE = range(3)
PHASES = ("forward", "backward", "recompute")

_CONTEXT_GROUP = re.compile(r"(?:^|[^a-z])(?:cp|context\w*|ulysses|ring)(?:[^a-z]|$)", re.IGNORECASE)
_SOFTMAX = re.compile(r"(?<!log_)(?<!log)softmax(?!_?cross|_?with|_?loss)", re.IGNORECASE)
_COPIES = re.compile(
    r"copy|catarray|concat|transpose|permut|contiguous|clone|memcpy dtod"
    r"|^aten::(?:cat|stack|_?reshape\w*|view\w*|_unsafe_view|(?:un)?flatten|movedim|as_strided|new_empty\w*"
    r"|empty\w*|select|slice|narrow|split\w*|chunk|unbind|(?:un)?squeeze|expand|alias|detach|t|resolve_\w+)$",
    re.IGNORECASE,
)
_MOVES = re.compile(r"copy|cat|transpose|permute_|contiguous_kernel|clone_kernel|memcpy", re.IGNORECASE)


@dataclass(frozen=True)
class Line:
    """One row for each computation, memory operation and transfer of a device, in order of launch."""

    what: Int8
    activity: Int64  # row of Activities
    collective: Int64  # row of DeviceCollectives, NONE for the others
    group: Int64  # of a transfer: index into `groups`
    key: Int64  # equal numbers: the same step, phase, module and layer, as far as they are known
    node: Int64  # the autograd node around it
    phase: Int64  # FORWARD, BACKWARD or RECOMPUTE; NONE where nobody knows
    is_softmax: Bool
    moves: Bool  # a copy that moves data, not one of the views around it
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    range_ns: Int64  # start of the annotated range around it, NONE without one
    name: Int64
    groups: tuple[str | None, ...]  # keys of process groups

    def __len__(self) -> int:
        return len(self.what)


def line_of(trace: Trace, classified: Classified, rows: Int64, collectives: DeviceCollectives) -> Line | None:
    """The line of the device whose activities are `rows`; None where nothing shares a sequence."""
    kinds = [what_of(one) for one in collectives.rows]
    if not any(kinds):
        return None
    activities = classified.activities
    rows = rows[np.lexsort((activities.start_ns[rows], *_launches(classified, rows)))]
    collective = np.full(len(activities), NONE, np.int64)
    collective[collectives.activity] = np.arange(len(collectives))
    collective = collective[rows]
    transfers = np.array([*kinds, NOTHING], np.int64)[collective]
    groups, group = _groups(collectives)
    transfers = _without_lonely(transfers, group[collective], groups)
    match = trace.strings.match
    names = activities.name[rows]
    computes = activities.kind[rows] == Kind.COMPUTATION
    copies = match(names, lambda text: bool(_COPIES.search(text)))
    attention = computes & (activities.role[rows] == Role.ATTENTION)
    border = computes & ~attention
    border &= activities.is_gemm[rows] | (activities.role[rows] == Role.OPTIMIZER)
    what = np.select(
        [
            transfers != NOTHING,
            attention,
            border,
            copies & (computes | (activities.kind[rows] == Kind.MEMORY)),
        ],
        [transfers, ATTENTION, BORDER, COPY],
        NOTHING,
    )
    return Line(
        what=what.astype(np.int8),
        activity=rows,
        collective=collective,
        group=group[collective],
        key=_keys(classified, rows),
        node=activities.node[rows],
        phase=_phases(classified, rows),
        is_softmax=computes & match(names, lambda text: bool(_SOFTMAX.search(text))),
        moves=match(names, lambda text: bool(_MOVES.search(text))),
        start_ns=activities.start_ns[rows],
        end_ns=activities.end_ns[rows],
        launch_ns=activities.launch_ns[rows],
        range_ns=activities.range_start_ns[rows],
        name=names.astype(np.int64),
        groups=groups,
    )


def _launches(classified: Classified, rows: Int64) -> tuple[Bool, Int64]:
    """Sort keys: when each activity was launched, and, where that is not in the trace, the first.

    A stream runs its work in order of launch: what has none was launched before the next on its stream.
    """
    activities = classified.activities
    launch, stream = activities.launch_ns[rows], activities.stream[rows]
    order = np.lexsort((activities.start_ns[rows], stream))
    known = launch[order] != NONE
    following = np.where(known, np.arange(len(order)), len(order))
    following = np.minimum.accumulate(following[::-1])[::-1]
    found = np.append(launch[order], NONE)[following]
    same = np.append(stream[order], NONE)[following] == stream[order]
    key = np.empty(len(rows), np.int64)
    key[order] = np.where((following < len(order)) & same, found, activities.start_ns[rows][order])
    return launch != NONE, key


def what_of(one: Collective) -> int:
    """What a collective may be in context parallelism; purposes decide, and what they leave open is a shift.

    An all-to-all that gives everything to one neighbour is a shift, whatever it was taken for.
    """
    if one.op == SEND_RECV or (one.op == "all_to_all" and one.source is not None):
        return {"kv": KV, "dkv": DKV, "unknown": OPEN, "layout": OPEN}.get(one.purpose, NOTHING)
    if one.op == "all_to_all" and one.purpose == "layout":
        return EXCHANGE
    if one.op == "all_gather" and one.purpose == "kv":
        return GATHER
    if one.op in ("reduce_scatter", "all_reduce") and one.purpose == "dkv":
        return REDUCE
    return NOTHING


def _groups(collectives: DeviceCollectives) -> tuple[tuple[str | None, ...], Int64]:
    """The groups, and of each collective its group; one value more for NONE."""
    numbers: dict[str | None, int] = {}
    codes = [
        numbers.setdefault(None if one.group is None else one.group.key, len(numbers))
        for one in collectives.rows
    ]
    return tuple(numbers), np.array([*codes, NONE], np.int64)


def _without_lonely(transfers: Int64, group: Int64, groups: tuple[str | None, ...]) -> Int64:
    """Shifts of which nobody knows what they carry count only in groups that carry keys and values, or are
    named after context parallelism."""
    named = [code for code, key in enumerate(groups) if key and _CONTEXT_GROUP.search(key.partition("[")[0])]
    carries = np.union1d(group[np.isin(transfers, (KV, DKV, GATHER))], np.array(named, np.int64))
    return np.where((transfers == OPEN) & ~np.isin(group, carries), NOTHING, transfers)


def _keys(classified: Classified, rows: Int64) -> Int64:
    """Equal numbers for equal (step, module, layer)."""
    activities = classified.activities
    key = np.zeros(len(rows), np.int64)
    for column in (activities.step, activities.module, activities.layer):
        codes = np.unique(column[rows], return_inverse=True)[1]
        key = key * (int(codes.max(initial=0)) + 1) + codes
    return np.unique(key, return_inverse=True)[1].astype(np.int64)


def _phases(classified: Classified, rows: Int64) -> Int64:
    phase = classified.activities.phase[rows]
    known = np.select([phase == Phase.FORWARD, phase == Phase.BACKWARD], [FORWARD, BACKWARD], NONE)
    return np.where(classified.activities.recomputed[rows] & (known == BACKWARD), RECOMPUTE, known)
