"""What both kinds of files share: the nested CPU side of a trace and what its ranges say."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp_profiler.classify.annotations import WAIT, Annotations, read_annotations
from sp_profiler.classify.collectives import is_collective, unified_op
from sp_profiler.classify.dense import attention_products, gemm_operators
from sp_profiler.classify.gemm import is_attention_op, is_convolution_op
from sp_profiler.classify.groups import GroupBook
from sp_profiler.classify.nesting import Nest, build_nest
from sp_profiler.classify.phases import Phases, find_phases
from sp_profiler.classify.steps import find_steps
from sp_profiler.classify.tables import Phase, Step
from sp_profiler.ledger import Ledger
from sp_profiler.record.annotate import Range
from sp_profiler.trace.tables import NONE, Bool, Category, Int64, Trace

_CALLS = ("nccl:", "c10d::", "_c10d_functional::")
PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "optimizer": Phase.OPTIMIZER}


@dataclass(frozen=True)
class Context:
    """The CPU side of one file."""

    trace: Trace
    nest: Nest
    annotations: Annotations
    phases: Phases
    steps: tuple[Step, ...]
    book: GroupBook
    waits: Waits
    attention: Int64  # nearest attention operator of each position, like `Nest.nearest`
    convolution: Int64  # nearest convolution
    gemm: Int64  # nearest operator that multiplies matrices
    batched_attention: Bool  # whether a position is a batched product of attention; one more for NONE
    ledger: Ledger

    def start_at(self, positions: Int64) -> Int64:
        """Start of the event at each position, NONE for NONE."""
        starts = np.append(self.trace.events.start_ns[self.nest.row], NONE)
        return starts[positions]

    def row_at(self, positions: Int64) -> Int64:
        """Event row at each position, NONE for NONE."""
        return np.append(self.nest.row, NONE)[positions]

    def module_at(self, positions: Int64) -> Int64:
        """Module (index into the annotations' names) of the range at each position, NONE for NONE."""
        return np.append(self.annotations.module, NONE)[positions]

    def layer_at(self, positions: Int64) -> Int64:
        return np.append(self.annotations.layer, NONE)[positions]

    def span_at(self, position: int) -> tuple[int, int]:
        """Start and end of the event at one position."""
        row = int(self.nest.row[position])
        events = self.trace.events
        return int(events.start_ns[row]), int(events.start_ns[row] + events.dur_ns[row])


def build_context(trace: Trace, run_json: dict[str, Any] | None, *, use_annotations: bool = True) -> Context:
    """Nest the CPU events of a trace and read its ranges (unless told not to), steps and waits."""
    ledger = Ledger(trace.path)
    nest = build_nest(trace.events)
    annotations = read_annotations(trace, nest, enabled=use_annotations)
    events = trace.events
    operators = events.category[nest.row] == int(Category.CPU_OP)
    attention = operators & trace.strings.match(events.name[nest.row], is_attention_op)
    attention &= ~_around_collectives(trace, nest, attention)
    convolution = operators & trace.strings.match(events.name[nest.row], is_convolution_op)
    phases = find_phases(trace, nest, annotations)
    return Context(
        trace,
        nest,
        annotations,
        phases,
        find_steps(trace),
        GroupBook(trace.metadata, run_json, ledger),
        Waits(trace, annotations),
        nest.nearest(attention),
        nest.nearest(convolution),
        nest.nearest(gemm_operators(trace, nest)),
        attention_products(trace, nest, phases),
        ledger,
    )


def _around_collectives(trace: Trace, nest: Nest, among: Bool) -> Bool:
    """Which of these positions hold a collective: attention over a sequence that ranks share.

    What is launched straight from such a function merges, copies and adds; the blocks have operators, or
    kernels' names, of their own.
    """
    described = np.array([is_collective(args) for args in trace.collectives] + [False], np.bool_)
    calls = described[trace.events.collective[nest.row]]
    # Without metadata (torch 2.1) the operators' names are left.
    calls |= trace.strings.match(trace.events.name[nest.row], lambda text: text.startswith(_CALLS))
    found = np.zeros(len(nest.row), np.bool_)
    outer = nest.nearest(among)
    around = np.unique(outer[np.flatnonzero(calls)])
    while len(around := around[around != NONE]):
        found[around] = True
        above = nest.parent[around]
        around = np.unique(outer[above[above != NONE]])
    return found


class Waits:
    """When the launching thread waits: `sp::wait` by (group, seq), else the metadata's `wait` records."""

    def __init__(self, trace: Trace, annotations: Annotations) -> None:
        self._spans: dict[tuple[str, str | None, int], list[tuple[int, int]]] = {}
        events = trace.events
        for position in annotations.positions_of(WAIT):
            found = annotations.range_at(int(position))
            if found.seq is not None:
                self._add(
                    ("range", found.fields.get("group"), found.seq), events, annotations.nest.row[position]
                )
        for row in np.flatnonzero(events.collective != NONE):
            args = trace.collectives[events.collective[row]]
            waits = args.name is not None and unified_op(args.name) is None and "wait" in args.name.lower()
            if waits and args.seq is not None and events.category[row] == int(Category.CPU_OP):
                self._add(("metadata", args.group_name, args.seq), events, row)
        for spans in self._spans.values():
            spans.sort()

    def _add(self, key: tuple[str, str | None, int], events: Any, row: Any) -> None:
        start = int(events.start_ns[row])
        self._spans.setdefault(key, []).append((start, start + int(events.dur_ns[row])))

    def of_range(self, found: Range | None, launch_ns: int) -> tuple[int, int] | None:
        """The wait for an annotated collective launched at this time."""
        if found is None or found.seq is None:
            return None
        return self._first(("range", found.fields.get("group"), found.seq), launch_ns)

    def of_metadata(self, group: str | None, seq: int | None, launch_ns: int) -> tuple[int, int] | None:
        """The wait that `record_param_comms` recorded for this sequence number."""
        return None if seq is None else self._first(("metadata", group, seq), launch_ns)

    def _first(self, key: tuple[str, str | None, int], launch_ns: int) -> tuple[int, int] | None:
        spans = self._spans.get(key, ())
        at = bisect_left(spans, (launch_ns, launch_ns))
        return spans[at] if at < len(spans) else None


def annotated_phase(found: Range | None) -> Phase | None:
    """The phase that a range states."""
    return PHASES.get(found.fields.get("phase", "")) if found is not None else None
