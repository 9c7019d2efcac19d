"""A sweep whose coordinator is killed or interrupted loses the cell in hand and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cli_helpers import cli, load, names
from sweep_rank_worker import FEW_OPTIONS, TINY_OPTIONS

TOO_LARGE = 10**12
COMMAND = ["sweep", "--modes", "tp", "--comm", "async", "--layers", "1", *TINY_OPTIONS, *FEW_OPTIONS]
COMMAND += ["--vocab", "64", str(TOO_LARGE), "--out", "out"]
TABLES = {"sweep.json", "sweep.md", "sweep.csv", "sweep.parquet", "sweep.html"}


def started(folder: Path, cell: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """The command, at the moment at which ranks of this cell are there; and all its processes."""
    progress = f"out/cells/{cell}/logs/progress/rank-0000?.json"
    for left in folder.glob(progress):  # by a coordinator that was killed
        left.unlink()
    process = subprocess.Popen(
        [sys.executable, "-m", "sp_profiler", *COMMAND],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    deadline = time.monotonic() + 150
    while not list(folder.glob(progress)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no rank was started"
        time.sleep(0.02)
    return process, psutil.Process(process.pid).children(recursive=True)


def gone(family: list[psutil.Process]) -> None:
    assert len(family) >= 2  # the launcher and a rank
    assert psutil.wait_procs(family, timeout=60)[1] == []


@pytest.mark.gloo
def test_what_was_measured_outlives_the_coordinator(tmp_path: Path) -> None:
    first = "tp-async-r2-l1-s16-b2-hidden32-heads4-vocab64"
    second = f"tp-async-r2-l1-s16-b2-hidden32-heads4-vocab{TOO_LARGE}"
    cells = tmp_path / "out" / "cells"

    process, family = started(tmp_path, second)
    process.kill()
    process.communicate()
    gone(family)
    done = (cells / first / "cell.json").read_text()
    sweep = load(tmp_path / "out" / "sweep.json")
    assert [(cell["name"], cell["status"]) for cell in sweep["cells"]] == [(first, "ok"), (second, "pending")]
    assert set(names(cells)) == {first, second}
    assert not (cells / second / "cell.json").exists()

    # Ctrl-C leaves the tables of what there is
    process, family = started(tmp_path, second)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert "what was measured is in out; the same command goes on from there" in err
    gone(family)
    assert set(names(tmp_path / "out")) >= TABLES
    assert names(cells) == [first]  # nothing half done
    assert "1 of 2 cells measured, 1 not run yet." in (tmp_path / "out" / "sweep.md").read_text()

    end = cli(*COMMAND, cwd=tmp_path)
    assert end.returncode == 4, end.stderr
    assert f"1 of 1: {second}: oom: rank " in end.stderr
    assert "1 of 2 cells measured, 1 failed." in end.stdout
    assert "can't allocate memory" in end.stdout
    assert (cells / first / "cell.json").read_text() == done
    assert end.stdout.rstrip().endswith("charts: out/sweep.html")
    failed = load(cells / second / "cell.json")["cell"]
    assert (failed["status"], failed["failed_in"]) == ("oom", "timing")
    assert (tmp_path / "out" / failed["log"]).is_file()
