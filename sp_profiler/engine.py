"""A run in, a report out: every rank analysed by a pure function, then assembled.

The map over ranks runs in this process, one rank after the other: a trace is decoded, analysed and dropped;
at most the next one is decoded meanwhile. What stays of a rank is a `RankOutcome` (figures, and columns with
a row for each collective), so that memory does not follow the size of the run. Pools and clusters map
`analyze_trace` the same way: sums of integers give the same report whatever the order and the number of
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp_profiler.analysis.across import AcrossRanks, across_ranks
from sp_profiler.analysis.causes import settle
from sp_profiler.analysis.contention import Baseline, with_contention
from sp_profiler.analysis.context_parallel.across import context_parallel
from sp_profiler.analysis.lanes import Lanes, lanes_of_rank
from sp_profiler.analysis.memory.rank import analyze_memory
from sp_profiler.analysis.memory.results import MemoryFigures
from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.results import RankResult
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify import classify
from sp_profiler.errors import InputError, SpProfilerError
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.build import TraceFacts, build
from sp_profiler.report.drawn import draw_timeline
from sp_profiler.report.model import Report, Timeline
from sp_profiler.trace.decode import DEFAULT_LIMITS, decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.load import as_numbered, check_run, read_one
from sp_profiler.trace.metadata import world_size_of
from sp_profiler.trace.tables import RunFiles, Trace, TraceSet

_HELD_BYTES = 1 << 30
"""Text of traces without a rank that are held until all files are known; more are decoded twice."""


@dataclass(frozen=True)
class RankTask:
    """What one worker needs; `draw` asks for the timeline of this rank's representative step too, `lanes` for
    everything that can be drawn of it. Without `memory` its memory events are not followed."""

    trace: Trace
    run_json: dict[str, Any] | None
    window: WindowRule
    draw: bool
    lanes: bool = False
    memory: bool = True


@dataclass(frozen=True)
class RankOutcome:
    """What is left of a trace. `drawn_ledger` belongs to the timeline: it counts where that is shown."""

    facts: TraceFacts
    result: RankResult
    timeline: Timeline | None
    drawn_ledger: tuple[LedgerEntry, ...] = ()
    memory: tuple[MemoryFigures, ...] = ()  # one per device that the trace's memory events tell of
    lanes: Lanes | None = None


def analyze_trace(task: RankTask) -> RankOutcome:
    """Classify and analyse one trace. Pure: equal tasks give equal outcomes."""
    trace = task.trace
    classified = classify(trace, task.run_json)
    result = analyze_rank(trace, classified, task.window)
    drawn, entries = draw_timeline(trace, classified, result) if task.draw else (None, ())
    memory, notes = analyze_memory(trace, classified) if task.memory else ((), ())
    result = replace(result, ledger=(*result.ledger, *notes))
    facts = TraceFacts(trace.path, trace.metadata, classified.is_cpu_only)
    lanes = lanes_of_rank(trace, classified, result) if task.lanes else None
    return RankOutcome(facts, result, drawn, entries, memory, lanes)


def analyze_run(
    run: TraceSet,
    window: WindowRule | None = None,
    *,
    baseline: Baseline | None = None,
    on_rank: Callable[[str], None] | None = None,
) -> Report:
    """The report of a run whose traces are in memory.

    `window`: the default is every profiled step. `baseline`: GEMM durations of another run, for the side that
    this one has too few samples of (`analysis.contention.baseline_of`). `on_rank` is told each file
    when it is done. Raises InputError when the run holds no trace, or a step is asked for that no rank has.
    """
    if not run.traces:
        raise InputError(f"{run.root} holds no trace that could be read")
    rule = WindowRule() if window is None else window
    outcomes: list[RankOutcome] = []
    for index, trace in enumerate(run.traces):
        outcomes.append(analyze_trace(RankTask(trace, run.run_json, rule, draw=index == 0)))
        if on_rank is not None:
            on_rank(trace.path)
    return assemble(run.name, run.root, run.run_json, run.ledger, outcomes, rule, baseline)


def analyze_files(
    files: RunFiles,
    window: WindowRule | None = None,
    *,
    baseline: Baseline | None = None,
    limits: Limits = DEFAULT_LIMITS,
    decode: Callable[[str, Limits], Trace] = decode_trace,
    on_file: Callable[[str], None] | None = None,
    on_rank: Callable[[str], None] | None = None,
    on_loaded: Callable[[Sequence[LedgerEntry]], None] | None = None,
    keep_lanes: Callable[[Lanes], None] | None = None,
) -> Report:
    """The report of a run on disk: `load_run` and `analyze_run` in one go, without all traces in memory.

    Same report and same errors. `on_loaded` is given the ledger of the files when all are read; what it
    raises comes before what the analysis of a rank raised. `keep_lanes` is given the lanes of each rank, as
    large as its trace and not held.
    """
    rule = WindowRule() if window is None else window
    ranks = _Ranks(files, rule, on_rank, keep_lanes)
    run = check_run(
        files,
        ranks.take,
        lambda path: read_one(files.place_of(path), limits, decode),
        limits=limits,
        on_file=on_file,
        decode=decode,
    )
    if on_loaded is not None:
        on_loaded(run.ledger)
    for one in run.traces:
        if one.path not in ranks.outcomes and one.path not in ranks.failures:
            held = ranks.held.pop(one.path, None)
            ranks.analyze(as_numbered(held or read_one(files.place_of(one.path), limits, decode), one))
    for one in run.traces:
        if one.path in ranks.failures:
            raise ranks.failures[one.path]
    outcomes = [ranks.outcomes[one.path] for one in run.traces]
    return assemble(files.name, files.root, files.run_json, run.ledger, outcomes, rule, baseline)


class _Ranks:
    """Analyses the traces of a run as they come; those without a rank wait until all files are known."""

    def __init__(
        self,
        files: RunFiles,
        rule: WindowRule,
        on_rank: Callable[[str], None] | None,
        keep_lanes: Callable[[Lanes], None] | None,
    ) -> None:
        self.outcomes: dict[str, RankOutcome] = {}
        self.held: dict[str, Trace] = {}
        self.failures: dict[str, SpProfilerError] = {}
        self._files = files
        self._rule = rule
        self._on_rank = on_rank
        self._keep_lanes = keep_lanes
        self._held_bytes = 0
        self._first: tuple[bool, int, str] | None = None  # the place of the first rank so far

    def take(self, trace: Trace) -> None:
        if trace.rank is not None or len(self._files.files) == 1:
            self.analyze(trace)
            return
        self._held_bytes += trace.uncompressed_bytes
        if self._held_bytes <= _HELD_BYTES:
            self.held[trace.path] = trace

    def analyze(self, trace: Trace) -> None:
        """Keep the outcome. The timeline is drawn for what may be the first rank of the run."""
        place = (trace.rank is None, trace.rank or 0, trace.path)
        draw = self._first is None or place < self._first
        if draw:
            self._first = place
        task = RankTask(trace, self._files.run_json, self._rule, draw, lanes=self._keep_lanes is not None)
        try:
            outcome = analyze_trace(task)
        except SpProfilerError as error:
            self.failures[trace.path] = error
            return
        if self._keep_lanes is not None and outcome.lanes is not None:
            self._keep_lanes(outcome.lanes)
            outcome = replace(outcome, lanes=None)
        self.outcomes[trace.path] = outcome
        if self._on_rank is not None:
            self._on_rank(trace.path)


def assemble(
    name: str,
    root: str,
    run_json: dict[str, Any] | None,
    ledger: Sequence[LedgerEntry],
    outcomes: Sequence[RankOutcome],
    rule: WindowRule,
    baseline: Baseline | None = None,
) -> Report:
    """The report from the outcomes of all ranks, in order of ranks: the reduction that follows the map."""
    first = outcomes[0]
    drawn = replace(first.result, ledger=(*first.result.ledger, *first.drawn_ledger))
    outcomes = [replace(first, result=drawn), *outcomes[1:]]
    across = compare_ranks(outcomes, run_json)
    results, contention, notes = with_contention(across.results, baseline)
    context, context_notes = context_parallel(across.results, across.joined, run_json)
    return build(
        name=name,
        path=root,
        run_json=run_json,
        run_ledger=ledger,
        facts=[outcome.facts for outcome in outcomes],
        across=replace(across, results=tuple(results), ledger=(*across.ledger, *notes, *context_notes)),
        contention=contention,
        context_parallel=context,
        rule=rule.rule,
        timeline=first.timeline,
        memory=[one for outcome in outcomes for one in outcome.memory],
    )


def compare_ranks(outcomes: Sequence[RankOutcome], run_json: dict[str, Any] | None) -> AcrossRanks:
    """What needs all ranks: waits for each other, clocks, bandwidths, and causes that depend on them."""
    size = world_size_of(run_json, (outcome.facts.metadata for outcome in outcomes))
    across = across_ranks([outcome.result for outcome in outcomes], run_json, size)
    if across.skew_wait_ns is None:
        return across
    return replace(across, results=tuple(settle(result) for result in across.results))
