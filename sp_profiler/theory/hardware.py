"""What a device can do at best: dense matrix TFLOP/s by dtype, as its maker states them.

Figures are those of data sheets, without sparsity, for one device as the profiler shows it (of an MI250X one
of its two dies). A device that is not listed has no peak: nothing is guessed from similar names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FLOAT32_TENSOR = "tf32"
"""The key of float32 products on tensor cores, which drop mantissa bits; `float32` is the full-width rate."""


@dataclass(frozen=True)
class Device:
    """A device model. `pattern` is looked for in the name that the trace or run.json gives."""

    name: str
    pattern: str
    dense_tflops: dict[str, float]  # by torch's dtype name, and `tf32`
    source: str


def _device(name: str, pattern: str, half: float, tf32: float | None, fp32: float, source: str) -> Device:
    """A device whose float16 and bfloat16 rates are equal."""
    peaks = {"float16": half, "bfloat16": half, "float32": fp32}
    return Device(name, pattern, peaks | ({} if tf32 is None else {FLOAT32_TENSOR: tf32}), source)


def _volta(name: str, pattern: str, half: float, fp32: float) -> Device:
    """Volta's tensor cores know float16 only."""
    source = "NVIDIA V100 Tensor Core GPU datasheet (January 2020)"
    return Device(name, pattern, {"float16": half, "float32": fp32}, source)


_A100 = "NVIDIA A100 Tensor Core GPU datasheet (June 2021)"
_A800 = "the export variant of the A100, whose links are slower; rates of the A100's datasheet"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet; the sheet states rates with sparsity, twice these"
_H200 = "NVIDIA H200 Tensor Core GPU datasheet; the sheet states rates with sparsity, twice these"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip datasheet, one GPU; with sparsity twice these"
_H800 = "the export variant of the H100 SXM, whose links are slower; rates of the H100's datasheet"
_H20 = "NVIDIA H20 specification as published for the market it was made for, dense rates"
_B200 = "NVIDIA HGX platform specifications, HGX B200, an eighth; rates with sparsity are twice these"
_B300 = "NVIDIA HGX platform specifications, HGX B300, an eighth; rates with sparsity are twice these"
_GB200 = "NVIDIA GB200 NVL72 datasheet, a 72nd of the rack; rates with sparsity are twice these"
_GB300 = "NVIDIA GB300 NVL72 datasheet, a 72nd of the rack; rates with sparsity are twice these"
_L40S = "NVIDIA L40S datasheet; rates with sparsity are twice these"
_L40 = "NVIDIA L40 datasheet; rates with sparsity are twice these"
_L4 = "NVIDIA L4 datasheet; the sheet states rates with sparsity, twice these"
_A10 = "NVIDIA A10 datasheet; rates with sparsity are twice these"
_A40 = "NVIDIA A40 datasheet; rates with sparsity are twice these"
_RTX4090 = "NVIDIA Ada GPU architecture whitepaper, GeForce RTX 4090, products accumulated in float32"
_MI250 = "AMD Instinct MI250 datasheet, matrix rates; half of them, because a die is a device"
_MI250X = "AMD Instinct MI250X datasheet, matrix rates; half of them, because a die is a device"
_MI300X = "AMD Instinct MI300X datasheet, matrix rates without sparsity"
_MI325X = "AMD Instinct MI325X datasheet, matrix rates without sparsity"
_MI350X = "AMD Instinct MI350X datasheet (2.3 PFLOPS): 1024 matrix cores, 512 FMA a cycle, 2.2 GHz"
_MI355X = "AMD Instinct MI355X datasheet (2.5 PFLOPS): 1024 matrix cores, 512 FMA a cycle, 2.4 GHz"

# The first pattern that is found decides: the more special ones come first. An exact name ends with `$` where
# a suffix names another device (`RTX 4090 D`, `RTX 4090 Laptop GPU`).
DEVICES: tuple[Device, ...] = (
    _device("GB300", r"\bGB300\b", 2500.0, 1250.0, 80.0, _GB300),
    _device("GB200", r"\bGB200\b", 2500.0, 1250.0, 80.0, _GB200),
    _device("B300", r"\bB300\b", 2250.0, 1125.0, 75.0, _B300),
    _device("B200", r"\bB200\b", 2250.0, 1125.0, 75.0, _B200),
    _device("GH200", r"\bGH200\b", 989.5, 494.5, 67.0, _GH200),
    _device("H200 NVL", r"\bH200 NVL\b", 835.5, 417.5, 60.0, _H200),
    _device("H200 SXM", r"\bH200\b", 989.5, 494.5, 67.0, _H200),
    _device("H100 NVL", r"\bH100 NVL\b", 835.5, 417.5, 60.0, _H100),
    _device("H100 PCIe", r"\bH100 PCIe\b", 756.5, 378.0, 51.0, _H100),
    _device("H100 SXM", r"\bH100\b", 989.5, 494.5, 67.0, _H100),
    _device("H800 SXM", r"\bH800\b(?! PCIe)", 989.5, 494.5, 67.0, _H800),
    _device("H20", r"\bH20\b", 148.0, 74.0, 44.0, _H20),
    _device("A100", r"\bA100\b", 312.0, 156.0, 19.5, _A100),
    _device("A800", r"\bA800\b", 312.0, 156.0, 19.5, _A800),
    _device("A40", r"\bA40\b", 149.7, 74.8, 37.4, _A40),
    _device("A10", r"\bA10\b", 125.0, 62.5, 31.2, _A10),
    _device("L40S", r"\bL40S\b", 362.05, 183.0, 91.6, _L40S),
    _device("L40", r"\bL40\b", 181.05, 90.5, 90.5, _L40),
    _device("L4", r"\bL4\b", 121.0, 60.0, 30.3, _L4),
    _device("RTX 4090", r"\bRTX 4090$", 165.2, 82.6, 82.6, _RTX4090),
    _volta("V100 PCIe", r"\bV100-PCIE\b", 112.0, 14.0),
    _volta("V100S PCIe", r"\bV100S\b", 130.0, 16.4),
    _volta("V100 SXM2", r"\bV100-SXM2\b", 125.0, 15.7),
    _device("MI355X", r"\bMI355X\b", 2516.6, None, 157.3, _MI355X),
    _device("MI350X", r"\bMI350X\b", 2306.9, None, 144.2, _MI350X),
    _device("MI325X", r"\bMI325X\b", 1307.4, 653.7, 163.4, _MI325X),
    _device("MI300X", r"\bMI300X\b", 1307.4, 653.7, 163.4, _MI300X),
    _device("MI250X, one die", r"\bMI250X\b", 191.5, None, 47.9, _MI250X),
    _device("MI250, one die", r"\bMI250\b", 181.05, None, 45.3, _MI250),
)

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
