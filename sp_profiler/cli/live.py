"""What `run` shows while it works: a bar on a terminal, nothing in a pipe. All of it on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from sp_profiler.record import progress
from sp_profiler.record.launch import OnProgress

WORDS = {"starting": "starting", "steps": "training", "writing": "writing traces", "written": "ending"}


class Live:
    """A context manager; `bar=False` (the screen belongs to somebody else) shows sentences only."""

    def __init__(self, *, bar: bool = True) -> None:
        self._console = Console(stderr=True)
        self._bar = bar and self._console.is_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[phase]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._bar,
        )

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, sentence: str) -> None:
        """A sentence that stays, warnings for example."""
        if self._bar:
            self._progress.console.print(f"sp-profile: {sentence}", markup=False, highlight=False)
        else:
            print(f"sp-profile: {sentence}", file=sys.stderr, flush=True)

    @contextmanager
    def task(self, label: str, ranks: int, steps: int) -> Iterator[OnProgress]:
        """Shows one run; the value is to be called with what the ranks say."""
        task = self._progress.add_task(label, total=steps, phase="starting")

        def update(states: dict[int, progress.Progress]) -> None:
            done = progress.slowest(states, range(ranks))
            behind = min(states.values(), key=lambda s: (s.ended, s.steps), default=None)
            phase = WORDS.get(behind.phase, "ending") if behind is not None else "starting"
            self._progress.update(task, completed=done, phase=phase)

        yield update
        self._progress.update(task, completed=steps, phase="analysing")
