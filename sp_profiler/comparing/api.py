"""`sp_profiler.compare`: two runs, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sp_profiler.comparing.model import Comparison
from sp_profiler.report.model import Report

Source = str | os.PathLike[str]


def compare(base: Report | Source | Sequence[Source], here: Report | Source | Sequence[Source]) -> Comparison:
    """What changed from `base` to `here`: what `sp-profile compare` shows, as plain data.

    Each is a report (of `analyze`), a run's folder, traces, or a report.json. Times are ns, means per step
    and rank; `comparison.summary` says it in sentences, `is_different` whether anything changed beyond noise
    (None: the noise is not known). Raises InputError for a run that cannot be read, UsageError for a path
    that holds several.
    """
    from sp_profiler.cli.reports import report_of_source
    from sp_profiler.comparing.compare import compare as compared

    return compared(report_of_source(base), report_of_source(here))
