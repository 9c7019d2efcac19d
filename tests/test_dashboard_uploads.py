"""Traces that are sent to the dashboard: who may, how much, and under which names they are kept."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser_helpers import Page, page  # noqa: F401 - a fixture
from serving import answering

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from dashboards import server
from dashboards import store as stores
from dashboards.app import Settings, create_app
from dashboards.store import Failed, Opened, Store
from dashboards.uploads import Uploads
from sp_profiler.errors import UsageError
from sp_profiler.trace.write import TraceWriter

DEMO = Path(__file__).resolve().parent.parent / "traces/demo"
LOCAL = {"Host": "127.0.0.1:8050"}
LIMIT = 4 << 20


@pytest.fixture
def uploads() -> Uploads:
    return Uploads(LIMIT)


@pytest.fixture
def store(uploads: Uploads) -> Store:
    return Store(list, uploads=uploads)


@pytest.fixture
def client(store: Store) -> Any:
    return client_of(store, server.Address(port=8050))


def client_of(store: Store, address: server.Address) -> Any:
    app = create_app(store)
    server.guard(app, address)
    return app.server.test_client()


def trace(rank: int, world: int = 2) -> bytes:
    writer = TraceWriter(rank=rank, world_size=world).step(1, 0, 500).kernel("gemm", 0, 100, stream=7)
    return writer.collective("allreduce", 120, 50, ranks=list(range(world)), seq=1).text().encode()


def post(client: Any, *files: tuple[str, bytes], headers: dict[str, str] = LOCAL) -> Any:
    data = {"files": [(io.BytesIO(content), name) for name, content in files]}
    return client.post("/upload", data=data, content_type="multipart/form-data", headers=headers)


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_of_one_upload_are_the_ranks_of_one_run(client: Any, store: Store, uploads: Uploads) -> None:
    answer = post(client, ("rank1.json.gz", gzip.compress(trace(1))), ("rank0.json", trace(0)))
    assert answer.status_code == 201
    run = store.ask(store.ref(answer.json["run"]), wait_s=60)  # type: ignore[arg-type]
    assert isinstance(run, Opened)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert {one.rank for one in run.report.collectives} == {0, 1}
    assert run.ref.name == "rank1.json.gz and 1 more"
    assert len(store.runs()) == 1
    post(client, ("rank0.json", trace(0)))
    assert len(store.runs()) == 2  # what came before stays
    assert client.get(f"/export/{run.ref.id}/report/json", headers=LOCAL).status_code == 200


def test_the_demo_sent_is_the_demo_on_disk(client: Any, store: Store) -> None:
    files = sorted((DEMO / "tp-async").iterdir())
    answer = post(client, *((file.name, file.read_bytes()) for file in files if ".json" in file.name))
    assert answer.status_code == 201
    sent = store.ask(store.ref(answer.json["run"]), wait_s=60)  # type: ignore[arg-type]
    from sp_profiler.trace.find import find_runs

    there = Store(lambda: find_runs([str(DEMO / "tp-async")]))
    disk = there.ask(there.runs()[0], wait_s=60)
    assert isinstance(sent, Opened)
    assert isinstance(disk, Opened)
    assert sent.report.totals == disk.report.totals
    assert sent.report.collectives == disk.report.collectives


@pytest.mark.parametrize(
    "name",
    ["../../x.json", "/etc/x.json", "..\\..\\x.json", "C:\\x.json", "../run.json.json", "x\x00y.json",
     "<b>&\u202e.json", "rank0/../../../x.json", "a" * 4000 + ".json", "../../rank7.json"],
)  # fmt: skip
def test_names_on_disk_are_made_here(client: Any, store: Store, uploads: Uploads, name: str) -> None:
    answer = post(client, (name, trace(0)))
    assert answer.status_code == 201
    (kept,) = everything_in(uploads.folder)
    assert kept == f"upload-1/0000{'-rank7' if 'rank7' in name else ''}.pt.trace.json"
    (run,) = store.runs()
    assert "/" not in run.name
    assert "\\" not in run.name
    assert len(run.name) <= 80


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.exe", b"{}", "x.exe is no trace"),
        ("x.html", b"<script>", "no trace"),
        ("json", b"{}", "no trace"),
        ("memory.pickle", b"\x80\x04.", "memory snapshot"),
        ("x.json", b"", "x.json is empty"),
        ("x.json", b"\x80\x04.", "x.json is no trace"),
        ("x.json", b"<html>", "x.json is no trace"),
        ("run.json", b"{}", "no trace among 1 file"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(
    client: Any, uploads: Uploads, name: str, content: bytes, told: str
) -> None:
    beside = [] if name == "run.json" else [("rank0.json", trace(0))]
    answer = post(client, *beside, (name, content))
    assert answer.status_code in (400, 415)
    assert told in answer.text
    assert answer.text.count("\n") == 1
    assert str(uploads.folder) not in answer.text
    assert everything_in(uploads.folder) == []  # also what was sent beside it
    assert uploads.runs() == []


@pytest.mark.parametrize("content", [b'{"traceEvents": 7}', b"\x1f\x8b\x08broken"])
def test_a_broken_trace_is_told_of_by_the_name_that_was_given(
    client: Any, store: Store, uploads: Uploads, content: bytes
) -> None:
    answer = post(client, ("my trace.json", content))
    assert answer.status_code == 201
    found = store.ask(store.ref(answer.json["run"]), wait_s=60)  # type: ignore[arg-type]
    assert isinstance(found, Failed)
    assert "my trace.json" in found.text
    assert str(uploads.folder) not in found.text
    assert "\n" not in found.text


def test_uploads_are_off_unless_allowed() -> None:
    store = Store(list)
    client = client_of(store, server.Address(port=8050))
    answer = post(client, ("rank0.json", trace(0)))
    assert answer.status_code == 403
    assert "--allow-upload" in answer.text
    assert store.runs() == []
    assert b"data-upload" not in client.get("/_dash-layout", headers=LOCAL).data
    allowed = client_of(Store(list, uploads=Uploads(LIMIT)), server.Address(port=8050))
    assert b"data-upload" in allowed.get("/_dash-layout", headers=LOCAL).data


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        LOCAL | {"Origin": "https://evil.example"},
        LOCAL | {"Origin": "null"},
        LOCAL | {"Origin": "http://127.0.0.1:9999"},
    ],
)
def test_other_sites_send_nothing(client: Any, uploads: Uploads, headers: dict[str, str]) -> None:
    assert post(client, ("rank0.json", trace(0)), headers=headers).status_code == 403
    assert everything_in(uploads.folder) == []


def test_elsewhere_the_token_is_asked_for(store: Store, uploads: Uploads) -> None:
    address = server.address_for("0.0.0.0", 8050)
    client = client_of(store, address)
    host = {"Host": "10.1.2.3:8050"}
    assert post(client, ("rank0.json", trace(0)), headers=host).status_code == 401
    assert everything_in(uploads.folder) == []
    client.get(f"/?token={address.token}", headers=host)
    assert post(client, ("rank0.json", trace(0)), headers=host).status_code == 201


def test_an_upload_over_the_limit_is_refused(client: Any, uploads: Uploads) -> None:
    answer = post(client, ("rank0.json", b"[" + b" " * LIMIT))
    assert answer.status_code == 413
    assert "4.00 MiB" in answer.text
    assert everything_in(uploads.folder) == []


def test_an_upload_of_too_many_files_is_told_so(client: Any, uploads: Uploads) -> None:
    many = [(f"rank{rank}.json", b"{}") for rank in range(1025)]
    answer = post(client, *many)
    assert (answer.status_code, answer.text) == (400, "an upload has 1 to 1024 files\n")
    assert everything_in(uploads.folder) == []


def test_uploads_together_have_a_limit(client: Any, uploads: Uploads) -> None:
    big = trace(0) + b" " * (LIMIT - (1 << 16))
    given = [post(client, ("rank0.json", big)).status_code for _ in range(5)]
    assert given == [201, 201, 201, 201, 507]
    assert len(uploads.runs()) == 4


def test_the_folder_ends_with_the_server(tmp_path: Path) -> None:
    code = (
        "import os; from dashboards.uploads import Uploads; one = Uploads(9);"
        "(one.folder / 'x').write_text('x'); print(one.folder)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
        env={"TMPDIR": str(tmp_path), "PATH": ""}, cwd=DEMO.parent.parent,
    )  # fmt: skip
    assert Path(done.stdout.strip()).parent == tmp_path.resolve()
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_an_upload_enters_the_cache(
    client: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sp_profiler.trace import cache

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 1)
    monkeypatch.setattr(stores, "SMALLEST_BYTES", 1)
    answer = post(client, ("rank0.json", trace(0)))
    assert isinstance(store.ask(store.ref(answer.json["run"]), wait_s=60), Opened)  # type: ignore[arg-type]
    assert everything_in(tmp_path) == []


# --- over the wire ----------------------------------------------------------------------------------------


@contextmanager
def running(store: Store, host: str = "127.0.0.1", token: str | None = None) -> Iterator[server.Address]:
    bound = server.listen(server.Address(host, 0))
    address = server.Address(host, bound.getsockname()[1], token)
    app = create_app(store, Settings())
    server.guard(app, address)
    limit = store.uploads.limit_bytes if store.uploads else 0
    with answering(server.make_server(app, bound, address, limit)):
        yield address


def begin(address: server.Address, path: str, length: int, **headers: str) -> int:
    """The answer to a request of which only the head is sent; 0 where the server waits for the rest."""
    asked = http.client.HTTPConnection("127.0.0.1", address.port, timeout=2)
    asked.putrequest("POST", path)
    asked.putheader("Content-Length", str(length))
    asked.putheader("Content-Type", "multipart/form-data; boundary=x")
    for name, value in headers.items():
        asked.putheader(name, value)
    asked.endheaders()
    try:
        return asked.getresponse().status
    except TimeoutError:
        return 0
    finally:
        asked.close()


# Connections that still wait when the server is closed under its own loop:
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_too_much_is_refused_before_it_is_read(store: Store) -> None:
    allowed = server.MOST_REQUEST_BYTES + 1
    with running(store) as address:
        assert begin(address, "/upload", LIMIT + 1) == 413
        assert begin(address, "/upload", 1 << 40) == 413
        assert begin(address, "/upload", allowed) == 0  # it waits for the body
        assert begin(address, "/_dash-update-component", allowed) == 413  # other addresses take no more
        assert begin(address, "/upload", allowed, Origin="https://evil.example") == 413
    with running(Store(list)) as address:
        assert begin(address, "/upload", allowed) == 413  # uploads are off


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_the_token_nothing_big_is_read(store: Store) -> None:
    allowed = server.MOST_REQUEST_BYTES + 1
    with running(store, "0.0.0.0", "secret") as address:
        assert begin(address, "/upload", allowed) == 413
        assert begin(address, "/upload", allowed, Cookie=f"{address.cookie}=wrong") == 413
        assert begin(address, "/upload", allowed, Cookie=f"{address.cookie}=secret") == 0


# --- the command ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--upload-limit", "5M"], "give both"),
        (["--allow-upload", "--upload-limit", "0"], "--upload-limit 0"),
        (["--allow-upload", "--upload-limit", "5X"], "--upload-limit 5X"),
        (["--allow-upload", "--upload-limit", "-5"], "--upload-limit -5"),
        (["--allow-upload", "--upload-limit", ""], "--upload-limit"),
    ],
)
def test_the_command_says_what_a_limit_is(arguments: list[str], told: str) -> None:
    from sp_profiler.cli import dashboard
    from sp_profiler.cli.main import build_parser

    joined = [f"{arguments[0]}={arguments[1]}"] if len(arguments) == 2 else [
        arguments[0], f"{arguments[1]}={arguments[2]}"
    ]  # fmt: skip
    with pytest.raises(UsageError, match=told):
        dashboard.run(build_parser("dashboard").parse_args(["dashboard", "--port", "0", *joined]))


# --- in the browser ---------------------------------------------------------------------------------------

DROP = """(() => {
  const given = new DataTransfer();
  for (const [name, text] of %s) given.items.add(new File([text], name));
  const at = document.querySelector('%s');
  for (const kind of ['dragover', 'drop'])
    at.dispatchEvent(new DragEvent(kind, { dataTransfer: given, bubbles: true, cancelable: true }));
  return true;
})()"""


@pytest.mark.browser
@pytest.mark.timeout(300)
def test_traces_are_dropped_or_chosen_on_the_page(page: Page, store: Store, tmp_path: Path) -> None:  # noqa: F811
    files = [[f"rank{rank}.json", trace(rank).decode()] for rank in (0, 1)]
    with running(store) as address:
        page.visit(address.url)
        page.wait_for("document.querySelector('#content .drop [data-upload]')")
        page.run(DROP % (json.dumps([["notes.txt", "x"]]), ".drop"))
        page.wait_for("document.querySelector('#told.bad')")
        assert "notes.txt is no trace" in page.run("document.querySelector('#told').innerText")
        assert [one for one in page.problems if "415" not in one] == []  # the browser logs the status
        page.problems.clear()
        page.run(DROP % (json.dumps(files), ".drop"))
        page.wait_for("document.querySelector('#content [data-view=overview]')", 60)
        (first,) = store.runs()
        assert page.run("location.search") == f"?run={first.id}"
        assert page.problems == []

        evil = "<img src=x onerror=window.hacked=1>.json"
        (tmp_path / evil).write_bytes(b'{"traceEvents": 7}')
        page.send("Page.setInterceptFileChooserDialog", enabled=True)
        page.send(
            "Runtime.evaluate",
            expression="document.querySelector('header [data-upload]').click()",
            userGesture=True,
        )
        chosen = page.send("Runtime.evaluate", expression="document.querySelector('#upload-files')")
        node = chosen["result"]["objectId"]
        page.send("DOM.setFileInputFiles", files=[str(tmp_path / evil)], objectId=node)
        page.wait_for(f"location.search.startsWith('?run=') && !location.search.includes('{first.id}')")
        page.wait_for("document.querySelector('#content .notice.bad')")
        assert evil in page.run("document.querySelector('#content .notice').innerText")
        assert page.run("window.hacked") is None
        assert page.problems == []


@pytest.mark.browser
@pytest.mark.timeout(300)
def test_dropping_does_nothing_where_uploads_are_off(page: Page) -> None:  # noqa: F811
    with running(Store(list)) as address:
        page.visit(address.url)
        page.wait_for("document.querySelector('#content .notice h2')")
        assert page.run("document.querySelectorAll('[data-upload], .drop').length") == 0
        page.run(DROP % (json.dumps([["rank0.json", "{}"]]), "#content"))
        assert [one for one in page.requests if one.endswith("/upload")] == []
