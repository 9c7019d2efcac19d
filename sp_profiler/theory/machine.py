"""What a plan needs to know of a machine to tell time: rates of a device and of the link between ranks.

Rates are the makers': what a GEMM or a ring really reaches is less, and `efficiency` or measured figures
bring a plan to it. A device without a figure has none here: nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from sp_profiler.theory.hardware import FLOAT32_TENSOR, Device

_NVLINK = "NVLink as its data sheet states it, halved: the sheet adds both directions"
_BRIDGE = "NVLink bridge as its data sheet states it, halved: the sheet adds both directions"
_PCIE = "PCIe 3.0 x16 as its data sheet states it, halved: the sheet adds both directions"
_PCIE4 = "PCIe 4.0 x16 as its data sheet states it, halved: the sheet adds both directions"
_FABRIC = "Infinity Fabric as its data sheet states it, halved: it adds both directions"

NCCL_LAUNCH_S = 8.4e-6
NCCL_STEP_S = {"nvlink": 3.4e-6, "pcie": 5.7e-6}
NCCL_SOURCE = "latencies: NCCL's own model of a ring with its Simple protocol (src/graph/tuning.cc)"
"""Latency of a collective before its first step, and of every step of the ring."""


@dataclass(frozen=True)
class Surroundings:
    """Figures of a device beyond its GEMMs, in GB/s (1e9 bytes): one direction of its link, its memory."""

    link_gb_per_s: float | None
    link_kind: str | None  # nvlink | pcie: which latencies of NCCL's model go with it
    link_source: str
    memory_gb_per_s: float | None
    memory_source: str = "memory bandwidth: the same data sheet"


# By the names of `hardware.DEVICES`; of those that are missing nothing is known beyond their GEMMs.
SURROUNDINGS = {
    "GB300": Surroundings(900.0, "nvlink", _NVLINK, 8000.0),
    "GB200": Surroundings(900.0, "nvlink", _NVLINK, 8000.0),
    "B300": Surroundings(900.0, "nvlink", _NVLINK, 8000.0),
    "B200": Surroundings(900.0, "nvlink", _NVLINK, 8000.0, "memory bandwidth: DGX B200 datasheet, an eighth"),
    "H200 NVL": Surroundings(450.0, "nvlink", _BRIDGE, 4800.0),
    "H200 SXM": Surroundings(450.0, "nvlink", _NVLINK, 4800.0),
    "H100 NVL": Surroundings(300.0, "nvlink", _BRIDGE, 3900.0),
    "H100 PCIe": Surroundings(300.0, "nvlink", _BRIDGE, 2000.0),
    "H100 SXM": Surroundings(450.0, "nvlink", _NVLINK, 3350.0),
    "H800 SXM": Surroundings(200.0, "nvlink", _NVLINK, 3350.0),
    "H20": Surroundings(450.0, "nvlink", _NVLINK, 4000.0),
    "A800": Surroundings(200.0, "nvlink", _NVLINK, 2039.0),
    "A10": Surroundings(32.0, "pcie", _PCIE4, 600.0),
    "L40S": Surroundings(32.0, "pcie", _PCIE4, 864.0),
    "L40": Surroundings(32.0, "pcie", _PCIE4, 864.0),
    "A100": Surroundings(
        300.0, "nvlink", _NVLINK, 2039.0, "memory bandwidth: the same data sheet, 80 GB SXM"
    ),
    "V100 PCIe": Surroundings(16.0, "pcie", _PCIE, 900.0),
    "V100S PCIe": Surroundings(16.0, "pcie", _PCIE, 1134.0),
    "V100 SXM2": Surroundings(150.0, "nvlink", _NVLINK, 900.0),
    "MI355X": Surroundings(None, None, "", 8000.0),
    "MI350X": Surroundings(None, None, "", 8000.0),
    "MI325X": Surroundings(None, None, "", 6000.0),
    "MI300X": Surroundings(448.0, None, _FABRIC, 5300.0),
    "MI250X, one die": Surroundings(None, None, "", 1638.4, "memory bandwidth: the data sheet's, halved"),
}


def surroundings_of(device: Device) -> Surroundings:
    """Figures of a device beyond its GEMMs, each None where it is not known."""
    return SURROUNDINGS.get(device.name) or Surroundings(None, None, "", None)


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

    @property
    def gemm_flops_per_s(self) -> float:
        return self.flops_per_s * self.efficiency


def device_flops_per_s(device: Device, dtype: str) -> float | None:
    """Peak for GEMMs of this dtype (torch's name); float32 in full width. None where it is not known."""
    tflops = device.dense_tflops.get(dtype)
    return None if tflops is None or dtype == FLOAT32_TENSOR else tflops * 1e12
