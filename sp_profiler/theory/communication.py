"""Closed forms for communication: which collectives a scheme runs, in which order, of how many bytes.

Sources: Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053, section 3: operators f and g) for tp;
Korthikanti et al. 2022 (arXiv 2205.05198, section 4.2.2: operators g and g bar) for sp; Li et al. 2020
(arXiv 2006.15704) for ddp; ring algorithms (Patarasuk and Yuan 2009) for the bytes on the wire.

F below is one full-sequence activation, e*S*B*H bytes for elements of e bytes; T the ranks of the
group. Collectives are those of one LLaMA-like block: column linears q, k, v, gate and up (or qkv and
gate_up when fused), row linears o and down.

Activation recompute (Korthikanti et al., section 5): full runs a block's forward once more in backward,
collectives included, just before the block's backward; selective repeats the attention core, in which
there are none. With r = (T-1)/T a rank sends per block, beside what it sends without recompute:

============== ===================== =====================
full recompute fused projections     separate projections
============== ===================== =====================
tp             4rF                   4rF
sp             4rF                   7rF
============== ===================== =====================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

COLUMNS = {
    "separate": (("attention.q", "attention.k", "attention.v"), ("mlp.gate", "mlp.up")),
    "fused": (("attention.qkv",), ("mlp.gate_up",)),
}
"""Column linears in front of each of the two row linears, in the order of forward."""
ROWS = ("attention.o", "mlp.down")

WIRE_FACTORS: dict[str, int] = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
}
"""Times (T-1)/T of the full tensor: what one rank sends with a ring algorithm."""


@dataclass(frozen=True)
class Expected:
    """One collective of a schedule. `bytes` is the full tensor; `partner` the computation of the same
    module that it can hide under, None where every computation of the module needs its result."""

    op: str
    module: str
    bytes: int
    is_async: bool
    purpose: str
    partner: str | None
    phase: str


@dataclass(frozen=True)
class Schedule:
    """Collectives in the order in which every rank launches them."""

    forward: tuple[Expected, ...]
    backward: tuple[Expected, ...]

    def wire_bytes(self, ranks: int) -> Fraction:
        """Bytes that one rank sends in forward and backward."""
        return sum_wire_bytes(chain(self.forward, self.backward), ranks)


def wire_bytes(op: str, tensor_bytes: int, ranks: int) -> Fraction:
    """Bytes that one rank sends for a collective over `ranks` of a full tensor of `tensor_bytes`.

    All-reduce 2 (T-1)/T of them, all-gather, reduce-scatter and all-to-all (T-1)/T, a send_recv all. Exact,
    hence a fraction. Raises KeyError for another op.
    """
    if op == "send_recv":
        return Fraction(tensor_bytes)
    return Fraction(WIRE_FACTORS[op] * (ranks - 1) * tensor_bytes, ranks)


def sum_wire_bytes(collectives: Iterable[Expected], ranks: int) -> Fraction:
    """Bytes that one rank sends for all of them."""
    return sum((wire_bytes(c.op, c.bytes, ranks) for c in collectives), Fraction(0))


RECOMPUTES = ("none", "selective", "full")


def block_schedule(
    mode: str,
    *,
    comm: str | None,
    save: str | None,
    projections: str,
    activation_bytes: int,
    recompute: str = "none",
) -> Schedule:
    """The collectives of one block, forward and backward, one micro-batch.

    `mode` ddp, tp or sp; `comm` sync or async (tp, sp); `save` full or shard (sp); `projections`
    separate or fused; `activation_bytes` is F; `recompute` none, selective or full. ddp has none in the
    block: see `gradient_bytes`. Raises ValueError for another mode or recompute.
    """
    if recompute not in RECOMPUTES:
        raise ValueError(f"no schedule for recompute '{recompute}'")
    if mode == "ddp":
        return Schedule((), ())
    if mode not in ("tp", "sp"):
        raise ValueError(f"no schedule for mode '{mode}'")
    groups = list(zip(COLUMNS[projections], ROWS, strict=True))
    forward: list[Expected] = []
    for columns, row in groups:
        forward += chain.from_iterable(_column_forward(mode, name, activation_bytes) for name in columns)
        forward.append(_row_forward(mode, row, activation_bytes))
    # A collective is as synchronous the second time as it was the first.
    backward = [replace(c, phase="backward") for c in forward] if recompute == "full" else []
    for columns, row in reversed(groups):
        backward += _row_backward(mode, row, activation_bytes)
        for name in reversed(columns):
            backward += _column_backward(mode, name, activation_bytes, comm == "async", save == "shard")
    return Schedule(tuple(forward), tuple(backward))


def _column_forward(mode: str, name: str, size: int) -> list[Expected]:
    """f is the identity; g gathers the tokens."""
    if mode == "tp":
        return []
    return [Expected("all_gather", name, size, False, "activation", None, "forward")]


def _row_forward(mode: str, name: str, size: int) -> Expected:
    op = "all_reduce" if mode == "tp" else "reduce_scatter"
    return Expected(op, name, size, False, "activation", None, "forward")


def _row_backward(mode: str, name: str, size: int) -> list[Expected]:
    """g has the identity as backward; g bar gathers the gradient, which dgrad and wgrad both need."""
    if mode == "tp":
        return []
    return [Expected("all_gather", name, size, False, "dgrad", None, "backward")]


def _column_backward(mode: str, name: str, size: int, is_async: bool, is_shard: bool) -> list[Expected]:
    """The sum of dX, preceded by the input's all-gather where only a shard was saved."""
    op = "all_reduce" if mode == "tp" else "reduce_scatter"
    total = Expected(op, name, size, is_async, "dgrad", "wgrad", "backward")
    if mode == "sp" and is_shard:
        return [Expected("all_gather", name, size, is_async, "input-regather", "dgrad", "backward"), total]
    return [total]


def entry_schedule(mode: str, *, activation_bytes: int) -> Schedule:
    """What sp adds at the embedding: the split's backward gathers F."""
    if mode != "sp":
        return Schedule((), ())
    gather = Expected("all_gather", "embedding", activation_bytes, False, "dgrad", None, "backward")
    return Schedule((), (gather,))


def exit_schedule(mode: str, *, activation_bytes: int) -> Schedule:
    """What sp adds before the replicated head: a gather of F, whose backward is a split."""
    if mode != "sp":
        return Schedule((), ())
    gather = Expected("all_gather", "head", activation_bytes, False, "activation", None, "forward")
    return Schedule((gather,), ())


def model_schedule(
    mode: str,
    *,
    comm: str | None,
    save: str | None,
    projections: str,
    layers: int,
    activation_bytes: int,
    recompute: str = "none",
) -> Schedule:
    """Forward and backward of the whole model for one micro-batch, without the sums of gradients."""
    block = block_schedule(
        mode,
        comm=comm,
        save=save,
        projections=projections,
        activation_bytes=activation_bytes,
        recompute=recompute,
    )
    entry = entry_schedule(mode, activation_bytes=activation_bytes)
    leave = exit_schedule(mode, activation_bytes=activation_bytes)
    return Schedule(
        entry.forward + block.forward * layers + leave.forward,
        leave.backward + block.backward * layers + entry.backward,
    )


def norm_gradient_bytes(*, layers: int, hidden: int, element_bytes: int) -> int:
    """sp's all-reduce of the norm weights' gradients, once a step: two norms a block and the final one."""
    return (2 * layers + 1) * hidden * element_bytes


def block_parameters(*, hidden: int, heads: int, kv_heads: int, ffn: int) -> int:
    """Parameters of one block: q and o H*H, k and v H*(k*H/a), gate, up and down H*ffn, two norms."""
    return 2 * hidden * hidden + 2 * hidden * (hidden * kv_heads // heads) + 3 * hidden * ffn + 2 * hidden


def model_parameters(*, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int) -> int:
    """Parameters P of the whole model: blocks, final norm, embedding and untied head."""
    block = block_parameters(hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn)
    return layers * block + hidden + 2 * vocab * hidden


def gradient_bytes(*, parameters: int, element_bytes: int) -> int:
    """ddp's buckets together, once a step: P*e, all-reduced asynchronously under backward."""
    return parameters * element_bytes
