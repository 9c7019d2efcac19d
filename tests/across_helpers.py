"""Runs of several ranks with known answers: who arrives when, how long transfers take, whose clock is off.

    instances = [Instance({0: 0, 1: 300}, transfer=700)]      # rank 1 arrives 300 late, both leave at 1000
    found = across(ranks_of(instances, clocks={1: 5_000}))    # rank 1's clock is 5,000 ns ahead

All times are plain integers, in ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from analysis_helpers import WHOLE, comm, draw

from sp_profiler.analysis.across import AcrossRanks, across_ranks
from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.results import CollectiveFigures, RankResult
from sp_profiler.classify.tables import Group

PAIR = Group("tp[0,1]", "tp", (0, 1), 2, "nccl")


def group_of(*ranks: int, description: str = "dp") -> Group:
    return Group(f"{description}[{','.join(map(str, ranks))}]", description, ranks, len(ranks), "nccl")


@dataclass(frozen=True)
class Instance:
    """One collective: arrivals by rank in true time. All leave `transfer` after the last arrival."""

    arrivals: Mapping[int, int]
    transfer: int = 1_000
    group: Group | None = PAIR
    op: str = "all_reduce"
    bytes: int | None = 1024
    seq: int | None = None
    peers: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    end_shift: Mapping[int, int] = field(default_factory=dict)  # a rank that leaves later (or earlier)
    known: bool = True

    @property
    def last(self) -> int:
        return max(self.arrivals.values())


def ranks_of(
    instances: Sequence[Instance],
    clocks: Mapping[int, int] | None = None,
    hosts: Mapping[int, str] | None = None,
    bases: Mapping[int, int] | None = None,
    seqs: Mapping[int, int] | None = None,
    drop: Sequence[tuple[int, int]] = (),
    cpu: bool = False,
) -> list[RankResult]:
    """The ranks' results. `clocks`: how far each is ahead; `seqs`: added to Seq; `drop`: (rank, instance)."""
    found: list[RankResult] = []
    for rank in sorted({rank for one in instances for rank in one.arrivals}):
        ahead = (clocks or {}).get(rank, 0)
        mine = [(k, one) for k, one in enumerate(instances) if rank in one.arrivals and (rank, k) not in drop]
        mine.sort(key=lambda pair: pair[1].arrivals[rank])
        drawn = []
        for _, one in mine:
            seq = None if one.seq is None else one.seq + (seqs or {}).get(rank, 0)
            end = one.last + one.transfer + one.end_shift.get(rank, 0)
            facts = {"op": one.op, "group": one.group, "bytes": one.bytes, "seq": seq}
            drawn.append(comm(one.arrivals[rank] + ahead, end + ahead, **facts))
        trace, classified = draw(*drawn, rank=rank, cpu=cpu)
        told = [
            replace(c, peers=one.peers.get(rank, ()), bandwidth_known=one.known)
            for c, (_, one) in zip(classified.collectives, mine, strict=True)
        ]
        metadata = replace(
            trace.metadata,
            host=(hosts or {}).get(rank),
            base_time_ns=(bases or {}).get(rank, 0),
        )
        classified = replace(classified, collectives=tuple(told))
        found.append(analyze_rank(replace(trace, metadata=metadata), classified, WHOLE))
    return found


def across(results: Sequence[RankResult], **options: object) -> AcrossRanks:
    return across_ranks(results, **options)  # type: ignore[arg-type]


def of_rank(found: AcrossRanks, rank: int) -> list[CollectiveFigures]:
    """A rank's collectives in order of start."""
    (result,) = [one for one in found.results if one.ranks[0].rank == rank]
    return sorted(result.collectives, key=lambda c: c.start_ns)


def waits(found: AcrossRanks, rank: int) -> list[int | None]:
    return [one.skew_wait_ns for one in of_rank(found, rank)]


def costs(found: AcrossRanks) -> dict[int, int]:
    assert found.stragglers is not None
    return {one.rank: one.cost_ns for one in found.stragglers}


def codes(found: AcrossRanks) -> set[str]:
    return {entry.code for entry in found.ledger}
