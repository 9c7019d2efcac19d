"""Sweeps that run: real ranks over gloo, cells that fail, folders that are resumed and extended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
from cli_helpers import load, names
from sweep_rank_worker import FEW, FEW_OPTIONS, TINY, TINY_OPTIONS, run_in_forks

import sp_profiler
from sp_profiler.cli.main import main
from sp_profiler.errors import HangError, InputError, UsageError
from sp_profiler.record.launch import Job, OnProgress
from sp_profiler.sweeps.model import Sweep
from sp_profiler.sweeps.request import SweepRequest
from sp_profiler.sweeps.run import run_sweep
from sp_profiler.sweeps.store import SweepFolder

RUN_JOB = "sp_profiler.record.workload.run_job"
TOO_LARGE = 10**12
"""Of a vocabulary: its embedding takes more memory than addresses exist for."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sweep]:
    """DDP, TP, SP recompute, and TP with a vocabulary that fits nowhere: in three requests, one folder."""
    root = tmp_path_factory.mktemp("sweep") / "out"
    with mock.patch(RUN_JOB, run_in_forks):
        run_sweep(SweepRequest({**TINY, "mode": ("ddp", "tp"), "layers": (1,)}, **FEW), root)
        sp = {"mode": ("sp",), "comm": ("async",), "save": ("shard",), "layers": (1,)}
        run_sweep(SweepRequest({**TINY, **sp}, **FEW), root)
        huge = {"mode": ("tp",), "comm": ("async",), "vocab": (64, TOO_LARGE), "layers": (1,)}
        sweep = run_sweep(SweepRequest({**TINY, **huge}, baseline="tp-async", **FEW), root)
    return root, sweep


@pytest.mark.gloo
def test_cells_are_measured_and_one_that_fails_ends_no_other(whole: tuple[Path, Sweep]) -> None:
    root, sweep = whole
    cells = {(c.scheme, c.sizes["layers"], c.sizes["vocab"]): c for c in sweep.cells}
    expected = [(scheme, 1, 64) for scheme in ("ddp", "tp-sync", "tp-async", "sp-shard-async")]
    assert set(cells) == {*expected, ("tp-async", 1, TOO_LARGE)}
    for key, cell in cells.items():
        if key[2] == TOO_LARGE:
            continue
        assert (cell.status, cell.reason, cell.failed_in) == ("ok", None, None)
        assert cell.step is not None
        assert cell.memory is not None
        assert cell.profile is not None
        assert len(cell.step.repeats_ns) == 2
        assert 0 < cell.step.min_ns <= cell.step.q1_ns <= cell.step.median_ns <= cell.step.q3_ns
        assert cell.tokens_per_s == cell.tokens_per_step / (cell.step.median_ns / 1e9)
        # what is known exactly is exactly that
        assert cell.memory.saved_bytes == cell.theory.saved_bytes
        assert cell.profile.comm_bytes == cell.theory.comm_bytes
        assert cell.memory.peak_source == "tensors"
        assert (cell.memory.peak_bytes or 0) >= (cell.theory.peak_bytes_at_least or 0) > 0
        assert (cell.memory.rss_peak_bytes or 0) >= (cell.memory.rss_before_bytes or 0) > 0
        assert cell.profile.step_ns
        assert cell.profile.overhead_factor == cell.profile.step_ns / cell.step.median_ns
        assert (cell.profile.comm_ns or 0) > 0
    failed = cells["tp-async", 1, TOO_LARGE]
    assert (failed.status, failed.failed_in, failed.step, failed.profile) == ("oom", "timing", None, None)
    assert "can't allocate memory" in (failed.reason or "")
    assert failed.log is not None
    assert "can't allocate memory" in (root / failed.log).read_text()


@pytest.mark.gloo
def test_overlap_is_in_the_cells_whose_schedule_has_it(whole: tuple[Path, Sweep]) -> None:
    _, sweep = whole
    hidden = {c.scheme: c.profile for c in sweep.cells if c.profile is not None}
    assert hidden["tp-sync"].overlapped_ns == 0
    assert hidden["tp-sync"].wgrad_hidden_of_hideable == 0
    for scheme in ("tp-async", "sp-shard-async"):
        assert (hidden[scheme].overlapped_ns or 0) > 0
        assert (hidden[scheme].wgrad_hidden_of_hideable or 0) > 0


@pytest.mark.gloo
def test_ddp_trains_more_tokens_and_the_sweep_says_so(whole: tuple[Path, Sweep]) -> None:
    _, sweep = whole
    tokens = {c.scheme: c.tokens_per_step for c in sweep.cells}
    assert (tokens["ddp"], tokens["tp-sync"], tokens["sp-shard-async"]) == (64, 32, 32)
    assert any("a step of DDP trains 2 times the tokens" in sentence for sentence in sweep.sentences)
    assert any("structure" in sentence for sentence in sweep.sentences)


@pytest.mark.gloo
def test_a_cell_is_a_run_that_other_commands_open(
    whole: tuple[Path, Sweep], capsys: pytest.CaptureFixture[str]
) -> None:
    root, sweep = whole
    ok = next(c for c in sweep.cells if c.scheme == "tp-async" and c.status == "ok")
    folder = root / "cells" / ok.name
    traces = ["rank-00000.pt.trace.json.gz", "rank-00001.pt.trace.json.gz"]
    assert names(folder) == sorted(["cell.json", *traces, "report.html", "report.json", "run.json"])
    report = sp_profiler.analyze(folder)
    assert ok.profile is not None
    assert report.totals.hidden_of_hideable == ok.profile.hidden_of_hideable
    assert load(folder / "run.json")["workload"] == ok.workload
    assert main(["analyze", str(root), "--json"]) == 0  # all cells; sweep.json and cell.json are no traces
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["runs"]) == sum(c.status == "ok" for c in sweep.cells)


@pytest.mark.gloo
def test_what_is_done_is_not_run_again_and_failed_cells_only_when_asked(
    whole: tuple[Path, Sweep],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(whole[0], tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "--modes", "tp", "--comm", "async", "--layers", "1", *TINY_OPTIONS, *FEW_OPTIONS]
    command += ["--vocab", "64", str(TOO_LARGE), "--out", "out"]
    before = {path: path.read_text() for path in Path("out/cells").glob("*/cell.json")}
    with mock.patch(RUN_JOB, side_effect=AssertionError("nothing is to be run")):
        assert main(command) == 4  # a cell failed, though not now
    assert "4 of 5 cells measured, 1 failed." in capsys.readouterr().out
    assert {path: path.read_text() for path in Path("out/cells").glob("*/cell.json")} == before
    assert {"sweep.json", "sweep.md", "sweep.csv", "sweep.parquet", "sweep.html"} <= set(
        names(tmp_path / "out")
    )
    started: list[Job] = []

    def run(job: Job, on_progress: OnProgress) -> None:
        started.append(job)
        raise HangError("no rank made progress for 7 s after 0 finished steps: rank 0 hangs\n--- the log")

    with mock.patch(RUN_JOB, run):
        assert main([*command, "--retry-failed"]) == 4
    assert len(started) == 1
    again = load(tmp_path / "out" / "sweep.json")
    (failed,) = [cell for cell in again["cells"] if cell["status"] != "ok"]
    assert (failed["status"], failed["failed_in"]) == ("timeout", "starting")
    assert failed["reason"] == "no rank made progress for 7 s after 0 finished steps: rank 0 hangs"
    assert "4 of 5 cells measured, 1 failed." in capsys.readouterr().out


@pytest.mark.gloo
def test_tables_are_made_anew_with_another_baseline_and_without_a_run(
    whole: tuple[Path, Sweep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(whole[0], tmp_path / "out")
    with mock.patch(RUN_JOB, side_effect=AssertionError("nothing is to be run")):
        assert main(["sweep", "--show", str(tmp_path / "out"), "--baseline", "tp-sync", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["baseline"] == "tp-sync"
    assert plain == load(tmp_path / "out" / "sweep.json")
    assert "× TP sync" in (tmp_path / "out" / "sweep.md").read_text()


@pytest.mark.gloo
def test_cells_measured_otherwise_are_not_mixed_and_damage_is_told(
    whole: tuple[Path, Sweep], tmp_path: Path
) -> None:
    shutil.copytree(whole[0], tmp_path / "out")
    request = SweepRequest({**TINY, "mode": ("ddp",), "layers": (1,)}, **{**FEW, "repeats": 9})
    with pytest.raises(
        UsageError, match="holds cells measured with --repeat 2, not 9: choose another folder"
    ):
        run_sweep(request, tmp_path / "out")
    cell = next((tmp_path / "out" / "cells").glob("*/cell.json"))
    cell.write_text(cell.read_text().replace("sp-profile/sweep-cell", "other"))
    again = SweepRequest({**TINY, "mode": ("ddp",), "layers": (1,)}, **FEW)
    with pytest.raises(InputError, match=r"cell\.json is not a cell of a sweep"):
        run_sweep(again, tmp_path / "out")
    cell.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"cell\.json is nested too deeply to be a cell of a sweep"):
        run_sweep(again, tmp_path / "out")


@pytest.mark.gloo
def test_steps_are_kept_when_only_the_profiled_pass_fails(tmp_path: Path) -> None:
    """The analysis fails, and then the profiled pass itself: what was timed before stays."""
    request = SweepRequest({**TINY, "mode": ("ddp",), "layers": (1,)}, **FEW)
    broken = mock.patch("sp_profiler.sweeps.cell.analyze_folder", side_effect=InputError("a trace is cut"))
    with mock.patch(RUN_JOB, run_in_forks), broken:
        (cell,) = run_sweep(request, tmp_path / "one").cells
    assert (cell.status, cell.failed_in) == ("failed", "analysis")
    assert cell.reason == "the traces could not be analysed: InputError: a trace is cut"
    assert cell.step is not None
    assert "Traceback" in (tmp_path / "one" / str(cell.log)).read_text()

    def without_profile(job: Job, on_progress: OnProgress) -> None:
        run_in_forks(job, on_progress)
        for trace in job.out.glob("rank-*.pt.trace.json.gz"):
            trace.unlink()

    with mock.patch(RUN_JOB, without_profile):
        (cell,) = run_sweep(request, tmp_path / "two").cells
    assert (cell.status, cell.failed_in) == ("crashed", "profile")
    assert cell.reason == "no trace was written by rank 0, 1 of 2"
    assert cell.step is not None
    assert cell.memory is not None
    assert cell.profile is None
    assert names(tmp_path / "two" / "cells" / cell.name) == ["cell.json", "logs"]


@pytest.mark.gloo
def test_long_context_is_swept_from_python_as_the_closed_forms_have_it(tmp_path: Path) -> None:
    with mock.patch(RUN_JOB, run_in_forks):
        sweep = sp_profiler.sweep(
            tmp_path / "out",
            modes=("ring", "ulysses"),
            comm="async",
            layers=1,
            baseline="ring",
            **{name: values[0] for name, values in TINY.items()},
            **FEW,
        )
        inside = {"tp": 2, "inside": "sp", "save": "shard", "comm": "async", "layers": 1, "kv_heads": 4}
        tiny = {name: values[0] for name, values in TINY.items()}
        nested = sp_profiler.sweep(tmp_path / "nested", modes="ring", ranks=4, **inside, **tiny, **FEW)
    assert [cell.scheme for cell in sweep.cells] == ["ring-zigzag-async", "ulysses-async"]
    assert [cell.scheme for cell in nested.cells] == ["ring-zigzag-sp2-shard-async"]
    for cell in (*sweep.cells, *nested.cells):
        assert cell.status == "ok", cell.reason
        assert cell.memory is not None
        assert cell.profile is not None
        assert cell.memory.saved_bytes == cell.theory.saved_bytes
        assert cell.profile.comm_bytes == cell.theory.comm_bytes
    assert (tmp_path / "out" / "sweep.html").is_file()
    assert sweep.to_polars()["layout"].to_list() == ["zigzag", None]


def test_a_folder_has_one_coordinator_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SweepFolder(tmp_path / "out").opened():
        assert main(["sweep", "--modes", "ddp", "--out", str(tmp_path / "out")]) == 2
    assert "another sweep is at work in" in capsys.readouterr().err
