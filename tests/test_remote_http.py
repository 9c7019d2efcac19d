"""Traces on a web server: fetched, listed, redirected, and all that goes wrong in one sentence."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import cli
from cli_helpers import refused as refused_by_cli
from fleet_truth import Truth, write_fleet
from remote_helpers import Web, serve
from trace_helpers import mixed_writer

import sp_profiler
from sp_profiler.cli.main import main
from sp_profiler.engine import analyze_files
from sp_profiler.errors import EXIT_INPUT, EXIT_OK, InputError, UsageError
from sp_profiler.trace import cache, remote
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.find import find_runs

pytest.importorskip("fsspec", reason="extra 'remote'")
pytest.importorskip("aiohttp", reason="extra 'remote'")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    folder = tmp_path / "web"
    folder.mkdir()
    mixed_writer().write(folder / "one.pt.trace.json")
    mixed_writer().write(folder / "one.pt.trace.json.gz")
    with serve(folder) as served:
        yield served


@pytest.fixture
def fleet(web: Web) -> Truth:
    return write_fleet(web.folder / "run", 16, steps=2)


def refused(url: str) -> str:
    with pytest.raises(InputError) as caught:
        sp_profiler.load(url)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_file_is_the_same_from_everywhere(web: Web) -> None:
    for name in ("one.pt.trace.json", "one.pt.trace.json.gz"):
        here = decode_trace(str(web.folder / name))
        for way in ("", "moved/", "ranged/"):
            there = decode_trace(f"{web.url}/{way}{name}")
            assert there.strings == here.strings
            assert there.collectives == here.collectives
            assert (there.events.start_ns == here.events.start_ns).all()
            assert there.path == f"{web.url}/{way}{name}"


def test_a_folder_with_an_index_is_a_run(web: Web, fleet: Truth) -> None:
    for url in (f"{web.url}/run", f"{web.url}/run/", f"{web.url}/run/rank-*.gz", f"{web.url}/moved/run/"):
        report = sp_profiler.analyze(url)
        fleet.check(report)
        assert report.run.name == "run"
        folder = f"{web.url}/moved/run" if "moved" in url else f"{web.url}/run"
        assert report.ranks[3].file == f"{folder}/rank-00003.pt.trace.json.gz"


def test_a_folder_of_runs_is_searched_and_run_json_is_read(web: Web, fleet: Truth) -> None:
    (web.folder / "run" / "run.json").write_text('{"world_size": 99}')
    (web.folder / "runs").mkdir()
    (web.folder / "run").rename(web.folder / "runs" / "a")
    write_fleet(web.folder / "runs" / "b", 16, steps=1)
    runs = find_runs([f"{web.url}/runs/"])
    assert [run.name for run in runs] == ["a", "b"]
    assert runs[0].run_json == {"world_size": 99}
    assert runs[1].run_json is None
    assert sp_profiler.analyze(runs[0].root).run.world_size == 99


def test_each_file_is_fetched_once_also_for_the_cache(
    web: Web, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 1)
    monkeypatch.setenv("SP_PROFILER_CACHE", str(tmp_path / "cache"))
    url = f"{web.url}/one.pt.trace.json.gz"
    first = cache.decode_cached(url)
    assert web.gets("one.pt.trace.json.gz") == 1
    entries = [one for one in (tmp_path / "cache").iterdir() if not one.name.startswith(".")]
    assert len(entries) == 1
    again = cache.decode_cached(url)
    assert again.path == url
    assert (again.events.start_ns == first.events.start_ns).all()
    here = cache.decode_cached(str(web.folder / "one.pt.trace.json.gz"))
    assert here.path.startswith(str(web.folder))  # equal content, one entry
    assert len([one for one in (tmp_path / "cache").iterdir() if not one.name.startswith(".")]) == 1


def test_a_damaged_file_is_read_as_far_as_it_goes(web: Web) -> None:
    whole = (web.folder / "one.pt.trace.json.gz").read_bytes()
    name = "damaged.pt.trace.json.gz"
    (web.folder / name).write_bytes(whole[:-40] + bytes(20) + whole[-20:])
    here, there = decode_trace(str(web.folder / name)), decode_trace(f"{web.url}/{name}")
    assert [one.code for one in there.ledger] == [one.code for one in here.ledger]
    assert any(one.severity == "loss" for one in there.ledger)
    assert len(there.events) == len(here.events) > 0


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("nothing.json", "does not exist"),
        ("status/404/x.json", "does not exist"),
        ("status/403/x.json", "cannot be read: the server answers 403 Forbidden"),
        ("status/500/x.json", "cannot be read: the server answers 500 Internal Server Error"),
        ("status/599/x.json", "cannot be read: the server answers 599"),
        ("around/x.json", "cannot be read: the server redirects without end"),
        ("cut/one.pt.trace.json", "cannot be read: the connection broke off before the end of the file"),
        ("silent/3/x.json", "cannot be read: the server does not answer in time"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    web: Web, way: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SILENT_S", 1)
    assert refused(f"{web.url}/{way}") == f"{web.url}/{way} {says}."


def test_an_error_without_end_is_one_sentence_too(web: Web) -> None:
    """The HTTP client would say on stderr that it left a connection open."""
    refused_by_cli(cli("analyze", f"{web.url}/unfinished/none.json"), EXIT_INPUT, "does not exist")


def test_a_closed_port_and_an_unknown_server() -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/x.json"
        assert refused(url) == f"{url} cannot be read: Connection refused."
    assert "https:///x.json cannot be read" in refused("https:///x.json")


def test_a_rank_whose_transfer_breaks_off_is_missing_and_named(web: Web, tmp_path: Path) -> None:
    write_fleet(web.folder / "run", 16, steps=2)
    ranks = [f"{web.url}/run/rank-{rank:05d}.pt.trace.json.gz" for rank in range(16)]
    ranks[4] = ranks[4].replace("/run/", "/cut/run/")
    (run,) = find_runs(ranks)
    assert run.root == web.url
    report = analyze_files(run)
    write_fleet(tmp_path / "without", 16, steps=2, missing=(4,)).check(report)
    (lost,) = [one for one in report.data_quality if one.code == "unreadable-file"]
    assert lost.file == ranks[4]
    assert "the connection broke off" in lost.text


def test_secrets_are_used_and_never_shown(
    web: Web, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = "one.pt.trace.json.gz"
    signed = f"{web.url}/signed/{name}?signature=hush&x=1"
    closed = f"http://jane:hush@127.0.0.1:{web.port}/closed/{name}"
    out = tmp_path / "report.json"
    for url in (signed, closed):
        code = main(["analyze", url, "--format", "json", "-o", str(out), "--force"])
        assert code == EXIT_OK
        assert main(["export", url, "-o", str(tmp_path / "out.json.gz"), "--force"]) == EXIT_OK
        assert main(["validate", url]) == EXIT_OK
        assert main(["memory", url]) == EXIT_OK
        shown = capsys.readouterr()
        assert "hush" not in shown.out + shown.err + out.read_text()
        assert "one.pt.trace.json.gz" in out.read_text()
        assert "hush" not in repr(find_runs([url])) + str(decode_trace(url))
    for url in (
        signed.replace("hush", "sesame"),
        f"http://jane:sesame@127.0.0.1:{web.port}/status/401/x.json",
    ):
        assert main(["analyze", url]) == EXIT_INPUT
        shown = capsys.readouterr()
        assert "sesame" not in shown.out + shown.err
        assert "secret words" not in shown.err
        assert shown.err.count("\n") == 1


def test_queries_that_alone_tell_files_apart_are_refused(web: Web) -> None:
    urls = [f"{web.url}/signed/one.pt.trace.json?signature=hush&rank={rank}" for rank in (0, 1)]
    with pytest.raises(InputError, match="different queries"):
        find_runs(urls)


def test_an_index_cannot_lead_elsewhere(web: Web) -> None:
    assert "holds no trace files" in refused(f"{web.url}/outside/")
    assert not any(path.startswith("/one") for _, path, _ in web.asked)


def test_a_snapshot_is_fetched_whole(web: Web, tmp_path: Path) -> None:
    import pickle

    (web.folder / "oom.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    here = sp_profiler.memory(web.folder / "oom.pickle")
    there = sp_profiler.memory(f"{web.url}/oom.pickle")
    assert there == here


def test_an_upload_to_the_dashboard_fetches_nothing(web: Web) -> None:
    """Not by its name, nor by what is in it: only the command line names URLs."""
    pytest.importorskip("dash", reason="extra 'dashboard'")
    from dashboards import server
    from dashboards.app import create_app
    from dashboards.store import Store
    from dashboards.uploads import Uploads

    store = Store(list, uploads=Uploads(4 << 20))
    app = create_app(store)
    server.guard(app, server.Address(port=8050))
    url = f"{web.url}/one.pt.trace.json"
    text = mixed_writer().text().replace('"traceEvents"', f'"path":"{url}","traceEvents"').encode()
    told = f'{{"path": "{url}", "files": ["{url}"]}}'.encode()
    files = [(io.BytesIO(text), url), (io.BytesIO(told), f"{web.url}/run.json")]
    local = {"Host": "127.0.0.1:8050"}
    answer = app.server.test_client().post(
        "/upload", data={"files": files}, content_type="multipart/form-data", headers=local
    )
    assert answer.status_code == 201
    (run,) = store.runs()
    assert store.ask(run, wait_s=60).report.ranks  # type: ignore[union-attr]
    assert web.asked == []


def test_a_folder_of_several_runs_is_told_without_what_lets_somebody_in(web: Web) -> None:
    for name in ("a", "b"):
        (web.folder / "runs" / name).mkdir(parents=True)
        mixed_writer().write(web.folder / "runs" / name / "rank0.pt.trace.json")
    with pytest.raises(UsageError, match="holds 2 runs") as caught:
        sp_profiler.load(f"http://jane:hush@127.0.0.1:{web.port}/closed/runs/")
    assert "hush" not in str(caught.value)
