"""Records one run of a shipped workload into a folder: its environment, its ranks, its run.json."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sp_profiler.errors import UsageError, WorkloadError
from sp_profiler.record import runfile
from sp_profiler.record.environment import INSTALL_TORCH, connections_setting, may_have_gpu, probe_torch
from sp_profiler.record.export import trace_name
from sp_profiler.record.launch import Job, OnProgress, run_job
from sp_profiler.record.rank import SHARE_GPUS_VARIABLE

if TYPE_CHECKING:
    from workloads.config import WorkloadConfig

MAX_RANKS = 8


@dataclass(frozen=True)
class Backend:
    """Where the ranks compute. `capability` is the lowest of the GPUs, None on the CPU."""

    name: str  # nccl | gloo
    capability: tuple[int, int] | None
    note: str | None = None  # why it is not what one might expect


def require_torch() -> None:
    """Raises UsageError with the command that installs torch when it is missing."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(f"running a workload needs torch, which is not installed: {INSTALL_TORCH}")


def choose_backend(wanted: str, ranks: int) -> Backend:
    """NCCL where there is a GPU for each rank, else gloo on the CPU; `wanted` (not `auto`) decides.

    Raises UsageError when nccl is wanted and cannot be.
    """
    if wanted == "gloo" or (wanted == "auto" and not may_have_gpu()):
        return Backend("gloo", None)
    try:
        torch = probe_torch()
    except RuntimeError as error:
        raise UsageError(f"torch is installed but does not work: {error}") from None
    gpus, nccl = torch["gpus"], torch["backends"]["nccl"]
    enough = len(gpus) >= ranks or (bool(gpus) and bool(os.environ.get(SHARE_GPUS_VARIABLE)))
    if nccl and enough:
        return Backend("nccl", min((gpu["capability"][0], gpu["capability"][1]) for gpu in gpus))
    found = (
        f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} for {ranks} ranks" if nccl else "torch has no NCCL"
    )
    if wanted == "nccl":
        raise UsageError(f"--backend nccl cannot be used: {found}")
    return Backend("gloo", None, f"{found}: running on the CPU with gloo" if gpus else None)


def rank_environment(mode: str, backend: Backend, environ: Mapping[str, str]) -> dict[str, str]:
    """What we set for the ranks, and only what is not set already: `{NAME: value}`."""
    settings = {"OMP_NUM_THREADS": "1", **connections_setting(backend.capability, mode, environ)}
    if backend.name == "gloo":
        if Path("/sys/class/net/lo").exists():
            settings["GLOO_SOCKET_IFNAME"] = "lo"
        if may_have_gpu():
            # a GPU nobody uses would make the trace look like one of a GPU run
            return {**{n: v for n, v in settings.items() if n not in environ}, "CUDA_VISIBLE_DEVICES": ""}
    return {name: value for name, value in settings.items() if name not in environ}


def record_workload(
    config: WorkloadConfig,
    backend: Backend,
    *,
    folder: Path,
    logs: Path,
    timeout_s: float,
    command: Sequence[str],
    on_progress: OnProgress,
    saved_tensors: bool = True,
    module: str = "workloads.train",
    options: Sequence[str] = (),
) -> None:
    """Run a workload; `folder` then holds one trace a rank and run.json.

    `saved_tensors`: whether a step before the profiled ones measures what is kept for backward. `module` is
    what every rank runs, with the arguments of workloads.train and `options` of its own behind them.
    Raises WorkloadError (see `launch.run_job`; also when a rank left no trace) and KeyboardInterrupt.
    """
    settings = rank_environment(config.mode, backend, os.environ)
    config_file = logs / "workload.json"
    config_file.write_text(json.dumps(config.to_dict(), indent=1))
    left_out = [] if saved_tensors else ["--no-saved-tensors"]
    job = Job(
        module=module,
        arguments=[str(config_file), "--backend", backend.name, *left_out, *options],
        ranks=config.ranks,
        out=folder,
        log_dir=logs,
        timeout_s=timeout_s,
        env={**os.environ, **settings},
    )
    run_job(job, on_progress)
    missing = [str(rank) for rank in range(config.ranks) if not (folder / trace_name(rank)).exists()]
    if missing:
        raise WorkloadError(f"no trace was written by rank {', '.join(missing)} of {config.ranks}")
    reports = _take_reports(folder)
    known: dict[str, Any] = {
        "command": list(command),
        "workload": config.to_dict(),
        "set_by_tool": settings,
    }
    runfile.update(folder, lambda run: {**runfile.add_workload(run, reports), **known})


def _take_reports(folder: Path) -> dict[int, dict[str, Any]]:
    """What the ranks wrote at their end, by rank; the files go, run.json has it all."""
    reports: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("rank-*.workload.json")):
        report = json.loads(path.read_text())
        reports[report["rank"]] = report
        path.unlink()
    return reports
