"""The stages across ranks of a run too large for one process: matching, clocks, waits.

The same functions as `analysis.across.across_ranks` calls, community by community, as tasks; between the
stages only what is bounded by ranks, hosts and groups comes to the coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sp_profiler.analysis.across import AcrossRanks
from sp_profiler.analysis.across_notes import say_all
from sp_profiler.analysis.anomalies import EndsApart
from sp_profiler.analysis.clocks import Clocks
from sp_profiler.analysis.results import Clock, Straggler, Unmatched
from sp_profiler.fleet.aligning import align
from sp_profiler.fleet.communities import RankIn, communities
from sp_profiler.fleet.filled import RankAcross, prepare_filling
from sp_profiler.fleet.matched import Bounds, MatchedUnit, match_all, partitions_of
from sp_profiler.fleet.stages import Stages
from sp_profiler.fleet.units import Run
from sp_profiler.fleet.waits import Waits, WaitsTask, waits_of_unit
from sp_profiler.fleet.work import Work
from sp_profiler.ledger import Ledger, LedgerEntry


@dataclass(frozen=True)
class AcrossFleet:
    """What was found between the ranks; the fields of `analysis.across.AcrossRanks` without its rows.

    `ends_apart.figures` name a rank by its place among the `RankIn`. What groups gain, and the notes on
    bandwidth, come with the ranks (`with_ranks`). Causes are to be settled anew unless `skew_wait_ns` is
    None: then nothing was matched.
    """

    clocks: list[Clock] | None
    unmatched: list[Unmatched]
    unmatched_left_out: int
    stragglers: list[Straggler] | None
    skew_wait_ns: int | None
    tied_ns: int
    ends_apart: EndsApart | None
    ledger: tuple[LedgerEntry, ...]

    def with_ranks(self, ranks: RankAcross) -> AcrossRanks:
        """With what all ranks add; no results, no rows."""
        ledger = Ledger()
        ledger.extend(self.ledger)
        ledger.extend(ranks.ledger())
        return AcrossRanks(
            results=(),
            clocks=self.clocks,
            unmatched=self.unmatched,
            stragglers=self.stragglers,
            groups=ranks.groups(),
            skew_wait_ns=self.skew_wait_ns,
            tied_ns=self.tied_ns,
            ends_apart=self.ends_apart,
            ledger=ledger.entries,
        )


def across_fleet(
    work: Work,
    ranks: Sequence[RankIn],
    stage: Stages,
    *,
    run_json: Mapping[str, Any] | None = None,
    world_size: int | None = None,
    bounds: Bounds | None = None,
) -> AcrossFleet:
    """Match, align and measure. `ranks` in the order of `analyze_files`: by rank.

    What `fill_of` needs lies in the work folder afterwards. Raises OSError, and StageError when a task is
    given up.
    """
    bounds = bounds or Bounds()
    found = communities(ranks)
    run = Run.of(ranks, found, run_json, world_size)
    run.save(work)
    if not found:
        prepare_filling(work, [], None)
        return AcrossFleet(None, [], 0, None, None, 0, None, ())
    units = match_all(run, found, stage, bounds)
    clocks = align(run, units, stage, bounds, partitions_of(found))
    waits = _waits(work, units, stage, bounds)
    prepare_filling(work, [(one.unit.community, one.unit.name) for one in units], waits.assumed_size)
    several = len({one.rank for one in ranks}) > 1
    unmatched, left_out = _unmatched(waits, bounds)
    return AcrossFleet(
        clocks=list(clocks.clocks) if several else None,
        unmatched=unmatched,
        unmatched_left_out=left_out,
        stragglers=waits.lost.stragglers() if several else None,
        skew_wait_ns=waits.waited_ns if waits.is_matched else None,
        tied_ns=waits.tied_ns,
        ends_apart=waits.apart.result(),
        ledger=_ledger(waits, clocks, len(run.traced) > 1, left_out),
    )


def _waits(work: Work, units: Sequence[MatchedUnit], stage: Stages, bounds: Bounds) -> Waits:
    """What all units say, added up as they come."""
    most, most_ranks = bounds.unmatched, bounds.unmatched_ranks
    tasks = [
        WaitsTask(work, one.unit, one.state, number, most, most_ranks) for number, one in enumerate(units)
    ]
    whole = Waits()
    for _, one in stage.each(waits_of_unit, tasks, Waits):
        whole = Waits.merged([whole, one], most, most_ranks)
    return whole


def _unmatched(waits: Waits, bounds: Bounds) -> tuple[list[Unmatched], int]:
    """What is listed of collectives that ranks lack, and how many are not."""
    no_trace = waits.no_trace.listing(bounds.unmatched, bounds.unmatched_ranks)
    listed = [one for part in (waits.lacking, no_trace) for _, one in part.entries]
    return listed, waits.lacking.left_out + no_trace.left_out


def _ledger(waits: Waits, clocks: Clocks, several: bool, left_out: int) -> tuple[LedgerEntry, ...]:
    ledger = Ledger()
    noted = waits.noted
    say_all(noted.all_counts(), clocks, several, ledger)
    if noted.more_groups:
        text = (
            f"Seq of {noted.more_groups} more groups contradicts operations, sizes or times: "
            "matched by order instead"
        )
        ledger.add("seq-inconsistent", "assumption", text, count=noted.more_collectives)
    if left_out:
        text = (
            f"unmatched lists the earliest collectives that ranks lack; {left_out} more entries are counted "
            "and not listed"
        )
        ledger.add("unmatched-not-listed", "note", text, count=left_out)
    return ledger.entries
