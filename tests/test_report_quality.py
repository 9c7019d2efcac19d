"""What a screen shows of the ledger, of what nobody could look at, and of runs without steps."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from report_helpers import make_report
from rich.console import Console

from sp_profiler.analysis.results import ContentionFigures
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import markdown, quality, terminal, view
from sp_profiler.report.build import _said_unknown, _unknown_by_coverage
from sp_profiler.report.compare_table import compare_table
from sp_profiler.report.model import Coverage, Finding, Report, Window
from sp_profiler.report.tables import TABLES

ENTRIES = [
    LedgerEntry("a", "note", "a note", "rank0.json", 16, 5),
    LedgerEntry("a", "note", "a note", "rank1.json", 2, 3),
    LedgerEntry("b", "assumption", "assumed"),
    LedgerEntry("not-analysed-critical-path", "note", "ask for it"),
]


def printed(report: Report) -> str:
    out = io.StringIO()
    terminal.print_report(report, Console(file=out, width=120))
    return out.getvalue()


def test_equal_entries_of_several_files_are_one_and_what_nobody_asked_for_is_none() -> None:
    shown = quality.shown(ENTRIES)
    assert [(one.code, one.count, one.file) for one in shown] == [("b", 1, None), ("a", 18, None)]
    assert quality.totals(shown) == "1 assumption, 1 note"
    report = replace(make_report(), data_quality=ENTRIES)
    assert "Data quality: 1 assumption, 1 note.\n  assumption assumed\n  note a note (×18)\n" in printed(
        report
    )
    assert "ask for it" not in markdown.render(report)
    assert "Data quality" not in printed(replace(report, data_quality=ENTRIES[3:]))


def test_dgrad_is_null_where_no_purpose_is_known_and_wgrad_where_no_role_is() -> None:
    totals = make_report().totals
    nobody = _unknown_by_coverage(totals, Coverage(1.0, 0.0, 1.0))
    assert (nobody.dgrad_comm_ns, nobody.wgrad_overlapped_ns, nobody.wgrad_overlap_ratio) == (
        None,
        None,
        None,
    )
    assert [entry.code for entry in _said_unknown(nobody)] == ["wgrad-overlap-unknown"]
    no_role = _unknown_by_coverage(totals, Coverage(0.0, 1.0, 1.0))
    assert (no_role.dgrad_comm_ns, no_role.wgrad_overlapped_ns) == (totals.dgrad_comm_ns, None)
    assert _unknown_by_coverage(totals, Coverage(0.1, 0.1, 1.0)) == totals
    silent = replace(totals, comm_ns=0, dgrad_comm_ns=0)
    assert _unknown_by_coverage(silent, Coverage(0.0, None, None)) == silent
    assert _said_unknown(totals) == []


def test_runs_without_steps_are_marked() -> None:
    stepped = make_report(comm="sync")
    whole = replace(make_report(comm="async"), window=Window("trace", []))
    mixed = compare_table([stepped, whole])
    assert [name for name, _ in mixed.rows] == ["TP sync", "TP async*"]
    assert mixed.note == "Times are means per step and rank; runs marked * have no steps: whole trace."
    assert compare_table([stepped]).note == "Times are means per step and rank."
    alone = compare_table([whole])
    assert alone.rows[0][0] == "TP async"
    assert alone.note == "The runs have no steps: times are means per rank over the whole trace."


def test_cards_tell_none_from_unknown() -> None:
    report = make_report()
    nothing = replace(
        report.totals, comm_ns=0, dgrad_comm_ns=0, wgrad_overlap_ratio=None, partner_hideable_ns=None,
        hidden_of_hideable=None,
    )  # fmt: skip
    shown = {one.path: one for one in view.cards(replace(report, totals=nothing))}
    for path in ("totals.wgrad_overlap_ratio", "totals.hidden_of_hideable"):
        assert (shown[path].text, shown[path].raw, shown[path].note) == (
            "none",
            "null",
            "no communication in this run",
        )
    other = replace(report.totals, dgrad_comm_ns=0, wgrad_overlap_ratio=None)
    for ratio, text in ((1.0, "none"), (0.5, "unknown")):
        known = replace(report, totals=other, coverage=Coverage(1.0, ratio, 1.0))
        assert {one.path: one.text for one in view.cards(known)}["totals.wgrad_overlap_ratio"] == text


def test_one_rank_is_not_called_the_slowest() -> None:
    assert "slowest rank" in view.cards(make_report(ranks=2))[0].note
    assert [view.cards(make_report(ranks=1, steps=steps))[0].note for steps in (1, 3)] == ["", "mean"]


def test_markdown_says_where_the_other_rows_are_and_lists_evidence() -> None:
    found = Finding("x", "info", "Text.", {"ops": ["all-reduce"], "examples": [{"id": 3}, {"id": 4}]}, "Do.")
    text = markdown.render(replace(make_report(steps=3, layers=4), findings=[found]))
    assert "  - ops: all-reduce\n  - examples 1: id 3\n  - examples 2: id 4" in text
    assert "All rows are in collectives.csv (--format csv)." in text
    assert "data files" not in text


def test_a_cut_table_ends_with_what_the_others_add_up_to() -> None:
    """Of 25 modules 20 stand in Markdown; the last line holds the other five."""
    report = make_report()
    modules = {f"m{k}": (25 - k) * 1_000_000 for k in range(25)}
    totals = replace(report.totals, exposed_by_module_ns=modules, exposed_ns=sum(modules.values()))
    text = markdown.render(replace(report, totals=totals))
    section = text[text.index("## Exposed by module") :]
    lines = section[: section.index("\n## ")].splitlines()
    rows = [line for line in lines if line.startswith(("| m", "| …"))]
    assert rows[19] == "| m19 | 6.00 | 1.8 |"
    assert rows[20] == "| … and 5 more rows | 15.0 | 4.6 |"
    assert len(rows) == 21
    assert "All rows are in exposed.csv (--format csv)." in lines


def test_where_all_rows_are_is_true() -> None:
    """Every file that a cut table names exists."""
    report = make_report()
    named = {markdown.where_all_are(table.id) for table in view.tables(report)}
    for name in ("left_out", "memory-ranks", "memory-border", "memory-blocks", "memory-saved"):
        named.add(markdown.where_all_are(name))
    files = {found for text in named for found in re.findall(r"(\w+)\.csv", text)}
    assert len(files) > 8
    assert files <= set(TABLES)
    assert markdown.where_all_are("memory-oom") == "All of it is in the JSON report."


def test_the_terminal_says_which_gemms_it_leaves_out() -> None:
    shape = ContentionFigures(
        shape="M=1 N=1 K=1", role="wgrad", dtype="bfloat16", overlapped_count=9, alone_count=9,
        median_overlapped_ns=2000, median_alone_ns=1000, from_baseline=None, slowdown_ratio=2.0,
        slowdown_ns=9000, overlapped_gemm_ns=18_000,
    )  # fmt: skip
    many = [replace(shape, shape=f"M={k} N=1 K=1") for k in range(20)]
    assert "the 16 that lose most of 20" in printed(replace(make_report(), contention=many))
    assert "that lose most of" not in printed(replace(make_report(), contention=many[:16]))


def test_every_sum_says_what_it_sums() -> None:
    report = make_report()
    for table in view.tables(report):
        if table.id in ("kinds", "groups", "gemms", "bandwidth", "stragglers") or table.id.startswith(
            "exposed"
        ):
            assert "all ranks and steps" in table.note, table.id
    text = printed(report)
    assert "By purpose, ms per step and rank; collectives of all ranks and steps\n" in text
    assert "By rank, ms per step, most exposed first\n" in text
