"""Ulysses (Jacobs et al. 2023, arXiv 2309.14509) and USP (Fang and Zhao 2024, arXiv 2405.07719).

Rank i of p holds the tokens of part i with all heads. Three all-to-alls give it all tokens with the heads
of part i (of q, k and v), any attention runs on those, and a fourth brings the result back; backward
does the same in reverse. The parts follow each other in the sequence, so that what is brought together
ascends. With ring attention over other ranks as the inner attention this is USP: the p ranks share what is
one rank's part of the ring.

===== ==========================================================================
comm  the three of q, k and v (in backward: of dq, dk and dv)
===== ==========================================================================
sync  lay out, all-to-all and lay out again, one tensor after the other
async k and v are laid out while q travels, q is laid out again while v does
===== ==========================================================================

n tokens of a rank, B sequences, a heads or k key/value heads, d head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workloads.attention import Attend
from workloads.communication import Communicator, Intent, Site, forward_phase


@dataclass(frozen=True)
class Ulysses:
    """Attention whose `inner` sees p n tokens and a/p heads. `communicator` spans the p ranks."""

    communicator: Communicator
    comm: str
    inner: Attend

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, site: Site) -> Tensor:
        """q [n, B, a, d], k and v [n, B, k, d] -> [n, B, a, d]."""
        q, k, v = ExchangeFunction.apply(TO_HEADS, TO_TOKENS, self, site, q, k, v)
        out = self.inner(q, k, v, site)
        (back,) = ExchangeFunction.apply(TO_TOKENS, TO_HEADS, self, site, out)
        return back


@dataclass(frozen=True)
class Exchange:
    """How a tensor is laid out before an all-to-all, [p, ...] with part i for rank i, and after it."""

    before: Callable[[Tensor, int], Tensor]
    after: Callable[[Tensor], Tensor]


TO_HEADS = Exchange(
    # (n, B, a, d) -> (p, n, B, a/p, d)
    before=lambda x, ranks: x.unflatten(2, (ranks, -1)).movedim(2, 0).contiguous(),
    # (p, n, B, a/p, d), by rank -> (p n, B, a/p, d)
    after=lambda x: x.flatten(0, 1),
)
TO_TOKENS = Exchange(
    # (p n, B, a/p, d) -> (p, n, B, a/p, d)
    before=lambda x, ranks: x.unflatten(0, (ranks, -1)).contiguous(),
    # (p, n, B, a/p, d), by rank -> (n, B, a, d)
    after=lambda x: x.movedim(0, 2).flatten(2, 3),
)


class ExchangeFunction(torch.autograd.Function):
    """Each of `xs` laid out anew; the gradient goes the way back."""

    @staticmethod
    def forward(
        ctx: Any, there: Exchange, back: Exchange, ulysses: Ulysses, site: Site, *xs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.about = (back, ulysses, site)
        return exchange(there, ulysses, Intent(site, "layout", forward_phase()), xs)

    @staticmethod
    def backward(ctx: Any, *dxs: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        back, ulysses, site = ctx.about
        return None, None, None, None, *exchange(back, ulysses, Intent(site, "layout", "backward"), dxs)


def exchange(way: Exchange, ulysses: Ulysses, intent: Intent, xs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    communicator = ulysses.communicator
    launched = [
        communicator.launch(ulysses.comm, "all_to_all", way.before(x, communicator.size), intent) for x in xs
    ]
    return tuple(way.after(one.wait()) for one in launched)
