"""RMSNorm, computed in fp32 (fp64 models: in fp64), with two ways to keep what backward needs.

Both give the same numbers up to rounding; they differ in memory, F being the bytes of x:
eager keeps x and the normalised x in fp32, fused keeps x as it came (and one number a token).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workloads.communication import Site
from workloads.linear import Piece, Weighted

EPSILON = 1e-5


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which norms, rotary embedding and the loss are computed."""
    return torch.promote_types(dtype, torch.float32)


class RMSNorm(Weighted):
    """x [S, B, H] / sqrt(mean over H of x^2 + epsilon) * weight [H] (Zhang and Sennrich 2019, eq. 4)."""

    saved_term = "norm"

    def __init__(self, site: Site, hidden: int, kind: str, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(site, [Piece(f"{site.module}.weight", (hidden,))], 1, device, dtype)
        self._function = {"eager": eager_rms_norm, "fused": fused_rms_norm}[kind]

    def forward(self, x: Tensor) -> Tensor:
        return self._function(x, self.weight)


def eager_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    high = x.to(compute_dtype(x.dtype))
    normalised = high * torch.rsqrt(high.pow(2).mean(-1, keepdim=True) + EPSILON)
    return (normalised * weight).to(x.dtype)


def fused_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return _FusedRMSNorm.apply(x, weight)  # type: ignore[no-any-return]


class _FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        high = x.to(compute_dtype(x.dtype))
        scale = torch.rsqrt(high.pow(2).mean(-1, keepdim=True) + EPSILON)  # [S, B, 1]
        ctx.save_for_backward(x, weight, scale)
        return (high * scale * weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        normalised = x.to(scale.dtype) * scale  # n
        dy = dy.to(scale.dtype)
        dweight = (dy * normalised).flatten(0, -2).sum(0)  # [H]
        dn = dy * weight
        # n = x * scale and scale depends on x: dx = scale * (dn - n * mean(dn * n))
        dx = scale * (dn - normalised * (dn * normalised).mean(-1, keepdim=True))
        return dx.to(x.dtype), dweight.to(weight.dtype)
