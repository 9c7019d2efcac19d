"""One time axis for all ranks of a fleet: `analysis.clocks.solve_clocks` with its differences on disk.

Tasks go through the collectives; what comes to the coordinator is a link for each pair of hosts (of members,
where no host is named), and what is solved is as large as the number of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.clocks import (
    Clocks,
    always_meet,
    are_near,
    clocks_of,
    differences_of_members,
    differences_of_places,
    meetings,
    places_of,
    solve,
)
from sp_profiler.analysis.hosts import Differences
from sp_profiler.fleet.differences import Stored, residuals_of, save_differences
from sp_profiler.fleet.matched import Bounds, MatchedUnit, all_links
from sp_profiler.fleet.matching import matched_of
from sp_profiler.fleet.stages import Stages
from sp_profiler.fleet.units import Run, Unit, gather
from sp_profiler.fleet.work import Work
from sp_profiler.trace.tables import NONE, Int64

_PLACES, _CLOCKS = "clocks/places", "clocks/solved"


@dataclass(frozen=True)
class EndsTask:
    """Writes the differences of ends of a unit, below `folder`."""

    work: Work
    unit: Unit
    state: str
    folder: str
    partitions: int

    @property
    def name(self) -> str:
        return f"{self.folder}-of-{self.unit.name}"


@dataclass(frozen=True)
class Met:
    """What a unit tells of clocks. `sends`: (member, other, how many run together, of how many)."""

    has_differences: bool
    sends: tuple[tuple[int, int, int, int], ...] = ()


@dataclass(frozen=True)
class ResidualTask:
    """The residuals of the places of one partition."""

    work: Work
    stored: Stored
    partition: int
    moved: tuple[int, ...]
    most: int

    @property
    def name(self) -> str:
        return f"{self.stored.folder}-left-{self.partition}"


def align(run: Run, units: Sequence[MatchedUnit], stage: Stages, bounds: Bounds, partitions: int) -> Clocks:
    """The clocks of all members, by member of the run; what tasks need of them is in the work folder."""
    near: set[tuple[int, int]] = set()
    hosts = run.member_host
    if None in hosts:
        near = _near(run, units, stage, bounds, partitions)
    place, assumed = places_of(hosts, run.member_base_ns, near)
    stage.work.save(_PLACES, {"place": place})
    tasks = [EndsTask(stage.work, u.unit, u.state, "clocks/ends", partitions) for u in units]
    stored = _stored("clocks/ends", tasks, stage.all(ends_of_places, tasks, Met), partitions)
    found = all_links(stage, stored, bounds.differences)
    count = int(place.max(initial=-1)) + 1
    solution = solve(found, count)
    residual: list[int | None] = [None] * count
    left = [
        ResidualTask(stage.work, stored, k, tuple(solution.moved), bounds.differences)
        for k in range(partitions if stored.units else 0)
    ]
    for part in stage.all(residuals_task, left, dict[int, int]):
        for host, value in part.items():
            residual[host] = value
    clocks = clocks_of(solution, found, residual, place, run.member_rank, hosts, assumed)
    columns = {"offset_ns": clocks.offset_ns, "component": clocks.component, "tie_ns": clocks.tie_ns}
    stage.work.save(_CLOCKS, columns)
    return clocks


def clocks_for(work: Work, member: Int64) -> Clocks:
    """The clocks of these members of the run, who are numbered anew. Raises one of `work.BROKEN`."""
    with work.open(_CLOCKS) as table:
        columns = {name: table[name][member] for name in ("offset_ns", "component", "tie_ns")}
    return Clocks((), **columns, assumed_one_host=False)


def _near(
    run: Run, units: Sequence[MatchedUnit], stage: Stages, bounds: Bounds, partitions: int
) -> set[tuple[int, int]]:
    """Pairs of members without a named host whose clocks are one, as far as their ends tell."""
    tasks = [EndsTask(stage.work, u.unit, u.state, "clocks/members", partitions) for u in units]
    told = stage.all(ends_of_members, tasks, Met)
    sends: dict[tuple[int, int], tuple[int, int]] = {}
    for one in told:
        for member, other, met, count in one.sends:
            old = sends.get((member, other), (0, 0))
            sends[member, other] = old[0] + met, old[1] + count
    stored = _stored("clocks/members", tasks, told, partitions)
    return are_near(all_links(stage, stored, bounds.differences)) | always_meet(sends)


def _stored(folder: str, tasks: Sequence[EndsTask], told: Sequence[Met], partitions: int) -> Stored:
    names = (task.unit.name for task, one in zip(tasks, told, strict=True) if one.has_differences)
    return Stored(folder, tuple(names), partitions)


# --- tasks --------------------------------------------------------------------------------------------


def ends_of_members(task: EndsTask) -> Met:
    """Differences between members without a host whose base times are equal, and how their sends meet."""
    run = Run.load(task.work)
    rows = gather(task.work, run, task.unit)
    instance = matched_of(task.work, task.state).instance
    found = differences_of_members(rows.ends, instance, len(rows.member))
    place = run.member_place[rows.member]
    nameless, base = run.host[place] == NONE, run.base_time_ns[place]

    def may_share(one: Int64, other: Int64) -> np.ndarray:
        return nameless[one] & nameless[other] & (base[one] == base[other])

    kept = may_share(found.place, found.other) & (found.place != found.other)
    member = rows.member
    differences = Differences(member[found.place[kept]], member[found.other[kept]], found.ns[kept])
    save_differences(task.work, f"{task.folder}/{task.unit.name}", differences, task.partitions)
    sends = tuple(
        (int(member[a]), int(member[b]), met, count)
        for (a, b), (met, count) in meetings(rows.ends, instance).items()
        if may_share(np.array([a]), np.array([b])).all()
    )
    return Met(bool(len(differences.ns)), sends)


def ends_of_places(task: EndsTask) -> Met:
    """Differences between hosts, and inside each."""
    run = Run.load(task.work)
    rows = gather(task.work, run, task.unit)
    with task.work.open(_PLACES) as table:
        place = table["place"][rows.member]
    found = differences_of_places(rows.ends, matched_of(task.work, task.state).instance, place)
    save_differences(task.work, f"{task.folder}/{task.unit.name}", found, task.partitions)
    return Met(bool(len(found.ns)))


def residuals_task(task: ResidualTask) -> dict[int, int]:
    return residuals_of(task.work, task.stored, task.partition, task.moved, task.most)
