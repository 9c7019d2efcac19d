"""Korthikanti et al. 2022 (arXiv 2205.05198): activations that a GPT layer keeps for backward, in bytes.

A GPT layer in 16 bits with dropout: LayerNorm, attention with stored scores (no flash attention), an MLP
of size 4h with GeLU. s sequence length, b micro-batch, h hidden size, a heads, t tensor-parallel ranks.
Dropout masks are 1 byte per element, everything else 2; the paper leaves out what is smaller than s*b*h
(mean and variance of the norms) and so do these functions.

A common error takes equation 1 for tensor parallelism: it is a single device, without any.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class LayerSizes:
    """What a layer of the paper is made of."""

    sequence: int  # s
    micro_batch: int  # b
    hidden: int  # h
    heads: int  # a
    ranks: int = 1  # t
    kv_heads: int | None = None  # k; None: as many as heads, as in the paper

    @property
    def sbh(self) -> int:
        """Elements of one activation, s*b*h."""
        return self.sequence * self.micro_batch * self.hidden

    @property
    def key_share(self) -> Fraction:
        """k/a: elements of the keys, or the values, over those of the queries."""
        return Fraction(self.heads if self.kv_heads is None else self.kv_heads, self.heads)

    @property
    def scores(self) -> int:
        """Elements of one attention matrix over all heads, a*s*s*b."""
        return self.heads * self.sequence**2 * self.micro_batch


def layer_terms(sizes: LayerSizes) -> dict[str, int | Fraction]:
    """Bytes of one layer on a single device, tensor by tensor (section 4.1): their sum is equation 1.

    With fewer key/value heads than heads, which the paper does not have, keys and values are k/a of it.
    """
    sbh, scores, share = sizes.sbh, sizes.scores, sizes.key_share
    return {
        "norm-inputs": 2 * 2 * sbh,
        "qkv-input": 2 * sbh,
        "query-key": 2 * sbh + 2 * sbh * share,
        "value": 2 * sbh * share,
        "softmax-output": 2 * scores,
        "softmax-dropout-mask": scores,
        "softmax-dropout-output": 2 * scores,
        "projection-input": 2 * sbh,
        "attention-dropout-mask": sbh,
        "mlp-input": 2 * sbh,
        "gelu-input": 8 * sbh,
        "second-linear-input": 8 * sbh,
        "mlp-dropout-mask": sbh,
    }


REPLICATED_BY_TENSOR_PARALLELISM = (
    "norm-inputs",
    "qkv-input",
    "attention-dropout-mask",
    "mlp-input",
    "mlp-dropout-mask",
)
"""The terms that every rank of a tensor-parallel group keeps whole: the 10 of equation 2."""


SCHEMES = ("none", "tp", "sp")
RECOMPUTES = ("none", "selective", "full")

SCORE_TERMS = ("softmax-output", "softmax-dropout-mask", "softmax-dropout-output")
"""The terms 5as/h, of the attention core: what selective recompute gives up, and a flash kernel never has."""

MASK_TERMS = ("softmax-dropout-mask", "attention-dropout-mask", "mlp-dropout-mask")
"""One byte an element; of everything else the paper has two."""

ATTENTIONS = ("scores", "recomputed", "flash")
LOG_SUM_EXP_BYTES = 4


def saved_terms(
    sizes: LayerSizes,
    *,
    scheme: str,
    context_ranks: int = 1,
    attention: str = "scores",
    element_bytes: int = 2,
) -> dict[str, Fraction]:
    """Bytes of one layer on one rank, tensor by tensor, of schemes that the paper does not combine.

    `scheme` none, tp or sp over `sizes.ranks`; the sequence of `sizes` divided among `context_ranks` besides
    (ring attention, Ulysses or both: every tensor has a p-th of its tokens or heads). `attention`: scores
    kept; recomputed in backward (selective recompute); or flash, which keeps an fp32 log-sum-exp of each
    query and head instead. Sums are those of equations 1, 2, 4 and 6. Raises ValueError for other names.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"no equation for scheme '{scheme}', only for {', '.join(SCHEMES)}")
    if attention not in ATTENTIONS:
        raise ValueError(f"no equation for attention '{attention}', only for {', '.join(ATTENTIONS)}")
    ranks = 1 if scheme == "none" else sizes.ranks
    out: dict[str, Fraction] = {}
    for term, size in layer_terms(sizes).items():
        if term in SCORE_TERMS and attention != "scores":
            continue
        parts = 1 if scheme == "tp" and term in REPLICATED_BY_TENSOR_PARALLELISM else ranks
        width = Fraction(1) if term in MASK_TERMS else Fraction(element_bytes, 2)
        out[term] = width * size / (parts * context_ranks)
    if attention == "flash":
        queries = sizes.sequence * sizes.micro_batch * sizes.heads
        out["log-sum-exp"] = Fraction(LOG_SUM_EXP_BYTES * queries, ranks * context_ranks)
    return out


def single_device_bytes(sizes: LayerSizes) -> Fraction:
    """Equation 1, no parallelism: sbh (34 + 5 as/h)."""
    return sizes.sbh * (34 - _grouped(sizes) + _attention(sizes))


def tensor_parallel_bytes(sizes: LayerSizes) -> Fraction:
    """Equation 2, tensor parallelism alone: sbh (10 + 24/t + 5 as/(ht)), per rank."""
    divided = 24 - _grouped(sizes) + _attention(sizes)
    return sizes.sbh * (10 + divided / sizes.ranks)


def sequence_parallel_bytes(sizes: LayerSizes) -> Fraction:
    """Equation 4, tensor and sequence parallelism: sbh/t (34 + 5 as/h), per rank.

    A rank keeps its own part of the linears' inputs and gathers it again in backward (`save=shard`).
    """
    return Fraction(sizes.sbh, sizes.ranks) * (34 - _grouped(sizes) + _attention(sizes))


def model_bytes(sizes: LayerSizes, layers: int) -> Fraction:
    """Equation 5: all layers with tensor and sequence parallelism, sbhL/t (34 + 5 as/h), per rank."""
    return layers * sequence_parallel_bytes(sizes)


def selective_bytes(sizes: LayerSizes, layers: int = 1) -> Fraction:
    """Equation 6, the attention core recomputed in backward: 34 sbhL/t, per rank.

    What falls away is the term 5as/h (scores, their mask and dropout's output); q, k and v stay, so 34
    stays 34.
    """
    return (34 - _grouped(sizes)) * Fraction(sizes.sbh * layers, sizes.ranks)


def selective_tensor_parallel_bytes(sizes: LayerSizes, layers: int = 1) -> Fraction:
    """Equation 2 without the term of the attention core: sbhL (10 + 24/t), per rank (section 5)."""
    return layers * sizes.sbh * (10 + (24 - _grouped(sizes)) / sizes.ranks)


def full_recompute_bytes(sizes: LayerSizes, layers: int = 1) -> int:
    """Whole layers recomputed, only their inputs kept: 2sbhL (section 5), per rank."""
    return 2 * sizes.sbh * layers


def korthikanti(
    scheme: str,
    *,
    sequence: int,
    micro_batch: int,
    hidden: int,
    heads: int,
    ranks: int = 1,
    layers: int = 1,
    recompute: str = "none",
) -> Fraction:
    """The equation for a scheme and a kind of recomputation, in bytes per rank.

    `scheme` none (one device), tp, or sp (tensor and sequence parallelism); `recompute` none, selective or
    full. Exact, hence a fraction. Raises ValueError for another scheme or recomputation.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"no equation for scheme '{scheme}', only for {', '.join(SCHEMES)}")
    if recompute not in RECOMPUTES:
        raise ValueError(f"no equation for recompute '{recompute}', only for {', '.join(RECOMPUTES)}")
    sizes = LayerSizes(sequence, micro_batch, hidden, heads, 1 if scheme == "none" else ranks)
    if recompute == "full":
        return Fraction(full_recompute_bytes(sizes, layers))
    if recompute == "selective":
        selective = selective_tensor_parallel_bytes if scheme == "tp" else selective_bytes
        return selective(sizes, layers)
    whole = {"none": single_device_bytes, "tp": tensor_parallel_bytes, "sp": sequence_parallel_bytes}
    return layers * whole[scheme](sizes)


def _grouped(sizes: LayerSizes) -> Fraction:
    """What fewer key/value heads take off the 34 and the 24, of which keys and values are 4. Paper: 0."""
    return 4 * (1 - sizes.key_share)


def _attention(sizes: LayerSizes) -> Fraction:
    """5 as/h."""
    return Fraction(5 * sizes.heads * sizes.sequence, sizes.hidden)
