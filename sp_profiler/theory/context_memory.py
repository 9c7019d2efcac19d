"""Closed forms of memory under context parallelism: what one rank keeps for backward, in bytes.

p parts of the sequence; T ranks share one model inside each part. Everything but attention works token by
token on the n = S/p tokens of a part: there the terms are those of `theory.memory` for so many tokens.
Attention, with F = e n B H of these tokens and K the same for k key/value heads (FK = F k/a):

=================== ============================= ==============================================
scheme              kept by attention             kept besides, as input of the output linear
=================== ============================= ==============================================
ring                q, k, v, out and lse          nothing: it is the same out
ring self-attention q, k, v and the scores        out
ulysses             q, k, v, out and lse, laid    out, laid out by tokens
                    out by heads
usp                 the same                      the same
=================== ============================= ==============================================

Liu et al. 2023 (arXiv 2310.01889, section 3.1) count the same for a ring; the scores, e B a n S, are those of
Li et al. 2021 (arXiv 2105.13120, section 3.2). All of it is divided by T. Attention alone has no linear.
"""

from __future__ import annotations

from dataclasses import dataclass

from sp_profiler.theory.memory import Shape, attention_bytes, block_terms, outer_terms

SCHEMES = ("ring", "ulysses", "rsa", "usp")
_TOKEN_BYTES = 8


@dataclass(frozen=True)
class ContextShape:
    """`local` is the shape of the model that T ranks share, with the n tokens of one part as its sequence.

    `ulysses` is the number of ranks that exchange heads for tokens, of usp. Raises ValueError for an unknown
    scheme.
    """

    scheme: str
    seq_len: int
    local: Shape
    ulysses: int = 1
    attention_only: bool = False

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"no closed form for scheme '{self.scheme}'")

    @property
    def parts(self) -> int:
        """p."""
        return self.seq_len // self.local.seq_len

    @property
    def ulysses_ranks(self) -> int:
        """Ranks that exchange heads for tokens, 1 where none do."""
        return {"ulysses": self.parts, "usp": self.ulysses}.get(self.scheme, 1)

    @property
    def exchanges_heads(self) -> bool:
        return self.ulysses_ranks > 1


def _out_bytes(shape: ContextShape) -> int:
    """The attention's result, or q: F/T."""
    return shape.local.activation_bytes // shape.local.parts


def _inputs_bytes(shape: ContextShape) -> int:
    """q, k and v: F/T + 2 F/T k/a."""
    local = shape.local
    return _out_bytes(shape) + 2 * local.activation_bytes * local.kv_heads // (local.heads * local.parts)


def score_bytes(shape: ContextShape) -> int:
    """The probabilities of ring self-attention: e B a/T n S."""
    local = shape.local
    return local.element_bytes * local.tokens * shape.seq_len * local.heads // local.parts


def context_attention_bytes(shape: ContextShape) -> int:
    """What attention itself keeps; see the table above."""
    if shape.scheme == "rsa":
        return _inputs_bytes(shape) + score_bytes(shape)
    return attention_bytes(shape.local)


def context_block_terms(shape: ContextShape) -> dict[str, int]:
    """Bytes by term (`theory.memory.TERMS`) that one block keeps for backward, one micro-batch."""
    selective = shape.local.recompute == "selective"
    if shape.attention_only:
        if selective:
            return {"recompute-input": _inputs_bytes(shape)}
        return {"attention": context_attention_bytes(shape)}
    terms = block_terms(shape.local)
    if "attention" in terms:
        terms["attention"] = context_attention_bytes(shape)
        if shape.scheme == "rsa" or shape.exchanges_heads:
            terms["row-input"] += _out_bytes(shape)
    return terms


def context_outer_terms(shape: ContextShape) -> dict[str, int]:
    """Bytes by term of what is there once. A rank takes its tokens and the ones that follow them out of the
    sequence, so that each micro-batch keeps both, 8 nB bytes each: what the embedding looked up, and what the
    loss compares with."""
    if shape.attention_only:
        return {}
    terms = outer_terms(shape.local)
    tokens = _TOKEN_BYTES * shape.local.tokens
    terms["embedding"] = tokens
    terms["logits"] += tokens
    return terms
