"""Findings: each has evidence, and none advises a setting that is already set."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from report_helpers import make_report

from sp_profiler.analysis.results import CauseEvidence
from sp_profiler.report.findings import RULES, Facts, findings
from sp_profiler.report.findings import facts as facts_module
from sp_profiler.report.model import Finding, Report, windows_of

NAME = "CUDA_DEVICE_MAX_CONNECTIONS"
TIMING = "TORCH_NCCL_ENABLE_TIMING"


def facts(
    report: Report, environment: dict[str, Any] | None = None, *, cpu: bool = False, major: int | None = 9
) -> Facts:
    return Facts(
        report.totals,
        report.collectives,
        windows_of(report),
        cpu,
        report.run.workload,
        environment,
        major,
    )


def codes(found: Facts) -> set[str]:
    """The findings besides the verdict that the drawn report is communication-bound, which it is."""
    return {finding.code for finding in findings(found)} - {"communication-bound"}


def only(found: Facts) -> Finding:
    (one,) = [finding for finding in findings(found) if finding.code != "communication-bound"]
    return one


def half_hidden() -> Report:
    """An asynchronous TP run that hides half of what it could."""
    report = make_report()
    hideable = report.totals.partner_hideable_ns
    assert hideable
    totals = replace(report.totals, partner_hidden_ns=hideable // 2, hidden_of_hideable=0.5)
    return replace(report, totals=totals)


def test_synchronous_collectives_with_a_partner() -> None:
    report = make_report(comm="sync", ranks=2)
    finding = only(facts(report))
    assert finding.code == "synchronous-with-partner"
    # 2 layers x 3 steps x 2 ranks; 2 ms of wgrad each on rank 0, 1.95 on rank 1
    assert finding.evidence["collectives"] == 12
    assert finding.evidence["hideable_ns"] == 6 * 2_000_000 + 6 * 1_950_000
    assert finding.evidence["hidden_ns"] == 0
    assert finding.evidence["ops"] == ["all-reduce"]
    assert finding.evidence["ranks"] == [0, 1]
    ids = {c.id for c in report.collectives if c.partner}
    assert set(finding.evidence["longest_collective_ids"]) <= ids
    assert "up to 3.95 ms of communication per step" in finding.text
    assert finding.advice
    assert "--comm async" in finding.advice


def test_asynchronous_collectives_are_not_told_to_become_so() -> None:
    assert "synchronous-with-partner" not in codes(facts(make_report(comm="async")))


def test_comm_async_is_not_advised_where_it_is_set() -> None:
    report = make_report(comm="sync")
    workload = {**(report.run.workload or {}), "comm": "async"}
    found = findings(facts(replace(report, run=replace(report.run, workload=workload))))
    assert {f.code for f in found} - {"communication-bound"} == {
        "synchronous-with-partner",
        "async-without-overlap",
    }
    assert not any("--comm async" in (f.advice or "") for f in found)


@pytest.mark.parametrize("value", [None, "8", "32"])
def test_one_queue_is_advised_where_it_is_missing(value: str | None) -> None:
    finding = only(facts(half_hidden(), {NAME: value}))
    assert finding.code == "cuda-device-max-connections"
    assert finding.evidence[NAME] == (value or "not set")
    assert finding.evidence["compute_capability_major"] == 9


@pytest.mark.parametrize(
    ("environment", "change"),
    [
        ({NAME: "1"}, {}),  # set already
        (None, {}),  # nothing tells the environment
        ({}, {}),  # nothing tells this variable
        ({NAME: None}, {"major": 10}),  # Blackwell
        ({NAME: None}, {"major": None}),  # nobody knows the device
        ({NAME: None}, {"cpu": True}),
    ],
)
def test_one_queue_is_not_advised(environment: dict[str, Any] | None, change: dict[str, Any]) -> None:
    assert codes(facts(half_hidden(), environment, **change)) == set()


def test_one_queue_is_not_advised_where_all_is_hidden_or_synchronous() -> None:
    assert codes(facts(make_report(comm="async"), {NAME: None})) == set()
    assert "cuda-device-max-connections" not in codes(facts(make_report(comm="sync"), {NAME: None}))


def test_one_queue_hurts_data_parallel() -> None:
    report = make_report(mode="ddp")
    totals = replace(report.totals, exposed_by_purpose_ns={"param-grad": 6_000_000})
    report = replace(report, totals=totals)
    finding = only(facts(report, {NAME: "1"}))
    assert finding.code == "cuda-device-max-connections-data-parallel"
    assert finding.evidence["exposed_param_grad_ns"] == 6_000_000
    assert codes(facts(report, {NAME: None})) == set()


@pytest.mark.parametrize("value", ["1", "true"])
def test_timing_events_with_one_queue(value: str) -> None:
    assert codes(facts(make_report(), {NAME: "1", TIMING: value})) == {"nccl-timing-with-one-queue"}


@pytest.mark.parametrize(
    "environment",
    [{NAME: "1", TIMING: None}, {NAME: "1", TIMING: "0"}, {NAME: None, TIMING: "1"}, {NAME: "1"}],
)
def test_no_timing_finding(environment: dict[str, Any]) -> None:
    assert "nccl-timing-with-one-queue" not in codes(facts(make_report(), environment))


def test_async_without_overlap() -> None:
    report = make_report(comm="async")
    totals = replace(report.totals, overlapped_ns=0)
    found = {f.code: f for f in findings(facts(replace(report, totals=totals)))}
    evidence = found["async-without-overlap"].evidence
    assert evidence["asynchronous_collectives"] == 12
    assert evidence["collectives"] == 24


@pytest.mark.parametrize("comm", ["async", "sync"])
def test_a_group_of_one_rank_has_nothing_to_hide(comm: str) -> None:
    report = make_report(comm=comm)
    alone = [replace(one, group="tp[0]", ranks=[0]) for one in report.collectives]
    totals = replace(report.totals, overlapped_ns=0)
    assert codes(facts(replace(report, totals=totals, collectives=alone))) == set()


def test_every_finding_has_evidence_and_advises_nothing_that_is_set() -> None:
    seen: set[str] = set()
    for comm, mode, connections, timing, cpu, major in product(
        ("sync", "async"),
        ("tp", "sp", "ddp"),
        (None, "1", "8"),
        (None, "0", "1"),
        (False, True),
        (8, 9, 10, None),
    ):
        for report in (make_report(comm=comm, mode=mode, ranks=1, steps=1), half_hidden()):
            environment = {NAME: connections, TIMING: timing}
            for finding in findings(facts(report, environment, cpu=cpu, major=major)):
                seen.add(finding.code)
                assert finding.evidence
                assert None not in finding.evidence.values()
                assert "None" not in finding.text
                advice = finding.advice or ""
                assert not (f"{NAME}=1" in advice and connections == "1")
                assert not (f"Unset {TIMING}" in advice and timing != "1")
                assert not ("--comm async" in advice and (report.run.workload or {})["comm"] == "async")
    assert {"synchronous-with-partner", "cuda-device-max-connections", "nccl-timing-with-one-queue"} <= seen


def test_a_finding_without_evidence_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="lacks evidence"):
        facts_module.finding("x", "info", "text", {}, "advice")
    with pytest.raises(ValueError, match="lacks evidence"):
        facts_module.finding("x", "info", "text", {"number": None}, "advice")


def test_no_rules_fire_without_communication() -> None:
    report = make_report()
    totals = replace(
        report.totals,
        comm_ns=0,
        overlapped_ns=0,
        exposed_ns=0,
        partner_hidden_ns=None,
        partner_hideable_ns=None,
    )
    empty = replace(facts(replace(report, totals=totals), {NAME: "1", TIMING: "1"}), collectives=[])
    assert [rule(empty) for rule in RULES] == [None] * len(RULES)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (["wait-not-in-trace"], ": for 1 collective the wait is not in the trace."),
        (
            ["launch-not-in-trace"] * 2 + ["wait-not-in-trace"],
            ": for 2 collectives the launch is not in the trace "
            "and for 1 collective the wait is not in the trace.",
        ),
        (["thread-idle"], "are exposed for unknown reasons."),
    ],
)
def test_what_the_trace_lacks_is_named_and_nothing_else(rules: list[str], told: str) -> None:
    report = make_report(ranks=1)
    evidence = CauseEvidence("", None, None, None, None, None, None, None)
    chosen = [
        replace(
            one,
            exposed_by_cause_ns={"unknown": 2_000_000},
            cause="unknown",
            cause_evidence=replace(evidence, rule=rule),
        )
        for one, rule in zip(report.collectives, rules, strict=False)
    ]
    found = {one.code: one for one in findings(facts(replace(report, collectives=chosen)))}
    assert found["exposed-for-unknown-cause"].text.endswith(told)
