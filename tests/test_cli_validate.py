"""`sp-profile validate`: the ledger of one run and of several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import DEMO, cli, write_trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path)


def test_validate_lists_the_ledger(trace: Path) -> None:
    clean = cli("validate", trace, "--strict", "--json")
    assert clean.returncode == 0
    trace.write_text(trace.read_text()[:-20])
    broken = cli("validate", trace, "--json")
    assert broken.returncode == 0
    entries = json.loads(broken.stdout)["runs"][0]["data_quality"]
    assert any(entry["severity"] in ("loss", "repair") for entry in entries)
    strict = cli("validate", trace, "--strict")
    assert strict.returncode == 3
    assert len(strict.stderr.splitlines()) == 1
    assert "--strict refuses" in strict.stderr
    assert "truncated-file" in strict.stdout


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


def test_validate_tells_runs_of_one_name_apart(trace: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder / "run").mkdir(parents=True)
        (tmp_path / folder / "run" / "run.json").write_text("{}")
        (tmp_path / folder / "run" / trace.name).write_bytes(trace.read_bytes())
    result = cli("validate", tmp_path / "a", tmp_path / "b", "--json")
    assert [run["name"] for run in json.loads(result.stdout)["runs"]] == ["run", "run-2"]
