"""Ring attention (Liu et al. 2023, arXiv 2310.01889): keys and values travel, queries stay.

Rank i of p starts with its own block of keys and values and passes what it has to rank i+1, so that in
step s it holds the block of rank i - s. Forward shifts p - 1 times; the block that arrives next travels
while attention over the one in hand runs. Backward does the same again, and dK, dV of a block follow it
from rank to rank, one step behind, summed in fp32, until after p shifts they are home:

===== ============================================= =============================================
comm  step s of forward                             step s of backward
===== ============================================= =============================================
sync  shift K,V; attention over block s             shift K,V; attention over block s; shift dK,dV
async shift K,V*; attention over block s; wait      shift K,V*; attention over block s; wait dK,dV of
                                                    step s-1, add, shift dK,dV*; wait K,V
===== ============================================= =============================================

Which tokens a rank holds is the layout's business (Brandon et al. 2023, arXiv 2311.09431): only the tiles
of each block depend on it. n tokens of a rank, B sequences, a heads, k key/value heads, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sp_profiler.record.annotate import annotate
from workloads.communication import Communicator, Complete, Intent, Pending, Site, forward_phase
from workloads.context.blocks import attend_block, attend_block_backward, no_block_yet, row_sums
from workloads.context.layouts import Tile, block_tiles


@dataclass(frozen=True)
class Ring:
    """A ring of ranks as this rank sees it, the same in every layer."""

    communicator: Communicator
    comm: str
    tiles: tuple[tuple[Tile, ...], ...]
    """What this rank's queries see of the block in hand, for each step."""

    @classmethod
    def of(cls, communicator: Communicator, comm: str, positions: Sequence[Tensor], *, causal: bool) -> Ring:
        """`positions`: ascending, of the tokens of each rank."""
        size, rank = communicator.size, communicator.rank
        own = positions[rank]
        blocks = [positions[(rank - step) % size] for step in range(size)]
        return cls(communicator, comm, tuple(block_tiles(own, block, causal=causal) for block in blocks))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, site: Site) -> Tensor:
        """Attention of q [n, B, a, d] over the k, v [n, B, k, d] of all ranks: [n, B, a, d]."""
        return RingFunction.apply(q, k, v, self, site)

    def shift(
        self, x: Tensor, site: Site, purpose: str, phase: str, under: Sequence[Tile]
    ) -> Pending | Complete:
        """Send x to the next rank and take what the one before has, while attention over `under` runs."""
        partner = "attention" if under else None
        return self.communicator.launch(self.comm, "send_recv", x, Intent(site, purpose, phase, partner))


class RingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: Ring, site: Site) -> Tensor:
        own = torch.stack((heads_first(k), heads_first(v)))  # (2, B, k, n, d): one shift for both
        out, lse = forward_ring(heads_first(q), own, ring, site)
        out = heads_last(out.to(q.dtype)).contiguous()  # (n, B, a, d): the output linear keeps it, too
        ctx.save_for_backward(q, own, out, lse)
        ctx.about = (ring, site)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, own, out, lse = ctx.saved_tensors
        dq, dkv = backward_ring(heads_first(dout), heads_first(q), own, heads_first(out), lse, *ctx.about)
        dk, dv = dkv.to(q.dtype).unbind()
        return heads_last(dq.to(q.dtype)), heads_last(dk), heads_last(dv), None, None


def forward_ring(q: Tensor, own: Tensor, ring: Ring, site: Site) -> tuple[Tensor, Tensor]:
    """out [B, a, n, d] and lse [B, a, n], in fp32 or better, of q [B, a, n, d] and K,V [2, B, k, n, d]."""
    out, lse = no_block_yet(q)
    kv, phase = own, forward_phase()
    for step, tiles in enumerate(ring.tiles):
        is_last = step == len(ring.tiles) - 1
        arriving = Complete(kv) if is_last else ring.shift(kv, site, "kv", phase, tiles)
        if tiles:
            with attention_range(site):
                attend_block(q, kv[0], kv[1], tiles, out, lse)
        kv = arriving.wait()
    return out, lse


def backward_ring(
    dout: Tensor, q: Tensor, own: Tensor, out: Tensor, lse: Tensor, ring: Ring, site: Site
) -> tuple[Tensor, Tensor]:
    """dq [B, a, n, d] and this rank's dK,dV [2, B, k, n, d], in fp32 or better."""
    dq = torch.zeros_like(q, dtype=lse.dtype)
    kv, rows, passing = own, None, None
    for step, tiles in enumerate(ring.tiles):
        following = ring.tiles[step + 1] if step + 1 < len(ring.tiles) else None
        arriving = Complete(kv) if following is None else ring.shift(kv, site, "kv", "backward", tiles)
        dkv = torch.zeros_like(kv, dtype=lse.dtype)
        if tiles:
            with attention_range(site):
                rows = rows or row_sums(dout, out, lse)  # once, while the first block travels
                attend_block_backward(dout, q, kv[0], kv[1], rows, tiles, dq, dkv[0], dkv[1])
        if passing is not None:
            dkv = passing.wait().add_(dkv)  # what the ranks before added to this block
        passing = Complete(dkv)
        if len(ring.tiles) > 1:
            # They are behind their block by one step; nothing is left to hide the last shift under.
            passing = ring.shift(dkv, site, "dkv", "backward", following or ())
        kv = arriving.wait()
    assert passing is not None
    return dq, passing.wait()


def attention_range(site: Site) -> AbstractContextManager[object]:
    return annotate("attention", module=site.module, layer=site.layer)


def heads_first(x: Tensor) -> Tensor:
    """[n, B, heads, d] -> [B, heads, n, d], a view."""
    return x.permute(1, 2, 0, 3)


def heads_last(x: Tensor) -> Tensor:
    """[B, heads, n, d] -> [n, B, heads, d], a view."""
    return x.permute(2, 0, 1, 3)
