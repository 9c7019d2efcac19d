"""Tasks on an existing Dask cluster (extra `cluster`).

On each of its workers a task runs in a process of its own (`processes.py`): several threads of one worker
do not wait for each other, a task that exceeds its time or its memory ends alone, and the worker's libraries
stay as they are. What the scheduler holds is bounded: a few tasks for each thread that there is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from uuid import uuid4

from sp_profiler import __version__
from sp_profiler.errors import SpProfilerError, UsageError
from sp_profiler.fleet.engines import Done, Failed, Policy, in_words
from sp_profiler.fleet.processes import Processes
from sp_profiler.fleet.work import Work

if TYPE_CHECKING:
    from distributed import Client, Future

Task = TypeVar("Task")
Value = TypeVar("Value")

CONNECT_S = 10.0
"""How long we wait for the scheduler to answer, and then for a first worker."""
_AHEAD = 2  # tasks for each thread: while one runs, the next is there
_LOOK_AGAIN_S = 5.0  # workers come and go
_CONNECTED = "running"
_GOES_ON = "what is finished stays in the work folder, so that the same command goes on from there"
_STATES_OF_LOSS = ("cancelled", "lost")


class ClusterError(SpProfilerError):
    """The cluster cannot be reached, or cannot do our work."""


def scheduler_of(address: str) -> str:
    """The scheduler's address as Dask spells it, for `dask://host:port` (`dask+tls://`: encrypted).

    UsageError for what names no port.
    """
    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(
            f"--engine {address}: expected {scheme}://HOST:PORT, the address of a Dask scheduler"
        )
    return f"{'tls' if scheme == 'dask+tls' else 'tcp'}://{place}"


class Cluster:
    """`dask://host:port`. Connects when it is entered; ClusterError says what is wrong."""

    def __init__(self, address: str, policy: Policy | None = None) -> None:
        self.name = address
        self._scheduler = scheduler_of(address)
        self._policy = policy or Policy()
        self._token = uuid4().hex
        self._client: Client | None = None
        if importlib.util.find_spec("distributed") is None:
            raise UsageError(
                f"--engine {address} needs Dask: pip install 'sp-profiler[cluster]' (the extra 'cluster')"
            )

    def __enter__(self) -> Cluster:
        self._client = _connect(self.name, self._scheduler)
        try:
            _refuse_other_versions(self._client)
        except BaseException:
            self._client.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            if client.status == _CONNECTED:
                client.run(_end_children, self._token, on_error="ignore")
        except (OSError, RuntimeError, TimeoutError):  # the cluster is gone; idle children end by themselves
            pass
        finally:
            client.close(timeout=2)

    @property
    def client(self) -> Client:
        if self._client is None:
            raise ClusterError(f"{self.name} is not connected")
        return self._client

    def check(self, work: Work) -> None:
        """ClusterError when a worker does not see the work folder: its tables would be lost to the others."""
        mark = work.path(f".seen-{self._token}")
        mark.touch()
        try:
            seen = _on_all(self.client, os.path.exists, str(mark))
        finally:
            mark.unlink(missing_ok=True)
        blind = [worker for worker, sees in seen.items() if not sees]
        if blind:
            raise ClusterError(
                f"worker {blind[0]} does not see the work folder {work.root}: name one with --work, at the"
                " same place on all machines"
            )

    def run(
        self, function: Callable[[Task], Value], tasks: Iterable[Task], *, timeout_s: float | None = None
    ) -> Iterator[Done[Task, Value] | Failed[Task]]:
        from distributed import as_completed

        client = self.client
        source = iter(tasks)
        again: deque[_Job[Task]] = deque()
        flying: dict[Future, _Job[Task]] = {}
        ended = as_completed(loop=client.loop, with_results=True, raise_errors=False)
        room = _Room(client, self.name)

        def send(job: _Job[Task]) -> None:
            call = _Call(self._token, function, job.task, timeout_s)
            with self._told():
                future = client.submit(_in_child, call, key=f"sp-profile-{uuid4().hex}", pure=False)
            flying[future] = job
            ended.add(future)

        try:
            while True:
                while len(flying) < room.size():
                    job = again.popleft() if again else _next_job(source)
                    if job is None:
                        break
                    send(job)
                if not flying:
                    return
                future, result = _next_end(ended, room)
                job = flying.pop(future)
                status = str(future.status)
                future.release()
                yield from self._end_of(job, status, result, again)
        finally:
            if flying and client.status == _CONNECTED:
                with contextlib.suppress(OSError, RuntimeError):  # gone meanwhile, and our tasks with it
                    client.cancel(list(flying), force=True)

    def _end_of(
        self, job: _Job[Task], status: str, result: Any, again: deque[_Job[Task]]
    ) -> Iterator[Done[Task, Any] | Failed[Task]]:
        """What has become of a job: its end, or another try."""
        if status in _STATES_OF_LOSS:
            raise ClusterError(f"{self.name} gave up our tasks or is gone; {_GOES_ON}")
        if status == "finished" and isinstance(result, Done):
            yield Done(job.task, result.value)
            return
        reason, error = _why(result)
        job.tries += 1
        if error is None and not _is_final(result) and job.tries < self._policy.tries:
            again.append(job)
        else:
            yield Failed(job.task, reason, job.tries, error)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, TimeoutError, RuntimeError) as error:
            raise ClusterError(f"{self.name} is gone ({in_words(error)}); {_GOES_ON}") from error


@dataclass
class _Job(Generic[Task]):
    task: Task
    tries: int = 0


@dataclass(frozen=True)
class _Call:
    """What travels to a worker. `token`: whose call it is, for a worker may serve several."""

    token: str
    function: Callable[[Any], Any]
    task: Any
    timeout_s: float | None


class _Room:
    """How many tasks the scheduler is given at a time: it holds them, and their results, in memory."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._looked_s = -_LOOK_AGAIN_S
        self._size = 1

    def size(self) -> int:
        """Looks now and then how many threads there are. ClusterError when the scheduler is gone: another one
        in its place would know nothing of our tasks."""
        if self._client.status != _CONNECTED:
            raise ClusterError(f"{self._name} is gone; {_GOES_ON}")
        now = time.monotonic()
        if now - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = now
            try:
                threads = sum(cast(dict[str, int], self._client.nthreads()).values())
            except (OSError, TimeoutError, RuntimeError) as error:
                raise ClusterError(f"{self._name} is gone ({in_words(error)}); {_GOES_ON}") from error
            self._size = max(1, threads) * _AHEAD
        return self._size


def _next_end(ended: Any, room: _Room) -> tuple[Future, Any]:
    """The next future that ended, and its result. Looks now and then whether the cluster is still there."""
    while not ended.has_ready():
        with ended.thread_condition:
            ended.thread_condition.wait(timeout=0.1)
        room.size()
    return next(ended)


def _next_job(source: Iterator[Task]) -> _Job[Task] | None:
    for task in source:
        return _Job(task)
    return None


def _why(result: Any) -> tuple[str, SpProfilerError | None]:
    """Why there is no value, in words, and what the task raised for the user."""
    if isinstance(result, Failed):
        return result.reason, result.error
    error = result[1] if isinstance(result, tuple) else result  # (kind, exception, traceback)
    if type(error).__name__ == "KilledWorker":
        return "the workers that did it died, one after the other", None
    return in_words(error) if isinstance(error, BaseException) else str(error), None


def _is_final(result: Any) -> bool:
    """Dask itself tried it several times: on each of them a worker died."""
    return isinstance(result, tuple) and type(result[1]).__name__ == "KilledWorker"


def _connect(name: str, scheduler: str) -> Client:
    """A client of a cluster that has workers. Its own loggers are silent: we say in a sentence what is."""
    from distributed import Client

    for logger in ("distributed.client", "distributed.comm", "distributed.batched", "distributed.core"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        client = Client(scheduler, timeout=CONNECT_S, set_as_default=False, name="sp-profile")
    except (OSError, ValueError, ImportError) as error:  # a TimeoutError is an OSError
        raise ClusterError(f"no Dask scheduler answers at {name}") from error
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except (OSError, TimeoutError) as error:
        client.close()
        raise ClusterError(f"the Dask cluster at {name} has no workers") from error
    return client


def _on_all(client: Client, function: Callable[..., Value], *arguments: Any) -> dict[str, Value]:
    """What a function returns on each worker, by address."""
    try:
        return cast(dict[str, Value], client.run(function, *arguments))
    except (OSError, RuntimeError) as error:  # a worker left while it was asked
        raise ClusterError(f"workers of the Dask cluster do not answer ({in_words(error)})") from error


def _refuse_other_versions(client: Client) -> None:
    """ClusterError when a worker lacks sp-profiler, or has another one than ours."""

    def version() -> str | None:  # travels as code: a worker without the package cannot import it by name
        try:
            import sp_profiler
        except ImportError:
            return None
        return sp_profiler.__version__

    for worker, found in sorted(_on_all(client, version).items()):
        if found is None:
            raise ClusterError(f"worker {worker} lacks sp-profiler: install {__version__} on all workers")
        if found != __version__:
            raise ClusterError(f"worker {worker} has sp-profiler {found}, not {__version__} as we do")


# --- on the workers ------------------------------------------------------------------------------------

_children: dict[tuple[str, int], Processes] = {}
"""By engine and thread the process that does its tasks."""
_lock = threading.Lock()


def _in_child(call: _Call) -> Done[None, Any] | Failed[None]:
    """One task in this thread's process; its end without the task, which the caller has."""
    key = (call.token, threading.get_ident())
    with _lock:
        child = _children.setdefault(key, Processes(1, Policy(retries=0)))
    (end,) = list(child.run(call.function, [call.task], timeout_s=call.timeout_s))
    return Done(None, end.value) if isinstance(end, Done) else Failed(None, end.reason, 1, end.error)


def _end_children(token: str) -> None:
    with _lock:
        mine = [_children.pop(key) for key in list(_children) if key[0] == token]
    for child in mine:
        child.__exit__()
