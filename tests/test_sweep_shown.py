"""A sweep as it is shown: relative figures, sentences, and every format from the same cells."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
from browser_helpers import Page
from browser_helpers import page as page  # a fixture
from rich.console import Console

from sp_profiler.cli.main import main
from sp_profiler.errors import HangError, UsageError, WorkloadError
from sp_profiler.sweeps import figures, html, markdown, tables, terminal
from sp_profiler.sweeps import json as sweep_json
from sp_profiler.sweeps.assemble import assemble
from sp_profiler.sweeps.cell import spread
from sp_profiler.sweeps.failures import classify
from sp_profiler.sweeps.grid import cells_of
from sp_profiler.sweeps.model import Cell, CellMemory, CellProfile, Settings, Sweep
from sp_profiler.sweeps.request import SweepRequest

SETTINGS = Settings(5, 3, 2, 2, "fixed-per-rank", "gloo", 0)
MS = 1_000_000
MIB = 2**20


def measured(
    cell: Cell, repeats_ms: list[float], peak: int, device: str = "cuda", factor: float = 1.05
) -> Cell:
    """The cell as if two equal ranks had found these."""
    step = spread([[round(ms * MS) for ms in repeats_ms]] * 2)
    saved = cell.theory.saved_bytes
    source = "tensors" if device == "cpu" else "allocator"
    profile: dict[str, Any] = {field.name: None for field in dataclasses.fields(CellProfile)}
    profile |= {"step_ns": round(step.median_ns * factor), "overhead_factor": factor, "comm_ns": 4 * MS}
    profile |= {"exposed_ns": 3 * MS, "overlapped_ns": MS, "wgrad_hidden_of_hideable": 0.5}
    return dataclasses.replace(
        cell,
        status="ok",
        step=step,
        tokens_per_s=cell.tokens_per_step / (step.median_ns / 1e9),
        memory=CellMemory(peak, source, None, peak, 300 * MIB, 200 * MIB, saved, 1, 1, 2),
        profile=CellProfile(**profile),
        device_type=device,
        hardware=["2 × H100"],
    )


def made(baseline: str | None = None, device: str = "cuda", policy: str = "fixed-per-rank") -> Sweep:
    """DDP, TP sync and async of 2 and 4 layers; the last ran out of memory."""
    grid = cells_of(SweepRequest({"mode": ("ddp", "tp")}, batch_policy=policy))
    times = {"ddp": [8, 8, 8, 9, 10], "tp-sync": [10, 10, 10, 11, 12], "tp-async": [9.9, 10, 10, 10, 10]}
    peaks = {"ddp": 40, "tp-sync": 20, "tp-async": 24}
    cells = [measured(c, times[c.scheme], peaks[c.scheme] * MIB, device) for c in grid.cells]
    cells[-1] = dataclasses.replace(
        grid.cells[-1],
        status="oom",
        reason="rank 1 of 2 failed: | no <memory>",
        log="cells/x/logs/failure.txt",
    )
    settings = dataclasses.replace(SETTINGS, batch_policy=policy)
    return assemble(cells, settings, command=["x"], skipped=grid.skipped, baseline=baseline, hardware=None)


def test_spread_is_of_the_slowest_rank_of_each_repeat() -> None:
    one = spread([[10, 20, 30, 40, 50], [12, 18, 33, 35, 90]])
    assert one.repeats_ns == [12, 20, 33, 40, 90]
    assert (one.median_ns, one.q1_ns, one.q3_ns, one.min_ns, one.max_ns) == (33, 20, 40, 12, 90)
    assert spread([[7]]).q3_ns == 7


def test_cells_are_relative_to_the_baseline_at_their_own_size() -> None:
    by_name = {(c.scheme, c.sizes["layers"]): c for c in made("tp-sync").cells}
    ddp = by_name["ddp", 4].relative
    assert ddp is not None
    assert (ddp.step, ddp.memory, ddp.work) == (0.8, 2.0, 2.0)
    assert ddp.tokens_per_s == pytest.approx(2.5)
    assert ddp.step_within_spread is False
    tp = by_name["tp-async", 2].relative
    assert tp is not None
    assert (tp.step, tp.step_within_spread, tp.work) == (1.0, True, 1.0)
    failed = by_name["tp-async", 4].relative
    assert failed is not None
    assert (failed.step, failed.memory, failed.tokens_per_s) == (None, None, None)


def test_the_baseline_is_the_first_scheme_or_the_one_named_or_an_alias() -> None:
    assert made().baseline == "ddp"
    assert made("tp").baseline == "tp-sync"
    assert made("tp-async").baseline == "tp-async"
    with pytest.raises(
        UsageError, match="--baseline sp-basic is not among the schemes of this sweep: ddp, tp"
    ):
        made("sp-basic")


def test_unequal_work_is_warned_of_and_equal_work_is_not() -> None:
    said = " ".join(made().sentences)
    assert "Unequal work: a step of DDP trains 2 times the tokens of one of TP sync and TP async" in said
    assert "compare tokens per second, not step times" in said
    assert "or use --batch-policy fixed-global" in said
    assert "Unequal work" not in " ".join(made(policy="fixed-global").sentences)


def test_cpu_runs_are_said_to_show_structure_and_gpu_runs_are_compared() -> None:
    on_cpu, on_gpu = " ".join(made("tp-sync", "cpu").sentences), " ".join(made("tp-sync").sentences)
    assert "structure" in on_cpu
    assert "not for speed" in on_cpu
    assert "Fastest" not in on_cpu
    assert "structure" not in on_gpu
    assert "Fastest at 2 layers: DDP trains 150 % more tokens per second than TP sync." in on_gpu


def test_the_sentences_count_name_failures_and_state_the_profilers_cost() -> None:
    sweep = made()
    assert sweep.sentences[0] == "5 of 6 cells measured, 1 failed."
    assert sweep.sentences[-1].startswith("tp-async-r2-l4-s256-b2 ran out of memory: rank 1 of 2 failed")
    assert "cells/x/logs/failure.txt" in sweep.sentences[-1]
    assert "Profiled steps took 1.05 times the unprofiled ones." in sweep.sentences
    quick = measured(sweep.cells[0], [8, 8, 8], MIB, factor=0.68)
    said = assemble([quick], SETTINGS, command=[], skipped=[], baseline=None, hardware=None).sentences
    noise = "; below 1 the machine was busier in the timed steps."
    assert f"Profiled steps took 0.68 times the unprofiled ones{noise}" in said
    slow = measured(sweep.cells[0], [8, 8, 8], MIB, factor=2.5)
    said = assemble([slow], SETTINGS, command=[], skipped=[], baseline=None, hardware=None).sentences
    assert any(
        one.startswith("The profiler slows what it measures: profiled steps took 2.50") for one in said
    )


def test_json_follows_the_schema_that_ships_and_reads_back() -> None:
    sweep = made()
    shipped = json.loads(sweep_json.SCHEMA_PATH.read_text())
    assert shipped == sweep_json.schema()
    plain = json.loads(sweep.to_json())
    jsonschema.validate(plain, shipped)
    broken = plain | {"cells": [{**plain["cells"][0], "status": "perhaps"}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, shipped)


def test_csv_and_parquet_hold_every_cell_exactly() -> None:
    sweep = made("tp-sync")
    frame = sweep.to_polars()
    assert frame.height == 6
    parquet = pl.read_parquet(io.BytesIO(tables.parquet_bytes(sweep)))
    assert parquet.equals(frame)
    csv = pl.read_csv(io.StringIO(tables.csv_text(sweep)))
    assert csv["name"].to_list() == [cell.name for cell in sweep.cells]
    assert csv["step.median_ns"].to_list() == [
        cell.step.median_ns if cell.step else None for cell in sweep.cells
    ]
    assert csv["relative.tokens_per_s"].to_list()[0] == pytest.approx(2.5)
    assert frame["theory.saved_bytes"].to_list() == [cell.theory.saved_bytes for cell in sweep.cells]
    assert frame["status"].to_list() == ["ok"] * 5 + ["oom"]
    assert frame["step.repeats_ns"][0] == "8000000 8000000 8000000 9000000 10000000"


def test_markdown_shows_every_row_and_lets_no_text_act() -> None:
    text = markdown.render(made("tp-sync"))
    rows = [line for line in text.splitlines() if line.startswith(("| DDP", "| TP"))]
    assert len(rows) == 3 * 6  # three tables of six cells
    assert re.search(
        r"^\| DDP \| 4 \| 8\.00 \| 0\.50 \| 0\.80 \| yes \| 1024 \| 128000 \| 2\.50 \|", text, re.M
    )
    assert r"rank 1 of 2 failed: \| no \<memory\>" in text
    widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows[:6]}
    assert len(widths) == 1


def test_the_terminal_shows_the_tables_and_what_was_skipped() -> None:
    out = io.StringIO()
    terminal.print_sweep(made("tp-sync"), Console(file=out, width=140))
    text = out.getvalue()
    assert "5 of 6 cells measured, 1 failed." in text
    assert "Step time and throughput" in text
    assert "Memory of a rank" in text
    assert "wgrad hides" in text
    assert "skipped, the same as another cell" in text
    assert "oom" in text


def data_of(figure: Any) -> list[dict[str, Any]]:
    return figure.to_plotly_json()["data"]


def test_charts_show_time_and_memory_absolute_and_relative_with_spread_and_theory() -> None:
    charts = {chart.id: chart.figure for chart in figures.charts(made("tp-sync"))}
    ddp, sync, asynchronous = data_of(charts["time"])
    assert (ddp["name"], list(ddp["x"]), list(ddp["y"])) == ("DDP", [2, 4], [8.0, 8.0])
    assert list(ddp["error_y"]["array"]) == [1.0, 1.0]
    assert list(ddp["error_y"]["arrayminus"]) == [0.0, 0.0]
    assert list(asynchronous["x"]) == [2]  # nothing is drawn of a cell that failed
    assert list(sync["y"]) == [10.0, 10.0]
    relative = {one["name"]: list(one["y"]) for one in data_of(charts["relative-time"])}
    assert relative == {"DDP": [0.8, 0.8], "TP sync": [1.0, 1.0], "TP async": [1.0]}
    lines = [one for one in data_of(charts["memory"]) if one["name"] == "DDP"]
    assert list(lines[0]["y"]) == [40.0, 40.0]
    assert lines[1]["line"]["dash"] == "dot"
    least = [c.theory.peak_bytes_at_least for c in made().cells if c.scheme == "ddp"]
    assert list(lines[1]["y"]) == [count / MIB for count in least if count]
    assert {one["name"]: list(one["y"]) for one in data_of(charts["relative-memory"])}["DDP"] == [2.0, 2.0]
    saved = [one for one in data_of(charts["saved"]) if one["name"] == "TP sync"]
    assert list(saved[0]["y"]) == list(saved[1]["y"])  # measured as the closed form has it


def test_theory_has_step_times_where_the_hardware_is_named() -> None:
    from sp_profiler.sweeps.run import planned

    grid = planned(SweepRequest({"mode": ("tp",)}, hardware="H100 SXM"))
    cells = [measured(cell, [10, 10, 10], MIB) for cell in grid.cells]
    sweep = assemble(cells, SETTINGS, command=[], skipped=[], baseline=None, hardware="H100 SXM")
    (line, dotted, *_) = data_of(figures.charts(sweep)[0].figure)
    assert dotted["line"]["dash"] == "dot"
    assert 0 < dotted["y"][0] < line["y"][0]
    assert "Theory (at least, ms)" in markdown.render(sweep)


def test_lines_run_along_sequence_lengths_where_layers_do_not_differ() -> None:
    grid = cells_of(SweepRequest({"mode": ("tp",), "layers": (1,), "seq_len": (64, 128), "ranks": (2, 4)}))
    sweep = assemble(
        [measured(cell, [5, 5], MIB) for cell in grid.cells],
        SETTINGS, command=[], skipped=[], baseline=None, hardware=None,
    )  # fmt: skip
    charts = figures.charts(sweep)
    assert figures.axis_of(sweep.cells) == "seq_len"
    assert [chart.text for chart in charts if chart.id.startswith("time")] == [
        "median and quartiles, no profiler; ranks 2",
        "median and quartiles, no profiler; ranks 4",
    ]
    assert list(data_of(charts[0].figure)[0]["x"]) == [64, 128]


def test_the_page_is_whole_and_links_the_reports_of_its_cells() -> None:
    page = html.render(made())
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert {"time", "relative-time", "memory", "relative-memory", "saved", "rate", "exposed"} <= set(
        data["plots"]
    )
    assert {table["id"] for table in data["tables"]} >= {"times", "memory", "communication", "failures"}
    assert 'href="cells/ddp-r2-l2-s256-b2/report.html"' in page
    assert "cells/tp-async-r2-l4-s256-b2/report.html" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "no &lt;memory&gt;" in page


KILLED = "it was killed by SIGKILL (out of memory?)"


def died(why: str) -> WorkloadError:
    return WorkloadError(f"rank 0 of 2 failed: {why}\n--- end of the log of rank 0 ---\nout of memory")


@pytest.mark.parametrize(
    ("error", "kills", "status", "said"),
    [
        (died("torch.OutOfMemoryError: CUDA out of memory. Tried"), (0, 0), "oom", "CUDA out of memory"),
        (died("MemoryError"), (0, 0), "oom", "rank 0 of 2 failed: MemoryError"),
        (died(KILLED), (3, 3), "crashed", "SIGKILL"),
        (died(KILLED), (None, None), "crashed", "SIGKILL"),
        (died(KILLED), (3, 4), "oom", "it was killed by SIGKILL: the kernel had no memory left"),
        (HangError("no rank made progress for 5 s\n--- end"), (0, 0), "timeout", "no rank made progress"),
        (died("ValueError: fish"), (0, 1), "crashed", "ValueError: fish"),
    ],
)
def test_what_ended_a_cell_is_told_from_its_error(
    error: WorkloadError, kills: tuple[int | None, int | None], status: str, said: str
) -> None:
    found, sentence = classify(error, *kills)
    assert found == status
    assert said in sentence
    assert "\n" not in sentence


# --- the command, where nothing is run ----------------------------------------------------------------------


def test_a_dry_run_lists_the_cells_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "--modes", "ddp,tp", "--layers", "1", "2", "--ranks", "2", "3", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    for name in ("ddp-r2-l1-s256-b2", "ddp-r3-l2-s256-b2", "tp-async-r2-l2-s256-b2"):
        assert name in printed
    assert "skipped, tp: --heads 8 is not divisible by --ranks 3 in mode tp" in printed
    assert "Nothing was run." in printed
    assert list(tmp_path.iterdir()) == []
    assert main(["sweep", "--modes", "tp", "--dry-run", "--json"]) == 0
    assert {cell["status"] for cell in json.loads(capsys.readouterr().out)["cells"]} == {"pending"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--repeat", "0"], 2, "--repeat is 0"),
        (["--ranks", "9"], 2, "--ranks 9 is not between 1 and 8"),
        (["--baseline", "ddp"], 2, "--baseline ddp is not among the schemes"),
        (["--out", ""], 2, "--out is empty"),
        (["--out", "full"], 2, "full is not empty and holds no sweep"),
        (["--out", "full/file"], 2, "cannot write to full/file"),
        (["--show", "full"], 3, "full holds no sweep.json"),
        (["--show", "a", "--out", "b"], 2, "--show names the folder"),
        (["--hardware", "abacus"], 2, "unknown hardware 'abacus'"),
        (["--efficiency", "0.5"], 2, "name the --hardware"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    assert main(["sweep", *arguments]) == code
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


@pytest.mark.browser
def test_the_page_draws_its_charts_with_error_bars_and_theory(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "sweep.html"
    path.write_text(html.render(made("tp-sync")), encoding="utf-8")
    page.open(path)
    page.wait_for("document.documentElement.dataset.plots")
    assert page.run("document.documentElement.dataset.plots") == "drawn"
    assert page.problems == []
    lines = "document.querySelectorAll('#plot-{} .scatterlayer .trace').length"
    assert page.run(lines.format("time")) == 3
    assert page.run(lines.format("memory")) == 6  # measured and theory
    assert page.run("document.querySelectorAll('#plot-time .errorbar').length") == 4  # TP async has no spread
    row = page.run("document.querySelector('#table-times tbody tr').innerText")
    assert row.startswith("DDP\t2\t8.00\t0.50\t0.80\tyes\t1024\t128000\t2.50")
    # a button of the legend hides a scheme, theory and all
    page.run("[...document.querySelectorAll('.legend button')].find(b => b.innerText === 'DDP').click()")
    page.wait_for("document.querySelectorAll('#plot-time .scatterlayer .trace').length === 2")
