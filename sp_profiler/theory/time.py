"""Closed forms of time: GEMMs at sharded shapes, collectives by alpha-beta, and what hides under what.

Assumptions, which a plan repeats: GEMMs take 2mnk / (peak x efficiency); attention 4 S^2 B a d / 2 FLOPs in
forward (causal: half of the scores) and 5/2 of it in backward, where a flash kernel computes the scores
again (Dao et al. 2022, arXiv 2205.14135, section 3); a collective takes launch + steps x (alpha +
X/(T beta)) as a ring (Patarasuk and Yuan 2009; alpha-beta: Thakur et al. 2005); computation is not slowed
by communication beside it; one collective at a time is on the link.

Seconds, as floats. Shapes as in `theory.memory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from sp_profiler.theory.communication import (
    Expected,
    gradient_bytes,
    model_schedule,
    norm_gradient_bytes,
    sum_wire_bytes,
)
from sp_profiler.theory.machine import Machine
from sp_profiler.theory.memory import Shape, states
from sp_profiler.theory.ring import ATTENTION_BACKWARD

RING_STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Times (T-1): steps of a ring, in each of which a rank sends a T-th of the full tensor."""


@dataclass(frozen=True)
class Linear:
    """One linear as a rank computes it. `module` without the block's number."""

    module: str
    inputs: int
    outputs: int

    def flops(self, tokens: int) -> int:
        """Of each of its three GEMMs: forward (G,I)x(I,O), dgrad (G,O)x(O,I), wgrad (O,G)x(G,I)."""
        return gemm_flops(tokens, self.outputs, self.inputs)


def gemm_flops(m: int, n: int, k: int) -> int:
    """2mnk: a multiplication and an addition for each."""
    return 2 * m * n * k


def gemm_seconds(flops: float, machine: Machine) -> float:
    """FLOPs / (peak x efficiency)."""
    return flops / machine.gemm_flops_per_s


def collective_seconds(op: str, tensor_bytes: int, ranks: int, machine: Machine) -> float:
    """launch + steps (alpha + X/(T beta)), X the full tensor; all-reduce 2(T-1) steps, the others T-1.

    Nothing among one rank. Raises KeyError for an op without a ring algorithm.
    """
    steps = RING_STEPS[op] * (ranks - 1)
    if steps == 0:
        return 0.0
    return machine.launch_latency_s + steps * (
        machine.step_latency_s + tensor_bytes / (ranks * machine.bytes_per_s_among(ranks))
    )


def block_linears(shape: Shape) -> tuple[Linear, ...]:
    """The linears of a block at the shapes of one rank: column (H, O/T), row (I/T, H)."""
    hidden, parts = shape.hidden, shape.parts
    kv = hidden * shape.kv_heads // shape.heads
    columns = {"attention.q": hidden, "attention.k": kv, "attention.v": kv}
    gates = {"mlp.gate": shape.ffn, "mlp.up": shape.ffn}
    if shape.projections == "fused":
        columns = {"attention.qkv": sum(columns.values())}
        gates = {"mlp.gate_up": sum(gates.values())}
    return (
        *(Linear(name, hidden, size // parts) for name, size in columns.items()),
        Linear("attention.o", hidden // parts, hidden),
        *(Linear(name, hidden, size // parts) for name, size in gates.items()),
        Linear("mlp.down", shape.ffn // parts, hidden),
    )


def attention_flops(shape: Shape) -> int:
    """Forward of one block's causal attention on a rank: QK^T and PV, half of the scores, 2 S^2 B a d/T."""
    return 2 * shape.seq_len * shape.tokens * shape.hidden // shape.parts


@dataclass(frozen=True)
class Times:
    """One step of one rank, in seconds."""

    gemm_s: float
    attention_s: float
    comm_s: float
    hidden_s: float | None
    """Of asynchronous collectives under their partner; None for ddp, where it depends on the buckets."""
    hideable_s: float | None
    """min(|c|, |w|) of every collective that has a partner, whether the schedule uses it or not."""

    @property
    def exposed_s(self) -> float | None:
        return None if self.hidden_s is None else self.comm_s - self.hidden_s

    @property
    def step_s(self) -> float | None:
        """GEMMs, attention and exposed communication; memory-bound operators are left out."""
        exposed = self.exposed_s
        return None if exposed is None else self.gemm_s + self.attention_s + exposed


def step_collectives(shape: Shape, comm: str | None, layers: int) -> Iterator[Expected]:
    """Every collective of a step: the micro-batches', then the sums of gradients (ddp: all in one)."""
    schedule = model_schedule(
        shape.mode,
        comm=comm,
        save=shape.save,
        projections=shape.projections,
        layers=layers,
        activation_bytes=shape.activation_bytes,
        recompute=shape.recompute,
    )
    for _ in range(shape.num_microbatches):
        yield from schedule.forward
        yield from schedule.backward
    if shape.mode == "sp":
        size = norm_gradient_bytes(layers=layers, hidden=shape.hidden, element_bytes=shape.element_bytes)
        yield Expected("all_reduce", "norms", size, False, "param-grad", None, "optimizer")
    if shape.mode == "ddp":
        count = states(shape, layers).parameter_bytes // shape.element_bytes
        size = gradient_bytes(parameters=count, element_bytes=shape.element_bytes)
        yield Expected("all_reduce", "buckets", size, True, "param-grad", None, "backward")


def step_wire_bytes(shape: Shape, comm: str | None, layers: int) -> Fraction:
    """What a rank sends in a step with ring algorithms; exact."""
    return sum_wire_bytes(step_collectives(shape, comm, layers), shape.ranks)


def step_times(shape: Shape, comm: str | None, layers: int, machine: Machine) -> Times:
    """GEMMs, attention and collectives of a step, and which hide: those that are asynchronous hide
    min(|c|, |w|) under the GEMM w that the schedule starts after them (dgrad or wgrad of their linear)."""
    linears = {linear.module: linear for linear in block_linears(shape)}
    tokens = shape.tokens
    again = {"full": 1, "selective": 0, "none": 0}[shape.recompute]
    block = sum(linear.flops(tokens) for linear in linears.values()) * (3 + again)
    head = 3 * gemm_flops(tokens, shape.vocab, shape.hidden)
    passes = 1 + float(ATTENTION_BACKWARD) + (shape.recompute != "none")
    comm_s = hidden_s = hideable_s = 0.0
    for c in step_collectives(shape, comm, layers):
        duration = collective_seconds(c.op, c.bytes, shape.ranks, machine)
        comm_s += duration
        if c.partner is not None:
            under = min(duration, gemm_seconds(linears[c.module].flops(tokens), machine))
            hideable_s += under
            hidden_s += under if c.is_async else 0.0
    is_ddp = shape.mode == "ddp"
    return Times(
        gemm_s=shape.num_microbatches * gemm_seconds(layers * block + head, machine),
        attention_s=shape.num_microbatches * gemm_seconds(layers * passes * attention_flops(shape), machine),
        comm_s=comm_s,
        hidden_s=None if is_ddp else hidden_s,
        hideable_s=None if is_ddp else hideable_s,
    )
