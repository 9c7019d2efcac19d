"""Ranks compared on whole files: the cases and real traces, and small traces with several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

import sp_profiler
from sp_profiler.report.model import Report
from sp_profiler.trace.write import TraceWriter


def of(report: Report, rank: int, op: str | None = None) -> list:
    return [c for c in report.collectives if c.rank == rank and op in (None, c.op)]


def unskewed(report: Report) -> bool:
    return report.stragglers == [] and not any(c.skew_wait_ns for c in report.collectives)


@pytest.mark.shared
def test_two_ranks_basic(shared: Path) -> None:
    report = sp_profiler.analyze(shared / "cases" / "two_ranks_basic")
    (first,) = of(report, 0, "all_gather")
    (second,) = of(report, 1, "all_gather")
    assert (first.skew_wait_ns, first.transfer_ns, first.transfer_is_bound) == (300_000, 700_000, False)
    assert (second.skew_wait_ns, second.transfer_ns) == (0, 700_000)
    assert [(s.rank, s.cost_ns, s.collectives) for s in report.stragglers or []] == [(1, 300_000, 1)]
    assert not any(c.skew_wait_ns for c in report.collectives if c.op != "all_gather")
    assert report.unmatched == []
    assert first.exposed_by_cause_ns is not None


@pytest.mark.shared
def test_groups_sharing_a_name(shared: Path) -> None:
    report = sp_profiler.analyze(shared / "cases" / "groups_sharing_a_name")
    assert unskewed(report)
    assert len(report.collectives) == 16
    assert all(c.transfer_is_bound is False for c in report.collectives)  # of two ranks, both here
    assert {g.group for g in report.groups} == {"1[0,1]", "1[2,3]"}
    assert report.unmatched == []


@pytest.mark.shared
def test_window_misses_a_collective(shared: Path) -> None:
    report = sp_profiler.analyze(shared / "cases" / "window_misses_a_collective")
    assert unskewed(report)
    assert [c.skew_wait_ns for c in of(report, 0)] == [None, 0, 0, 0]
    assert [c.skew_wait_ns for c in of(report, 1)] == [0, 0, 0]
    (missing,) = report.unmatched or []
    assert (missing.op, missing.seq, missing.ranks_present, missing.ranks_missing) == (
        "all_gather",
        1,
        [0],
        [1],
    )


@pytest.mark.shared
def test_bandwidths(shared: Path) -> None:
    ring = sp_profiler.analyze(shared / "cases" / "ring_send_recv")
    for rank in (0, 1):
        speeds = [(c.algbw_gbps, c.busbw_gbps) for c in of(ring, rank, "send_recv")]
        assert speeds == [(pytest.approx(47.935, abs=1e-3), pytest.approx(47.935, abs=1e-3))] * 4
    forms = sp_profiler.analyze(shared / "cases" / "list_forms_and_broadcast")
    told = [(c.op, c.algbw_gbps, c.busbw_gbps) for c in of(forms, 0)[-3:]]
    assert told == [
        ("reduce_scatter", pytest.approx(8.389, abs=1e-3), pytest.approx(4.194, abs=1e-3)),
        ("all_gather", pytest.approx(8.389, abs=1e-3), pytest.approx(4.194, abs=1e-3)),
        ("broadcast", pytest.approx(8.389, abs=1e-3), pytest.approx(8.389, abs=1e-3)),
    ]
    assert unskewed(ring)
    assert unskewed(forms)


@pytest.mark.shared
def test_rank_list_cut(shared: Path) -> None:
    report = sp_profiler.analyze(shared / "cases" / "rank_list_cut")
    for one in report.collectives:
        assert one.busbw_gbps == pytest.approx(1057, abs=0.5)
        assert one.transfer_is_bound
    (missing,) = report.unmatched or []
    assert missing.ranks_missing == list(range(2, 64)) == report.run.ranks_missing
    assert missing.reason == "no-trace"


@pytest.mark.shared
def test_eight_real_ranks_without_metadata(shared: Path) -> None:
    """Skew up to 7.6 ms (corpus/README.md), by order alone; all eight share a clock."""
    report = sp_profiler.analyze(shared / "corpus" / "dlrm_v100_8ranks")
    longest = max(c.skew_wait_ns or 0 for c in report.collectives)
    assert 7_600_000 <= longest < 7_700_000
    assert len(report.collectives) == 64
    assert all(c.skew_wait_ns is not None for c in report.collectives)
    assert report.unmatched == []
    assert [clock.ranks for clock in report.clocks or []] == [list(range(8))]
    assert report.stragglers is not None
    assert report.stragglers[0].rank == 7
    assert sum(s.cost_ns for s in report.stragglers) <= sum(c.skew_wait_ns or 0 for c in report.collectives)
    # No transfer is longer than the wait-free part of the quickest rank.
    assert max(c.transfer_ns or 0 for c in report.collectives) < 200_000


@pytest.mark.shared
def test_one_real_rank_alone(shared: Path) -> None:
    report = sp_profiler.analyze(shared / "corpus" / "resnet_ddp_mi300x_rank0_of_8")
    assert all(c.skew_wait_ns is None and c.transfer_is_bound for c in report.collectives)
    assert (report.clocks, report.stragglers) == (None, None)
    assert "skew-needs-ranks" in {entry.code for entry in report.data_quality}


def write_hosts(folder: Path, names: dict[int, str | None], ahead_us: dict[int, int]) -> Path:
    """Three ranks, six all-reduces; rank 2 arrives 150 µs late each time."""
    for rank, host in names.items():
        path = f"rank{rank}.json"
        writer = TraceWriter(rank=rank, world_size=3, host_name=host)
        for k in range(6):
            start = 10_000 + 3_000 * k + k * k * 17 + (150 if rank == 2 else 0) + ahead_us[rank]
            end = 10_000 + 3_000 * k + k * k * 17 + 650 + ahead_us[rank]
            writer.kernel("gemm", start - 1_000, 500)
            writer.collective("allreduce", start, end - start, ranks=(0, 1, 2), in_elements=1 << 20, seq=k)
        writer.write(folder / path)
    return folder


@pytest.mark.parametrize("ahead", [90_000, -90_000])
def test_hosts_told_by_the_trace(tmp_path: Path, ahead: int) -> None:
    write_hosts(tmp_path, {0: "n1", 1: "n1", 2: "n2"}, {0: 0, 1: 0, 2: ahead})
    report = sp_profiler.analyze(tmp_path)
    assert report.clocks is not None
    assert [(c.host, c.ranks, c.offset_ns, c.applied) for c in report.clocks] == [
        ("n1", [0, 1], 0, False),
        ("n2", [2], ahead * 1_000, True),
    ]
    assert [c.skew_wait_ns for c in of(report, 0)] == [150_000] * 6
    assert [(s.rank, s.cost_ns) for s in report.stragglers or []] == [(2, 6 * 2 * 150_000)]
    bytes_over_ns = (2 << 20) / 500_000
    assert of(report, 1)[0].algbw_gbps == pytest.approx(bytes_over_ns)
    assert report.groups[0].bandwidth is not None
    assert report.groups[0].bandwidth[0].busbw_gbps == pytest.approx(bytes_over_ns * 4 / 3)


def test_run_json_names_hosts_before_the_trace(tmp_path: Path) -> None:
    write_hosts(tmp_path, {0: "x", 1: "x", 2: "x"}, {0: 0, 1: 0, 2: 40})
    (tmp_path / "run.json").write_text(
        '{"schema": "sp-profile/run", "world_size": 3, "hosts": [{"host": "a", "ranks": [0, 1]},'
        ' {"host": "b", "ranks": [2]}]}'
    )
    report = sp_profiler.analyze(tmp_path)
    assert report.clocks is not None
    assert [(c.host, c.offset_ns, c.applied) for c in report.clocks] == [("a", 0, False), ("b", 40_000, True)]


def test_windows_that_cut_differently_leave_the_match_alone(tmp_path: Path) -> None:
    """Rank 1's first chosen step begins later: what lies outside its window is matched all the same."""
    for rank, begin in ((0, 0), (1, 1_500)):
        writer = TraceWriter(rank=rank, world_size=2, host_name="n1")
        writer.step(1, begin, 10_000 - begin)
        for k in range(5):
            start = 1_000 + 1_800 * k
            writer.collective("allreduce", start, 300, launch=max(start - 50, 10), seq=k)
        writer.write(tmp_path / f"rank{rank}.json")
    report = sp_profiler.analyze(tmp_path)
    assert len(of(report, 0)) == 5
    assert len(of(report, 1)) == 4  # its first runs before its window
    assert [c.skew_wait_ns for c in of(report, 0)] == [0] * 5
    assert report.unmatched == []


def test_a_trace_without_collectives_is_listed_as_lacking_them(tmp_path: Path) -> None:
    TraceWriter(rank=0, world_size=2).collective("allreduce", 10, 5, seq=1).write(tmp_path / "rank0.json")
    TraceWriter(rank=1, world_size=2).kernel("gemm", 10, 5).write(tmp_path / "rank1.json")
    report = sp_profiler.analyze(tmp_path)
    (missing,) = report.unmatched or []
    assert (missing.ranks_missing, missing.reason) == ([1], "not-in-trace")
    assert of(report, 0)[0].transfer_is_bound
