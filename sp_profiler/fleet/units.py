"""Units: what one task of the stages across ranks works on, a community or a slice of a large one.

The members of the run (rank and device) are numbered once, as `analysis.matching.members_of` numbers them; a
unit numbers its own in the same order, so whatever is decided by order is decided as it is for the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from sp_profiler.analysis.arrivals import Arrivals
from sp_profiler.analysis.clocks import hosts_of
from sp_profiler.analysis.matching import Ends, ends_of, members_of
from sp_profiler.fleet.communities import COLUMNS, Community, Groups, RankIn, part_of
from sp_profiler.fleet.work import Work
from sp_profiler.trace.tables import NONE, Int64

_RUN = "match/run"


@dataclass(frozen=True)
class Unit:
    """All rows of a community, or those whose `Seq` is in [`first_seq`, `stop_seq`)."""

    name: str
    community: int
    first_seq: int | None = None
    stop_seq: int | None = None


@dataclass(frozen=True)
class RunFacts:
    """What tasks need of the run besides arrays."""

    communities: tuple[str, ...]
    host_names: tuple[str, ...]
    world_size: int | None


@dataclass(frozen=True)
class Run:
    """The ranks, members and communities of a run: what tasks read, and the coordinator holds. Int64 columns.

    A rank nobody knows is NONE in `rank_of_place`, told by `has_rank`.
    """

    facts: RunFacts
    number: Int64  # by place: of its tables
    rank_of_place: Int64
    has_rank: Int64
    base_time_ns: Int64  # by place
    host: Int64  # by place: index into host_names, NONE where nothing names it
    traced: Int64  # ranks that have a trace here
    member_place: Int64
    member_device: Int64
    first: Int64  # by community where its places begin in `places`, and where all end
    places: Int64

    @staticmethod
    def of(
        ranks: Sequence[RankIn],
        found: Sequence[Community],
        run_json: Mapping[str, Any] | None,
        world_size: int | None,
    ) -> Run:
        known = [one.rank for one in ranks]
        hosts = hosts_of(run_json, known, [one.host for one in ranks])
        names = {name: code for code, name in enumerate(dict.fromkeys(h for h in hosts if h is not None))}
        order = sorted(range(len(ranks)), key=lambda i: (known[i] is None, known[i] or 0, i))
        members = [
            (i, device)
            for i in order
            for device in sorted({rows.device for part in ranks[i].parts for rows in part.devices})
        ]

        def column(values: Sequence[int]) -> Int64:
            return np.array(values, np.int64)

        return Run(
            facts=RunFacts(tuple(one.key for one in found), tuple(names), world_size),
            number=column([one.number for one in ranks]),
            rank_of_place=column([NONE if rank is None else rank for rank in known]),
            has_rank=column([rank is not None for rank in known]),
            base_time_ns=column([one.base_time_ns for one in ranks]),
            host=column([NONE if host is None else names[host] for host in hosts]),
            traced=column(sorted({rank for rank in known if rank is not None})),
            member_place=column([i for i, _ in members]),
            member_device=column([device for _, device in members]),
            first=np.cumsum([0, *(len(one.places) for one in found)]).astype(np.int64),
            places=column([place for one in found for place in one.places]),
        )

    def save(self, work: Work) -> None:
        arrays = {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        work.save(_RUN, arrays, self.facts)

    @staticmethod
    def load(work: Work) -> Run:
        """Raises one of `work.BROKEN`."""
        with work.open(_RUN) as table:
            return Run(facts=table.facts(RunFacts), **{name: table[name] for name in table.names})

    def rank(self, place: int) -> int | None:
        return int(self.rank_of_place[place]) if self.has_rank[place] else None

    @property
    def member_rank(self) -> list[int | None]:
        return [self.rank(place) for place in self.member_place.tolist()]

    @property
    def member_host(self) -> list[str | None]:
        names = (*self.facts.host_names, None)
        return [names[code] for code in self.host[self.member_place].tolist()]

    @property
    def member_base_ns(self) -> list[int]:
        return self.base_time_ns[self.member_place].tolist()

    def places_of(self, community: int) -> Int64:
        return self.places[self.first[community] : self.first[community + 1]]


@dataclass(frozen=True)
class Rows:
    """The rows of a unit, ready to be matched. `places`: of each of `arrivals` in the run; `member`: of each
    of the unit's members its number in the run."""

    run: Run
    places: Int64
    arrivals: tuple[Arrivals, ...]
    member: Int64
    member_rank: tuple[int | None, ...]
    ends: Ends


def rows_of(run: Run, places: Int64, arrivals: Sequence[Arrivals]) -> Rows:
    """The rows of these arrivals; ranks without any take no part."""
    kept = [k for k, one in enumerate(arrivals) if len(one)] or [0]  # of none at all: one without rows
    arrivals, places = [arrivals[k] for k in kept], places[kept]
    ranks = [run.rank(place) for place in places.tolist()]
    members = members_of(arrivals, ranks)
    number = {
        (int(run.member_place[m]), int(run.member_device[m])): m
        for m in np.flatnonzero(np.isin(run.member_place, places)).tolist()
    }
    member = [number[int(places[i]), device] for i, device in members]
    return Rows(
        run=run,
        places=places,
        arrivals=tuple(arrivals),
        member=np.array(member, np.int64),
        member_rank=tuple(ranks[i] for i, _ in members),
        ends=ends_of(arrivals, ranks, members),
    )


def gather(work: Work, run: Run, unit: Unit, only: Sequence[int] | None = None) -> Rows:
    """The rows of a unit from the tables of its ranks (of these places `only`). Raises one of `BROKEN`."""
    key = run.facts.communities[unit.community]
    places = run.places_of(unit.community) if only is None else np.array(only, np.int64)
    groups = Groups(work)
    found: list[Arrivals] = []
    for place in places.tolist():
        with work.open(f"arrivals/{int(run.number[place]):05d}") as table:
            found.append(_between(part_of(table, key, groups), unit))
    return rows_of(run, places, found)


def _between(one: Arrivals, unit: Unit) -> Arrivals:
    """The rows of a slice, which is none of sends."""
    if unit.first_seq is None or unit.stop_seq is None:
        return one
    mine = (one.seq >= unit.first_seq) & (one.seq < unit.stop_seq)
    return replace(one, **{name: getattr(one, name)[mine] for name in COLUMNS})


def slices_of(community: Community, most: int) -> list[Unit]:
    """The units of a community: itself, or slices of its `Seq` of about `most` rows each."""
    name = f"{community.order:05d}"
    if community.rows <= most or not community.is_sliceable:
        return [Unit(name, community.order)]
    devices = [device for part in community.parts for device in part.devices]
    first, stop = min(d.first_seq for d in devices), max(d.last_seq for d in devices) + 1
    count = min(-(-community.rows // most), stop - first)
    bounds = [first + (stop - first) * k // count for k in range(count + 1)]
    return [
        Unit(f"{name}.{k:04d}", community.order, low, high) for k, (low, high) in enumerate(pairwise(bounds))
    ]
