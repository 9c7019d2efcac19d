"""What `sp-profile run` starts as a process of its own, here in a rank that has torch already."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gloo_helpers import run_ranks

from sp_profiler.record.launch import Job, OnProgress


def run_in_forks(job: Job, on_progress: OnProgress) -> None:
    """In place of `sp_profiler.record.launch.run_job`: the same job without launcher and imports."""
    config, *_ = job.arguments
    out = Path(tempfile.mkdtemp(dir=job.log_dir))
    run_ranks("context_run_worker", out, config, str(job.out), ranks=job.ranks)


def main(rank: int, out: Path, config: str, folder: str) -> None:
    import torch

    from workloads.train import read_config, run_workload, write_result

    os.environ["SP_PROFILE_OUT"] = folder
    write_result(run_workload(read_config(config), torch.device("cpu"), saved_tensors=True), folder)
