"""What `sp-profile sweep` starts as processes of its own, here in ranks that have torch already."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gloo_helpers import run_ranks

from sp_profiler.errors import WorkloadError
from sp_profiler.record.launch import Job, OnProgress

TINY = {"hidden": (32,), "heads": (4,), "vocab": (64,), "seq_len": (16,)}
TINY_OPTIONS = ("--hidden", "32", "--heads", "4", "--seq-len", "16")
FEW = {"repeats": 2, "steps_per_repeat": 1, "warmup": 1, "profiled_steps": 1}
FEW_OPTIONS = ("--repeat", "2", "--steps", "1", "--warmup", "1", "--active-steps", "1")


def run_in_forks(job: Job, on_progress: OnProgress) -> None:
    """In place of `sp_profiler.record.launch.run_job`: the same job without launcher and imports."""
    assert job.module == "sp_profiler.sweeps.rank"
    out = Path(tempfile.mkdtemp(dir=job.log_dir))
    config, _, _, *options = job.arguments
    try:
        run_ranks("sweep_rank_worker", out, config, options, str(job.out), ranks=job.ranks)
    except AssertionError:
        last = (out / "log").read_text().strip().splitlines()[-1]
        raise WorkloadError(f"rank 0 of {job.ranks} failed: {last}\n--- the log ---") from None


def main(rank: int, out: Path, config: str, options: list[str], folder: str) -> None:
    import torch

    from sp_profiler.sweeps.rank import Timing, run
    from workloads.train import read_config

    os.environ["SP_PROFILE_OUT"] = folder
    numbers = dict(option.lstrip("-").split("=") for option in options)
    timing = Timing(*(int(numbers[name]) for name in ("repeats", "steps", "warmup")))
    run(read_config(config), timing, torch.device("cpu"), Path(folder))
