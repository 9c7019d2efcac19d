"""Schemes, hops and ring steps of traces as users have them, held to the truth that they were drawn from."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from context_traces import CASES, Case, Drawn, draw

from sp_profiler.analysis.context_parallel.results import ContextParallel, Hop
from sp_profiler.engine import analyze_run
from sp_profiler.report.model import Report
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.load import load_run

NAMES = {case.name: case for case in CASES}
PARTIAL = {"cut", "cut-late", "cut-unevenly", "ranks-missing"}
WHOLE = [name for name in NAMES if name not in PARTIAL]
MERGES_NS = 5_000  # the kernel that merges blocks, which a rank without a block has not


@cache
def seen(name: str) -> tuple[Drawn, Report, ContextParallel]:
    with TemporaryDirectory() as folder:
        drawn = draw(NAMES[name], Path(folder))
        (run,) = find_runs([str(drawn.folder)])
        report = analyze_run(load_run(run))
    assert report.context_parallel is not None
    return drawn, report, report.context_parallel


def by_rank_and_phase(items: Any, *names: str) -> dict[tuple[int, str], list[int]]:
    """Sums of these fields; a forward that is repeated belongs to forward, as the schedules say."""
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0] * len(names))
    for rank, phase, one in items:
        for place, name in enumerate(names):
            sums[rank, phase.replace("recompute", "forward")][place] += getattr(one, name)
    return dict(sums)


def is_ring(case: Case) -> bool:
    return case.scheme in ("ring", "usp")


@pytest.mark.parametrize("name", NAMES)
def test_scheme(name: str) -> None:
    drawn, _, found = seen(name)
    assert {one.scheme for one in found.schemes} == {drawn.case.scheme}
    ranks = sorted(rank for one in found.schemes for rank in one.ranks)
    assert ranks == list(range(drawn.case.ranks))


@pytest.mark.parametrize("name", WHOLE)
def test_every_pass_is_whole(name: str) -> None:
    case = NAMES[name]
    for one in seen(name)[2].schemes:
        passes = case.layers * case.steps
        assert (one.forward_passes, one.backward_passes) == (passes, passes)
        assert one.recompute_passes == (passes if case.checkpointed else 0)
        assert one.incomplete_passes == 0


@pytest.mark.parametrize("name", WHOLE)
def test_hidden_and_exposed_time_is_that_of_the_transfers(name: str) -> None:
    drawn, _, found = seen(name)
    purposes = ("kv", "dkv", "layout")
    truth = by_rank_and_phase(
        ((one.rank, one.said.phase, one) for one in drawn.transfers if one.said.purpose in purposes),
        "hidden_ns",
        "exposed_ns",
    )
    hops = ((one.rank, one.phase, one) for one in found.hops)
    assert by_rank_and_phase(hops, "hidden_ns", "exposed_ns") == truth


@pytest.mark.parametrize("name", WHOLE)
def test_exposed_time_is_divided_to_the_last_nanosecond(name: str) -> None:
    for one in seen(name)[2].hops:
        parts = (one.communication_ns, one.imbalance_ns, one.skew_ns)
        known = [part for part in parts if part is not None]
        assert len(known) in (0, 3)
        assert not known or sum(known) == one.exposed_ns
        assert all(part >= 0 for part in known)


RINGS = [name for name in WHOLE if is_ring(NAMES[name]) and not NAMES[name].checkpointed]


@pytest.mark.parametrize("name", RINGS)
def test_attention_of_each_rank_and_ring_step(name: str) -> None:
    drawn, _, found = seen(name)
    phases = {
        (one.rank, one.said.number): one.said.phase for one in drawn.transfers if one.said.purpose == "kv"
    }
    assert found.balance
    for balance in found.balance:
        for rank, work in zip(balance.ranks, balance.work_ns, strict=True):
            passes = [
                n
                for (r, n), phase in phases.items()
                if r == rank and phase == balance.phase and n is not None
            ]
            truth = [
                median_low([drawn.attention.get((rank, n, step), 0) for n in passes])
                for step in range(len(work))
            ]
            assert work == truth


BESIDE = [name for name in RINGS if name != "ring-sync"]  # of which no hop runs beside attention


@pytest.mark.parametrize("name", BESIDE)
def test_each_hop_travels_beside_its_ring_step(name: str) -> None:
    drawn, _, found = seen(name)
    size = next(one.ring_ranks for one in found.schemes)
    truth: dict[tuple[int, str, int | None], list[Any]] = defaultdict(list)
    for one in drawn.transfers:
        if one.said.purpose in ("kv", "dkv"):
            step = size if one.said.step is None else one.said.step
            truth[one.rank, one.said.phase, step].append(one)
    hops: dict[tuple[int, str, int | None], list[Hop]] = defaultdict(list)
    for hop in found.hops:
        if hop.payload in ("kv", "dkv", "kv+dkv"):
            assert hop.rank is not None
            hops[hop.rank, hop.phase, hop.hop].append(hop)
    assert set(hops) == set(truth)
    for key, mine in hops.items():
        assert sum(one.hidden_ns for one in mine) == sum(one.hidden_ns for one in truth[key])
        assert {one.attention_ns for one in mine} == {one.attention_ns for one in truth[key]}
        if mine[0].source is not None:
            sources = {one.source for one in truth[key]} - {None}
            targets = {one.target for one in truth[key]} - {None}
            assert ({one.source for one in mine}, {one.target for one in mine}) == (sources, targets)


NO_HOST_IS_LATE = [name for name in WHOLE if not NAMES[name].late and not NAMES[name].pipeline]


@pytest.mark.parametrize("name", NO_HOST_IS_LATE)
def test_without_a_late_host_attention_explains_all_waits(name: str) -> None:
    hops = seen(name)[2].hops
    for one in hops:
        # A rank without a block has no kernel that merges it, either: nothing else makes it wait.
        assert one.skew_ns is None or one.skew_ns <= one.passes * MERGES_NS * 3


def test_there_is_imbalance_to_explain() -> None:
    hops = seen("ring-causal")[2].hops
    assert sum(one.imbalance_ns or 0 for one in hops) > 10_000_000
    by_rank = {rank: sum(one.imbalance_ns or 0 for one in hops if one.rank == rank) for rank in range(4)}
    assert by_rank[0] > by_rank[1] > by_rank[2] > by_rank[3] == 0


def test_with_equal_work_a_late_host_is_skew_alone() -> None:
    hops = seen("late")[2].hops
    assert sum(one.imbalance_ns or 0 for one in hops) == 0
    assert sum(one.skew_ns or 0 for one in hops) > 1_000_000


def test_the_model_finds_latency_and_bandwidth_where_two_sizes_travel() -> None:
    models = {one.phase: one for one in seen("zigzag")[2].models}
    assert models["forward"].latency_ns is None
    assert models["forward"].hop_ns == 8_000 + 1_048_576 // 40
    backward = models["backward"]
    assert backward.latency_ns == 8_000
    assert backward.bytes_per_s == pytest.approx(40e9, rel=1e-3)
    for one in models.values():
        assert one.schedule == "overlapped"
        assert one.residual_ratio is not None
        assert one.residual_ratio < 0.02
        assert not one.is_this_machine_only


def test_a_ring_that_waits_for_each_hop_is_told_of() -> None:
    for one in seen("ring-sync")[2].models:
        assert one.schedule == "in-turn"
        assert one.model_pass_ns is not None
        assert one.model_pass_ns < one.measured_pass_ns  # what it would take if hops ran beside blocks


def test_a_forward_that_backward_repeats_is_a_phase_of_its_own() -> None:
    balance = {one.phase: one.work_ns for one in seen("checkpointed")[2].balance}
    assert set(balance) == {"forward", "backward", "recompute"}
    assert balance["recompute"] == balance["forward"]


def test_layout_copies_stand_beside_the_all_to_alls() -> None:
    for one in seen("ulysses")[2].layout_copies:
        # Four all-to-alls a pass, a copy of 20 us before and after each.
        assert (one.passes, one.all_to_alls, one.copies, one.copy_ns) == (2, 8, 16, 320_000)
    assert len(seen("ulysses")[2].layout_copies) == 8


def test_a_window_that_cuts_passes() -> None:
    _, report, found = seen("cut")
    (scheme,) = found.schemes
    assert scheme.backward_passes == 1
    assert scheme.incomplete_passes >= 1
    assert "context-pass-incomplete" in {entry.code for entry in report.data_quality}
