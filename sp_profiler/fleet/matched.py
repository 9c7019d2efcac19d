"""Matching all communities of a run, in an order that gives what matching them together gives.

`Seq` first: whether a group's `Seq` can be believed depends on that group, and on hosts that are named. Then
what the ends of these collectives tell of the clocks, from all communities; in their light a `Seq` may still
be doubted. At last what is left to order: the longest sequence first, for the clocks that it finds serve the
others. Sequences whose clocks are known by then, or that share no clock with a longer one, depend on nobody
and go together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sp_profiler.analysis.hosts import Link, Potentials
from sp_profiler.analysis.sequence import agreeing
from sp_profiler.fleet.communities import Community
from sp_profiler.fleet.differences import Stored, links_of
from sp_profiler.fleet.matching import (
    Agreed,
    Connected,
    Found,
    Rest,
    UnitTask,
    doubt_pairs,
    doubt_unit,
    equal_clocks,
    match_pairs,
    match_unit,
    order_unit,
    save_known,
    seq_differ,
)
from sp_profiler.fleet.stages import Stages
from sp_profiler.fleet.units import Run, Unit, slices_of
from sp_profiler.fleet.work import Work

_ROWS_OF_PARTITION = 8_000_000


@dataclass(frozen=True)
class Bounds:
    """What one task and one report may hold.

    A row takes about 300 bytes of a worker's memory. Only a community whose collectives all carry `Seq`, in a
    group whose ranks are known, is cut; others are matched whole, whatever their size.
    """

    rows: int = 4_000_000  # of a task; a larger community is cut into slices
    differences: int = 32_000_000  # of end times that are sorted in memory; more are counted in passes
    unmatched: int = 2_000  # the earliest are listed, the others counted
    unmatched_ranks: int = 500_000  # ranks that they name


@dataclass(frozen=True)
class MatchedUnit:
    """A unit and the table that says which of its rows are one collective (`matching.matched_of`)."""

    unit: Unit
    state: str


@dataclass(frozen=True)
class LinkTask:
    """The links of one partition of differences."""

    work: Work
    stored: Stored
    partition: int
    most: int

    @property
    def name(self) -> str:
        return f"{self.stored.folder}-{self.partition}"


def links_task(task: LinkTask) -> list[Link]:
    return links_of(task.work, task.stored, task.partition, task.most)


def all_links(stage: Stages, stored: Stored, most: int) -> list[Link]:
    """The links of all partitions, ordered by (place, other)."""
    tasks = [LinkTask(stage.work, stored, k, most) for k in range(stored.partitions)] if stored.units else []
    found = stage.all(links_task, tasks, list[Link])
    return sorted((link for part in found for link in part), key=lambda link: (link.place, link.other))


def partitions_of(found: Sequence[Community]) -> int:
    """In how many partitions the differences of so many rows go."""
    return 1 + sum(one.rows for one in found) // _ROWS_OF_PARTITION


def match_all(run: Run, found: Sequence[Community], stage: Stages, bounds: Bounds) -> list[MatchedUnit]:
    """Match the collectives of all communities; their units in order of communities."""
    return _Matching(run, found, stage, bounds).result()


class _Matching:
    def __init__(self, run: Run, found: Sequence[Community], stage: Stages, bounds: Bounds) -> None:
        self._run = run
        self._communities = found
        self._stage = stage
        self._bounds = bounds
        self._work = stage.work
        self._partitions = partitions_of(found)
        self._potentials = Potentials(run.member_host)
        self._saved = 0

    def result(self) -> list[MatchedUnit]:
        self._join_equal_clocks()
        known = self._save_known()
        units, found = self._by_seq(known)
        known = self._learn(units, found, known)
        units, found, states = self._doubt(units, found, known)
        self._order(units, found, states)
        return [MatchedUnit(unit, states[unit.name]) for unit in units]

    def _save_known(self) -> str:
        name = f"match/known-{self._saved}"
        self._saved += 1
        save_known(self._work, name, self._potentials)
        return name

    def _are_connected(self) -> bool:
        return len(set(self._potentials.state()[0])) < 2

    # --- before anything is matched --------------------------------------------------------------------

    def _join_equal_clocks(self) -> None:
        """Where windows differ, or a counter is off: which clocks are one by the ends alone."""
        if self._are_connected() or not self._some_seq_differ():
            return
        known = self._save_known()
        tasks = [task for one in self._communities for task in self._tasks_by_member(one, "equal", known)]
        counts: dict[tuple[int, int], tuple[int, int]] = {}
        for agreed in self._stage.all(equal_clocks, tasks, Agreed):
            for member, other, count, of in agreed.pairs:
                old = counts.get((member, other), (0, 0))
                counts[member, other] = old[0] + count, old[1] + of
        for member, other in agreeing(counts):
            self._potentials.join(member, other, 0)

    def _some_seq_differ(self) -> bool:
        told = [one.may_differ for one in self._communities]
        if any(told):
            return True
        asked = [one for one, known in zip(self._communities, told, strict=True) if known is None]
        tasks = [UnitTask(self._work, _whole(one), "look") for one in asked]
        return any(self._stage.all(seq_differ, tasks, bool))

    def _tasks_by_member(self, one: Community, step: str, known: str) -> Iterator[UnitTask]:
        """Tasks that hold members of a community beside the one that has most, so that none is too large;
        one task where the community is not too large, or no single sequence."""
        unit = _whole(one)
        if one.rows <= self._bounds.rows or not one.is_sliceable:
            yield UnitTask(self._work, unit, step, known)
            return
        rows = {place: part.rows for place, part in zip(one.places, one.parts, strict=True)}
        reference = self._longest(one)
        chosen, taken, number = [reference], rows[reference], 0
        for place in one.places:
            if place == reference:
                continue
            if len(chosen) > 1 and taken + rows[place] > self._bounds.rows:
                yield _some_of(self._work, unit, step, known, chosen, number)
                chosen, taken, number = [reference], rows[reference], number + 1
            chosen.append(place)
            taken += rows[place]
        yield _some_of(self._work, unit, step, known, chosen, number)

    def _longest(self, one: Community) -> int:
        """The place of the member that has most rows, the first of several in order of members."""
        part_of = dict(zip(one.places, one.parts, strict=True))
        best, most = one.places[0], -1
        for place, device in zip(
            self._run.member_place.tolist(), self._run.member_device.tolist(), strict=True
        ):
            if place in part_of:
                rows = sum(d.rows for d in part_of[place].devices if d.device == device)
                if rows > most:
                    best, most = place, rows
        return best

    # --- Seq ---------------------------------------------------------------------------------------------

    def _by_seq(self, known: str) -> tuple[list[Unit], dict[str, Found]]:
        """The units, and what was found of each. A community whose slices do not bear each other out is one
        unit after all."""
        sliced = {one.order: slices_of(one, self._bounds.rows) for one in self._communities}
        large = [one for one in self._communities if len(sliced[one.order]) > 1]
        pairs = [task for one in large for task in self._tasks_by_member(one, "pairs", known)]
        differ: set[int] = set()
        refused: set[int] = set()
        for end, task in zip(self._stage.all(match_pairs, pairs, Found), pairs, strict=True):
            if end.is_refused:
                refused.add(task.unit.community)
            if end.windows_differ:
                differ.add(task.unit.community)
        found = self._match(
            [unit for one in self._communities if one.order not in refused for unit in sliced[one.order]],
            known,
        )
        refused |= {
            one.order
            for one in large
            if any(found[u.name].is_refused for u in sliced[one.order] if u.name in found)
        }
        whole = [_whole(one) for one in large if one.order in refused]
        found |= self._match(whole, known)
        units: list[Unit] = []
        for one in self._communities:
            units += [_whole(one)] if one.order in refused else sliced[one.order]
        for unit in units:
            if unit.first_seq is not None:
                one = found[unit.name]
                found[unit.name] = replace(one, windows_differ=unit.community in differ)
        return units, {unit.name: found[unit.name] for unit in units}

    def _match(self, units: Sequence[Unit], known: str) -> dict[str, Found]:
        tasks = [UnitTask(self._work, unit, "seq", known, partitions=self._partitions) for unit in units]
        ends = self._stage.all(match_unit, tasks, Found)
        return {unit.name: end for unit, end in zip(units, ends, strict=True)}

    def _learn(self, units: Sequence[Unit], found: dict[str, Found], known: str) -> str:
        """Learn of clocks what the matched collectives tell, where that serves anybody."""
        asked = any(one.rest or one.windows_differ for one in found.values())
        if not asked or self._are_connected():
            return known
        stored = Stored(
            "match/learn",
            tuple(unit.name for unit in units if found[unit.name].has_differences),
            self._partitions,
        )
        self._potentials.learn(all_links(self._stage, stored, self._bounds.differences))
        return self._save_known()

    def _doubt(
        self, units: Sequence[Unit], found: dict[str, Found], known: str
    ) -> tuple[list[Unit], dict[str, Found], dict[str, str]]:
        """The units, what was found and their states, with the `Seq` that times contradict left to order."""
        differ = {unit.community for unit in units if found[unit.name].windows_differ}
        sliced = {unit.community for unit in units if unit.first_seq is not None}
        large = [one for one in self._communities if one.order in differ & sliced]
        tasks = [task for one in large for task in self._tasks_by_member(one, "doubts", known)]
        ends = zip(self._stage.all(doubt_pairs, tasks, Found), tasks, strict=True)
        wrong = {task.unit.community for end, task in ends if end.is_refused}
        whole = [_whole(one) for one in large if one.order in wrong]
        found = found | self._match(whole, known)
        kept = [unit for unit in units if unit.community not in wrong]
        units = sorted([*kept, *whole], key=lambda unit: (unit.community, unit.name))
        states = {unit.name: f"match/seq-{unit.name}" for unit in units}
        asked = [unit for unit in units if unit.community in differ and unit.first_seq is None]
        doubts = [UnitTask(self._work, unit, "doubt", known, states[unit.name]) for unit in asked]
        for unit, end in zip(asked, self._stage.all(doubt_unit, doubts, Found), strict=True):
            found[unit.name] = end
            states[unit.name] = f"match/doubt-{unit.name}"
        return units, found, states

    # --- order -------------------------------------------------------------------------------------------

    def _order(self, units: Sequence[Unit], found: dict[str, Found], states: dict[str, str]) -> None:
        """Match by order what is left; `states` name the results afterwards."""
        unit_of = {unit.name: unit for unit in units}
        pending = [(rest, unit.name) for unit in units for rest in found[unit.name].rest]
        pending.sort(key=lambda one: (-one[0].rows, one[0].is_late))
        wave = 0
        while pending:
            known = self._save_known()
            ready, pending = _ready(pending, self._potentials)
            keys: dict[str, list[int]] = {}
            for rest, name in ready:
                keys.setdefault(name, []).append(rest.key)
            tasks = [
                UnitTask(self._work, unit_of[name], f"order{wave}", known, states[name], keys=tuple(mine))
                for name, mine in keys.items()
            ]
            for task, end in zip(tasks, self._stage.all(order_unit, tasks, Connected), strict=True):
                states[task.unit.name] = f"match/order{wave}-{task.unit.name}"
                for member, other, ahead_ns in end.joins:
                    self._potentials.join(member, other, ahead_ns)
            wave += 1


def _whole(one: Community) -> Unit:
    return Unit(f"{one.order:05d}", one.order)


def _some_of(work: Work, unit: Unit, step: str, known: str, places: Iterable[int], number: int) -> UnitTask:
    return UnitTask(work, unit, f"{step}{number}", known, only=tuple(sorted(places)))


def _ready(
    pending: Sequence[tuple[Rest, str]], potentials: Potentials
) -> tuple[list[tuple[Rest, str]], list[tuple[Rest, str]]]:
    """The sequences that depend on none before them, and the others, both in their order.

    A sequence whose clocks are all known changes nothing; one that is to find some must not share a clock
    with an earlier one that is still to be matched.
    """
    component = potentials.state()[0]
    touched: set[int] = set()
    ready: list[tuple[Rest, str]] = []
    later: list[tuple[Rest, str]] = []
    for one in pending:
        mine = {component[member] for member in one[0].members}
        if len(mine) < 2:
            ready.append(one)
            continue
        (later if mine & touched else ready).append(one)
        touched |= mine
    return ready, later
