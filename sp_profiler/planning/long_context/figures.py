"""Figures of one scheme: what a layer keeps, computes, sends and takes, and what of it hides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sp_profiler.planning.long_context.links import (
    Group,
    as_ns,
    collective_time,
    hop_time,
    ring_group,
    tensor_collectives,
    tensor_group,
    ulysses_group,
)
from sp_profiler.planning.long_context.model import (
    DIRECTIONS,
    ContextSizes,
    Direction,
    LayerTime,
    RingFigures,
    ToHide,
)
from sp_profiler.planning.long_context.schemes import Candidate, granularity
from sp_profiler.planning.machines import Machines
from sp_profiler.theory.hiding import least_tokens, least_tokens_with_latency
from sp_profiler.theory.korthikanti import LayerSizes, saved_terms
from sp_profiler.theory.machine import Machine
from sp_profiler.theory.memory import Shape, block_terms
from sp_profiler.theory.ring import (
    ATTENTION_BACKWARD,
    RingSizes,
    all_to_all_bytes,
    causal_balance,
    exposed_backward_ring_seconds,
    exposed_ring_seconds,
    gradient_hop_bytes,
    hop_bytes,
    score_flops,
    slowest_scores,
    tokens_to_hide,
)
from sp_profiler.theory.time import block_linears, gemm_seconds

BACKWARD_OVER_FORWARD = {"flash": ATTENTION_BACKWARD, "scores": Fraction(2), "recomputed": Fraction(3)}
"""Products of attention's backward over the two of its forward: four with the scores kept (dV, dP, dQ, dK),
both of forward besides where it is recomputed as a whole; a flash kernel makes the scores alone again."""


@dataclass(frozen=True)
class Division:
    """A scheme at its sizes, in the words of the closed forms."""

    one: Candidate
    sizes: ContextSizes
    element_bytes: int

    @property
    def context(self) -> RingSizes:
        """Tokens among all context ranks, with the heads that TP leaves a rank: of K, V and all-to-alls."""
        return self._ring_sizes(self.one.cp, 1)

    @property
    def ring(self) -> RingSizes:
        """One part of the ring: the tokens of all its Ulysses ranks, and a rank's share of the heads."""
        return self._ring_sizes(self.one.ring, self.one.ulysses)

    def _ring_sizes(self, ranks: int, sharing_heads: int) -> RingSizes:
        s, shared = self.sizes, self.one.tp * sharing_heads
        return RingSizes(
            seq_len=s.seq_len,
            ranks=ranks,
            micro_batch=s.micro_batch,
            heads=s.heads // shared,
            kv_heads=s.kv_heads // shared,
            head_dim=s.head_dim,
            element_bytes=self.element_bytes,
        )

    @property
    def shape(self) -> Shape:
        """The shipped decoder's block on this rank's tokens."""
        s, one = self.sizes, self.one
        mode = "ddp" if one.tp == 1 else "sp" if one.sequence_parallel else "tp"
        return Shape(
            mode=mode,
            seq_len=s.seq_len // one.cp,
            micro_batch=s.micro_batch,
            hidden=s.hidden,
            heads=s.heads,
            kv_heads=s.kv_heads,
            ffn=s.ffn,
            vocab=1,  # no part of a block
            ranks=one.tp,
            element_bytes=self.element_bytes,
            save="shard" if mode == "sp" else None,
            projections="fused",
            recompute=one.recompute,
        )

    def steps(self, *, causal: bool) -> tuple[int, ...]:
        """FLOPs of the slowest rank in each ring step of forward; one step without a ring."""
        ring, layout = self.ring, self.one.layout or "contiguous"
        scores = slowest_scores(layout, ranks=ring.ranks, tokens=ring.tokens, causal=causal)
        return tuple(score_flops(ring, count) for count in scores)


def layer_sizes(sizes: ContextSizes, ranks: int) -> LayerSizes:
    return LayerSizes(sizes.seq_len, sizes.micro_batch, sizes.hidden, sizes.heads, ranks, sizes.kv_heads)


def saved_by_term(division: Division) -> dict[str, int]:
    """Korthikanti's layer on one rank, in whole bytes."""
    one = division.one
    scheme = "none" if one.tp == 1 else "sp" if one.sequence_parallel else "tp"
    terms = saved_terms(
        layer_sizes(division.sizes, one.tp),
        scheme=scheme,
        context_ranks=one.cp,
        attention=one.attention,
        element_bytes=division.element_bytes,
    )
    return {term: round(size) for term, size in terms.items()}


def decoder_bytes(division: Division) -> int:
    """What a block of the shipped decoder keeps on one rank (`theory.memory`)."""
    return sum(block_terms(division.shape).values())


def ring_figures(division: Division, machines: Machines | None) -> RingFigures | None:
    """None for a scheme without a ring."""
    one, sizes = division.one, division.sizes
    if one.ring == 1:
        return None
    assert one.layout is not None
    ring = division.ring
    masked, whole = division.steps(causal=sizes.causal), division.steps(causal=False)
    balance = causal_balance(one.layout, ranks=ring.ranks, tokens=ring.tokens)
    return RingFigures(
        ranks=ring.ranks,
        layout=one.layout,
        block_tokens=ring.tokens,
        hops=ring.ranks - 1,
        hop_bytes=hop_bytes(ring),
        gradient_hops=ring.ranks,
        gradient_hop_bytes=gradient_hop_bytes(ring),
        block_flops=whole[0],
        own_block_flops=masked[0],
        later_block_flops=masked[1],
        balance_ratio=float(balance) if sizes.causal else 1.0,
        **(dict.fromkeys(_TIMED) if machines is None else _timed(division, machines)),
    )


_TIMED = (
    "hop_transfer_ns", "hop_ns", "gradient_hop_ns", "block_ns", "own_block_ns", "later_block_ns",
    "hidden_hops", "is_hidden", "is_hidden_unmasked", "is_backward_hidden", "exposed_ns",
    "backward_exposed_ns", "imbalance_ns", "to_hide",
)  # fmt: skip


def _timed(division: Division, machines: Machines) -> dict[str, Any]:
    """The fields of `RingFigures` that rates are needed for."""
    one, ring, causal = division.one, division.ring, division.sizes.causal
    timed = _RingTimes(division, machines)
    hop_s, attention_s = timed.hop.seconds, sum(timed.forward_s)
    balance = causal_balance(str(one.layout), ranks=ring.ranks, tokens=ring.tokens) if causal else 1
    values = (
        as_ns(timed.hop.transfer_s), as_ns(hop_s), as_ns(timed.gradient_hop.seconds),
        as_ns(timed.whole_s[0]), as_ns(timed.forward_s[0]), as_ns(timed.forward_s[1]),
        sum(block >= hop_s for block in timed.forward_s[:-1]),
        timed.exposed_s == 0,
        exposed_ring_seconds(timed.whole_s, hop_s) == 0,
        timed.backward_exposed_s == timed.gradient_hop.seconds,
        as_ns(timed.exposed_s), as_ns(timed.backward_exposed_s),
        as_ns(attention_s - float(balance) * attention_s),
        _to_hide(division, timed),
    )  # fmt: skip
    return dict(zip(_TIMED, values, strict=True))


class _RingTimes:
    """Seconds of a ring's steps and hops."""

    def __init__(self, division: Division, machines: Machines) -> None:
        ring, causal = division.ring, division.sizes.causal
        self.where = ring_group(division.one).where(division.sizes.ranks_per_node)
        self.machine = machines.inside if self.where == "inside" else machines.across
        self.hop = hop_time(hop_bytes(ring), self.where, machines)
        self.gradient_hop = hop_time(gradient_hop_bytes(ring), self.where, machines)
        self.forward_s = [gemm_seconds(flops, self.machine) for flops in division.steps(causal=causal)]
        self.whole_s = [gemm_seconds(flops, self.machine) for flops in division.steps(causal=False)]
        self.backward_s = [float(ATTENTION_BACKWARD) * seconds for seconds in self.forward_s]
        self.exposed_s = exposed_ring_seconds(self.forward_s, self.hop.seconds)
        self.backward_exposed_s = exposed_backward_ring_seconds(
            self.backward_s, self.hop.seconds, self.gradient_hop.seconds
        )


def _to_hide(division: Division, timed: _RingTimes) -> ToHide:
    """With the rates of this scheme's link."""
    one, ring, causal = division.one, division.ring, division.sizes.causal
    asked: dict[str, Any] = {
        "flops_per_s": timed.machine.gemm_flops_per_s,
        "bytes_per_s": timed.machine.bytes_per_s_among(2),
    }
    heads: dict[str, Any] = {"heads": ring.heads, "kv_heads": ring.kv_heads}
    heads["element_bytes"] = ring.element_bytes
    layout = str(one.layout)
    forward, backward = blocks_that_hide(ring, layout, causal=causal, machine=timed.machine)
    return ToHide(
        tokens=tokens_to_hide(**asked, **heads, causal_zigzag=causal),
        unmasked_tokens=tokens_to_hide(**asked, **heads),
        with_latency_tokens=forward,
        seq_len=_sequence(forward, one),
        backward_tokens=least_tokens(ring, layout, causal=causal, direction="backward", **asked),
        backward_with_latency_tokens=backward,
        backward_seq_len=_sequence(backward, one),
    )


def blocks_that_hide(ring: RingSizes, layout: str, *, causal: bool, machine: Machine) -> tuple[float, float]:
    """Tokens of the smallest blocks with which every hop of forward, and of backward, hides: as the plan's
    own times count, latency included."""
    found = [
        least_tokens_with_latency(
            ring,
            layout,
            causal=causal,
            direction=direction,
            flops_per_s=machine.gemm_flops_per_s,
            bytes_per_s=machine.bytes_per_s_among(2),
            latency_s=machine.launch_latency_s + machine.step_latency_s,
        )
        for direction in DIRECTIONS
    ]
    return found[0], found[1]


def _sequence(block_tokens: float, one: Candidate) -> int:
    """The shortest sequence with blocks of so many tokens that the scheme can divide."""
    parts = granularity(one)
    return math.ceil(block_tokens * one.ring / parts) * parts


def layer_times(division: Division, machines: Machines) -> dict[Direction, LayerTime]:
    """One layer in each direction."""
    return {direction: _layer_time(division, direction, machines) for direction in DIRECTIONS}


def _layer_time(division: Division, direction: Direction, machines: Machines) -> LayerTime:
    one, sizes, forward = division.one, division.sizes, direction == "forward"
    machine = machines.across  # both have the device's FLOP/s
    attention_s = sum(gemm_seconds(flops, machine) for flops in division.steps(causal=sizes.causal))
    attention_s *= 1.0 if forward else float(BACKWARD_OVER_FORWARD[one.attention])
    context_s, exposed_context_s = _context_seconds(division, direction, machines)
    tensor_s, exposed_tensor_s = _tensor_seconds(division, direction, machines)
    gemm = as_ns(_gemm_seconds(division, machine) * (1 if forward else 2))
    attention, exposed_context = as_ns(attention_s), as_ns(exposed_context_s)
    exposed = exposed_context + as_ns(exposed_tensor_s)
    comm = max(as_ns(context_s + tensor_s), exposed)
    return LayerTime(
        gemm_ns=gemm,
        attention_ns=attention,
        comm_ns=comm,
        hidden_ns=comm - exposed,
        exposed_ns=exposed,
        exposed_context_ns=exposed_context,
        layer_ns=gemm + attention + exposed,
    )


def _gemm_seconds(division: Division, machine: Machine) -> float:
    """Of forward; dgrad and wgrad take as long each."""
    shape = division.shape
    return sum(gemm_seconds(linear.flops(shape.tokens), machine) for linear in block_linears(shape))


def _context_seconds(division: Division, direction: Direction, machines: Machines) -> tuple[float, float]:
    """Communication of context parallelism, and of it what is exposed: of a ring what its blocks do not hide,
    of Ulysses all."""
    one = division.one
    whole = exposed = 0.0
    if one.ulysses > 1:
        group, node = ulysses_group(one), division.sizes.ranks_per_node
        sizes = all_to_all_bytes(division.context).values()
        whole += sum(collective_time("all_to_all", size, group, node, machines).seconds for size in sizes)
        exposed += whole
    if one.ring > 1:
        times = _RingTimes(division, machines)
        hops = one.ring - 1
        whole += hops * times.hop.seconds
        if direction == "forward":
            exposed += times.exposed_s
        else:
            whole += one.ring * times.gradient_hop.seconds
            exposed += times.backward_exposed_s
    return whole, exposed


def _tensor_seconds(division: Division, direction: Direction, machines: Machines) -> tuple[float, float]:
    """Communication of TP and SP, and of it what no GEMM of the same linear hides."""
    shape, sizes = division.shape, division.sizes
    linears = {linear.module: linear for linear in block_linears(shape)}
    group: Group = tensor_group(division.one)
    whole = exposed = 0.0
    for c in tensor_collectives(division.one, sizes, division.element_bytes):
        if c.phase != direction:
            continue
        seconds = collective_time(c.op, c.bytes, group, sizes.ranks_per_node, machines).seconds
        under = 0.0
        if c.partner is not None and c.is_async:
            under = gemm_seconds(linears[c.module].flops(shape.tokens), machines.across)
        whole += seconds
        exposed += max(seconds - under, 0.0)
    return whole, exposed
