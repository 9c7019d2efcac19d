"""The `sp::` ranges of a file: parsed once per distinct name, found around launches by nesting."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sp_profiler.classify.nesting import Nest
from sp_profiler.record.annotate import COMPUTE_RANGES, PREFIX, Range, parse_range
from sp_profiler.trace.tables import NONE, Category, Int32, Int64, Trace

WHAT_NONE = -1
WHATS = (*COMPUTE_RANGES, "comm", "wait")
COMM = WHATS.index("comm")
WAIT = WHATS.index("wait")
FWD = WHATS.index("fwd")
RECOMPUTE = WHATS.index("recompute")
OPTIMIZER = WHATS.index("optimizer")


@dataclass(frozen=True)
class Annotations:
    """The parsed ranges of one file. Columns have one value per position of the nest."""

    nest: Nest
    parsed: dict[int, Range]  # string code of the name -> range
    name: Int32  # string code of the event at each position
    what: Int64  # index into WHATS, WHAT_NONE where the event is no range of ours
    module: Int64  # index into `names`, NONE where the range has none
    layer: Int64
    names: tuple[str, ...]

    @property
    def present(self) -> bool:
        return bool(self.parsed)

    @cached_property
    def innermost(self) -> Int64:
        """Nearest range of ours, whatever it is; like `Nest.nearest`."""
        return self.nest.nearest(self.what != WHAT_NONE)

    @cached_property
    def innermost_compute(self) -> Int64:
        """Nearest range that names a computation (fwd ... optimizer)."""
        return self.nest.nearest((self.what >= 0) & (self.what < len(COMPUTE_RANGES)))

    @cached_property
    def innermost_comm(self) -> Int64:
        return self.nest.nearest(self.what == COMM)

    @cached_property
    def inside_recompute(self) -> Int64:
        return self.nest.nearest(self.what == RECOMPUTE)

    @cached_property
    def with_module(self) -> Int64:
        return self.nest.nearest(self.module != NONE)

    @cached_property
    def with_layer(self) -> Int64:
        return self.nest.nearest(self.layer != NONE)

    def positions_of(self, what: int) -> Int64:
        """Positions of all ranges of this kind, by start (then position)."""
        return np.flatnonzero(self.what == what)

    def range_at(self, position: int) -> Range:
        """The parsed range at a position that holds one."""
        return self.parsed[int(self.name[position])]


def read_annotations(trace: Trace, nest: Nest, *, enabled: bool = True) -> Annotations:
    """Parse the names of the CPU ranges (category `user_annotation`, in old files an operator)."""
    events, strings = trace.events, trace.strings
    name = events.name[nest.row]
    on_cpu = np.isin(events.category[nest.row], [int(Category.CPU_ANNOTATION), int(Category.CPU_OP)])
    on_cpu &= enabled
    parsed: dict[int, Range] = {}
    size = len(strings.pool) + 1
    what = np.full(size, WHAT_NONE, dtype=np.int64)  # the last place answers for code -1
    module = np.full(size, NONE, dtype=np.int64)
    layer = np.full(size, NONE, dtype=np.int64)
    names: dict[str, int] = {}
    for code in strings.used(name[on_cpu]):
        text = strings.pool[code]
        found = parse_range(text) if text.startswith(PREFIX) else None
        if found is None:
            continue
        parsed[code] = found
        what[code] = WHATS.index(found.what)
        if found.module is not None:
            module[code] = names.setdefault(found.module, len(names))
        if found.layer is not None:
            layer[code] = found.layer
    shown = np.where(on_cpu, name, -1)
    return Annotations(nest, parsed, name, what[shown], module[shown], layer[shown], tuple(names))
