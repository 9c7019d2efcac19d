"""One rank of a tiny annotated gloo run.

A linear whose dgrad all-reduce is synchronous, then asynchronous under its wgrad; then a synchronous
all-gather, reduce-scatter and all-to-all. Every range is written as record/annotate.py defines it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_helpers import record_steps

from sp_profiler.record.annotate import annotate

GROUP = "tp[0,1]"
COUNTER = iter(range(10**6))


def comm(op: str, elements: int, *, is_async: bool, **fields: Any) -> tuple[Any, int]:
    seq = next(COUNTER)
    named = {"op": op, "group": GROUP, "bytes": 4 * elements, "dtype": "float32", "seq": seq}
    return annotate("comm", async_=is_async, **(named | fields)), seq


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, is_async: bool) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.is_async = is_async
        with annotate("fwd", module="linear", layer=0):
            return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        with annotate("dgrad", module="linear", layer=0):
            dx = grad @ weight
        purpose = {"purpose": "dgrad", "partner": "wgrad", "module": "linear", "layer": 0}
        launch, seq = comm("all_reduce", dx.numel(), is_async=ctx.is_async, **purpose)
        with launch:
            work = dist.all_reduce(dx, async_op=ctx.is_async)
        with annotate("wgrad", module="linear", layer=0):
            dw = grad.t() @ x
        if work is not None:
            with annotate("wait", op="all_reduce", group=GROUP, seq=seq):
                work.wait()
        return dx, dw, None


def step(x: torch.Tensor, weight: torch.Tensor) -> None:
    for is_async in (False, True):
        Linear.apply(x, weight, is_async).sum().backward()
    data = x.detach()
    gathered, scattered = (
        torch.empty(2 * len(data), data.shape[1]),
        torch.empty(len(data) // 2, data.shape[1]),
    )
    with comm("all_gather", gathered.numel(), is_async=False, purpose="activation")[0]:
        dist.all_gather_into_tensor(gathered, data)
    with comm("reduce_scatter", data.numel(), is_async=False, purpose="activation")[0]:
        dist.reduce_scatter_tensor(scattered, data)
    with comm("all_to_all", data.numel(), is_async=False, purpose="layout")[0]:
        dist.all_to_all_single(torch.empty_like(data), data)


def main(rank: int, out: Path) -> None:
    # The wgrad lasts tens of milliseconds, so that gloo's thread gets a turn beside it on a busy machine.
    x = torch.randn(2048, 512, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(1024, 512))
    record_steps(lambda: step(x, weight), rank, out, active=2)
