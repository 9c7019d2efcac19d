"""Everything that needs more than one rank: instances, clocks, who waited for whom, bandwidths.

A pure function over the ranks' results, between the analysis of each and the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sp_profiler.analysis.across_notes import notes
from sp_profiler.analysis.anomalies import EndsApart, ends_apart
from sp_profiler.analysis.filled import GroupAcross, GroupSums, fill
from sp_profiler.analysis.joined import Joined, join
from sp_profiler.analysis.results import Clock, RankResult, Straggler, Unmatched
from sp_profiler.analysis.skew import stragglers_of
from sp_profiler.analysis.unmatched import unmatched
from sp_profiler.ledger import LedgerEntry


@dataclass(frozen=True)
class AcrossRanks:
    """The ranks' results with their collectives filled in, and what was found between them.

    `clocks` and `stragglers` are None where there is only one rank.
    """

    results: tuple[RankResult, ...]
    clocks: list[Clock] | None
    unmatched: list[Unmatched]
    stragglers: list[Straggler] | None
    groups: dict[str, GroupAcross]
    skew_wait_ns: int | None  # all waits inside the windows; None where no collective was matched
    tied_ns: int  # the part waited for ranks that arrived together: charged to nobody
    ends_apart: EndsApart | None
    ledger: tuple[LedgerEntry, ...]
    # What was matched, row by row; None where no rank communicates.
    joined: Joined | None = field(default=None, compare=False, repr=False)


def across_ranks(
    results: Sequence[RankResult], run_json: Mapping[str, Any] | None = None, world_size: int | None = None
) -> AcrossRanks:
    """Match, align and measure. Results without arrivals (no activity) take no part."""
    ranks = [result.ranks[0].rank if result.ranks else None for result in results]
    taking = [i for i, result in enumerate(results) if result.arrivals is not None and len(result.arrivals)]
    if not taking:
        return AcrossRanks(tuple(results), None, [], None, {}, None, 0, None, ())
    run = join(results, taking, ranks, run_json, world_size)
    several = len(set(ranks)) > 1
    filled = list(results)
    groups = GroupSums()
    for place, i in enumerate(taking):
        filled[i] = fill(results[i], run, place, groups)
    waited = run.skew.wait_ns[run.chosen & (run.skew.wait_ns > 0)]
    matched = bool((run.chosen & (run.skew.wait_ns >= 0)).any())
    labels = [key.label for key in run.ends.keys]
    late = stragglers_of(run.skew, run.chosen, run.member_rank, labels, run.key_of_row)
    return AcrossRanks(
        results=tuple(filled),
        clocks=list(run.clocks.clocks) if several else None,
        unmatched=unmatched(run),
        stragglers=late if several else None,
        groups=groups.result(),
        skew_wait_ns=int(waited.sum()) if matched else None,
        tied_ns=int(run.skew.tied_ns[run.chosen].sum()),
        ends_apart=ends_apart(run),
        ledger=notes(run, filled),
        joined=run,
    )
