"""Tasks in processes of this machine, each with a single thread.

A worker that dies takes only its task with it, and one whose task exceeds its time is killed: the task is
tried again elsewhere. Workers are programs of their own (`worker.py`), not copies of this process, so that
the script which calls us need not be importable; on Linux they end with us even when we are killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sp_profiler.errors import SpProfilerError
from sp_profiler.fleet.engines import Done, Failed, Policy
from sp_profiler.fleet.work import Work
from sp_profiler.fleet.worker import DONE, LENGTH_BYTES, RAISED, READY, STARTED, packed

Task = TypeVar("Task")
Value = TypeVar("Value")

START_S = 120.0
"""What a worker may take to start and to import what its task needs: long on a busy machine."""
_GRACE_S = 2.0
_LONGEST_WAIT_S = 3600.0
_DIED_AT_START = 3  # workers in a row that end before they were ready: something is wrong with all
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
)


@dataclass
class _Job(Generic[Task]):
    task: Task
    tries: int = 0


class _Worker:
    """One process, its pipes, and the job that it does."""

    def __init__(self) -> None:
        task_end, self._tasks = os.pipe()
        self.results, result_end = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sp_profiler.fleet.worker"]
                + [str(number) for number in (task_end, result_end, os.getpid())],
                env=_environment(),
                pass_fds=(task_end, result_end),
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints is no result
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        finally:
            os.close(task_end)
            os.close(result_end)
        os.set_blocking(self.results, False)
        self.is_ready = False
        self.job: _Job[Any] | None = None
        self.deadline = time.monotonic() + START_S
        self.is_started = False
        self._buffer = bytearray()

    def give(self, function: Callable[[Any], Any], job: _Job[Any]) -> None:
        """Send a job. A worker that died meanwhile is noticed at its other pipe."""
        self.job, self.is_started = job, False
        self.deadline = time.monotonic() + START_S
        with contextlib.suppress(BrokenPipeError):
            _write_all(self._tasks, packed((function, job.task)))

    def messages(self) -> tuple[list[tuple[Any, ...]], bool]:
        """What it said since, and whether it can still say something."""
        is_open = True
        with contextlib.suppress(BlockingIOError):
            while True:
                part = os.read(self.results, 1 << 20)
                if not part:
                    is_open = False
                    break
                self._buffer += part
        found: list[tuple[Any, ...]] = []
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "little")
            if len(self._buffer) < end:
                break
            found.append(pickle.loads(self._buffer[LENGTH_BYTES:end]))
            del self._buffer[:end]
        return found, is_open

    def close(self) -> None:
        """Ask it to end: it sees that no task can come any more."""
        with contextlib.suppress(OSError):
            os.close(self._tasks)
        self._tasks = -1

    def end(self, grace_s: float = 0.0) -> int:
        """Wait for its end so long, then kill it; the exit status."""
        try:
            status = self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if self._tasks >= 0:
            self.close()
        if self.results >= 0:
            os.close(self.results)
            self.results = -1
        return status


class Processes:
    """`processes:N`: N workers, started when the first task comes, kept until the engine is left."""

    def __init__(self, workers: int, policy: Policy | None = None) -> None:
        self.name = f"processes:{workers}"
        self._count = workers
        self._policy = policy or Policy()
        self._workers: list[_Worker] = []
        self._ended_at_start = 0

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()
        deadline = time.monotonic() + _GRACE_S
        for worker in self._workers:
            busy = worker.job is not None
            worker.end(0.0 if busy else max(0.0, deadline - time.monotonic()))
        self._workers.clear()

    def check(self, work: Work) -> None:
        """Our workers see what we see."""

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.process.pid for worker in self._workers]

    def run(
        self, function: Callable[[Task], Value], tasks: Iterable[Task], *, timeout_s: float | None = None
    ) -> Iterator[Done[Task, Value] | Failed[Task]]:
        source = iter(tasks)
        again: deque[_Job[Task]] = deque()
        following = _next_job(source)
        try:
            while following is not None or again or any(worker.job for worker in self._workers):
                for worker in self._free(waiting=len(again) + (following is not None)):
                    if again:
                        worker.give(function, again.popleft())
                    elif following is not None:
                        worker.give(function, following)
                        following = _next_job(source)
                for worker in self._heard_of():
                    yield from self._ended(worker, again, timeout_s)
        finally:
            for worker in [one for one in self._workers if one.job is not None]:
                self._drop(worker)  # nobody waits for its result any more

    def _free(self, waiting: int) -> list[_Worker]:
        """Workers that can take a job; new ones are started as long as there are jobs for them."""
        for worker in [one for one in self._workers if one.job is None and one.process.poll() is not None]:
            if worker.is_ready:  # it had nothing to do for long
                self._drop(worker)
        idle = sum(worker.job is None for worker in self._workers)
        for _ in range(min(self._count - len(self._workers), waiting - idle)):
            self._workers.append(_Worker())
        return [worker for worker in self._workers if worker.is_ready and worker.job is None]

    def _heard_of(self) -> list[_Worker]:
        """Workers that said something, or ended, or whose time is over; waits for the first."""
        watched = [worker for worker in self._workers if worker.job is not None or not worker.is_ready]
        with selectors.DefaultSelector() as selector:
            for worker in watched:
                selector.register(worker.results, selectors.EVENT_READ, worker)
            nearest = min((worker.deadline for worker in watched), default=0.0)
            wait_s = max(0.0, nearest - time.monotonic())
            heard = [key.data for key, _ in selector.select(min(wait_s, _LONGEST_WAIT_S))]
        now = time.monotonic()
        return heard + [worker for worker in watched if worker not in heard and worker.deadline <= now]

    def _ended(
        self, worker: _Worker, again: deque[_Job[Any]], timeout_s: float | None
    ) -> Iterator[Done[Any, Any] | Failed[Any]]:
        """The ends of tasks that a worker's messages, its death, or its silence mean."""
        found, is_open = worker.messages()
        for kind, *rest in found:
            if kind == READY:
                worker.is_ready, self._ended_at_start = True, 0
            elif kind == STARTED:
                worker.is_started = True
                worker.deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
            elif worker.job is not None:
                job, worker.job = worker.job, None
                if kind == DONE:
                    yield Done(job.task, rest[0])
                elif kind == RAISED:
                    yield from self._again(job, again, rest[0], rest[1])
        is_late = worker.deadline <= time.monotonic() and (worker.job is not None or not worker.is_ready)
        if is_open and not is_late:
            return
        job, was_ready, was_started = worker.job, worker.is_ready, worker.is_started
        status = self._drop(worker)
        if not was_ready:
            self._count_start(status)
        if job is not None:
            reason = _how_it_ended(status) if not is_open else _too_slow(timeout_s if was_started else None)
            yield from self._again(job, again, reason, None)

    def _again(
        self, job: _Job[Any], again: deque[_Job[Any]], reason: str, error: SpProfilerError | None
    ) -> Iterator[Failed[Any]]:
        """Try a job again, or give it up."""
        job.tries += 1
        if error is None and job.tries < self._policy.tries:
            again.append(job)
        else:
            yield Failed(job.task, reason, job.tries, error)

    def _drop(self, worker: _Worker) -> int:
        """End a worker at once; the next one is started when there is work for it."""
        self._workers.remove(worker)
        worker.process.kill()
        return worker.end()

    def _count_start(self, status: int) -> None:
        self._ended_at_start += 1
        if self._ended_at_start >= _DIED_AT_START:
            raise SpProfilerError(f"worker processes end before they begin: the last {_how_it_ended(status)}")


def _next_job(source: Iterator[Task]) -> _Job[Task] | None:
    for task in source:
        return _Job(task)
    return None


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"its process ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    more = ", as the system does when memory runs out" if -status == signal.SIGKILL else ""
    return f"its process was killed by {name}{more}"


def _too_slow(timeout_s: float | None) -> str:
    if timeout_s is None:
        return f"its process did not begin within {START_S:g} s"
    return f"it took longer than {timeout_s:g} s"


def _environment() -> dict[str, str]:
    """Ours, with our module path, and one thread for whatever counts cores."""
    path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    return os.environ | dict.fromkeys(_ONE_THREAD, "1") | {"PYTHONPATH": path}


def _write_all(number: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(number, left) :]
