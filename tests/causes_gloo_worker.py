"""One rank of a gloo run that provokes the causes of exposure.

Each collective is named after the cause it must show (`module=` of its annotation).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_helpers import record_steps

from sp_profiler.record.annotate import annotate

GROUP = "tp[0,1]"
LARGE = 8_000_000  # elements: an all-reduce of some tens of milliseconds
COUNTER = iter(range(10**6))


def launch(module: str, data: torch.Tensor, *, is_async: bool, partner: str | None = None) -> tuple[Any, int]:
    """An annotated all-reduce: its handle and its sequence number."""
    seq = next(COUNTER)
    fields = {"op": "all_reduce", "group": GROUP, "bytes": 4 * data.numel(), "dtype": "float32", "seq": seq}
    with annotate("comm", async_=is_async, module=module, purpose="dgrad", partner=partner, **fields):
        return dist.all_reduce(data, async_op=is_async), seq


def wait(handle: tuple[Any, int]) -> None:
    with annotate("wait", op="all_reduce", group=GROUP, seq=handle[1]):
        handle[0].wait()


def wgrad(module: str, size: int, times: int = 1) -> None:
    a = torch.ones(size, size)
    with annotate("wgrad", module=module):
        for _ in range(times):
            a @ a


def step(rank: int, tensors: list[torch.Tensor]) -> None:
    large, small = tensors[0], torch.ones(1000)
    dist.barrier()
    if rank == 1:
        time.sleep(0.1)
    launch("peer-skew", small, is_async=False)

    dist.barrier()
    wait(launch("synchronous", large, is_async=True))

    dist.barrier()
    handle = launch("no-partner", large, is_async=True)
    while not handle[0].is_completed():  # a wait soon after the launch would count as none, on a slow machine
        time.sleep(0.001)
    wait(handle)

    dist.barrier()
    handle = launch("partner-too-short", large, is_async=True, partner="wgrad")
    wgrad("partner-too-short", 64)
    wait(handle)

    # gloo works on two collectives of a group at a time: the third and the fourth queue behind them.
    dist.barrier()
    handles = [launch(f"first-{i}", one, is_async=True) for i, one in enumerate(tensors[:3])]
    handles.append(launch("queued", tensors[3], is_async=True, partner="wgrad"))
    wgrad("queued", 256, times=10)
    for handle in handles:
        wait(handle)

    # The partner's kernels are launched long after the collective began.
    dist.barrier()
    handle = launch("late-partner", large, is_async=True, partner="wgrad")
    wgrad("other", 8)
    time.sleep(0.03)
    wgrad("late-partner", 1024, times=4)
    wait(handle)


def main(rank: int, out: Path) -> None:
    tensors = [torch.ones(LARGE) for _ in range(4)]
    record_steps(lambda: step(rank, tensors), rank, out, active=1)
