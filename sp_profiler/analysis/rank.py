"""Everything that concerns one rank: the analyses of one trace put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sp_profiler.analysis.arrivals import Arrivals, arrivals_of
from sp_profiler.analysis.causes import explain, settle
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.collectives import (
    collective_coverage,
    collective_figures,
    group_figures,
)
from sp_profiler.analysis.contention import gemm_samples
from sp_profiler.analysis.context_parallel.families import DeviceContext
from sp_profiler.analysis.context_parallel.rank import context_of, with_all_peers
from sp_profiler.analysis.exposure import (
    collective_keys,
    device_collectives,
    exposed_by,
    exposed_union_by,
    exposure,
)
from sp_profiler.analysis.gemms import gemm_figures
from sp_profiler.analysis.hiding import (
    DgradUnderWgrad,
    WindowHiding,
    dgrad_under_wgrad,
    hiding_by_window,
    step_ns_if_all_hidden,
)
from sp_profiler.analysis.hostbound import host_bound_ns
from sp_profiler.analysis.overlap import Overlap, device_sets, overlap
from sp_profiler.analysis.partners import find_partners
from sp_profiler.analysis.results import (
    Coverage,
    ExposedStretches,
    Figures,
    GemmFigures,
    GemmSamples,
    GroupFigures,
    RankFigures,
    RankResult,
    StepFigures,
)
from sp_profiler.analysis.steps import (
    WindowRule,
    Windows,
    check_rule,
    device_windows,
    left_out,
    profiled_steps,
)
from sp_profiler.analysis.totals import ratio, sum_of_windows, total_coverage
from sp_profiler.classify.tables import Classified, Role
from sp_profiler.ledger import Ledger, Severity
from sp_profiler.trace.tables import NONE, Int64, Trace

_NO_SPEED_ON_CPU: tuple[str, Severity, str] = (
    "cpu-run-no-speed",
    "note",
    "contention, host-bound time, algbw/busbw and TFLOP/s are null: on a CPU, ranks, gloo and GEMMs share "
    "the cores",
)


def analyze_rank(trace: Trace, classified: Classified, window: WindowRule) -> RankResult:
    """All figures of one trace (DESIGN section 4), each device by itself.

    Raises UsageError when the rule asks for steps that the trace does not hold, and IdentityError when
    figures that must add up do not (a defect of ours).
    """
    check_rule(window, profiled_steps(classified), trace.path)
    ledger = Ledger(trace.path)
    devices = np.unique(classified.activities.device).tolist()
    results = [_analyze_device(trace, classified, device, window, ledger) for device in devices]
    if not results:
        _say_nothing_ran(classified, ledger)
    coverage = total_coverage([result.coverage for result in results])
    _say_what_is_null(results, classified, ledger)
    whole = RankResult(
        ranks=tuple(result.rank for result in results) or (_nothing(trace, classified),),
        steps=tuple(step for result in results for step in result.steps),
        collectives=Collectives.joined(result.collectives for result in results),
        groups=tuple(one for result in results for one in result.groups),
        gemms=tuple(one for result in results for one in result.gemms),
        gemm_role_known_ratio=coverage.gemm_role.ratio,
        purpose_known_ratio=coverage.purpose.ratio,
        comm_metadata_ratio=coverage.comm_metadata.ratio,
        ledger=ledger.entries,
        coverage=coverage,
        stretches=tuple(result.stretches for result in results),
        gemm_samples=tuple(result.gemm_samples for result in results),
        arrivals=_arrivals(trace, classified, results) if results else None,
        context=tuple(result.context for result in results if result.context is not None),
    )
    return settle(whole)


def _arrivals(trace: Trace, classified: Classified, results: Sequence[_DeviceResult]) -> Arrivals:
    """All collectives of the trace, with the row that each has among the result's."""
    classified = with_all_peers(classified, [result.context for result in results])
    numbers = np.concatenate([result.collectives.numbers("id").values for result in results])
    figure = np.full(len(classified.collectives), NONE, np.int64)
    figure[numbers] = np.arange(len(numbers))
    metadata = trace.metadata
    return arrivals_of(classified, figure, trace.rank, metadata.host, metadata.base_time_ns)


@dataclass(frozen=True)
class _DeviceResult:
    rank: RankFigures
    steps: list[StepFigures]
    collectives: Collectives
    groups: list[GroupFigures]
    gemms: list[GemmFigures]
    coverage: Coverage
    stretches: ExposedStretches
    gemm_samples: GemmSamples | None
    context: DeviceContext | None


def _analyze_device(
    trace: Trace, classified: Classified, device: int, rule: WindowRule, ledger: Ledger
) -> _DeviceResult:
    activities = classified.activities
    rows = np.flatnonzero(activities.device == device)
    windows = device_windows(trace, classified, rows, rule, ledger)
    sets = device_sets(activities, rows)
    collectives = device_collectives(classified, device)
    exposed = exposure(collectives, sets, windows)
    keys = collective_keys(collectives, activities)
    partners = find_partners(classified, rows, collectives, exposed, windows)
    figures = _window_figures(
        overlap(sets, windows),
        {f"exposed_by_{name}_ns": exposed_by(one, exposed, len(windows)) for name, one in keys.items()},
        exposed_union_by(keys["group"], collectives, sets.compute, windows),
        hiding_by_window(partners, collectives, exposed, keys["purpose"], windows),
        dgrad_under_wgrad(activities, rows, collectives, windows),
        host_bound_ns(classified, rows, sets, windows),
    )
    gemms, gemm_role = gemm_figures(trace, classified, rows, windows)
    purpose, metadata = collective_coverage(collectives, exposed)
    return _DeviceResult(
        rank=RankFigures(
            **_columns(sum_of_windows(figures)),
            rank=trace.rank,
            device=device,
            device_type=_device_type(classified),
            file=trace.path,
            cpu_comm_ns=classified.cpu_comm_ns,
            left_out=left_out(activities, rows, windows),
        ),
        steps=_step_figures(trace, device, windows, figures),
        collectives=collective_figures(trace, classified, device, collectives, exposed, partners),
        groups=group_figures(collectives, exposed, keys["group"], sets.compute, windows),
        gemms=gemms,
        coverage=Coverage(gemm_role, purpose, metadata),
        stretches=explain(classified, rows, collectives, exposed, sets, partners),
        gemm_samples=gemm_samples(trace, classified, rows, windows),
        context=context_of(trace, classified, device, rows, collectives, exposed),
    )


def _window_figures(
    measured: Overlap,
    exposed: dict[str, list[dict[str, int]]],
    exposed_union_by_group: list[dict[str, int]],
    hidden: list[WindowHiding],
    dgrad: DgradUnderWgrad,
    host_bound: Int64 | None,
) -> list[Figures]:
    """One `Figures` for each window, from the columns of the analyses."""
    times: dict[str, Any] = {field.name: getattr(measured, field.name).tolist() for field in fields(Overlap)}
    by_role = times.pop("overlapped_by_role_ns")
    roles = [role.name.lower() for role in Role]
    dgrad_comm = dgrad.dgrad_comm_ns.tolist()
    wgrad = dgrad.wgrad_overlapped_ns
    wgrad_overlapped = [None] * len(dgrad_comm) if wgrad is None else wgrad.tolist()
    return [
        Figures(
            **_row(times, w),
            **_row(exposed, w),
            overlap_ratio=ratio(times["overlapped_ns"][w], times["comm_ns"][w]),
            overlapped_by_role_ns=dict(zip(roles, by_role[w], strict=True)),
            exposed_by_cause_ns=None,  # `settle` fills it
            host_bound_ns=None if host_bound is None else int(host_bound[w]),
            exposed_union_by_group_ns=exposed_union_by_group[w],
            dgrad_comm_ns=dgrad_comm[w],
            wgrad_overlapped_ns=wgrad_overlapped[w],
            wgrad_overlap_ratio=ratio(wgrad_overlapped[w], dgrad_comm[w]),
            partner_hidden_ns=one.all.partner_hidden_ns,
            partner_hideable_ns=one.all.partner_hideable_ns,
            hidden_of_hideable=one.all.hidden_of_hideable,
            partner_unknown=one.partner_unknown,
            hiding_by_purpose=one.by_purpose,
            step_ns_if_all_hidden=step_ns_if_all_hidden(
                times["window_ns"][w], times["exposed_ns"][w], one.all
            ),
        )
        for w, one in enumerate(hidden)
    ]


def _step_figures(
    trace: Trace, device: int, windows: Windows, figures: Sequence[Figures]
) -> list[StepFigures]:
    borders = zip(windows.step, windows.start_ns.tolist(), windows.end_ns.tolist(), figures, strict=True)
    return [
        StepFigures(**_columns(one), rank=trace.rank, device=device, step=step, start_ns=start, end_ns=end)
        for step, start, end, one in borders
    ]


def _row(columns: Mapping[str, Any], w: int) -> dict[str, Any]:
    return {name: column[w] for name, column in columns.items()}


def _columns(figures: Figures) -> dict[str, Any]:
    return {field.name: getattr(figures, field.name) for field in fields(Figures)}


def _device_type(classified: Classified) -> str:
    return "cpu" if classified.is_cpu_only else "cuda"


def _nothing(trace: Trace, classified: Classified) -> RankFigures:
    """A rank without any activity: everything null, because nothing could be looked at."""
    return RankFigures(
        **_columns(sum_of_windows([])),
        rank=trace.rank,
        device_type=_device_type(classified),
        file=trace.path,
        cpu_comm_ns=classified.cpu_comm_ns,
    )


def _say_nothing_ran(classified: Classified, ledger: Ledger) -> None:
    if classified.is_cpu_only:
        text = "neither an operator nor a gloo range: nothing to measure, all figures are null"
        ledger.add("no-cpu-activity", "note", text)
    else:
        text = "no event of a device (kernel, copy, memset): nothing to measure, all figures are null"
        ledger.add("no-device-activity", "loss", text)


def _say_what_is_null(results: Sequence[_DeviceResult], classified: Classified, ledger: Ledger) -> None:
    """One entry for each kind of figure that is null, with the reason."""
    if not results:
        return
    if classified.is_cpu_only:
        ledger.add(*_NO_SPEED_ON_CPU)
    ranks = [result.rank for result in results]
    if not any(rank.comm_ns for rank in ranks):
        text = "no communication inside the windows: ratios to it are null"
        ledger.add("no-communication", "note", text)
    unknown = sum(rank.partner_unknown or 0 for rank in ranks)
    if unknown:
        text = "collectives without a known partner are left out of hidden and hideable"
        ledger.add("partner-unknown", "note", text, count=unknown)
    if any(rank.wgrad_overlapped_ns is None for rank in ranks):
        text = "no GEMM is a known wgrad and some have no role: what overlaps dgrad communication is null"
        ledger.add("wgrad-unknown", "note", text)
