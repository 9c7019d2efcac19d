"""Closed forms of context parallelism: ring attention and its relatives. Bytes, seconds, tokens.

Sources: ring attention, Liu et al. 2023 (arXiv 2310.01889, section 3 and table 2); ring self-attention, Li
et al. 2021 (arXiv 2105.13120); Ulysses, Jacobs et al. 2023 (arXiv 2309.14509); USP, Fang and Zhao 2024 (arXiv
2405.07719); striped attention, Brandon et al. 2023 (arXiv 2311.09431); zigzag, Zhu 2024 and Llama 3 (arXiv
2407.21783, section 3.3.2); flash attention's backward, Dao et al. 2022 (arXiv 2205.14135, appendix B).

S tokens, p ranks, n = S/p tokens of one rank, B sequences, a heads, k key/value heads, d head size, e bytes
per element. Phi is a device's FLOP/s at that element size, beta a link's bytes/s in one direction, alpha its
latency in seconds. A common error forgets to divide the block by p.

What a rank sends per layer (`send_recv` to the next rank; r = (p-1)/p):

=================== ============================== ===================================================
scheme              forward                        backward
=================== ============================== ===================================================
ring                (p-1) hops of 2e n B k d       the same, and p hops of 2g n B k d of dK and dV
Ulysses             r e n B d (2a + 2k)            the same
=================== ============================== ===================================================

with g = max(e, 4), as dK and dV are summed in fp32. With a block's attention of t_s seconds in ring step s on
the slowest rank, h seconds for a hop of K and V and g' for one of dK and dV, all ranks in step:

========= ==================================================================================================
pass      seconds
========= ==================================================================================================
forward   sum of max(t_s, h) for s < p-1, and t_(p-1)
backward  u_s = 5/2 t_s: max(u_0, h), max(u_s, h + g') for 0 < s < p-1, max(u_(p-1), g'), and g' for the last
========= ==================================================================================================

Scores of a block that a causal mask leaves to rank i in ring step s, when it has the keys of rank i-s:

========== =============== ========================= =================== ===================================
layout     s = 0           0 < s <= i                s > i               rank i holds
========== =============== ========================= =================== ===================================
contiguous n(n+1)/2        n^2                       0                   tokens i n to (i+1) n
zigzag     n(n+1)/2        n^2/2                     n^2/2               chunks i and 2p-1-i of 2p
striped    n(n+1)/2        n(n+1)/2                  n(n-1)/2            tokens i, i+p, i+2p...
========== =============== ========================= =================== ===================================

In every step the last rank has as much to do as any other: its row is the time of the ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

GRADIENT_BYTES = 4
"""Of dK and dV at least: they are summed around the ring in fp32, twice the bytes of bf16."""

LAYOUTS = ("contiguous", "zigzag", "striped")

ATTENTION_BACKWARD = Fraction(5, 2)
"""Backward's GEMMs over forward's: five (scores again, dV, dP, dQ, dK) to two."""


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

    @property
    def high_bytes(self) -> int:
        """Of an element of what is summed or merged: fp32 or better."""
        return max(self.element_bytes, GRADIENT_BYTES)


def hop_bytes(sizes: RingSizes) -> int:
    """What a rank sends per hop, K and V of one block: m = 2 e (S/p) B k d."""
    return 2 * sizes.element_bytes * sizes.block_elements


def gradient_hop_bytes(sizes: RingSizes) -> int:
    """What a rank sends per hop of dK and dV, in fp32 or better: 2 max(e, 4) (S/p) B k d."""
    return 2 * sizes.high_bytes * sizes.block_elements


def forward_wire_bytes(sizes: RingSizes) -> int:
    """What a rank sends per layer in forward: p - 1 hops."""
    return (sizes.ranks - 1) * hop_bytes(sizes)


def backward_wire_bytes(sizes: RingSizes) -> int:
    """In backward: K and V again p - 1 hops, dK and dV p hops, until they are home, in fp32."""
    hops = sizes.ranks if sizes.ranks > 1 else 0
    return forward_wire_bytes(sizes) + hops * gradient_hop_bytes(sizes)


def score_flops(sizes: RingSizes, scores: int) -> int:
    """FLOPs of attention over so many scores of each head and sequence: QK^T and PV, 4 B a d each."""
    return 4 * scores * sizes.micro_batch * sizes.heads * sizes.head_dim


def block_flops(sizes: RingSizes, *, share: Fraction = Fraction(1)) -> Fraction:
    """FLOPs of attention of one rank's queries over one block: QK^T and PV, 4 c^2 B a d.

    `share` is the part of the scores that a mask leaves: of causal zigzag half, in every step.
    """
    return share * score_flops(sizes, sizes.tokens**2)


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


def backward_ring_seconds(block_s: Sequence[float], hop_s: float, gradient_hop_s: float) -> float:
    """Time of a backward over the ring; `block_s` holds the seconds of the p steps of backward.

    dK and dV follow their block one step behind, on the same link: in step s they and the next K and V
    travel while the block is computed; the last hop of dK and dV has nothing left to hide under.
    """
    return sum(block_s) + exposed_backward_ring_seconds(block_s, hop_s, gradient_hop_s)


def exposed_backward_ring_seconds(block_s: Sequence[float], hop_s: float, gradient_hop_s: float) -> float:
    """Of `backward_ring_seconds` the part in which nothing is computed."""
    last = len(block_s) - 1
    if last == 0:
        return 0.0  # nobody to send to
    travelling = [(hop_s if s < last else 0.0) + (gradient_hop_s if s > 0 else 0.0) for s in range(last + 1)]
    under = (max(sent - block, 0.0) for sent, block in zip(travelling, block_s, strict=True))
    return sum(under) + gradient_hop_s


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
    zigzag computes half of each block and needs twice the tokens. With latency, and of backward:
    `theory.hiding`.
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


def rank_scores(layout: str, *, ranks: int, tokens: int, rank: int, step: int, causal: bool = True) -> int:
    """Scores of one head and sequence that `rank` computes in ring step `step`; the table above.

    n = `tokens` per rank, even in zigzag. Raises ValueError for another layout.
    """
    _check_layout(layout)
    n = tokens
    if not causal:
        return n * n
    if step == 0:
        return n * (n + 1) // 2
    if layout == "zigzag":
        return n * n // 2
    if layout == "contiguous":
        return n * n if step <= rank else 0
    return n * (n + 1) // 2 if step <= rank else n * (n - 1) // 2


def slowest_scores(layout: str, *, ranks: int, tokens: int, causal: bool = True) -> tuple[int, ...]:
    """Of each of the p ring steps the most scores that a rank computes: those of the last rank."""
    return tuple(
        rank_scores(layout, ranks=ranks, tokens=tokens, rank=ranks - 1, step=step, causal=causal)
        for step in range(ranks)
    )


def causal_balance(layout: str, *, ranks: int, tokens: int) -> Fraction:
    """Ideal time over the time of a ring whose every step waits for its slowest rank, with a causal mask.

    n = `tokens` per rank, p = `ranks`; counted in scores, the own block included: S(S+1)/2 over p times the
    sum of `slowest_scores`. contiguous: (np+1)/((2p-1)n+1). zigzag: 1 (n even). striped: (np+1)/(p(n+1)).
    Limits are p/(2p-1) for large n and n/(n+1) for large p. Raises ValueError for another layout.
    """
    _check_layout(layout)
    n, p = tokens, ranks
    if layout == "contiguous":
        return Fraction(n * p + 1, (2 * p - 1) * n + 1)
    if layout == "zigzag":
        return Fraction(1)
    return Fraction(n * p + 1, p * (n + 1))


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"no layout '{layout}', only contiguous, zigzag and striped")


def ring_saved_bytes(sizes: RingSizes) -> int:
    """What a rank keeps of one layer's attention for backward: q, k, v, out and the lse in fp32 or better.

    The same in Ulysses, which has p times the tokens of a p-th of the heads.
    """
    queries = sizes.tokens * sizes.micro_batch * sizes.heads
    return (
        sizes.element_bytes * (2 * queries * sizes.head_dim + 2 * sizes.block_elements)
        + sizes.high_bytes * queries
    )


def all_to_all_bytes(sizes: RingSizes) -> dict[str, int]:
    """A rank's buffer in each of Ulysses' four all-to-alls: q and out e n B a d, k and v e n B k d bytes.

    In backward those of their gradients, which are as large.
    """
    queries = sizes.element_bytes * sizes.tokens * sizes.micro_batch * sizes.heads * sizes.head_dim
    keys = sizes.element_bytes * sizes.block_elements
    return {"q": queries, "k": keys, "v": keys, "out": queries}


def ulysses_wire_bytes(sizes: RingSizes) -> Fraction:
    """What a rank sends per layer and direction: four all-to-alls (q, k, v and out).

    r e (S/p) B d (2a + 2k), r = (p-1)/p: q and out have a heads, k and v k of them.
    """
    return Fraction((sizes.ranks - 1) * sum(all_to_all_bytes(sizes).values()), sizes.ranks)


RING_SELF_ATTENTION_WIRE = 8
RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER = 6
"""In r F per layer, forward and backward: as published (dK and dV all-reduced), and with their sum
reduce-scattered."""


def ring_self_attention_score_bytes(sizes: RingSizes) -> int:
    """What ring self-attention keeps besides, because its softmax sees whole rows: e B a (S/p) S."""
    return sizes.element_bytes * sizes.micro_batch * sizes.heads * sizes.tokens * sizes.seq_len


def ring_scores(layout: str, *, ranks: int, tokens: int, causal: bool) -> tuple[tuple[int, ...], ...]:
    """Scores that rank i computes in step s of a ring, with the keys of rank i - s: [i][s].

    Of one head and sequence; p = `ranks`, n = `tokens` of one rank. Step 0 is the own block, with n(n+1)/2
    scores under a causal mask (zigzag: the same). Later: contiguous n^2 where the keys' rank comes earlier,
    else none; zigzag, with chunks i and 2p-1-i of 2p, half of n^2 always; striped, with every p-th token,
    n(n+1)/2 where it comes earlier, else n(n-1)/2. Raises ValueError for another layout, and for zigzag
    with an odd number of tokens.
    """
    n, p = tokens, ranks
    if layout not in ("contiguous", "zigzag", "striped"):
        raise ValueError(f"no layout '{layout}', only contiguous, zigzag and striped")
    if layout == "zigzag" and n % 2:
        raise ValueError(f"{n} tokens of a rank are no two chunks")
    if not causal:
        return ((n * n,) * p,) * p
    own = n * (n + 1) // 2
    earlier, later = {
        "contiguous": (n * n, 0),
        "zigzag": (n * n // 2, n * n // 2),
        "striped": (own, n * (n - 1) // 2),
    }[layout]
    return tuple((own, *(earlier if step <= i else later for step in range(1, p))) for i in range(p))


def score_balance(scores: Sequence[Sequence[int]]) -> Fraction:
    """Ideal time over that of a ring whose every step waits for its slowest rank; `scores` are [i][s]."""
    slowest = sum(max(step) for step in zip(*scores, strict=True))
    return Fraction(sum(map(sum, scores)), len(scores) * slowest)


def limit_balance(layout: str, *, ranks: int, causal: bool) -> Fraction:
    """`causal_balance` of an endless sequence: p/(2p-1) contiguous, else 1; without a mask always 1."""
    if causal and layout == "contiguous":
        return Fraction(ranks, 2 * ranks - 1)
    return Fraction(1)
