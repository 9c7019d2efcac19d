"""The machine that a plan is asked for: a name, or rates, each given one in place of the data sheet's."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from sp_profiler.errors import UsageError
from sp_profiler.theory.hardware import Device, Link
from sp_profiler.theory.machine import (
    Hardware,
    Machine,
    device_flops_per_s,
    find_hardware,
    hardware_names,
    latency_of,
)

TORCH_NAMES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}

GIVEN = "as given"
_BY_THE_USER = "given by the user"
_LONGEST_LATENCY_S = 0.1
_LEAST_RATE = 1e6


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


@dataclass(frozen=True)
class InsideRequest:
    """Figures of the link inside a node, where it is another than the one between nodes."""

    bandwidth: float | None = None
    latency: float | None = None


@dataclass(frozen=True)
class Machines:
    """The same device with each of two links: between nodes (any two ranks), and inside one."""

    across: Machine
    inside: Machine
    hardware: Hardware | None
    sources: tuple[str, ...]


def machine_for(request: MachineRequest, dtype: str) -> Machine | None:
    """The machine that the options spell; None when they ask for no times. Raises UsageError."""
    _check(request, InsideRequest())
    return _across(request, _hardware(request), dtype) if request.is_asked else None


def machines_for(request: MachineRequest, inside: InsideRequest, dtype: str) -> Machines | None:
    """The machine with both of its links; None when no times are asked for. Raises UsageError.

    A link inside a node of which neither the user nor a data sheet knows is the one between nodes.
    """
    _check(request, inside)
    if not request.is_asked:
        if inside != InsideRequest():
            raise UsageError(
                "--intra-bandwidth and --intra-latency tell of a link inside a node: times also need "
                "--hardware NAME, or --flops, --bandwidth and --latency"
            )
        return None
    hardware = _hardware(request)
    across = _across(request, hardware, dtype)
    link = None if hardware is None else hardware.inside
    if link is None:
        bandwidth = inside.bandwidth or across.bytes_per_s
        latency = across.step_latency_s if inside.latency is None else inside.latency
    else:
        bandwidth, latency = inside.bandwidth, inside.latency
    bare = dataclasses.replace(across, sources=())
    within = _linked(bare, hardware, link, (bandwidth, latency), ("intra-bandwidth", "intra-latency"))
    if dataclasses.replace(across, sources=()) == dataclasses.replace(within, sources=()):
        return Machines(across, across, hardware, across.sources)
    both = tuple(f"between nodes, {text}" if _is_of_link(text) else text for text in across.sources)
    return Machines(across, within, hardware, (*both, *(f"inside a node, {text}" for text in within.sources)))


def _hardware(request: MachineRequest) -> Hardware | None:
    return None if request.hardware is None else known_hardware(request.hardware)


def _across(request: MachineRequest, hardware: Hardware | None, dtype: str) -> Machine:
    flops, of_peak = _peak(request, hardware, dtype)
    memory, of_memory = _memory(request, hardware)
    machine = Machine(
        name=GIVEN if hardware is None else hardware.name,
        flops_per_s=flops,
        bytes_per_s=0.0,
        step_latency_s=0.0,
        efficiency=request.efficiency or 1.0,
        memory_bytes_per_s=memory,
        sources=(of_peak, of_memory),
    )
    link = None if hardware is None else hardware.link
    given = (request.bandwidth, request.latency)
    return _linked(machine, hardware, link, given, ("bandwidth", "latency"))


def _is_of_link(source: str) -> bool:
    return source.startswith(("bandwidth", "latency", "latencies"))


def known_hardware(name: str) -> Hardware:
    """Raises UsageError that lists what is known."""
    found = find_hardware(name)
    if found is None:
        raise UsageError(
            f"unknown hardware '{name}', expected one of {', '.join(hardware_names())}; or give its --flops, "
            "--bandwidth and --latency"
        )
    return found


def _check(request: MachineRequest, inside: InsideRequest) -> None:
    given = dataclasses.asdict(request) | {
        "intra-bandwidth": inside.bandwidth,
        "intra-latency": inside.latency,
    }
    for name, value in given.items():
        if not isinstance(value, (int, float)):
            continue
        option, is_latency = f"--{name.replace('_', '-')}", name.endswith("latency")
        if not (0 < value < math.inf) and not (is_latency and value == 0):
            least = "of at least 0" if is_latency else "above 0"
            raise UsageError(f"{option} is {value:g}, expected a number {least}")
        if is_latency and value >= _LONGEST_LATENCY_S:
            raise UsageError(f"{option} is {value:g}, expected seconds, such as 5e-6")
        if not is_latency and name != "efficiency" and value < _LEAST_RATE:
            # no device is so far from these: it was given in TFLOP/s or GB/s by mistake
            unit, example = ("FLOP/s", "312e12") if name == "flops" else ("bytes/s", "300e9")
            raise UsageError(f"{option} is {value:g}, expected {unit}, such as {example}")
    if request.efficiency is not None and request.efficiency > 1:
        raise UsageError(f"--efficiency is {request.efficiency:g}, expected a share of the peak, at most 1")
    if request.is_asked and request.hardware is None:
        _refuse_missing(request)


def _refuse_missing(request: MachineRequest) -> None:
    needed = {"--flops": request.flops, "--bandwidth": request.bandwidth, "--latency": request.latency}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise UsageError(
            f"times need --hardware NAME, or --flops, --bandwidth and --latency: {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing"
        )


def _peak(request: MachineRequest, hardware: Hardware | None, dtype: str) -> tuple[float, str]:
    if request.flops is not None:
        return request.flops, f"peak: {_BY_THE_USER}"
    assert hardware is not None
    flops = device_flops_per_s(hardware.device, TORCH_NAMES[dtype])
    if flops is None:
        raise UsageError(
            f"no peak is known of {hardware.device.name} for --dtype {dtype}: give it with --flops"
        )
    return flops, f"peak: {hardware.device.source}"


def _memory(request: MachineRequest, hardware: Hardware | None) -> tuple[float | None, str]:
    if request.memory_bandwidth is not None:
        return request.memory_bandwidth, f"memory bandwidth: {_BY_THE_USER}"
    if hardware is None or hardware.device.memory is None:
        return None, "memory bandwidth: not known; what is neither GEMM nor attention takes no time"
    memory = hardware.device.memory
    return memory.gb_per_s * 1e9, f"memory bandwidth: {memory.source}"


def _linked(
    machine: Machine,
    hardware: Hardware | None,
    link: Link | None,
    given: tuple[float | None, float | None],
    options: tuple[str, str],
) -> Machine:
    """The machine with this link, a given bandwidth or latency in place of the data sheet's."""
    bandwidth, latency = given
    name = machine.name if hardware is None else hardware.device.name
    peer = None
    if bandwidth is not None:
        of_bandwidth = _BY_THE_USER
    elif link is None:
        raise UsageError(f"no link bandwidth is known of {name}: give it with --{options[0]}")
    else:
        bandwidth, of_bandwidth = link.gb_per_s * 1e9, link.source
        peer = None if link.peer_gb_per_s is None else link.peer_gb_per_s * 1e9
    launch = 0.0
    if latency is not None:
        of_latency = f"latency: {_BY_THE_USER}"
    else:
        known = None if hardware is None else _known_latency(hardware.device, link)
        if known is None:
            raise UsageError(f"no latency is known of {name}'s link: give it with --{options[1]}")
        launch, latency, source = known
        of_latency = f"latencies: {source}"
    return dataclasses.replace(
        machine,
        bytes_per_s=bandwidth,
        peer_bytes_per_s=peer,
        step_latency_s=latency,
        launch_latency_s=launch,
        sources=(*machine.sources, f"bandwidth: {of_bandwidth}", of_latency),
    )


def _known_latency(device: Device, link: Link | None) -> tuple[float, float, str] | None:
    """Of launch and step, in seconds, and whence."""
    library = latency_of(device)
    if library is None or link is None or link.kind not in library.step_s:
        return None
    return library.launch_s, library.step_s[link.kind], library.source
