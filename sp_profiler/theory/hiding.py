"""From how many tokens of a rank on the hops of a ring hide, step by step as `theory.ring` times them.

c tokens of a rank, w = 4 B a d FLOPs a score in forward and 5/2 of that in backward, Phi the device's FLOP/s,
beta and alpha the link's bytes/s and latency; a hop of K and V has 2e B k d bytes a token, one of dK and dV
2g B k d with g = max(e, 4). What travels in a step of a ring of p ranks, and the scores that the slowest rank
computes meanwhile (half: c^2/2 under a causal mask, else c^2; triangle: c(c+1)/2 under one, else c^2):

========= ================ ============= ============================ =====================================
pass      step s           travels       contiguous                   zigzag, striped
========= ================ ============= ============================ =====================================
forward   0                K, V          triangle                     triangle
forward   0 < s < p-1      K, V          c^2                          half, triangle
backward  0                K, V          triangle                     triangle
backward  0 < s < p-1      K, V, dK, dV  c^2                          half, triangle
backward  p-1              dK, dV        c^2                          half, triangle
========= ================ ============= ============================ =====================================

The last hop of dK and dV has nothing to hide under, at any size. A ring of two ranks has no middle steps: K,
V and dK, dV never travel together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sp_profiler.theory.ring import ATTENTION_BACKWARD, LAYOUTS, RingSizes

Pass = Literal["forward", "backward"]

_WHOLE = (Fraction(1), Fraction(0))
_HALF = (Fraction(1, 2), Fraction(0))
_TRIANGLE = (Fraction(1, 2), Fraction(1, 2))


@dataclass(frozen=True)
class StepKind:
    """Steps that are alike: hops of each kind beside squares c^2 + singles c scores of the slowest rank."""

    key_hops: int
    gradient_hops: int
    squares: Fraction
    singles: Fraction


def step_kinds(layout: str, *, ranks: int, causal: bool, direction: Pass) -> tuple[StepKind, ...]:
    """The kinds of steps in which something travels that can hide; see the table above. p = `ranks`, at least
    2. Raises ValueError for another layout."""
    if layout not in LAYOUTS:
        raise ValueError(f"no layout '{layout}', only contiguous, zigzag and striped")
    return tuple(_kinds(layout, ranks, causal, direction))


def _kinds(layout: str, ranks: int, causal: bool, direction: Pass) -> Iterator[StepKind]:
    own = _TRIANGLE if causal else _WHOLE
    masked = {"contiguous": _WHOLE, "zigzag": _HALF, "striped": _TRIANGLE}[layout]
    later = masked if causal else _WHOLE
    backward = direction == "backward"
    yield StepKind(1, 0, *own)
    if ranks > 2:
        yield StepKind(1, int(backward), *later)
    if backward:
        yield StepKind(0, 1, *later)


def least_tokens(
    sizes: RingSizes, layout: str, *, causal: bool, direction: Pass, flops_per_s: float, bytes_per_s: float
) -> float:
    """Tokens of a rank from which on every hop hides that takes no latency, as Liu et al. count (section 3):
    c >= x, with x the bytes a token over beta and over w/Phi times the share of c^2 that is computed.

    Forward Phi e / (2 beta) k/a, with a causal mask twice that (`theory.ring.tokens_to_hide`). Backward,
    without a mask and with three ranks or more: Phi (e + g) / (5 beta) k/a. `seq_len` of `sizes` is not read.
    """
    kinds = step_kinds(layout, ranks=sizes.ranks, causal=causal, direction=direction)
    work_s = _score_seconds(sizes, direction, flops_per_s)
    return max(_token_bytes(kind, sizes) / bytes_per_s / (work_s * float(kind.squares)) for kind in kinds)


def least_tokens_with_latency(
    sizes: RingSizes,
    layout: str,
    *,
    causal: bool,
    direction: Pass,
    flops_per_s: float,
    bytes_per_s: float,
    latency_s: float,
) -> float:
    """The same where every hop also takes `latency_s`, and scores are counted one by one: of each kind of
    step the positive root of w/Phi (squares c^2 + singles c) = bytes c / beta + hops alpha; the largest."""
    work_s = _score_seconds(sizes, direction, flops_per_s)
    return max(
        _root(
            work_s * float(kind.squares),
            _token_bytes(kind, sizes) / bytes_per_s - work_s * float(kind.singles),
            (kind.key_hops + kind.gradient_hops) * latency_s,
        )
        for kind in step_kinds(layout, ranks=sizes.ranks, causal=causal, direction=direction)
    )


def _root(square: float, linear: float, constant: float) -> float:
    """Of square c^2 - linear c - constant = 0 the larger one; no block has less than a token."""
    return max(1.0, (linear + math.sqrt(linear**2 + 4 * square * constant)) / (2 * square))


def _score_seconds(sizes: RingSizes, direction: Pass, flops_per_s: float) -> float:
    """w / Phi."""
    times = float(ATTENTION_BACKWARD) if direction == "backward" else 1.0
    return times * 4 * sizes.micro_batch * sizes.heads * sizes.head_dim / flops_per_s


def _token_bytes(kind: StepKind, sizes: RingSizes) -> int:
    """What the step sends for each token of a rank."""
    element = kind.key_hops * sizes.element_bytes + kind.gradient_hops * sizes.high_bytes
    return 2 * element * sizes.micro_batch * sizes.kv_heads * sizes.head_dim
