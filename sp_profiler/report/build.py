"""The results of all ranks become one `Report`: merged, summed, said in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal, TypeVar

import numpy as np

from sp_profiler import __version__
from sp_profiler.analysis.across import AcrossRanks
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Numbers
from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.analysis.kinds import CollectiveKinds
from sp_profiler.analysis.memory.results import MemoryFigures
from sp_profiler.analysis.results import (
    ContentionFigures,
    Figures,
    GemmFigures,
    GroupFigures,
    RankFigures,
    RankResult,
    StepFigures,
)
from sp_profiler.analysis.results import Coverage as RankCoverage
from sp_profiler.analysis.totals import total, total_coverage
from sp_profiler.ledger import Ledger, LedgerEntry
from sp_profiler.report.context_sentences import sentences as context_sentences
from sp_profiler.report.findings import EndsDisagree, Facts, findings
from sp_profiler.report.format import counted, rank_list
from sp_profiler.report.memory import NOT_RECORDED, of_run
from sp_profiler.report.memory_sentences import sentences as memory_sentences
from sp_profiler.report.model import Coverage, Fleet, Report, Run, Timeline, Tool, Window
from sp_profiler.report.sentences import Basis, sentences
from sp_profiler.trace.metadata import world_size_of
from sp_profiler.trace.tables import Metadata

AnyFigures = TypeVar("AnyFigures", bound=Figures)


@dataclass(frozen=True)
class TraceFacts:
    """What a report tells of a trace besides its figures."""

    path: str
    metadata: Metadata
    is_cpu_only: bool


@dataclass(frozen=True)
class Gathered:
    """What a report needs of all ranks, in order of ranks.

    `kinds` are of all collectives, `collectives` those that the report lists; both are numbered through the
    run, trace by trace: `first_ids` are the numbers of the first of each. `windows`: what means are taken
    over. `ledgers`: those of the traces. `by_name`: fields of the totals that `ranks` do not add up to.
    """

    facts: Sequence[TraceFacts]
    ranks: Sequence[RankFigures]
    steps: Sequence[StepFigures]
    numbers: Sequence[int]  # of the profiled steps
    windows: int
    collectives: Collectives
    kinds: CollectiveKinds
    first_ids: Sequence[int]
    groups: Sequence[GroupFigures]  # without what the comparison of ranks tells
    gemms: list[GemmFigures]
    coverage: RankCoverage
    ledgers: Sequence[Sequence[LedgerEntry]]
    by_name: Mapping[str, dict[str, int]] = field(default_factory=dict)
    fleet: Fleet | None = None


def gathered(facts: Sequence[TraceFacts], results: Sequence[RankResult]) -> Gathered:
    """Of results in memory."""
    steps = [step for result in results for step in result.steps]
    collectives = Collectives.joined(result.collectives for result in results)
    collectives = collectives.changed(id=Numbers(np.arange(len(collectives))))
    return Gathered(
        facts=facts,
        ranks=[rank for result in results for rank in result.ranks],
        steps=steps,
        numbers=sorted({step.step for step in steps if step.step is not None}),
        windows=len(steps) or 1,
        collectives=collectives,
        kinds=CollectiveKinds.of(collectives),
        first_ids=list(accumulate((len(result.collectives) for result in results), initial=0)),
        groups=merge_groups(group for result in results for group in result.groups),
        gemms=merge_gemms(gemm for result in results for gemm in result.gemms),
        coverage=total_coverage([result.coverage for result in results]),
        ledgers=[result.ledger for result in results],
    )


def build(
    *,
    name: str,
    path: str,
    run_json: dict[str, Any] | None,
    run_ledger: Sequence[LedgerEntry],
    facts: Sequence[TraceFacts],
    across: AcrossRanks,
    contention: list[ContentionFigures] | None = None,
    context_parallel: ContextParallel | None = None,
    rule: Literal["step", "trace"],
    timeline: Timeline | None,
    memory: Sequence[MemoryFigures] = (),
) -> Report:
    """Assemble the report of a run. `facts` and `across.results` go together, one per trace, by rank.

    `memory`: the figures of all devices of all ranks, empty where no trace holds memory events.
    """
    return report_of(
        gathered(facts, across.results),
        name=name,
        path=path,
        run_json=run_json,
        run_ledger=run_ledger,
        across=across,
        contention=contention,
        context_parallel=context_parallel,
        rule=rule,
        timeline=timeline,
        memory=memory,
    )


def report_of(
    run_of: Gathered,
    *,
    name: str,
    path: str,
    run_json: dict[str, Any] | None,
    run_ledger: Sequence[LedgerEntry],
    across: AcrossRanks,
    contention: list[ContentionFigures] | None,
    context_parallel: ContextParallel | None,
    rule: Literal["step", "trace"],
    timeline: Timeline | None,
    memory: Sequence[MemoryFigures],
) -> Report:
    """The report from what all ranks told (`across.results` are not looked at)."""
    # A file without step ranges has one window per device, the whole trace, even under the rule "step".
    used: Literal["step", "trace"] = "step" if rule == "step" and run_of.numbers else "trace"
    whole = run_of.coverage
    coverage = Coverage(whole.gemm_role.ratio, whole.purpose.ratio, whole.comm_metadata.ratio)
    ranks = [_unknown_by_coverage(rank, coverage) for rank in run_of.ranks]
    steps = [_unknown_by_coverage(step, coverage) for step in run_of.steps]
    totals = replace(total(ranks), **run_of.by_name)
    is_cpu = bool(run_of.facts) and all(fact.is_cpu_only for fact in run_of.facts)
    run = _run(name, path, run_json, run_of.facts, is_cpu)
    measured = run_of.kinds.where(lambda kind: kind.is_inside)
    kept = of_run(memory, run_json, run_of.collectives, run_of.gemms, run_of.windows, is_cpu=is_cpu)
    basis = Basis(
        totals,
        ranks,
        measured,
        len(run_of.numbers) if used == "step" else 0,
        run_of.windows,
        is_cpu,
        across.skew_wait_ns,
        across.stragglers or (),
    )
    first, *others = sentences(basis)
    return Report(
        tool=Tool("sp-profiler", __version__),
        environment=_environment(run_json, run_of.facts),
        run=run,
        window=Window(used, list(run_of.numbers)),
        totals=totals,
        ranks=ranks,
        steps=steps,
        collectives=run_of.collectives,
        groups=[
            replace(group, **vars(across.groups[group.group])) if group.group in across.groups else group
            for group in run_of.groups
        ],
        gemms=run_of.gemms,
        coverage=coverage,
        summary=[
            first,
            *context_sentences(context_parallel, basis),
            *others,
            *(memory_sentences(kept.memory) if kept.memory is not None else ()),
        ],
        findings=findings(
            Facts(
                totals,
                measured,
                run_of.windows,
                is_cpu,
                run.workload,
                _variables(run_json),
                _capability(run_json),
                by_step=used == "step",
                command=_command(run_json),
                contention=contention,
                stragglers=across.stragglers,
                ends_disagree=_ends_disagree(across, run_of.first_ids),
                memory=kept.memory,
                context_parallel=context_parallel,
            )
        ),
        data_quality=_ledger(
            run_ledger,
            run_of.ledgers,
            [*across.ledger, *_said_unknown(totals), *kept.ledger],
            run,
            is_cpu,
            kept.memory is not None,
        ),
        contention=contention,
        context_parallel=context_parallel,
        clocks=across.clocks,
        unmatched=across.unmatched,
        stragglers=across.stragglers,
        timeline=timeline,
        memory=kept.memory,
        fleet=run_of.fleet,
    )


def _run(
    name: str, path: str, run_json: dict[str, Any] | None, facts: Sequence[TraceFacts], is_cpu: bool
) -> Run:
    told = run_json or {}
    present = [fact.metadata.rank for fact in facts]
    world = world_size_of(run_json, (fact.metadata for fact in facts))
    backend = told.get("backend") or next((f.metadata.backend for f in facts if f.metadata.backend), None)
    workload = told.get("workload")
    return Run(
        name=name,
        path=path,
        world_size=world,
        ranks=present,
        ranks_missing=sorted(set(range(world or 0)) - {rank for rank in present if rank is not None}),
        backend=backend,
        workload=workload if isinstance(workload, dict) else None,
        device_type="cpu" if is_cpu else "cuda",
    )


def _environment(run_json: dict[str, Any] | None, facts: Sequence[TraceFacts]) -> dict[str, Any]:
    """Where and how the run was recorded: run.json's word, else what the trace files tell."""
    if run_json is not None:
        told = ("created", "command", "versions", "hardware", "hosts", "environment", "set_by_tool")
        found = {key: run_json[key] for key in told if run_json.get(key) not in (None, [], {})}
        return {"source": "run.json"} | found
    first = facts[0].metadata if facts else None
    if first is None:
        return {"source": None}
    hosts: dict[str, list[int | None]] = {}
    for fact in facts:
        if fact.metadata.host:
            hosts.setdefault(fact.metadata.host, []).append(fact.metadata.rank)
    devices = sorted({str(d["name"]) for f in facts for d in f.metadata.devices if d.get("name")})
    out: dict[str, Any] = {"source": "trace", "schema_version": first.schema_version}
    out["hardware"] = [{"name": name} for name in devices]
    out["hosts"] = [{"host": host, "ranks": ranks} for host, ranks in hosts.items()]
    return {key: value for key, value in out.items() if value not in (None, [], {})}


def _variables(run_json: dict[str, Any] | None) -> dict[str, Any] | None:
    """Environment variables as the ranks saw them: what was recorded, with what the tool set."""
    if run_json is None or not isinstance(run_json.get("environment"), dict):
        return None
    return run_json["environment"] | (run_json.get("set_by_tool") or {})


def _command(run_json: dict[str, Any] | None) -> list[str] | None:
    """The words of the command that made the run."""
    command = (run_json or {}).get("command")
    return [str(word) for word in command] if isinstance(command, list) else None


def _ends_disagree(across: AcrossRanks, first_ids: Sequence[int]) -> EndsDisagree | None:
    """The collectives whose ends disagree, by the numbers that they have in the report."""
    found = across.ends_apart
    if found is None:
        return None
    ids = sorted(first_ids[result] + row for result, row in found.figures)
    return EndsDisagree(found.collectives, found.largest_ns, found.groups, found.ranks, ids)


def _capability(run_json: dict[str, Any] | None) -> int | None:
    """The lowest major compute capability of the run's NVIDIA devices, None when nothing tells it."""
    told = run_json or {}
    if (told.get("versions") or {}).get("hip"):
        return None
    pairs = [d.get("capability") for d in told.get("hardware") or [] if isinstance(d, dict)]
    return min((int(pair[0]) for pair in pairs if pair), default=None)


def merge_groups(groups: Iterable[GroupFigures]) -> list[GroupFigures]:
    """Each process group once, its figures summed over ranks. Bytes unknown on one rank: unknown."""
    merged: dict[str, GroupFigures] = {}
    for new in groups:
        old = merged.get(new.group)
        if old is None:
            merged[new.group] = new
            continue
        merged[new.group] = replace(
            old,
            ranks=old.ranks or new.ranks,
            size=old.size if old.size is not None else new.size,
            backend=old.backend or new.backend,
            collectives=old.collectives + new.collectives,
            bytes=None if old.bytes is None or new.bytes is None else old.bytes + new.bytes,
            comm_ns=old.comm_ns + new.comm_ns,
            overlapped_ns=old.overlapped_ns + new.overlapped_ns,
            exposed_share_ns=old.exposed_share_ns + new.exposed_share_ns,
        )
    return sorted(merged.values(), key=lambda g: (-g.exposed_share_ns, -g.comm_ns, g.group))


def merge_gemms(gemms: Iterable[GemmFigures]) -> list[GemmFigures]:
    """GEMMs of equal name, shape, dtype and role, summed over ranks; TFLOP/s weighted by time."""
    merged: dict[tuple[str, str | None, str | None, str], GemmFigures] = {}
    for new in gemms:
        key = (new.name, new.shape, new.dtype, new.role)
        old = merged.get(key)
        merged[key] = new if old is None else _add_gemms(old, new)
    return sorted(merged.values(), key=lambda g: (-g.total_ns, g.name, g.shape or "", g.dtype or "", g.role))


def _add_gemms(one: GemmFigures, two: GemmFigures) -> GemmFigures:
    total_ns = one.total_ns + two.total_ns
    tflops = _weighted((one.tflops, one.total_ns), (two.tflops, two.total_ns))
    peak = _weighted((one.share_of_peak, one.total_ns), (two.share_of_peak, two.total_ns))
    return replace(one, count=one.count + two.count, total_ns=total_ns, tflops=tflops, share_of_peak=peak)


def _weighted(*parts: tuple[float | None, int]) -> float | None:
    """The mean weighted by time; None where one is not known."""
    known = [(value, ns) for value, ns in parts if value is not None]
    whole = sum(ns for _, ns in known)
    return sum(value * ns for value, ns in known) / whole if whole and len(known) == len(parts) else None


def _unknown_by_coverage(figures: AnyFigures, coverage: Coverage) -> AnyFigures:
    """The figures, null where nobody could look: 0 would say that somebody did.

    dgrad communication where the purpose of no collective is known, and what wgrad hides of it also where the
    role of no GEMM is.
    """
    if not figures.comm_ns:
        return figures
    nobody_knows_wgrad = (
        coverage.gemm_role_known_ratio == 0 and bool(figures.overlapped_ns) and bool(figures.dgrad_comm_ns)
    )
    if coverage.purpose_known_ratio == 0:
        return replace(figures, dgrad_comm_ns=None, wgrad_overlapped_ns=None, wgrad_overlap_ratio=None)
    if nobody_knows_wgrad:
        return replace(figures, wgrad_overlapped_ns=None, wgrad_overlap_ratio=None)
    return figures


def _said_unknown(totals: Figures) -> list[LedgerEntry]:
    """Why the figures of `_unknown_by_coverage` are null."""
    if not totals.comm_ns or totals.wgrad_overlapped_ns is not None:
        return []
    why = (
        "dgrad_comm and wgrad_overlapped are null: the purpose of no collective is known"
        if totals.dgrad_comm_ns is None
        else "wgrad_overlapped is null: the role of no GEMM is known"
    )
    return [LedgerEntry("wgrad-overlap-unknown", "note", why)]


def _ledger(
    run_ledger: Sequence[LedgerEntry],
    of_traces: Sequence[Sequence[LedgerEntry]],
    across: Sequence[LedgerEntry],
    run: Run,
    is_cpu: bool,
    has_memory: bool,
) -> list[LedgerEntry]:
    """All entries, each once: a rank's ledger may repeat what its file's already told."""
    ledger = Ledger()
    told = set(run_ledger)
    ledger.extend(run_ledger)
    for entries in of_traces:
        ledger.extend(_of_run(entry) for entry in entries if entry not in told)
    ledger.extend(across)
    codes = {entry.code for entry in ledger.entries}
    if run.ranks_missing and "ranks-missing" not in codes:
        text = (
            f"{counted(len(run.ranks_missing), 'rank')} of {run.world_size} "
            f"{'is' if len(run.ranks_missing) == 1 else 'are'} missing ({rank_list(run.ranks_missing)}): "
            "totals stand for the ranks that are here."
        )
        ledger.add("ranks-missing", "note", text, count=len(run.ranks_missing))
    if not has_memory and not codes & {"no-memory-events", "memory-not-followed"}:
        ledger.add("memory-not-recorded", "note", NOT_RECORDED)
    if is_cpu:
        ledger.add("cpu-run", "note", _CPU_NOTE)
    ledger.add("not-analysed-critical-path", "note", "critical_path is null: ask for it with --critical-path")
    return [replace(e, count=1) if e.code.startswith("not-analysed") else e for e in ledger.entries]


def _of_run(entry: LedgerEntry) -> LedgerEntry:
    """What no analysis looked at is said once, not of every file."""
    return replace(entry, file=None) if entry.code.startswith("not-analysed") else entry


_CPU_NOTE = (
    "a CPU run: where ranks share the cores overlap does not shorten the step; "
    "this report speaks of structure, not of speed"
)
