"""Runs of URLs analysed rank by rank: each worker fetches its traces; secrets reach it and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_truth import write_fleet
from remote_helpers import Web, serve

from sp_profiler.fleet.run import Options, analyze_fleet
from sp_profiler.trace.find import find_runs

pytest.importorskip("fsspec", reason="extra 'remote'")
pytest.importorskip("aiohttp", reason="extra 'remote'")


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "web").mkdir()
    with serve(tmp_path / "web") as served:
        yield served


@pytest.mark.parametrize("engine", ["in-process", "processes:2"])
def test_a_closed_folder_is_read_by_whoever_works(web: Web, tmp_path: Path, engine: str) -> None:
    truth = write_fleet(web.folder / "run", 16, steps=2, missing=(9,))
    (files,) = find_runs([f"http://jane:hush@127.0.0.1:{web.port}/closed/run/"])
    work = tmp_path / "work"
    report = analyze_fleet(files, options=Options(engine, str(work)))
    truth.check(report)
    assert report.ranks[0].file == f"{web.url}/closed/run/rank-00000.pt.trace.json.gz"
    for path in work.rglob("*"):
        assert not path.is_file() or b"hush" not in path.read_bytes()
    fetched = web.gets("rank-00003.pt.trace.json.gz")
    again = analyze_fleet(files, options=Options(engine, str(work)))
    truth.check(again)
    assert web.gets("rank-00003.pt.trace.json.gz") == fetched  # asked for its version only
