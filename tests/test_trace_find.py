"""Which files belong to which run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from sp_profiler.errors import InputError
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.write import TraceWriter


def _trace(path: Path, rank: int | None = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    TraceWriter(rank=rank, world_size=4).kernel("k", 0, 1).write(path)
    return path


def _run_json(folder: Path, **content) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"schema": "sp-profile/run", **content}))


def _named(runs) -> list[tuple[str, list[str]]]:
    return [(run.name, [Path(file).name for file in run.files]) for run in runs]


def test_a_single_file(tmp_path: Path) -> None:
    path = _trace(tmp_path / "rank3.json")
    (run,) = find_runs([str(path)])
    assert (run.name, run.files, run.root, run.run_json) == ("rank3.json", (str(path),), str(tmp_path), None)


def test_a_folder_is_one_run_and_leaves_other_files_alone(tmp_path: Path) -> None:
    _trace(tmp_path / "rank1.json.gz", 1)
    _trace(tmp_path / "rank0.json.gz", 0)
    _trace(tmp_path / "no_extension", 2)
    _run_json(tmp_path, world_size=4)
    (tmp_path / "report.json").write_text('{"schema": "sp-profile/report", "traceEvents": []}')
    (tmp_path / "saved.json").write_text('{"schema": "sp-profile/report"}')
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "report.html").write_text("<html>")
    (tmp_path / ".rank5.json").write_text('{"traceEvents": []}')
    (run,) = find_runs([str(tmp_path)])
    assert _named([run]) == [(tmp_path.name, ["no_extension", "rank0.json.gz", "rank1.json.gz"])]
    assert run.run_json is not None
    assert run.run_json["world_size"] == 4
    assert [(one.code, one.file) for one in run.ledger] == [("ignored-file", str(tmp_path / "config.json"))]


def test_a_broken_trace_in_a_folder_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(b"")
    (tmp_path / "x.pt.trace.json.gz").write_bytes(b"\x1f\x8bbroken")
    (tmp_path / "cut.json.gz").write_bytes(
        gzip.compress(TraceWriter().kernel("k", 0, 1).text().encode())[:-20]
    )
    assert _named(find_runs([str(tmp_path)]))[0][1] == ["cut.json.gz", "rank0.json", "x.pt.trace.json.gz"]


def test_folders_of_runs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        _trace(tmp_path / name / "rank-00000.pt.trace.json.gz")
        _run_json(tmp_path / name)
    _trace(tmp_path / "deep" / "er" / "trace.json")
    (tmp_path / "notes").mkdir()
    assert _named(find_runs([str(tmp_path)])) == [
        ("a", ["rank-00000.pt.trace.json.gz"]),
        ("b", ["rank-00000.pt.trace.json.gz"]),
        ("er", ["trace.json"]),
    ]


def test_one_folder_per_rank_is_one_run(tmp_path: Path) -> None:
    for rank in (0, 1):
        _trace(tmp_path / f"rank{rank}" / "trace.json", rank)
    (run,) = find_runs([str(tmp_path)])
    assert (run.name, len(run.files)) == (tmp_path.name, 2)


def test_several_files_are_one_run_and_each_counts_once(tmp_path: Path) -> None:
    paths = [str(_trace(tmp_path / f"rank{rank}.json", rank)) for rank in (1, 0)]
    (run,) = find_runs([*paths, paths[0]])
    assert run.files == tuple(sorted(paths))
    assert run.name == tmp_path.name


def test_globs(tmp_path: Path) -> None:
    for rank in (0, 1):
        _trace(tmp_path / f"rank{rank}.json", rank)
    _run_json(tmp_path)
    assert _named(find_runs([str(tmp_path / "*.json")])) == [(tmp_path.name, ["rank0.json", "rank1.json"])]
    assert _named(find_runs([str(tmp_path / "**")])) == [(tmp_path.name, ["rank0.json", "rank1.json"])]


def test_a_glob_over_run_folders_keeps_runs_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _trace(tmp_path / name / "rank0.json")
        _run_json(tmp_path / name)
    assert [len(run.files) for run in find_runs([str(tmp_path / "*" / "rank*.json")])] == [1, 1]


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("missing", "does not exist."),
        ("missing*", "no file matches"),
        ("empty", "holds no trace files"),
        ("nsight", "holds only Nsight files (run.nsys-rep)"),
        ("exported", "holds no traces but those that `sp-profile export` wrote"),
        ("*.json", "is a trace"),
    ],
)
def test_nothing_found_is_one_sentence(tmp_path: Path, argument: str, sentence: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nsight").mkdir()
    (tmp_path / "nsight" / "run.nsys-rep").write_bytes(b"x")
    (tmp_path / "exported").mkdir()
    _trace(tmp_path / "exported" / "rank-00000.perfetto.json")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        find_runs([str(tmp_path / argument)])
    assert sentence in str(caught.value)
    assert str(tmp_path / argument) in str(caught.value)


def test_a_broken_run_json_is_a_loss(tmp_path: Path) -> None:
    _trace(tmp_path / "rank0.json")
    (tmp_path / "run.json").write_text('{"schema": ')
    (run,) = find_runs([str(tmp_path)])
    assert run.run_json is None
    assert [one.code for one in run.ledger] == ["bad-run-json"]


@pytest.mark.shared
def test_the_corpus_is_one_run_per_folder(shared: Path) -> None:
    sizes = {run.name: len(run.files) for run in find_runs([str(shared / "corpus")])}
    assert len(sizes) == 9
    assert sizes["dlrm_v100_8ranks"] == 8
    assert sizes["alltoall_2_of_128"] == 2


def test_a_folder_named_twice_is_one_run(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0.pt.trace.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "c")
    named = [str(tmp_path / name) for name in ("b", ".", "a", "link", "b/")]
    assert [run.name for run in find_runs(named)] == ["b", "a", "c"]
