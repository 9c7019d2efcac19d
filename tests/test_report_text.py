"""Markdown and the terminal: sentences first, tables that hold, hostile names inert."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from report_helpers import HOSTILE, make_report
from rich.console import Console
from test_report_html import hostile_report

from sp_profiler.report import html, markdown, terminal
from sp_profiler.report.compare_table import compare_table, ordered, run_label
from sp_profiler.report.format import milliseconds
from sp_profiler.report.model import Report, windows_of


def printed(report: Report, width: int = 120, *, is_terminal: bool = False, several: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=is_terminal)
    if several:
        terminal.print_comparison([report, make_report(comm="sync")], console)
    else:
        terminal.print_report(report, console)
    return out.getvalue()


def test_terminal_says_the_sentences_first() -> None:
    lines = printed(make_report(summary=["First.", "Second."])).splitlines()
    assert lines[:3] == ["tp-async", "First.", "Second."]


def test_pipe_gets_plain_text() -> None:
    for text in (printed(make_report()), printed(make_report(), several=True)):
        assert "\x1b" not in text
    assert "\x1b[" in printed(make_report(), is_terminal=True)


def test_narrow_pipe_is_widened_and_lines_stay_whole() -> None:
    sentence = "word " * 60 + "end."
    assert sentence in printed(make_report(summary=[sentence]), 40)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_tables_fit_the_terminal_without_cutting_numbers(width: int) -> None:
    for several in (False, True):
        text = printed(make_report(), width, is_terminal=True, several=several)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert max(map(len, plain.splitlines())) <= width
        assert "…" not in plain


def test_terminal_shows_ranks_purposes_left_out_and_ledger() -> None:
    text = printed(make_report())
    assert re.search(r"^ 1 +19\.7 +15\.5 +8\.00 +3\.90 +4\.10 +3\.90 +0\.10 +0\.04 +100 %", text, re.M)
    assert re.search(r"^ dgrad +12 +6\.00 +3\.95 +2\.05 +100 %", text, re.M)
    assert "Left out, all ranks: 600.0 µs of computation before the first window (8 events)." in text
    assert "Data quality: 1 note." in text
    assert "12 kernels cross a window. (×12)" in text


@pytest.mark.parametrize("name", [*HOSTILE, "nul\0"])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_hostile_names_are_inert_on_the_terminal(name: str, is_terminal: bool) -> None:
    report = hostile_report(name)
    for several in (False, True):
        text = printed(report, 400, is_terminal=is_terminal, several=several)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text) if is_terminal else text
        assert not set(plain) & set("\x00\x1b\x9b\u202e\u2066\u2028\r")
        if is_terminal:  # our own styles only: the name's red is not among the codes
            assert "\x1b[31mred" not in text
        if name == "[red]not red[/red]" and not several:
            assert name in plain  # markup is text


def test_side_by_side() -> None:
    table = compare_table([make_report(comm="async"), make_report(comm="sync")])  # sync comes first anyway
    assert [name for name, _ in table.rows] == ["TP sync", "TP async"]
    by_label = {column.label: place for place, column in enumerate(table.columns)}
    sync, asynchronous = (cells for _, cells in table.rows)
    assert sync[by_label["overlapped"]] == "0"
    assert asynchronous[by_label["overlapped"]] == "3.95"
    assert sync[by_label["wgrad hides"]] == "0 %"
    assert asynchronous[by_label["hidden"]] == "100 %"
    assert {column.path.split(".")[0] for column in table.columns} == {"totals"}


@pytest.mark.parametrize(
    ("mode", "save", "comm", "label"),
    [
        ("tp", None, "sync", "TP sync"),
        ("sp", "full", "sync", "SP basic"),
        ("sp", "shard", "async", "SP recompute"),
        ("sp", "full", "async", "SP save=full async"),
        ("ddp", None, "sync", "DDP"),
    ],
)
def test_runs_are_called_as_people_call_them(mode: str, save: str | None, comm: str, label: str) -> None:
    assert run_label(make_report(mode=mode, save=save, comm=comm)) == label


@pytest.mark.parametrize(
    ("schedule", "label"),
    [
        ({"mode": "tp", "comm": "async"}, "TP async, selective recompute"),
        ({"mode": "sp", "save": "shard", "comm": "async"}, "SP recompute, selective recompute"),
        ({"mode": "ddp"}, "DDP, selective recompute"),
    ],
)
def test_recompute_is_part_of_a_runs_name(schedule: dict[str, str], label: str) -> None:
    plain = make_report(**schedule)
    again = replace(plain, run=replace(plain.run, workload={**schedule, "recompute": "selective"}))
    assert run_label(again) == label
    assert ordered([again, plain]) == [plain, again]


@pytest.mark.parametrize(
    ("workload", "label"),
    [
        ({"mode": "ring", "layout": "zigzag", "comm": "async"}, "Ring zigzag async"),
        (
            {"mode": "usp", "ulysses": 2, "layout": "striped", "comm": "sync", "tp": 2, "inside": "sp"},
            "USP 2 striped sync, SP 2",
        ),
        ({"mode": "ulysses", "comm": "async", "causal": False}, "Ulysses async, no mask"),
        (
            {"mode": "rsa", "layout": "contiguous", "comm": "sync", "attention_only": True, "tp": 1},
            "Ring self-attention contiguous sync, attention only",
        ),
        ({"mode": "ring", "layout": "zigzag", "recompute": "full"}, "Ring zigzag, full recompute"),
    ],
)
def test_context_parallelism_is_called_by_scheme_and_layout(workload: dict[str, Any], label: str) -> None:
    plain = make_report()
    assert run_label(replace(plain, run=replace(plain.run, workload=workload))) == label


def test_a_table_of_rings_tells_what_is_under_attention_and_nothing_of_wgrad() -> None:
    def ring(layout: str, comm: str) -> Report:
        made = make_report(comm=comm)
        workload = {"mode": "ring", "layout": layout, "comm": comm}
        totals = replace(
            made.totals, dgrad_comm_ns=0, overlapped_by_role_ns={"attention": 6_000_000, "other": 1}
        )
        return replace(made, run=replace(made.run, workload=workload), totals=totals)

    runs = [ring("contiguous", "async"), ring("zigzag", "async"), ring("zigzag", "sync")]
    table = compare_table(runs)
    assert [name for name, _ in table.rows] == [
        "Ring zigzag sync",
        "Ring zigzag async",
        "Ring contiguous async",
    ]
    labels = [column.label for column in table.columns]
    assert not {"dgrad comm", "under wgrad", "wgrad hides"} & set(labels)
    windows = windows_of(runs[0])
    assert {cells[labels.index("under attention")] for _, cells in table.rows} == {
        milliseconds(6_000_000 / windows)
    }
    out = io.StringIO()
    for width in (40, 120):
        terminal.print_comparison(runs, Console(file=out, width=width))
    assert "Ring contiguous async" in out.getvalue()
    assert "under attention" not in [column.label for column in compare_table([make_report()]).columns]


def table_rows(text: str) -> list[list[str]]:
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| ")]


def test_markdown_has_the_sentences_and_whole_tables() -> None:
    report = make_report(summary=["First.", "Second."])
    text = markdown.render(report)
    assert text.startswith("# Communication overlap of tp-async\n\n- First.\n- Second.\n")
    assert "| Exposed communication | 4.05 ms |" in text
    widths = [len(row) for row in table_rows(text)]
    header = 0
    for row, width in zip(table_rows(text), widths, strict=True):
        if set("".join(row)) <= set(" -:"):
            assert width == header
        header = width


@pytest.mark.parametrize(
    "name", [*HOSTILE, "a|b", "https://evil.example", "www.evil.example", "@all #1 :bomb:"]
)
def test_hostile_names_are_inert_in_markdown(name: str) -> None:
    text = markdown.render(hostile_report(name))
    assert not set(text) & set("\x00\x1b\x9b\u202e\u2066\u2028\r")
    for char in "<`|[_*~@":  # whatever could begin something is escaped, but for the tables' own bars
        bare = re.findall(rf"(?<!\\)(?:\\\\)*{re.escape(char)}", re.sub(r"(?m)^\|.*\|$", cells_only, text))
        own = {"*": 2 * text.count("**warning**") * 2, "_": 2}.get(char, 0)
        assert len(bare) <= own, (char, bare[:3])
    assert not re.search(r"(?<!\\)://", text)
    assert "www.e" not in text
    clean = markdown.render(hostile_report("plain"))
    assert [len(row) for row in table_rows(text)] == [len(row) for row in table_rows(clean)]
    assert text.count("\n#") == clean.count("\n#")  # no heading more


def cells_only(line: re.Match[str]) -> str:
    return " ".join(re.split(r"(?<!\\)\|", line[0]))


def test_markdown_comparison() -> None:
    text = markdown.render_comparison([make_report(comm="sync"), make_report(comm="async")], "demo")
    rows = table_rows(text)
    assert [row[0].strip() for row in rows] == ["Run", "---", "TP sync", "TP async"]
    assert len({len(row) for row in rows}) == 1


def test_a_comparison_says_what_its_shares_are_shares_of() -> None:
    """The sentence tells of dgrad alone, the column beside it of all purposes."""
    report = make_report(comm="async")
    dgrad = replace(report.totals.hiding_by_purpose["dgrad"], hidden_of_hideable=0.74)
    totals = replace(report.totals, hiding_by_purpose={"dgrad": dgrad}, hidden_of_hideable=0.31)
    runs = [replace(report, totals=totals)]
    page = html.render_comparison(runs, "demo")
    assert "74 % of the dgrad communication that could be hidden." in re.sub(r"</?b>", "", page)
    assert 'hidden <span class="unit">of all hideable</span>' in page
    assert 'data-path="totals.hidden_of_hideable">31 %<' in page
    assert "hidden (of all hideable)" in markdown.render_comparison(runs, "demo")
    assert "all hideable" in printed(runs[0], several=True)


def test_unknown_is_not_zero_in_text() -> None:
    report = make_report()
    totals = replace(report.totals, partner_hideable_ns=None, hidden_of_hideable=None)
    assert "| Hidden of hideable | unknown |" in markdown.render(replace(report, totals=totals))
