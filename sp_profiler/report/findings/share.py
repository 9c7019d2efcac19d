"""The part of the exposed time that one cause has, kind by kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np

from sp_profiler.analysis.kinds import EXAMPLES, CollectiveKinds, Kind
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.report.sentences import op_name


@dataclass(frozen=True)
class Share:
    """Collectives of which a cause has a part, of several causes in turn; true where there are any."""

    parts: tuple[tuple[str, CollectiveKinds], ...]

    def __len__(self) -> int:
        return sum(len(kinds) for _, kinds in self.parts)

    def __add__(self, other: Share) -> Share:
        return Share((*self.parts, *other.parts))

    @property
    def collectives(self) -> CollectiveKinds:
        """All of them, by kind."""
        (_, first), *others = self.parts
        entries = (*first.entries, *chain.from_iterable(kinds.entries for _, kinds in others))
        numbers = np.concatenate([first.numbers, *(kinds.numbers for _, kinds in others)])
        return replace(first, entries=entries, numbers=numbers)

    @property
    def whole(self) -> int:
        return sum(kinds.of_cause(cause) for cause, kinds in self.parts)

    def where(self, predicate: Callable[[Kind], bool]) -> Share:
        return Share(tuple((cause, kinds.where(predicate)) for cause, kinds in self.parts))

    def none(self) -> Share:
        """Nothing of it."""
        return self.where(lambda _: False)

    def examples(self) -> list[tuple[int, CollectiveFigures]]:
        """The collectives with the largest parts, and the parts."""
        largest = (
            kinds.largest(lambda table, cause=cause: table.exposed_by_cause(cause))
            for cause, kinds in self.parts
        )
        return list(islice(chain.from_iterable(largest), EXAMPLES))


def share_of(collectives: CollectiveKinds, cause: str) -> Share:
    """The collectives with a part of this cause."""
    return Share(((cause, collectives.where(lambda kind: cause in kind.causes)),))


def ops_of(collectives: CollectiveKinds) -> list[str]:
    """The names of the operations as the field writes them, sorted."""
    return sorted({op_name(entry.kind.op) for entry in collectives.entries})


def ranks_of(collectives: CollectiveKinds) -> list[int]:
    """The ranks that are known; none where the kinds do not keep them."""
    return sorted(rank for rank in collectives.by_rank() or () if rank is not None)


def groups_of(collectives: CollectiveKinds) -> list[str]:
    return sorted(group for group in collectives.distinct("group") if group)
