"""The command line as a person meets it: a subprocess, its two streams, its exit code."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sp_profiler.trace.write import TraceWriter

HEAVY = ("torch", "polars", "plotly", "numpy", "dash", "jinja2", "msgspec")


def cli(*arguments: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sp_profiler", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", **env},
        check=False,
    )


def refused(result: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """One sentence on stderr that holds the words, the code, no traceback, nothing on stdout."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """GEMM 0–100 µs, all-reduce 50–150 µs: 50 µs overlapped, 50 µs exposed."""
    writer = TraceWriter(rank=0, world_size=1)
    writer.kernel("sm90_xmma_gemm_bf16", 0, 100, stream=7)
    writer.collective("all_reduce", 50, 100, stream=20)
    path = tmp_path / "rank-00000.pt.trace.json"
    writer.write(path)
    return path


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sp_profiler", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for command in ("run", "analyze", "validate", "doctor"):
        assert command in result.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines() if "|" in line}
    assert imported.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["run", "analyze", "validate", "doctor"])
def test_every_command_has_help(command: str) -> None:
    result = cli(command, "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: sp-profile")
    assert result.stderr == ""


def test_version() -> None:
    assert cli("--version").stdout.startswith("sp-profile ")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "COMMAND"),
        (["analyse"], "analyse"),
        (["analyze"], "PATH"),
        (["analyze", "x", "--format", "pdf"], "pdf"),
        (["analyze", "x", "--window", "year"], "year"),
        (["doctor", "--", "y"], "y"),
        (["analyze", "x", "-o", ""], "-o is empty"),
        (["run", "tp", "--out", ""], "--out is empty"),
        (["run", "tp", "--timeout", "nan"], "nan"),
        (["run", "tp", "--seed", "99999999999999999999"], "--seed"),
    ],
)
def test_usage_errors_are_one_sentence(arguments: list[str], word: str) -> None:
    refused(cli(*arguments), 2, word)


def test_an_abbreviated_option_is_not_guessed(trace: Path) -> None:
    refused(cli("analyze", trace, "--forc"), 2, "--forc")


def test_analyze_prints_sentences_first_and_nothing_on_stderr(trace: Path) -> None:
    result = cli("analyze", trace)
    assert result.returncode == 0
    assert result.stderr == ""
    assert "exposed" in result.stdout.split("\n\n")[0]


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


def test_validate_lists_the_ledger(trace: Path) -> None:
    clean = cli("validate", trace, "--strict", "--json")
    assert clean.returncode == 0
    trace.write_text(trace.read_text()[:-20])
    broken = cli("validate", trace, "--json")
    assert broken.returncode == 0
    entries = json.loads(broken.stdout)["runs"][0]["data_quality"]
    assert any(entry["severity"] in ("loss", "repair") for entry in entries)
    assert cli("validate", trace, "--strict").returncode == 3


def test_validate_has_the_order_of_analyze() -> None:
    runs = (DEMO / "tp-async", DEMO / "tp-sync")
    text = cli("validate", *runs).stdout
    assert text.index("tp-sync:") < text.index("tp-async:")
    told = json.loads(cli("validate", *runs, "--json").stdout)["runs"]
    assert [one["name"] for one in told] == ["tp-sync", "tp-async"]


def test_validate_prints_whole_lines_into_a_pipe(trace: Path) -> None:
    trace.write_text(trace.read_text()[:-20])
    lines = cli("validate", trace).stdout.splitlines()
    found = [line for line in lines if line.startswith(("  loss ", "  repair "))]
    assert found
    assert any(str(trace) in line and "×1 " in line for line in found)
    assert lines[0].endswith(":")


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


def test_a_closed_pipe_is_no_error(trace: Path) -> None:
    analyze = f"{sys.executable} -m sp_profiler analyze {trace} --json"
    command = f"{analyze} | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_doctor_speaks_json() -> None:
    result = cli("doctor", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)


DEMO = Path(__file__).resolve().parent.parent / "traces" / "demo"


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


def test_what_follows_two_dashes_is_a_path_even_with_a_dash_in_front(trace: Path) -> None:
    trace.rename(trace.with_name("-rank-0.json"))
    result = cli("analyze", "--json", "--", "-rank-0.json", cwd=trace.parent)
    assert json.loads(result.stdout)["totals"]["comm_ns"] == 100_000
    refused(cli("analyze", "-rank-0.json", cwd=trace.parent), 2, "PATH")


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.json")
    refused(cli("analyze", tmp_path / "rank-0.json"), 3, "rank-0.json", "pipe")
    refused(cli("analyze", tmp_path), 3, "no trace files")


@pytest.mark.parametrize("kept", [2, 10, 40])
def test_a_gzip_file_cut_in_its_head_is_not_called_empty(trace: Path, tmp_path: Path, kept: int) -> None:
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(trace.read_bytes())[:kept])
    refused(cli("analyze", cut), 3, "cut.json.gz", "cut off")


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
        refused(cli("analyze", trace, "--format", "json", "-o", name, "--force"), 2, name.name, "is a trace")
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


def test_a_full_disk_is_one_sentence(trace: Path, tmp_path: Path) -> None:
    refused(cli("analyze", trace, "--format", "json", "-o", "/dev/full"), 2, "/dev/full", "No space left")
    for arguments in (["analyze", str(trace)], ["analyze", str(trace), "--json"], ["doctor"], ["--help"]):
        command = [sys.executable, "-m", "sp_profiler", *arguments]
        with open("/dev/full", "w") as full:
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert result.returncode == 2, arguments
        assert len(result.stderr.splitlines()) == 1, result.stderr
        assert "No space left" in result.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_neither_report_nor_code(trace: Path, tmp_path: Path, closed: str) -> None:
    line = f'"{sys.executable}" -m sp_profiler analyze "$0" --format json -o "$1" {closed}'
    out = tmp_path / "report.json"
    result = subprocess.run(["sh", "-c", line, trace, out], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(out.read_text())["totals"]["comm_ns"] == 100_000


def test_a_terminal_without_unicode_gets_the_report_all_the_same(trace: Path) -> None:
    for arguments in ([], ["--format", "markdown"], ["--json"]):
        result = cli("analyze", trace, *arguments, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.isascii()


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


def test_a_missing_file_of_a_hostile_name_does_not_act_on_the_terminal(tmp_path: Path) -> None:
    refused(cli("analyze", tmp_path / "a\x1b[2Jb\nc"), 3, "a\\x1b[2Jb\\nc")
    refused(cli("validate", "x", "--a\x1b[2Jb\nc"), 2, "a\\x1b[2Jb\\nc")


def test_a_current_folder_that_is_gone_is_named(trace: Path, tmp_path: Path) -> None:
    for arguments in ("doctor", "run -- true", "analyze x --format json -o y.json"):
        line = f'mkdir -p gone && cd gone && rmdir ../gone && "{sys.executable}" -m sp_profiler {arguments}'
        result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path, check=False)
        if "analyze" in arguments:
            refused(result, 3, "x does not exist")
        else:
            refused(result, 2, "the current folder no longer exists")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sp-profile analyze --format ", {"json", "html", "markdown", "csv", "parquet"}),
        ("sp-profile analyze x --format json c", {"csv"}),
        ("sp-profile run t", {"tp"}),
        ("sp-profile run tp --comm ", {"sync", "async"}),
        ("sp-profile val", {"validate"}),
    ],
)
def test_the_shell_completes_words_not_files(tmp_path: Path, line: str, words: set[str]) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "cuts.json").touch()
    completion = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": " ", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
    place = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
    command = f'"{sys.executable}" -m sp_profiler 8>&1 9>/dev/null >/dev/null'
    result = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **completion, **place},
        check=False,
    )
    assert set(result.stdout.split()) == words, result.stderr


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


def test_validate_tells_runs_of_one_name_apart(trace: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder / "run").mkdir(parents=True)
        (tmp_path / folder / "run" / "run.json").write_text("{}")
        (tmp_path / folder / "run" / trace.name).write_bytes(trace.read_bytes())
    result = cli("validate", tmp_path / "a", tmp_path / "b", "--json")
    assert [run["name"] for run in json.loads(result.stdout)["runs"]] == ["run", "run-2"]
