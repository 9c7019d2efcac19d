"""`sp_profiler.check`: a run against its budgets, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sp_profiler.checking.asked import Asked
from sp_profiler.checking.config import found_config, named_config, settings_of
from sp_profiler.checking.result import RunCheck
from sp_profiler.checking.settings import Settings, budgets_of, joined
from sp_profiler.report.model import Report

Source = str | os.PathLike[str]


def check(
    source: Report | Source | Sequence[Source],
    *,
    baseline: Report | Source | None = None,
    compare: Sequence[str] | None = None,
    noise: bool = True,
    config: Source | bool | None = False,
    **budgets: Any,
) -> RunCheck:
    """Judge one run: what `sp-profile check` does, as plain data. It holds where `.holds` is true.

    `source`, `baseline`: a report (of `analyze`), a run's folder, traces, or a report.json. `budgets`: the
    keys of `[tool.sp_profile.check]` with underscores: `max_exposed_ratio=0.2`, `min_wgrad_hidden=0.8`,
    `max_memory_gib=70`, `tolerance="5%"`, `max_ledger={"loss": 0}`, `fail_on=["warning"]`,
    `purpose={"dgrad": {"max_exposed_ms": 1.5}}`, `budgets=[{"figure": "totals.exposed_ns", "max": "3 ms"}]`.
    `compare`: which figures to compare with the baseline in place of the usual ones; `noise=False` counts a
    regression also within the spread of the steps. `config`: a TOML file with more of them; True looks for
    the nearest pyproject.toml that has some.

    Raises UsageError for budgets that cannot be meant and where there are none, InputError for a run or
    a baseline that cannot be read.
    """
    from sp_profiler.checking.runs import check_run

    given = dict(budgets)
    if baseline is not None and not isinstance(baseline, Report):
        given["baseline"] = os.fspath(baseline)
    asked = Asked("check", lambda key: key, Path()).settings(given)
    if isinstance(baseline, Report):
        asked = asked.with_(baseline=baseline.run.path)
    asked = asked.with_(compared=None if compare is None else list(compare))
    asked = asked.with_(
        compared_origin="baseline" if compare is None else "compare", use_noise=None if noise else False
    )
    whole = budgets_of(joined(settings_from(config), asked))
    other = baseline if isinstance(baseline, Report) else _read(whole.baseline)
    return check_run(_report(source), whole, other)


def settings_from(config: Source | bool | None) -> Settings | None:
    """What a file asks: the one that is named, with True the one that is found; None without either."""
    if config is None or config is False:
        return None
    if config is True:
        found = found_config(Path.cwd())
        return None if found is None else settings_of(found[1], found[0])
    file = Path(config)
    return settings_of(named_config(file), file)


def _read(path: str | None) -> Report | None:
    return None if path is None else _report(path)


def _report(source: Report | Source | Sequence[Source]) -> Report:
    from sp_profiler.cli.reports import report_of_source

    return report_of_source(source)
