"""A real gloo run that provokes each cause: it is there on the collective it must be on; never a value."""

from __future__ import annotations

import pytest
from gloo_helpers import run_ranks

from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.engine import analyze_run
from sp_profiler.report.model import Report
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.load import load_run

pytestmark = pytest.mark.gloo


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    out = tmp_path_factory.mktemp("causes")
    run_ranks("causes_gloo_worker", out)
    (run,) = find_runs([str(out)])
    return analyze_run(load_run(run))


def of_module(report: Report, module: str) -> list[CollectiveFigures]:
    """The collective of that name on both ranks."""
    found = [c for c in report.collectives if c.module == module]
    assert [c.rank for c in found] == [0, 1]
    return found


@pytest.mark.parametrize("cause", ["synchronous", "no-partner", "partner-too-short", "queued"])
def test_the_cause_that_was_provoked(report: Report, cause: str) -> None:
    for one in of_module(report, cause):
        assert one.exposed_by_cause_ns is not None
        assert one.exposed_by_cause_ns.get(cause, 0) > 0, one


def test_the_rank_that_sleeps_is_waited_for(report: Report) -> None:
    waiting, sleeper = of_module(report, "peer-skew")
    assert (waiting.exposed_by_cause_ns or {}).get("peer-skew", 0) > 0
    assert waiting.skew_wait_ns
    assert sleeper.skew_wait_ns is not None
    assert sleeper.skew_wait_ns < waiting.skew_wait_ns


def test_a_late_partner_or_one_that_is_too_short(report: Report) -> None:
    """How long the all-reduce lasts beside the GEMMs depends on the machine; what comes before does not."""
    for one in of_module(report, "late-partner"):
        evidence = one.cause_evidence
        assert evidence is not None
        assert evidence.rule == "partner"
        assert evidence.partner_start_ns is not None
        assert evidence.partner_start_ns > one.start_ns
        assert {"late-partner", "partner-too-short"} & set(one.exposed_by_cause_ns or {})


def test_evidence_tells_what_decided(report: Report) -> None:
    for one in of_module(report, "queued"):
        assert one.cause_evidence is not None
        assert one.cause_evidence.queued_behind == "same-group"
    for one in of_module(report, "synchronous"):
        assert one.cause_evidence is not None
        assert one.cause_evidence.rule == "waited-at-once"


def test_parts_sum(report: Report) -> None:
    for one in report.collectives:
        assert sum((one.exposed_by_cause_ns or {}).values()) == one.exposed_share_ns
    assert sum((report.totals.exposed_by_cause_ns or {}).values()) == report.totals.exposed_ns


def test_findings_name_them(report: Report) -> None:
    codes = {finding.code for finding in report.findings}
    assert codes & {"peer-skew", "queued", "no-partner", "partner-too-short"}
    assert "communication-bound" not in codes  # a CPU run
