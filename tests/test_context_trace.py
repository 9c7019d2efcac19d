"""What reports say of recorded runs: nothing overlaps in sync, in async attention hides communication."""

from __future__ import annotations

from functools import cache

import pytest
from context_ranks import RECORDED, RECORDED_WORLD, outcomes

from sp_profiler.engine import analyze_run
from sp_profiler.report.model import Report
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.load import load_run

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(600)]

SCHEMES = [options["scheme"] for options in RECORDED]
RINGS = [scheme for scheme in SCHEMES if scheme != "ulysses"]
PER_STEP = {
    # (op, purpose): how many on each rank in a step, forward and backward, at four ranks
    "ring": {("send_recv", "kv"): 6, ("send_recv", "dkv"): 4},
    "rsa": {("send_recv", "kv"): 12, ("reduce_scatter", "dkv"): 2},
    "ulysses": {("all_to_all", "layout"): 8},
    "usp": {("all_to_all", "layout"): 8, ("send_recv", "kv"): 2, ("send_recv", "dkv"): 2},
}


@cache
def report(scheme: str, comm: str) -> Report:
    (run,) = find_runs([str(outcomes(RECORDED_WORLD).folder / f"{scheme}-{comm}")])
    return analyze_run(load_run(run))


@pytest.mark.parametrize("comm", ["sync", "async"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_collective_is_found_with_its_metadata(scheme: str, comm: str) -> None:
    found = report(scheme, comm)
    assert not {"gloo-range-unmatched", "comm-range-unmatched"} & {q.code for q in found.data_quality}
    assert found.coverage.comm_metadata_ratio == 1.0
    assert found.coverage.purpose_known_ratio == 1.0
    for rank in range(RECORDED_WORLD):
        mine = [c for c in found.collectives if c.rank == rank]
        assert {c.is_async for c in mine} == {comm == "async"}
        counts = {pair: sum((c.op, c.purpose) == pair for c in mine) for pair in PER_STEP[scheme]}
        assert counts == {pair: 2 * count for pair, count in PER_STEP[scheme].items()}
        assert len(mine) == sum(counts.values())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sync_overlaps_nothing(scheme: str) -> None:
    for rank in report(scheme, "sync").ranks:
        assert rank.comm_ns > 0
        assert rank.compute_ns > 0
        assert rank.overlapped_ns == 0


@pytest.mark.parametrize("scheme", RINGS)
def test_async_hides_under_attention(scheme: str) -> None:
    found = report(scheme, "async")
    assert found.totals.overlapped_by_role_ns["attention"] > 0
    for purpose in ("kv", "dkv"):
        hiding = found.totals.hiding_by_purpose[purpose]
        assert hiding.partner_hidden_ns is not None
        assert hiding.partner_hidden_ns > 0
    named = [c for c in found.collectives if c.purpose == "kv"]
    assert {c.partner.what for c in named if c.partner} == {"attention"}


@pytest.mark.parametrize("scheme", RINGS)
def test_sync_says_what_async_would_hide(scheme: str) -> None:
    hiding = report(scheme, "sync").totals.hiding_by_purpose["kv"]
    assert hiding.partner_hidden_ns == 0
    assert hiding.partner_hideable_ns is not None
    assert hiding.partner_hideable_ns > 0


def test_all_to_alls_never_run_under_attention() -> None:
    """Attention needs all of them; in flight together they hide under each other's layout copies at most."""
    roles = report("ulysses", "async").totals.overlapped_by_role_ns
    assert roles["attention"] == 0
    assert roles["other"] > 0
