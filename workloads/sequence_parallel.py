"""Sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198): the residual stream is divided too.

Between the linears a rank holds S/T tokens. A column linear all-gathers its input (g of the paper,
entering the tensor-parallel region), a row linear reduce-scatters its output (g bar, leaving it).
Two choices of the column linear's backward, which other implementations tie together:

===== ===== ====================================================== ================================
save  comm  column linear, backward (AG all-gather of the input,   name
            RS reduce-scatter of its gradient, * asynchronous)
===== ===== ====================================================== ================================
full  sync  dgrad, wgrad, RS                                       basic SP
full  async dgrad, RS*, wgrad, wait RS
shard sync  AG, dgrad, wgrad, RS
shard async AG*, dgrad, wait AG, RS*, wgrad, wait RS               SP recompute: Megatron's SP
===== ===== ====================================================== ================================

full keeps the gathered [S, B, I] for backward, shard only this rank's [S/T, B, I].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workloads.communication import Communicator, Intent, Site, activation_intent
from workloads.layout import GradientReduction, WholeSequence
from workloads.linear import LocalLinear, Piece, Weighted, dgrad_gemm, forward_gemm, wgrad_gemm
from workloads.norms import RMSNorm
from workloads.tensor_parallel import Backward


def _scatter_intent(site: Site) -> Intent:
    return Intent(site, "dgrad", "backward", partner="wgrad")


def _regather_intent(site: Site) -> Intent:
    return Intent(site, "input-regather", "backward", partner="dgrad")


def backward_full_sync(
    dy: Tensor, full: Tensor, weight: Tensor, communicator: Communicator, site: Site
) -> tuple[Tensor, Tensor]:
    """The gradients of x [S/T, B, I] and weight; dy is [S, B, O/T], full the gathered [S, B, I]."""
    dfull = dgrad_gemm(dy, weight, site)  # (S, B, O/T) @ (O/T, I) -> this rank's term of (S, B, I)
    dweight = wgrad_gemm(dy, full, site)  # (O/T, I)
    dx = communicator.run("reduce_scatter", dfull, _scatter_intent(site))  # (S/T, B, I)
    return dx, dweight


def backward_full_async(
    dy: Tensor, full: Tensor, weight: Tensor, communicator: Communicator, site: Site
) -> tuple[Tensor, Tensor]:
    dfull = dgrad_gemm(dy, weight, site)
    scattering = communicator.start("reduce_scatter", dfull, _scatter_intent(site))
    dweight = wgrad_gemm(dy, full, site)
    return scattering.wait(), dweight


def backward_shard_sync(
    dy: Tensor, x: Tensor, weight: Tensor, communicator: Communicator, site: Site
) -> tuple[Tensor, Tensor]:
    full = communicator.run("all_gather", x, _regather_intent(site))  # (S/T, B, I) -> (S, B, I)
    return backward_full_sync(dy, full, weight, communicator, site)


def backward_shard_async(
    dy: Tensor, x: Tensor, weight: Tensor, communicator: Communicator, site: Site
) -> tuple[Tensor, Tensor]:
    gathering = communicator.start("all_gather", x, _regather_intent(site))
    dfull = dgrad_gemm(dy, weight, site)  # does not need the input
    full = gathering.wait()
    scattering = communicator.start("reduce_scatter", dfull, _scatter_intent(site))
    dweight = wgrad_gemm(dy, full, site)
    return scattering.wait(), dweight


BACKWARDS: dict[tuple[str, str], Backward] = {
    ("full", "sync"): backward_full_sync,
    ("full", "async"): backward_full_async,
    ("shard", "sync"): backward_shard_sync,
    ("shard", "async"): backward_shard_async,
}


class ColumnFunction(torch.autograd.Function):
    """x [S/T, B, I], weight [O/T, I] -> [S, B, O/T]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        communicator: Communicator,
        site: Site,
        save: str,
        backward: Backward,
    ) -> Tensor:
        full = communicator.run("all_gather", x, activation_intent(site))  # (S, B, I)
        ctx.save_for_backward(full if save == "full" else x, weight)
        ctx.about = (communicator, site)
        ctx.schedule = backward
        return forward_gemm(full, weight, site)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        saved, weight = ctx.saved_tensors
        dx, dweight = ctx.schedule(dy, saved, weight, *ctx.about)
        return dx, dweight, None, None, None, None


class RowFunction(torch.autograd.Function):
    """x [S, B, I/T], weight [O, I/T] -> [S/T, B, O], the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, communicator: Communicator, site: Site) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.about = (communicator, site)
        y = forward_gemm(x, weight, site)  # this rank's term of (S, B, O)
        return communicator.run("reduce_scatter", y, activation_intent(site))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        communicator, site = ctx.about
        # Both GEMMs need the gathered gradient, so there is nothing to hide this one under.
        dy = communicator.run("all_gather", dy, Intent(site, "dgrad", "backward"))  # (S, B, O)
        dx = dgrad_gemm(dy, weight, site)  # (S, B, O) @ (O, I/T) -> (S, B, I/T)
        dweight = wgrad_gemm(dy, x, site)  # (O, I/T)
        return dx, dweight, None, None


class EnterFunction(torch.autograd.Function):
    """[S, B, H], equal on every rank -> this rank's [S/T, B, H]; backward gathers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, communicator: Communicator, site: Site) -> Tensor:
        ctx.about = (communicator, site)
        return _own_part(x, communicator)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        communicator, site = ctx.about
        return communicator.run("all_gather", dy, Intent(site, "dgrad", "backward")), None, None


class LeaveFunction(torch.autograd.Function):
    """[S/T, B, H] -> [S, B, H] for a consumer that every rank has whole.

    Its gradient is therefore whole on every rank: backward takes this rank's part. A reduce-scatter
    would count it T times.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, communicator: Communicator, site: Site) -> Tensor:
        ctx.communicator = communicator
        return communicator.run("all_gather", x, activation_intent(site))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return _own_part(dy, ctx.communicator), None, None


def _own_part(x: Tensor, communicator: Communicator) -> Tensor:
    # A copy: a view would keep the whole sequence alive for as long as its part.
    return x.chunk(communicator.size)[communicator.rank].clone()


class ColumnLinear(Weighted):
    saved_term = "column-input"

    def __init__(self, *weighted: Any, communicator: Communicator, save: str, comm: str) -> None:
        super().__init__(*weighted)
        self._arguments = (communicator, self.site, save, BACKWARDS[save, comm])

    def forward(self, x: Tensor) -> Tensor:
        return ColumnFunction.apply(x, self.weight, *self._arguments)


class RowLinear(Weighted):
    saved_term = "row-input"

    def __init__(self, *weighted: Any, communicator: Communicator) -> None:
        super().__init__(*weighted)
        self._communicator = communicator

    def forward(self, x: Tensor) -> Tensor:
        return RowFunction.apply(x, self.weight, self._communicator, self.site)


class NormGradients:
    """Sums the gradients of the norm weights: each rank's norms saw only its own tokens."""

    def __init__(self, model: nn.Module, communicator: Communicator) -> None:
        self._weights = [module.weight for module in model.modules() if isinstance(module, RMSNorm)]
        self._communicator = communicator

    def before_last_backward(self) -> None:
        return

    def finish(self) -> None:
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        assert len(gradients) == len(self._weights), "backward must come before the reduction"
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        intent = Intent(Site("norms"), "param-grad", "optimizer")
        flat = self._communicator.run("all_reduce", flat, intent)
        for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))


@dataclass(frozen=True)
class SequenceParallel(WholeSequence):
    """The layout: the residual stream is this rank's [S/T, B, H]."""

    communicator: Communicator
    save: str
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
        divided = [Piece(piece.name, piece.shape, split=0) for piece in pieces]
        return ColumnLinear(
            site,
            divided,
            self.model_parts,
            self.device,
            self.dtype,
            communicator=self.communicator,
            save=self.save,
            comm=self.comm,
        )

    def row(self, site: Site, piece: Piece) -> Weighted:
        divided = [Piece(piece.name, piece.shape, split=1)]
        return RowLinear(
            site, divided, self.model_parts, self.device, self.dtype, communicator=self.communicator
        )

    def replicated(self, site: Site, piece: Piece) -> Weighted:
        return LocalLinear(site, [piece], self.model_parts, self.device, self.dtype, saved_term="logits")

    def enter(self, x: Tensor, site: Site) -> Tensor:
        return EnterFunction.apply(x, self.communicator, site)

    def leave(self, x: Tensor, site: Site) -> Tensor:
        return LeaveFunction.apply(x, self.communicator, site)

    def gradient_reduction(self, model: nn.Module) -> GradientReduction:
        return NormGradients(model, self.communicator)
