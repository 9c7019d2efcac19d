"""Attention of some queries over one block of keys, and how the results of several blocks become one.

B sequences, a heads, k key/value heads (each for a/k heads), n queries, m keys, d head size; all tensors
are [B, heads, tokens, d]. A block's forward gives its own softmax's result and the logarithm of the sum of
its exponentials (lse). Its backward is given those of the whole row, so that exp(scores - lse) are the true
probabilities (Dao et al. 2022, arXiv 2205.14135, algorithm 4; Liu et al. 2023, arXiv 2310.01889).

Sums are kept in fp32, of fp64 models in fp64. Queries that see no key at all have lse = -inf and 0 as result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention

from workloads.context.layouts import Tile
from workloads.norms import compute_dtype


class BlockKernel(Protocol):
    """Attention over a block, all visible or with the mask of causal attention (then n == m)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
        """The block's own out [B, a, n, d] and lse [B, a, n]."""
        ...

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: Rows, is_causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the block adds to dq, dk and dv."""
        ...


@dataclass(frozen=True)
class Rows:
    """What the whole rows of scores gave: out [B, a, n, d], lse and delta = sum of dout * out, [B, a, n]."""

    out: Tensor
    lse: Tensor
    delta: Tensor

    def at(self, queries: slice) -> Rows:
        return Rows(self.out[:, :, queries], self.lse[:, :, queries], self.delta[:, :, queries])


class PlainKernel:
    """Scores written out, in fp32 or better: exact, on every device and in every dtype."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
        scores = _scores(q, k, is_causal)  # (B, a, n, m)
        lse = scores.logsumexp(-1)
        probabilities = (scores - lse[..., None]).exp_()
        return _ungrouped(_grouped(probabilities, k) @ v.to(scores.dtype), q), lse

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: Rows, is_causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        scores = _scores(q, k, is_causal)
        high, scale = scores.dtype, q.shape[-1] ** -0.5
        dout, q = _grouped(dout.to(high), k), _grouped(q.to(high), k)  # (B, k, a/k * n, d)
        p = _grouped((scores - rows.lse[..., None]).exp_(), k)  # (B, k, a/k * n, m)
        dv = p.mT @ dout  # sums over the heads that share a key/value head, too
        dp = dout @ v.to(high).mT
        ds = p * (dp - _grouped(rows.delta[..., None], k)) * scale
        return _ungrouped(ds @ k.to(high), rows.out), ds.mT @ q, dv


def _grouped(x: Tensor, k: Tensor) -> Tensor:
    """[B, a, n, x] -> [B, k, a/k * n, x]: the heads of one key/value head as more rows of one product."""
    return x.unflatten(1, (k.shape[1], -1)).flatten(2, 3)


def _ungrouped(x: Tensor, like: Tensor) -> Tensor:
    """The inverse, for as many heads and rows as `like` [B, a, n, d] has."""
    return x.unflatten(2, (-1, like.shape[2])).flatten(1, 2)


def _scores(q: Tensor, k: Tensor, is_causal: bool) -> Tensor:
    """q k^T / sqrt(d), [B, a, n, m]; -inf where a causal mask hides a key."""
    high = compute_dtype(q.dtype)
    product = _grouped(q.to(high) * q.shape[-1] ** -0.5, k) @ k.to(high).mT
    scores = _ungrouped(product, q)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(future, float("-inf"))
    return scores


class FlashKernel:
    """The flash attention behind torch's scaled_dot_product_attention on CUDA, which gives lse as well."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
        made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)
        return made[0], made[1]

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: Rows, is_causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        # State of the random numbers of dropout, of which there is none: never read.
        seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
        unused = torch.zeros((), dtype=torch.uint64, device=q.device)
        backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_backward
        lengths = (None, None, q.shape[2], k.shape[2])
        lse = rows.lse.contiguous()
        return backward(dout, q, k, v, rows.out, lse, *lengths, 0.0, is_causal, seed, unused)


def kernel_for(q: Tensor, k: Tensor, v: Tensor) -> BlockKernel:
    """Flash where this device, dtype and head size have it, else the scores written out."""
    if q.device.type == "cuda" and q.shape[-1] % 8 == 0:
        asked = SDPAParams(q, k, v, None, 0.0, False, q.shape[1] != k.shape[1])
        if can_use_flash_attention(asked):
            return FlashKernel()
    return PlainKernel()


def attend_block(q: Tensor, k: Tensor, v: Tensor, tiles: Sequence[Tile], out: Tensor, lse: Tensor) -> None:
    """Add one block to what earlier ones gave, `out` [B, a, n, d] and `lse` [B, a, n] in fp32 or better."""
    kernel = kernel_for(q, k, v)
    for tile in tiles:
        queries, keys = tile.queries, tile.keys
        block = kernel.forward(q[:, :, queries], k[:, :, keys], v[:, :, keys], tile.is_causal)
        merge(out[:, :, queries], lse[:, :, queries], *block)


def no_block_yet(q: Tensor) -> tuple[Tensor, Tensor]:
    """`out` and `lse` before the first block."""
    high = compute_dtype(q.dtype)
    return torch.zeros_like(q, dtype=high), q.new_full(q.shape[:-1], float("-inf"), dtype=high)


def merge(out: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> None:
    """Make `out` and `lse`, in place, those of the softmax over the keys of both.

    out -= sigmoid(block_lse - lse) (out - block_out), lse = log(e^lse + e^block_lse), which is
    lse - logsigmoid(lse - block_lse). No exponential of a large number is taken. A row without a visible
    key has lse = -inf; where both have it the difference is NaN, and the block has nothing to add.
    """
    weight = torch.sigmoid(block_lse - lse).masked_fill_(block_lse == float("-inf"), 0.0)
    out.sub_(weight[..., None] * (out - block_out))
    lse.copy_(torch.logaddexp(lse, block_lse))


def attend_block_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Rows,
    tiles: Sequence[Tile],
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
) -> None:
    """Add to dq, dk and dv, in fp32 or better, what one block contributes."""
    kernel = kernel_for(q, k, v)
    for tile in tiles:
        queries, keys = tile.queries, tile.keys
        parts = kernel.backward(
            dout[:, :, queries],
            q[:, :, queries],
            k[:, :, keys],
            v[:, :, keys],
            rows.at(queries),
            tile.is_causal,
        )
        dq[:, :, queries].add_(parts[0])
        dk[:, :, keys].add_(parts[1])
        dv[:, :, keys].add_(parts[2])


def row_sums(dout: Tensor, out: Tensor, lse: Tensor) -> Rows:
    """Delta of all rows, once for all blocks."""
    high = lse.dtype
    return Rows(out, lse, (dout.to(high) * out.to(high)).sum(-1))
