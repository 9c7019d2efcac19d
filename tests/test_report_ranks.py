"""Ranks beside each other in the outputs: stragglers, clocks, bandwidth, unmatched."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from report_helpers import HOSTILE, MS, make_report
from rich.console import Console

from sp_profiler.analysis.results import Bandwidth, Clock, Straggler, Unmatched
from sp_profiler.report import html, markdown, tables, view
from sp_profiler.report import json as report_json
from sp_profiler.report.model import Report
from sp_profiler.report.sentences import Basis, sentences
from sp_profiler.report.terminal import print_report


def with_ranks(name: str = "tp[0,1]") -> Report:
    drawn = make_report()
    group = replace(
        drawn.groups[0],
        group=name,
        skew_wait_ns=9 * MS,
        bandwidth=[Bandwidth("all_reduce", 12, 120 << 20, 4 * MS, 31.5, 31.5, True)],
    )
    return replace(
        drawn,
        groups=[group],
        clocks=[
            Clock(name, [0], 0, 1_200, 800, False, 12),
            Clock("node2", [1], -7_000_000, 2_500, 900, True, 12),
        ],
        stragglers=[Straggler(1, 8 * MS, 5, {name: 8 * MS}), Straggler(0, MS, 1, {name: MS})],
        unmatched=[Unmatched(name, "all_gather", 7, [0], [1])],
    )


def terminal(report: Report) -> str:
    out = io.StringIO()
    print_report(report, Console(file=out, width=160))
    return out.getvalue()


def test_tables_of_the_page_hold_the_reports_fields() -> None:
    made = {table.id: table for table in view.tables(with_ranks())}
    assert made["stragglers"].rows[0] == [1, 8 * MS, 8 / 9, 5, "tp[0,1]"]
    assert made["bandwidth"].rows == [
        ["tp[0,1]", "all-reduce", 12, 120 << 20, 4 * MS, 31.5, 31.5, "lower bound"]
    ]
    assert made["clocks"].rows[1] == ["node2", "1", -7_000_000, 2_500, 900, "yes", 12]
    assert made["unmatched"].rows == [["tp[0,1]", "all-gather", 7, 1, "0", "1", "not in their traces"]]


def test_what_is_not_there_is_not_shown() -> None:
    ids = {table.id for table in view.tables(make_report())}
    assert ids.isdisjoint({"stragglers", "bandwidth", "clocks", "unmatched"})
    assert "Across ranks" not in terminal(make_report())


def test_terminal_and_markdown_show_them() -> None:
    text = terminal(with_ranks())
    assert "who the others waited for" in text
    assert "GB/s" in text
    assert "node2" in text
    shown = markdown.render(with_ranks())
    assert "| 1 | 8.00 | 89 | 5 | tp\\[0,1\\] |" in shown
    assert "lower bound" in shown


def test_a_long_name_keeps_its_ends_on_a_terminal() -> None:
    name = f"dp[{','.join(map(str, range(64)))}]"
    text = terminal(with_ranks(name))
    assert "dp[0,1,2" in text
    assert "62,63]" in text
    assert name not in text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert(name: str) -> None:
    report = with_ranks(name)
    assert "\x1b" not in terminal(report)
    page = html.render(report)
    assert "<img src=x" not in page
    assert "</script><script>" not in page
    assert "<img" not in markdown.render(report).replace("\\<img", "")
    assert report_json.read_report(report_json.render(report)) == report
    for table in ("clocks", "stragglers", "unmatched", "bandwidth", "groups"):
        assert not any(line.startswith("=") for line in tables.csv_tables(report)[table].splitlines())


def test_tables_for_programs() -> None:
    report = with_ranks()
    assert tables.to_polars(report, "stragglers")["cost_ns"].to_list() == [8 * MS, MS]
    assert tables.to_polars(report, "bandwidth")["busbw_gbps"].to_list() == [31.5]
    assert tables.to_polars(report, "clocks")["offset_ns"].to_list() == [0, -7_000_000]
    assert tables.to_polars(report, "unmatched")["ranks_missing"].to_list() == [[1]]
    assert "bandwidth" not in tables.to_polars(report, "groups").columns


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        ((Straggler(1, 9 * MS, 5),), "; all of it is for rank 1, which is last in 5 matched collectives."),
        (
            (Straggler(1, 6 * MS, 1),),
            "; 1.00 ms of it are for rank 1, which is last in 1 matched collective.",
        ),
        ((), "no rank is later than the others beyond what the clocks can tell"),
    ],
)
def test_the_sentence_names_who_costs_most(late: tuple[Straggler, ...], expected: str) -> None:
    report = make_report()
    basis = Basis(report.totals, report.ranks, report.collectives, 3, 6, False, 9 * MS, late)
    (said,) = [one for one in sentences(basis) if "for the last to arrive" in one]
    assert said.startswith("Ranks wait 1.50 ms per step for the last to arrive; ")
    assert expected in said


def test_the_waits_are_set_beside_what_was_compared_and_exposed() -> None:
    report = make_report()
    compared = [replace(one, skew_wait_ns=0, dur_ns=MS) for one in report.collectives[:18]]
    totals = replace(report.totals, exposed_by_cause_ns={"peer-skew": 6 * MS})
    basis = Basis(totals, report.ranks, compared, 3, 6, False, 9 * MS, (Straggler(1, 9 * MS, 5),))
    (said,) = [one for one in sentences(basis) if "for the last to arrive" in one]
    assert said.startswith(
        "Ranks wait 1.50 ms per step for the last to arrive, 50 % of the time in the collectives that could "
        "be compared and 1.00 ms of it exposed; all of it is for rank 1"
    )
    (said,) = [one for one in sentences(replace(basis, steps=0)) if "for the last to arrive" in one]
    assert said.startswith("A rank waits 1.50 ms for the last to arrive")


def test_without_other_ranks_nothing_is_said() -> None:
    report = make_report()
    basis = Basis(report.totals, report.ranks, report.collectives, 3, 6, False)
    assert not any("for the last to arrive" in one for one in sentences(basis))
