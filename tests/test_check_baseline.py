"""No worse than another run: which way is worse, tolerance, floors, noise, figures that one of them lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from check_helpers import GIB, scaled, verdict, verdicts, with_memory
from report_helpers import make_report

from sp_profiler.checking.api import check
from sp_profiler.comparing.noise import noise_of
from sp_profiler.errors import UsageError
from sp_profiler.report.model import Coverage, Report

BASE = make_report(steps=3)


def shifted(report: Report, *by_step_ns: int) -> Report:
    """The report with each step of each rank longer by so much, all of it exposed communication."""
    steps = [
        replace(
            one,
            window_ns=(one.window_ns or 0) + by_step_ns[one.step or 0],
            exposed_ns=(one.exposed_ns or 0) + by_step_ns[one.step or 0],
        )
        for one in report.steps
    ]
    more = sum(by_step_ns) * len(report.ranks)
    totals = replace(
        report.totals,
        window_ns=(report.totals.window_ns or 0) + more,
        exposed_ns=(report.totals.exposed_ns or 0) + more,
    )
    return replace(report, steps=steps, totals=totals)


def test_a_run_is_no_worse_than_itself() -> None:
    result = check(BASE, baseline=BASE)
    assert result.holds
    assert {one.budget for one in result.verdicts if one.state == "holds"} == {
        "no worse step-ms",
        "no worse exposed-ms",
        "no worse hidden-of-hideable",
        "no worse wgrad-hidden",
        "no worse coverage",
    }
    assert {one.budget for one in result.verdicts if one.state == "skipped"} == {
        "no worse memory-gib",  # neither run tells, and nobody asked
        "no worse saved-gib",
    }


@pytest.mark.parametrize(("factor", "state"), [(1.2, "broken"), (1.04, "holds"), (0.5, "holds")])
def test_longer_is_worse_and_shorter_is_not(factor: float, state: str) -> None:
    longer = scaled(BASE, factor, "window_ns")
    one = verdicts(longer, BASE)["no worse step-ms"]
    assert one.state == state
    assert one.baseline == pytest.approx((BASE.totals.window_ns or 0) / 6)
    if factor == 1.2:
        assert one.limit == pytest.approx(one.baseline * 1.05)
        assert "20 % worse than the baseline's" in one.text
        assert "look at rank" in one.text
    if factor == 0.5:
        assert "50 % better than" in one.text


def test_less_hidden_is_worse() -> None:
    sync, asynchronous = make_report(comm="sync"), make_report(comm="async")
    found = verdicts(sync, asynchronous)
    assert found["no worse wgrad-hidden"].state == "broken"
    assert found["no worse hidden-of-hideable"].state == "broken"
    assert found["no worse exposed-ms"].state == "broken"
    assert check(asynchronous, baseline=sync).holds


def test_a_faster_computation_is_no_regression() -> None:
    """The exposed share rises, the exposed time does not: the share is compared only when it is named."""
    faster = scaled(BASE, 0.5, "compute_ns", "window_ns")
    assert check(faster, baseline=BASE).holds
    asked = verdicts(faster, BASE, tolerances={"exposed-ratio": "5%"})
    assert asked["no worse exposed-ratio"].state == "broken"
    chosen = verdicts(faster, BASE, compare=["exposed-ratio"])
    assert list(chosen) == ["no worse exposed-ratio"]


def test_a_tolerance_of_one_figure_is_its_own() -> None:
    longer = scaled(BASE, 1.2, "window_ns")
    assert check(longer, baseline=BASE, tolerance="25%").holds
    found = verdicts(longer, BASE, tolerance="25%", tolerances={"step-ms": "10%"})
    assert [name for name, one in found.items() if one.fails] == ["no worse step-ms"]
    found = verdicts(longer, BASE, tolerance="25%", tolerances={"step-ms": ["0%", "500 ms"]})
    assert not any(one.fails for one in found.values())


def test_tiny_figures_do_not_flap() -> None:
    tiny = replace(BASE, totals=replace(BASE.totals, exposed_ns=6_000))  # 1 µs a step
    thrice = replace(BASE, totals=replace(BASE.totals, exposed_ns=18_000))
    assert verdicts(thrice, tiny)["no worse exposed-ms"].state == "holds"
    strict = verdicts(thrice, tiny, tolerances={"exposed-ms": ["5%", "0 ns"]})
    assert strict["no worse exposed-ms"].state == "broken"


# --- noise -----------------------------------------------------------------------------------------------


def test_a_difference_within_the_spread_of_the_steps_is_none() -> None:
    """Base steps spread by ±4 ms around their mean; the run is 3 ms (10 % of a step) longer."""
    base = shifted(BASE, -4_000_000, 0, 4_000_000)
    here = shifted(BASE, -1_000_000, 3_000_000, 7_000_000)
    one = verdicts(here, base)["no worse step-ms"]
    values = [[(s.window_ns or 0) for s in run.steps[:3]] for run in (base, here)]
    expected = noise_of(*values)
    assert expected is not None
    assert one.noise == pytest.approx(expected, rel=0.01)  # mean over ranks, whose steps differ by 50 µs
    assert one.state == "holds"
    assert "within the noise of the steps" in one.text
    assert verdicts(here, base, noise=False)["no worse step-ms"].state == "broken"


def test_steps_without_spread_have_no_noise() -> None:
    here = shifted(BASE, 3_000_000, 3_000_000, 3_000_000)
    one = verdicts(here, BASE)["no worse step-ms"]
    assert one.noise == pytest.approx(0, abs=1)
    assert one.state == "broken"


def test_with_two_steps_the_tolerance_alone_decides() -> None:
    base = shifted(make_report(steps=2), -4_000_000, 4_000_000)
    here = shifted(make_report(steps=2), -1_000_000, 7_000_000)
    one = verdicts(here, base)["no worse step-ms"]
    assert (one.noise, one.state) == (None, "broken")
    assert any("three or more" in note for note in check(here, baseline=base).notes)


# --- what one of them lacks ------------------------------------------------------------------------------


def test_a_figure_that_got_lost_fails() -> None:
    base, lost = with_memory(GIB, GIB), make_report(ranks=2)
    found = verdicts(lost, base)
    assert found["no worse memory-gib"].state == "unknown"
    assert found["no worse memory-gib"].fails
    assert "unknown in this run" in found["no worse memory-gib"].text
    assert verdicts(lost, base, allow_unknown=True)["no worse memory-gib"].fails is False


def test_a_figure_that_is_new_is_skipped_unless_it_was_named() -> None:
    base, new = make_report(ranks=2), with_memory(GIB, GIB)
    assert verdicts(new, base)["no worse memory-gib"].state == "skipped"
    assert not verdicts(new, base)["no worse memory-gib"].fails
    named = verdicts(new, base, tolerances={"memory-gib": "2%"})["no worse memory-gib"]
    assert (named.state, named.fails) == ("unknown", True)
    assert "unknown in the baseline" in named.text


def test_memory_of_the_worst_rank_is_compared() -> None:
    base = with_memory(4 * GIB, 8 * GIB)
    assert verdicts(with_memory(7 * GIB, 8 * GIB), base)["no worse memory-gib"].state == "holds"
    more = verdicts(with_memory(4 * GIB, 9 * GIB), base)["no worse memory-gib"]
    assert (more.state, more.value, more.baseline) == ("broken", 9 * GIB, 8 * GIB)
    assert more.where is not None
    assert more.where.rank == 1
    unsure = verdicts(with_memory(4 * GIB, None), base)["no worse memory-gib"]
    assert unsure.state == "unknown"  # the rank that is not known may have more


def test_lower_coverage_is_worse() -> None:
    here = replace(BASE, coverage=Coverage(1.0, 0.5, None))
    one = verdicts(here, BASE)["no worse coverage"]
    assert (one.state, one.value) == ("broken", 0.5)
    assert "purpose" in one.text  # which of them


# --- asked for -------------------------------------------------------------------------------------------


def test_fields_are_compared_when_a_way_is_said() -> None:
    field = {"figure": "totals.comm_ns", "worse": "higher", "tolerance": "10%"}
    here = scaled(BASE, 1.2, "comm_ns")
    assert verdicts(here, BASE, budgets=[field])["no worse totals.comm_ns"].state == "broken"
    assert verdicts(BASE, here, budgets=[field])["no worse totals.comm_ns"].state == "holds"
    lower = {**field, "worse": "lower"}
    assert verdicts(BASE, here, budgets=[lower])["no worse totals.comm_ns"].state == "broken"
    figure = {"figure": "exposed-ms", "worse": "higher", "purpose": "dgrad", "scope": "rank"}
    one = verdicts(BASE, BASE, budgets=[figure])["purpose dgrad: no worse exposed-ms (each rank)"]
    assert one.state == "holds"
    with pytest.raises(UsageError, match="--baseline"):
        verdict(BASE, budgets=[field])


def test_what_makes_two_runs_another_kind_is_told() -> None:
    other = make_report(comm="sync", ranks=4, layers=3)
    (note,) = [n for n in check(BASE, baseline=other).notes if "another kind" in n]
    for words in ("world_size is 4, here 2", "workload.comm is sync, here async", "workload.layers is 3"):
        assert words in note
    assert not [n for n in check(BASE, baseline=BASE).notes if "another kind" in n]


def test_cpu_runs_are_said_to_tell_nothing_of_speed() -> None:
    cpu = make_report(device="cpu")
    assert any("CPU run" in note for note in check(cpu, baseline=cpu).notes)
    assert not any("CPU run" in note for note in check(cpu, no_loss=True).notes)
