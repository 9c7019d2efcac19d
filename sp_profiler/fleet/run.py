"""The report of a run too large for one process: survey, checks, stages across ranks, merge.

The same figures as `engine.analyze_files` has. This process holds summaries of ranks, never their tables: its
memory follows the number of ranks, not the size of traces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sp_profiler.analysis.contention import Baseline, notes
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.fleet.across import across_fleet
from sp_profiler.fleet.assembled import report_of
from sp_profiler.fleet.communities import RankIn
from sp_profiler.fleet.contention import compare
from sp_profiler.fleet.engines import Policy, engine_of
from sp_profiler.fleet.folder import opened
from sp_profiler.fleet.ranks import Ranks, Surveyor
from sp_profiler.fleet.settle import Settled, SettleTask, collectives_of, drop_others, merged, settle_rank
from sp_profiler.fleet.stages import Progress, Stages
from sp_profiler.fleet.survey import Drawn, DrawTask, Reading, draw, keep_run, options_of
from sp_profiler.fleet.work import fingerprint_of
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.model import Report
from sp_profiler.trace.decode import DEFAULT_LIMITS
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.metadata import world_size_of
from sp_profiler.trace.tables import RunFiles

_NO_CONTEXT = LedgerEntry(
    "context-not-followed",
    "note",
    "context_parallel is null: ranks show attention over a shared sequence, which is not followed with"
    " --engine; analyze the ranks of interest without it",
)
_NO_MEMORY = LedgerEntry(
    "memory-not-followed",
    "note",
    "figures from memory events are null: they are not followed with --engine; analyze the ranks of interest"
    " without it, or see `sp-profile memory`",
)


@dataclass(frozen=True)
class Options:
    """How a fleet is analysed. `work`: its work folder, None for one in the user's cache folder."""

    engine: str = "in-process"
    work: str | None = None
    retries: int = 1
    task_timeout_s: float | None = None


def silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody wants to see."""


def analyze_fleet(
    files: RunFiles,
    window: WindowRule | None = None,
    options: Options | None = None,
    *,
    baseline: Baseline | None = None,
    limits: Limits = DEFAULT_LIMITS,
    cached: bool = False,
    progress: Progress = silent,
    on_loaded: Callable[[Sequence[LedgerEntry]], None] | None = None,
) -> Report:
    """The report of a run on disk, its ranks analysed on an engine; figures and errors as `analyze_files`.

    A trace whose task raises, dies or exceeds its time on every try is left out, with the ledger entry
    `rank-quarantined` (a loss). `cached`: decoded traces are kept, as `decode_cached` does. Raises also
    UsageError for an engine or a work folder that cannot be used, ClusterError for a cluster that cannot, and
    StageError when a task between ranks is given up.
    """
    how = options or Options()
    rule = WindowRule() if window is None else window
    with engine_of(how.engine, Policy(how.retries)) as engine, opened(how.work, files) as work:
        engine.check(work)
        keep_run(work, files.run_json)
        reading = Reading(rule, limits, cached, options_of(rule, limits, files.run_json))
        surveyor = Surveyor(files, work, engine, reading, how.task_timeout_s, progress)
        found = surveyor.gather()
        if on_loaded is not None:
            on_loaded(found.ledger)
        found = surveyor.complete(found)
        stages = Stages(engine, work, _fingerprint(found, reading, baseline), progress)
        return _reduced(files, rule, stages, found, baseline)


def _fingerprint(found: Ranks, reading: Reading, baseline: Baseline | None) -> str:
    """Of everything that the stages after the survey depend on."""
    lent = None if baseline is None else sorted(map(repr, baseline.items()))
    return fingerprint_of(
        reading.options, lent, [(one.number, one.rank, one.fingerprint) for one in found.ranks]
    )


def _reduced(
    files: RunFiles, rule: WindowRule, stages: Stages, found: Ranks, baseline: Baseline | None
) -> Report:
    """The report of the ranks whose tables are in the work folder."""
    (drawn,) = stages.all(draw, [DrawTask(found.first, found.ranks[0].fingerprint)], Drawn)
    ranks = [RankIn(one.number, one.rank, one.host, one.base_time_ns, one.parts) for one in found.ranks]
    world_size = world_size_of(files.run_json, (one.trace.metadata for one in found.ranks))
    across = across_fleet(stages.work, ranks, stages, run_json=files.run_json, world_size=world_size)
    counts = {one.number: one.samples for one in found.ranks}
    has_devices = any(one.has_samples for one in found.ranks)
    compared = compare(stages, counts, has_devices, baseline)
    settled = _settle(stages, found, drawn, with_peers=across.skew_wait_ns is not None)
    report = merged(stages, len(found.ranks))
    open_ends = compared.ledger
    if compared.figures:
        open_ends = (*notes(compared.figures, sum(one.unknown_slowdowns for one in settled)), *open_ends)
    if any(one.shows_context for one in found.ranks):
        open_ends = (*open_ends, _NO_CONTEXT)
    if any(one.shows_memory for one in found.ranks):
        open_ends = (*open_ends, _NO_MEMORY)
    told = across.with_ranks(report.across)
    return report_of(
        report,
        name=files.name,
        path=files.root,
        run_json=files.run_json,
        run_ledger=found.ledger,
        across=replace(told, ledger=(*told.ledger, *open_ends)),
        contention=compared.figures,
        rule=rule.rule,
        timeline=drawn.timeline,
        collectives_at=str(collectives_of(stages.work)),
    )


def _settle(stages: Stages, found: Ranks, drawn: Drawn, *, with_peers: bool) -> list[Settled]:
    """Settle every rank; afterwards their collectives, and nobody else's, lie in the work folder."""
    width = max(5, len(str(max((one.rank or 0 for one in found.ranks), default=0))))
    tasks = [
        SettleTask(
            stages.work,
            one.number,
            place,
            f"rank-{place if one.rank is None else one.rank:0{width}d}.parquet",
            with_peers,
            stages.fingerprint,
            drawn.ledger if place == 0 else (),
        )
        for place, one in enumerate(found.ranks)
    ]
    settled = stages.all(settle_rank, tasks, Settled)
    drop_others(stages.work, {task.file for task in tasks})
    return settled
