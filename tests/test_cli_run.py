"""`sp-profile run` as a user meets it: folders, files, exit codes, and what is on which stream."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from sp_profiler.cli.main import main
from sp_profiler.cli.run import publish_on_error
from sp_profiler.errors import InputError
from sp_profiler.record.runfolder import PendingFolder, unused

TINY = ("--layers", "1", "--seq-len", "16", "--hidden", "32", "--heads", "4", "--vocab", "64")
TINY_STEPS = ("--warmup", "1", "--active-steps", "1")


def sp_profile(*arguments: str, cwd: Path, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sp_profiler", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout_s, check=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def load(path: Path) -> Any:
    return json.loads(path.read_text())


# --- what is refused before anything starts ---------------------------------------------------------


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
        (["pipeline"], "unknown workload 'pipeline', expected one of ddp, tp, sp, demo"),
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


# --- the folder in the making -----------------------------------------------------------------------


def test_a_folder_appears_only_when_it_is_published(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "run") as pending:
        (pending.path / "run.json").write_text("{}")
        (pending.logs / "rank-00000.log").write_text("words")
        assert not (tmp_path / "run").exists()
        assert pending.publish() == tmp_path / "run"
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["run.json"]


def test_a_folder_that_is_not_published_leaves_nothing(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "run") as pending:
        (pending.path / "run.json").write_text("{}")
    assert names(tmp_path) == []


def test_logs_of_a_failed_run_are_kept_beside(tmp_path: Path) -> None:
    (tmp_path / "run.failed").mkdir()  # of an earlier failure: not touched
    with PendingFolder(tmp_path / "run") as pending:
        (pending.path / "rank-00000.pt.trace.json.gz").write_bytes(b"half")
        (pending.logs / "rank-00000.log").write_text("words")
        (pending.logs / "launcher.log").write_text("")
        assert pending.keep_logs() == tmp_path / "run.failed-2"
    assert names(tmp_path) == ["run.failed", "run.failed-2"]
    assert names(tmp_path / "run.failed-2") == ["rank-00000.log"]


def test_force_replaces_the_run_and_nothing_else(tmp_path: Path) -> None:
    for name in ("notes.txt", "run.json", "rank-00000.pt.trace.json.gz", "rank-00001.pt.trace.json.gz"):
        (tmp_path / name).write_text("old")
    with PendingFolder(tmp_path, force=True) as pending:
        (pending.path / "run.json").write_text("new")
        (pending.path / "rank-00000.pt.trace.json.gz").write_text("new")
        pending.publish()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "notes.txt": "old",
        "run.json": "new",
        "rank-00000.pt.trace.json.gz": "new",
    }


def test_two_runs_of_one_name_at_once_both_stay(tmp_path: Path) -> None:
    with PendingFolder(tmp_path / "run") as one:
        one.path = one.path.rename(tmp_path / ".run.1.partial")  # in life the other is another process
        with PendingFolder(tmp_path / "run") as other:
            (one.path / "run.json").write_text("one")
            (other.path / "run.json").write_text("other")
            assert one.publish() == tmp_path / "run"
            assert other.publish() == tmp_path / "run-2"
    assert (tmp_path / "run" / "run.json").read_text() == "one"
    assert (tmp_path / "run-2" / "run.json").read_text() == "other"
    assert names(tmp_path) == ["run", "run-2"]


def test_a_folder_that_is_there_is_filled_from_within(tmp_path: Path) -> None:
    """It may be a mount: nothing can be renamed into it from outside."""
    with PendingFolder(tmp_path) as pending:
        assert pending.path.parent == tmp_path
        (pending.path / "run.json").write_text("{}")
        (pending.path / ".rank-00000.pt.trace.json.gz.7.gz.tmp").write_text("half")
        assert pending.publish() == tmp_path
    assert names(tmp_path) == ["run.json"]


def test_what_came_into_an_empty_folder_meanwhile_stays(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    with PendingFolder(target) as pending:
        (pending.path / "run.json").write_text("ours")
        (target / "run.json").write_text("theirs")
        assert pending.publish() == tmp_path / "run-2"
    assert names(target) == ["run.json"]
    assert (target / "run.json").read_text() == "theirs"
    assert (tmp_path / "run-2" / "run.json").read_text() == "ours"


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


def test_unused_counts_up(tmp_path: Path) -> None:
    assert unused(tmp_path / "a") == tmp_path / "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert unused(tmp_path / "a") == tmp_path / "a-3"


# --- whole runs -------------------------------------------------------------------------------------


@pytest.mark.gloo
def test_a_workload_from_command_to_report(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = sp_profile(
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
def test_json_on_stdout_is_the_report(tmp_path: Path) -> None:
    done = sp_profile("run", "ddp", *TINY, *TINY_STEPS, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "sp-profile-runs").iterdir()
    assert folder.name.endswith("Z-ddp")
    assert json.loads(done.stdout) == load(folder / "report.json")


SCRIPT = """
import sys, torch, torch.distributed as dist
import sp_profiler
dist.init_process_group("gloo")
with sp_profiler.capture() as prof:
    for step in range(4):
        dist.all_reduce(torch.ones(64) @ torch.ones(64, 64))
        prof.step()
print("trained", flush=True)
dist.destroy_process_group()
sys.exit({code})
"""


@pytest.mark.gloo
@pytest.mark.parametrize("code", [0, 5])
def test_your_own_script_under_torchrun(tmp_path: Path, code: int) -> None:
    """Its output is its own, its exit code is ours (torchrun makes 1 of any failure)."""
    (tmp_path / "train.py").write_text(SCRIPT.format(code=code))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = sp_profile("run", "--active-steps", "2", "--", *torchrun, "train.py", cwd=tmp_path)
    assert done.returncode == (1 if code else 0), done.stderr
    assert done.stdout.startswith("trained")
    (folder,) = (tmp_path / "sp-profile-runs").iterdir()
    assert folder.name.endswith("Z-train")
    assert {"rank-00000.pt.trace.json.gz", "rank-00001.pt.trace.json.gz", "report.html"} <= set(names(folder))
    run = load(folder / "run.json")
    assert run["command"][:3] == ["sp-profile", "run", "--"]
    assert run["workload"] is None
    assert run["schedule"]["active"] == 2
    assert [step["step"] for step in load(folder / "report.json")["steps"]] == [1, 2, 1, 2]


@pytest.mark.parametrize("code", [0, 42])
def test_a_command_without_a_trace_keeps_its_exit_code(tmp_path: Path, code: int) -> None:
    done = sp_profile("run", "--", sys.executable, "-c", f"raise SystemExit({code})", cwd=tmp_path)
    assert done.returncode == code
    if code:
        assert "the command failed (exit code 42) and left no trace" in done.stderr
    else:
        assert "the command left no trace" in done.stderr
        assert "sp_profiler.capture()" in done.stderr
    assert list((tmp_path / "sp-profile-runs").iterdir()) == []


RECORDER = """
import os, sys, time
from pathlib import Path
from sp_profiler.record.progress import report
from sp_profiler.trace.write import TraceWriter
out = Path(os.environ["SP_PROFILE_OUT"])
for part in {parts!r}:
    (out / part).mkdir(exist_ok=True)
    writer = TraceWriter(rank=0, world_size=1)
    writer.kernel("sm90_xmma_gemm_bf16", 0, 100, stream=7).collective("all_reduce", 50, 100, stream=20)
    writer.write(out / part / "rank-00000.pt.trace.json.gz")
report("steps", steps=1)
print("words of the script", flush=True)
time.sleep({sleep_s})
sys.exit(7)
"""


def recorder(parts: list[str], sleep_s: float = 0) -> list[str]:
    """A command that leaves traces as `capture` does, without torch."""
    return [sys.executable, "-c", RECORDER.format(parts=parts, sleep_s=sleep_s)]


def test_with_json_stdout_holds_the_report_alone(tmp_path: Path) -> None:
    done = sp_profile("run", "--json", "--out", "out", "--", *recorder([""]), cwd=tmp_path)
    assert done.returncode == 7
    assert json.loads(done.stdout) == load(tmp_path / "out" / "report.json")
    assert "words of the script" in done.stderr


def test_every_capture_of_a_command_gets_its_report(tmp_path: Path) -> None:
    parts = ["", "capture-2", "capture-10"]
    done = sp_profile("run", "--out", "out", "--", *recorder(parts), cwd=tmp_path)
    assert done.returncode == 7
    assert done.stderr.splitlines() == ["further report: out/capture-2", "further report: out/capture-10"]
    for part in parts:
        folder = tmp_path / "out" / part
        assert {"run.json", "rank-00000.pt.trace.json.gz", "report.json", "report.html"} <= set(names(folder))
        assert load(folder / "run.json")["command"][:3] == ["sp-profile", "run", "--"]
        assert load(folder / "report.json")["totals"]["exposed_ns"] == 50_000


def test_a_second_capture_counts_when_the_first_recorded_nothing(tmp_path: Path) -> None:
    done = sp_profile("run", "--out", "out", "--", *recorder(["capture-2"]), cwd=tmp_path)
    assert done.returncode == 7
    assert done.stderr == ""
    assert "report: out/capture-2/report.html" in done.stdout


def test_a_command_that_recorded_nothing_is_not_told_to_add_what_it_has(tmp_path: Path) -> None:
    done = sp_profile("run", "--out", "out", "--", *recorder([]), cwd=tmp_path)
    assert done.returncode == 7
    assert "left no trace: it ended before" in done.stderr
    assert names(tmp_path) == []


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
def test_what_a_command_recorded_before_its_end_was_called_for_is_kept(tmp_path: Path, how: str) -> None:
    limit = ["--timeout", "1"] if how == "timeout" else []
    command = [sys.executable, "-m", "sp_profiler", "run", "--out", "out", *limit, "--", *recorder([""], 600)]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "words of the script\n"
    if how == "interrupt":
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    out, err = process.communicate(timeout=60)
    assert process.returncode == (130 if how == "interrupt" else 4), err
    assert out == ""
    assert "what was recorded is in out: sp-profile analyze out" in err
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["rank-00000.pt.trace.json.gz", "run.json"]
    assert main(["analyze", str(tmp_path / "out")]) == 0


def test_a_report_that_fails_only_warns(tmp_path: Path) -> None:
    script = (
        "import os, pathlib\n"
        "out = pathlib.Path(os.environ['SP_PROFILE_OUT'])\n"
        "(out / 'rank-00000.pt.trace.json.gz').write_bytes(b'no trace at all')\n"
        "raise SystemExit(9)"
    )
    done = sp_profile("run", "--out", "kept", "--", sys.executable, "-c", script, cwd=tmp_path)
    assert done.returncode == 9
    assert "no report could be made" in done.stderr
    assert "Traceback" not in done.stderr
    assert "rank-00000.pt.trace.json.gz" in names(tmp_path / "kept")


def test_a_defect_of_ours_hides_neither_traces_nor_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("sp_profiler.engine.analyze_run", breaks)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--out", "kept", "--", *recorder([""])]) == 7
    told = capsys.readouterr().err
    assert "in breaks" in told  # where it happened
    assert "no report could be made: ZeroDivisionError: of ours\ntraces: kept" in told
    assert names(tmp_path / "kept") == ["rank-00000.pt.trace.json.gz", "run.json"]


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
def test_the_demo_shows_overlap_where_the_schedule_has_it(tmp_path: Path) -> None:
    done = sp_profile("run", "demo", "--out", "demo", cwd=tmp_path, timeout_s=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("report: demo/index.html")
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
