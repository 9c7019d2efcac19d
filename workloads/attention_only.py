"""Attention without the model around it: nothing is trained, forward and backward are those of a model.

Every layer has q, k, v and the gradient of its result, random and the same in every step. A step runs forward
through all layers and then backward, as in a model; the layers do not feed each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.attention import Attend
from workloads.communication import Site
from workloads.config import WorkloadConfig
from workloads.model import AttentionCore


@dataclass(frozen=True)
class Heads:
    """One layer's q [n, B, a, d], k and v [n, B, k, d] of this rank, and the result's gradient, as q."""

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor


@dataclass(frozen=True)
class Passed:
    """What forward made, and what backward starts from."""

    outs: tuple[Tensor, ...]
    douts: list[Tensor]


class AttentionStack(nn.Module):
    """The attention cores of a decoder, called as they are there."""

    def __init__(self, config: WorkloadConfig, attend: Attend) -> None:
        super().__init__()
        sites = [Site(f"layers.{layer}.attention.core", layer) for layer in range(config.layers)]
        recompute = config.recompute == "selective"
        self.layers = nn.ModuleList(AttentionCore(site, attend, recompute=recompute) for site in sites)

    def forward(self, layers: Sequence[Heads]) -> tuple[Tensor, ...]:
        """The result of every layer, [n, B, a, d]."""
        return tuple(core(x.q, x.k, x.v) for core, x in zip(self.layers, layers, strict=True))


@dataclass(frozen=True)
class AttentionOnly:
    """What `workloads.train.Workload` is for a model; a micro-batch is `Heads` for each layer."""

    config: WorkloadConfig
    model: AttentionStack
    device: torch.device
    dtype: torch.dtype
    optimizer = None

    def data(self, steps: int, rank: int) -> list[list[list[Heads]]]:
        """Micro-batches for each step; those of a `rank` are a function of it and the seed."""
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + rank)

        def random(*shape: int) -> Tensor:
            # Drawn in fp32 on the CPU: the same numbers on every device and in every type.
            return torch.randn(shape, generator=generator).to(self.device, self.dtype)

        return [self._batch(random)] * steps

    def constants(self) -> list[list[Heads]]:
        """One step's micro-batches of the same sizes, without chance."""

        def constant(*shape: int) -> Tensor:
            return torch.full(shape, 0.01, device=self.device, dtype=self.dtype)

        return self._batch(constant)

    def _batch(self, made: Callable[..., Tensor]) -> list[list[Heads]]:
        config = self.config
        assert config.kv_heads is not None
        tokens, heads, kv_heads = (
            config.seq_len // config.cp,
            config.heads // config.tp,
            config.kv_heads // config.tp,
        )

        def layer() -> Heads:
            q, k, v, dout = (
                made(tokens, config.micro_batch, n, config.head_dim)
                for n in (heads, kv_heads, kv_heads, heads)
            )
            return Heads(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), dout)

        return [[layer() for _ in range(config.layers)] for _ in range(config.num_microbatches)]

    def tensors(self, batch: Sequence[Sequence[Heads]]) -> list[Tensor]:
        """What a step is given."""
        return [one for microbatch in batch for x in microbatch for one in (x.q, x.k, x.v, x.dout)]

    def step(self, batch: Sequence[Sequence[Heads]]) -> None:
        """Forward and backward of every micro-batch. There is no loss to give."""
        for microbatch in batch:
            for x in microbatch:
                x.q.grad = x.k.grad = x.v.grad = None
            self.backward(self.forward(microbatch, len(batch)), is_last=True)

    def forward(self, microbatch: Sequence[Heads], microbatches: int) -> Passed:
        return Passed(self.model(microbatch), [x.dout for x in microbatch])

    def backward(self, passed: Passed, *, is_last: bool) -> None:
        torch.autograd.backward(list(passed.outs), passed.douts)

    def update(self) -> None:
        """There are no weights."""
