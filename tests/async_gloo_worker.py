"""One rank of a gloo run that calls each collective both ways.

`calls.*.json` holds each call in a range named after it, `call::all_reduce::True` for `async_op=True`;
`ddp.*.json` a step of DistributedDataParallel with several buckets.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

WIDTH, LAYERS = 128, 6


def calls(rank: int) -> dict[str, Callable[[bool], Any]]:
    one, two = torch.ones(8), torch.ones(16)

    def pair() -> list[torch.Tensor]:
        return [torch.ones(8), torch.ones(8)]

    return {
        "all_reduce": lambda a: dist.all_reduce(one, async_op=a),
        "all_gather_base": lambda a: dist.all_gather_into_tensor(two, one, async_op=a),
        "all_gather": lambda a: dist.all_gather(pair(), one, async_op=a),
        "reduce_scatter_base": lambda a: dist.reduce_scatter_tensor(one, two, async_op=a),
        "reduce_scatter": lambda a: dist.reduce_scatter(one, pair(), async_op=a),
        "all_to_all_base": lambda a: dist.all_to_all_single(two, torch.ones(16), async_op=a),
        "all_to_all": lambda a: dist.all_to_all(pair(), pair(), async_op=a),
        "broadcast": lambda a: dist.broadcast(one, 0, async_op=a),
        "reduce": lambda a: dist.reduce(one, 0, async_op=a),
        "gather": lambda a: dist.gather(one, pair() if rank == 0 else None, 0, async_op=a),
        "scatter": lambda a: dist.scatter(one, pair() if rank == 0 else None, 0, async_op=a),
        "barrier": lambda a: dist.barrier(async_op=a),
        "send": lambda a: _send(rank, one, a),
    }


def _send(rank: int, data: torch.Tensor, is_async: bool) -> Any:
    if rank == 0:
        return dist.isend(data, 1) if is_async else dist.send(data, 1)
    work = dist.irecv(data, 0) if is_async else dist.recv(data, 0)
    return work if is_async else None


def main(rank: int, out: Path) -> None:
    warnings.filterwarnings("ignore")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for name, call in calls(rank).items():
            for is_async in (False, True):
                with record_function(f"call::{name}::{is_async}"):
                    work = call(is_async)
                    if is_async and work is not None:
                        work.wait()
    profiler.export_chrome_trace(f"{out}/calls.rank-{rank:05d}.json")

    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.1)

    def step() -> None:
        model(torch.randn(256, WIDTH)).sum().backward()

    step()
    step()  # the first two settle the buckets
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
        torch.ones(1).add_(1)
    profiler.export_chrome_trace(f"{out}/ddp.rank-{rank:05d}.json")
