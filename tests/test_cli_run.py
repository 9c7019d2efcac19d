"""`sp-profile run` of a shipped workload: folders, files, exit codes, and what is on which stream."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import psutil
import pytest
from cli_helpers import cli, load, names
from context_run_worker import run_in_forks

from sp_profiler.cli.main import main
from sp_profiler.cli.run import publish_on_error
from sp_profiler.errors import InputError
from sp_profiler.record.runfolder import PendingFolder

TINY = ("--layers", "1", "--seq-len", "16", "--hidden", "32", "--heads", "4", "--vocab", "64")
TINY_STEPS = ("--warmup", "1", "--active-steps", "1")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which a command is refused."""
    assert main(["run", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tp", "--hidden", "250"], "--hidden 250 is not divisible by --heads 8"),
        (["sp", "--seq-len", "33", "--ranks", "2"], "--seq-len 33 is not divisible by --ranks 2"),
        (["tp", "--ranks", "9"], "--ranks 9 is not between 1 and 8"),
        (["tp", "--ranks", "0"], "--ranks 0 is not between 1 and 8"),
        (["tp", "--layers", "0"], "--layers"),
        (["tp", "--timeout", "0"], "--timeout 0 must be above 0"),
        (
            ["pipeline"],
            "unknown workload 'pipeline', expected one of ddp, tp, sp, ring, ulysses, rsa, usp, demo",
        ),
        (["demo", "--comm", "async"], "the runs of demo differ in --comm: choose a workload"),
        (
            ["demo-long-context", "--layout", "zigzag", "--ulysses", "4", "--comm", "sync"],
            "the runs of demo-long-context differ in --layout, --comm, --ulysses: choose",
        ),
        ([], "what to run?"),
        (["tp", "--", "python", "train.py"], "not both"),
        (["--", "no-such-command-here"], "cannot start 'no-such-command-here'"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *arguments)
    assert list(tmp_path.glob("sp-profile-runs/*")) == []


def test_a_folder_with_anything_in_it_is_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "precious").write_text("mine")
    assert "is not empty" in refused(capsys, "tp", "--out", str(tmp_path))
    assert names(tmp_path) == ["precious"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write to" in refused(capsys, "tp", "--out", str(tmp_path / "file" / "run"))


def test_without_torch_it_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import importlib.util, sys\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from sp_profiler.cli.main import main\nsys.exit(main(['run', 'tp']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert done.returncode == 2
    assert 'pip install "sp-profiler[run]"' in done.stderr


@pytest.mark.parametrize(
    ("error", "kept"),
    [(InputError("x"), True), (OSError("x"), True), (KeyError("x"), True), (KeyboardInterrupt(), False)],
)
def test_a_failed_analysis_keeps_the_recording_and_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, kept: bool
) -> None:
    def record_and_fail() -> None:
        with PendingFolder(tmp_path / "run") as pending, publish_on_error(pending):
            (pending.path / "run.json").write_text("{}")
            raise error

    with pytest.raises(type(error)):
        record_and_fail()
    assert names(tmp_path) == (["run"] if kept else [])
    said = f"sp-profile run: no report could be made ({type(error).__name__}); the traces are in "
    assert capsys.readouterr().err == (f"{said}{tmp_path / 'run'}\n" if kept else "")


@pytest.mark.gloo
def test_a_workload_from_command_to_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = cli(
        "run",
        "tp",
        "--comm",
        "async",
        *TINY,
        *TINY_STEPS,
        "--out",
        str(out),
        "--format",
        "markdown",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    traces = ["rank-00000.pt.trace.json.gz", "rank-00001.pt.trace.json.gz"]
    assert names(out) == sorted([*traces, "report.html", "report.json", "report.md", "run.json"])
    assert names(tmp_path) == ["out"]
    assert done.stdout.rstrip().endswith("report: out/report.html")
    assert done.stderr == ""

    run = load(out / "run.json")
    assert run["workload"]["mode"] == "tp"
    assert run["workload"]["comm"] == "async"
    assert run["command"][:3] == ["sp-profile", "run", "tp"]
    assert (run["world_size"], run["backend"], run["device_type"]) == (2, "gloo", "cpu")
    assert run["groups"] == [{"key": "tp[0,1]", "description": "tp", "ranks": [0, 1]}]
    assert run["hosts"][0]["ranks"] == [0, 1]
    assert len(run["losses"]) == 2
    assert set(run["step_times_ns"]) == {"0", "1"}

    report = load(out / "report.json")
    assert report["run"]["name"] == "out"
    assert report["run"]["path"] == "out"
    assert [rank["file"] for rank in report["ranks"]] == [f"out/{trace}" for trace in traces]
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert [step["step"] for step in report["steps"]] == [1, 1]
    assert ".partial" not in (out / "report.json").read_text()
    assert ".partial" not in (out / "report.html").read_text()


@pytest.mark.gloo
def test_json_on_stdout_is_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with mock.patch("sp_profiler.record.workload.run_job", run_in_forks):
        assert main(["run", "ddp", *TINY, *TINY_STEPS, "--json"]) == 0
    (folder,) = (tmp_path / "sp-profile-runs").iterdir()
    assert folder.name.endswith("Z-ddp")
    assert json.loads(capsys.readouterr().out) == load(folder / "report.json")


@pytest.mark.gloo
def test_a_workload_that_dies_leaves_its_logs_and_code_4(tmp_path: Path) -> None:
    """A rank cannot write its trace folder: the environment makes torch fail on every rank."""
    environ = {
        **os.environ,
        "MASTER_ADDR_OVERRIDE": "x",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "none0",
    }
    command = [sys.executable, "-m", "sp_profiler", "run", "tp", *TINY, *TINY_STEPS, "--out", "out"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=150, check=False, env=environ
    )
    assert done.returncode == 4
    assert done.stdout == ""
    assert "of 2 failed: " in done.stderr.splitlines()[0]
    assert "end of the log of rank" in done.stderr
    assert done.stderr.rstrip().endswith("logs: out.failed")
    assert names(tmp_path) == ["out.failed"]
    assert "none0" in (tmp_path / "out.failed" / "rank-00000.log").read_text()


@pytest.mark.gloo
def test_an_interrupted_workload_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sp_profiler", "run", "sp", *TINY, "--warmup", "1000000", "--out", "out"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 100
    while not list(tmp_path.glob(".out.*/logs/progress/rank-00001.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.strip().endswith("interrupted")
    assert len(family) >= 3  # the launcher and two ranks
    assert [child for child in family if child.is_running()] == []
    assert names(tmp_path) == []


@pytest.mark.gloo
def test_the_demo_shows_overlap_where_the_schedule_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with mock.patch("sp_profiler.record.workload.run_job", run_in_forks):
        assert main(["run", "demo", "--out", "demo"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("report: demo/index.html")
    folder = tmp_path / "demo"
    assert names(folder) == [
        "comparison.json",
        "index.html",
        "sp-basic",
        "sp-recompute",
        "tp-async",
        "tp-sync",
    ]
    for name, overlaps in (
        ("tp-sync", False),
        ("tp-async", True),
        ("sp-basic", False),
        ("sp-recompute", True),
    ):
        assert {"report.html", "report.json", "run.json"} <= set(names(folder / name))
        for rank in load(folder / name / "report.json")["ranks"]:
            wgrad = rank["overlapped_by_role_ns"].get("wgrad", 0)
            measured = (rank["overlapped_ns"], wgrad, rank["wgrad_overlapped_ns"])
            assert all(measured) if overlaps else not any(measured), (name, rank["rank"], measured)
    compared = load(folder / "comparison.json")
    assert [run["name"] for run in compared["runs"]] == ["tp-sync", "tp-async", "sp-basic", "sp-recompute"]
