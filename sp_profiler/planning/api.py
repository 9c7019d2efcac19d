"""`sp_profiler.plan`: what `sp-profile plan` does, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def _several(value: Any) -> tuple[Any, ...]:
    """One value or several, as several."""
    return (value,) if isinstance(value, (int, str)) else tuple(value)
