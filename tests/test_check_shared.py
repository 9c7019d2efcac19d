"""Budgets on real traces and cases: every figure is what the report's own numbers give, or unknown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import SHARED
from jsonschema import Draft202012Validator

import sp_profiler
from sp_profiler.checking import json as check_json
from sp_profiler.checking import junit, markdown
from sp_profiler.checking.budgets import Budgets
from sp_profiler.checking.figures import FIGURES
from sp_profiler.checking.parts import PART_MAPS, SCOPES
from sp_profiler.checking.result import RunCheck
from sp_profiler.checking.runs import check_of
from sp_profiler.report import json as report_json
from sp_profiler.report.model import Report

NAMES = sorted(
    path.relative_to(SHARED).as_posix()
    for folder in ("cases", "corpus")
    for path in (SHARED / folder).glob("*")
    if path.is_dir() and path.name not in ("malformed", "licences")
)
EXAMPLE = Path(__file__).resolve().parent.parent / "traces" / "demo" / "tp-async"


def everything(report: Report, scope: str) -> RunCheck:
    """All figures and parts with limits that nothing keeps, and the run against itself."""
    limits = {
        one.option.replace("-", "_"): 0 if one.worse == "higher" else 1 if one.unit == "ratio" else 10**9
        for one in FIGURES.values()
    }
    parts = {kind: {"*": {"max_exposed_ms": 0}} for kind in PART_MAPS}
    return sp_profiler.check(
        report, baseline=report, scope=scope, fail_on="info", max_ledger={"note": 0}, **limits, **parts
    )


def ratio(part: Any, whole: Any) -> float | None:
    return None if part is None or not whole else part / whole


def expected(plain: dict[str, Any]) -> dict[str, float | None]:
    """The figures of the whole run from the JSON of its report, by the definitions in docs/check.md."""
    totals = plain["totals"]
    windows = len(plain["steps"]) or 1
    dgrad = totals["hiding_by_purpose"].get("dgrad", {})
    waits = [(g["skew_wait_ns"], g["comm_ns"]) for g in plain["groups"] if g["skew_wait_ns"] is not None]
    known = [value for value in plain["coverage"].values() if value is not None]
    return {
        "exposed-ratio": ratio(totals["exposed_ns"], totals["window_ns"]),
        "exposed-ms": ratio(totals["exposed_ns"], windows),
        "step-ms": ratio(totals["window_ns"], windows),
        "idle-ratio": ratio(totals["idle_ns"], totals["window_ns"]),
        "overlap-ratio": totals["overlap_ratio"],
        "hidden-of-hideable": totals["hidden_of_hideable"],
        "wgrad-hidden": dgrad.get("hidden_of_hideable"),
        "skew-ratio": ratio(sum(w for w, _ in waits), sum(c for _, c in waits)) if waits else None,
        "coverage": min(known) if known else None,
    }


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_the_report(name: str) -> None:
    check_all(sp_profiler.analyze(SHARED / name))


def test_figures_are_those_of_the_report_of_a_shipped_trace() -> None:
    check_all(sp_profiler.analyze(EXAMPLE))


def check_all(report: Report) -> None:
    plain = json.loads(report_json.render(report))
    found = {one.budget: one for one in everything(report, "total").verdicts}
    for name, value in expected(plain).items():
        one = found[FIGURES[name].option]
        assert one.value == (None if value is None else pytest.approx(value)), name
        assert (one.state == "unknown") == (value is None)
        assert (one.state == "holds") == (value == (0 if one.bound == "max" else 1))
    for scope in SCOPES:
        run = everything(report, scope)
        for one in run.verdicts:
            assert one.text.endswith((".", "]"))
            assert one.bound != "no-worse" or one.state in ("holds", "skipped", "unknown")
            assert one.value is not None or one.state in ("unknown", "skipped")
        whole = check_of([run], Budgets())
        Draft202012Validator(check_json.schema()).validate(json.loads(check_json.render(whole)))
        assert junit.render(whole, datetime.now(UTC))
        assert markdown.render(whole)
