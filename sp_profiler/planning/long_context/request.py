"""What a plan of long context is asked for, and what cannot be asked of any scheme, each in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sp_profiler.errors import UsageError
from sp_profiler.planning.long_context.model import ContextSizes
from sp_profiler.planning.machines import InsideRequest, MachineRequest, Machines, machines_for

ELEMENT_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}
FFN_MULTIPLE = 64
"""The default feed-forward size is 8/3 of the hidden size, as in LLaMA, rounded up to a multiple of this."""
RANKS_PER_NODE = 8
MOST_RANKS = 2**17
"""More than any machine of one model has."""


@dataclass(frozen=True)
class LongContextRequest:
    """One size; its schemes are all planned. `tp` None: TP over the ranks of a node. `ulysses` None: every
    split of `cp` between Ulysses and a ring; else these numbers of Ulysses ranks."""

    seq_len: int
    hidden: int
    heads: int
    cp: int
    kv_heads: int | None = None
    ffn: int | None = None
    layers: int = 1
    micro_batch: int = 1
    tp: int | None = None
    ulysses: Sequence[int] | None = None
    ranks_per_node: int | None = None
    dtype: str = "bf16"
    causal: bool = True
    machine: MachineRequest = field(default_factory=MachineRequest)
    inside: InsideRequest = field(default_factory=InsideRequest)

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.dtype]


def settled(request: LongContextRequest) -> tuple[ContextSizes, Machines | None]:
    """Every size filled in, and the machine. Raises UsageError for what is impossible for all schemes."""
    _check_counts(request)
    machines = machines_for(request.machine, request.inside, request.dtype)
    known = None if machines is None or machines.hardware is None else machines.hardware.ranks_per_node
    node = request.ranks_per_node or known or RANKS_PER_NODE
    kv_heads = request.heads if request.kv_heads is None else request.kv_heads
    _check_model(request, kv_heads)
    tp = _model_ranks(request, kv_heads, node) if request.tp is None else request.tp
    sizes = ContextSizes(
        seq_len=request.seq_len,
        hidden=request.hidden,
        heads=request.heads,
        kv_heads=kv_heads,
        head_dim=request.hidden // request.heads,
        ffn=_feed_forward(request, tp),
        layers=request.layers,
        micro_batch=request.micro_batch,
        dtype=request.dtype,
        causal=request.causal,
        cp=request.cp,
        tp=tp,
        is_tp_given=request.tp is not None,
        ranks_per_node=node,
    )
    return sizes, machines


def splits(request: LongContextRequest) -> list[int]:
    """Ulysses ranks of the hybrids: every divisor of cp but 1 and cp itself, or those asked for."""
    cp = request.cp
    if request.ulysses is None:
        return [ranks for ranks in range(2, cp) if cp % ranks == 0]
    for ranks in request.ulysses:
        if ranks < 2 or ranks >= cp or cp % ranks:
            raise UsageError(
                f"--ulysses {ranks} cannot divide --cp {cp} into rings: expected a divisor between 1 and {cp}"
            )
    return list(dict.fromkeys(request.ulysses))


def _check_counts(request: LongContextRequest) -> None:
    if request.dtype not in ELEMENT_BYTES:
        raise UsageError(f"--dtype is '{request.dtype}', expected one of {', '.join(ELEMENT_BYTES)}")
    counts = {
        "seq-len": request.seq_len, "hidden": request.hidden, "heads": request.heads, "cp": request.cp,
        "kv-heads": request.kv_heads, "ffn": request.ffn, "layers": request.layers, "tp": request.tp,
        "micro-batch": request.micro_batch, "ranks-per-node": request.ranks_per_node,
    }  # fmt: skip
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"--{name} is {value}, expected a whole number of at least 1")
    if request.cp < 2:
        raise UsageError("--cp is 1: context parallelism divides the sequence among at least 2 ranks")
    if request.cp * (request.tp or 1) > MOST_RANKS:
        raise UsageError(f"--cp {request.cp} with --tp {request.tp or 1} are more than {MOST_RANKS} ranks")
    if request.cp > request.seq_len:
        raise UsageError(f"--cp {request.cp} is more than the {request.seq_len} tokens of --seq-len")


def _check_model(request: LongContextRequest, kv_heads: int) -> None:
    """What no decoder can be, however it is divided."""
    if request.hidden % request.heads:
        raise UsageError(f"--hidden {request.hidden} is not divisible by --heads {request.heads}")
    if request.heads % kv_heads:
        raise UsageError(f"--heads {request.heads} is not divisible by --kv-heads {kv_heads}")


def _model_ranks(request: LongContextRequest, kv_heads: int, node: int) -> int:
    """The most ranks of a node that can share the model: they divide its heads, key/value heads and node."""
    return next(
        ranks
        for ranks in range(node, 0, -1)
        if node % ranks == 0
        and request.heads % ranks == 0
        and kv_heads % ranks == 0
        and (request.ffn or 0) % ranks == 0
    )


def _feed_forward(request: LongContextRequest, tp: int) -> int:
    if request.ffn is not None:
        return request.ffn
    multiple = math.lcm(FFN_MULTIPLE, tp)
    return -(-8 * request.hidden // (3 * multiple)) * multiple
