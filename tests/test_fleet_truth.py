"""Runs of many ranks whose truth is known: what `analyze` says of them, to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fleet_schedule import DATA, TENSOR, WORLD, play
from fleet_truth import DEFAULT_LATE, Late, Truth, write_fleet

import sp_profiler
from sp_profiler.errors import InputError
from sp_profiler.report.model import Report


def analyzed(folder: Path, ranks: int, **options: object) -> tuple[Truth, Report]:
    truth = write_fleet(folder, ranks, **options)  # type: ignore[arg-type]
    report = sp_profiler.analyze(folder)
    truth.check(report)
    return truth, report


def codes(report: Report) -> dict[str, list[str | None]]:
    found: dict[str, list[str | None]] = {}
    for entry in report.data_quality:
        found.setdefault(entry.code, []).append(entry.file)
    return found


@pytest.mark.parametrize("ranks", [16, 32])
@pytest.mark.parametrize("seq", [True, False])
def test_every_figure_is_true(tmp_path: Path, ranks: int, seq: bool) -> None:
    truth, report = analyzed(tmp_path, ranks, seq=seq)
    assert report.unmatched == []
    assert len(report.collectives) == ranks * len(truth.collectives)
    assert {gemm.role for gemm in report.gemms} == {"fwd", "dgrad", "wgrad"}
    assert all(clock.applied for clock in (report.clocks or ())[1:])


def test_late_ranks_are_the_stragglers_that_the_truth_names(tmp_path: Path) -> None:
    truth, report = analyzed(tmp_path, 32, clocks=False)
    assert truth.ranked[:2] == [5, 11]
    assert [one.rank for one in report.stragglers or ()][:2] == [5, 11]
    # Three steps of rank 5, one of rank 11; a part of each delay runs while the others are in the dp one.
    for late, steps in zip(DEFAULT_LATE, (3, 1), strict=True):
        assert 31 * steps * (late.ns - 140_000) < truth.costs[late.rank] < 31 * steps * (late.ns + 40_000)


@pytest.mark.parametrize("kind", [TENSOR, DATA])
def test_lateness_before_any_kind_of_collective(tmp_path: Path, kind: str) -> None:
    """What is late before a tensor-parallel collective makes its whole host late before the next ones."""
    truth, _ = analyzed(tmp_path, 16, late=(Late(9, kind, 400_000),), clocks=False)
    peers = 7 if kind == TENSOR else 1
    assert truth.costs[9] > 4 * peers * 300_000


def test_missing_ranks_leave_the_last_arrival_that_can_be_seen(tmp_path: Path) -> None:
    truth, report = analyzed(tmp_path, 16, missing=(5, 8, 9, 10, 12, 13, 14, 15))
    assert report.run.ranks_missing == [5, 8, 9, 10, 12, 13, 14, 15]
    assert 5 not in truth.costs
    alone = [one for one in report.collectives if one.rank == 11 and (one.group or "").startswith("tp")]
    assert alone
    assert all(one.skew_wait_ns is None for one in alone)


def test_files_that_cannot_be_read_are_as_if_missing_and_named(tmp_path: Path) -> None:
    _, report = analyzed(tmp_path, 16, garbage=(6,), missing=(12,))
    assert report.run.ranks_missing == [6, 12]
    assert [Path(str(file)).name for file in codes(report)["unreadable-file"]] == [
        "rank-00006.pt.trace.json.gz"
    ]


def test_a_file_that_is_cut_off_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    truth, report = analyzed(tmp_path, 16, cut={3: 2, 11: 1})
    assert truth.has.sum() == 16 * 4 - 2 - 3
    lost = {Path(str(one.file)).name for one in report.data_quality if one.severity == "loss"}
    assert lost == {"rank-00003.pt.trace.json.gz", "rank-00011.pt.trace.json.gz"}
    lacking = {rank for one in report.unmatched or () for rank in one.ranks_missing}
    assert lacking == {3, 11}


def test_copies_count_once_and_noise_says_nothing(tmp_path: Path) -> None:
    _, report = analyzed(tmp_path, 16, copies=(4,), slow={7: 25_001})
    assert len(codes(report)["identical-copy"]) == 1
    slow = sp_profiler.load(tmp_path).traces[7]
    assert slow.uncompressed_bytes > 25_001 * 80


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    write_fleet(tmp_path, 16, claimed={4: 6})
    with pytest.raises(InputError, match="both hold rank 4"):
        sp_profiler.analyze(tmp_path)


def test_the_construction_holds_what_it_says(tmp_path: Path) -> None:
    """Of each collective all leave together after the last arrives, and one kernel at most runs beside it."""
    played = play(32, 2, 3, DEFAULT_LATE)
    for one in played.comms:
        others = [
            np.maximum(np.minimum(one.end_ns, k.end_ns) - np.maximum(one.start_ns, k.start_ns), 0)
            for k in played.kernels
            if k is not one and k is not one.beside
        ]
        assert not np.any(others)
    world = [one for one in played.comms if one.kind == WORLD]
    assert all((one.end_ns == one.start_ns.max() + 30_000).all() for one in world)
    truth = write_fleet(tmp_path, 16, steps=1)
    assert (truth.comm_ns == truth.overlapped_ns + truth.exposed_ns).all()
    assert (truth.idle_ns > 0).all()


def test_a_wrong_report_does_not_pass(tmp_path: Path) -> None:
    truth = write_fleet(tmp_path / "one", 16)
    write_fleet(tmp_path / "other", 16, late=(Late(5, WORLD, 300_001),))
    with pytest.raises(AssertionError):
        truth.check(sp_profiler.analyze(tmp_path / "other"))
