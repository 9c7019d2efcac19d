"""Closed forms of context parallelism: ring attention and its relatives. Bytes, seconds, tokens.

Sources: ring attention, Liu et al. 2023 (arXiv 2310.01889, section 3 and table 2); ring self-attention, Li
et al. 2021 (arXiv 2105.13120); Ulysses, Jacobs et al. 2023 (arXiv 2309.14509); striped attention, Brandon
et al. 2023 (arXiv 2311.09431).

S tokens, p ranks, c = S/p tokens of one rank, B sequences, a heads, k key/value heads, d head size, e bytes
per element. Phi is a device's FLOP/s at that element size, beta a link's bytes/s in one direction, alpha its
latency in seconds. A common error forgets to divide the block by p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

GRADIENT_BYTES = 4
"""Of dK and dV, which the usual implementation sums around the ring in fp32: twice the bytes of bf16."""


@dataclass(frozen=True)
class RingSizes:
    """Attention over a ring. `seq_len` is of the whole sequence; `ranks` must divide it."""

    seq_len: int
    ranks: int
    micro_batch: int
    heads: int
    kv_heads: int
    head_dim: int
    element_bytes: int = 2

    def __post_init__(self) -> None:
        if self.seq_len % self.ranks:
            raise ValueError(f"{self.seq_len} tokens cannot be divided among {self.ranks} ranks")

    @property
    def tokens(self) -> int:
        """c, tokens of one rank."""
        return self.seq_len // self.ranks

    @property
    def block_elements(self) -> int:
        """Elements of one rank's K (or V)."""
        return self.tokens * self.micro_batch * self.kv_heads * self.head_dim


def hop_bytes(sizes: RingSizes) -> int:
    """What a rank sends per hop, K and V of one block: m = 2 e (S/p) B k d."""
    return 2 * sizes.element_bytes * sizes.block_elements


def forward_wire_bytes(sizes: RingSizes) -> int:
    """What a rank sends per layer in forward: p - 1 hops."""
    return (sizes.ranks - 1) * hop_bytes(sizes)


def backward_wire_bytes(sizes: RingSizes) -> int:
    """In backward: K and V again p - 1 hops, dK and dV p hops, until they are home, in fp32."""
    gradients = 2 * GRADIENT_BYTES * sizes.block_elements
    return forward_wire_bytes(sizes) + sizes.ranks * gradients


def block_flops(sizes: RingSizes, *, share: Fraction = Fraction(1)) -> Fraction:
    """FLOPs of attention of one rank's queries over one block: QK^T and PV, 4 c^2 B a d.

    `share` is the part of the scores that a mask leaves: of causal zigzag half, in every step.
    """
    return share * 4 * sizes.tokens**2 * sizes.micro_batch * sizes.heads * sizes.head_dim


def hop_seconds(size_bytes: float, *, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """m/beta + alpha."""
    return size_bytes / bytes_per_s + latency_s


def ring_seconds(block_s: Sequence[float], hop_s: float) -> float:
    """Time of a forward over the ring: block i is computed while block i+1 arrives.

    sum of max(hop, block) over all but the last, and the last block: with equal blocks the first block and
    p - 1 times max(hop, block). `block_s` holds the seconds of the p steps.
    """
    *before, last = block_s
    return sum(max(hop_s, block) for block in before) + last


def exposed_ring_seconds(block_s: Sequence[float], hop_s: float) -> float:
    """Of `ring_seconds` the part in which nothing is computed: max(hop - block, 0) of each hop."""
    return sum(max(hop_s - block, 0.0) for block in block_s[:-1])


def tokens_to_hide(
    *,
    flops_per_s: float,
    bytes_per_s: float,
    element_bytes: int = 2,
    heads: int = 1,
    kv_heads: int = 1,
    causal_zigzag: bool = False,
) -> float:
    """Tokens per rank from which on hops hide behind attention: c >= Phi e / (2 beta) k/a.

    Liu et al. (section 3) state Phi/beta, which is bf16 with as many key/value heads as heads. Causal
    zigzag computes half of each block and needs twice the tokens.
    """
    plain = flops_per_s * element_bytes / (2 * bytes_per_s) * kv_heads / heads
    return 2 * plain if causal_zigzag else plain


TABLE_2 = {
    "A100 NVLink": (312.0, 300.0, 1.0),
    "A100 InfiniBand": (312.0, 12.5, 24.5),
    "TPU v3": (123.0, 112.0, 1.1),
    "TPU v4": (275.0, 268.0, 1.0),
    "TPU v5e": (196.0, 186.0, 1.1),
}
"""Table 2 of Liu et al.: TFLOP/s, GB/s, and the smallest block in thousand tokens as printed there."""


def causal_balance(layout: str, *, ranks: int, tokens: int) -> Fraction:
    """Ideal time over the time of a ring whose every step waits for its slowest rank, with a causal mask.

    n = `tokens` per rank, p = `ranks`; counted in scores, the own block included. contiguous: rank i has
    tokens i n to (i+1) n, (np+1)/((2p-1)n+1). zigzag: chunks i and 2p-1-i of 2p, 1 (n even). striped: every
    p-th token, (np+1)/(p(n+1)). Limits are p/(2p-1) for large n and n/(n+1) for large p. Raises ValueError
    for another layout.
    """
    n, p = tokens, ranks
    if layout == "contiguous":
        return Fraction(n * p + 1, (2 * p - 1) * n + 1)
    if layout == "zigzag":
        return Fraction(1)
    if layout == "striped":
        return Fraction(n * p + 1, p * (n + 1))
    raise ValueError(f"no layout '{layout}', only contiguous, zigzag and striped")


def ring_saved_bytes(sizes: RingSizes) -> int:
    """What a rank keeps of one layer's ring attention for backward: q, k, v, out and the fp32 lse."""
    queries = sizes.tokens * sizes.micro_batch * sizes.heads
    return sizes.element_bytes * (2 * queries * sizes.head_dim + 2 * sizes.block_elements) + 4 * queries


def ulysses_wire_bytes(sizes: RingSizes) -> Fraction:
    """What a rank sends per layer and direction: four all-to-alls (q, k, v and out).

    r e (S/p) B d (2a + 2k), r = (p-1)/p: q and out have a heads, k and v k of them.
    """
    elements = sizes.tokens * sizes.micro_batch * sizes.head_dim * (2 * sizes.heads + 2 * sizes.kv_heads)
    return Fraction((sizes.ranks - 1) * sizes.element_bytes * elements, sizes.ranks)


RING_SELF_ATTENTION_WIRE = 8
RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER = 6
"""In r F per layer, forward and backward: as published (dK and dV all-reduced), and with their sum
reduce-scattered."""


def ring_self_attention_score_bytes(sizes: RingSizes) -> int:
    """What ring self-attention keeps besides, because its softmax sees whole rows: e B a (S/p) S."""
    return sizes.element_bytes * sizes.micro_batch * sizes.heads * sizes.tokens * sizes.seq_len
