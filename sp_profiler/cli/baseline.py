"""`--baseline RUN`: the run, or its report.json, that lends what this one has too few samples of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sp_profiler.errors import InputError, UsageError

if TYPE_CHECKING:
    from sp_profiler.analysis.contention import Baseline
    from sp_profiler.report.model import Report

_HEAD_BYTES = 4096
_SCHEMA = b'"sp-profile/report"'


def load_baseline(path: str) -> Baseline:
    """The GEMM durations of a run (file, folder) or of a report.json.

    Raises UsageError when the path holds several runs, InputError when it holds none that can be used.
    """
    from sp_profiler.analysis.contention import baseline_of

    report = _read_report(Path(path))
    if report is None:
        report = _analyzed(path)
    if not report.contention:
        why = "a CPU run" if report.run.device_type == "cpu" else "no GEMM of known shape"
        raise InputError(f"the baseline {path} tells nothing about contention: {why}")
    return baseline_of(report.contention)


def _read_report(path: Path) -> Report | None:
    """The report that the file holds, None when it is none of ours."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if _SCHEMA not in file.read(_HEAD_BYTES):
            return None
    from sp_profiler.report.json import read_report

    return read_report(path.read_bytes(), str(path))


def _analyzed(path: str) -> Report:
    """The report of the one run that the path holds, over its default windows."""
    from sp_profiler.engine import analyze_files
    from sp_profiler.trace.find import find_runs

    runs = find_runs([path])
    if len(runs) > 1:
        raise UsageError(f"--baseline {path} holds {len(runs)} runs: name one of them")
    return analyze_files(runs[0])
