"""What the schedules keep for backward, counted without memory under FakeTensorMode and a fake group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.testing._internal.distributed.fake_pg import FakeStore

from workloads.communication import Communicator
from workloads.config import WorkloadConfig
from workloads.train import build

T = 2
S, B, H = 64, 2, 48
F = 2 * S * B * H
"""Bytes of one activation in bf16."""


@pytest.fixture(scope="module", autouse=True)
def fake_world() -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=T, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def saved_bytes(layers: int, **options: str) -> int:
    """Bytes of the distinct storages saved by one forward, parameters excluded."""
    config = WorkloadConfig(
        ranks=T, layers=layers, seq_len=S, micro_batch=B, hidden=H, vocab=64, dtype="bf16", **options
    )
    sizes: dict[int, tuple[int, torch.Tensor]] = {}  # the tensor stays alive while its storage is a key

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = (storage.nbytes(), tensor)
        return tensor

    with FakeTensorMode():
        communicator = Communicator("tp", range(T), 0, dist.group.WORLD)
        workload = build(config, communicator, torch.device("cpu"))
        parameters = {p.untyped_storage()._cdata for p in workload.model.parameters()}
        tokens = torch.zeros(1, S + 1, B, dtype=torch.int64)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = workload.model.loss(tokens[0])
        loss.backward()
        workload.step(tokens)
    return sum(size for storage, (size, _) in sizes.items() if storage not in parameters)


def block_and_rest(**options: str) -> tuple[int, int]:
    """Bytes of one block, and of what the model keeps besides its blocks."""
    one, two = saved_bytes(1, **options), saved_bytes(2, **options)
    return two - one, 2 * one - two


@pytest.mark.parametrize("comm", ["sync", "async"])
def test_differences_between_schemes(comm: str) -> None:
    """FACTS, memory: per block and, once, for the final norm; an eager norm keeps 4F and an rsqrt of 4SB."""
    tp, tp_rest = block_and_rest(mode="tp", comm=comm)
    basic, basic_rest = block_and_rest(mode="sp", save="full", comm=comm)
    recompute, recompute_rest = block_and_rest(mode="sp", save="shard", comm=comm)
    scale = 4 * S * B * (T - 1) // T
    assert tp - basic == 8 * F * (T - 1) // T - 3 * F + 2 * scale
    assert tp_rest - basic_rest == 4 * F * (T - 1) // T + scale
    assert basic - recompute == 5 * F - 2 * F // T
    assert tp - recompute == 10 * F * (T - 1) // T + 2 * scale
    assert basic_rest == recompute_rest


def test_a_fused_norm_turns_the_sign() -> None:
    """It keeps its input alone: basic SP, with five gathered inputs, then needs more than TP."""
    tp, _ = block_and_rest(mode="tp", norm="fused")
    basic, _ = block_and_rest(mode="sp", save="full", norm="fused")
    scale = 4 * S * B * (T - 1) // T
    assert tp - basic == 2 * F * (T - 1) // T - 3 * F + 2 * scale
    assert tp < basic


def test_fused_projections_share_one_gathered_input() -> None:
    """Saved by the linears: 5F separate, 2F fused."""
    separate, _ = block_and_rest(mode="sp", save="full")
    fused, _ = block_and_rest(mode="sp", save="full", projections="fused")
    assert separate - fused == 3 * F
