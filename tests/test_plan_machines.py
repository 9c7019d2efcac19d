"""The machine of a plan: names, rates in place of the data sheet's, and its link inside a node."""

from __future__ import annotations

import pytest

from sp_profiler.errors import UsageError
from sp_profiler.planning.machines import InsideRequest, MachineRequest, Machines, machine_for, machines_for


def both(request: MachineRequest, inside: InsideRequest | None = None, dtype: str = "bf16") -> Machines:
    found = machines_for(request, inside or InsideRequest(), dtype)
    assert found is not None
    return found


def test_no_rates_no_machine() -> None:
    assert machine_for(MachineRequest(), "bf16") is None
    assert machines_for(MachineRequest(), InsideRequest(), "bf16") is None


def test_a_device_has_its_own_link_everywhere() -> None:
    found = both(MachineRequest("H100 SXM"))
    assert found.across == found.inside
    assert (found.across.bytes_per_s, found.across.flops_per_s) == (450e9, 989.5e12)
    assert machine_for(MachineRequest("H100 SXM"), "bf16") == found.across


def test_a_profile_with_a_network_has_another_between_nodes() -> None:
    found = both(MachineRequest("h100-ib"))
    assert (found.across.bytes_per_s, found.inside.bytes_per_s) == (50e9, 450e9)
    assert (found.across.step_latency_s, found.inside.step_latency_s) == (14e-6, 3.4e-6)
    assert found.across.launch_latency_s == found.inside.launch_latency_s == 8.4e-6
    assert found.across.flops_per_s == found.inside.flops_per_s == 989.5e12
    amd = both(MachineRequest("mi300x-ib"))
    assert (amd.across.step_latency_s, amd.inside.step_latency_s) == (15.1e-6, 3.6e-6)
    assert amd.across.peer_bytes_per_s is None
    assert amd.inside.peer_bytes_per_s == 64e9


def test_a_given_rate_replaces_the_data_sheets_between_nodes_alone() -> None:
    found = both(MachineRequest("h100-nvlink", bandwidth=25e9, latency=9e-6, flops=500e12, efficiency=0.5))
    assert (found.across.bytes_per_s, found.across.step_latency_s) == (25e9, 9e-6)
    assert found.across.launch_latency_s == 0, "a given latency is all of it"
    assert (found.inside.bytes_per_s, found.inside.step_latency_s) == (450e9, 3.4e-6)
    assert found.across.gemm_flops_per_s == found.inside.gemm_flops_per_s == 250e12
    assert "between nodes, bandwidth: given by the user" in found.sources
    assert any(text.startswith("inside a node, bandwidth: NVIDIA H100") for text in found.sources)
    slower = both(MachineRequest("mi300x-xgmi"), InsideRequest(bandwidth=300e9))
    assert (slower.inside.bytes_per_s, slower.inside.peer_bytes_per_s) == (300e9, None)
    assert (slower.across.bytes_per_s, slower.across.peer_bytes_per_s) == (448e9, 64e9)


def test_given_rates_have_one_link_unless_two_are_given() -> None:
    rates = MachineRequest(flops=4e14, bandwidth=5e10, latency=1e-5)
    one = both(rates)
    assert one.across == one.inside
    two = both(rates, InsideRequest(bandwidth=4.5e11))
    assert (two.inside.bytes_per_s, two.inside.step_latency_s) == (4.5e11, 1e-5)
    two = both(rates, InsideRequest(latency=0.0))
    assert (two.inside.bytes_per_s, two.inside.step_latency_s) == (5e10, 0.0)


def test_a_device_without_a_link_takes_the_given_one_everywhere() -> None:
    found = both(MachineRequest("MI250X", bandwidth=1e11, latency=5e-6))
    assert found.across == found.inside
    assert found.across.bytes_per_s == 1e11


@pytest.mark.parametrize(
    ("request_", "inside", "dtype", "said"),
    [
        (
            MachineRequest("MI250X", latency=1e-6),
            InsideRequest(),
            "bf16",
            "no link bandwidth is known of MI250X",
        ),
        (MachineRequest("MI250X", bandwidth=1e11), InsideRequest(), "bf16", "no latency is known of MI250X"),
        (MachineRequest("h100-ib"), InsideRequest(), "f64", "no peak is known of H100 SXM for --dtype f64"),
        (MachineRequest("h100-ib", latency=-1.0), InsideRequest(), "bf16", "--latency is -1"),
        (
            MachineRequest("h100-ib"),
            InsideRequest(bandwidth=float("inf")),
            "bf16",
            "--intra-bandwidth is inf",
        ),
        (
            MachineRequest(efficiency=0.5),
            InsideRequest(),
            "bf16",
            "--flops, --bandwidth, --latency are missing",
        ),
        (MachineRequest("h100-ib", efficiency=0.0), InsideRequest(), "bf16", "--efficiency is 0"),
    ],
)
def test_what_is_not_known_or_cannot_be_is_told_in_one_sentence(
    request_: MachineRequest, inside: InsideRequest, dtype: str, said: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        machines_for(request_, inside, dtype)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)
