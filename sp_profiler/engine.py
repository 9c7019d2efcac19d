"""A run in, a report out: every rank analysed by a pure function, then assembled.

The map over ranks runs in this process. Pools and clusters map `analyze_trace` the same way: sums of
integers give the same report whatever the order and the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp_profiler.analysis.across import AcrossRanks, across_ranks
from sp_profiler.analysis.causes import settle
from sp_profiler.analysis.contention import Baseline, with_contention
from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.results import RankResult
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify import classify
from sp_profiler.errors import InputError
from sp_profiler.report.build import TraceFacts, build
from sp_profiler.report.drawn import draw_timeline
from sp_profiler.report.model import Report, Timeline
from sp_profiler.trace.tables import Trace, TraceSet


@dataclass(frozen=True)
class RankTask:
    """What one worker needs; `draw` asks for the timeline of this rank's representative step too."""

    trace: Trace
    run_json: dict[str, Any] | None
    window: WindowRule
    draw: bool


@dataclass(frozen=True)
class RankOutcome:
    facts: TraceFacts
    result: RankResult
    timeline: Timeline | None


def analyze_trace(task: RankTask) -> RankOutcome:
    """Classify and analyse one trace. Pure: equal tasks give equal outcomes."""
    trace = task.trace
    classified = classify(trace, task.run_json)
    result = analyze_rank(trace, classified, task.window)
    drawn, entries = draw_timeline(trace, classified, result) if task.draw else (None, ())
    facts = TraceFacts(trace.path, trace.metadata, classified.is_cpu_only)
    return RankOutcome(facts, replace(result, ledger=(*result.ledger, *entries)), drawn)


def analyze_run(
    run: TraceSet,
    window: WindowRule | None = None,
    *,
    baseline: Baseline | None = None,
    on_rank: Callable[[str], None] | None = None,
) -> Report:
    """The report of a run.

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
    across = compare_ranks(outcomes, run.run_json)
    results, contention, notes = with_contention(across.results, baseline)
    return build(
        name=run.name,
        path=run.root,
        run_json=run.run_json,
        run_ledger=run.ledger,
        facts=[outcome.facts for outcome in outcomes],
        across=replace(across, results=tuple(results), ledger=(*across.ledger, *notes)),
        contention=contention,
        rule=rule.rule,
        timeline=outcomes[0].timeline,
    )


def compare_ranks(outcomes: Sequence[RankOutcome], run_json: dict[str, Any] | None) -> AcrossRanks:
    """What needs all ranks: waits for each other, clocks, bandwidths, and causes that depend on them."""
    world = (run_json or {}).get("world_size")
    told = [o.facts.metadata.world_size for o in outcomes if o.facts.metadata.world_size is not None]
    size = world if isinstance(world, int) else max(told, default=None)
    across = across_ranks([outcome.result for outcome in outcomes], run_json, size)
    if across.skew_wait_ns is None:
        return across
    return replace(across, results=tuple(settle(result) for result in across.results))
