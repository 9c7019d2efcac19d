"""What each rank of a cell runs: timed steps without the profiler, a measured step, profiled steps.

`python -m sp_profiler.sweeps.rank CONFIG --backend gloo --repeats 5 --steps 3 --warmup 2`, started by
`record.launch` as `workloads.train` is. Every pass builds a workload of its own, so that none finds what
another left behind; what the first two found is written before the profiler starts, for it may end the rank.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sp_profiler.errors import WorkloadError
from sp_profiler.files import write_atomically
from sp_profiler.record import progress
from workloads.attention_only import AttentionOnly
from workloads.config import WorkloadConfig
from workloads.groups import Groups, groups_for
from workloads.measure import measure_saved
from workloads.train import (
    StepTimer,
    Workload,
    attention_only,
    build,
    choose_device,
    data_rank,
    process_group,
    profile_for,
    read_config,
    train,
    write_result,
)


@dataclass(frozen=True)
class Timing:
    """How long to time."""

    repeats: int
    steps: int
    warmup: int


@dataclass(frozen=True)
class RankTiming:
    """One rank's timed steps. Resident sizes are None where the system does not tell them."""

    rank: int
    repeat_ns: list[int]  # the mean step of each repeat
    peak_bytes: int | None  # of the CUDA allocator; None on the CPU
    reserved_bytes: int | None
    rss_peak_bytes: int | None
    rss_before_bytes: int | None


def main(arguments: list[str] | None = None) -> None:
    """One rank's whole life. What goes wrong ends the process as an exception, for its words to be told."""
    parser = argparse.ArgumentParser(prog="python -m sp_profiler.sweeps.rank", description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--backend", required=True)
    for name in ("repeats", "steps", "warmup"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args(arguments)
    config = read_config(options.config)
    backend, device = choose_device(options.backend, int(os.environ["LOCAL_RANK"]))
    folder = Path(os.environ["SP_PROFILE_OUT"])
    with process_group(backend, device):
        run(config, Timing(options.repeats, options.steps, options.warmup), device, folder)


def run(config: WorkloadConfig, timing: Timing, device: torch.device, folder: Path) -> None:
    """The three passes of this rank, in a process group that exists."""
    rank = dist.get_rank()
    groups = groups_for(config)
    _begin(folder, "timing", rank)
    write(folder, "timing", rank, asdict(timed(config, timing, groups.twin(), device)))
    _let_go(device)
    _begin(folder, "memory", rank)
    measured = measure_saved(config, groups, device)
    saved = measured.to_json()
    told = {name: value for name, value in saved.items() if name not in ("tensors", "hidden")}
    write(folder, "memory", rank, {**told, "comm_bytes": round(measured.comm_bytes)})
    _let_go(device)
    _begin(folder, "profile", rank)
    result = train(config, groups, device, profile_for(config))
    write_result({**result, "saved_tensors": saved}, str(folder))


def timed(config: WorkloadConfig, timing: Timing, groups: Groups, device: torch.device) -> RankTiming:
    """Build the workload and time its steps: `repeats` times `steps` of them, each time from a barrier on."""
    on_gpu = device.type == "cuda"
    before = status_bytes("VmRSS")
    _reset_peaks(device)
    make = attention_only if config.attention_only else build
    workload: Workload | AttentionOnly = make(config, groups, device)
    batches: list[Any] = workload.data(timing.steps, data_rank(config, groups))
    data = cycle(batches)
    losses: list[torch.Tensor | None] = []
    for _ in range(timing.warmup):
        losses.append(workload.step(next(data)))
        progress.report("steps", steps=len(losses), rank=dist.get_rank())
    timer = StepTimer(device)
    for _ in range(timing.repeats):
        dist.barrier()
        if on_gpu:
            torch.cuda.synchronize(device)
        timer.mark()
        losses += [workload.step(next(data)) for _ in range(timing.steps)]
        timer.mark()
        progress.report("steps", steps=len(losses), rank=dist.get_rank())
    repeat_ns = [round(ns / timing.steps) for ns in timer.step_times_ns()]
    for place, loss in enumerate(losses):
        if loss is not None and not bool(torch.isfinite(loss)):
            raise WorkloadError(f"rank {dist.get_rank()}: the loss of step {place} is not finite")
    return RankTiming(
        rank=dist.get_rank(),
        repeat_ns=repeat_ns,
        peak_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        reserved_bytes=torch.cuda.max_memory_reserved(device) if on_gpu else None,
        rss_peak_bytes=status_bytes("VmHWM"),
        rss_before_bytes=before,
    )


def _begin(folder: Path, name: str, rank: int) -> None:
    """Say which pass this rank is in: for who has to tell where it ended."""
    write(folder, "pass", rank, {"pass": name})


def write(folder: Path, what: str, rank: int, values: dict[str, Any]) -> None:
    """Write `rank-00000.<what>.json`, whole or not at all."""
    write_atomically(folder / f"rank-{rank:05d}.{what}.json", json.dumps(values))


def _reset_peaks(device: torch.device) -> None:
    """From now on peaks are those of what comes: of the CUDA allocator, and of resident memory."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not allowed: the peak then is that since the process began, which is not less
        return


def _let_go(device: torch.device) -> None:
    """What the pass before held: gradient hooks and parameters hold each other."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def status_bytes(name: str) -> int | None:
    """A size of this process from /proc/self/status, None where the system has none."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    for line in status.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    return None


if __name__ == "__main__":
    main()
    sys.exit(0)
