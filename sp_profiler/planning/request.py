"""What a plan is asked for: the grid of schemes and sizes."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from sp_profiler.errors import UsageError
from sp_profiler.planning.machines import MachineRequest
from sp_profiler.record.environment import INSTALL_TORCH
from workloads.config import DTYPE_BYTES, WorkloadConfig

MOST_BYTES = 2**62
"""Of one tensor: beyond, its size overflows."""
MOST_SCHEMES = 1000

PLANNED_MODES = ("ddp", "tp", "sp")
USUAL_COMM = {("tp", None): "sync", ("sp", "full"): "sync", ("sp", "shard"): "async", ("ddp", None): None}
"""What people mean by the scheme's name: SP basic is synchronous, SP recompute (Megatron's) is not."""


@dataclass(frozen=True)
class PlanRequest:
    """Every combination of the sequences is planned; options that a mode ignores make no scheme twice.

    `comm` None: each scheme's usual one, or both where times are asked for.
    """

    modes: Sequence[str] = ("tp", "sp")
    save: Sequence[str] = ("full", "shard")
    comm: Sequence[str] | None = None
    projections: Sequence[str] = ("separate",)
    norm: Sequence[str] = ("eager",)
    recompute: Sequence[str] = ("none",)
    layers: Sequence[int] = (2,)
    seq_len: Sequence[int] = (256,)
    micro_batch: Sequence[int] = (2,)
    tp: Sequence[int] = (2,)
    hidden: int = 256
    heads: int = 8
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int = 1024
    num_microbatches: int = 1
    dtype: str = "bf16"
    machine: MachineRequest = field(default_factory=MachineRequest)
    extrapolate: bool = True


def require_torch() -> None:
    """Raises UsageError with the command that installs torch when it is missing."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            f"planning runs the workloads' code and needs torch, which is not installed: {INSTALL_TORCH}"
        )


def grid(request: PlanRequest) -> list[WorkloadConfig]:
    """The canonical configs, in the order in which a person compares them: sizes first, then schemes.

    Raises UsageError for what cannot be built.
    """
    for mode in request.modes:
        if mode not in PLANNED_MODES:
            raise UsageError(f"--modes is '{mode}', expected one of {', '.join(PLANNED_MODES)}")
    known = _known_sizes(request)
    configs: dict[WorkloadConfig, None] = {}
    sizes = itertools.product(request.tp, request.seq_len, request.micro_batch, request.layers)
    for tp, seq_len, micro_batch, layers in sizes:
        for mode, save, projections, norm, recompute in _schemes(request):
            for comm in _comms(request, mode, save):
                config = _config(
                    request,
                    known,
                    mode=mode,
                    ranks=tp,
                    save=save,
                    comm=comm,
                    projections=projections,
                    norm=norm,
                    recompute=recompute,
                    layers=layers,
                    seq_len=seq_len,
                    micro_batch=micro_batch,
                )
                configs[config.canonical()] = None
                if len(configs) > MOST_SCHEMES:
                    raise UsageError(f"this is more than {MOST_SCHEMES} schemes: plan fewer sizes at once")
    return list(configs)


def _schemes(request: PlanRequest) -> list[tuple[str, str | None, str, str, str]]:
    out: list[tuple[str, str | None, str, str, str]] = []
    for mode in request.modes:
        saves: Sequence[str | None] = request.save if mode == "sp" else (None,)
        options = itertools.product(saves, request.projections, request.norm, request.recompute)
        out += [(mode, save, projections, norm, again) for save, projections, norm, again in options]
    return out


def _comms(request: PlanRequest, mode: str, save: str | None) -> Sequence[str | None]:
    if mode == "ddp":
        return (None,)
    if request.comm is not None:
        return request.comm
    return ("sync", "async") if request.machine.is_asked else (USUAL_COMM.get((mode, save)),)


def _known_sizes(request: PlanRequest) -> dict[str, int | None]:
    """Sizes that follow from others, the same for every scheme, so that schemes can be compared."""
    if request.kv_heads is not None and request.ffn is not None:
        return {"kv_heads": request.kv_heads, "ffn": request.ffn}
    # the largest T is the hardest to satisfy; ddp alone has none
    widest = (
        _config(request, {"kv_heads": request.kv_heads, "ffn": request.ffn}, mode="tp", ranks=max(request.tp))
        if set(request.modes) != {"ddp"}
        else _config(request, {}, mode="ddp", ranks=max(request.tp))
    )
    resolved = widest.resolved_sizes()
    return {"kv_heads": resolved.kv_heads, "ffn": resolved.ffn}


def _config(request: PlanRequest, known: dict[str, int | None], **varied: object) -> WorkloadConfig:
    sizes = {
        "hidden": request.hidden,
        "heads": request.heads,
        "vocab": request.vocab,
        "num_microbatches": request.num_microbatches,
        "dtype": request.dtype,
    }
    try:
        config = WorkloadConfig(**{**sizes, **known, **varied})  # type: ignore[arg-type]
    except UsageError as error:
        raise UsageError(
            str(error).replace("--ranks", "--tp").replace("the workload is", "--modes is")
        ) from None
    resolved = config.resolved_sizes()
    assert resolved.ffn is not None
    widest = max(config.vocab, 2 * resolved.ffn, 3 * config.hidden)
    largest = max(config.seq_len * config.micro_batch * config.num_microbatches, config.hidden) * widest
    if largest * max(DTYPE_BYTES[config.dtype], 8) > MOST_BYTES:
        raise UsageError(
            f"--seq-len {config.seq_len} with --micro-batch {config.micro_batch} and these widths makes a "
            "tensor of more than 2^62 bytes"
        )
    return config
