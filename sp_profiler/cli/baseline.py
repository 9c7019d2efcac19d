"""`--baseline RUN`: the run, or its report.json, that lends what this one has too few samples of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sp_profiler.cli.reports import read_file, report_file
from sp_profiler.errors import InputError, UsageError

if TYPE_CHECKING:
    from sp_profiler.analysis.contention import Baseline
    from sp_profiler.report.model import Report


def load_baseline(path: str) -> Baseline:
    """The GEMM durations of a run (file, folder) or of a report.json.

    Raises UsageError when the path holds several runs, InputError when it holds none that can be used.
    """
    from sp_profiler.analysis.contention import baseline_of

    file = report_file(path)
    report = _analyzed(path) if file is None else read_file(file)
    if not report.contention:
        why = "a CPU run" if report.run.device_type == "cpu" else "no GEMM of known shape"
        raise InputError(f"the baseline {path} tells nothing about contention: {why}")
    return baseline_of(report.contention)


def _analyzed(path: str) -> Report:
    """The report of the one run that the path holds, over its default windows."""
    from sp_profiler.engine import analyze_files
    from sp_profiler.trace.find import find_runs

    runs = find_runs([path])
    if len(runs) > 1:
        raise UsageError(f"--baseline {path} holds {len(runs)} runs: name one of them")
    return analyze_files(runs[0])
