"""Reports to check, and the verdict of one budget on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from report_helpers import make_report

from sp_profiler.analysis.memory.results import Memory, MemoryFigures, SavedTensors
from sp_profiler.checking.api import check
from sp_profiler.checking.result import Verdict
from sp_profiler.report.memory import assemble
from sp_profiler.report.model import Report

GIB = 2**30


def verdict(report: Report, baseline: Report | None = None, **budgets: Any) -> Verdict:
    """The only verdict of these budgets."""
    (one,) = check(report, baseline=baseline, **budgets).verdicts
    return one


def verdicts(report: Report, baseline: Report | None = None, **budgets: Any) -> dict[str, Verdict]:
    return {one.budget: one for one in check(report, baseline=baseline, **budgets).verdicts}


def scaled(report: Report, factor: float, *names: str) -> Report:
    """The report with these times of its totals, ranks and steps multiplied."""

    def changed(figures: Any) -> Any:
        return replace(figures, **{name: int(getattr(figures, name) * factor) for name in names})

    return replace(
        report,
        totals=changed(report.totals),
        ranks=[changed(one) for one in report.ranks],
        steps=[changed(one) for one in report.steps],
    )


def memory_of(*peaks: int | None, device_type: str = "cuda", is_relative: bool = False) -> Memory | None:
    """Peaks of ranks 0, 1, ...; of each as much as a quarter is kept for backward."""
    return assemble(
        MemoryFigures(
            source="events",
            rank=rank,
            device_type=device_type,
            device=0,
            file=f"rank-{rank:05d}.json",
            events=10,
            peak_bytes=peak,
            peak_ns=None,
            is_relative=is_relative,
            peak_phase="backward",
            peak_by_category={"activations": peak} if peak else None,
            across_border_bytes=None if peak is None else peak // 4,
        )
        for rank, peak in enumerate(peaks)
    )


def with_memory(*peaks: int | None, saved: tuple[int, ...] = (), **how: Any) -> Report:
    report = make_report(ranks=len(peaks))
    memory = memory_of(*peaks, **how)
    assert memory is not None
    hooks = [SavedTensors(rank, size, None, [], {}, {}, {}) for rank, size in enumerate(saved)]
    return replace(report, memory=replace(memory, saved=hooks))
