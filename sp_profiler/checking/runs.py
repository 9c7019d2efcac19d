"""One run against its budgets: verdicts, and what should be known when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp_profiler import __version__
from sp_profiler.checking.budgets import Budgets, NoWorse
from sp_profiler.checking.judge import judge
from sp_profiler.checking.regression import LEAST_STEPS
from sp_profiler.checking.result import Check, RunCheck, Verdict
from sp_profiler.report.format import counted, visible
from sp_profiler.report.model import Report, Tool

_MOST_DIFFERENCES = 6


def check_run(
    report: Report, budgets: Budgets, baseline: Report | None = None, *, seconds: float | None = None
) -> RunCheck:
    """Judge one run. `seconds`: what reading it took, to be told in JUnit."""
    verdicts = judge(report, budgets, baseline)
    return RunCheck(
        name=report.run.name,
        path=report.run.path,
        holds=not any(one.fails for one in verdicts),
        verdicts=verdicts,
        notes=list(_notes(report, budgets, verdicts, baseline)),
        device_type=report.run.device_type,
        seconds=seconds,
    )


def unusable(name: str, path: str, error: str) -> RunCheck:
    """A run that could not be read."""
    return RunCheck(name=name, path=path, holds=False, verdicts=[], error=error)


def check_of(runs: Sequence[RunCheck], budgets: Budgets) -> Check:
    """All runs together."""
    return Check(
        tool=Tool("sp-profiler", __version__),
        holds=all(one.holds for one in runs),
        runs=list(runs),
        config=budgets.config,
        baseline=budgets.baseline,
    )


def _notes(
    report: Report, budgets: Budgets, verdicts: Sequence[Verdict], baseline: Report | None
) -> Sequence[str]:
    notes: list[str] = []
    if report.run.device_type == "cpu" and any(_is_about_speed(one) for one in verdicts):
        notes.append(
            "A CPU run: where ranks share the cores its times say nothing of speed, and they vary from run "
            "to run; budgets of structure (what is hidden at all, what is kept, the ledger) hold anywhere."
        )
    if baseline is not None:
        different = _differences(_identity(baseline), _identity(report))
        if different:
            shown = "; ".join(different[:_MOST_DIFFERENCES])
            more = len(different) - _MOST_DIFFERENCES
            rest = f"; and {more} more" if more > 0 else ""
            notes.append(visible(f"The baseline is of another kind of run: {shown}{rest}."))
        if budgets.use_noise and any(isinstance(one, NoWorse) for one in budgets.items):
            few = [len(one.window.steps) for one in (report, baseline) if len(one.window.steps) < LEAST_STEPS]
            if few:
                steps = counted(min(few), "step")
                notes.append(f"With {steps} the noise is not known: record three or more to tell it.")
    return notes


def _is_about_speed(verdict: Verdict) -> bool:
    """Whether a time is compared with another. Whether there is any at all is a matter of structure."""
    of_time = verdict.unit == "ns" and isinstance(verdict.limit, (int, float))
    return of_time and (verdict.bound == "no-worse" or verdict.limit > 1)  # type: ignore[operator]


def _identity(report: Report) -> dict[str, Any]:
    """What makes two runs comparable: where they ran, how many ranks, which workload and windows."""
    run = report.run
    workload = {f"workload.{key}": value for key, value in (run.workload or {}).items()}
    hardware = report.environment.get("hardware")
    devices = sorted(
        {str(one.get("name")) for one in hardware if isinstance(one, dict)}
        if isinstance(hardware, list)
        else ()
    )
    return {
        "device_type": run.device_type,
        "world_size": run.world_size,
        "backend": run.backend,
        "window": report.window.rule,
        "hardware": ", ".join(devices) or None,
        **workload,
    }


def _differences(base: dict[str, Any], here: dict[str, Any]) -> list[str]:
    return [
        f"{key} is {base.get(key)}, here {here.get(key)}"
        for key in {**base, **here}
        if base.get(key) != here.get(key)
    ]
