"""Where the tasks of an analysis run: in this process, in processes of this machine, or on a Dask cluster.

A task is one call of a pure function that a worker can import, with one small argument; what it returns is
small too, for tables lie in the work folder (`work.py`). Every engine yields each task's end exactly once, in
whatever order they end, and takes tasks from the iterable only as workers become free: neither the tasks nor
the results of a run are ever all in memory here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from sp_profiler.cores import usable_cores
from sp_profiler.errors import SpProfilerError, UsageError

if TYPE_CHECKING:
    from sp_profiler.fleet.work import Work

Task = TypeVar("Task")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Policy:
    """How often a task is tried again when it raises, its worker dies, or it exceeds its time."""

    retries: int = 1

    @property
    def tries(self) -> int:
        return 1 + self.retries


@dataclass(frozen=True)
class Done(Generic[Task, Value]):
    """What a task returned."""

    task: Task
    value: Value


@dataclass(frozen=True)
class Failed(Generic[Task]):
    """A task that was given up: it raised, its worker died, or it took longer than its limit, every time.

    `error` is what it raised where that is told to the user as it is (such a task is not tried again);
    `reason` says in words what happened, for the ledger.
    """

    task: Task
    reason: str
    tries: int = 1
    error: SpProfilerError | None = None


class Engine(Protocol):
    """Runs tasks. A context manager: at its end no process or connection of its own is left."""

    @property
    def name(self) -> str:
        """As `--engine` spells it."""
        ...

    def check(self, work: Work) -> None:
        """Raise a SpProfilerError when a worker does not see the work folder."""
        ...

    def run(
        self, function: Callable[[Task], Value], tasks: Iterable[Task], *, timeout_s: float | None = None
    ) -> Iterator[Done[Task, Value] | Failed[Task]]:
        """The end of each task as it comes. `function` is a module's own function (importable by name);
        a `SpProfilerError` that it raises is no reason to try again. `timeout_s`: what one try may take."""
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


def engine_of(words: str, policy: Policy | None = None) -> Engine:
    """The engine that `--engine` names. UsageError for an unknown one, or when what it needs is missing."""
    if words == InProcess.name:
        return InProcess(policy)
    kind, colon, rest = words.partition(":")
    if kind == "processes" and (not colon or (rest.isdecimal() and int(rest) > 0)):
        from sp_profiler.fleet.processes import Processes

        return Processes(int(rest) if colon else usable_cores(), policy)
    if kind in ("dask", "dask+tls"):
        from sp_profiler.fleet.cluster import Cluster

        return Cluster(words, policy)
    raise UsageError(f"--engine {words}: expected in-process, processes, processes:N or dask://HOST:PORT")


class InProcess:
    """One task after the other, here: nobody is left to enforce a limit of time."""

    name = "in-process"

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or Policy()

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def check(self, work: Work) -> None:
        return

    def run(
        self, function: Callable[[Task], Value], tasks: Iterable[Task], *, timeout_s: float | None = None
    ) -> Iterator[Done[Task, Value] | Failed[Task]]:
        for task in tasks:
            yield self._tried(function, task)

    def _tried(self, function: Callable[[Task], Value], task: Task) -> Done[Task, Value] | Failed[Task]:
        reason = ""
        for _ in range(self._policy.tries):
            try:
                return Done(task, function(task))
            except SpProfilerError as error:
                return Failed(task, str(error), error=error)
            except Exception as error:  # noqa: BLE001 - whatever one trace makes us do, the others go on
                reason = in_words(error)
        return Failed(task, reason, self._policy.tries)


def in_words(error: BaseException) -> str:
    """An exception on one line: its kind and what it says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
