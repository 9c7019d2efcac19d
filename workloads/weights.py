"""Weights by the name of the whole model's parameter, so that every split starts from the same numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from workloads.layout import Layout
from workloads.linear import Piece
from workloads.model import weighted_modules


def initial_weight(piece: Piece, seed: int) -> Tensor:
    """The whole parameter in fp32 on the CPU: norms are 1, matrices normal with deviation 1/sqrt(inputs).

    A function of name, shape and seed alone.
    """
    if len(piece.shape) == 1:
        return torch.ones(piece.shape)
    generator = torch.Generator().manual_seed(zlib.crc32(piece.name.encode()) + seed)
    return torch.randn(piece.shape, generator=generator) * piece.shape[-1] ** -0.5


def own_part(full: Tensor, piece: Piece, layout: Layout) -> Tensor:
    """What this rank holds of a whole parameter."""
    if piece.split is None:
        return full
    return full.chunk(layout.model_parts, piece.split)[layout.model_part]


@torch.no_grad()
def load_weights(model: nn.Module, layout: Layout, full: Callable[[Piece], Tensor]) -> None:
    """Fill the model from whole parameters, rounding to its dtype."""
    for _, module in weighted_modules(model):
        parts = [own_part(full(piece), piece, layout) for piece in module.pieces]
        module.weight.copy_(torch.cat(parts))
