"""The main sentences: from numbers only, correct, and silent about what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_helpers import make_report

from sp_profiler.analysis.results import CollectiveFigures, Figures, Hiding
from sp_profiler.report.model import Report, windows_of
from sp_profiler.report.sentences import Basis, collectives_on_ranks, op_name, sentences


def basis(report: Report, *, is_cpu: bool = False, totals: Figures | None = None) -> Basis:
    collectives: list[CollectiveFigures] = report.collectives
    return Basis(
        totals or report.totals,
        report.ranks,
        collectives,
        len(report.window.steps),
        windows_of(report),
        is_cpu,
    )


def test_async_says_how_much_wgrad_hides_and_what_stays_exposed() -> None:
    # Per step of rank 0: two dgrad all-reduces of 3 ms, 2 ms of each under wgrad; two of 1 ms exposed.
    said = sentences(basis(make_report(ranks=1)))
    assert said[0] == (
        "wgrad hides 67 % of the dgrad all-reduce, all that could be hidden; 4.00 ms per step stay exposed, "
        "of which 2.00 ms in activation collectives and 2.00 ms in dgrad collectives."
    )
    assert said[1] == "4.00 ms of communication per step are hidden, all of it under wgrad."
    assert "Everything that could be hidden is hidden; what stays exposed is communication-bound." in said
    assert said[-1].startswith("A step takes 19.6 ms on average (3 steps): computation 15.5 ms, ")


def test_sync_says_that_nothing_overlaps_and_what_could() -> None:
    said = sentences(basis(make_report(comm="sync", ranks=1)))
    assert said[0].startswith(
        "wgrad hides nothing of the dgrad all-reduce, though 4.00 ms per step could be hidden; 8.00 ms"
    )
    assert said[1] == "Nothing overlaps: all 12 collectives are synchronous."
    # 23.64 ms, of which min(8, 4) ms could be hidden
    assert (
        "If everything hideable were hidden the step would take 19.6 ms instead of 23.6 ms; the rest is "
        in " ".join(said)
    )


def test_partly_hidden_names_the_share_of_the_hideable() -> None:
    report = make_report(ranks=1)
    hiding = {"dgrad": Hiding(71, 100, 0.71)}
    said = sentences(basis(report, totals=replace(report.totals, hiding_by_purpose=hiding)))
    assert ", 71 % of the dgrad communication that could be hidden; " in said[0]


def test_the_headline_is_about_dgrad_only_where_dgrad_has_a_real_share() -> None:
    report = make_report(ranks=1)
    whole = report.totals.comm_ns or 0
    said = sentences(basis(report, totals=replace(report.totals, dgrad_comm_ns=whole // 11)))
    assert said[0].startswith("Computation hides 50 % of the communication")
    said = sentences(basis(report, totals=replace(report.totals, dgrad_comm_ns=whole // 9)))
    assert said[0].startswith("wgrad hides")


def test_collectives_are_counted_on_each_rank() -> None:
    two = make_report(ranks=2).collectives
    assert collectives_on_ranks(two) == "12 collectives on each of 2 ranks"
    assert collectives_on_ranks(two[:-1], "late") == "23 late collectives, 2 ranks together"
    assert collectives_on_ranks(make_report(ranks=1).collectives) == "12 collectives"


def test_one_step_of_one_rank_is_no_mean() -> None:
    said = sentences(basis(make_report(ranks=1, steps=1)))
    assert said[-1].startswith("A step takes 19.6 ms: computation")


def test_a_cpu_run_speaks_of_structure_only() -> None:
    said = sentences(basis(make_report(comm="sync", device="cpu"), is_cpu=True))
    assert not any("would take" in sentence or "communication-bound" in sentence for sentence in said)
    assert (
        said[-1] == "This is a CPU run: read it for its structure, what runs under what, not for its speed."
    )


def test_no_communication() -> None:
    report = make_report(ranks=1)
    totals = replace(report.totals, comm_ns=0, exposed_ns=0, overlapped_ns=0)
    said = sentences(replace(basis(report, totals=totals), collectives=[]))
    assert said[0] == "No communication in this trace, so there is nothing to hide and nothing exposed."
    ranks = [replace(rank, cpu_comm_ns=5_000_000) for rank in report.ranks]
    said = sentences(replace(basis(report, totals=totals), collectives=[], ranks=ranks))
    assert "5.00 ms of gloo communication on the CPU is reported apart" in said[0]


def test_unknown_is_said_with_its_reason_never_as_zero() -> None:
    report = make_report(ranks=1)
    totals = replace(
        report.totals,
        dgrad_comm_ns=0,
        wgrad_overlapped_ns=None,
        partner_hidden_ns=None,
        partner_hideable_ns=None,
        hidden_of_hideable=None,
        hiding_by_purpose={},
        step_ns_if_all_hidden=None,
        exposed_by_purpose_ns={"unknown": report.totals.exposed_ns or 0},
    )
    collectives = [replace(c, purpose="unknown") for c in report.collectives]
    said = sentences(replace(basis(report, totals=totals), collectives=collectives))
    assert said[0] == (
        "Computation hides 50 % of the communication; 4.00 ms per step stay exposed, "
        "all of it in collectives of unknown purpose."
    )
    assert any(s.startswith("How much could have been hidden is not known: no collective has") for s in said)
    assert "The purpose of 100 % of the communication time is unknown; it never counts as dgrad." in said


def test_nothing_found() -> None:
    report = make_report()
    assert sentences(replace(basis(report), ranks=[])) == [
        "No activity was found in this trace, so no figure is known."
    ]


@pytest.mark.parametrize("comm", ["sync", "async"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("steps", [1, 3])
def test_every_sentence_is_one(comm: str, ranks: int, steps: int) -> None:
    for sentence in sentences(basis(make_report(comm=comm, ranks=ranks, steps=steps))):
        assert sentence[0].isupper() or sentence[0].isdigit() or sentence.startswith("wgrad")
        assert sentence.endswith(".")
        assert "None" not in sentence
        assert "  " not in sentence
        assert "1 steps" not in sentence
        assert "1 ranks" not in sentence


def test_ops_are_named_as_the_field_does() -> None:
    assert [op_name(op) for op in ("all_reduce", "reduce_scatter", "all_to_all", "barrier", None)] == [
        "all-reduce",
        "reduce-scatter",
        "all-to-all",
        "barrier",
        "collective",
    ]


def test_one_collective_of_each_rank_is_spoken_of_as_one() -> None:
    report = make_report(comm="sync", ranks=2)
    first = {rank: next(c for c in report.collectives if c.rank == rank) for rank in (0, 1)}
    said = sentences(basis(replace(report, collectives=list(first.values()))))
    assert "Nothing overlaps: the only collective of each rank is synchronous." in said
