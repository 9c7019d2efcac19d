"""What a plan is asked for: the grid of schemes and sizes, and the machine."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from sp_profiler.errors import UsageError
from sp_profiler.record.environment import INSTALL_TORCH
from sp_profiler.theory.hardware import DEVICES, find_device
from sp_profiler.theory.machine import (
    NCCL_LAUNCH_S,
    NCCL_SOURCE,
    NCCL_STEP_S,
    Machine,
    device_flops_per_s,
    surroundings_of,
)
from workloads.config import DTYPE_BYTES, WorkloadConfig

TORCH_NAMES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}
MOST_BYTES = 2**62
"""Of one tensor: beyond, its size overflows."""
MOST_SCHEMES = 1000

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
    machine: MachineRequest = field(default_factory=lambda: MachineRequest())
    extrapolate: bool = True


@dataclass(frozen=True)
class MachineRequest:
    """Figures of a device by name, or given: FLOP/s, bytes/s (of the link in one direction), seconds."""

    hardware: str | None = None
    flops: float | None = None
    bandwidth: float | None = None
    latency: float | None = None
    memory_bandwidth: float | None = None
    efficiency: float | None = None

    @property
    def is_asked(self) -> bool:
        return any(value is not None for value in dataclasses.astuple(self))


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


def machine_for(request: MachineRequest, dtype: str) -> Machine | None:
    """The machine that the options spell; None when they ask for no times. Raises UsageError."""
    if not request.is_asked:
        return None
    for name, value in dataclasses.asdict(request).items():
        if (
            isinstance(value, (int, float))
            and not (0 < value < float("inf"))
            and not (name == "latency" and value == 0)
        ):
            raise UsageError(f"--{name.replace('_', '-')} is {value:g}, expected a number above 0")
    if request.efficiency is not None and request.efficiency > 1:
        raise UsageError(f"--efficiency is {request.efficiency:g}, expected a share of the peak, at most 1")
    _refuse_other_units(request)
    return _named_machine(request, dtype) if request.hardware is not None else _given_machine(request)


def _refuse_other_units(request: MachineRequest) -> None:
    """Rates that no device is so far from: given in TFLOP/s, GB/s or microseconds by mistake."""
    for name, value, unit, example in (
        ("flops", request.flops, "FLOP/s", "312e12"),
        ("bandwidth", request.bandwidth, "bytes/s", "300e9"),
        ("memory-bandwidth", request.memory_bandwidth, "bytes/s", "2e12"),
    ):
        if value is not None and value < 1e6:
            raise UsageError(f"--{name} is {value:g}, expected {unit}, such as {example}")
    if request.latency is not None and request.latency >= 0.1:
        raise UsageError(f"--latency is {request.latency:g}, expected seconds, such as 5e-6")


def _or_data_sheet(given: float | None, gb_per_s: float | None) -> float | None:
    """Bytes/s as given, else the data sheet's."""
    if given is not None:
        return given
    return None if gb_per_s is None else gb_per_s * 1e9


def _given_machine(request: MachineRequest) -> Machine:
    needed = {"--flops": request.flops, "--bandwidth": request.bandwidth, "--latency": request.latency}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise UsageError(
            f"times need --hardware NAME, or --flops, --bandwidth and --latency: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing"
        )
    assert request.flops is not None
    assert request.bandwidth is not None
    assert request.latency is not None
    return Machine(
        name="as given",
        flops_per_s=request.flops,
        bytes_per_s=request.bandwidth,
        step_latency_s=request.latency,
        efficiency=request.efficiency or 1.0,
        memory_bytes_per_s=request.memory_bandwidth,
        sources=("rates and latency: given by the user",),
    )


def _named_machine(request: MachineRequest, dtype: str) -> Machine:
    name = request.hardware or ""
    device = next((d for d in DEVICES if d.name.lower() == name.lower()), None) or find_device(name)
    if device is None:
        known = ", ".join(d.name for d in DEVICES)
        raise UsageError(f"unknown hardware '{name}', expected one of {known}; or give its --flops")
    around = surroundings_of(device)
    flops = request.flops if request.flops is not None else device_flops_per_s(device, TORCH_NAMES[dtype])
    if flops is None:
        raise UsageError(f"no peak is known of {device.name} for --dtype {dtype}: give it with --flops")
    bandwidth = _or_data_sheet(request.bandwidth, around.link_gb_per_s)
    if bandwidth is None:
        raise UsageError(f"no link bandwidth is known of {device.name}: give it with --bandwidth")
    if request.latency is None and around.link_kind is None:
        raise UsageError(f"no latency is known of {device.name}'s link: give it with --latency")
    memory = _or_data_sheet(request.memory_bandwidth, around.memory_gb_per_s)
    is_nccl = request.latency is None
    return Machine(
        name=device.name,
        flops_per_s=flops,
        bytes_per_s=bandwidth,
        step_latency_s=NCCL_STEP_S[str(around.link_kind)] if is_nccl else request.latency or 0.0,
        launch_latency_s=NCCL_LAUNCH_S if is_nccl else 0.0,
        efficiency=request.efficiency or 1.0,
        memory_bytes_per_s=memory,
        sources=(
            "peak: given by the user" if request.flops is not None else f"peak: {device.source}",
            "bandwidth: given by the user"
            if request.bandwidth is not None
            else f"bandwidth: {around.link_source}",
            NCCL_SOURCE if is_nccl else "latency: given by the user",
            "memory bandwidth: given by the user"
            if request.memory_bandwidth is not None
            else around.memory_source
            if memory is not None
            else "memory bandwidth: not known; what is neither GEMM nor attention takes no time",
        ),
    )
