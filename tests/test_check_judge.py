"""What a budget says of a report; the figures expected follow from the schedule of `report_helpers`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from check_helpers import verdict, verdicts
from hypothesis import given
from hypothesis import strategies as st
from report_helpers import HOSTILE, MS, make_report

from sp_profiler.checking.api import check
from sp_profiler.checking.parts import Within
from sp_profiler.errors import UsageError
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.model import Finding, Fleet, Report, StepAcross

REPORT = make_report(ranks=2, steps=3)
STEPS = 6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exposed_ratio", REPORT.totals.exposed_ns / REPORT.totals.window_ns),
        ("idle_ratio", REPORT.totals.idle_ns / REPORT.totals.window_ns),
        ("exposed_ms", REPORT.totals.exposed_ns / STEPS),
        ("step_ms", REPORT.totals.window_ns / STEPS),
    ],
)
def test_upper_limits_hold_up_to_the_value_and_break_above_it(name: str, value: float) -> None:
    plain = 1e6 if name.endswith("ms") else 1
    at = verdict(REPORT, **{f"max_{name}": value / plain * (1 + 1e-12)})
    assert (at.state, at.fails, at.value) == ("holds", False, pytest.approx(value))
    below = verdict(REPORT, **{f"max_{name}": value / plain * (1 - 1e-9)})
    assert (below.state, below.fails) == ("broken", True)
    assert "above the limit" in below.text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("overlap_ratio", REPORT.totals.overlap_ratio),
        ("hidden_of_hideable", REPORT.totals.hidden_of_hideable),
        ("wgrad_hidden", REPORT.totals.hiding_by_purpose["dgrad"].hidden_of_hideable),
        ("coverage", 1.0),
    ],
)
def test_lower_limits_hold_down_to_the_value(name: str, value: float) -> None:
    at = verdict(REPORT, **{f"min_{name}": value * (1 - 1e-12)})
    assert (at.state, at.value) == ("holds", pytest.approx(value))
    if value < 1:
        above = verdict(REPORT, **{f"min_{name}": value + 1e-9})
        assert above.state == "broken"
        assert "below the limit" in above.text


def test_the_synchronous_run_hides_nothing_and_the_asynchronous_one_everything() -> None:
    assert verdict(make_report(comm="sync"), min_wgrad_hidden=0.01).value == 0
    assert verdict(make_report(comm="sync"), min_wgrad_hidden=0.01).fails
    assert verdict(make_report(comm="async"), min_wgrad_hidden=1).value == 1  # 3 ms over 2 ms of wgrad
    assert not verdict(make_report(comm="async"), min_wgrad_hidden=1).fails


def test_the_worst_rank_and_step_decide_in_their_scope() -> None:
    slow = replace(REPORT.ranks[1], idle_ns=REPORT.ranks[1].window_ns // 2)
    steps = list(REPORT.steps)
    steps[4] = replace(steps[4], idle_ns=steps[4].window_ns)
    report = replace(REPORT, ranks=[REPORT.ranks[0], slow], steps=steps)
    ranked = verdict(report, max_idle_ratio=0.4, scope="rank")
    assert ranked.budget == "max-idle-ratio (each rank)"
    assert ranked.value == pytest.approx(0.5, abs=1e-6)
    assert ranked.where is not None
    assert ranked.where.rank == 1
    stepped = verdict(report, max_idle_ratio=0.9, scope="step")
    assert stepped.value == 1
    assert stepped.where is not None
    assert (stepped.where.rank, stepped.where.step) == (steps[4].rank, steps[4].step)
    assert verdict(report, max_idle_ratio=0.4).state == "holds"  # the whole run


def test_what_is_broken_says_where_to_look() -> None:
    one = verdict(REPORT, max_exposed_ms=1)
    worst = max(REPORT.ranks, key=lambda rank: rank.exposed_ns or 0)
    assert one.where is not None
    assert one.where.rank == worst.rank
    collective = REPORT.collectives[one.where.collective or 0]
    assert (collective.rank, collective.step) == (one.where.rank, one.where.step)
    there = [c for c in REPORT.collectives if (c.rank, c.step) == (one.where.rank, one.where.step)]
    assert collective.exposed_share_ns == max(c.exposed_share_ns for c in there)
    assert f"collective {collective.id}" in one.text


# --- parts -----------------------------------------------------------------------------------------------


def test_parts_of_the_communication_have_budgets_of_their_own() -> None:
    found = verdicts(
        REPORT,
        purpose={"dgrad": {"max_exposed_ms": 100, "min_hidden_of_hideable": 0.1}},
        group={
            "tp": {"max_exposed_ms": 100},
            "tp[0,1]": {"max_exposed_ratio": 1},
            "t*": {"max_exposed_ms": 100},
        },
        layer={"1": {"max_exposed_ms": 100}},
        op={"all_reduce": {"max_exposed_ratio": 1}},
    )
    totals = REPORT.totals
    assert {name: one.value for name, one in found.items()} == {
        "group tp: max-exposed-ms": totals.exposed_ns / STEPS,
        "group tp[0,1]: max-exposed-ratio": totals.exposed_ns / totals.window_ns,
        "group t*: max-exposed-ms": totals.exposed_ns / STEPS,
        "op all_reduce: max-exposed-ratio": totals.exposed_ns / totals.window_ns,
        "purpose dgrad: max-exposed-ms": totals.exposed_by_purpose_ns["dgrad"] / STEPS,
        "purpose dgrad: min-hidden-of-hideable": totals.hiding_by_purpose["dgrad"].hidden_of_hideable,
        "layer 1: max-exposed-ms": totals.exposed_by_layer_ns["1"] / STEPS,
    }
    assert all(one.state == "holds" for one in found.values())


def test_a_group_is_measured_on_its_own_ranks() -> None:
    """Rank 1 alone has the group `dp[1]`: its mean is over the windows of rank 1, not of all."""
    exposed = 30 * MS
    ranks = [REPORT.ranks[0], replace(REPORT.ranks[1], exposed_by_group_ns={"dp[1]": exposed})]
    group = replace(REPORT.groups[0], group="dp[1]", ranks=[1])
    report = replace(
        REPORT,
        ranks=ranks,
        groups=[*REPORT.groups, group],
        totals=replace(REPORT.totals, exposed_by_group_ns={"tp[0,1]": 1, "dp[1]": exposed}),
    )
    assert verdict(report, group={"dp": {"max_exposed_ms": 1}}).value == exposed / 3


def test_a_part_that_is_not_there_is_unknown_not_zero() -> None:
    one = verdict(REPORT, purpose={"kv": {"max_exposed_ms": 100}})
    assert (one.state, one.fails, one.value) == ("unknown", True, None)
    assert "no communication of purpose kv" in one.text
    assert "dgrad" in one.text  # what there is
    assert verdict(REPORT, group={"pp": {"max_skew_ratio": 1}}).state == "unknown"
    assert verdict(REPORT, cause={"peer-skew": {"max_exposed_ms": 1}}).state == "unknown"  # not divided
    hidden = replace(REPORT, totals=replace(REPORT.totals, exposed_by_group_ns={}))
    hidden = replace(hidden, ranks=[replace(rank, exposed_by_group_ns={}) for rank in REPORT.ranks])
    assert verdict(hidden, group={"tp": {"max_exposed_ms": 1}}).value == 0  # it has the group: all hidden


@given(st.text("ab*[", max_size=6), st.text("ab[", max_size=6))
def test_stars_stand_for_any_text(pattern: str, key: str) -> None:
    import re

    wanted = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), key) is not None
    assert Within("module", pattern).matches(key) == wanted


# --- any field, the ledger, findings -----------------------------------------------------------------------


def entry(figure: str, **bounds: object) -> dict[str, list[dict[str, object]]]:
    return {"budgets": [{"figure": figure, **bounds}]}


def test_any_field_can_have_a_limit() -> None:
    assert verdict(REPORT, **entry("totals.exposed_ns", max=REPORT.totals.exposed_ns)).state == "holds"
    assert verdict(REPORT, **entry("totals.exposed_ns", max="0 ms")).state == "broken"
    assert verdict(REPORT, **entry("ranks[*].idle_ns", min=10**12)).state == "broken"
    assert verdict(REPORT, **entry("ranks[rank=9].idle_ns", max=1)).state == "unknown"
    assert verdict(REPORT, **entry("memory.peak_bytes", max="70 GiB")).state == "unknown"
    assert verdict(REPORT, **entry("totals.host_bound_ns", max=1)).state == "holds"
    assert verdict(REPORT, **entry("run.workload.mode", max=1)).state == "unknown"  # text has no size
    slow = verdict(REPORT, **entry("collectives[*].exposed_ns", max=1))
    assert slow.where is not None
    assert slow.where.collective is not None


def test_equals_takes_numbers_text_and_truth() -> None:
    assert verdict(REPORT, **entry("run.world_size", equals=2)).state == "holds"
    assert verdict(REPORT, **entry("run.world_size", equals=4)).state == "broken"
    assert verdict(REPORT, **entry("run.backend", equals="nccl")).state == "holds"
    told = verdict(REPORT, **entry("run.backend", equals="gloo"))
    assert told.state == "broken"
    assert told.text == "run.backend is nccl, not gloo."
    assert (
        verdict(REPORT, **entry("collectives[*].is_async", equals=True)).state == "broken"
    )  # activations are not
    assert verdict(REPORT, **entry("run.world_size", equals=True)).state == "broken"


LEDGER = [
    LedgerEntry("bad-event", "loss", "an event was left out", "a.json", 2, 77),
    LedgerEntry("truncated-gzip", "loss", "the file is cut", "b.json", 1),
    LedgerEntry("encoding", "repair", "no UTF-8", "b.json", 5),
]


def test_ledger_budgets_count_entries() -> None:
    report = replace(REPORT, data_quality=LEDGER)
    found = verdicts(report, max_ledger={"loss": 3, "bad-event": 1, "repair": 4, "note": 0}, no_loss=True)
    assert {name: (one.state, one.value) for name, one in found.items()} == {
        "ledger: loss": ("holds", 3),  # --no-loss does not overrule what is said of losses
        "ledger: bad-event": ("broken", 2),
        "ledger: repair": ("broken", 5),
        "ledger: note": ("holds", 0),
    }
    assert "a.json: an event was left out" in found["ledger: bad-event"].text
    assert verdict(report, no_loss=True).state == "broken"
    assert verdict(REPORT, no_loss=True).state == "holds"


def test_findings_by_code_and_by_severity_and_worse() -> None:
    found = [
        Finding(
            "peer-skew",
            "advice",
            "Rank 1 is late.",
            {"examples": [{"id": 4, "rank": 1, "step": 2, "module": "x"}]},
        ),
        Finding("host-bound", "warning", "The host is late.", {"idle_ns": 3}),
        Finding("no-partner", "info", "Nothing was launched.", {"ns": 3}),
    ]
    report = replace(REPORT, findings=found)
    counts = {
        name: one.value
        for name, one in verdicts(
            report, fail_on=["info", "advice", "warning", "peer-skew", "queued"]
        ).items()
    }
    assert counts == {
        "no finding: info": 3,
        "no finding: advice": 2,
        "no finding: warning": 1,
        "no finding: peer-skew": 1,
        "no finding: queued": 0,
    }
    one = verdict(report, fail_on="peer-skew")
    assert one.fails
    assert one.text == "1 finding: Rank 1 is late. [peer-skew]"
    assert one.where is not None
    assert (one.where.rank, one.where.step, one.where.collective) == (1, 2, 4)


def test_all_codes_of_findings_and_of_real_ledgers_are_known() -> None:
    from cli_helpers import DEMO

    import sp_profiler
    from sp_profiler.checking.codes import finding_codes, ledger_codes

    report = sp_profiler.analyze(DEMO / "sp-recompute")
    assert report.findings
    assert {one.code for one in report.findings} <= finding_codes()
    assert {one.code for one in report.data_quality} <= ledger_codes()
    assert {"truncated-gzip", "bad-event", "far-away-event", "encoding", "ranks-missing"} <= ledger_codes()
    assert {"queued", "communication-bound", "memory-gathered-input"} <= finding_codes()
    assert not {"warnin", "loss"} & finding_codes()


# --- a fleet -----------------------------------------------------------------------------------------------


def fleet() -> Report:
    """Two ranks of three steps, of which the report holds the figures of one step of rank 0."""
    across = [StepAcross(step, 2, 200, 80, 100, 20, 60, 30, 120 + step, 1, 40 + step, 0) for step in range(3)]
    return replace(REPORT, steps=REPORT.steps[:1], fleet=Fleet(STEPS, [3, 3], 100, "collectives", [], across))


def test_a_fleets_steps_are_judged_by_what_is_known_of_all() -> None:
    report = fleet()
    assert verdict(report, max_step_ms=1, scope="step").value == 122
    assert verdict(report, max_exposed_ms=1, scope="step").value == 42
    assert verdict(report, max_exposed_ms=100).value == REPORT.totals.exposed_ns / STEPS
    rank = verdict(report, max_exposed_ms=100, scope="rank")
    assert rank.value == max((one.exposed_ns or 0) / 3 for one in REPORT.ranks)
    assert verdict(report, max_idle_ratio=1, scope="step").state == "unknown"  # steps that are not held
    assert verdict(report, max_idle_ratio=0, scope="step").state == "broken"  # by one that is
    assert verdict(report, **entry("steps[*].idle_ns", max=10**12)).state == "unknown"
    assert verdict(report, **entry("collectives[*].dur_ns", max=10**12)).state == "unknown"
    assert verdict(report, **entry("collectives[*].dur_ns", max=1)).state == "broken"


# --- hostile and odd ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_traces_act_on_nothing(name: str) -> None:
    report = make_report(name=name)
    collectives = [replace(one, module=name) for one in report.collectives]
    report = replace(report, collectives=collectives, findings=[Finding("queued", "info", name, {"a": 1})])
    for one in check(report, max_exposed_ms=0, fail_on="info", **entry("run.name", equals="x")).verdicts:
        assert one.fails
        assert one.text.isprintable()


def test_without_budgets_there_is_nothing_to_check() -> None:
    with pytest.raises(UsageError, match="nothing to check: set a budget, such as --max-exposed-ratio"):
        check(REPORT)
    with pytest.raises(UsageError, match="did you mean max-exposed-ratio"):
        check(REPORT, max_exposed_rtio=1)


def test_equal_budgets_keep_names_of_their_own() -> None:
    same = [{"figure": "totals.idle_ns", "max": 1}, {"figure": "totals.idle_ns", "max": 2}]
    assert list(verdicts(REPORT, budgets=same)) == ["max totals.idle_ns", "max totals.idle_ns (2)"]
