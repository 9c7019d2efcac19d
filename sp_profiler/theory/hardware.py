"""What a device and a link can do at best, as their makers state it: read from `hardware.toml`.

Dense matrix TFLOP/s by dtype, for one device as the profiler shows it (of an MI250X one of its two dies), its
link to the others of its node, its memory; nodes with their network; latencies of communication libraries. A
device that is not listed has no peak: nothing is guessed from similar names.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLOAT32_TENSOR = "tf32"
"""The key of float32 products on tensor cores, which drop mantissa bits; `float32` is the full-width rate."""

DATA_PATH = Path(__file__).with_name("hardware.toml")


@dataclass(frozen=True)
class Link:
    """One direction of a rank's link, in GB/s (1e9 bytes)."""

    kind: str  # nvlink | pcie | xgmi | ib
    gb_per_s: float
    source: str
    peer_gb_per_s: float | None = None
    """To one other rank, where each has lanes of its own; None: all lanes lead to any."""


@dataclass(frozen=True)
class Memory:
    """A device's memory, in GB/s (1e9 bytes)."""

    gb_per_s: float
    source: str


@dataclass(frozen=True)
class Device:
    """A device model. `pattern` is looked for in the name that the trace or run.json gives."""

    name: str
    pattern: str
    dense_tflops: dict[str, float]  # by torch's dtype name, and `tf32`
    source: str
    link: Link | None = None
    memory: Memory | None = None


@dataclass(frozen=True)
class Node:
    """Devices in one machine and the network between machines, a port for each device."""

    name: str
    device: Device
    ranks: int
    network: Link
    source: str


@dataclass(frozen=True)
class Latency:
    """A communication library's: before a collective's first step, and of every step by kind of link."""

    launch_s: float
    step_s: dict[str, float]
    source: str


def _device(plain: dict[str, Any]) -> Device:
    link, memory = plain.get("link"), plain.get("memory")
    return Device(
        plain["name"],
        plain["pattern"],
        plain["tflops"],
        plain["source"],
        None if link is None else Link(**link),
        None if memory is None else Memory(**memory),
    )


def _node(plain: dict[str, Any]) -> Node:
    (device,) = [one for one in DEVICES if one.name == plain["device"]]
    return Node(plain["name"], device, plain["ranks"], Link(**plain["network"]), plain["source"])


_DATA = tomllib.loads(DATA_PATH.read_text(encoding="utf-8"))
DEVICES: tuple[Device, ...] = tuple(map(_device, _DATA["device"]))
NODES: tuple[Node, ...] = tuple(map(_node, _DATA["node"]))
LATENCIES: dict[str, Latency] = {name: Latency(**plain) for name, plain in _DATA["latency"].items()}

# A float32 product may run in full width or on tensor cores; only the kernel's name tells.
_TENSOR_FLOAT32 = re.compile(r"tf32|s1688gemm(?!_(?:f16|bf16))|xf32", re.IGNORECASE)
_FULL_FLOAT32 = re.compile(r"sgemm|simt|f32f32_f32f32_f32", re.IGNORECASE)


def find_device(name: str | None) -> Device | None:
    """The device of this name; None for one that is not listed. A MIG slice is no whole device."""
    if not name or "MIG" in name.split():
        return None
    return next((device for device in DEVICES if re.search(device.pattern, name, re.IGNORECASE)), None)


def peak_tflops(device: Device | None, dtype: str | None, kernel: str) -> float | None:
    """The dense peak for a GEMM of this dtype (torch's name), None where it is not known.

    `kernel` decides what kind of float32 product it is; where its name does not say there is no peak.
    """
    if device is None or dtype is None:
        return None
    if dtype != "float32":
        return device.dense_tflops.get(dtype)
    if FLOAT32_TENSOR not in device.dense_tflops or _FULL_FLOAT32.search(kernel):
        return device.dense_tflops.get("float32")
    return device.dense_tflops[FLOAT32_TENSOR] if _TENSOR_FLOAT32.search(kernel) else None
