"""`sp-profile analyze`: which files and runs it takes, which it refuses, and how."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest
from cli_helpers import DEMO, cli, refused, write_trace

from sp_profiler.trace.write import TraceWriter


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path)


def test_analyze_prints_sentences_first_and_nothing_on_stderr(trace: Path) -> None:
    result = cli("analyze", trace)
    assert result.returncode == 0
    assert result.stderr == ""
    assert "exposed" in result.stdout.split("\n\n")[0]


def test_missing_file(tmp_path: Path) -> None:
    refused(cli("analyze", tmp_path / "nothing.json"), 3, "nothing.json")


def test_empty_folder(tmp_path: Path) -> None:
    refused(cli("analyze", tmp_path), 3, str(tmp_path))


@pytest.mark.parametrize("content", ['{"a": 1}', "[1, 2]", "<html></html>", "", "null", '"text"'])
def test_not_a_trace(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    refused(cli("analyze", path), 3, "other.json")


def test_two_files_with_the_same_rank(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "copy-rank-00000.json").write_bytes(trace.read_bytes().replace(b"gemm", b"gemn"))
    refused(cli("analyze", tmp_path), 3, "rank 0", trace.name, "copy-rank-00000.json")


def test_truncated_gzip_keeps_what_is_there_and_says_so(trace: Path, tmp_path: Path) -> None:
    whole = gzip.compress(trace.read_bytes())
    path = tmp_path / "cut-rank-00000.json.gz"
    path.write_bytes(whole[: len(whole) - 30])
    trace.unlink()
    result = cli("analyze", path, "--json")
    assert result.returncode == 0
    assert "cut-rank-00000.json.gz" in result.stderr
    codes = {entry["code"] for entry in json.loads(result.stdout)["data_quality"]}
    assert "truncated-gzip" in codes
    refused(cli("analyze", path, "--strict"), 3, "cut-rank-00000.json.gz", "--strict")


@pytest.mark.parametrize("steps", ["6:3", "3", "a:b", "7:9", "²:³"])
def test_steps_that_cannot_be_meant(trace: Path, steps: str) -> None:
    refused(cli("analyze", trace, "--steps", steps), 2, steps)


def test_a_folder_of_runs_gives_one_report_each_and_the_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = cli("analyze", DEMO, "--format", "json", "html", "-o", out)
    assert result.returncode == 0, result.stderr
    for label in ("TP sync", "TP async", "SP basic", "SP recompute"):
        assert label in result.stdout
    for run in ("tp-sync", "tp-async", "sp-basic", "sp-recompute"):
        report = json.loads((out / run / "report.json").read_text())
        assert report["run"]["ranks"] == [0, 1]
        assert (out / run / "report.html").is_file()
    assert len(json.loads((out / "comparison.json").read_text())["runs"]) == 4
    refused(cli("analyze", DEMO, "--format", "json", "-o", out), 2, "--force")


@pytest.mark.parametrize(("output", "first"), [("json", "{"), ("markdown", "#")])
def test_several_runs_as_text_are_their_table(output: str, first: str) -> None:
    result = cli("analyze", DEMO, "--format", output)
    assert result.returncode == 0
    assert result.stdout.startswith(first)
    assert "tp-async" in result.stdout or "TP async" in result.stdout


def test_one_broken_run_among_several_does_not_hide_the_others(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text((DEMO / "tp-sync" / "run.json").read_text())
    trace = (DEMO / "tp-sync" / "rank-00000.pt.trace.json.gz").read_bytes()
    (tmp_path / "good" / "rank-00000.pt.trace.json.gz").write_bytes(trace)
    (tmp_path / "bad" / "rank-00000.pt.trace.json.gz").write_bytes(b"nothing")
    result = cli("analyze", tmp_path)
    assert result.returncode == 3
    assert "bad" in result.stderr
    assert "TP sync" in result.stdout


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.json")
    refused(cli("analyze", tmp_path / "rank-0.json"), 3, "rank-0.json", "pipe")
    refused(cli("analyze", tmp_path), 3, "no trace files")


@pytest.mark.parametrize("kept", [2, 10, 40])
def test_a_gzip_file_cut_in_its_head_is_not_called_empty(trace: Path, tmp_path: Path, kept: int) -> None:
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(trace.read_bytes())[:kept])
    refused(cli("analyze", cut), 3, "cut.json.gz", "cut off")


HOSTILE = [
    "with space",
    "new\nline",
    "esc\x1b[31mred",
    "[red]x",
    "a?b#c%s",
    "br[ack]et*",
    "-dash",
    "\udcff\udcfe",
]


def test_folders_of_any_name_are_reported_on_and_linked(trace: Path, tmp_path: Path) -> None:
    from urllib.parse import unquote_to_bytes

    for number, name in enumerate([*HOSTILE, "index.html", "x", "x-2", "x/../y/x"]):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank-00000.pt.trace.json").write_bytes(trace.read_bytes() + b" " * number)
    result = cli("analyze", tmp_path / "runs", "--format", "json", "html", "-o", tmp_path / "out")
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b[31m" not in result.stdout
    page = (tmp_path / "out" / "index.html").read_bytes()
    links = [unquote_to_bytes(link) for link in re.findall(rb'href="\./([^"]*)"', page)]
    assert len(set(links)) == len(HOSTILE) + 4
    for link in links:
        assert os.path.isfile(os.fsencode(tmp_path / "out") + b"/" + link), link


def test_a_limit_is_told_in_a_sentence_and_can_be_moved(trace: Path) -> None:
    refused(cli("analyze", trace, "--limits", "events=1"), 3, trace.name, "1")
    assert cli("analyze", trace, "--limits", "events=2000", "inflated_bytes=1M").returncode == 0


@pytest.mark.parametrize("limit", ["events", "events=", "events=x", "events=1Q", "moons=3", "events=-1"])
def test_a_limit_that_cannot_be_meant(trace: Path, limit: str) -> None:
    refused(cli("analyze", trace, f"--limits={limit}"), 2, limit)


def test_the_cache_changes_nothing(tmp_path: Path) -> None:
    writer = TraceWriter(rank=0, world_size=1)
    writer.kernel("gemm", 0, 10).event({"ph": "M", "name": "x", "args": {"noise": os.urandom(5 << 20).hex()}})
    path = writer.write(tmp_path / "rank-0.json")
    where = {"SP_PROFILER_CACHE": str(tmp_path / "cache")}
    first = cli("analyze", path, "--json", "--no-cache", **where)
    assert not (tmp_path / "cache").exists()
    assert [cli("analyze", path, "--json", **where).stdout for _ in range(2)] == [first.stdout] * 2
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_warning_names_its_file_once(tmp_path: Path) -> None:
    trace = next((DEMO / "tp-async").glob("rank-00001*"))
    (tmp_path / trace.name).write_bytes(trace.read_bytes())
    (tmp_path / "rank0.json").touch()
    warned = cli("analyze", tmp_path)
    assert warned.returncode == 0
    assert warned.stderr.count(str(tmp_path / "rank0.json")) == 1
