"""One rank under torch's DDP, FSDP2 and tensor parallelism."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

TOKENS, SIZES = 40, (24, 32, 28)


class Plain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(*SIZES[:2], bias=False), nn.GELU(), nn.Linear(*SIZES[1:]))


def ddp() -> nn.Module:
    return nn.parallel.DistributedDataParallel(Plain())


def fsdp() -> nn.Module:
    model = Plain()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model


def tensor_parallel() -> nn.Module:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    return parallelize_module(Plain(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


class Checkpointed(nn.Module):
    """FSDP's units recomputed in backward: their parameters are gathered inside a node of the linear."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = fsdp()

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "fsdp-checkpointed": Checkpointed,
    "tp": tensor_parallel,
}


def record(make: Callable[[], nn.Module], path: str) -> None:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.randn(TOKENS, SIZES[0], requires_grad=True)

    def step() -> None:
        optimizer.zero_grad()
        model(x).pow(2).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    step()  # DDP's first two steps settle its buckets
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(path)


def main(rank: int, out: Path) -> None:
    warnings.filterwarnings("ignore")
    for name, make in MODELS.items():
        record(make, f"{out}/{name}.rank-{rank:05d}.json")
        dist.barrier()
