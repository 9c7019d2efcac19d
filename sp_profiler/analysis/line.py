"""The collectives of one rank in one group, as they are laid beside another rank's."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sp_profiler.trace.tables import NONE, Bool, Int64


@dataclass(frozen=True)
class Line:
    """The collectives of one rank in one group, in order of start."""

    start_ns: Int64
    end_ns: Int64
    op: Int64
    token: Int64
    together: Bool

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Int64) -> Line:
        return Line(*(getattr(self, field.name)[rows] for field in fields(Line)))

    def moved(self, by_ns: int) -> Line:
        return Line(self.start_ns + by_ns, self.end_ns + by_ns, self.op, self.token, self.together)

    def with_rows(self, other: Line) -> Line:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(Line))
        return Line(*(np.concatenate(pair) for pair in pairs))


def same_kind(one: Line, two: Line) -> Bool:
    """Row by row: the same operation, and the same size where both are known."""
    sizes = (one.token == two.token) | (one.token == NONE) | (two.token == NONE)
    return (one.op == two.op) & sizes


def overlapping(one: Line, two: Line, shift_ns: int = 0) -> Bool:
    """Row by row: neither leaves before the other arrives, once `two` is moved back by `shift_ns`."""
    return (two.start_ns - shift_ns <= one.end_ns) & (one.start_ns <= two.end_ns - shift_ns)
