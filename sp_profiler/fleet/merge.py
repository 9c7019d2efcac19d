"""What a report needs of each rank, small enough to travel, and merged in any order to that of a run.

A `RankReport` is made where a rank's collectives are, and holds no more than some kilobytes of it: figures,
sums by kind, and the collectives worth showing. Merging adds; what could grow with the number of ranks
(collectives, steps, ledger entries, names of groups) is bounded by rules that do not depend on the order
of merging: the worst are kept, and names become coarser once there are too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sp_profiler.analysis.across import AcrossRanks
from sp_profiler.analysis.memory.results import MemoryFigures
from sp_profiler.analysis.results import RankResult
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.build import TraceFacts
from sp_profiler.report.model import Report, Timeline


@dataclass(frozen=True)
class RankReport:
    """Of one trace, or of several merged. Survives JSON by msgspec with its type."""


def rank_report(
    place: int, facts: TraceFacts, result: RankResult, memory: Sequence[MemoryFigures] = ()
) -> RankReport:
    """What a report needs of one trace.

    `place`: that of the trace among those of the report, in the order of ranks, from 0. `result`: filled with
    what the other ranks tell and its causes settled, as `engine.compare_ranks` leaves it.
    """
    raise NotImplementedError


def merge(reports: Sequence[RankReport]) -> RankReport:
    """The reports of several ranks as one. Associative and commutative; needs at least one."""
    raise NotImplementedError


def report_of(
    merged: RankReport,
    *,
    name: str,
    path: str,
    run_json: dict[str, Any] | None,
    run_ledger: Sequence[LedgerEntry],
    across: AcrossRanks,
    rule: Literal["step", "trace"],
    timeline: Timeline | None,
    collectives_at: str,
) -> Report:
    """The report of a run from all its ranks.

    `across`: what was found between ranks, its `results` empty; `ends_apart.figures` are (place, row of the
    trace's collectives). `collectives_at`: the folder that holds all collectives, for the ledger.
    """
    raise NotImplementedError
