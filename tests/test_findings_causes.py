"""Findings about causes, contention, the host and settings; and what must hold for every finding there is."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from analysis_helpers import analyze, comm, compute, gemm
from report_helpers import make_report

from sp_profiler.analysis.causes import CAUSES
from sp_profiler.analysis.contention import with_contention
from sp_profiler.analysis.results import (
    CauseEvidence,
    CollectiveFigures,
    ContentionFigures,
    Partner,
    Straggler,
)
from sp_profiler.analysis.totals import total
from sp_profiler.classify.tables import Role
from sp_profiler.report.findings import RULES, EndsDisagree, Facts, findings
from sp_profiler.report.model import Finding

MS = 1_000_000
EVIDENCE = CauseEvidence("partner", None, 20, 25, 1, 12, 30 * MS, 40 * MS)


def collective(cause: str, exposed_ns: int = 10 * MS, **more: Any) -> CollectiveFigures:
    """An exposed collective of this cause in the place of one that the drawn report holds."""
    one = make_report(comm="async", ranks=1, steps=1).collectives[-1]
    facts = {
        "purpose": "dgrad",
        "is_async": True,
        "exposed_ns": exposed_ns,
        "exposed_share_ns": exposed_ns,
        "cause": cause,
        "exposed_by_cause_ns": {cause: exposed_ns},
        "cause_evidence": EVIDENCE,
        "partner": Partner("wgrad", "up", "annotation", 2 * MS, 1),
        "start_ns": 10 * MS,
        "launch_ns": 10,
    }
    return replace(one, **(facts | more))


def facts(*collectives: CollectiveFigures, **more: Any) -> Facts:
    """Facts of a run of 100 ms in which exactly these collectives are exposed."""
    by_cause = {
        cause: sum((c.exposed_by_cause_ns or {}).get(cause, 0) for c in collectives) for cause in CAUSES
    }
    exposed = sum(c.exposed_share_ns for c in collectives)
    totals = replace(
        make_report(ranks=1, steps=1).totals,
        window_ns=100 * MS,
        exposed_ns=exposed,
        exposed_by_cause_ns={cause: ns for cause, ns in by_cause.items() if ns},
        partner_hidden_ns=0,
        partner_hideable_ns=exposed,
        **{
            key: more.pop(key) for key in list(more) if key in ("host_bound_ns", "slowdown_ns", "net_gain_ns")
        },
    )
    return Facts(
        totals, collectives, 1, more.pop("is_cpu", False), more.pop("workload", None),
        more.pop("environment", None), more.pop("compute_capability", 9), **more,
    )  # fmt: skip


def named(found: Facts, code: str) -> Finding:
    (one,) = [finding for finding in findings(found) if finding.code == code]
    return one


SLOW = ContentionFigures("M=1 N=2 K=3", "bfloat16", "wgrad", 9, 9, 15, 10, None, 1.5, 4 * MS, 9 * MS)
AFTER = replace(EVIDENCE, partner_start_ns=1 * MS, partner_end_ns=2 * MS, partner_launch_ns=5)
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
SITUATIONS: dict[str, Facts] = {
    "peer-skew": facts(collective("peer-skew"), stragglers=[Straggler(3, 9 * MS, 4)]),
    "synchronous-with-partner": facts(
        collective("synchronous", is_async=False, hideable_ns=2 * MS, hidden_ns=0)
    ),
    "synchronous-without-partner": facts(collective("synchronous", is_async=False, partner=None)),
    "launched-after-partner": facts(collective("partner-too-short", cause_evidence=AFTER)),
    "partner-too-short": facts(collective("partner-too-short")),
    "late-partner": facts(collective("late-partner")),
    "queued": facts(
        collective("queued", cause_evidence=replace(EVIDENCE, queued_behind="same-group")),
        collective("queued", cause_evidence=replace(EVIDENCE, queued_behind="full-device")),
        environment={"TORCH_NCCL_HIGH_PRIORITY": None},
    ),
    "no-partner": facts(collective("no-partner", partner=None)),
    "exposed-for-unknown-cause": facts(
        collective("unknown", cause_evidence=replace(EVIDENCE, rule="launch-not-in-trace"))
    ),
    "host-bound": facts(host_bound_ns=20 * MS),
    "overlap-slows-gemms": facts(contention=[SLOW], slowdown_ns=4 * MS, net_gain_ns=5 * MS),
    "communication-bound": replace(
        facts(collective("partner-too-short", 30 * MS)),
        totals=replace(facts(collective("partner-too-short", 30 * MS)).totals, partner_hideable_ns=5 * MS),
    ),
    "ends-disagree": facts(ends_disagree=EndsDisagree(2, 3 * MS, ["tp[0,1]"], [1], [4, 5])),
    "feature-without-kernels": facts(collective("unknown"), command=["pretrain_gpt.py", "--tp-comm-overlap"]),
    "async-without-overlap": replace(
        facts(collective("unknown"), workload={"mode": "tp", "comm": "async"}),
        totals=replace(facts(collective("unknown")).totals, overlapped_ns=0),
    ),
    "cuda-device-max-connections": facts(
        collective("late-partner"), environment={"CUDA_DEVICE_MAX_CONNECTIONS": None}
    ),
    "cuda-device-max-connections-data-parallel": replace(
        facts(collective("unknown", purpose="param-gather"), environment=ONE_QUEUE),
        totals=replace(facts(collective("unknown")).totals, exposed_by_purpose_ns={"param-gather": 9 * MS}),
    ),
    "nccl-timing-with-one-queue": facts(
        collective("unknown"),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCH_NCCL_ENABLE_TIMING": "1"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", SITUATIONS)
def test_each_finding_has_its_situation(code: str) -> None:
    one = named(SITUATIONS[code], code)
    assert one.text
    assert one.advice


def test_every_rule_has_a_situation() -> None:
    """A new rule without a fixture fails here."""
    fired = {rule for rule in RULES if any(rule(found) is not None for found in SITUATIONS.values())}
    assert fired == set(RULES)


def settings_in(text: str) -> dict[str, str]:
    return dict(re.findall(r"\b([A-Z][A-Z0-9_]{4,})=(\w+)", text))


def check(found: Facts) -> None:
    """What holds for every finding: evidence with numbers and a place, and no advice to do what is done."""
    for one in findings(found):
        assert one.evidence, one.code
        assert all(value is not None and value != [] for value in one.evidence.values()), one.code
        assert re.search(r"\d", repr(one.evidence)), one.code
        assert "None" not in one.text + (one.advice or ""), one.text
        for example in one.evidence.get("examples", ()):
            assert {"id", "start_ns", "exposed_ns"} <= set(example)
            assert None not in example.values()
        for name, value in settings_in(one.advice or "").items():
            assert (found.environment or {}).get(name) != value, (
                f"{one.code} advises {name}={value}, which is set"
            )
        for name in re.findall(r"[Uu]nset ([A-Z][A-Z0-9_]+)", one.advice or ""):
            assert (found.environment or {}).get(name), (
                f"{one.code} advises to unset {name}, which is not set"
            )


@pytest.mark.parametrize("code", SITUATIONS)
def test_evidence_and_advice_of_every_finding_in_every_environment(code: str) -> None:
    names = (
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "TORCH_NCCL_ENABLE_TIMING",
        "TORCH_NCCL_HIGH_PRIORITY",
        "NCCL_MAX_CTAS",
    )
    situation = SITUATIONS[code]
    check(situation)
    for values in product((None, "0", "1"), repeat=len(names)):
        for cpu in (False, True):
            check(replace(situation, environment=dict(zip(names, values, strict=True)), is_cpu=cpu))


def test_high_priority_is_advised_only_where_it_is_known_to_be_unset() -> None:
    queued = SITUATIONS["queued"]
    assert "TORCH_NCCL_HIGH_PRIORITY=1" in (named(queued, "queued").advice or "")
    for environment in (None, {}, {"TORCH_NCCL_HIGH_PRIORITY": "1"}):
        advice = named(replace(queued, environment=environment), "queued").advice or ""
        assert "TORCH_NCCL_HIGH_PRIORITY" not in advice


def test_a_cause_that_matters_little_is_not_named() -> None:
    found = facts(
        collective("synchronous", 90 * MS, partner=None), collective("no-partner", 1 * MS, partner=None)
    )
    assert "no-partner" not in {one.code for one in findings(found)}
    #  0.1 ms of 100 are exposed, all for one cause: not worth a sentence
    assert findings(facts(collective("no-partner", MS // 10, partner=None))) == []


def test_the_straggler_is_named() -> None:
    one = named(SITUATIONS["peer-skew"], "peer-skew")
    assert "rank 3" in one.text
    assert one.evidence["late_rank"] == 3
    assert one.evidence["examples"][0]["id"] == collective("peer-skew").id


def test_cpu_runs_get_no_verdict_on_speed() -> None:
    for code in ("communication-bound", "ends-disagree", "feature-without-kernels"):
        found = replace(SITUATIONS[code], is_cpu=True)
        assert code not in {one.code for one in findings(found)}


def test_overlap_that_costs_more_than_it_hides_is_a_warning() -> None:
    worse = facts(contention=[SLOW], slowdown_ns=9 * MS, net_gain_ns=-2 * MS)
    assert named(worse, "overlap-slows-gemms").severity == "warning"
    assert named(SITUATIONS["overlap-slows-gemms"], "overlap-slows-gemms").severity == "advice"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"command": ["train.py", "--parallelism.enable_async_tensor_parallel"]}, True),
        ({"command": ["train.py", "--parallelism.enable_async_tensor_parallel=false"]}, False),
        ({"environment": {"NCCL_NVLS_ENABLE": "1"}}, True),
        ({"environment": {"NCCL_ALGO": "Ring,NVLS"}}, True),
        ({"environment": {"NCCL_NVLS_ENABLE": "0"}}, False),
        ({"command": ["train.py", "--tp-comm-overlap-cfg"]}, False),
    ],
)
def test_features_are_recognised(more: dict[str, Any], expected: bool) -> None:
    found = {one.code for one in findings(facts(collective("unknown"), **more))}
    assert ("feature-without-kernels" in found) is expected


def test_a_feature_whose_kernels_are_there_is_none() -> None:
    kernel = "void multimem_all_reduce_kernel<c10::BFloat16, 16>(...)"
    found = facts(collective("unknown", kernel=kernel), command=["--enable-async-tensor-parallel"])
    assert "feature-without-kernels" not in {one.code for one in findings(found)}


@pytest.mark.parametrize("cause", ["no-partner", "partner-too-short"])
def test_gradients_need_other_buckets_not_another_launch(cause: str) -> None:
    gradients = collective(cause, purpose="param-grad")
    advice = named(facts(gradients), cause).advice or ""
    assert "bucket_cap_mb" in advice
    assert "wait later" in advice
    assert "asynchronously" not in advice
    assert "tokens" not in advice
    mixed = named(facts(gradients, collective(cause)), cause).advice or ""
    usual = named(facts(collective(cause)), cause).advice or ""
    assert "bucket_cap_mb" not in usual
    assert mixed == f"{usual} {advice}"


def test_what_is_called_asynchronous_is_not_called_synchronous() -> None:
    at_once = collective("synchronous", partner=None, cause_evidence=replace(EVIDENCE, rule="waited-at-once"))
    one = named(facts(at_once), "synchronous-without-partner")
    assert "are waited for as soon as they are launched" in one.text
    assert "synchronous" not in one.text
    assert "asynchronously" not in (one.advice or "")


def test_from_trace_to_finding() -> None:
    """Not drawn facts but a drawn trace: synchronous all-reduces without partner, half of the time."""
    drawn = [gemm(0, 50 * MS, Role.FWD, launch=1), comm(50 * MS, 100 * MS, is_async=False, launch=2)]
    result = analyze(*drawn, compute(100 * MS, 101 * MS, launch=3))
    (result,), contention, _ = with_contention([result])
    found = Facts(total(result.ranks), result.collectives, 1, False, None, None, 9, contention=contention)
    one = named(found, "synchronous-without-partner")
    assert one.evidence["exposed_ns"] == 50 * MS
    assert one.evidence["examples"][0]["start_ns"] == 50 * MS
    check(found)


def test_waiting_for_a_late_rank_is_not_communication_bound() -> None:
    """Fewer bytes would not shorten it."""
    bound = SITUATIONS["communication-bound"]
    late = replace(bound.totals, exposed_by_cause_ns={"peer-skew": bound.totals.exposed_ns or 0})
    assert "communication-bound" not in {one.code for one in findings(replace(bound, totals=late))}


@pytest.mark.parametrize(
    ("purpose", "word", "never"),
    [
        ("dgrad", "sequence parallelism", "gradients less often"),
        ("param-grad", "gradients less often", "sequence parallelism"),
        ("expert", "fewer experts", "sequence parallelism"),
        ("kv", "longer part of the sequence", "fewer experts"),
    ],
)
def test_what_would_shorten_depends_on_what_is_exposed(purpose: str, word: str, never: str) -> None:
    bound = SITUATIONS["communication-bound"]
    totals = replace(bound.totals, exposed_by_purpose_ns={purpose: bound.totals.exposed_ns or 0, "other": 1})
    (found,) = (one for one in findings(replace(bound, totals=totals)) if one.code == "communication-bound")
    assert word in found.advice
    assert never not in found.advice


def test_synchronous_by_its_wait_is_named_like_declared() -> None:
    """torch before 2.13 declares nothing: what is waited for at once could run under its partner too."""
    declared = SITUATIONS["synchronous-with-partner"]
    rule = replace(EVIDENCE, rule="waited-at-once")
    waited = replace(
        declared,
        collectives=[replace(c, is_async=None, cause_evidence=rule) for c in declared.collectives],
    )
    assert "synchronous-with-partner" in {one.code for one in findings(waited)}
    untold = replace(
        declared, collectives=[replace(c, is_async=None, cause_evidence=None) for c in declared.collectives]
    )
    assert "synchronous-with-partner" not in {one.code for one in findings(untold)}
