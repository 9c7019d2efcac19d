"""The first stage: each trace decoded, classified and analysed by itself, its tables in the work folder.

What travels is a `RankSummary`, as large for a trace of 350 MB as for one of 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sp_profiler.analysis.steps import WindowRule
from sp_profiler.engine import RankTask, analyze_trace
from sp_profiler.errors import InputError, SpProfilerError
from sp_profiler.fleet.communities import CommunityPart, split_arrivals
from sp_profiler.fleet.contention import SampleCount, counts_of
from sp_profiler.fleet.outcome import save_outcome
from sp_profiler.fleet.work import Work, fingerprint_of, from_text, replace_whole, to_text
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.model import Timeline
from sp_profiler.trace import places
from sp_profiler.trace.cache import decode_cached
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.load import TraceSummary, content_digest, read_one, summary_of
from sp_profiler.trace.tables import Metadata, Trace

VERSION = 2
"""Part of every fingerprint: to be raised when what the stages write changes."""

_RUN = "run.json"


@dataclass(frozen=True)
class Reading:
    """How traces are read and measured: the same for all ranks of a run."""

    window: WindowRule
    limits: Limits
    cached: bool
    options: str  # the fingerprint of all this, of run.json and of our version


@dataclass(frozen=True)
class SurveyTask:
    """One file. `path` is its name in reports, `place` the same for whoever works elsewhere.

    `number` names its tables. A trace that nobody's rank is known of is looked at, but analysed only when it
    is the run's only one (`alone`) or the checks gave it a rank (`assumed_rank`).
    """

    work: Work
    number: int
    path: str
    place: str
    reading: Reading
    alone: bool = False
    draw: bool = False
    assumed_rank: int | None = None

    @property
    def name(self) -> str:
        return f"survey/{self.number:05d}"


@dataclass(frozen=True)
class RankSummary:
    """What the coordinator holds of a trace. Its metadata leave out what grows with the world.

    `digest` is equal for copies of one trace; `samples` counts its GEMMs of known shape.
    """

    number: int
    trace: TraceSummary
    digest: str
    fingerprint: str
    is_analysed: bool
    host: str | None = None
    base_time_ns: int = 0
    parts: tuple[CommunityPart, ...] = ()
    samples: tuple[SampleCount, ...] = ()
    has_samples: bool = False  # it ran on a device
    shows_context: bool = False
    shows_memory: bool = False

    @property
    def rank(self) -> int | None:
        return self.trace.rank


@dataclass(frozen=True)
class Surveyed:
    """How a survey ended: with a summary, with a file that cannot be read, or with an analysis that refuses
    (for steps that the trace does not hold)."""

    number: int
    summary: RankSummary | None = None
    unreadable: str | None = None
    refused: str | None = None
    was_kept: bool = False


@dataclass(frozen=True)
class Drawn:
    """The timeline of a rank, and what had to be left out of it."""

    timeline: Timeline | None
    ledger: tuple[LedgerEntry, ...]


def keep_run(work: Work, run_json: dict[str, Any] | None) -> None:
    """Put the content of run.json where the tasks find it: it may be large, so that no task carries it."""
    replace_whole(work.path(_RUN), lambda file: file.write(to_text({"run": run_json})))


@lru_cache(maxsize=2)
def _run_json(work: Work, options: str) -> dict[str, Any] | None:
    """The content of run.json; `options` changes when it does."""
    return from_text(work.path(_RUN).read_bytes(), dict)["run"]


def options_of(window: WindowRule, limits: Limits, run_json: dict[str, Any] | None) -> str:
    """The fingerprint of what, besides its own file, the outcome of a rank depends on."""
    from sp_profiler import __version__

    return fingerprint_of(VERSION, __version__, repr(window), repr(limits), run_json)


def survey(task: SurveyTask) -> Surveyed:
    """Analyse one file, unless that was done. Raises what is no fault of the file (a full disk, a defect)."""
    print_of_file = _fingerprint(task)
    if print_of_file is not None:
        kept = task.work.finished(task.name, print_of_file, RankSummary)
        if kept is not None and (kept.is_analysed or not _is_to_analyse(task, kept.rank)):
            return Surveyed(task.number, kept, was_kept=True)
    try:
        trace = _read(task)
    except InputError as error:
        return Surveyed(task.number, unreadable=str(error).replace(task.place, task.path))
    try:
        summary = _analysed(task, trace, print_of_file)
    except SpProfilerError as error:
        return Surveyed(task.number, _summary(task, trace, print_of_file), refused=str(error))
    if print_of_file is not None:
        task.work.finish(task.name, print_of_file, summary)
    return Surveyed(task.number, summary)


@dataclass(frozen=True)
class DrawTask:
    """The timeline of one rank, whose survey had this fingerprint."""

    survey: SurveyTask
    fingerprint: str

    @property
    def name(self) -> str:
        return f"draw/{self.survey.number:05d}"


def draw(of_rank: DrawTask) -> Drawn:
    """The timeline of a rank; it is decoded anew where nobody asked for it when it was surveyed."""
    task = of_rank.survey
    kept = task.work.finished(f"timelines/{task.number:05d}", of_rank.fingerprint, Drawn)
    if kept is not None:
        return kept
    outcome = analyze_trace(_rank_task(task, _read(task), draw=True))
    return Drawn(outcome.timeline, outcome.drawn_ledger)


def _fingerprint(task: SurveyTask) -> str | None:
    """Equal while neither the file nor what else the outcome depends on changes; None: cannot be told."""
    try:
        told = places.fingerprint_of(task.place)
    except OSError:
        return None
    return None if told is None else fingerprint_of(task.path, told, task.assumed_rank, task.reading.options)


def _is_to_analyse(task: SurveyTask, rank: int | None) -> bool:
    return rank is not None or task.alone


def _read(task: SurveyTask) -> Trace:
    """The trace, under the name that reports use. Raises InputError."""
    decode = decode_cached if task.reading.cached else decode_trace
    trace = read_one(task.place, task.reading.limits, decode)
    if task.place != task.path:
        ledger = tuple(replace(entry, file=task.path) for entry in trace.ledger)
        trace = replace(trace, path=task.path, ledger=ledger)
    if task.assumed_rank is not None and trace.rank is None:
        trace = replace(trace, metadata=replace(trace.metadata, rank=task.assumed_rank))
    return trace


def _summary(task: SurveyTask, trace: Trace, fingerprint: str | None) -> RankSummary:
    """What is known before the analysis. Where the file has no `fingerprint`, its content is one."""
    plain = summary_of(trace)
    plain = replace(plain, metadata=_slim(plain.metadata))
    digest = content_digest(trace)
    return RankSummary(task.number, plain, digest, fingerprint or digest, is_analysed=False)


def _slim(metadata: Metadata) -> Metadata:
    """Metadata without what no report tells: rank lists of groups grow with the world, on every rank."""
    names = dict.fromkeys(str(device["name"]) for device in metadata.devices if device.get("name"))
    devices = tuple({"name": name} for name in names)
    return replace(metadata, devices=devices, groups=(), top_level={})


def _rank_task(task: SurveyTask, trace: Trace, *, draw: bool) -> RankTask:
    """Memory events are not followed in a fleet; that a trace holds none is for the analysis to say."""
    run_json = _run_json(task.work, task.reading.options)
    return RankTask(trace, run_json, task.reading.window, draw, memory=not _shows_memory(trace))


def _shows_memory(trace: Trace) -> bool:
    return len(trace.memory.ts_ns) > 0


def _analysed(task: SurveyTask, trace: Trace, fingerprint: str | None) -> RankSummary:
    """Analyse a trace and keep its tables; only a summary of one whose rank is still to be found."""
    summary = _summary(task, trace, fingerprint)
    if not _is_to_analyse(task, trace.rank):
        return summary
    outcome = analyze_trace(_rank_task(task, trace, draw=task.draw))
    facts = replace(outcome.facts, metadata=summary.trace.metadata)
    result = outcome.result
    save_outcome(task.work, task.number, replace(outcome, facts=facts))
    if task.draw:
        drawn = Drawn(outcome.timeline, outcome.drawn_ledger)
        task.work.finish(f"timelines/{task.number:05d}", summary.fingerprint, drawn)
    arrivals = result.arrivals
    return replace(
        summary,
        is_analysed=True,
        host=None if arrivals is None else arrivals.host,
        base_time_ns=0 if arrivals is None else arrivals.base_time_ns,
        parts=split_arrivals(task.work, task.number, arrivals),
        samples=counts_of(result.gemm_samples),
        has_samples=any(one is not None for one in result.gemm_samples),
        shows_context=bool(result.context),
        shows_memory=_shows_memory(trace),
    )
