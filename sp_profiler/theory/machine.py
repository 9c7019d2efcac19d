"""What a plan needs to know of a machine to tell time: rates of a device and of the link between ranks.

Rates are the makers' (`hardware.toml`): what a GEMM or a ring really reaches is less, and `efficiency` or
measured figures bring a plan to it. A device without a figure has none here: nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sp_profiler.theory.hardware import (
    DEVICES,
    FLOAT32_TENSOR,
    LATENCIES,
    NODES,
    Device,
    Latency,
    Link,
    Node,
    find_device,
)


@dataclass(frozen=True)
class Machine:
    """Rates for a plan's times. Seconds, bytes/s in one direction, FLOP/s."""

    name: str
    flops_per_s: float
    """Dense peak at the plan's element type."""
    bytes_per_s: float
    """What a rank can send while it receives as much."""
    step_latency_s: float
    """alpha: of every step of a ring, of which an all-gather has T-1."""
    launch_latency_s: float = 0.0
    """Of a collective before its first step."""
    efficiency: float = 1.0
    """Share of the peak that GEMMs reach."""
    memory_bytes_per_s: float | None = None
    """None: what is neither GEMM nor attention takes no time, and the step is a lower bound."""
    sources: tuple[str, ...] = ()
    peer_bytes_per_s: float | None = None
    """What it can send to one other rank, where each has lanes of its own; None: all of `bytes_per_s`."""

    @property
    def gemm_flops_per_s(self) -> float:
        return self.flops_per_s * self.efficiency

    def bytes_per_s_among(self, ranks: int) -> float:
        """What a rank can send in a group of `ranks`: where lanes lead to one peer each, over ranks - 1."""
        if self.peer_bytes_per_s is None:
            return self.bytes_per_s
        return min(self.bytes_per_s, max(ranks - 1, 1) * self.peer_bytes_per_s)


@dataclass(frozen=True)
class Hardware:
    """A device and how ranks on such devices reach each other; links are None where not known."""

    name: str
    device: Device
    link: Link | None
    """Between any two ranks, those of different nodes included."""
    inside: Link | None
    """Between ranks of one node."""
    ranks_per_node: int | None
    """None: nothing is known of a node."""


def profiles() -> tuple[Hardware, ...]:
    """The named ones: of each node everything within reach of the device's own link, and with a network."""
    return tuple(one for node in NODES for one in (_in_reach(node), _with_network(node)))


def _in_reach(node: Node) -> Hardware:
    link = node.device.link
    kind = "link" if link is None else link.kind
    return Hardware(f"{node.name}-{kind}", node.device, link, link, node.ranks)


def _with_network(node: Node) -> Hardware:
    name = f"{node.name}-{node.network.kind}"
    return Hardware(name, node.device, node.network, node.device.link, node.ranks)


def find_hardware(name: str) -> Hardware | None:
    """A profile such as `h100-ib`, or a device by its name or the name that torch gives it; in any case.

    What is spelled like a profile is none of its device: `h100-wifi` is unknown.
    """
    wanted = name.strip().lower()
    for profile in profiles():
        if profile.name == wanted:
            return profile
    device = next((one for one in DEVICES if one.name.lower() == wanted), None)
    if device is None and not _spelled_like_a_profile(wanted):
        device = find_device(name)
    return None if device is None else Hardware(device.name, device, device.link, device.link, None)


def _spelled_like_a_profile(name: str) -> bool:
    return any(re.fullmatch(rf"{node.name}-[a-z]+", name) for node in NODES)


def hardware_names() -> list[str]:
    """What `find_hardware` knows: profiles, then devices."""
    return [one.name for one in (*profiles(), *DEVICES)]


def latency_of(device: Device) -> Latency | None:
    """That of the communication library which knows the device's own link; None where none does."""
    if device.link is None:
        return None
    return next((one for one in LATENCIES.values() if device.link.kind in one.step_s), None)


def device_flops_per_s(device: Device, dtype: str) -> float | None:
    """Peak for GEMMs of this dtype (torch's name); float32 in full width. None where it is not known."""
    tflops = device.dense_tflops.get(dtype)
    return None if tflops is None or dtype == FLOAT32_TENSOR else tflops * 1e12
