"""Communities: the rows of all ranks that can meet, each small enough for one task.

Collectives of different ranks can be the same one only within a process group, whatever their ranks call it,
or where nothing names their group. So the arrivals of a rank are kept by community, and a task that matches
one community opens of each member's table only its rows. What travels is bounded: a `CommunityPart` for each
group of a rank, with counts. Rank lists stay on disk, for a group of all ranks has as many numbers as the run
has ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sp_profiler.analysis.arrivals import Arrivals
from sp_profiler.fleet.work import Work

GROUPLESS = "groupless"
"""The community of all collectives whose group nothing names."""


@dataclass(frozen=True)
class DeviceRows:
    """The rows of one device of a rank in one group: how many, how many carry `Seq`, and which."""

    device: int
    rows: int
    with_seq: int
    first_seq: int  # NONE where none carries one
    last_seq: int
    numbers: str  # a digest of the set of `Seq`: equal for equal sets


@dataclass(frozen=True)
class CommunityPart:
    """What a rank has of one group, in as many bytes whatever the trace."""

    community: str
    label: str | None  # the group's key as this rank calls it
    has_ranks: bool  # the group has a list of ranks
    has_sends: bool
    devices: tuple[DeviceRows, ...]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.devices)


@dataclass(frozen=True)
class RankIn:
    """What the stages across ranks know of a rank. `number` names its tables; `parts` as `split_arrivals` gave
    them, empty for a rank whose trace shows no communication."""

    number: int
    rank: int | None
    host: str | None
    base_time_ns: int
    parts: tuple[CommunityPart, ...]


@dataclass(frozen=True)
class Community:
    """One community: the places (in the sequence of `RankIn`) of the ranks that have rows in it, ascending."""

    key: str
    order: int  # communities are numbered by the first rank that shows them
    places: tuple[int, ...]
    rows: int


def split_arrivals(work: Work, number: int, arrivals: Arrivals | None) -> tuple[CommunityPart, ...]:
    """Keep the arrivals of rank `number` in the work folder, by community (table `arrivals/<number>`), and
    return what travels. Raises OSError."""
    raise NotImplementedError


def communities(ranks: Sequence[RankIn]) -> list[Community]:
    """The communities of a run, in order of the first rank that shows them."""
    raise NotImplementedError
