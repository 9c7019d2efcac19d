"""Peaks of devices: found by name, null where nobody knows, and what GEMMs make of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_helpers import WHOLE, draw, gemm

from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.classify.tables import Role
from sp_profiler.theory.hardware import DEVICES, LATENCIES, NODES, find_device, peak_tflops
from sp_profiler.theory.machine import find_hardware, hardware_names, latency_of


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H800", "H800 SXM"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A800-SXM4-80GB", "A800"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI325X", "MI325X"),
        ("AMD Instinct MI350X", "MI350X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("AMD Instinct MI250X", "MI250X, one die"),
        ("AMD Instinct MI250X/MI250", "MI250X, one die"),
        ("AMD Instinct MI250", "MI250, one die"),
    ],
)
def test_devices_are_found_by_their_names(name: str, device: str) -> None:
    found = find_device(name)
    assert found is not None
    assert found.name == device


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "AMD Radeon Graphics",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H800 PCIe",
        "NVIDIA A10G",
        "Tesla V100-DGXS-32GB",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "AMD Instinct MI300A",
    ],
)
def test_nothing_is_guessed_from_similar_names(name: str | None) -> None:
    assert find_device(name) is None


def test_every_device_has_a_source_and_sensible_rates() -> None:
    for device in DEVICES:
        assert device.source
        peaks = device.dense_tflops
        assert peaks["float16"] > peaks["float32"] > 0
        if "tf32" in peaks:  # data sheets round: 121 and 60, 362.05 and 183
            assert peaks["float16"] == pytest.approx(2 * peaks["tf32"], rel=0.012)


def test_every_figure_beyond_gemms_has_a_source_too() -> None:
    assert len({device.name for device in DEVICES}) == len(DEVICES)
    links = [device.link for device in DEVICES if device.link] + [node.network for node in NODES]
    assert len(links) > 20
    for link in links:
        assert link.source
        assert link.gb_per_s >= (link.peer_gb_per_s or 0) >= 0
    for device in DEVICES:
        assert device.memory is None or (device.memory.source and device.memory.gb_per_s > 100)
    assert all(node.source and node.ranks == 8 for node in NODES)
    assert all(one.source and one.launch_s > 0 and min(one.step_s.values()) > 0 for one in LATENCIES.values())
    a40 = find_device("NVIDIA A40")
    assert a40 is not None
    assert (a40.link, a40.memory) == (None, None)


@pytest.mark.parametrize(
    ("name", "device", "gb_per_s", "inside_gb_per_s"),
    [
        ("a100-nvlink", "A100", 300, 300),
        ("a100-ib", "A100", 25, 300),
        ("h100-nvlink", "H100 SXM", 450, 450),
        ("H100-IB", "H100 SXM", 50, 450),
        ("h200-nvlink", "H200 SXM", 450, 450),
        ("h200-ib", "H200 SXM", 50, 450),
        ("b200-nvlink", "B200", 900, 900),
        ("b200-ib", "B200", 50, 900),
        ("mi300x-xgmi", "MI300X", 448, 448),
        ("mi300x-ib", "MI300X", 50, 448),
    ],
)
def test_profiles(name: str, device: str, gb_per_s: float, inside_gb_per_s: float) -> None:
    found = find_hardware(name)
    assert found is not None
    assert (found.device.name, found.ranks_per_node) == (device, 8)
    assert found.link is not None
    assert found.inside is not None
    assert (found.link.gb_per_s, found.inside.gb_per_s) == (gb_per_s, inside_gb_per_s)
    latency = latency_of(found.device)
    assert latency is not None
    assert {found.link.kind, found.inside.kind} <= latency.step_s.keys()


def test_names_are_profiles_devices_or_what_torch_calls_them() -> None:
    assert hardware_names()[:3] == ["a100-nvlink", "a100-ib", "h100-nvlink"]
    assert all(find_hardware(name) is not None for name in hardware_names())
    for name in ("NVIDIA A100-SXM4-80GB", "a100", "A100-SXM4-40GB"):
        found = find_hardware(name)
        assert found is not None
        assert (found.name, found.ranks_per_node) == ("A100", None)
    for name in ("h100-wifi", "a100-pcie", "h300-ib", ""):
        assert find_hardware(name) is None


def test_float32_needs_the_kernel_to_tell() -> None:
    a100, v100 = find_device("NVIDIA A100-SXM4-40GB"), find_device("Tesla V100-SXM2-16GB")
    assert peak_tflops(a100, "float32", "ampere_sgemm_128x64_nn") == 19.5
    assert peak_tflops(a100, "float32", "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n") == 156
    assert peak_tflops(a100, "float32", "cutlass_80_tensorop_s1688gemm_128x128_nn") == 156
    assert peak_tflops(a100, "float32", "some_gemm") is None
    assert peak_tflops(v100, "float32", "some_gemm") == 15.7  # no tensor cores for float32
    assert peak_tflops(v100, "bfloat16", "some_gemm") is None
    assert peak_tflops(None, "bfloat16", "some_gemm") is None
    assert peak_tflops(a100, None, "some_gemm") is None


def test_the_share_of_peak_of_a_gemm() -> None:
    #  2 * 4096^3 = 137.4 GFLOP in 1 ms: 137.4 TFLOP/s, of 312
    op = ("aten::mm", "[[4096,4096],[4096,4096]]", '["c10::BFloat16","c10::BFloat16"]')
    trace, classified = draw(gemm(0, 1_000_000, Role.FWD, op=op))
    (unknown,) = analyze_rank(trace, classified, WHOLE).gemms
    assert unknown.share_of_peak is None
    listed = ({"id": 1, "name": "NVIDIA H200"}, {"id": 0, "name": "NVIDIA A100-SXM4-40GB"})
    trace = replace(trace, metadata=replace(trace.metadata, devices=listed))
    (one,) = analyze_rank(trace, classified, WHOLE).gemms
    assert one.tflops == pytest.approx(137.439, rel=1e-4)
    assert one.share_of_peak == pytest.approx(137.439 / 312, rel=1e-4)
