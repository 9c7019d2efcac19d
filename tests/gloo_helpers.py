"""Real ranks over gloo: a worker script of this folder as several processes, ended whatever happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def run_ranks(worker: str, out: Path, *, ranks: int = 2, timeout_s: float = 240) -> None:
    """Run `worker RANK STORE OUT` as every rank; fails with the end of their log when one fails."""
    script = Path(__file__).with_name(worker)
    with (out / "log").open("w") as log:
        started = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(out / "store"), str(out)], stdout=log, stderr=log
            )
            for rank in range(ranks)
        ]
        try:
            codes = [rank.wait(timeout=timeout_s) for rank in started]
        finally:
            for rank in started:
                rank.kill()
                rank.wait()
    assert codes == [0] * ranks, (out / "log").read_text()[-4000:]


def join(rank: int, store: str) -> None:
    """Make this process one of two ranks over gloo, computing on one thread."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def record_steps(step: Callable[[], None], rank: int, out: str, *, active: int) -> None:
    """Record `active` steps behind one of warm-up, as `rank-00000.pt.trace.json.gz` in `out`."""
    from torch.profiler import ProfilerActivity, profile, schedule

    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=active),
        on_trace_ready=lambda made: made.export_chrome_trace(f"{out}/rank-{rank:05d}.pt.trace.json.gz"),
    ) as profiler:
        for _ in range(1 + active):
            step()
            profiler.step()
