"""The command line as a person meets it: a subprocess, its two streams, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import cli, refused, write_trace

from sp_profiler.cli.main import COMMANDS
from sp_profiler.errors import EXIT_INPUT

HEAVY = ("torch", "polars", "plotly", "numpy", "dash", "jinja2", "msgspec")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path)


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "sp_profiler", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for command in COMMANDS:
        assert command in result.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines() if "|" in line}
    assert imported.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", COMMANDS)
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
        (["analyze", "x", "--frmat", "json"], "arguments: --frmat json (see 'sp-profile analyze --help')"),
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


def test_what_follows_two_dashes_is_a_path_even_with_a_dash_in_front(trace: Path) -> None:
    trace.rename(trace.with_name("-rank-0.json"))
    result = cli("analyze", "--json", "--", "-rank-0.json", cwd=trace.parent)
    assert json.loads(result.stdout)["totals"]["comm_ns"] == 100_000
    refused(cli("analyze", "-rank-0.json", cwd=trace.parent), 2, "PATH")


def test_doctor_speaks_json() -> None:
    result = cli("doctor", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)


def test_a_closed_pipe_is_no_error(trace: Path) -> None:
    analyze = f"{sys.executable} -m sp_profiler analyze {trace} --json"
    command = f"{analyze} | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_full_disk_is_one_sentence(trace: Path, tmp_path: Path) -> None:
    refused(cli("analyze", trace, "--format", "json", "-o", "/dev/full"), 2, "/dev/full", "No space left")
    for arguments in (["analyze", str(trace)], ["analyze", str(trace), "--json"], ["doctor"], ["--help"]):
        command = [sys.executable, "-m", "sp_profiler", *arguments]
        with open("/dev/full", "w") as full:
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert result.returncode == 2, arguments
        assert len(result.stderr.splitlines()) == 1, result.stderr
        assert "No space left" in result.stderr


def test_too_little_memory_is_one_sentence_and_no_broken_budget() -> None:
    program = """
from sp_profiler.cli import main

def needs_more():
    raise MemoryError("Unable to allocate 3 TiB")

main.main = needs_more
main.entry_point()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    message = "sp-profile: there is not enough memory for this\n"
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INPUT, "", message)


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
