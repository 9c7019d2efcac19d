"""Causes and contention in every output, and the options of the commands that belong to them."""

from __future__ import annotations

import gzip
import inspect
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from remote_helpers import serve
from report_helpers import make_report
from rich.console import Console

from sp_profiler.analysis.results import ContentionFigures
from sp_profiler.cli.baseline import load_baseline
from sp_profiler.cli.main import main
from sp_profiler.errors import InputError, UsageError
from sp_profiler.report import markdown, sentences, tables, terminal, view, why
from sp_profiler.report.findings import causes as rules_of_causes
from sp_profiler.report.json import read_report, render
from sp_profiler.report.model import Finding, Report, windows_of
from sp_profiler.report.why import cause_rows
from sp_profiler.trace.write import TraceWriter

US = 1_000


def contended(**more: object) -> ContentionFigures:
    one = ContentionFigures(
        "M=8 N=4 K=2", "bfloat16", "wgrad", 9, 7, 150 * US, 100 * US, None, 1.5, 450 * US, 900
    )
    return replace(one, **more)


def report() -> Report:
    drawn = make_report()
    totals = replace(
        drawn.totals,
        exposed_ns=60_000_000,
        exposed_by_cause_ns={"peer-skew": 18_600_000, "synchronous": 41_400_000},
        slowdown_ns=6_000_000,
        net_gain_ns=18_000_000,
    )
    return replace(drawn, totals=totals, contention=[contended()])


def said(drawn: Report) -> list[str]:
    steps = len(drawn.window.steps)
    return sentences.sentences(
        sentences.Basis(drawn.totals, drawn.ranks, drawn.collectives, steps, windows_of(drawn), False)
    )


def test_sentences_say_why() -> None:
    #  6 windows: 60 / 6 = 10 ms, 41.4 / 6 = 6.9, 18.6 / 6 = 3.1; 6 / 6 = 1 ms lost, 18 / 6 = 3 won
    assert (
        "Of the 10.0 ms exposed per step, 6.90 ms are in synchronous collectives "
        "and 3.10 ms are spent waiting for a late peer." in said(report())
    )
    assert "Overlap slows the GEMMs beside it by 1.00 ms per step: it wins 3.00 ms in the end." in said(
        report()
    )


def test_one_cause_is_said_alone() -> None:
    drawn = report()
    only = replace(drawn.totals, exposed_by_cause_ns={"no-partner": 60_000_000})
    assert "All of the exposed time had nothing launched to run under." in said(replace(drawn, totals=only))
    only = replace(drawn.totals, exposed_by_cause_ns={"unknown": 60_000_000})
    assert "The trace does not tell why any of it is exposed." in said(replace(drawn, totals=only))


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("partner-too-short", "before that computation starts"),
        ("queued", "before the computation starts that they should run under"),
    ],
)
def test_that_computation_is_said_only_where_one_was_named(first: str, words: str) -> None:
    drawn = report()
    both = replace(drawn.totals, exposed_by_cause_ns={first: 40_000_000, "late-partner": 20_000_000})
    (one,) = [one for one in said(replace(drawn, totals=both)) if one.startswith("Of the 10.0 ms exposed")]
    assert words in one


def test_terminal_and_markdown_show_causes_and_contention() -> None:
    out = Console(file=io.StringIO(), width=120)
    terminal.print_report(report(), out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "Exposed by cause" in text
    assert "peer-skew" in text
    assert "GEMMs beside communication" in text
    page = markdown.render(report())
    assert "What overlap costs the GEMMs" in page
    assert "| synchronous | 41.4 | 69 |" in page.replace("69.0", "69")


def test_the_page_has_the_tables() -> None:
    shown = {table.id: table for table in view.tables(report())}
    assert shown["contention"].rows[0][:4] == ["wgrad", "M=8 N=4 K=2", "bfloat16", 9]
    causes = shown["exposed-cause"].rows
    assert causes == [["synchronous", 41_400_000, 0.69], ["peer-skew", 18_600_000, 0.31]]
    assert "cause" in [column.key for column in shown["collectives"].columns]


def test_data_files_have_contention() -> None:
    frame = tables.to_polars(report(), "contention")
    assert frame["slowdown_ns"].to_list() == [450 * US]
    assert tables.to_polars(replace(report(), contention=None), "contention").height == 0


def test_a_report_with_everything_is_read_back() -> None:
    assert read_report(render(report())) == report()


# --- --baseline ------------------------------------------------------------------------------------


def gemm_run(path: Path, overlapped: bool) -> Path:
    """Six wgrad GEMMs of 10 µs, or of 15 µs with an all-reduce over each."""
    writer = TraceWriter(rank=0, world_size=2)
    for i in range(6):
        start, dur = 100 * i, 15 if overlapped else 10
        writer.range("sp::wgrad|module=up", start, 5).cpu_op(
            "aten::mm", start + 1, 3, external_id=i + 1, dims=[[8, 2], [2, 4]], types=["c10::BFloat16"] * 2
        )
        writer.kernel("gemm", start + 10, dur, launch=start + 2, external_id=i + 1)
        if overlapped:
            writer.collective("allreduce", start + 10, dur, launch=start + 4, seq=i)
    return Path(writer.write(path))


def test_analyze_takes_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, alone = gemm_run(tmp_path / "rank0.json", True), gemm_run(tmp_path / "alone0.json", False)
    assert main(["analyze", str(run), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["contention"]
    assert (one["median_overlapped_ns"], one["median_alone_ns"], one["slowdown_ns"]) == (15_000, None, None)

    assert main(["analyze", str(run), "--json", "--baseline", str(alone)]) == 0
    with_run = json.loads(capsys.readouterr().out)
    (one,) = with_run["contention"]
    assert (one["median_alone_ns"], one["from_baseline"], one["slowdown_ns"]) == (10_000, "alone", 30_000)
    assert with_run["totals"]["net_gain_ns"] == 90_000 - 30_000

    saved = tmp_path / "saved.json"
    assert main(["analyze", str(alone), "--format", "json", "-o", str(saved)]) == 0
    capsys.readouterr()
    packed = tmp_path / "saved.json.gz"
    packed.write_bytes(gzip.compress(saved.read_bytes()))
    for file in (saved, packed):
        assert main(["analyze", str(run), "--json", "--baseline", str(file)]) == 0
        assert json.loads(capsys.readouterr().out)["contention"] == with_run["contention"]


def test_a_baseline_may_be_a_report_by_url(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="extra 'remote'")
    alone, saved = gemm_run(tmp_path / "alone0.json", False), tmp_path / "saved.json"
    assert main(["analyze", str(alone), "--format", "json", "-o", str(saved)]) == 0
    with serve(tmp_path) as web:
        assert load_baseline(f"{web.url}/saved.json") == load_baseline(str(saved))


def test_a_baseline_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    nothing = tmp_path / "rank0.json"
    TraceWriter(rank=0).kernel("k", 0, 5).write(nothing)
    with pytest.raises(InputError, match="tells nothing about contention"):
        load_baseline(str(nothing))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        gemm_run(tmp_path / name / "rank0.json", False)
        (tmp_path / name / "run.json").write_text("{}")
    nothing.unlink()
    with pytest.raises(UsageError, match="name one of them"):
        load_baseline(str(tmp_path))


def test_critical_path_that_cannot_be_had_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sp_profiler.interop import hta

    monkeypatch.setattr(hta, "is_installed", lambda: False)
    run = gemm_run(tmp_path / "rank0.json", True)
    assert main(["analyze", str(run), "--json", "--critical-path"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["critical_path"] is None
    assert "critical-path-failed" in {entry["code"] for entry in found["data_quality"]}
    assert main(["validate", str(run), "--against", "hta"]) == 3
    assert "HTA is not installed" in capsys.readouterr().err


def test_the_page_advises_what_the_findings_advise() -> None:
    """One decision: beside its cause stands what the finding says, else the usual."""
    usual = {row.key: row.change for row in cause_rows(report())}
    assert usual["synchronous"].startswith("with independent work at hand")
    alone = Finding("synchronous-without-partner", "info", "T.", {"collectives": 3}, "It wins nothing.")
    told = {row.key: row.change for row in cause_rows(replace(report(), findings=[alone]))}
    assert told == usual | {"synchronous": "It wins nothing."}
    known = Finding("synchronous-with-partner", "advice", "T.", {"collectives": 1}, "Launch it before wgrad.")
    told = {row.key: row.change for row in cause_rows(replace(report(), findings=[known, alone]))}
    assert told["synchronous"] == "1 collective: Launch it before wgrad. 3 collectives: It wins nothing."


def test_every_finding_about_a_cause_is_named_and_counts_its_collectives() -> None:
    source = inspect.getsource(rules_of_causes)
    codes = set(re.findall(r'finding\(\s*"([a-z-]+)"', source))
    assert {code for group in why._FINDINGS.values() for code in group} == codes
