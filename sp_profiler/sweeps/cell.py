"""One cell from its workload to its figures: ranks in fresh processes, then the analysis of their traces."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from sp_profiler.errors import WorkloadError
from sp_profiler.record.launch import OnProgress
from sp_profiler.record.runfile import RUN_FILE, utc_now
from sp_profiler.record.workload import Backend, record_workload
from sp_profiler.report.model import Report, windows_of
from sp_profiler.sweeps.failures import classify, oom_kills
from sp_profiler.sweeps.model import LARGE_OVERHEAD, Cell, CellMemory, CellProfile, Settings, Spread
from workloads.config import WorkloadConfig

MODULE = "sp_profiler.sweeps.rank"
Pass = Literal["starting", "timing", "memory", "profile", "analysis"]
_SIZES = ("saved_bytes", "parameter_bytes", "gradient_bytes", "optimizer_bytes")


@dataclass(frozen=True)
class CellRun:
    """What a cell needs to be run; `folder` is empty and takes everything that comes of it."""

    config: WorkloadConfig
    settings: Settings
    backend: Backend
    folder: Path
    timeout_s: float
    command: Sequence[str]


def run_cell(cell: Cell, run: CellRun, on_progress: OnProgress) -> Cell:
    """Run it and look at it; whatever goes wrong with it becomes its status.

    KeyboardInterrupt goes on, after all its processes have ended.
    """
    cell = dataclasses.replace(cell, started=utc_now())
    logs = run.folder / "logs"
    logs.mkdir(parents=True)
    kills = oom_kills()
    failure: dict[str, Any] = {}
    try:
        _record(run, logs, on_progress)
    except WorkloadError as error:
        status, reason = classify(error, kills, oom_kills())
        failure = {"status": status, "reason": reason, "log": _kept_log(run.folder, str(error))}
    told = {what: _take(run.folder, what) for what in ("timing", "memory", "pass")}
    cell = _with_timing(cell, told["timing"], told["memory"])
    if failure:
        _remove_recording(run.folder)
        return dataclasses.replace(cell, **failure, failed_in=_last_pass(told["pass"]))
    shutil.rmtree(logs)
    return _analysed(cell, run.folder, told["memory"])


def _record(run: CellRun, logs: Path, on_progress: OnProgress) -> None:
    settings = run.settings
    record_workload(
        dataclasses.replace(run.config, warmup=1, active_steps=settings.profiled_steps),
        run.backend,
        folder=run.folder,
        logs=logs,
        timeout_s=run.timeout_s,
        command=run.command,
        on_progress=on_progress,
        module=MODULE,
        options=[
            f"--repeats={settings.repeats}",
            f"--steps={settings.steps_per_repeat}",
            f"--warmup={settings.warmup}",
        ],
    )


def _take(folder: Path, what: str) -> list[dict[str, Any]]:
    """What the ranks wrote under this name, in order of rank; the files go."""
    found = sorted(folder.glob(f"rank-*.{what}.json"))
    values = [json.loads(path.read_text()) for path in found]
    for path in found:
        path.unlink()
    return values


def _last_pass(told: list[dict[str, Any]]) -> Pass:
    """The pass that not every rank came through: the earliest that one was in."""
    names: tuple[Pass, ...] = ("timing", "memory", "profile")
    reached = [names.index(one["pass"]) for one in told if one["pass"] in names]
    return names[min(reached)] if reached else "starting"


def _kept_log(folder: Path, error: str) -> str:
    """The error with the end of the log on top of the logs' folder; gives its place in the cell's folder."""
    path = folder / "logs" / "failure.txt"
    path.write_text(error + "\n")
    return str(path.relative_to(folder))


def _remove_recording(folder: Path) -> None:
    """A cell that failed is no run: traces of some ranks would look like one."""
    for path in (*folder.glob("rank-*"), *folder.glob(".rank-*"), folder / RUN_FILE):
        path.unlink(missing_ok=True)


def _with_timing(cell: Cell, timing: list[dict[str, Any]], memory: list[dict[str, Any]]) -> Cell:
    """The cell with what the passes without the profiler found, if every rank came so far."""
    ranks = cell.workload["ranks"]
    step = spread([one["repeat_ns"] for one in timing]) if len(timing) == ranks else None
    return dataclasses.replace(
        cell,
        step=step,
        tokens_per_s=None if step is None else cell.tokens_per_step / (step.median_ns / 1e9),
        memory=_memory(timing, memory) if len(timing) == ranks else None,
    )


def spread(by_rank: Sequence[Sequence[int]]) -> Spread:
    """Of the repeats of several ranks: of each repeat the slowest rank."""
    slowest = [max(repeat) for repeat in zip(*by_rank, strict=True)]
    if len(slowest) > 1:
        q1, median, q3 = statistics.quantiles(slowest, n=4, method="inclusive")
    else:
        q1 = median = q3 = float(slowest[0])
    return Spread(slowest, round(median), round(q1), round(q3), min(slowest), max(slowest))


def _memory(timing: list[dict[str, Any]], memory: list[dict[str, Any]]) -> CellMemory:
    tensors = _largest(memory, "peak_bytes")
    allocator = _largest(timing, "peak_bytes")
    return CellMemory(
        peak_bytes=tensors if allocator is None else allocator,
        peak_source="tensors" if allocator is None else "allocator",
        reserved_bytes=_largest(timing, "reserved_bytes"),
        tensors_peak_bytes=tensors,
        rss_peak_bytes=_largest(timing, "rss_peak_bytes"),
        rss_before_bytes=_largest(timing, "rss_before_bytes"),
        **{name: _largest(memory, name) for name in _SIZES},
    )


def _largest(ranks: list[dict[str, Any]], name: str) -> int | None:
    """Over the ranks; None where one does not know."""
    values = [one[name] for one in ranks]
    return None if not values or None in values else max(values)


def _analysed(cell: Cell, folder: Path, memory: list[dict[str, Any]]) -> Cell:
    """The cell with its profile, and its report in the folder."""
    try:
        report = analyze_folder(folder)
    except Exception as error:  # noqa: BLE001 - one cell that cannot be analysed must not end the others
        log = folder / "analysis.log"
        log.write_text(traceback.format_exc())
        why = f"the traces could not be analysed: {type(error).__name__}: {error}".split("\n", 1)[0]
        return dataclasses.replace(
            cell, status="failed", reason=why, failed_in="analysis", log=str(log.relative_to(folder))
        )
    run = json.loads((folder / RUN_FILE).read_text())
    profile = _profile(report, run, cell.step, _largest(memory, "comm_bytes"))
    return dataclasses.replace(
        cell,
        status="ok",
        profile=profile,
        device_type=report.run.device_type,
        hardware=_hardware(run, report.run.device_type),
        notes=_notes(profile),
    )


def analyze_folder(folder: Path) -> Report:
    """The report of a run folder, which is written there too. Raises SpProfilerError."""
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.engine import analyze_files
    from sp_profiler.report.save import save
    from sp_profiler.trace.find import find_runs

    report = analyze_files(find_runs([str(folder)])[0], WindowRule(rule="step"))
    save(report, ["json", "html"], folder, force=True)
    return report


def _hardware(run: dict[str, Any], device_type: str | None) -> list[str]:
    """The devices that computed, without the names of their hosts."""
    kind = "cpu" if device_type == "cpu" else "cuda"
    names = [one["name"] for one in run.get("hardware") or [] if one.get("kind") == kind]
    cores = [one.get("logical_cores") for one in run.get("hardware") or [] if one.get("kind") == "cpu"]
    if kind == "cpu" and names:
        return [f"{names[0]}, {cores[0]} logical cores"]
    return [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]


def _profile(report: Report, run: dict[str, Any], step: Spread | None, comm_bytes: int | None) -> CellProfile:
    totals, windows = report.totals, windows_of(report)

    def mean(name: str) -> int | None:
        value = getattr(totals, name)
        return None if value is None else round(Fraction(value, windows))

    warmup = (run.get("schedule") or {}).get("warmup", 0)
    times = [steps[warmup:] for steps in (run.get("step_times_ns") or {}).values()]
    profiled = max((round(statistics.fmean(one)) for one in times if one), default=None)
    under = report.totals.hiding_by_purpose.get("dgrad")
    window, exposed = totals.window_ns, totals.exposed_ns
    return CellProfile(
        step_ns=profiled,
        overhead_factor=None if profiled is None or step is None else profiled / step.median_ns,
        window_ns=mean("window_ns"),
        compute_ns=mean("compute_ns"),
        comm_ns=mean("comm_ns"),
        overlapped_ns=mean("overlapped_ns"),
        exposed_ns=mean("exposed_ns"),
        exposed_share=exposed / window if window and exposed is not None else None,
        overlap_ratio=totals.overlap_ratio,
        dgrad_comm_ns=mean("dgrad_comm_ns"),
        wgrad_overlapped_ns=mean("wgrad_overlapped_ns"),
        wgrad_overlap_ratio=totals.wgrad_overlap_ratio,
        wgrad_hidden_of_hideable=None if under is None else under.hidden_of_hideable,
        partner_hidden_ns=mean("partner_hidden_ns"),
        partner_hideable_ns=mean("partner_hideable_ns"),
        hidden_of_hideable=totals.hidden_of_hideable,
        comm_bytes=comm_bytes,
    )


def _notes(profile: CellProfile) -> list[str]:
    factor = profile.overhead_factor
    if factor is None or factor < LARGE_OVERHEAD:
        return []
    return [
        f"profiled steps take {factor:.2f} times the unprofiled ones: overlap and exposed times are those of "
        "slowed steps, and may differ without the profiler"
    ]
