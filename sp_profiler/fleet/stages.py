"""One stage of the analysis of a fleet: equal tasks on an engine, none of them done twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sp_profiler.errors import SpProfilerError
from sp_profiler.fleet.engines import Done, Engine
from sp_profiler.fleet.work import Work


class Named(Protocol):
    """A task whose name is its own in the run, and a path below the work folder: `match/00012.3`."""

    @property
    def name(self) -> str: ...


Task = TypeVar("Task", bound=Named)
Value = TypeVar("Value")


class StageError(SpProfilerError):
    """A task between ranks was given up. What is finished stays in the work folder."""


class Progress(Protocol):
    """Is told how far a stage is; `total` is 0 where nobody knows yet."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


@dataclass(frozen=True)
class Stages:
    """The stages that follow the survey. `fingerprint`: of everything that their results depend on.

    `function` is a module's own, `tasks` need only tables of the work folder, and `kind` is the type of what
    the function returns, which `work.to_text` must be able to write. A task that an earlier try of the same
    run finished is not done again.
    """

    engine: Engine
    work: Work
    fingerprint: str
    progress: Progress

    def each(
        self, function: Callable[[Task], Value], tasks: Iterable[Task], kind: Any
    ) -> Iterator[tuple[Task, Value]]:
        """Each task with what the function returned for it, as it comes.

        Raises StageError when a task is given up, and what SpProfilerError it raised.
        """
        listed = list(tasks)
        if not listed:
            return
        stage = listed[0].name.partition("/")[0]
        self.progress(stage, 0, len(listed))
        wrapped = (_Once(self.work, self.fingerprint, function, task, kind) for task in listed)
        for done, end in enumerate(self.engine.run(_once, wrapped), start=1):
            self.progress(stage, done, len(listed))
            once: _Once[Task, Value] = end.task
            if isinstance(end, Done):
                yield once.task, end.value
                continue
            if end.error is not None:
                raise end.error
            raise StageError(
                f"{once.task.name} failed ({end.reason}); what is finished stays in {self.work.root}, so that"
                " the same command goes on from there"
            )

    def all(self, function: Callable[[Task], Value], tasks: Sequence[Task], kind: Any) -> list[Value]:
        """What the function returns for each task, in their order. Raises as `each` does."""
        values = {task.name: value for task, value in self.each(function, tasks, kind)}
        return [values[task.name] for task in tasks]


@dataclass(frozen=True)
class _Once(Generic[Task, Value]):
    work: Work
    fingerprint: str
    function: Callable[[Task], Value]
    task: Task
    kind: Any


def _once(one: _Once[Any, Any]) -> Any:
    return one.work.once(one.task.name, one.fingerprint, one.kind, lambda: one.function(one.task))
