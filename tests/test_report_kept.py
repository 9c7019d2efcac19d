"""What is kept of a report and its lanes comes back equal."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from sp_profiler.analysis.lanes import Lanes
from sp_profiler.engine import analyze_files
from sp_profiler.report.json import render
from sp_profiler.report.kept import BROKEN, read_lanes, read_report, write_lanes, write_report
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.write import TraceWriter

REPOSITORY = Path(__file__).resolve().parent.parent


def _kept_and_read(source: Path, folder: Path) -> None:
    lanes: list[Lanes] = []
    (files,) = find_runs([str(source)])
    report = analyze_files(files, keep_lanes=lanes.append)
    assert len(lanes) == len(files.files)
    write_report(folder, report)
    again = read_report(folder)
    assert again == report
    assert render(again) == render(report)
    for number, one in enumerate(lanes):
        write_lanes(folder, number, one)
        found = read_lanes(folder, number)
        for field in fields(Lanes):
            expected, got = getattr(one, field.name), getattr(found, field.name)
            if isinstance(expected, np.ndarray):
                assert expected.dtype == got.dtype
                assert np.array_equal(expected, got), field.name
            else:
                assert expected == got


def test_a_run_on_the_cpu(tmp_path: Path) -> None:
    _kept_and_read(REPOSITORY / "traces/demo/tp-async", tmp_path)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["dlrm_v100_8ranks", "bert_h100", "resnet_v100_memory", "toy_mi250"])
def test_real_traces(shared: Path, tmp_path: Path, name: str) -> None:
    _kept_and_read(shared / "corpus" / name, tmp_path)


def test_a_trace_in_which_nothing_ran(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(TraceWriter(rank=0).step(1, 0, 10).text())
    folder = tmp_path / "kept"
    folder.mkdir()
    _kept_and_read(tmp_path / "rank0.json", folder)


@pytest.mark.parametrize("name", ["report.json", "collectives.json", "collectives.npz"])
@pytest.mark.parametrize("damage", ["absent", "cut", "empty"])
def test_damaged_files_are_told_by_the_errors_named(tmp_path: Path, name: str, damage: str) -> None:
    (files,) = find_runs([str(REPOSITORY / "traces/demo/tp-sync")])
    write_report(tmp_path, analyze_files(files))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if damage != "absent":
        (tmp_path / name).write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(BROKEN):
        read_report(tmp_path)
