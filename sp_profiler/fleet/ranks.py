"""Which ranks a run has: every file surveyed, then all checked against each other, as `trace.load` does."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sp_profiler.errors import InputError, UsageError
from sp_profiler.fleet.engines import Done, Engine, Failed
from sp_profiler.fleet.folder import numbered, place_of
from sp_profiler.fleet.stages import Progress
from sp_profiler.fleet.survey import RankSummary, Reading, Surveyed, SurveyTask, survey
from sp_profiler.fleet.work import Work
from sp_profiler.ledger import LedgerEntry
from sp_profiler.trace.load import RunChecks, TraceSummary
from sp_profiler.trace.metadata import rank_from_name
from sp_profiler.trace.tables import RunFiles

QUARANTINED = "rank-quarantined"


@dataclass(frozen=True)
class Ranks:
    """The ranks of a run in their order, and what is to be said of the run and its files.

    `first`: the task of the first rank, whose timeline is drawn.
    """

    ranks: tuple[RankSummary, ...]
    ledger: tuple[LedgerEntry, ...]
    first: SurveyTask


class Surveyor:
    """Surveys the files of one run: `gather`, and, when the files are accepted, `complete`."""

    def __init__(
        self,
        files: RunFiles,
        work: Work,
        engine: Engine,
        reading: Reading,
        timeout_s: float | None,
        progress: Progress,
    ) -> None:
        self._files = files
        self._engine = engine
        self._timeout_s = timeout_s
        self._progress = progress
        self._refused: dict[str, str] = {}
        numbers = numbered(work, files)
        likely = min(files.files, key=_likely_first)
        self._tasks = {
            path: SurveyTask(
                work,
                numbers[path],
                path,
                place_of(path),
                reading,
                alone=len(files.files) == 1,
                draw=path == likely,
            )
            for path in files.files
        }

    def gather(self) -> Ranks:
        """Survey all files and check them. Raises InputError as `load_run` does."""
        ends = {end.task.path: end for end in self._run("survey", self._tasks.values())}
        checks = RunChecks(self._files)
        summaries: dict[str, RankSummary] = {}
        for path in self._files.files:
            summary = self._summary_of(ends.pop(path), checks)
            if summary is not None and checks.add(summary.trace, _SameDigest(summary.digest, summaries)):
                summaries[path] = summary
        run = checks.finish()
        ranks = tuple(replace(summaries[one.path], trace=one) for one in run.traces)
        return Ranks(ranks, run.ledger, self._tasks[ranks[0].trace.path])

    def complete(self, found: Ranks) -> Ranks:
        """Analyse the traces whose rank is known only now. Raises UsageError for what an analysis refused."""
        late = {
            one.trace.path: replace(self._tasks[one.trace.path], assumed_rank=one.rank)
            for one in found.ranks
            if not one.is_analysed and one.trace.path not in self._refused
        }
        self._tasks |= late
        done: dict[str, RankSummary] = {}
        lost: list[LedgerEntry] = []
        for end in self._run("numbered", late.values()):
            surveyed = end.value if isinstance(end, Done) else None
            if surveyed is not None and surveyed.refused is not None:
                self._refused[end.task.path] = surveyed.refused
            elif surveyed is not None and surveyed.summary is not None:
                done[end.task.path] = surveyed.summary
            else:
                lost.append(_given_up(end))
        for one in found.ranks:
            if one.trace.path in self._refused:
                raise UsageError(self._refused[one.trace.path])
        ranks = tuple(
            replace(done[path], trace=one.trace) if (path := one.trace.path) in late else one
            for one in found.ranks
            if one.trace.path not in late or one.trace.path in done
        )
        if not ranks:
            raise InputError(lost[0].text)
        return Ranks(ranks, (*lost, *found.ledger), self._tasks[ranks[0].trace.path])

    def _run(
        self, stage: str, tasks: Iterable[SurveyTask]
    ) -> Iterator[Done[SurveyTask, Surveyed] | Failed[SurveyTask]]:
        listed = list(tasks)
        if listed:
            self._progress(stage, 0, len(listed))
        for count, end in enumerate(self._engine.run(survey, listed, timeout_s=self._timeout_s), start=1):
            self._progress(stage, count, len(listed))
            yield Done(end.task, _shared(end.value)) if isinstance(end, Done) else end

    def _summary_of(
        self, end: Done[SurveyTask, Surveyed] | Failed[SurveyTask], checks: RunChecks
    ) -> RankSummary | None:
        """The summary that a survey ended with; what else it ended with is entered."""
        path = end.task.path
        if not isinstance(end, Done):
            entry = _given_up(end)
            checks.unreadable(path, end.error or InputError(entry.text), entry.code)
            return None
        if end.value.unreadable is not None:
            checks.unreadable(path, InputError(end.value.unreadable))
            return None
        if end.value.refused is not None:
            self._refused[path] = end.value.refused
        return end.value.summary


def _given_up(end: Done[SurveyTask, Surveyed] | Failed[SurveyTask]) -> LedgerEntry:
    """The entry of a file that is left out."""
    path = end.task.path
    if isinstance(end, Done):
        return LedgerEntry("unreadable-file", "loss", end.value.unreadable or "", file=path)
    tries = "once" if end.tries == 1 else f"{end.tries} times"
    text = f"{path} is left out: it was tried {tries}, and the last time {end.reason}"
    return LedgerEntry(QUARANTINED, "loss", text, file=path)


def _likely_first(path: str) -> tuple[bool, int, str]:
    """Orders files as their ranks probably are."""
    rank = rank_from_name(path)
    return (rank is None, rank or 0, path)


@dataclass(frozen=True)
class _SameDigest:
    """Tells whether an earlier trace is one of which this is a copy."""

    digest: str
    earlier: dict[str, RankSummary]

    def __call__(self, other: TraceSummary) -> bool:
        return self.earlier[other.path].digest == self.digest


def _shared(surveyed: Surveyed) -> Surveyed:
    """The same with one copy of each text that the members of a group repeat."""
    summary = surveyed.summary
    if summary is None:
        return surveyed
    parts = tuple(replace(part, community=sys.intern(part.community)) for part in summary.parts)
    return replace(surveyed, summary=replace(summary, parts=parts))
