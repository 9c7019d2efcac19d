"""Context parallelism of real gloo ranks: which scheme, which hops, and hidden only when asynchronous."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from context_ranks import RECORDED, RECORDED_WORLD, outcomes

from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.engine import analyze_run
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.load import load_run

SCHEMES = [options["scheme"] for options in RECORDED]
RINGS = [scheme for scheme in SCHEMES if scheme != "ulysses"]
NAMES = {"ring": "ring", "rsa": "ring-self-attention", "ulysses": "ulysses", "usp": "usp"}
EACH_PASS = {
    # transfers of a rank in a pass, by phase and payload, at four ranks
    "ring": {("forward", "kv"): 3, ("backward", "kv"): 3, ("backward", "dkv"): 4},
    "rsa": {
        ("forward", "k"): 3, ("forward", "v"): 3, ("backward", "v"): 3, ("backward", "k"): 3,
        ("backward", "dv"): 1, ("backward", "dk"): 1,
    },
    "ulysses": {
        ("forward", "q"): 1, ("forward", "k"): 1, ("forward", "v"): 1, ("forward", "out"): 1,
        ("backward", "dout"): 1, ("backward", "dqkv"): 3,
    },
    "usp": {
        ("forward", "q"): 1, ("forward", "k"): 1, ("forward", "v"): 1, ("forward", "out"): 1,
        ("backward", "dout"): 1, ("backward", "dqkv"): 3,
        ("forward", "kv"): 1, ("backward", "kv"): 1, ("backward", "dkv"): 2,
    },
}  # fmt: skip


@cache
def found_in(scheme: str, comm: str) -> ContextParallel:
    (run,) = find_runs([str(outcomes(RECORDED_WORLD).folder / f"{scheme}-{comm}")])
    found = analyze_run(load_run(run)).context_parallel
    assert found is not None
    return found


@pytest.mark.gloo
@pytest.mark.timeout(600)
@pytest.mark.parametrize("comm", ["sync", "async"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme_and_passes(scheme: str, comm: str) -> None:
    (one,) = found_in(scheme, comm).schemes
    assert (one.scheme, one.ranks) == (NAMES[scheme], [0, 1, 2, 3])
    assert (one.forward_passes, one.backward_passes) == (2, 2)
    assert (one.recompute_passes, one.incomplete_passes) == (0, 0)


@pytest.mark.gloo
@pytest.mark.timeout(600)
@pytest.mark.parametrize("comm", ["sync", "async"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_transfer_of_a_pass_is_a_hop(scheme: str, comm: str) -> None:
    for rank in range(RECORDED_WORLD):
        mine = [hop for hop in found_in(scheme, comm).hops if hop.rank == rank]
        assert Counter((hop.phase, hop.payload) for hop in mine) == EACH_PASS[scheme]
        assert {hop.passes for hop in mine} == {2}
        for hop in mine:
            assert hop.communication_ns is not None
            assert hop.imbalance_ns is not None
            assert hop.skew_ns is not None
            assert hop.exposed_ns == hop.communication_ns + hop.imbalance_ns + hop.skew_ns


@pytest.mark.gloo
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_synchronous_transfers_hide_nothing(scheme: str) -> None:
    found = found_in(scheme, "sync")
    assert {hop.hidden_ns for hop in found.hops} == {0}
    assert {model.schedule for model in found.models} <= {"in-turn"}


@pytest.mark.gloo
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheme", RINGS)
def test_asynchronous_hops_hide_under_attention(scheme: str) -> None:
    found = found_in(scheme, "async")
    for phase in ("forward", "backward"):
        assert sum(hop.hidden_ns for hop in found.hops if hop.phase == phase) > 0
    assert {model.schedule for model in found.models} == {"overlapped"}
    assert all(model.is_this_machine_only for model in found.models)


@pytest.mark.gloo
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheme", RINGS)
def test_every_rank_has_attention_in_every_ring_step(scheme: str) -> None:
    for balance in found_in(scheme, "async").balance:
        steps = len(balance.ranks) * (2 if scheme == "rsa" else 1)
        for work in balance.work_ns:
            assert len(work) == steps
            assert all(work), "zigzag leaves every rank something of every block"


@pytest.mark.gloo
@pytest.mark.timeout(600)
@pytest.mark.parametrize("comm", ["sync", "async"])
@pytest.mark.parametrize("scheme", ["ulysses", "usp"])
def test_layout_copies_are_neither_attention_nor_communication(scheme: str, comm: str) -> None:
    copies = found_in(scheme, comm).layout_copies
    assert Counter(one.phase for one in copies) == {"forward": 4, "backward": 4}
    for one in copies:
        assert (one.passes, one.all_to_alls) == (2, 8)
        assert one.copies > 0
        assert one.copy_ns > 0


@pytest.mark.shared
def test_the_case_of_a_ring_of_two(shared: Path) -> None:
    """Four send/recv of 700 us, each under the 900 us of attention launched before it."""
    (run,) = find_runs([str(shared / "cases" / "ring_send_recv")])
    found = analyze_run(load_run(run)).context_parallel
    assert found is not None
    (scheme,) = found.schemes
    assert (scheme.scheme, scheme.groups, scheme.ring_ranks) == ("ring", ["cp[0,1]"], 2)
    assert scheme.forward_passes == 4
    for hop in found.hops:
        assert (hop.payload, hop.hop, hop.passes, hop.bytes) == ("kv", 0, 4, 33_554_432)
        assert (hop.source, hop.target) == (1 - (hop.rank or 0),) * 2
        assert (hop.dur_ns, hop.transfer_ns, hop.attention_ns) == (700_000, 700_000, 900_000)
        assert hop.larger == "attention"
        assert (hop.hidden_ns, hop.exposed_ns) == (2_800_000, 0)
    assert [hop.rank for hop in found.hops] == [0, 1]
