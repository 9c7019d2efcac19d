"""Closed forms of time by hand: rings, sharded GEMMs, and the figures of a published run."""

from __future__ import annotations

import pytest

from sp_profiler.theory.communication import wire_bytes
from sp_profiler.theory.hardware import DEVICES
from sp_profiler.theory.machine import Machine, device_flops_per_s
from sp_profiler.theory.memory import Shape
from sp_profiler.theory.time import (
    attention_flops,
    block_linears,
    collective_seconds,
    gemm_seconds,
    step_times,
    step_wire_bytes,
)

PUBLISHED = Shape("tp", 2048, 4, 768, 8, 4, 2432, 6400, ranks=2)
"""FACTS, memory: the run whose async TP won 0.266 ms a layer."""


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_sends_its_wire_bytes_at_the_links_rate(op: str, ranks: int) -> None:
    machine = Machine("m", 1.0, bytes_per_s=2e9, step_latency_s=0.0)
    size = 8 * 10**6
    seconds = float(wire_bytes(op, size, ranks)) / 2e9
    assert collective_seconds(op, size, ranks, machine) == pytest.approx(seconds)


def test_latency_of_launch_and_of_every_step() -> None:
    machine = Machine("m", 1.0, bytes_per_s=1e15, step_latency_s=3e-6, launch_latency_s=8e-6)
    assert collective_seconds("all_reduce", 8, 4, machine) == pytest.approx(8e-6 + 2 * 3 * 3e-6)
    assert collective_seconds("all_gather", 8, 4, machine) == pytest.approx(8e-6 + 3 * 3e-6)
    assert collective_seconds("all_reduce", 8, 1, machine) == 0, "there is nobody to send to"
    with pytest.raises(KeyError):
        collective_seconds("broadcast", 8, 4, machine)


def test_sharded_shapes_of_a_block() -> None:
    shapes = {linear.module: (linear.inputs, linear.outputs) for linear in block_linears(PUBLISHED)}
    assert shapes == {
        "attention.q": (768, 384),
        "attention.k": (768, 192),
        "attention.v": (768, 192),
        "attention.o": (384, 768),
        "mlp.gate": (768, 1216),
        "mlp.up": (768, 1216),
        "mlp.down": (1216, 768),
    }


def test_the_published_gain_of_async_is_five_wgrads() -> None:
    """40.3 GFLOP at 151 TFLOP/s: 0.266 ms a layer, when collectives are longer than their wgrads."""
    columns = [one for one in block_linears(PUBLISHED) if one.module.split(".")[1] not in ("o", "down")]
    flops = sum(one.flops(PUBLISHED.tokens) for one in columns)
    assert flops == pytest.approx(40.3e9, rel=1e-3)
    slow = Machine("m", flops_per_s=151e12, bytes_per_s=7.5e9, step_latency_s=5e-6)
    assert gemm_seconds(flops, slow) == pytest.approx(0.266e-3, rel=3e-3)
    synchronous, asynchronous = (step_times(PUBLISHED, comm, 32, slow) for comm in ("sync", "async"))
    assert synchronous.hidden_s == 0
    assert synchronous.hideable_s == asynchronous.hidden_s == pytest.approx(32 * gemm_seconds(flops, slow))
    assert synchronous.step_s is not None
    assert asynchronous.step_s is not None
    assert synchronous.step_s - asynchronous.step_s == pytest.approx(asynchronous.hidden_s)


def test_efficiency_makes_gemms_longer_and_so_more_hides() -> None:
    fast = Machine("m", flops_per_s=300e12, bytes_per_s=300e9, step_latency_s=0.0)
    slow = Machine("m", flops_per_s=300e12, bytes_per_s=300e9, step_latency_s=0.0, efficiency=0.5)
    one, other = (step_times(PUBLISHED, "async", 4, machine) for machine in (fast, slow))
    assert other.gemm_s == pytest.approx(2 * one.gemm_s)
    assert one.hidden_s is not None
    assert other.hidden_s is not None
    assert one.hidden_s < other.hidden_s <= other.comm_s


def test_causal_attention_computes_half_of_the_scores() -> None:
    # 2 GEMMs x 2 FLOPs x S^2 x B x a/T x d, halved
    assert attention_flops(PUBLISHED) == 2 * 2 * 2048**2 * 4 * 4 * 96 // 2


@pytest.mark.parametrize(("projections", "times_rf"), [("separate", 14), ("fused", 8)])
def test_a_step_sends_14_or_8_rf_a_layer(projections: str, times_rf: int) -> None:
    shape = Shape("tp", 2048, 4, 768, 8, 4, 2432, 6400, ranks=2, projections=projections)
    assert step_wire_bytes(shape, "sync", 8) * 2 == 8 * times_rf * shape.activation_bytes


def test_lanes_to_one_peer_each_carry_less_among_few() -> None:
    """Seven lanes of 64 GB/s: among eight ranks all of them carry, among two only one."""
    mesh = Machine("m", 1.0, bytes_per_s=448e9, step_latency_s=0.0, peer_bytes_per_s=64e9)
    assert [mesh.bytes_per_s_among(ranks) / 1e9 for ranks in (2, 3, 8, 16)] == [64, 128, 448, 448]
    assert collective_seconds("all_gather", 2**30, 2, mesh) == pytest.approx(2**29 / 64e9)
    switched = Machine("m", 1.0, bytes_per_s=448e9, step_latency_s=0.0)
    assert switched.bytes_per_s_among(2) == 448e9


def test_peaks_of_devices_by_dtype() -> None:
    for device in DEVICES:
        half = device_flops_per_s(device, "float16")
        assert half is not None
        assert half > 1e13
        assert device_flops_per_s(device, "tf32") is None, "no dtype"
