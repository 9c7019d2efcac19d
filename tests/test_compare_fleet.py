"""Runs of many ranks compared: their reports list some collectives and steps, and sums over all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compare_helpers import total
from report_helpers import make_report

from sp_profiler.analysis.kind_figures import kind_figures
from sp_profiler.comparing.compare import compare
from sp_profiler.report.model import Fleet, Report, StepAcross, windows_of


def as_fleet(report: Report, collectives: int = 3, steps: int = 2) -> Report:
    """The report as one of a run too large for one process has it: some collectives and steps, and sums."""
    across: dict[int | None, StepAcross] = {}
    for number in report.window.steps:
        mine = [step for step in report.steps if step.step == number]
        sums = {
            name: sum(getattr(step, name) for step in mine)
            for name in ("window_ns", "comm_ns", "compute_ns", "overlapped_ns", "exposed_ns", "idle_ns")
        }
        across[number] = StepAcross(
            number, len(mine), **sums, longest_ns=0, longest_rank=0, most_exposed_ns=0, most_exposed_rank=0
        )
    fleet = Fleet(
        windows=len(report.steps),
        rank_windows=[windows_of(report, rank) for rank in report.ranks],
        collectives=len(report.collectives),
        collectives_at="work/collectives",
        kinds=[replace(kind, group="tp[8 ranks]") for kind in kind_figures(report.collectives)],
        steps=list(across.values()),
    )
    return replace(
        report, collectives=list(report.collectives)[:collectives], steps=report.steps[:steps], fleet=fleet
    )


@pytest.mark.parametrize("which", [(True, True), (True, False), (False, True)])
def test_a_report_of_sums_compares_as_one_of_everything(which: tuple[bool, bool]) -> None:
    pair = make_report(comm="sync", ranks=4), make_report(comm="async", ranks=4)
    whole = compare(*pair)
    found = compare(*(as_fleet(report) if some else report for report, some in zip(pair, which, strict=True)))
    for figure in ("window_ns", "compute_ns", "overlapped_ns", "exposed_ns", "idle_ns"):
        one, two = total(found, figure), total(whole, figure)
        assert (one.base, one.here, one.noise, one.verdict) == (two.base, two.here, two.noise, two.verdict)
    assert [rank.figures[0].base for rank in found.ranks] == [rank.figures[0].base for rank in whole.ranks]
    assert found.kinds is not None
    assert whole.kinds is not None
    exposed = {kind.purpose: kind.exposed.difference for kind in whole.kinds}
    assert {kind.purpose: kind.exposed.difference for kind in found.kinds} == exposed
    assert {kind.group for kind in found.kinds} == {"tp"}
    for kind in found.kinds:
        assert sum(part.ns for part in kind.parts) == kind.exposed.difference
    became = {kind.purpose: kind.became for kind in found.kinds}
    assert became == {"dgrad": "async", "activation": None}
    assert found.exposed_parts is not None
    assert sum(part.ns for part in found.exposed_parts) == total(found, "exposed_ns").difference
    assert found.sites is None
    assert any("lists only its most exposed" in note for note in found.notes)


def test_the_same_fleet_twice() -> None:
    report = as_fleet(make_report(ranks=4))
    found = compare(report, report)
    assert found.summary == ["No difference beyond noise."]


def test_sums_that_do_not_account_for_all_exposed_time_are_left_alone() -> None:
    report = as_fleet(make_report())
    assert report.fleet is not None
    cut = replace(report, fleet=replace(report.fleet, kinds=report.fleet.kinds[:1]))
    found = compare(report, cut)
    assert (found.kinds, found.exposed_parts) == (None, None)


def test_a_fleet_that_lists_all_is_compared_in_full() -> None:
    pair = [make_report(comm=comm) for comm in ("sync", "async")]
    listed = [as_fleet(report, len(report.collectives), len(report.steps)) for report in pair]
    assert compare(*listed).kinds == compare(*pair).kinds


def test_hidden_collectives_that_are_not_listed_are_not_taken_for_missing() -> None:
    whole = make_report(comm="async")
    exposed = [one for one in whole.collectives if one.purpose != "dgrad"]
    hidden = [
        replace(one, overlapped_ns=one.dur_ns, exposed_ns=0, exposed_share_ns=0)
        for one in whole.collectives
        if one.purpose == "dgrad"
    ]
    left = sum(one.exposed_share_ns for one in exposed)
    whole = replace(whole, collectives=[*exposed, *hidden], totals=replace(whole.totals, exposed_ns=left))
    some = as_fleet(whole, collectives=len(exposed))  # they account for all exposed time
    found = compare(some, whole)
    assert found.sites is None
    assert found.kinds is not None
    assert {kind.exposed.verdict for kind in found.kinds} == {"equal"}
    assert found.summary == ["No difference beyond noise."]
