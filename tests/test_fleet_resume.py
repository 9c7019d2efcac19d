"""Nothing is lost, nothing done twice: workers and coordinators killed in the middle, then called again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from fleet_helpers import address, all_gone, local_cluster, wait_until
from fleet_truth import Truth, write_fleet

import sp_profiler
from sp_profiler.errors import UsageError
from sp_profiler.fleet.folder import opened
from sp_profiler.fleet.work import Work
from sp_profiler.report.json import read_report, to_plain
from sp_profiler.report.model import Report
from sp_profiler.trace.find import find_runs

pytestmark = pytest.mark.timeout(180)

RANKS = 16


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth, Report]:
    """A run, what is true of it, and its report."""
    run = tmp_path_factory.mktemp("fleet") / "run"
    truth = write_fleet(run, RANKS, layers=1, steps=1)
    return run, truth, sp_profiler.analyze(run, engine="in-process", work=run.parent / "work")


@pytest.fixture
def work(made: tuple[Path, Truth, Report], tmp_path: Path) -> Path:
    """A work folder in which the run is finished."""
    shutil.copytree(made[0].parent / "work", tmp_path / "work")
    return tmp_path / "work"


def marks(work: Path, stage: str = "survey") -> dict[str, int]:
    """The marks of a stage: when each was written."""
    return {one.name: one.stat().st_mtime_ns for one in (work / stage).glob("*.done")}


def without_place(report: Report) -> Any:
    """A report, but for where its collectives lie."""
    plain = to_plain(report)
    plain["fleet"].pop("collectives_at")
    plain["data_quality"] = [one for one in plain["data_quality"] if one["code"] != "collectives-on-disk"]
    return plain


def again(made: tuple[Path, Truth, Report], work: Path, **options: Any) -> Report:
    return sp_profiler.analyze(made[0], engine="in-process", work=work, **options)


# --- what is finished is not done again ------------------------------------------------------------------


def test_a_finished_run_is_only_put_together_again(made: tuple[Path, Truth, Report], work: Path) -> None:
    tables = {
        one: one.stat().st_mtime_ns
        for one in (*work.rglob("*/*.done"), *work.glob("ranks/*"), *work.glob("collectives/*"))
    }
    assert len(marks(work)) == RANKS
    assert without_place(again(made, work)) == without_place(made[2])
    assert {one: one.stat().st_mtime_ns for one in tables} == tables


def test_a_rank_that_comes_later_is_the_only_one_that_is_surveyed(tmp_path: Path) -> None:
    truth = write_fleet(tmp_path / "run", RANKS, layers=1, steps=1)
    late = tmp_path / "run" / "rank-00000.pt.trace.json.gz"
    late.rename(tmp_path / "late")
    report = sp_profiler.analyze(tmp_path / "run", engine="in-process", work=tmp_path / "work")
    assert report.run.ranks_missing == [0]
    before = marks(tmp_path / "work")
    (tmp_path / "late").rename(late)
    truth.check(sp_profiler.analyze(tmp_path / "run", engine="in-process", work=tmp_path / "work"))
    after = marks(tmp_path / "work")
    assert len(after) == RANKS
    assert {name: after[name] for name in before} == before


def test_a_file_that_changed_and_other_options_are_done_again(tmp_path: Path) -> None:
    run, work = tmp_path / "run", tmp_path / "work"
    write_fleet(run, RANKS, layers=1, steps=2)
    sp_profiler.analyze(run, engine="in-process", work=work)
    before = marks(work)
    truth = write_fleet(tmp_path / "cut", RANKS, layers=1, steps=2, cut={3: 1})
    shutil.copy(tmp_path / "cut" / "rank-00003.pt.trace.json.gz", run)
    truth.check(sp_profiler.analyze(run, engine="in-process", work=work))
    changed = [name for name, written in marks(work).items() if written != before[name]]
    assert len(changed) == 1
    chosen = sp_profiler.analyze(run, engine="in-process", work=work, steps=(0, 1))
    assert chosen.window.steps == [0]
    assert all(written != before[name] for name, written in marks(work).items())


@pytest.mark.parametrize("damage", ["empty", "cut", "other", "gone"])
def test_a_mark_that_cannot_be_read_counts_as_none(
    made: tuple[Path, Truth, Report], work: Path, damage: str
) -> None:
    mark = work / "survey" / "00004.done"
    text = mark.read_bytes()
    before = marks(work)
    if damage == "gone":
        mark.unlink()
    else:
        mark.write_bytes({"empty": b"", "cut": text[:-20], "other": b'{"fingerprint": 3}'}[damage])
    assert without_place(again(made, work)) == without_place(made[2])
    assert mark.read_bytes() == text
    assert {n: w for n, w in marks(work).items() if n != mark.name} == {
        n: w for n, w in before.items() if n != mark.name
    }


# --- killed in the middle --------------------------------------------------------------------------------


@contextmanager
def coordinator(run: Path, work: Path, engine: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, started; whatever comes, it has ended afterwards."""
    command = [sys.executable, "-m", "sp_profiler", "analyze", str(run), "--engine", engine]
    process = subprocess.Popen(
        [*command, "--work", str(work), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def middle(work: Path) -> None:
    """Return when some ranks are surveyed, and not all."""
    wait_until(lambda: len(marks(work)) >= 3, "three ranks were surveyed", 90)
    assert len(marks(work)) < LARGE


LARGE = 24
"""Ranks of the runs that are killed: enough that there is a middle."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    run = tmp_path_factory.mktemp("large") / "run"
    return run, write_fleet(run, LARGE, layers=1, steps=1, slow=dict.fromkeys(range(LARGE), 20_000))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_cluster() as found:
        yield found


@pytest.mark.parametrize("engine", ["processes:2", "dask"])
def test_a_coordinator_that_is_killed_loses_nothing(
    large: tuple[Path, Truth], engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run, truth = large
    work = tmp_path / "work"
    if engine == "dask":
        engine = address(request.getfixturevalue("cluster"))
    with coordinator(run, work, engine) as process:
        middle(work)
        workers = [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
        process.kill()
        process.wait()
        all_gone(workers)
    finished = marks(work)
    report = sp_profiler.analyze(run, engine=engine, work=work)  # the lock went with who held it
    truth.check(report)
    now = marks(work)
    assert len(now) == LARGE
    assert {name: now[name] for name in finished} == finished


def test_a_worker_that_is_killed_loses_nothing(large: tuple[Path, Truth], tmp_path: Path) -> None:
    run, truth = large
    work = tmp_path / "work"
    with coordinator(
        run, work, "processes:2", "--format", "json", "-o", str(tmp_path / "out.json")
    ) as process:
        middle(work)
        worker = psutil.Process(process.pid).children(recursive=True)[0]
        worker.kill()
        _, errors = process.communicate(timeout=150)
        assert process.returncode == 0, errors
    report = read_report((tmp_path / "out.json").read_bytes())
    assert report.run.ranks_missing == []
    truth.check(report)


def test_a_dask_worker_that_is_killed_loses_nothing(large: tuple[Path, Truth], tmp_path: Path) -> None:
    run, truth = large
    work = tmp_path / "work"
    with local_cluster() as mine:
        victims = [one.process.process.pid for one in mine.workers.values()][:1]
        with coordinator(
            run, work, address(mine), "--format", "json", "-o", str(tmp_path / "out.json")
        ) as process:
            middle(work)
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            output, errors = process.communicate(timeout=150)
            assert process.returncode == 0, errors
            assert b"written" in output, (output, errors)
    truth.check(read_report((tmp_path / "out.json").read_bytes()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything_and_the_next_call_goes_on(
    large: tuple[Path, Truth], number: signal.Signals, tmp_path: Path
) -> None:
    run, _ = large
    work = tmp_path / "work"
    with coordinator(run, work, "processes:2") as process:
        middle(work)
        workers = [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors.decode().splitlines() == ["sp-profile: interrupted"]
        assert output == b""
        all_gone(workers)
    assert 3 <= len(marks(work)) < LARGE


# --- one at a time ---------------------------------------------------------------------------------------


def test_a_work_folder_is_used_by_one_analysis_at_a_time(
    made: tuple[Path, Truth, Report], work: Path
) -> None:
    (files,) = find_runs([str(made[0])])
    with opened(str(work), files) as mine:
        assert mine == Work(str(work))
        with pytest.raises(UsageError, match=f"is in use by process {os.getpid()} on "):
            again(made, work)
    again(made, work)  # it is free


def test_what_a_killed_process_left_half_written_is_removed_when_it_is_old(
    made: tuple[Path, Truth, Report], work: Path
) -> None:
    (files,) = find_runs([str(made[0])])
    old, new = work / "survey" / ".new-old", work / "survey" / ".new-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    with opened(str(work), files):
        assert new.exists()
        assert not old.exists()


def test_the_default_folder_lies_in_the_cache_and_old_ones_are_removed(
    made: tuple[Path, Truth, Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SP_PROFILER_CACHE", str(tmp_path / "cache"))
    (files,) = find_runs([str(made[0])])
    with opened(None, files) as mine:
        assert Path(mine.root).parent == tmp_path / "cache" / "work"
    old, kept = tmp_path / "cache" / "work" / "old", tmp_path / "cache" / "work" / "kept"
    for folder in (old, kept):
        shutil.copytree(mine.root, folder)
    os.utime(old / "work.json", (0, 0))
    with opened(None, files) as same:
        assert same == mine
    assert not old.exists()
    assert kept.exists()
    monkeypatch.setattr("sp_profiler.fleet.folder.KEPT_BYTES", 0)
    with opened(None, files):
        pass
    assert not kept.exists()
    assert Path(mine.root).exists()
