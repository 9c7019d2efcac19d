"""Runs in stores, here `memory://`: the commands that take paths, and what is said where a package lacks."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet_truth import Truth, write_fleet
from trace_helpers import mixed_writer

import sp_profiler
from sp_profiler.cli.main import main
from sp_profiler.errors import EXIT_INPUT, EXIT_OK, EXIT_USAGE, InputError
from sp_profiler.report.json import read_report
from sp_profiler.trace import places
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.remote import Remote, as_remote, is_remote

fsspec: Any = pytest.importorskip("fsspec", reason="extra 'remote'")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """An empty memory:// with a run of 16 ranks as memory://runs/one."""
    system = fsspec.filesystem("memory")
    system.rm("/", recursive=True)
    yield system
    system.rm("/", recursive=True)


@pytest.fixture
def fleet(store: Any, tmp_path: Path) -> Truth:
    truth = write_fleet(tmp_path / "local", 16, steps=2)
    store.put(f"{tmp_path}/local", "/runs/one", recursive=True)
    return truth


@pytest.mark.parametrize(
    "named", ["memory://runs/one", "memory://runs/one/", "memory://runs", "memory://runs/*"]
)
def test_a_run_in_a_store_is_the_run_on_the_disk(fleet: Truth, tmp_path: Path, named: str) -> None:
    report = sp_profiler.analyze(named)
    fleet.check(report)
    here = sp_profiler.analyze(tmp_path / "local")
    assert report.totals == here.totals
    assert report.findings == here.findings
    assert report.run.name == "one"
    assert report.ranks[5].file == "memory://runs/one/rank-00005.pt.trace.json.gz"


def test_files_globs_and_copies_are_one_run(fleet: Truth, store: Any) -> None:
    fleet.check(sp_profiler.analyze("memory://runs/one/rank-*.gz"))
    store.pipe("/runs/one/notes.json", b"{}")
    (run,) = find_runs(["memory://runs/one/*"])
    assert len(run.files) == 16
    assert [entry.code for entry in run.ledger] == ["ignored-file"]
    (run,) = find_runs(["memory://runs/one/rank-00003.pt.trace.json.gz"] * 2)
    assert run.name == "rank-00003.pt.trace.json.gz"
    assert len(run.files) == 1
    assert len(find_runs(["memory://runs", "memory://runs/one"])) == 1


def test_folders_of_ranks_and_what_lies_beside_traces(store: Any) -> None:
    for rank in range(2):
        text = mixed_writer().text().encode().replace(b'"rank":1', b'"rank":%d' % rank)
        store.pipe(f"/a/rank{rank}/trace.json", text)
    store.pipe("/a/run.json", b'{"world_size": 2, "name": "x"}')
    store.pipe("/b/broken/run.json", b"{")
    store.pipe("/b/broken/worker0.json", mixed_writer().text().encode())
    store.pipe("/b/.hidden/worker0.json", mixed_writer().text().encode())
    (run,) = find_runs(["memory://a"])
    assert run.root == "memory://a"
    assert run.run_json == {"world_size": 2, "name": "x"}
    assert [one.rank for one in sp_profiler.load("memory://a").traces] == [0, 1]
    (run,) = find_runs(["memory://b"])
    assert [entry.code for entry in run.ledger] == ["bad-run-json"]
    store.pipe("/c/only.nsys-rep", b"x")
    with pytest.raises(InputError, match="holds only Nsight files"):
        find_runs(["memory://c"])


def test_the_commands_that_take_paths(
    fleet: Truth, tmp_path: Path, capsys: pytest.CaptureFixture[str], store: Any
) -> None:
    url = "memory://runs/one"
    out = tmp_path / "out"
    assert main(["analyze", url, "--format", "json", "-o", str(out / "report.json")]) == EXIT_OK
    fleet.check(read_report((out / "report.json").read_bytes(), "report.json"))
    assert main(["validate", url, "--json"]) == EXIT_OK
    assert main(["export", url, "-o", str(out / "exported")]) == EXIT_OK
    assert len(list((out / "exported").iterdir())) == 16
    here = tmp_path / "here"
    assert main(["export", str(tmp_path / "local"), "-o", str(here)]) == EXIT_OK
    for one in here.iterdir():
        assert one.read_bytes() == (out / "exported" / one.name).read_bytes()
    capsys.readouterr()
    assert main(["compare", url, str(tmp_path / "local"), "--json"]) == EXIT_OK
    told = json.loads(capsys.readouterr().out)
    assert told["a"]["path"] == url if "a" in told else url in json.dumps(told)


def test_snapshots_and_traces_of_a_folder_are_of_one_run(store: Any, tmp_path: Path) -> None:
    data = pickle.dumps({"segments": [], "device_traces": []})
    store.pipe("/m/rank0.pt.trace.json", mixed_writer().text().encode())
    store.pipe("/m/rank0.pickle", data)
    (tmp_path / "rank0.pt.trace.json").write_text(mixed_writer().text())
    (tmp_path / "rank0.pickle").write_bytes(data)
    there, here = sp_profiler.memory("memory://m"), sp_profiler.memory(tmp_path)
    assert [replace(one, file="") for one in there.ranks] == [replace(one, file="") for one in here.ranks]
    assert {one.file for one in there.ranks} <= {"memory://m/rank0.pt.trace.json", "memory://m/rank0.pickle"}
    store.pipe("/m/rank0.pickle", data[:20])
    with pytest.raises(InputError, match=r"memory://m/rank0.pickle is cut off"):
        sp_profiler.memory("memory://m/rank0.pickle")
    with pytest.raises(InputError, match="is a memory snapshot, no trace"):
        find_runs(["memory://m/rank0.pickle"])


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memory://nothing/x.json", "does not exist"),
        ("memory://nothing/*.json", "no file matches memory://nothing/*.json"),
        ("unheard://x/y", "unheard:// is unknown"),
        ("simplecache::memory://x", "chains several stores"),
        ("file:///nowhere/x.json", "/nowhere/x.json does not exist"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    store: Any, url: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = ("analyze", "validate", "memory") if "*" in url else ("analyze", "memory", "dashboard")
    for command in commands:
        assert main([command, url]) == EXIT_INPUT
        told = capsys.readouterr().err
        assert says in told
        assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("lacks", "url", "says"),
    [
        ("fsspec", "s3://b/x", "s3://b/x cannot be read without fsspec: pip install 'sp-profiler[remote]'"),
        ("aiohttp", "http://127.0.0.1/x", "http:// needs aiohttp: pip install 'sp-profiler[remote]'"),
        ("s3fs", "s3://bucket/run", "s3:// needs s3fs: pip install s3fs"),
        ("gcsfs", "gs://bucket/run", "gs:// needs gcsfs: pip install gcsfs"),
    ],
)  # fmt: skip
def test_what_is_not_installed_is_named(lacks: str, url: str, says: str) -> None:
    code = (
        f"import sys; sys.modules[{lacks!r}] = None\n"
        "from sp_profiler.cli.main import main\n"
        f"sys.exit(main(['analyze', {url!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == EXIT_INPUT
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_local_paths_need_no_fsspec(tmp_path: Path) -> None:
    mixed_writer().write(tmp_path / "rank0.pt.trace.json")
    code = (
        "import sys\nfrom sp_profiler.cli.main import main\n"
        f"assert main(['validate', {str(tmp_path)!r}]) == 0\n"
        "assert not {'fsspec', 'aiohttp'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_results_are_written_here(store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed_writer().write(tmp_path / "rank0.pt.trace.json")
    for url in ("s3://bucket/out", "memory://out"):
        assert main(["analyze", str(tmp_path), "--format", "json", "-o", url]) == EXIT_USAGE
        assert "results are written to files of this machine" in capsys.readouterr().err
    out = f"file://{tmp_path}/report.json"
    assert main(["analyze", str(tmp_path), "--format", "json", "-o", out]) == EXIT_OK
    assert (tmp_path / "report.json").is_file()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://jane:pw@host:8/a/b.json?token=1#x", "https://host:8/a/b.json"),
        ("https://token@host/a", "https://host/a"),
        ("ftp://jane:pw@host/a?b", "ftp://jane@host/a?b"),
        ("abfs://container@account/a", "abfs://container@account/a"),
        ("s3://bucket/a#b?c.json", "s3://bucket/a#b?c.json"),
        ("HTTP://a:b@host", "HTTP://host"),
    ],
)
def test_what_lets_somebody_in_is_kept_apart(url: str, shown: str) -> None:
    made = as_remote(url)
    assert isinstance(made, Remote)
    assert str(made) == shown == f"{made}"
    again = pickle.loads(pickle.dumps(made))
    assert (again, again.url) == (shown, url)
    assert as_remote(made) is made


def test_what_is_a_url() -> None:
    assert not any(map(is_remote, ("/a://b", "a/b", "c:/x", "rank0.json", "./s3://x")))
    assert as_remote("file:///a/b") == "/a/b"
    assert places.parent(as_remote("https://u:p@h/a/b.json?q")) == "https://h/a"
    assert places.join(as_remote("https://u:p@h/a/"), "b").url == "https://u:p@h/a/b"  # type: ignore[attr-defined]


def test_a_fingerprint_changes_with_the_file(store: Any, tmp_path: Path) -> None:
    store.pipe("/f/x.json", b"1")
    first = places.fingerprint_of("memory://f/x.json")
    assert first == places.fingerprint_of("memory://f/x.json")
    store.pipe("/f/x.json", b"2")
    assert places.fingerprint_of("memory://f/x.json") != first
    (tmp_path / "x").write_text("1")
    assert places.fingerprint_of(str(tmp_path / "x")) is not None
    with pytest.raises(OSError, match="No such file"):
        places.fingerprint_of("memory://f/y.json")


def test_the_dashboard_shows_a_run_of_a_store(fleet: Truth) -> None:
    pytest.importorskip("dash", reason="extra 'dashboard'")
    from dashboards.store import Opened, Store

    store = Store(lambda: find_runs(["memory://runs"]))
    (run,) = store.runs()
    found = store.ask(run, wait_s=60)
    assert isinstance(found, Opened)
    fleet.check(found.report)


def test_budgets_of_a_run_of_a_store(fleet: Truth, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "memory://runs/one", "--max-exposed-ratio", "0.99"]) == EXIT_OK
    assert main(["check", "memory://runs/one", "--max-exposed-ratio", "0.01"]) == 1
    assert main(["check", "memory://runs/two", "--max-exposed-ratio", "0.01"]) == EXIT_INPUT
    assert "memory://runs/two does not exist" in capsys.readouterr().err
