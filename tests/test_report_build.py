"""Assembling a report, the drawn step, and the whole way on real traces."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from conftest import SHARED
from jsonschema import Draft202012Validator
from report_helpers import make_report

from sp_profiler.analysis.across import across_ranks
from sp_profiler.analysis.results import Coverage, Known, RankResult, Segment
from sp_profiler.engine import analyze_run
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import build as module
from sp_profiler.report import html, markdown, tables
from sp_profiler.report import json as report_json
from sp_profiler.report.build import TraceFacts, build, merge_gemms, merge_groups
from sp_profiler.report.drawn import exposed_stretches, thin
from sp_profiler.report.model import Report
from sp_profiler.trace.tables import Metadata


def metadata(rank: int | None, world: int | None = 2) -> Metadata:
    return Metadata(rank, "file-name", world, "nccl", None, 1, 0, True)


def results(report: Report) -> list[RankResult]:
    """The report taken apart again, one result per rank, each collective numbered from 0."""
    out: list[RankResult] = []
    for place, rank in enumerate(report.ranks):
        mine = [c for c in report.collectives if c.rank == rank.rank]
        out.append(
            RankResult(
                ranks=(rank,),
                steps=tuple(s for s in report.steps if s.rank == rank.rank),
                collectives=tuple(replace(c, id=i) for i, c in enumerate(mine)),
                groups=tuple(report.groups),
                gemms=tuple(report.gemms),
                gemm_role_known_ratio=None,
                purpose_known_ratio=None,
                comm_metadata_ratio=None,
                ledger=(
                    LedgerEntry("of-file", "repair", "fixed", f"rank{place}"),
                    LedgerEntry("not-analysed-memory", "note", "not looked at", f"rank{place}"),
                ),
                coverage=Coverage(Known(1 + place, 4), Known(2, 2), Known()),
            )
        )
    return out


def assembled(report: Report, run_json: dict | None = None, **change: Any) -> Report:
    arguments: dict[str, Any] = {
        "name": "run",
        "path": "runs/run",
        "run_json": run_json,
        "run_ledger": (LedgerEntry("of-file", "repair", "fixed", "rank0"),),
        "facts": [TraceFacts(r.file, metadata(r.rank), False) for r in report.ranks],
        "across": across_ranks(results(report)),
        "rule": "step",
        "timeline": report.timeline,
    }
    return build(**(arguments | change))


def test_totals_are_the_sums_and_collectives_numbered_anew() -> None:
    drawn = make_report()
    report = assembled(drawn)
    assert report.totals.comm_ns == drawn.totals.comm_ns
    assert report.totals.overlapped_by_role_ns == drawn.totals.overlapped_by_role_ns
    assert [c.id for c in report.collectives] == list(range(len(drawn.collectives)))
    assert report.window.steps == [0, 1, 2]
    assert report.coverage.gemm_role_known_ratio == 3 / 8  # (1 + 2) of (4 + 4) ns
    assert report.coverage.comm_metadata_ratio is None  # nothing to know: null, not 0
    assert report.summary[0].startswith("wgrad hides 66 % of the dgrad all-reduce")


def test_entries_are_told_once() -> None:
    entries = assembled(make_report()).data_quality
    told = [(e.code, e.file, e.count) for e in entries]
    assert told == [
        ("of-file", "rank0", 1),  # by the run and by the rank: once
        ("of-file", "rank1", 1),
        ("not-analysed-memory", None, 1),  # of every rank, once about the run
        ("memory-not-recorded", None, 1),
        ("not-analysed-critical-path", None, 1),
    ]


def test_missing_ranks_are_named() -> None:
    report = make_report(ranks=1)
    facts = [TraceFacts("a", metadata(3, 8), False)]
    built = assembled(report, facts=facts)
    assert built.run.world_size == 8
    assert built.run.ranks_missing == [0, 1, 2, 4, 5, 6, 7]
    entry = next(e for e in built.data_quality if e.code == "ranks-missing")
    assert entry.count == 7
    assert "7 ranks of 8 are missing (0-2, 4-7)" in entry.text


def test_run_json_tells_the_run() -> None:
    run_json = {
        "world_size": 2,
        "backend": "gloo",
        "workload": {"mode": "tp", "comm": "async"},
        "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": None},
        "set_by_tool": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        "versions": {"torch": "2.13.0"},
        "hardware": [{"kind": "cpu", "name": "x"}, {"kind": "cuda", "name": "H100", "capability": [9, 0]}],
        "hosts": [],
    }
    report = assembled(make_report(), run_json)
    assert report.run.backend == "gloo"
    assert report.run.workload == run_json["workload"]
    assert report.environment["source"] == "run.json"
    assert report.environment["versions"] == {"torch": "2.13.0"}
    assert module._capability(run_json) == 9
    assert module._capability(run_json | {"versions": {"hip": "6.2"}}) is None
    assert module._variables(run_json) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # what the ranks saw
    assert module._variables(None) is None


def test_a_cpu_run_carries_its_note() -> None:
    report = make_report(device="cpu")
    facts = [TraceFacts(r.file, metadata(r.rank), True) for r in report.ranks]
    built = assembled(report, facts=facts)
    assert built.run.device_type == "cpu"
    note = next(e for e in built.data_quality if e.code == "cpu-run")
    assert "overlap does not shorten the step" in note.text
    assert not any("would take" in sentence for sentence in built.summary)


def test_groups_and_gemms_are_merged_over_ranks() -> None:
    report = make_report()
    (group,) = report.groups
    (merged,) = merge_groups([group, group])
    assert (merged.collectives, merged.comm_ns) == (2 * group.collectives, 2 * group.comm_ns)
    (unknown,) = merge_groups([group, replace(group, bytes=None)])
    assert unknown.bytes is None
    gemm = report.gemms[0]
    slower = replace(gemm, total_ns=3 * gemm.total_ns, tflops=60.0)
    (both,) = merge_gemms([gemm, slower])
    assert both.count == 2 * gemm.count
    assert both.tflops == pytest.approx((134.2 + 3 * 60.0) / 4)
    assert merge_gemms([gemm, replace(gemm, tflops=None)])[0].tflops is None


def segment(
    start: int, end: int, *, kind: str = "computation", role: str = "fwd", name: str = "k"
) -> Segment:
    return Segment("lane", name, start, end, kind, role, "forward", None, None)


def test_exposed_stretches_are_communication_without_computation() -> None:
    drawn = [segment(0, 10, kind="communication"), segment(4, 6), segment(8, 20, kind="fused")]
    assert exposed_stretches(drawn) == [(0, 4), (6, 8)]


def test_a_short_timeline_is_drawn_as_it_is() -> None:
    drawn = [segment(5, 9), segment(0, 4)]
    assert thin(drawn, "file") == ([drawn[1], drawn[0]], ())


def test_a_long_timeline_is_joined_and_says_so() -> None:
    # 100 stretches of 9 ns with gaps of 1 ns, far below a pixel of the whole that the last one makes long
    drawn = [segment(10 * i, 10 * i + 9) for i in range(100)] + [segment(10**8, 2 * 10**8, role="wgrad")]
    kept, (entry,) = thin(drawn, "file", most=10)
    assert [(s.start_ns, s.end_ns) for s in kept] == [(0, 999), (10**8, 2 * 10**8)]
    assert entry.code == "timeline-thinned"
    assert "101 became 2" in entry.text


def test_what_cannot_be_joined_is_cut_to_the_longest() -> None:
    roles = ["fwd", "dgrad"]
    drawn = [segment(10 * i, 10 * i + 1 + i % 7, role=roles[i % 2]) for i in range(100)]
    kept, (entry,) = thin(drawn, "file", most=10)
    assert len(kept) == 10
    assert kept == sorted(kept, key=lambda s: s.start_ns)
    assert {s.end_ns - s.start_ns for s in kept} == {7}
    assert "the 10 longest" in entry.text


FOLDERS = (
    "alltoall_2_of_128",
    "bert_h100",
    "compiled_triton",
    "dlrm_v100_8ranks",
    "gloo_rank34_of_300",
    "resnet_ddp_mi300x_rank0_of_8",
    "toy_mi250",
)


@pytest.mark.shared
@pytest.mark.parametrize("folder", FOLDERS)
def test_whole_way_on_real_traces(folder: str) -> None:
    from sp_profiler.trace.find import find_runs
    from sp_profiler.trace.load import load_run

    (files,) = find_runs([str(SHARED / "corpus" / folder)])
    report = analyze_run(load_run(files))
    plain = json.loads(report_json.render(report))
    Draft202012Validator(report_json.schema()).validate(plain)
    assert report_json.read_report(report_json.render(report)) == report
    for figures in (report.totals, *report.ranks, *report.steps):
        parts = (figures.compute_ns, figures.exposed_ns, figures.memory_op_only_ns, figures.idle_ns)
        assert sum(part or 0 for part in parts) == figures.window_ns
    assert report.summary
    assert set(tables.csv_tables(report)) == set(tables.TABLES)
    assert "## Figures" in markdown.render(report)
    assert 'data-figure="totals.comm_ns"' in html.render(report)
    _drawn_step_agrees(report)


def _drawn_step_agrees(report: Report) -> None:
    drawn = report.timeline
    assert drawn is not None
    assert drawn.rank == report.ranks[0].rank
    step = next(s for s in report.steps if (s.device, s.start_ns) == (drawn.device, drawn.start_ns))
    assert sum(end - start for start, end in drawn.exposed) == step.exposed_ns
    assert all(drawn.start_ns <= s.start_ns <= s.end_ns <= drawn.end_ns for s in drawn.segments)
