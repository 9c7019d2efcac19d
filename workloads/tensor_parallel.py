"""Tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053): weights divided, activations replicated.

A column linear divides its outputs and is the paper's f before a GEMM: nothing in forward, an
all-reduce of the input's gradient in backward. A row linear divides its inputs and is a GEMM before
g: an all-reduce in forward, nothing in backward. F is one full-sequence activation, T the ranks.

===== ============================ ==========================================
comm  column linear, backward      what the all-reduce can hide under
===== ============================ ==========================================
sync  dgrad, wgrad, all-reduce     nothing: it follows the last GEMM
async dgrad, all-reduce*, wgrad    the wgrad GEMM of the same linear
===== ============================ ==========================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workloads.communication import Communicator, Intent, Site, activation_intent
from workloads.layout import GradientReduction, NothingToReduce, WholeSequence
from workloads.linear import LocalLinear, Piece, Weighted, dgrad_gemm, forward_gemm, wgrad_gemm

Backward = Callable[[Tensor, Tensor, Tensor, Communicator, Site], tuple[Tensor, Tensor]]


def column_backward_sync(
    dy: Tensor, x: Tensor, weight: Tensor, communicator: Communicator, site: Site
) -> tuple[Tensor, Tensor]:
    """The gradients of input and weight; dy is [S, B, O/T]."""
    dx = dgrad_gemm(dy, weight, site)  # (S, B, O/T) @ (O/T, I) -> this rank's term of (S, B, I)
    dweight = wgrad_gemm(dy, x, site)  # (O/T, I)
    dx = communicator.run("all_reduce", dx, Intent(site, "dgrad", "backward", partner="wgrad"))
    return dx, dweight


def column_backward_async(
    dy: Tensor, x: Tensor, weight: Tensor, communicator: Communicator, site: Site
) -> tuple[Tensor, Tensor]:
    """The same, with the all-reduce in flight while wgrad runs."""
    dx = dgrad_gemm(dy, weight, site)
    pending = communicator.start("all_reduce", dx, Intent(site, "dgrad", "backward", partner="wgrad"))
    dweight = wgrad_gemm(dy, x, site)
    return pending.wait(), dweight


class ColumnFunction(torch.autograd.Function):
    """x [S, B, I], weight [O/T, I] -> [S, B, O/T]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, communicator: Communicator, site: Site, backward: Backward
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.about = (communicator, site)
        ctx.schedule = backward
        return forward_gemm(x, weight, site)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        dx, dweight = ctx.schedule(dy, x, weight, *ctx.about)
        return dx, dweight, None, None, None


class RowFunction(torch.autograd.Function):
    """x [S, B, I/T], weight [O, I/T] -> [S, B, O], the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, communicator: Communicator, site: Site) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.site = site
        y = forward_gemm(x, weight, site)  # this rank's term of (S, B, O)
        return communicator.run("all_reduce", y, activation_intent(site))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        dx = dgrad_gemm(dy, weight, ctx.site)  # (S, B, O) @ (O, I/T) -> (S, B, I/T)
        dweight = wgrad_gemm(dy, x, ctx.site)  # (O, I/T)
        return dx, dweight, None, None


class ColumnLinear(Weighted):
    saved_term = "column-input"

    def __init__(self, *weighted: Any, communicator: Communicator, backward: Backward) -> None:
        super().__init__(*weighted)
        self._communicator = communicator
        self._backward = backward

    def forward(self, x: Tensor) -> Tensor:
        return ColumnFunction.apply(x, self.weight, self._communicator, self.site, self._backward)


class RowLinear(Weighted):
    saved_term = "row-input"

    def __init__(self, *weighted: Any, communicator: Communicator) -> None:
        super().__init__(*weighted)
        self._communicator = communicator

    def forward(self, x: Tensor) -> Tensor:
        return RowFunction.apply(x, self.weight, self._communicator, self.site)


@dataclass(frozen=True)
class TensorParallel(WholeSequence):
    """The layout: the residual stream is the full [S, B, H] on every rank."""

    communicator: Communicator
    comm: str
    device: torch.device
    dtype: torch.dtype

    @property
    def model_parts(self) -> int:
        return self.communicator.size

    @property
    def model_part(self) -> int:
        return self.communicator.rank

    def column(self, site: Site, pieces: Sequence[Piece]) -> Weighted:
        backward = {"sync": column_backward_sync, "async": column_backward_async}[self.comm]
        divided = [Piece(piece.name, piece.shape, split=0) for piece in pieces]
        return ColumnLinear(
            site,
            divided,
            self.model_parts,
            self.device,
            self.dtype,
            communicator=self.communicator,
            backward=backward,
        )

    def row(self, site: Site, piece: Piece) -> Weighted:
        divided = [Piece(piece.name, piece.shape, split=1)]
        return RowLinear(
            site, divided, self.model_parts, self.device, self.dtype, communicator=self.communicator
        )

    def replicated(self, site: Site, piece: Piece) -> Weighted:
        return LocalLinear(site, [piece], self.model_parts, self.device, self.dtype, saved_term="logits")

    def enter(self, x: Tensor, site: Site) -> Tensor:
        return x

    def leave(self, x: Tensor, site: Site) -> Tensor:
        return x

    def gradient_reduction(self, model: nn.Module) -> GradientReduction:
        """Embedding, norms and head see the same activations and gradients on every rank."""
        return NothingToReduce()
