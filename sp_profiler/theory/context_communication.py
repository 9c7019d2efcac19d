"""What attention over a divided sequence sends, by the closed forms of `theory.ring`, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from sp_profiler.theory.communication import wire_bytes
from sp_profiler.theory.context_memory import ContextShape
from sp_profiler.theory.ring import RingSizes, all_to_all_bytes, gradient_hop_bytes, hop_bytes


@dataclass(frozen=True)
class Transfer:
    """One collective of a layer's attention: `bytes` as `wire_bytes` wants them, among so many ranks."""

    op: str
    bytes: int
    ranks: int


@dataclass(frozen=True)
class AttentionTransfers:
    """Of one layer and micro-batch, in the order of purposes, not of time."""

    forward: tuple[Transfer, ...]
    backward: tuple[Transfer, ...]

    def again(self, recompute: str) -> tuple[Transfer, ...]:
        """What backward sends besides, where forward is run again: `selective` attention alone, `full` whole
        blocks. Running attention again ends when all is there that its backward needs, before the all-to-all
        of its result; the linear behind it, which needs that, is run again in full recompute only."""
        if recompute == "none":
            return ()
        last = max((i for i, one in enumerate(self.forward) if one.op == "all_to_all"), default=None)
        if recompute == "full" or last is None:
            return self.forward
        return self.forward[:last] + self.forward[last + 1 :]


def attention_transfers(shape: ContextShape) -> AttentionTransfers:
    """The hops of a ring (Liu et al. 2023) or of ring self-attention (Li et al. 2021, gradients of keys and
    values reduce-scattered), and Ulysses' all-to-alls (Jacobs et al. 2023); of usp both."""
    local, parts = shape.local, shape.parts
    u = shape.ulysses_ranks
    sizes = RingSizes(
        seq_len=local.seq_len * u,
        ranks=u,
        micro_batch=local.micro_batch,
        heads=local.heads // local.parts,
        kv_heads=local.kv_heads // local.parts,
        head_dim=local.hidden // local.heads,
        element_bytes=local.element_bytes,
    )
    exchanged = all_to_all_bytes(sizes).values() if u > 1 else ()
    exchanges = tuple(Transfer("all_to_all", size, u) for size in exchanged)
    ring = parts // u
    of_ring = replace(
        sizes,
        seq_len=shape.seq_len,
        ranks=ring,
        heads=sizes.heads // u,
        kv_heads=sizes.kv_heads // u,
    )
    if ring == 1:
        return AttentionTransfers(exchanges, exchanges)
    hops = (Transfer("send_recv", hop_bytes(of_ring), ring),) * (ring - 1)
    if shape.scheme == "rsa":
        halves = (Transfer("send_recv", hop_bytes(of_ring) // 2, ring),) * (2 * (ring - 1))
        sums = (Transfer("reduce_scatter", ring * hop_bytes(of_ring) // 2, ring),) * 2
        return AttentionTransfers(halves, (*halves, *sums))
    gradients = (Transfer("send_recv", gradient_hop_bytes(of_ring), ring),) * ring
    return AttentionTransfers((*exchanges, *hops), (*exchanges, *hops, *gradients))


def sent_bytes(transfers: Sequence[Transfer]) -> Fraction:
    """What one rank sends for all of them."""
    return sum((wire_bytes(one.op, one.bytes, one.ranks) for one in transfers), Fraction(0))
