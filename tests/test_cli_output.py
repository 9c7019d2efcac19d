"""Where `sp-profile analyze` writes: `--format`, `-o`, `--force`, `--json`, and what is never replaced."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from cli_helpers import DEMO, cli, refused, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path)


def test_json_goes_to_stdout_alone(trace: Path) -> None:
    result = cli("analyze", trace, "--json")
    report = json.loads(result.stdout)
    totals = report["totals"]
    assert (totals["comm_ns"], totals["compute_ns"]) == (100_000, 100_000)
    assert (totals["overlapped_ns"], totals["exposed_ns"]) == (50_000, 50_000)
    assert cli("analyze", trace, "--format", "json").stdout == result.stdout


def test_a_file_is_written_and_not_overwritten(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.json"
    assert cli("analyze", trace, "--format", "json", "-o", out).returncode == 0
    before = out.read_bytes()
    refused(cli("analyze", trace, "--format", "json", "-o", out), 2, str(out), "--force")
    assert out.read_bytes() == before
    assert cli("analyze", trace, "--format", "json", "-o", out, "--force").returncode == 0


def test_several_formats_at_once(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    formats = ["json,html", "markdown", "csv", "parquet"]
    result = cli("analyze", trace, "--format", *formats, "-o", out)
    assert result.returncode == 0, result.stderr
    names = {path.name for path in out.iterdir()}
    assert {"report.json", "report.html", "report.md", "collectives.csv", "ranks.parquet"} <= names


@pytest.mark.parametrize("formats", [["html"], ["json", "markdown"]])
def test_what_needs_a_place_asks_for_one(trace: Path, formats: list[str]) -> None:
    refused(cli("analyze", trace, "--format", *formats), 2, "-o")


@pytest.mark.parametrize("formats", [["html"], ["json", "html"], ["csv"]])
def test_several_files_do_not_go_into_one(trace: Path, tmp_path: Path, formats: list[str]) -> None:
    # one run in one such format is one file, two runs are not
    runs = [DEMO / "tp-sync", DEMO / "tp-async"] if formats == ["html"] else [trace]
    out = tmp_path / "all.html"
    refused(cli("analyze", *runs, "--format", *formats, "-o", out), 2, "all.html", "folder")
    assert not out.exists()


def test_what_is_written_is_named(trace: Path, tmp_path: Path) -> None:
    result = cli("analyze", trace, "--format", "json", "html", "-o", tmp_path / "made")
    assert result.stdout.splitlines()[-1] == f"written: {tmp_path / 'made' / 'report.html'}"


def test_all_formats_that_need_a_place_are_named(trace: Path) -> None:
    refused(cli("analyze", trace, "--format", "html", "csv"), 2, "--format html csv needs -o OUT")


def test_a_device_is_written_into_not_replaced(trace: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        result = cli("analyze", trace, "--format", "json", "-o", pipe, "--force")
        text, _ = reader.communicate(timeout=60)
    assert result.returncode == 0, result.stderr
    assert json.loads(text)["totals"]["comm_ns"] == 100_000
    assert pipe.is_fifo()


def test_a_link_keeps_leading_to_its_file(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "link.json").symlink_to("reports/real.json")
    assert cli("analyze", trace, "--format", "json", "-o", tmp_path / "link.json").returncode == 0
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "reports" / "real.json").read_text())["totals"]["comm_ns"] == 100_000


def test_a_trace_is_never_overwritten_by_its_report(trace: Path, tmp_path: Path) -> None:
    before = trace.read_bytes()
    (tmp_path / "link.json").symlink_to(trace)
    for name in (trace, tmp_path / "link.json"):
        refused(
            cli("analyze", trace, "--format", "json", "-o", name, "--force"), 2, name.name, "is to be read"
        )
    assert trace.read_bytes() == before


def test_a_place_that_takes_no_file_is_told_before_the_work(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("keep")
    for out in (tmp_path / "file" / "below" / "report.json", tmp_path / "file" / "below/"):
        refused(cli("analyze", trace, "--format", "json", "-o", out), 2, "file is not a folder")
    refused(
        cli("analyze", trace, "--format", "json", "html", "-o", tmp_path / "file"), 2, "1 run as json, html"
    )
    assert (tmp_path / "file").read_text() == "keep"


def test_a_trailing_slash_means_a_folder(trace: Path, tmp_path: Path) -> None:
    assert cli("analyze", trace, "--format", "json", "-o", f"{tmp_path}/new/").returncode == 0
    assert (tmp_path / "new" / "report.json").is_file()


def test_a_dash_as_output_is_the_screen(trace: Path, tmp_path: Path) -> None:
    result = cli("analyze", trace, "--format", "json", "-o", "-", cwd=tmp_path)
    assert json.loads(result.stdout)["totals"]["comm_ns"] == 100_000
    assert not (tmp_path / "-").exists()


def test_json_drops_no_format_in_silence(trace: Path) -> None:
    refused(cli("analyze", trace, "--json", "--format", "html"), 2, "--format html")
