"""Real ranks over gloo: forks of one process that has torch already, ended whatever happens.

To import torch takes a process three seconds, longer than most ranks work; here all launches of a test
process pay for it once.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# The second is what the first optimizer of a process brings in, the third what a rank imports as its main
# module.
_IMPORTED_ONCE = ["torch", "torch._dynamo", "pytest"]


def run_ranks(worker: str, out: Path, *args: Any, ranks: int = 2, timeout_s: float = 240) -> None:
    """Run `main(rank, out, *args)` of the module `worker` as every rank of a gloo world, on one thread each.

    Fails with the end of their log when one fails, and raises TimeoutError; leaves no rank behind. `out` is a
    folder for one launch.
    """
    multiprocessing.set_forkserver_preload(_IMPORTED_ONCE)
    context = multiprocessing.get_context("forkserver")
    started = [
        context.Process(target=_rank, args=(worker, rank, ranks, out, args), daemon=True)
        for rank in range(ranks)
    ]
    try:
        for process in started:
            process.start()
        _wait_for_all(started, timeout_s)
    finally:
        for process in started:
            if process.is_alive():
                process.kill()
            process.join()
    codes = [process.exitcode for process in started]
    assert codes == [0] * ranks, f"exit codes {codes}\n{(out / 'log').read_text()[-4000:]}"


def _wait_for_all(started: Sequence[BaseProcess], timeout_s: float) -> None:
    """Until all have ended, or one has failed: its peers may wait for it for ever."""
    deadline = time.monotonic() + timeout_s
    running = list(started)
    while running and not any(process.exitcode for process in started):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"{len(running)} of {len(started)} ranks did not finish in {timeout_s} s")
        wait([process.sentinel for process in running], left_s)
        running = [process for process in running if process.is_alive()]


def _rank(worker: str, rank: int, ranks: int, out: Path, args: tuple[Any, ...]) -> None:
    log = os.open(out / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=ranks)
    importlib.import_module(worker).main(rank, out, *args)
    dist.destroy_process_group()


def record_steps(step: Callable[[], None], rank: int, out: Path, *, active: int) -> None:
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
