"""The stages across ranks on results in memory, as the pipeline runs them on tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sp_profiler.analysis.across import AcrossRanks
from sp_profiler.analysis.anomalies import NAMED
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.results import RankResult
from sp_profiler.fleet.across import across_fleet
from sp_profiler.fleet.communities import RankIn, split_arrivals
from sp_profiler.fleet.engines import InProcess
from sp_profiler.fleet.filled import RankAcross, fill_of
from sp_profiler.fleet.matched import Bounds
from sp_profiler.fleet.stages import Stages
from sp_profiler.fleet.work import Work


def stages_of(work: Work) -> Stages:
    return Stages(InProcess(), work, "fingerprint", lambda stage, done, total: None)


def fleet_across(
    folder: Path,
    results: Sequence[RankResult],
    run_json: Mapping[str, Any] | None = None,
    world_size: int | None = None,
    bounds: Bounds | None = None,
) -> AcrossRanks:
    """What `across_ranks` gives, by way of the work folder; tables are named in another order than ranks."""
    work = Work(str(folder))
    number = {place: 7 * len(results) - 3 * place for place in range(len(results))}
    ranks = []
    for place, result in enumerate(results):
        parts = split_arrivals(work, number[place], result.arrivals)
        rank = result.ranks[0].rank if result.ranks else None
        arrivals = result.arrivals
        host, base = (None, 0) if arrivals is None else (arrivals.host, arrivals.base_time_ns)
        ranks.append(RankIn(number[place], rank, host, base, parts))
    found = across_fleet(
        work, ranks, stages_of(work), run_json=run_json, world_size=world_size, bounds=bounds
    )
    filled = [fill_of(work, number[place], replace(one, arrivals=None)) for place, one in enumerate(results)]
    merged = RankAcross.merged([one.across for one in filled])
    return replace(found.with_ranks(merged), results=tuple(one.result for one in filled))


def assert_same(one: AcrossRanks, two: AcrossRanks) -> None:
    """Equal in every figure. Lists ordered by time may differ in the order of ties, the ledger in the order
    of groups under one code, and the examples of ends that disagree in which of equally bad ones they are."""
    for mine, other in zip(one.results, two.results, strict=True):
        assert list(Collectives.of(mine.collectives)) == list(Collectives.of(other.collectives))
    assert one.clocks == two.clocks
    assert sorted(map(repr, one.unmatched)) == sorted(map(repr, two.unmatched))
    assert one.stragglers == two.stragglers
    assert one.groups == two.groups
    assert (one.skew_wait_ns, one.tied_ns) == (two.skew_wait_ns, two.tied_ns)
    assert (one.ends_apart is None) == (two.ends_apart is None)
    if one.ends_apart is not None and two.ends_apart is not None:
        same = replace(two.ends_apart, figures=one.ends_apart.figures)
        assert one.ends_apart == same
        if one.ends_apart.collectives <= NAMED:  # of more, several may be equally far apart
            assert sorted(one.ends_apart.figures) == sorted(two.ends_apart.figures)
    assert sorted(map(repr, one.ledger)) == sorted(map(repr, two.ledger))
    assert [entry.code for entry in one.ledger] == [entry.code for entry in two.ledger]
