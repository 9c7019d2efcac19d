"""The part of the exposed time that one cause has, collective by collective, in columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.collective_table import Collectives, exact_sum
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.report.sentences import op_name
from sp_profiler.trace.tables import Bool, Int64


@dataclass(frozen=True)
class Share:
    """What each of some collectives has of the exposed time; true where there are any."""

    collectives: Collectives
    ns: Int64

    def __len__(self) -> int:
        return len(self.collectives)

    def __add__(self, other: Share) -> Share:
        both = Collectives.joined((self.collectives, other.collectives))
        return Share(both, np.concatenate((self.ns, other.ns)))

    @property
    def whole(self) -> int:
        return exact_sum(self.ns)

    def where(self, mask: Bool) -> Share:
        return Share(self.collectives.take(mask), self.ns[mask])

    def first(self, count: int) -> list[tuple[int, CollectiveFigures]]:
        return list(zip(self.ns[:count].tolist(), self.collectives[:count], strict=True))


def share_of(collectives: Collectives, cause: str) -> Share:
    """The collectives with a part of this cause, largest part first."""
    ns = collectives.exposed_by_cause(cause)
    found = np.flatnonzero(ns)
    found = found[np.lexsort((collectives.numbers("id").values[found], -ns[found]))]
    return Share(collectives.take(found), ns[found])


def ops_of(collectives: Collectives) -> list[str]:
    """The names of the operations as the field writes them, sorted."""
    return sorted({op_name(op) for op in collectives.counts("op")})


def ranks_of(collectives: Collectives) -> list[int]:
    return sorted(rank for rank in collectives.counts("rank") if rank is not None)


def groups_of(collectives: Collectives) -> list[str]:
    return sorted(group for group in collectives.words("group").distinct() if group)


def launched_after_partner(collectives: Collectives) -> Bool:
    """Of which the partner had been launched, and had ended, before they began."""
    told = collectives.records("cause_evidence")
    ended, launched = told.field("partner_end_ns"), told.field("partner_launch_ns")
    mine = collectives.numbers("launch_ns")
    assert isinstance(ended, type(mine))
    assert isinstance(launched, type(mine))
    known = told.is_known & ended.is_known & launched.is_known & mine.is_known
    before = (ended.values <= collectives.numbers("start_ns").values) & (launched.values < mine.values)
    return known & before


def has_evidence(collectives: Collectives, name: str, *values: str) -> Bool:
    """Of which a word of the evidence for their cause is one of these."""
    told = collectives.records("cause_evidence")
    column = told.field(name)
    return told.is_known & column.where(lambda word: word in values)  # type: ignore[attr-defined]
