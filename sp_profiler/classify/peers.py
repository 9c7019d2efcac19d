"""The forward peer of work in backward: the operator that made its autograd node.

By sequence number, which the forward operator and the node share (numbers count per thread; the node names
the forward thread by a number of its own, which is learnt from those that leave no choice), else by the
`fwdbwd` flow, which leads from the start of the forward operator to the start of the node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.links import first_with_key
from sp_profiler.classify.nesting import Nest
from sp_profiler.classify.phases import Phases
from sp_profiler.trace.tables import NONE, Bool, Category, Int64, Trace


@dataclass(frozen=True)
class Peers:
    """Pairs (index into the backward positions asked for, forward position), sorted by the index."""

    backward: Int64
    forward: Int64


def forward_peers(trace: Trace, nest: Nest, phases: Phases, backward: Int64, forward: Int64) -> Peers:
    """For positions in backward those of `forward` (positions too) that belong to the same forward operator.

    Several where one node stands for several operators (a custom or a compiled function).
    """
    by_number = _by_sequence(trace, nest, phases, backward, forward)
    left = np.setdiff1d(np.arange(len(backward)), by_number.backward)
    by_flow = _by_flow(trace, nest, phases, backward[left], forward)
    index = np.concatenate((by_number.backward, left[by_flow.backward]))
    order = np.argsort(index, kind="stable")
    return Peers(index[order], np.concatenate((by_number.forward, by_flow.forward))[order])


def _joined(keys: Int64, wanted: Int64) -> tuple[Int64, Int64]:
    """All pairs (index of wanted, index of key) with equal values >= 0, sorted by the first."""
    order = np.argsort(keys, kind="stable")
    low = np.searchsorted(keys[order], wanted, side="left")
    high = np.searchsorted(keys[order], wanted, side="right")
    count = np.where(wanted >= 0, high - low, 0)
    index = np.repeat(np.arange(len(wanted)), count)
    offset = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
    return index, order[low[index] + offset]


def _by_sequence(trace: Trace, nest: Nest, phases: Phases, backward: Int64, forward: Int64) -> Peers:
    events = trace.events
    sequence = np.append(events.sequence[nest.row], NONE)
    start = events.start_ns[nest.row]
    # The owner of a forward operator is itself or the custom function around it, that of work in backward
    # its node; in `evaluate_function: X` torch does not always write the number.
    owner, node = phases.owner[forward], phases.owner[backward]
    index, at = _joined(sequence[owner], sequence[node])
    began_before = start[owner[at]] < start[node[index]]
    index, at = index[began_before], at[began_before]
    if not len(index):
        return Peers(index, forward[at])
    thread = nest.thread[owner[at]]
    named = np.append(events.fwd_thread[nest.row], NONE)[node[index]]
    fits = _on_forward_thread(index, thread, named)
    return Peers(index[fits], forward[at[fits]])


def _on_forward_thread(index: Int64, thread: Int64, named: Int64) -> Bool:
    """Which pairs lie on the thread that the node names, where pairs of several threads compete."""
    first = np.full(int(index.max()) + 1, NONE)
    first[index[::-1]] = thread[::-1]
    mixed = np.zeros(len(first), dtype=np.bool_)
    mixed[index[thread != first[index]]] = True
    if not mixed.any():
        return np.ones(len(index), dtype=np.bool_)
    sure = ~mixed[index] & (named > 0)
    votes, count = np.unique(np.stack((named[sure], thread[sure])), axis=1, return_counts=True)
    ballots = sorted(zip(*votes.tolist(), count.tolist(), strict=True), key=lambda ballot: ballot[2])
    believed = {number: of for number, of, _ in ballots}  # of several the most frequent: it comes last
    wanted = np.array([believed.get(number, NONE) for number in named.tolist()], dtype=np.int64)
    return ~mixed[index] | (wanted == NONE) | (thread == wanted)


def _by_flow(trace: Trace, nest: Nest, phases: Phases, backward: Int64, forward: Int64) -> Peers:
    flows = trace.flows
    rows = np.flatnonzero(trace.strings.match(flows.kind, lambda text: "fwdbwd" in text.lower()))
    if not len(rows) or not len(backward) or not len(forward):
        return Peers(np.empty(0, np.int64), np.empty(0, np.int64))
    events = trace.events
    operators = np.flatnonzero(events.category[nest.row] == int(Category.CPU_OP))
    width = int(max(events.tid.max(initial=0), flows.tid.max(initial=0))) + 2
    where = (events.pid[nest.row[operators]].astype(np.int64) + 1) * width + events.tid[nest.row[operators]]
    flow_where = (flows.pid[rows].astype(np.int64) + 1) * width + flows.tid[rows]
    key, flow_key = _codes(
        where, events.start_ns[nest.row[operators]], flow_where, flows.ts_ns[rows].astype(np.int64)
    )
    position = first_with_key(key, operators, flow_key)  # of operators that start together the outermost
    flow_of = np.full(len(nest.row) + 1, NONE, dtype=np.int64)
    begin = flows.is_start[rows] & (position != NONE)
    flow_of[position[begin]] = flows.id[rows][begin]
    end_of = np.full(len(nest.row) + 1, NONE, dtype=np.int64)
    ends = ~flows.is_start[rows] & (position != NONE)
    end_of[position[ends]] = flows.id[rows][ends]
    flow_of[-1] = end_of[-1] = NONE
    source = flow_of[nest.nearest(flow_of[:-1] != NONE)[forward]]
    target = end_of[nest.nearest(end_of[:-1] != NONE)[backward]]
    index, at = _joined(source, target)
    before = events.start_ns[nest.row[forward[at]]] < events.start_ns[nest.row[backward[index]]]
    return Peers(index[before], forward[at[before]])


def _codes(first: Int64, first_ns: Int64, second: Int64, second_ns: Int64) -> tuple[Int64, Int64]:
    """Equal numbers for equal (thread, time) pairs of two tables."""
    pairs = np.stack((np.concatenate((first, second)), np.concatenate((first_ns, second_ns))))
    order = np.lexsort(pairs)
    new = np.concatenate(([False], (np.diff(pairs[:, order], axis=1) != 0).any(axis=0)))
    codes = np.empty(len(order), dtype=np.int64)
    codes[order] = np.cumsum(new)
    return codes[: len(first)], codes[len(first) :]
