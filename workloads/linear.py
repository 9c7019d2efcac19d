"""The three GEMMs of a linear, each under its range, the modules that hold a weight, and the plain linear.

Shapes: S tokens in sequence, B sequences, I inputs, O outputs; a weight is [O, I], as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sp_profiler.record.annotate import annotate
from workloads.communication import Site


def forward_gemm(x: Tensor, weight: Tensor, site: Site) -> Tensor:
    with annotate("fwd", module=site.module, layer=site.layer):
        return x @ weight.t()  # (S, B, I) @ (I, O) -> (S, B, O)


def dgrad_gemm(dy: Tensor, weight: Tensor, site: Site) -> Tensor:
    with annotate("dgrad", module=site.module, layer=site.layer):
        return dy @ weight  # (S, B, O) @ (O, I) -> (S, B, I)


def wgrad_gemm(dy: Tensor, x: Tensor, site: Site) -> Tensor:
    with annotate("wgrad", module=site.module, layer=site.layer):
        return dy.flatten(0, 1).t() @ x.flatten(0, 1)  # (O, S*B) @ (S*B, I) -> (O, I)


@dataclass(frozen=True)
class Piece:
    """A parameter of the whole model, of which a rank holds all (`split` None) or an equal part.

    `split` is the dimension along which the ranks divide it. A fused linear holds several pieces, one
    below the other.
    """

    name: str
    shape: tuple[int, ...]
    split: int | None = None

    def local_shape(self, parts: int) -> tuple[int, ...]:
        return tuple(n // parts if i == self.split else n for i, n in enumerate(self.shape))


class Weighted(nn.Module):
    """A module with one weight, made of pieces; this rank's part of each, along dimension 0.

    `saved_term` is the term of the memory equation for what its forward keeps.
    """

    saved_term = "other"

    def __init__(
        self, site: Site, pieces: Sequence[Piece], parts: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.site = site
        self.pieces = tuple(pieces)
        shapes = [piece.local_shape(parts) for piece in pieces]
        rows = sum(shape[0] for shape in shapes)
        self.weight = nn.Parameter(torch.empty(rows, *shapes[0][1:], device=device, dtype=dtype))


class LocalLinear(Weighted):
    """A linear whose weight every rank holds whole: nothing to communicate."""

    def __init__(self, *weighted: Any, saved_term: str) -> None:
        super().__init__(*weighted)
        self.saved_term = saved_term

    def forward(self, x: Tensor) -> Tensor:
        return _Local.apply(x, self.weight, self.site)


class _Local(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, site: Site) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.site = site
        return forward_gemm(x, weight, site)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        dx = dgrad_gemm(dy, weight, ctx.site)
        dweight = wgrad_gemm(dy, x, ctx.site)
        return dx, dweight, None
