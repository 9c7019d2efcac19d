"""`sp_profiler.plan` and `sp_profiler.plan_long_context`: what `sp-profile plan` does, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sp_profiler.planning.long_context.model import LongContextPlan
    from sp_profiler.planning.model import Plan


def plan(
    *,
    modes: str | Sequence[str] = ("tp", "sp"),
    save: str | Sequence[str] = ("full", "shard"),
    comm: str | Sequence[str] | None = None,
    projections: str | Sequence[str] = "separate",
    norm: str | Sequence[str] = "eager",
    recompute: str | Sequence[str] = "none",
    layers: int | Sequence[int] = 2,
    seq_len: int | Sequence[int] = 256,
    micro_batch: int | Sequence[int] = 2,
    tp: int | Sequence[int] = 2,
    hidden: int = 256,
    heads: int = 8,
    kv_heads: int | None = None,
    ffn: int | None = None,
    vocab: int = 1024,
    num_microbatches: int = 1,
    dtype: str = "bf16",
    hardware: str | None = None,
    flops: float | None = None,
    bandwidth: float | None = None,
    latency: float | None = None,
    memory_bandwidth: float | None = None,
    efficiency: float | None = None,
    extrapolate: bool = True,
) -> Plan:
    """What schemes would keep, hold and send at any size, executed without data; needs torch.

    Every combination of the options that may be several is one scheme of the result. Sizes are of the whole
    model, results in bytes of one rank. With `hardware` (a device such as "H100 SXM"), or `flops` (FLOP/s),
    `bandwidth` (bytes/s of a rank's link in one direction) and `latency` (seconds of each step of a ring),
    also times in int ns; `memory_bandwidth` in bytes/s, `efficiency` the share of the peak that GEMMs reach.
    Without `comm` each scheme's usual one, with times both. Raises UsageError for what cannot be built,
    without torch, and in a process that is in a process group.
    """
    from sp_profiler.planning.machines import MachineRequest
    from sp_profiler.planning.request import PlanRequest, require_torch

    request = PlanRequest(
        modes=_several(modes),
        save=_several(save),
        comm=None if comm is None else _several(comm),
        projections=_several(projections),
        norm=_several(norm),
        recompute=_several(recompute),
        layers=_several(layers),
        seq_len=_several(seq_len),
        micro_batch=_several(micro_batch),
        tp=_several(tp),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocab=vocab,
        num_microbatches=num_microbatches,
        dtype=dtype,
        machine=MachineRequest(hardware, flops, bandwidth, latency, memory_bandwidth, efficiency),
        extrapolate=extrapolate,
    )
    require_torch()
    from sp_profiler.planning.build import build_plan

    return build_plan(request)


def plan_long_context(
    *,
    seq_len: int,
    hidden: int,
    heads: int,
    cp: int,
    kv_heads: int | None = None,
    ffn: int | None = None,
    layers: int = 1,
    micro_batch: int = 1,
    tp: int | None = None,
    ulysses: int | Sequence[int] | None = None,
    ranks_per_node: int | None = None,
    dtype: str = "bf16",
    causal: bool = True,
    hardware: str | None = None,
    flops: float | None = None,
    bandwidth: float | None = None,
    latency: float | None = None,
    intra_bandwidth: float | None = None,
    intra_latency: float | None = None,
    efficiency: float | None = None,
) -> LongContextPlan:
    """What TP, SP, ring attention, Ulysses and their hybrids keep, send and take; needs no torch.

    The sequence of `seq_len` tokens is divided among `cp` ranks, the model among `tp` (without it: as many
    ranks of a node as can share the heads). Sizes are of the whole model, results bytes of one rank and one
    layer, times int ns. With `hardware` (a profile such as "h100-ib", or a device), or `flops` (FLOP/s),
    `bandwidth` (bytes/s of a rank's link between nodes in one direction) and `latency` (seconds), also times
    and what hides; `intra_bandwidth` and `intra_latency` are those of the link inside a node. `ulysses`:
    which splits of cp to plan, every one without it. Raises UsageError for what no scheme can do.
    """
    from sp_profiler.planning.long_context.build import build_long_context
    from sp_profiler.planning.long_context.request import LongContextRequest
    from sp_profiler.planning.machines import InsideRequest, MachineRequest

    return build_long_context(
        LongContextRequest(
            seq_len=seq_len,
            hidden=hidden,
            heads=heads,
            cp=cp,
            kv_heads=kv_heads,
            ffn=ffn,
            layers=layers,
            micro_batch=micro_batch,
            tp=tp,
            ulysses=None if ulysses is None else _several(ulysses),
            ranks_per_node=ranks_per_node,
            dtype=dtype,
            causal=causal,
            machine=MachineRequest(hardware, flops, bandwidth, latency, None, efficiency),
            inside=InsideRequest(intra_bandwidth, intra_latency),
        )
    )


def _several(value: Any) -> tuple[Any, ...]:
    """One value or several, as several."""
    return (value,) if isinstance(value, (int, str)) else tuple(value)
