"""The runs that ship in traces/demo: small, without traces of the machine, and with the known answer."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import sp_profiler

DEMO = Path(__file__).resolve().parent.parent / "traces" / "demo"
OVERLAPS = {"tp-sync": False, "tp-async": True, "sp-basic": False, "sp-recompute": True}
TRACES = [f"{run}/rank-{rank:05d}.pt.trace.json.gz" for run in OVERLAPS for rank in (0, 1)]


def test_there_are_four_runs_under_two_megabytes() -> None:
    files = sorted(str(path.relative_to(DEMO)) for path in DEMO.rglob("*") if path.is_file())
    assert files == sorted([*TRACES, *(f"{run}/run.json" for run in OVERLAPS)])
    assert sum((DEMO / file).stat().st_size for file in files) < 2_000_000


@pytest.mark.parametrize("file", TRACES)
def test_no_trace_names_a_machine_or_a_place(file: str) -> None:
    text = gzip.decompress((DEMO / file).read_bytes()).decode()
    assert re.findall(r'"host_name": "(.*?)"', text) == ["demo-host"]
    assert re.findall(r'"traceName": "(.*?)"', text) == [Path(file).name]
    assert not re.search(r'"(/|[A-Z]:\\\\)', text)
    steps = re.findall(r'"name": "(ProfilerStep#\d+)"', text)
    assert steps == ["ProfilerStep#1", "ProfilerStep#2"]


@pytest.mark.parametrize("run", OVERLAPS)
def test_run_json_names_no_machine_and_no_place(run: str) -> None:
    text = (DEMO / run / "run.json").read_text()
    content = json.loads(text)
    assert content["hosts"] == [{"host": "demo-host", "ranks": [0, 1]}]
    assert {device["host"] for device in content["hardware"]} == {"demo-host"}
    assert content["command"] == ["sp-profile", "run", "demo"]
    assert not re.search(r'"/', text)


@pytest.mark.parametrize("run", OVERLAPS)
def test_overlap_is_exactly_where_the_schedule_has_it(run: str) -> None:
    report = sp_profiler.analyze(DEMO / run)
    assert [rank.rank for rank in report.ranks] == [0, 1]
    for rank in report.ranks:
        measured = (rank.overlapped_ns, rank.overlapped_by_role_ns.get("wgrad", 0), rank.wgrad_overlapped_ns)
        assert all(measured) if OVERLAPS[run] else not any(measured), measured
