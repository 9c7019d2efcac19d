"""Ranks that die, hang or are interrupted: who is named, and that nobody is left behind.

Most ranks here import no torch, so that a test takes the launcher's own two seconds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sp_profiler.errors import UsageError, WorkloadError
from sp_profiler.record.failures import Place, describe_hang, first_failure, log_end, where_it_hangs
from sp_profiler.record.launch import Job, run_command, run_job
from sp_profiler.record.processes import Tree
from sp_profiler.record.progress import Progress


def job(folder: Path, source: str, *, ranks: int = 2, timeout_s: float = 60.0) -> Job:
    """A job whose ranks run `source`."""
    (folder / "made_for_test.py").write_text(source)
    (folder / "logs").mkdir()
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return Job("made_for_test", [], ranks, folder, folder / "logs", timeout_s, env)


def ignore(states: dict[int, Progress]) -> None:
    return


def leftovers(folder: Path) -> list[psutil.Process]:
    """Processes that still have to do with `folder`."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join([*process.cmdline(), *process.environ().values()]):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return [process for process in found if process.pid != os.getpid()]


@pytest.mark.gloo
def test_a_job_runs_to_its_end_and_reports_progress(tmp_path: Path) -> None:
    source = (
        "import os\nfrom sp_profiler.record.progress import report\n"
        "for step in (1, 2, 3): report('steps', steps=step)\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    )
    seen: list[dict[int, Progress]] = []
    run_job(job(tmp_path, source), seen.append)
    assert {rank: (state.phase, state.steps) for rank, state in seen[-1].items()} == {
        0: ("finished", 3),
        1: ("finished", 3),
    }
    assert (tmp_path / "logs" / "rank-00001.log").read_text() == "rank 1 of 2\n"


@pytest.mark.gloo
def test_a_rank_that_raises_is_named_and_its_log_shown(tmp_path: Path) -> None:
    """The other rank fails too, because its peer is gone: it is not to blame."""
    source = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "if dist.get_rank() == 1: raise ValueError('the loss is a fish')\n"
        "dist.barrier()\n"
    )
    with pytest.raises(WorkloadError) as caught:
        run_job(job(tmp_path, source), ignore)
    sentence, _, log = str(caught.value).partition("\n")
    assert sentence == "rank 1 of 2 failed: ValueError: the loss is a fish"
    assert "made_for_test.py" in log
    assert "rank.py" not in log
    assert leftovers(tmp_path) == []


@pytest.mark.gloo
def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    source = (
        "import os, signal, time\n"
        "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(WorkloadError, match=r"rank 1 of 2 failed: it was killed by SIGKILL"):
        run_job(job(tmp_path, source), ignore)
    assert leftovers(tmp_path) == []


@pytest.mark.gloo
def test_a_rank_that_hangs_is_told_from_the_one_that_waits_for_it(tmp_path: Path) -> None:
    """Rank 0 waits inside something that looks like torch's collectives; both start a grandchild."""
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (package / "stuck.py").write_text("import time\ndef all_reduce(): time.sleep(600)\n")
    source = (
        "import importlib.util, os, subprocess, time\n"
        "from sp_profiler.record.progress import report\n"
        f"spec = importlib.util.spec_from_file_location('stuck', {str(package / 'stuck.py')!r})\n"
        "stuck = importlib.util.module_from_spec(spec); spec.loader.exec_module(stuck)\n"
        f"subprocess.Popen(['sleep', '600'], env={{**os.environ, 'MARK': {str(tmp_path)!r}}})\n"
        "report('steps', steps=4)\n"
        "def reads_a_file_for_ever(): time.sleep(600)\n"
        "stuck.all_reduce() if os.environ['RANK'] == '0' else reads_a_file_for_ever()\n"
    )
    with pytest.raises(WorkloadError) as caught:
        run_job(job(tmp_path, source, timeout_s=2.0), ignore)
    sentence = str(caught.value).partition("\n")[0]
    assert "no rank made progress for 2 s after 4 finished steps" in sentence
    assert "rank 1 hangs in reads_a_file_for_ever (made_for_test.py:7)" in sentence
    assert "rank 0 waits for it in all_reduce (stuck.py:2)" in sentence
    assert "end of the log of rank 1" in str(caught.value)
    assert leftovers(tmp_path) == []


def test_ending_a_tree_ends_grandchildren_that_ignore_sigterm() -> None:
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {stubborn!r}], start_new_session=True)\n"
        "time.sleep(600)"
    )
    tree = Tree([sys.executable, "-c", parent], env=dict(os.environ), output=subprocess.DEVNULL)
    while len(tree.alive()) < 2:
        time.sleep(0.02)
    pids = tree.alive()
    time.sleep(0.3)  # let the grandchild reach its signal handler
    tree.end(grace_s=0.3)
    assert len(pids) == 2
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", 7), ("pass", 0)])
def test_a_commands_exit_code_is_returned(tmp_path: Path, code: str, expected: int) -> None:
    env = {**os.environ, "SP_PROFILE_PROGRESS": str(tmp_path)}
    assert run_command([sys.executable, "-c", code], env=env, timeout_s=None, on_progress=ignore) == expected


def test_a_command_ended_by_a_signal_returns_128_plus_its_number(tmp_path: Path) -> None:
    env = {**os.environ, "SP_PROFILE_PROGRESS": str(tmp_path)}
    kill = "import os; os.kill(os.getpid(), 9)"
    assert run_command([sys.executable, "-c", kill], env=env, timeout_s=None, on_progress=ignore) == 128 + 9


def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    env = {**os.environ, "SP_PROFILE_PROGRESS": str(tmp_path)}
    with pytest.raises(UsageError, match="cannot start 'no-such-command-here'"):
        run_command(["no-such-command-here"], env=env, timeout_s=None, on_progress=ignore)


def test_a_command_without_progress_is_ended_when_asked(tmp_path: Path) -> None:
    env = {**os.environ, "SP_PROFILE_PROGRESS": str(tmp_path)}
    sleep = f"import time; mark = {str(tmp_path)!r}; time.sleep(600)"
    with pytest.raises(WorkloadError, match="no progress for 1 s"):
        run_command([sys.executable, "-c", sleep], env=env, timeout_s=1.0, on_progress=ignore)
    assert leftovers(tmp_path) == []


def state(rank: int, phase: str, time_ns: int, error: str | None = None) -> Progress:
    return Progress(rank, 1, phase, 0, time_ns, error)  # type: ignore[arg-type]


PEER_GONE = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3000"


def test_the_first_real_error_is_to_blame_not_the_lost_peer() -> None:
    states = {0: state(0, "failed", 10, PEER_GONE), 1: state(1, "failed", 11, "ValueError: x")}
    assert first_failure(states, 2, "", 1).rank == 1


def test_the_earlier_of_two_errors_is_to_blame() -> None:
    states = {0: state(0, "failed", 12, "KeyError: 1"), 1: state(1, "failed", 11, "ValueError: x")}
    assert first_failure(states, 2, "", 1).rank == 1


def test_a_signal_is_to_blame_before_any_exception() -> None:
    log = "E torch/distributed/elastic] failed (exitcode: -9) local_rank: 1 (pid: 77) of binary: python\n"
    failure = first_failure({0: state(0, "failed", 10, PEER_GONE), 1: state(1, "steps", 9)}, 2, log, 1)
    assert (failure.rank, failure.reason) == (1, "it was killed by SIGKILL (out of memory?)")


def test_the_launchers_own_sigterm_blames_nobody() -> None:
    log = "failed (exitcode: -15) local_rank: 1 (pid: 77)"
    states = {0: state(0, "failed", 10, "ValueError: x"), 1: state(1, "steps", 9)}
    assert first_failure(states, 2, log, 1).rank == 0


def test_a_launcher_that_fails_before_the_ranks_start() -> None:
    failure = first_failure({}, 2, "", 1)
    assert failure.rank is None
    assert failure.reason == "the launcher left with code 1 before every rank had started"
    killed = first_failure({0: state(0, "steps", 9)}, 1, "", -9)
    assert killed.reason == "the launcher was killed by SIGKILL (out of memory?)"


def test_several_ranks_that_hang_outside_collectives_are_all_named() -> None:
    places = {0: Place("f (a.py:1)", False), 1: None, 2: Place("wait (b.py:2)", True)}
    first, clause = describe_hang(places)
    assert first == 0
    assert clause == "rank 0 hangs in f (a.py:1), rank 1 hangs; rank 2 waits for it in wait (b.py:2)"


def test_all_ranks_in_a_collective_hang_there() -> None:
    places = {0: Place("barrier (d.py:1)", True), 1: Place("all_reduce (d.py:2)", True)}
    assert describe_hang(places)[1] == "rank 0 hangs in barrier (d.py:1), rank 1 hangs in all_reduce (d.py:2)"


def test_the_end_of_a_log_leaves_out_the_profilers_own_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\nUSDT:2026 profiler_start\n\nlast\n")
    assert log_end(log) == "first\nlast"
    assert log_end(log, lines=1) == "last"
    assert log_end(tmp_path / "none") == ""


def test_of_a_crash_the_innermost_frames_are_shown(tmp_path: Path) -> None:
    frames = [f'  File "/x/train.py", line {line} in f' for line in range(40)]
    log = tmp_path / "log"
    log.write_text("\n".join(["start", "Fatal Python error: Segmentation fault", "Current thread", *frames]))
    shown = log_end(log).splitlines()
    assert shown[0] == "Fatal Python error: Segmentation fault"
    assert frames[0] in shown
    assert frames[-1] not in shown


def test_the_last_stack_dump_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    dump = 'Current thread 0x1 (most recent call first):\n  File "/x/{}.py", line {} in work\n'
    log.write_text(dump.format("old", 1) + "words\n" + dump.format("new", 2))
    assert where_it_hangs(log) == Place("work (new.py:2)", False)


@pytest.mark.gloo
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_process(tmp_path: Path, number: signal.Signals) -> None:
    """The whole command, with ranks that ignore SIGTERM and have children of their own."""
    source = (
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen(['sleep', '600'], env={{**os.environ, 'MARK': {str(tmp_path)!r}}})\n"
        f"open(os.path.join({str(tmp_path)!r}, 'up-' + os.environ['RANK']), 'w').close()\n"
        "time.sleep(600)\n"
    )
    prepared = job(tmp_path, source)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom sp_profiler.record.launch import Job, run_job\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "job = Job('made_for_test', [], 2, folder, folder / 'logs', 60.0, dict(os.environ))\n"
        "try:\n    run_job(job, lambda states: None)\nexcept KeyboardInterrupt:\n    sys.exit(130)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], env=dict(prepared.env))
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("up-*"))) < 2:
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    assert len(family) >= 5  # the launcher, two ranks, their two children
    assert [child for child in family if child.is_running()] == []
    assert leftovers(tmp_path) == []


@pytest.mark.gloo
def test_ranks_do_not_outlive_a_killed_tool(tmp_path: Path) -> None:
    up = f"{tmp_path}/up-"
    source = f"import os, time\nopen({up!r} + os.environ['RANK'], 'w').close()\ntime.sleep(600)\n"
    prepared = job(tmp_path, source)
    script = (
        "import os\nfrom pathlib import Path\nfrom sp_profiler.record.launch import Job, run_job\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "run_job(Job('made_for_test', [], 2, folder, folder / 'logs', 60.0, dict(os.environ)), print)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=dict(prepared.env), stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("up-*"))) < 2:
        assert time.monotonic() < deadline, "the ranks did not start"
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait(timeout=10)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
