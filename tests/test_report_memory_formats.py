"""Memory in every format, and of several runs beside each other."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
from memory_report_helpers import F, make_memory, saved_of
from report_helpers import HOSTILE, make_report
from rich.console import Console

import sp_profiler
from sp_profiler.report import comparison, markdown, memory_compare, save, terminal
from sp_profiler.report import json as report_json
from sp_profiler.report.memory import memory_json
from sp_profiler.report.memory_markdown import render_markdown
from sp_profiler.report.memory_terminal import render_terminal
from sp_profiler.report.model import Report

DEMO = Path(__file__).resolve().parent.parent / "traces" / "demo"


def with_memory(**more: Any) -> Report:
    memory = make_memory(saved=[saved_of(0, 512), saved_of(1, 512)])
    return replace(make_report(mode="sp", save="full", comm="sync", **more), memory=memory)


def four_runs() -> list[Report]:
    kinds = (("sp", "shard", "async"), ("tp", None, "sync"), ("sp", "full", "sync"), ("tp", None, "async"))
    return [
        replace(make_report(mode=mode, save=save, comm=comm), memory=make_memory(mode, save))
        for mode, save, comm in kinds
    ]


def printed(print_it: Any, *args: Any, width: int = 120, **more: Any) -> str:
    console = Console(file=StringIO(), width=width)
    print_it(*args, **more, console=console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


# --- formats ---------------------------------------------------------------------------------------


def test_json_follows_the_schema_and_comes_back_equal() -> None:
    report = with_memory()
    text = report_json.render(report)
    jsonschema.validate(json.loads(text), report_json.schema())
    assert report_json.read_report(text) == report
    memory = json.loads(text)["memory"]
    for key in ("source", "peak_bytes", "peak_ns", "peak_by_category", "peak_blocks", "across_border_bytes",
                "across_border_by_module", "saved_bytes", "theory_bytes", "blocks", "unpaired"):  # fmt: skip
        assert key in memory
    assert memory["across_border_bytes"] == 20 * F


def test_data_files_hold_every_block_border_and_term() -> None:
    report = with_memory()
    memory = report.memory
    assert memory is not None
    blocks = report.to_polars("memory_blocks")
    assert blocks.height == sum(len(one.blocks or ()) for one in memory.ranks)
    assert blocks["address"][0].startswith("0x8000000")  # beyond int64
    assert blocks.filter(blocks["crosses_border"])["bytes"].sum() == 2 * 20 * F
    peaks = report.to_polars("memory_peaks")
    parts = peaks.select([c for c in peaks.columns if c.startswith("peak_by_category.")])
    assert parts.sum_horizontal().to_list() == peaks["peak_bytes"].to_list()
    borders = report.to_polars("memory_borders")
    assert set(borders.group_by("rank", "by").agg(pl.col("bytes").sum())["bytes"].to_list()) == {20 * F}
    terms = report.to_polars("saved_tensors")
    assert terms.filter(terms["layer"].is_null() & (terms["rank"] == 0))["bytes"].sum() == 24 * F + 512


def test_terminal_and_markdown_show_the_section() -> None:
    report = with_memory()
    text = printed(terminal.print_report, report)
    for part in ("Memory by rank", "Measured beside theory, term by term", "column-input", "120.0 MiB"):
        assert part in text
        assert part in markdown.render(report)
    alone = printed(render_terminal, report.memory, "run")
    assert "Blocks kept for backward" in alone
    assert "Blocks kept for backward" in render_markdown(report.memory, "run")
    assert json.loads(memory_json(report.memory, "run"))["memory"]["across_border_bytes"] == 20 * F


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_table_is_wider_than_the_terminal(width: int) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    render_terminal(with_memory().memory, "run", console=console)
    assert isinstance(console.file, StringIO)
    assert max(len(line) for line in console.file.getvalue().splitlines()) <= width


def test_sizes_have_binary_units_and_never_decimal_ones() -> None:
    text = printed(render_terminal, with_memory().memory, "run") + render_markdown(
        with_memory().memory, "run"
    )
    assert "MiB" in text
    assert " MB" not in text
    assert " GB" not in text


def test_without_events_every_format_says_how_to_record_them(tmp_path: Path) -> None:
    from test_report_build import assembled

    report = assembled(make_report())
    assert report.memory is None
    files = save.save(report, ["json", "html", "markdown", "csv"], tmp_path, force=False)
    texts = {path.name: path.read_text() for path in files}
    texts["terminal"] = printed(terminal.print_report, report, width=400)
    texts["alone"] = printed(render_terminal, None, "run", width=400)
    texts["alone.md"] = render_markdown(None, "run")
    for name in (
        "report.json",
        "report.html",
        "report.md",
        "data_quality.csv",
        "terminal",
        "alone",
        "alone.md",
    ):
        assert "profile_memory=True" in texts[name].replace("\\", ""), name
    assert json.loads(texts["report.json"])["memory"] is None
    for table in ("memory_blocks", "memory_peaks", "memory_borders", "saved_tensors"):
        assert len(texts[f"{table}.csv"].splitlines()) == 1  # the header alone


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert(name: str) -> None:
    memory = make_memory(name=name)
    report = replace(make_report(), memory=memory)
    text = printed(render_terminal, memory, name) + printed(terminal.print_report, report)
    assert all(char in "\n" or char.isprintable() for char in text)
    shown = render_markdown(memory, name)
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert "<script>" not in shown.replace("\\<", "")
    report.to_polars("memory_blocks")


# --- runs beside each other ------------------------------------------------------------------------


def test_gathered_inputs_of_sp_basic_are_the_blocks_that_sp_recompute_does_not_have() -> None:
    table = memory_compare.gathered(four_runs())
    assert [label for label, _, _ in table.columns] == [
        "Gathered input of", "TP sync", "TP async", "SP basic", "SP recompute"
    ]  # fmt: skip
    *modules, whole = table.rows
    assert [row[0] for row in modules] == [
        f"layers.{layer}.{linear}"
        for layer in (0, 1)
        for linear in ("attention.k", "attention.q", "attention.v", "mlp.gate", "mlp.up")
    ]
    assert all(row[1:] == [0, 0, F, 0] for row in modules)
    assert whole[1:] == [0, 0, 10 * F, 0]


def test_side_by_side_says_what_the_family_differs_by() -> None:
    runs = four_runs()
    assert [row[0] for row in memory_compare.side_by_side(runs).rows] == [
        "TP sync",
        "TP async",
        "SP basic",
        "SP recompute",
    ]
    assert memory_compare.answers(runs) == [
        "SP recompute keeps 48.0 MiB less for backward than SP basic (120.0 MiB): 60.0 MiB less of gathered "
        "inputs and 12.0 MiB more of activations."
    ]
    text = printed(terminal.print_comparison, runs)
    assert "Peak: as the allocator counts it" in text
    for part in ("Memory side by side", "layers.1.mlp.up", "SP recompute keeps 48.0 MiB less"):
        assert part in text
        assert part in markdown.render_comparison(runs, "demo")


def test_peaks_are_compared_by_what_lives_in_a_step() -> None:
    """What the allocator counts on CPU depends on which thread frees: tensors tell the runs apart."""
    runs = four_runs()
    assert "Peak of tensors" not in [label for label, *_ in memory_compare.side_by_side(runs).columns]
    first, *rest = runs
    assert first.memory is not None
    saved = [replace(saved_of(rank), peak_bytes=30 * F + rank) for rank in (0, 1)]
    table = memory_compare.side_by_side([replace(first, memory=replace(first.memory, saved=saved)), *rest])
    assert table.columns[2][0] == "Peak of tensors"
    assert [row[2] for row in table.rows if row[2] is not None] == [30 * F + 1]


def test_the_comparison_for_programs_has_the_same_figures() -> None:
    runs = four_runs()
    told = {one["name"]: one["memory"] for one in json.loads(comparison.render(runs, "json"))["runs"]}
    basic, recompute = told["sp-full-sync"], told["sp-shard-async"]
    assert (basic["across_border_bytes"], recompute["across_border_bytes"]) == (20 * F, 12 * F)
    assert basic["across_border_by_category"] == {"activation": 10 * F, "communication": 10 * F}
    assert basic["gathered_by_module"]["layers.1.mlp.up"] == F
    assert recompute["gathered_by_module"] == {}
    none = json.loads(comparison.render([replace(runs[0], memory=None)], "json"))
    assert none["runs"][0]["memory"] is None


def test_runs_without_memory_say_nothing_of_it_when_compared() -> None:
    runs = [replace(run, memory=None) for run in four_runs()]
    assert memory_compare.listings(runs) == []
    assert memory_compare.answers(runs) == []
    assert "Memory" not in printed(terminal.print_comparison, runs)


def test_a_run_without_memory_is_unknown_beside_one_that_has_it() -> None:
    first, *_ = four_runs()
    rows = memory_compare.side_by_side([first, replace(four_runs()[1], memory=None)]).rows
    assert rows[0][1:] == [None] * 7
    assert rows[1][1] is not None


def test_many_gathered_modules_are_cut_and_counted() -> None:
    memory = make_memory(layers=6)
    table = memory_compare.gathered([replace(make_report(), memory=memory)])
    assert len(table.rows) == memory_compare.MOST_ROWS + 1
    assert table.rows[-1] == ["all", 30 * F]
    assert "18 more modules" in table.note


def test_the_shipped_runs_show_the_gathered_inputs_at_once() -> None:
    """traces/demo, measured: ten gathered inputs of F in SP basic, of which SP recompute has none."""
    names = ("tp-sync", "tp-async", "sp-basic", "sp-recompute")
    runs = [sp_profiler.analyze(DEMO / name) for name in names]
    size = 4 * 256 * 2 * 256
    rows = {row[0]: row[1:] for row in memory_compare.gathered(runs).rows}
    linears = [
        f"layers.{layer}.{name}"
        for layer in (0, 1)
        for name in ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")
    ]
    assert all(rows[linear] == [0, 0, size, 0] for linear in linears)
    assert set(rows) - set(linears) == {"head", "all"}
    said = [sentence for run in runs for sentence in run.summary]
    kept = "17.0 MiB stay alive from forward to backward on rank 0, of which 5.50 MiB (32 %)"
    assert f"{kept} are gathered inputs of linears." in said
