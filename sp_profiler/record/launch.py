"""Starts the ranks of a workload, or the user's own command, watches them, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sp_profiler.errors import HangError, UsageError, WorkloadError
from sp_profiler.record import progress
from sp_profiler.record.failures import describe_hang, first_failure, log_end, log_path, where_it_hangs
from sp_profiler.record.processes import Tree, interruptible
from sp_profiler.record.progress import Progress

POLL_S = 0.1
START_S = 60.0
"""The least time given to start: importing torch takes long on a busy machine and shows no progress."""
LAUNCHER_LOG = "launcher.log"

OnProgress = Callable[[dict[int, Progress]], None]
"""Called a few times a second with what every rank said last."""


@dataclass(frozen=True)
class Job:
    """What to start. `module` runs as `python -m module arguments...` on each of `ranks` ranks."""

    module: str
    arguments: Sequence[str]
    ranks: int
    out: Path  # SP_PROFILE_OUT: the folder that takes the traces
    log_dir: Path
    timeout_s: float  # without progress of any rank
    env: Mapping[str, str]  # the whole environment of the ranks


def launcher_command(job: Job) -> list[str]:
    """The command line of torch's own launcher for a job on this machine."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        str(job.ranks),
        "--log-dir",
        str(job.log_dir),
        "-m",
        "sp_profiler.record.rank",
        str(job.log_dir),
        job.module,
        *job.arguments,
    ]


def run_job(job: Job, on_progress: OnProgress) -> None:
    """Run a job to its end.

    Raises WorkloadError, which names the rank and holds the end of its log, when a rank dies, HangError when
    no rank makes progress for `timeout_s` seconds; KeyboardInterrupt on Ctrl-C, SIGTERM and SIGHUP.
    In every case all processes have ended on return.
    """
    progress_dir = job.log_dir / "progress"
    progress_dir.mkdir(parents=True, exist_ok=True)
    env = {
        **job.env,
        "SP_PROFILE_OUT": str(job.out),
        progress.FOLDER_VARIABLE: str(progress_dir),
        # the user's folder may hold a package called `workloads`: it must not be taken for ours
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    launcher_log = job.log_dir / LAUNCHER_LOG
    try:
        with (
            launcher_log.open("wb") as output,
            interruptible(),
            Tree(launcher_command(job), env=env, output=output) as tree,
        ):
            _watch(job, tree, progress_dir, on_progress)
            code = tree.process.returncode
            states = progress.read(progress_dir)
        if code != 0:
            raise _death(job, states, launcher_log, code)
    finally:
        shutil.rmtree(progress_dir, ignore_errors=True)


def _watch(job: Job, tree: Tree, progress_dir: Path, on_progress: OnProgress) -> None:
    """Wait until the launcher ends; raise when nothing moves for `timeout_s` seconds."""
    seen: object = None
    moved_at = time.monotonic()
    while tree.process.poll() is None:
        states = progress.read(progress_dir)
        on_progress(states)
        logs = [log_path(job.log_dir, rank) for rank in range(job.ranks)]
        now = (states, [log.stat().st_size if log.exists() else 0 for log in logs])
        if now != seen:
            seen, moved_at = now, time.monotonic()
        limit_s = max(job.timeout_s, 0 if _all_training(job, states) else START_S)
        if time.monotonic() - moved_at > limit_s:
            raise _hang(job, tree, states, limit_s)
        time.sleep(POLL_S)
    on_progress(progress.read(progress_dir))


def _all_training(job: Job, states: Mapping[int, Progress]) -> bool:
    return all(rank in states and states[rank].phase != "starting" for rank in range(job.ranks))


def _with_log(
    sentence: str, log: Path, whose: str, kind: type[WorkloadError] = WorkloadError
) -> WorkloadError:
    end = log_end(log)
    return kind(f"{sentence}\n--- end of {whose} ---\n{end}" if end else sentence)


def _death(job: Job, states: dict[int, Progress], launcher_log: Path, code: int) -> WorkloadError:
    failure = first_failure(states, job.ranks, launcher_log.read_text(errors="replace"), code)
    if failure.rank is None:
        return _with_log(f"the workload failed: {failure.reason}", launcher_log, "the launcher's log")
    sentence = f"rank {failure.rank} of {job.ranks} failed: {failure.reason}"
    return _with_log(sentence, log_path(job.log_dir, failure.rank), f"the log of rank {failure.rank}")


def _hang(job: Job, tree: Tree, states: dict[int, Progress], waited_s: float) -> WorkloadError:
    """Ask the ranks where they are, then put those with the fewest steps into words."""
    waiting = [rank for rank in range(job.ranks) if rank not in states or not states[rank].ended]
    if not waiting:  # all said they were done, and yet some process stays
        return HangError(f"the ranks finished but did not exit within {waited_s:g} s")
    alive = tree.alive()
    for rank in waiting:
        if rank in states and states[rank].pid in alive:
            os.kill(states[rank].pid, signal.SIGUSR1)
    time.sleep(1.0)  # the stacks are written by the ranks themselves
    fewest = progress.slowest(states, waiting)
    behind = [rank for rank in waiting if rank not in states or states[rank].steps == fewest]
    first, clause = describe_hang({rank: where_it_hangs(log_path(job.log_dir, rank)) for rank in behind})
    sentence = (
        f"no rank made progress for {waited_s:g} s after {fewest} finished steps: {clause} "
        "(--timeout gives more time)"
    )
    return _with_log(sentence, log_path(job.log_dir, first), f"the log of rank {first}", HangError)


def run_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float | None,
    on_progress: OnProgress,
    quiet_stdout: bool = False,
) -> int:
    """Run the user's own command with our terminal; returns its exit code (128 + n for signal n).

    `quiet_stdout` sends what it prints to stderr, so that stdout holds nothing but our own result.

    `env` must hold SP_PROFILE_PROGRESS. With `timeout_s` the command is ended, WorkloadError, when no
    rank finishes a step or writes its trace for that long. Raises UsageError when there is no such
    command, KeyboardInterrupt as `run_job` does.
    """
    progress_dir = Path(env[progress.FOLDER_VARIABLE])
    with interruptible():
        try:
            output = sys.stderr if quiet_stdout else None
            tree = Tree(list(command), env=dict(env), output=output, new_session=False)
        except OSError as error:
            raise UsageError(f"cannot start '{command[0]}': {error.strerror}") from None
        with tree:
            seen: object = None
            moved_at = time.monotonic()
            while tree.process.poll() is None:
                states = progress.read(progress_dir)
                on_progress(states)
                if states != seen:
                    seen, moved_at = states, time.monotonic()
                elif timeout_s is not None and time.monotonic() - moved_at > timeout_s:
                    ranks = ", ".join(str(rank) for rank in sorted(states)) or "none reported"
                    raise WorkloadError(
                        f"the command made no progress for {timeout_s:g} s and was ended (ranks: {ranks})"
                    )
                time.sleep(POLL_S)
            # what a command leaves running on purpose is its own affair
            tree.keep_survivors = True
            code = tree.process.returncode
    return 128 - code if code < 0 else code
