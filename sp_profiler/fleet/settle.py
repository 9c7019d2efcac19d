"""The last stages: each rank with what the others tell of it, and the reports of ranks merged to one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from sp_profiler.analysis.causes import settle
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.contention import unknown_slowdowns, with_slowdown
from sp_profiler.fleet.collectives import write_parquet
from sp_profiler.fleet.contention import kept_slowdowns
from sp_profiler.fleet.filled import fill_of
from sp_profiler.fleet.merge import RankReport, merge, rank_report
from sp_profiler.fleet.outcome import load_outcome
from sp_profiler.fleet.stages import Stages
from sp_profiler.fleet.work import Work
from sp_profiler.ledger import LedgerEntry

FAN_IN = 16
"""Reports that one task merges."""

_COLLECTIVES = "collectives"


@dataclass(frozen=True)
class SettleTask:
    """One rank. `place`: in the order of ranks; `with_peers`: whether the waits of any rank are known."""

    work: Work
    number: int
    place: int
    file: str
    with_peers: bool
    fingerprint: str
    drawn_ledger: tuple[LedgerEntry, ...] = ()

    @property
    def name(self) -> str:
        return f"settle/{self.number:05d}"


@dataclass(frozen=True)
class Settled:
    """What the run must know at once of a settled rank; its report lies in the work folder."""

    unknown_slowdowns: int


@dataclass(frozen=True)
class MergeTask:
    """The reports at `sources` of the level below, to be merged to the one at `place`."""

    work: Work
    level: int
    place: int
    sources: range
    fingerprint: str

    @property
    def name(self) -> str:
        return f"merge/{self.level}-{self.place:05d}"


def settle_rank(task: SettleTask) -> Settled:
    """Fill in what other ranks tell, divide the exposed time among causes, and keep the rank's report and all
    of its collectives."""
    outcome = load_outcome(task.work, task.number)
    filled = fill_of(task.work, task.number, outcome.result)
    result = settle(filled.result) if task.with_peers else filled.result
    result = with_slowdown(result, kept_slowdowns(task.work, task.fingerprint))
    result = replace(result, ledger=(*result.ledger, *task.drawn_ledger))
    write_parquet(task.work.path(f"{_COLLECTIVES}/{task.file}"), Collectives.of(result.collectives))
    report = rank_report(task.place, outcome.facts, result, across=filled.across)
    task.work.finish(report_name(0, task.place), task.fingerprint, report)
    return Settled(unknown_slowdowns(result))


def report_name(level: int, place: int) -> str:
    """The mark of a report: of one rank at level 0, of up to `FAN_IN`**level above."""
    return f"reports/{level}-{place:05d}"


def merge_some(task: MergeTask) -> int:
    """Merge some reports and keep the one that comes of it; how many they were."""
    below = [report_name(task.level - 1, place) for place in task.sources]
    reports = [_report(task.work, name, task.fingerprint) for name in below]
    task.work.finish(report_name(task.level, task.place), task.fingerprint, merge(reports))
    return len(reports)


def merged(stages: Stages, ranks: int) -> RankReport:
    """The report of all ranks, level by level; the coordinator reads the last one alone."""
    level, count = 0, ranks
    while count > 1 or level == 0:
        below = range(count)
        level, count = level + 1, -(-count // FAN_IN)
        tasks = [
            MergeTask(
                stages.work, level, place, below[place * FAN_IN : (place + 1) * FAN_IN], stages.fingerprint
            )
            for place in range(count)
        ]
        stages.all(merge_some, tasks, int)
    return _report(stages.work, report_name(level, 0), stages.fingerprint)


def _report(work: Work, name: str, fingerprint: str) -> RankReport:
    report = work.finished(name, fingerprint, RankReport)
    if report is None:
        raise OSError(f"{name} is missing in {work.root}")
    return report


def collectives_of(work: Work) -> Path:
    """The folder of the Parquet files."""
    return Path(work.root, _COLLECTIVES)


def drop_others(work: Work, files: Collection[str]) -> None:
    """Remove Parquet files of ranks that are no longer in the run: who reads the folder reads all of it."""
    for place in collectives_of(work).glob("*.parquet"):
        if place.name not in files:
            place.unlink(missing_ok=True)
