"""sp-profiler: is the communication of parallel training hidden, behind which GEMM, what stays exposed?

`load` and `analyze` read traces, `memory` snapshots too; `capture` and `annotate` belong in a training
script; `plan` tells what schemes would keep, send and take at any size, `plan_long_context` how to divide a
long sequence; `sweep` measures every combination of schemes and sizes; `check` holds a run to budgets,
`compare` tells what changed between two. Nothing heavy is imported before it is used: `import sp_profiler`
needs neither torch nor polars.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "analyze",
    "annotate",
    "capture",
    "check",
    "compare",
    "export_perfetto",
    "load",
    "memory",
    "plan",
    "plan_long_context",
    "sweep",
]

if TYPE_CHECKING:
    from pathlib import Path

    from sp_profiler.analysis.memory.results import Memory
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.checking.api import check
    from sp_profiler.comparing.api import compare
    from sp_profiler.planning.api import plan, plan_long_context
    from sp_profiler.record.annotate import annotate
    from sp_profiler.record.capture import capture
    from sp_profiler.report.model import Report
    from sp_profiler.sweeps.api import sweep
    from sp_profiler.trace.tables import RunFiles, TraceSet

Source = str | os.PathLike[str]


def load(path: Source | Sequence[Source]) -> TraceSet:
    """Read the traces of one run: a file, a folder, a glob, a URL of one, or several files.

    Raises InputError, naming the file, when nothing usable is there, and UsageError when `path` holds
    several runs (load them one by one).
    """
    from sp_profiler.trace.load import load_run

    return load_run(_one_run(path))


def _one_run(path: Source | Sequence[Source]) -> RunFiles:
    """The files of the one run in `path`; errors as `load` tells."""
    from sp_profiler.trace.find import find_runs

    paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    runs = find_runs([os.fspath(one) for one in paths])
    _refuse_several(paths, [run.name for run in runs])
    return runs[0]


def _refuse_several(paths: Sequence[Source], names: Sequence[str]) -> None:
    from sp_profiler.errors import UsageError
    from sp_profiler.trace.remote import as_remote

    if len(names) > 1:
        first = as_remote(os.fspath(paths[0]))
        raise UsageError(f"{first} holds {len(names)} runs ({', '.join(names)}): load one of them")


def analyze(
    source: TraceSet | Source | Sequence[Source],
    *,
    window: str = "step",
    steps: tuple[int, int] | None = None,
    engine: str | None = None,
    work: Source | None = None,
    retries: int = 1,
    task_timeout_s: float | None = None,
) -> Report:
    """Measure a run: what `sp-profile analyze` reports, as plain dataclasses.

    `window` is "step" (every profiled step) or "trace" (first to last activity); `steps` chooses
    profiled steps, half-open. Times are int nanoseconds, sizes bytes. Errors are those of `load`;
    UsageError when no chosen step is in the traces.

    `engine` is for runs too large for one process: "in-process", "processes", "processes:8" or
    "dask://host:port" (extra `cluster`), each rank a task, tables in the folder `work` (None: in the user's
    cache folder). A trace that fails `1 + retries` times, or takes longer than `task_timeout_s` each time, is
    left out and listed in `data_quality`; what an earlier call finished is not done again. UsageError for an
    engine or a work folder that cannot be used; SpProfilerError for a cluster that cannot.
    """
    from sp_profiler.engine import analyze_files, analyze_run
    from sp_profiler.errors import UsageError
    from sp_profiler.trace.tables import TraceSet

    rule = _window_rule(window, steps)
    if engine is not None:
        from sp_profiler.fleet.run import Options, analyze_fleet

        if isinstance(source, TraceSet):
            raise UsageError("an engine reads traces from files: name them instead of giving what was loaded")
        place = None if work is None else os.fspath(work)
        return analyze_fleet(_one_run(source), rule, Options(engine, place, retries, task_timeout_s))
    if isinstance(source, TraceSet):
        return analyze_run(source, rule)
    return analyze_files(_one_run(source), rule)


def _window_rule(window: str, steps: tuple[int, int] | None) -> WindowRule:
    """The rule that the two spell; UsageError for what cannot be meant."""
    from sp_profiler.analysis.steps import WindowRule
    from sp_profiler.errors import UsageError

    if window == "step":
        return WindowRule(rule="step", steps=steps)
    if window == "trace" and steps is None:
        return WindowRule(rule="trace")
    raise UsageError(f"window is 'step', or 'trace' without steps, not {window!r} with steps {steps!r}")


def export_perfetto(
    source: Source | Sequence[Source],
    out: Source,
    *,
    window: str = "step",
    steps: tuple[int, int] | None = None,
    force: bool = False,
) -> list[Path]:
    """Write the traces of a run with tracks of what was found in them: what `sp-profile export` writes.

    `out` is the file for a single trace, else a folder; `window` and `steps` as `analyze` takes them. Returns
    the files, in order of ranks. Errors are those of `analyze`; UsageError too where a file exists (unless
    `force`), is one that is read, or cannot be written.
    """
    from sp_profiler.export.perfetto import export_run
    from sp_profiler.export.places import places_of

    files = _one_run(source)
    (places,) = places_of([files], os.fspath(out), force=force)
    return list(export_run(files, places, _window_rule(window, steps)).files.values())


def memory(source: Source | Sequence[Source]) -> Memory | None:
    """Who held the memory: what `sp-profile memory` shows of one run's traces, CUDA memory snapshots or both.

    Sizes are bytes, times int nanoseconds. None where no file tells of memory (`sp-profile memory` says why).
    Errors are those of `load`; InputError too for a snapshot that is damaged or asks for code.
    """
    from sp_profiler.engine import analyze_files
    from sp_profiler.snapshot.find import find_sources
    from sp_profiler.snapshot.section import section_of

    paths = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    found = find_sources([os.fspath(one) for one in paths])
    _refuse_several(paths, [one.name for one in found])
    return section_of(found[0], analyze_files).memory


def __getattr__(name: str) -> object:
    if name == "annotate":
        from sp_profiler.record.annotate import annotate

        return annotate
    if name == "capture":
        from sp_profiler.record.capture import capture

        return capture
    if name == "check":
        from sp_profiler.checking.api import check

        return check
    if name == "compare":
        from sp_profiler.comparing.api import compare

        return compare
    if name == "plan":
        from sp_profiler.planning.api import plan

        return plan
    if name == "plan_long_context":
        from sp_profiler.planning.api import plan_long_context

        return plan_long_context
    if name == "sweep":
        from sp_profiler.sweeps.api import sweep

        return sweep
    raise AttributeError(f"module 'sp_profiler' has no attribute '{name}'")
