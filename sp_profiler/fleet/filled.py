"""The collectives of one rank of a fleet, filled with what the other ranks tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sp_profiler.analysis.across_notes import bandwidths_unknown, say_bandwidth
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.filled import GroupAcross, GroupSums, fill_with, sizes_of
from sp_profiler.analysis.results import RankResult
from sp_profiler.fleet.communities import Groups, StoredFacts
from sp_profiler.fleet.units import Run
from sp_profiler.fleet.waits import others_of
from sp_profiler.fleet.work import Work
from sp_profiler.ledger import Ledger, LedgerEntry
from sp_profiler.trace.tables import Int64

_FILLING = "waits/filling"


@dataclass(frozen=True)
class OpSums:
    """One operation of one group: sums of collectives whose transfer and size are known.

    `factor` is busbw / algbw as the rank at `place`, the first that has any, knows it.
    """

    group: str
    op: str
    collectives: int
    bytes: int
    transfer_ns: int
    bounds: int
    place: int
    factor: float | None


@dataclass(frozen=True)
class RankAcross:
    """What the filled collectives of a rank add to the run's figures; adds up in any order (`merged`)."""

    waits: dict[str, int] = field(default_factory=dict)  # skew wait by group
    sums: tuple[OpSums, ...] = ()
    bandwidth_unknown: int = 0
    busbw_unknown: int = 0

    @staticmethod
    def merged(parts: Sequence[RankAcross]) -> RankAcross:
        waits: dict[str, int] = {}
        sums: dict[tuple[str, str], OpSums] = {}
        for part in parts:
            for group, ns in part.waits.items():
                waits[group] = waits.get(group, 0) + ns
            for one in part.sums:
                old = sums.get((one.group, one.op))
                sums[one.group, one.op] = one if old is None else _added(old, one)
        return RankAcross(
            waits,
            tuple(sums.values()),
            sum(part.bandwidth_unknown for part in parts),
            sum(part.busbw_unknown for part in parts),
        )

    def groups(self) -> dict[str, GroupAcross]:
        """By group, as `AcrossRanks.groups`."""
        sums = GroupSums()
        sums.wait.update(self.waits)
        for one in self.sums:
            sums.sums[one.group, one.op] = [one.collectives, one.bytes, one.transfer_ns, one.bounds]
            sums.factor[one.group, one.op] = one.factor
        return sums.result()

    def ledger(self) -> tuple[LedgerEntry, ...]:
        """Notes on bandwidths that are null; they follow those of `AcrossFleet`."""
        ledger = Ledger()
        say_bandwidth(self.bandwidth_unknown, self.busbw_unknown, ledger)
        return ledger.entries


def _added(one: OpSums, two: OpSums) -> OpSums:
    first = min(one, two, key=lambda sums: sums.place)
    return OpSums(
        one.group,
        one.op,
        one.collectives + two.collectives,
        one.bytes + two.bytes,
        one.transfer_ns + two.transfer_ns,
        one.bounds + two.bounds,
        first.place,
        first.factor,
    )


@dataclass(frozen=True)
class FilledRank:
    """A rank's result with waits, transfers and bandwidths in its collectives, what it adds to the run."""

    result: RankResult
    across: RankAcross


@dataclass(frozen=True)
class _Facts:
    units: tuple[str, ...]
    assumed_size: int | None


def prepare_filling(work: Work, units: Sequence[tuple[int, str]], assumed_size: int | None) -> None:
    """Write down where `fill_of` finds what it needs. `units`: (community, name), in order of communities."""
    community = np.array([one for one, _ in units], np.int64)
    work.save(_FILLING, {"community": community}, _Facts(tuple(name for _, name in units), assumed_size))


def fill_of(work: Work, number: int, result: RankResult) -> FilledRank:
    """Fill what the other ranks tell into the collectives of rank `number`, after `across_fleet`.

    Causes are not settled here: call `analysis.causes.settle` where `AcrossFleet.skew_wait_ns` is not None.
    Raises one of `work.BROKEN`.
    """
    with work.open(_FILLING) as table:
        facts, community = table.facts(_Facts), table["community"]
    run = Run.load(work)
    (place,) = np.flatnonzero(run.number == number).tolist()
    mine = _communities_of(run, place)
    if not len(mine):
        return FilledRank(result, RankAcross())  # its trace shows no communication
    with work.open(f"arrivals/{number:05d}") as table:
        stored = table.facts(StoredFacts)
    units = [facts.units[k] for k in np.flatnonzero(np.isin(community, mine)).tolist()]
    groups = Groups(work)
    sizes = sizes_of([groups.of(one) for one in stored.groups], facts.assumed_size)
    sums = GroupSums()
    filled = fill_with(result, others_of(work, units, place), sizes, stored.is_cpu, sums)
    unknown = (0, 0) if stored.is_cpu else bandwidths_unknown(Collectives.of(filled.collectives))
    told = tuple(
        OpSums(group, op, *counted, place=place, factor=sums.factor[group, op])
        for (group, op), counted in sums.sums.items()
    )
    return FilledRank(filled, RankAcross(sums.wait, told, *unknown))


def _communities_of(run: Run, place: int) -> Int64:
    return np.searchsorted(run.first, np.flatnonzero(run.places == place), side="right") - 1
