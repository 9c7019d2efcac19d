"""Options for runs too large for one process, and the bar over the stages of their analysis."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sp_profiler.cli.progress import Bar
from sp_profiler.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from sp_profiler.analysis.contention import Baseline
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.fleet.run import Options
    from sp_profiler.ledger import LedgerEntry
    from sp_profiler.report.model import Report
    from sp_profiler.trace.tables import RunFiles

_LINE_EVERY_S = 10.0
"""In a pipe a line is written no more often: of a run that takes a moment none is."""

_WORDS = {
    "survey": "reading traces",
    "numbered": "reading traces of unknown rank",
    "draw": "drawing a step",
    "match": "matching collectives",
    "clocks": "aligning clocks",
    "waits": "who waited for whom",
    "contention": "comparing GEMMs",
    "settle": "settling ranks",
    "merge": "merging ranks",
}


def add_fleet(parser: argparse.ArgumentParser) -> None:
    """`--engine` and what goes with it."""
    group = parser.add_argument_group("runs of many ranks")
    group.add_argument(
        "--engine",
        metavar="ENGINE",
        help="analyse each rank as a task of its own, tables in a work folder: in-process, processes[:N], or "
        "dask://HOST:PORT (extra 'cluster'); the same command goes on where it was interrupted",
    )
    group.add_argument(
        "--work",
        metavar="DIR",
        help="the work folder, on a file system that all workers see (default: in the user's cache folder)",
    )
    group.add_argument(
        "--retries",
        type=int,
        metavar="N",
        help="how often a trace is tried again before it is left out and listed (default 1)",
    )
    group.add_argument(
        "--task-timeout", type=float, metavar="S", help="seconds that one trace may take (default: no limit)"
    )


def fleet_options(args: argparse.Namespace) -> Options | None:
    """What `add_fleet`'s options spell; None without `--engine`. UsageError when they cannot be meant."""
    given = {
        "--work": args.work is not None,
        "--retries": args.retries is not None,
        "--task-timeout": args.task_timeout is not None,
    }
    if args.engine is None:
        for flag, is_given in given.items():
            if is_given:
                raise UsageError(f"{flag} goes with --engine")
        return None
    if args.retries is not None and args.retries < 0:
        raise UsageError(f"--retries {args.retries}: expected 0 or more")
    if args.task_timeout is not None and not args.task_timeout > 0:
        raise UsageError(f"--task-timeout {args.task_timeout:g}: expected seconds, more than 0")
    if args.engine == "in-process" and args.task_timeout is not None:
        raise UsageError("--task-timeout needs processes that can be ended: --engine processes or dask://")
    from sp_profiler.fleet.run import Options

    retries = 1 if args.retries is None else args.retries
    return Options(args.engine, args.work, retries, args.task_timeout)


def analyzed(
    files: RunFiles,
    window: WindowRule,
    options: Options,
    *,
    baseline: Baseline | None,
    on_loaded: Callable[[Sequence[LedgerEntry]], None] | None,
    limits: Any,
    decode: Any,
) -> Report:
    """`fleet.run.analyze_fleet` with the bar; SIGTERM ends it as Ctrl-C does."""
    from sp_profiler.fleet.run import analyze_fleet
    from sp_profiler.record.processes import interruptible
    from sp_profiler.trace.cache import decode_cached

    with interruptible(), StagesShown() as shown:
        return analyze_fleet(
            files,
            window,
            options,
            baseline=baseline,
            limits=limits,
            cached=decode is decode_cached,
            progress=shown.update,
            on_loaded=on_loaded,
        )


class StagesShown(Bar):
    """How far the stages are, on stderr: a bar on a terminal, now and then a line in a pipe."""

    def __init__(self) -> None:
        super().__init__(_columns)
        self._task: Any = None
        self._stage = ""
        self._told_s = time.monotonic()

    def update(self, stage: str, done: int, total: int) -> None:
        """So many tasks of a stage are done (`fleet.stages.Progress`)."""
        words = _WORDS.get(stage, stage)
        if self._bar is not None:
            if stage != self._stage:
                if self._task is not None:
                    self._bar.remove_task(self._task)
                self._task = self._bar.add_task(words, total=total)
                self._stage = stage
            self._bar.update(self._task, completed=done, total=total)
        elif time.monotonic() - self._told_s >= _LINE_EVERY_S:
            self._told_s = time.monotonic()
            print(f"sp-profile analyze: {words}, {done} of {total}", file=sys.stderr, flush=True)


def _columns() -> Sequence[ProgressColumn]:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    return TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
