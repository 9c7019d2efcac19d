"""The tasks that match one unit. Each calls what `analysis.matching.match` calls, on the unit's rows.

What is known of the clocks lies in tables `match/known-<n>`: by member of the run which members it is
connected with, and how far it is ahead (`Potentials.state`). What is matched so far lies in tables of states:
a stage reads one and writes another, so that a task can be done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.hosts import Differences, Potentials, differences
from sp_profiler.analysis.matching import BySeq, Ends, Matched, by_order, doubted, match_by_seq
from sp_profiler.analysis.sequence import by_seq, ends_that_agree, slices, some_seq_differ, windows_differ
from sp_profiler.fleet.differences import save_differences
from sp_profiler.fleet.units import Rows, Run, Unit, gather
from sp_profiler.fleet.work import Work
from sp_profiler.trace.tables import NONE, Int64


@dataclass(frozen=True)
class UnitTask:
    """`step` tells the stage; `known` and `state` name the tables it starts from; `only` the places of the
    ranks that it looks at (None: all); `keys` the sequences that it matches."""

    work: Work
    unit: Unit
    step: str
    known: str = ""
    state: str = ""
    partitions: int = 1
    only: tuple[int, ...] | None = None
    keys: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"match/{self.step}-{self.unit.name}"


@dataclass(frozen=True)
class Rest:
    """A sequence that is to be matched by order. `members`: of the run, only where clocks of some are not
    known; `is_late`: its `Seq` was believed at first."""

    key: int
    rows: int
    members: tuple[int, ...]
    is_late: bool = False


@dataclass(frozen=True)
class Found:
    """What the coordinator must know of a unit. `is_refused`: this slice, or these members, contradict
    `Seq`."""

    rest: tuple[Rest, ...] = ()
    windows_differ: bool = False
    has_differences: bool = False
    is_refused: bool = False


@dataclass(frozen=True)
class Agreed:
    """Ends that agree on clocks as they are: (member, other, how many, of how many)."""

    pairs: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Connected:
    """Clocks that were found on the way: (member, other, how far it is ahead)."""

    joins: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class _State:
    """A `BySeq` or `Matched` without its arrays. `rest` is still to be matched, `ordered` was by order."""

    count: int
    believed: tuple[int, ...]
    inconsistent: tuple[int, ...]
    ambiguous: tuple[int, ...]
    rest: tuple[int, ...]
    ordered: tuple[int, ...] = ()


# --- what is known of clocks ---------------------------------------------------------------------------


def save_known(work: Work, name: str, potentials: Potentials) -> None:
    component, ahead = potentials.state()
    work.save(name, {"component": np.array(component, np.int64), "ahead_ns": np.array(ahead, np.int64)})


def known_of(work: Work, name: str, member: Int64) -> Potentials:
    """What is known of these members of the run, who are numbered anew."""
    with work.open(name) as table:
        return Potentials.of(table["component"][member].tolist(), table["ahead_ns"][member].tolist())


# --- states ------------------------------------------------------------------------------------------


def _save(work: Work, name: str, found: BySeq) -> None:
    rest = tuple(key for key, _ in found.rest)
    state = _State(found.count, found.believed, found.inconsistent, found.ambiguous, rest)
    work.save(name, {"instance": found.instance}, state)


def _load(work: Work, name: str, ends: Ends) -> tuple[BySeq, tuple[int, ...]]:
    """What `Seq` matched and what is left, and the keys that were matched by order since."""
    with work.open(name) as table:
        state, instance = table.facts(_State), table["instance"]
    spans = dict(slices(ends.key))
    rest = tuple((key, spans[key].start + np.flatnonzero(instance[spans[key]] < 0)) for key in state.rest)
    found = BySeq(instance, state.count, state.believed, state.inconsistent, state.ambiguous, rest)
    return found, state.ordered


def matched_of(work: Work, name: str) -> Matched:
    """The result of the last stage of a unit. Raises one of `work.BROKEN`."""
    with work.open(name) as table:
        state = table.facts(_State)
        return Matched(table["instance"], state.count, state.inconsistent, state.ordered, state.ambiguous)


# --- tasks --------------------------------------------------------------------------------------------


def seq_differ(task: UnitTask) -> bool:
    """Whether some member lacks numbers that another has."""
    run = Run.load(task.work)
    return some_seq_differ(gather(task.work, run, task.unit).ends)


def equal_clocks(task: UnitTask) -> Agreed:
    """Which members' ends agree, of those that `known` does not connect."""
    run = Run.load(task.work)
    rows = gather(task.work, run, task.unit, task.only)
    member = rows.member.tolist()
    counts = ends_that_agree(rows.ends, known_of(task.work, task.known, rows.member))
    return Agreed(tuple((member[a], member[b], n, of) for (a, b), (n, of) in counts.items()))


def match_unit(task: UnitTask) -> Found:
    """Match by `Seq` what can be; writes the state, and the differences of ends between clocks whose offset
    is not known."""
    run = Run.load(task.work)
    rows = gather(task.work, run, task.unit)
    known = known_of(task.work, task.known, rows.member)
    if task.unit.first_seq is None:
        found = match_by_seq(rows.ends, rows.member_rank, known)
    else:
        found = _slice_by_seq(rows.ends)
        if found is None:
            return Found(is_refused=True)
    _save(task.work, f"match/seq-{task.unit.name}", found)
    learnt = _differences(rows, found.instance, known)
    save_differences(task.work, f"match/learn/{task.unit.name}", learnt, task.partitions)
    return Found(
        rest=_rest(rows, found, known),
        windows_differ=_windows_differ(rows.ends, found),
        has_differences=bool(len(learnt.ns)),
    )


def _slice_by_seq(ends: Ends) -> BySeq | None:
    """The instances of a slice; None where operations, sizes or counts contradict `Seq`."""
    instance = np.full(len(ends), NONE, np.int64)
    for key, span in slices(ends.key):
        numbers = by_seq(ends, span)
        if numbers is None or len(ends.keys) > 1:
            return None
        instance[span] = numbers
        return BySeq(instance, int(numbers.max()) + 1, (key,), (), (), ())
    return BySeq(instance, 0, (), (), (), ())


def _windows_differ(ends: Ends, found: BySeq) -> bool:
    believed = set(found.believed)
    return any(
        windows_differ(ends, span, found.instance[span]) for key, span in slices(ends.key) if key in believed
    )


def _differences(rows: Rows, instance: Int64, known: Potentials) -> Differences:
    """Between members whose clocks are not known to be one; numbered as in the run."""
    ends = rows.ends
    found = differences(instance, ends.together & ends.is_measured, ends.member, ends.member, ends.end_ns)
    component = np.array(known.state()[0], np.int64)
    apart = component[found.place] != component[found.other]
    member = rows.member
    return Differences(member[found.place[apart]], member[found.other[apart]], found.ns[apart])


def _rest(rows: Rows, found: BySeq, known: Potentials) -> tuple[Rest, ...]:
    component = np.array(known.state()[0], np.int64)
    told: list[Rest] = []
    for key, chosen in found.rest:
        members = np.unique(rows.ends.member[chosen])
        connected = len(np.unique(component[members])) < 2
        apart = () if connected else tuple(rows.member[members].tolist())
        told.append(Rest(key, len(chosen), apart))
    return tuple(told)


def match_pairs(task: UnitTask) -> Found:
    """Whether the times of some members agree with `Seq`, beside the member that has most: all of the
    community in a row of such tasks."""
    run = Run.load(task.work)
    rows = gather(task.work, run, task.unit, task.only)
    found = match_by_seq(rows.ends, rows.member_rank, known_of(task.work, task.known, rows.member))
    return Found(
        windows_differ=_windows_differ(rows.ends, found),
        is_refused=bool(found.inconsistent or found.ambiguous or found.rest),
    )


def doubt_pairs(task: UnitTask) -> Found:
    """Whether by now more of their collectives match by time than by `Seq`."""
    run = Run.load(task.work)
    rows = gather(task.work, run, task.unit, task.only)
    known = known_of(task.work, task.known, rows.member)
    found = match_by_seq(rows.ends, rows.member_rank, known)
    return Found(is_refused=bool(doubted(rows.ends, found, known).inconsistent))


def doubt_unit(task: UnitTask) -> Found:
    """Leave to order what more match by time than by `Seq`."""
    run = Run.load(task.work)
    rows = gather(task.work, run, task.unit)
    known = known_of(task.work, task.known, rows.member)
    before, _ = _load(task.work, task.state, rows.ends)
    found = doubted(rows.ends, before, known)
    _save(task.work, f"match/doubt-{task.unit.name}", found)
    late = {*before.believed} - {*found.believed}
    rest = tuple(Rest(one.key, one.rows, one.members, one.key in late) for one in _rest(rows, found, known))
    return Found(rest=rest)


def order_unit(task: UnitTask) -> Connected:
    """Match the sequences `keys` by order, the longest first."""
    run = Run.load(task.work)
    rows = gather(task.work, run, task.unit)
    found, ordered = _load(task.work, task.state, rows.ends)
    known = known_of(task.work, task.known, rows.member)
    before = known.state()[0]
    instance, count = found.instance.copy(), found.count
    mine = [(key, chosen) for key, chosen in found.rest if key in task.keys]
    for _, chosen in sorted(mine, key=lambda one: -len(one[1])):
        numbers = by_order(rows.ends, chosen, known)
        instance[chosen] = numbers + count
        count += int(numbers.max()) + 1
    state = _State(
        count=count,
        believed=found.believed,
        inconsistent=found.inconsistent,
        ambiguous=found.ambiguous,
        rest=tuple(key for key, _ in found.rest if key not in task.keys),
        ordered=(*ordered, *(key for key, _ in mine)),
    )
    task.work.save(f"match/{task.step}-{task.unit.name}", {"instance": instance}, state)
    return Connected(_joins(rows.member, before, known))


def _joins(member: Int64, before: Sequence[int], known: Potentials) -> tuple[tuple[int, int, int], ...]:
    """What connects members that were not connected before."""
    after, ahead = known.state()
    first: dict[int, int] = {}
    told: set[tuple[int, int]] = set()
    joins: list[tuple[int, int, int]] = []
    for m, component in enumerate(after):
        base = first.setdefault(component, m)
        if before[m] != before[base] and (component, before[m]) not in told:
            told.add((component, before[m]))
            joins.append((int(member[m]), int(member[base]), ahead[m] - ahead[base]))
    return tuple(joins)
