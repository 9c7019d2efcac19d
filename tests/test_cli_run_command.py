"""`sp-profile run -- COMMAND`: your own script keeps its output and its exit code, and gets its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import cli, load, names

from sp_profiler.cli.main import main

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
    done = cli("run", "--active-steps", "2", "--", *torchrun, "train.py", cwd=tmp_path)
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
    done = cli("run", "--", sys.executable, "-c", f"raise SystemExit({code})", cwd=tmp_path)
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
    done = cli("run", "--json", "--out", "out", "--", *recorder([""]), cwd=tmp_path)
    assert done.returncode == 7
    assert json.loads(done.stdout) == load(tmp_path / "out" / "report.json")
    assert "words of the script" in done.stderr


def test_every_capture_of_a_command_gets_its_report(tmp_path: Path) -> None:
    parts = ["", "capture-2", "capture-10"]
    done = cli("run", "--out", "out", "--", *recorder(parts), cwd=tmp_path)
    assert done.returncode == 7
    assert done.stderr.splitlines() == ["further report: out/capture-2", "further report: out/capture-10"]
    for part in parts:
        folder = tmp_path / "out" / part
        assert {"run.json", "rank-00000.pt.trace.json.gz", "report.json", "report.html"} <= set(names(folder))
        assert load(folder / "run.json")["command"][:3] == ["sp-profile", "run", "--"]
        assert load(folder / "report.json")["totals"]["exposed_ns"] == 50_000


def test_a_second_capture_counts_when_the_first_recorded_nothing(tmp_path: Path) -> None:
    done = cli("run", "--out", "out", "--", *recorder(["capture-2"]), cwd=tmp_path)
    assert done.returncode == 7
    assert done.stderr == ""
    assert "report: out/capture-2/report.html" in done.stdout


def test_a_command_that_recorded_nothing_is_not_told_to_add_what_it_has(tmp_path: Path) -> None:
    done = cli("run", "--out", "out", "--", *recorder([]), cwd=tmp_path)
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
    done = cli("run", "--out", "kept", "--", sys.executable, "-c", script, cwd=tmp_path)
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
