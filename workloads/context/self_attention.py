"""Ring self-attention of ColAI-SP (Li et al. 2021, arXiv 2105.13120, section 3.2): whole rows of scores.

The ring passes keys alone until every rank has its whole rows of scores, [n, S], takes an ordinary softmax
of them, and then passes the values (equations 3 and 4). Backward passes the values for the gradient of the
probabilities, then the keys for that of the queries. The gradients of keys and values, to which every rank
contributes for all S tokens, are summed over the ranks. With r = (p-1)/p a rank sends, F being a full
activation and as many key/value heads as heads:

=================================== ======= ======== =========
sum of dK and dV                    forward backward together
=================================== ======= ======== =========
all-reduce, as published            2rF     6rF      8rF
reduce-scatter, as done here        2rF     4rF      6rF
=================================== ======= ======== =========

A rank needs the sum for its own tokens only. It keeps the probabilities for backward, B a n S numbers, which
is what ring attention (`ring.py`) was invented to avoid. A causal mask hides scores, but saves no work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workloads.communication import Communicator, Complete, Intent, Pending, Site, forward_phase
from workloads.context.ring import attention_range, heads_first, heads_last
from workloads.norms import compute_dtype


@dataclass(frozen=True)
class RingSelfAttention:
    """The ring as this rank sees it. `positions`: of the tokens of each rank."""

    communicator: Communicator
    comm: str
    positions: Sequence[Tensor]
    causal: bool

    @classmethod
    def of(
        cls, communicator: Communicator, comm: str, positions: Sequence[Tensor], *, causal: bool
    ) -> RingSelfAttention:
        return cls(communicator, comm, positions, causal)

    def mask(self, scores: Tensor, owner: int) -> None:
        """Hide in scores [..., n, n] the keys of rank `owner` that a query of this rank may not see."""
        if self.causal:
            own, keys = (self.positions[r].to(scores.device) for r in (self.communicator.rank, owner))
            scores.masked_fill_(keys[None, :] > own[:, None], float("-inf"))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, site: Site) -> Tensor:
        """Attention of q [n, B, a, d] over the k, v [n, B, k, d] of all ranks: [n, B, a, d]."""
        return SelfAttentionFunction.apply(q, k, v, self, site)

    def around(self, block: Tensor, site: Site, phase: str, use: Callable[[int, Tensor], None]) -> None:
        """Call `use(owner, block)` with the block of every rank; the next travels meanwhile."""
        size = self.communicator.size
        for step in range(size):
            arriving: Pending | Complete = Complete(block)
            if step < size - 1:
                intent = Intent(site, "kv", phase, "attention")
                arriving = self.communicator.launch(self.comm, "send_recv", block, intent)
            with attention_range(site):
                use((self.communicator.rank - step) % size, block)
            block = arriving.wait()

    def sum_home(self, parts: Tensor, site: Site, partner: str | None) -> Pending | Complete:
        """parts [p, ...], for each rank's tokens -> [1, ...], for this rank's, summed over ranks."""
        intent = Intent(site, "dkv", "backward", partner)
        return self.communicator.launch(self.comm, "reduce_scatter", parts, intent)


class SelfAttentionFunction(torch.autograd.Function):
    """Inside, q is [B, k, a/k, n, d] and k, v are [B, k, n, d]; j is a rank, i this one."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ring: RingSelfAttention, site: Site) -> Tensor:
        kv_heads, ranks, phase = k.shape[2], ring.communicator.size, forward_phase()
        k, v = heads_first(k).contiguous(), heads_first(v).contiguous()
        high = compute_dtype(q.dtype)
        queries = _grouped(q, kv_heads).to(high) * q.shape[-1] ** -0.5
        scores = queries.new_empty(*queries.shape[:4], ranks, len(q))  # (B, k, a/k, n, p, n)

        def score(owner: int, keys: Tensor) -> None:
            scores[..., owner, :] = queries @ keys.to(high)[:, :, None].mT  # S_ij = Q_i K_j^T
            ring.mask(scores[..., owner, :], owner)

        ring.around(k, site, phase, score)
        with attention_range(site):
            p = scores.flatten(4).softmax(-1).view_as(scores).to(q.dtype)
            out = torch.zeros_like(queries)

        def weigh(owner: int, values: Tensor) -> None:
            out.add_(p[..., owner, :].to(high) @ values.to(high)[:, :, None])  # O_i = sum of P_ij V_j

        ring.around(v, site, phase, weigh)
        ctx.save_for_backward(q, k, v, p)
        ctx.about = (ring, site)
        return heads_last(out.flatten(1, 2).to(q.dtype)).contiguous()

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, p = ctx.saved_tensors
        ring, site = ctx.about
        high, kv_heads = compute_dtype(q.dtype), k.shape[1]
        dout = _grouped(dout, kv_heads).to(high)
        queries = _grouped(q, kv_heads).to(high) * q.shape[-1] ** -0.5
        ds = torch.empty_like(p, dtype=high)
        dk, dv = (x.new_empty(len(ring.communicator.ranks), *x.shape) for x in (k, v))

        def of_values(owner: int, values: Tensor) -> None:
            ds[..., owner, :] = dout @ values.to(high)[:, :, None].mT  # dP_ij = dO_i V_j^T
            dv[owner] = (p[..., owner, :].to(high).mT @ dout).sum(2)  # this rank's term of P_ij^T dO_i

        ring.around(v, site, "backward", of_values)
        summing = ring.sum_home(dv, site, "attention")
        with attention_range(site):
            probabilities = p.to(high)
            ds.sub_((probabilities * ds).sum((-1, -2), keepdim=True)).mul_(probabilities)
            dq = torch.zeros_like(queries)

        def of_keys(owner: int, keys: Tensor) -> None:
            dq.add_(ds[..., owner, :] @ keys.to(high)[:, :, None])  # dQ_i = sum of dS_ij K_j
            dk[owner] = (ds[..., owner, :].mT @ queries).sum(2)  # this rank's term of dS_ij^T Q_i

        ring.around(k, site, "backward", of_keys)
        own_dk = ring.sum_home(dk, site, None)
        dq = heads_last((dq * q.shape[-1] ** -0.5).flatten(1, 2).to(q.dtype))
        own_dv = summing.wait()[0]
        return dq, heads_last(own_dk.wait()[0]), heads_last(own_dv), None, None


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """[n, B, a, d] -> [B, k, a/k, n, d], a view."""
    return heads_first(x).unflatten(1, (kv_heads, -1))
