"""The analyses on real traces and on the cases with known answers, against independent numbers."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest
from analysis_helpers import WHOLE, assert_identity
from conftest import SHARED

from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.results import RankResult
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify import classify
from sp_profiler.classify.tables import Classified
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.tables import Trace

pytestmark = pytest.mark.shared

FIGURES = ("busy_ns", "comm_ns", "compute_ns", "exposed_ns", "memory_op_only_ns", "overlapped_ns")
CORPUS = sorted(str(path.relative_to(SHARED / "corpus")) for path in (SHARED / "corpus").glob("*/*.json.gz"))


@lru_cache(maxsize=2)
def read(path: Path) -> tuple[Trace, Classified]:
    trace = decode_trace(str(path))
    return trace, classify(trace)


def analyze_file(path: Path, rule: WindowRule) -> RankResult:
    return analyze_rank(*read(path), rule)


def test_the_corpus_is_what_is_expected() -> None:
    expected = json.loads((SHARED / "corpus" / "expected.json").read_text())
    assert sorted(expected) == CORPUS


@pytest.mark.parametrize("name", CORPUS)
def test_corpus_to_the_nanosecond(name: str) -> None:
    expected = json.loads((SHARED / "corpus" / "expected.json").read_text())[name]
    result = analyze_file(SHARED / "corpus" / name, WHOLE)
    found = {key: sum(getattr(one, key) for one in result.ranks) for key in FIGURES}
    assert found == {key: expected[key] for key in FIGURES}
    assert len(result.ranks) == expected["devices"]
    assert {one.rank for one in result.ranks} == {expected["rank"]}
    assert len(result.collectives) == expected["comm_kernels"]
    assert sum(one.exposed_share_ns for one in result.collectives) == expected["exposed_ns"]
    assert all(not one.left_out for one in result.ranks)


@pytest.mark.parametrize("name", CORPUS)
def test_corpus_in_steps_loses_nothing(name: str) -> None:
    whole = analyze_file(SHARED / "corpus" / name, WHOLE)
    result = analyze_file(SHARED / "corpus" / name, WindowRule())
    for one, all_of_it in zip(result.ranks, whole.ranks, strict=True):
        assert_identity(one)
        left = dict.fromkeys(("communication", "computation", "memory"), 0)
        for out in one.left_out:
            assert out.events > 0
            left[out.kind] += out.ns
        assert one.comm_ns + left["communication"] == all_of_it.comm_ns
        assert one.compute_ns + left["computation"] == all_of_it.compute_ns
        assert one.memory_op_ns + left["memory"] == all_of_it.memory_op_ns
    for figures in result.steps:
        assert_identity(figures)
        assert figures.end_ns - figures.start_ns == figures.window_ns
    for device in {figures.device for figures in result.steps}:
        mine = [figures for figures in result.steps if figures.device == device]
        assert all(a.end_ns == b.start_ns for a, b in pairwise(mine))


def test_communication_launched_before_the_steps_is_listed() -> None:
    """24.3 of 71.5 ms: five collectives were launched before the first profiled step."""
    name = "resnet_ddp_mi300x_rank0_of_8/resnet_act_checkpoint.json.gz"
    (one,) = analyze_file(SHARED / "corpus" / name, WindowRule()).ranks
    (left,) = [out for out in one.left_out if out.kind == "communication"]
    assert (left.reason, left.events, round(left.ns / 1e6, 1)) == ("before-first-window", 5, 24.3)
    assert round((left.ns + one.comm_ns) / 1e6, 1) == 71.5


C_K_OVER_EXP = [
    ("two_ranks_basic", 0, (3400, 3000, 1300, 2100)),
    ("two_ranks_basic", 1, (3100, 3000, 1000, 2100)),
    *[("groups_sharing_a_name", rank, (3400, 3000, 1300, 2100)) for rank in range(4)],
    ("window_misses_a_collective", 0, (3400, 3000, 1300, 2100)),
    ("window_misses_a_collective", 1, (2400, 3000, 800, 1600)),
    *[("ring_send_recv", rank, (6200, 6600, 4100, 2100)) for rank in range(2)],
    *[("not_only_nccl", rank, (6400, 3000, 1300, 5100)) for rank in range(2)],
    *[("list_forms_and_broadcast", rank, (4900, 3000, 1300, 3600)) for rank in range(2)],
    *[("rank_list_cut", rank, (1000, 0, 0, 1000)) for rank in range(2)],
]


@pytest.mark.parametrize(("case", "rank", "micros"), C_K_OVER_EXP)
def test_cases_with_known_answers(case: str, rank: int, micros: tuple[int, ...]) -> None:
    result = analyze_file(SHARED / "cases" / case / f"rank{rank}_trace.json", WHOLE)
    (one,) = result.ranks
    assert (one.comm_ns, one.compute_ns, one.overlapped_ns, one.exposed_ns) == tuple(1000 * t for t in micros)
    assert_identity(one)


def test_attention_hides_the_hops_of_the_ring() -> None:
    (one,) = analyze_file(SHARED / "cases" / "ring_send_recv" / "rank0_trace.json", WHOLE).ranks
    assert one.overlapped_by_role_ns["attention"] == 2_800_000  # of 4100 µs


def test_a_device_trace_without_device_events_is_null() -> None:
    result = analyze_file(SHARED / "cases" / "no_device_activity" / "rank0_trace.json", WindowRule())
    (one,) = result.ranks
    assert (one.comm_ns, one.compute_ns, one.overlapped_ns, one.exposed_ns, one.overlap_ratio) == (None,) * 5
    assert [(e.code, e.severity) for e in result.ledger] == [("no-device-activity", "loss")]
