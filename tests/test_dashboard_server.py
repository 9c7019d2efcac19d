"""Who may ask the dashboard, what it sends, and what a view is made of; without a browser."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving import answering

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from dashboards import server
from dashboards.app import create_app
from dashboards.state import State
from dashboards.store import Opened, Store
from dashboards.views import compare, overlap, timeline
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.cli import dashboard
from sp_profiler.errors import InputError, UsageError
from sp_profiler.report.tables import csv_tables
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.write import TraceWriter

DEMO = Path(__file__).resolve().parent.parent / "traces/demo"


@pytest.fixture(scope="module")
def store() -> Store:
    return Store(lambda: find_runs([str(DEMO)]))


def client_of(store: Store, address: server.Address) -> Any:
    app = create_app(store)
    server.guard(app, address)
    return app.server.test_client()


@pytest.fixture(scope="module")
def client(store: Store) -> Any:
    return client_of(store, server.Address(port=8050))


def run_of(store: Store, name: str) -> Opened:
    ref = next(ref for ref in store.runs() if ref.name == name)
    found = store.ask(ref, wait_s=120)
    assert isinstance(found, Opened)
    return found


LOCAL = {"Host": "127.0.0.1:8050"}


# --- who may ask --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost:8050", "[::1]:8050", "127.0.0.1"])
def test_names_of_this_machine_are_answered(client: Any, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8050",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.7",
        "",
        "[::1",
    ],
)
def test_a_name_that_was_made_to_point_here_is_refused(client: Any, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 403
    assert client.post("/_dash-update-component", headers={"Host": host}, json={}).status_code == 403


def test_requests_of_other_sites_are_refused(client: Any) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "http://[::1", ""):
        told = client.post("/_dash-update-component", headers=LOCAL | {"Origin": origin}, json={})
        assert told.status_code == 403
    assert client.get("/", headers=LOCAL | {"Origin": "http://127.0.0.1:8050"}).status_code == 200


def test_every_answer_carries_the_policies(client: Any) -> None:
    for path in ("/", "/_dash-layout", "/nowhere", "/assets/dashboard.js"):
        headers = client.get(path, headers=LOCAL).headers
        policy = headers["Content-Security-Policy"]
        assert "unsafe-eval" not in policy
        scripts = next(part for part in policy.split("; ") if part.startswith("script-src"))
        assert "unsafe-inline" not in scripts
        assert "default-src 'none'" in policy
        assert headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in headers


def test_another_address_asks_for_the_token(store: Store) -> None:
    address = server.address_for("0.0.0.0", 8050)
    assert address.token is not None
    assert len(address.token) >= 32
    assert address.url.endswith(f"/?token={address.token}")
    host = {"Host": "10.1.2.3:8050"}
    client = client_of(store, address)
    for path in ("/", "/_dash-layout", "/export/x/report/json", "/assets/dashboard.js"):
        assert client.get(path, headers=host).status_code == 401
        assert client.get(f"{path}?token=wrong", headers=host).status_code == 401
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
    first = client.get(f"/?view=timeline&token={address.token}", headers=host)
    assert first.status_code == 302
    assert first.headers["Location"] == "/?view=timeline"  # the token leaves the address bar
    cookie = first.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/", headers=host).status_code == 200  # with the cookie that was set
    another = client.application.test_client()
    assert another.get("/", headers=host).status_code == 401
    kept = {"Cookie": f"{address.cookie}={address.token}"}
    assert client.application.test_client(use_cookies=False).get("/", headers=host | kept).status_code == 200


def test_two_dashboards_of_one_host_keep_a_cookie_each(store: Store) -> None:
    names = {client_of_cookie(store, port) for port in (8050, 8051)}
    assert len(names) == 2  # a browser sends cookies to all ports of a host


def client_of_cookie(store: Store, port: int) -> str:
    address = server.address_for("0.0.0.0", port)
    answer = client_of(store, address).get(f"/?token={address.token}", headers={"Host": "10.1.2.3"})
    return answer.headers["Set-Cookie"].partition("=")[0]


def test_a_big_request_is_refused_before_it_is_read(store: Store) -> None:
    import http.client

    bound = server.listen(server.Address(port=0))
    address = server.Address(port=bound.getsockname()[1])
    app = create_app(store)
    server.guard(app, address)
    with answering(server.make_server(app, bound)):
        asked = http.client.HTTPConnection("127.0.0.1", address.port, timeout=30)
        asked.putrequest("POST", "/_dash-update-component")
        asked.putheader("Content-Length", str(1 << 34))
        asked.endheaders()
        assert asked.getresponse().status == 413


def test_only_the_loopback_goes_without_a_token() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.9"):
        assert server.address_for(host, 1).token is None
    for host in ("0.0.0.0", "::", "192.168.0.2", "example.org", "localhost.example.org"):
        assert server.address_for(host, 1).token is not None


def test_nothing_of_the_development_tools_is_there(client: Any) -> None:
    assert client.get("/_reload-hash", headers=LOCAL).status_code == 404
    assert b"<title>sp-profile" in client.get("/_mcp", headers=LOCAL).data  # the page, as for any path


@pytest.mark.parametrize(
    "path",
    [
        "/export/..%2f..%2fetc/report/json",
        "/export/nothing/report/json",
        "/export/{run}/report/../../x",
        "/export/{run}/report/exe",
        "/export/{run}/table/..%2f..%2fetc%2fpasswd",
        "/export/{run}/table/nothing",
        "/export/nothing/perfetto",
        "/assets/../app.py",
        "/assets/%2e%2e/app.py",
    ],
)
def test_what_is_not_ours_to_give_is_not_given(client: Any, store: Store, path: str) -> None:
    answer = client.get(path.replace("{run}", store.runs()[0].id), headers=LOCAL)
    assert answer.status_code == 404 or b"<title>sp-profile" in answer.data
    assert b"root:" not in answer.data
    assert b"create_app" not in answer.data


# --- what can be taken along ------------------------------------------------------------------------------


def test_exports_are_the_reports_own(client: Any, store: Store) -> None:
    run = run_of(store, "tp-async")
    where = f"/export/{run.ref.id}"
    told = client.get(f"{where}/report/json", headers=LOCAL)
    assert json.loads(told.data)["totals"]["exposed_ns"] == run.report.totals.exposed_ns
    assert told.headers["Content-Disposition"].startswith("attachment")
    for kind, start in (("html", b"<!doctype html>"), ("markdown", b"#")):
        answer = client.get(f"{where}/report/{kind}", headers=LOCAL)
        assert answer.data.lower().startswith(start)
        assert answer.headers["Content-Disposition"].startswith("attachment")
    expected = csv_tables(run.report)
    for table in ("collectives", "ranks", "data_quality"):
        assert client.get(f"{where}/table/{table}", headers=LOCAL).data.decode() == expected[table]


def test_the_csv_of_collectives_holds_what_the_filters_leave(client: Any, store: Store) -> None:
    run = run_of(store, "tp-async")
    state = State(view="overlap", run=run.ref.id, purpose="dgrad", of=1)
    address = overlap.csv_address(run, state)
    lines = client.get(address, headers=LOCAL).data.decode().splitlines()
    whole = csv_tables(run.report)["collectives"].splitlines()
    assert lines[0] == whole[0]
    ids = overlap.chosen(run, state).tolist()
    assert ids
    assert lines[1:] == [whole[1 + number] for number in ids]
    assert len(ids) < len(whole) - 1
    assert client.get("/export/nothing/collectives", headers=LOCAL).status_code == 404


def test_perfetto_traces_of_all_ranks_come_in_one_archive(client: Any, store: Store) -> None:
    run = run_of(store, "tp-sync")
    data = client.get(f"/export/{run.ref.id}/perfetto", headers=LOCAL).data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert [name.endswith(".perfetto.json.gz") for name in archive.namelist()] == [True, True]
        assert archive.testzip() is None


# --- what views are made of -------------------------------------------------------------------------------


def test_the_timeline_shows_the_drawn_step_the_zoom_or_the_picked_collective(store: Store) -> None:
    run = run_of(store, "tp-async")
    lanes = store.lanes(run, run.ranks[0])
    zero, end = lanes.span
    drawn = run.report.timeline
    assert drawn is not None
    whole = timeline.window_of(run, lanes, State())
    assert (whole.start_ns, whole.end_ns) == (drawn.start_ns, drawn.end_ns)
    zoomed = timeline.window_of(run, lanes, State(t=(1000, 5000)))
    assert (zoomed.start_ns - zero, zoomed.end_ns - zero) == (1000, 5000)
    beyond = timeline.window_of(run, lanes, State(t=(10**15, 10**16)))  # of another trace: the step again
    assert beyond == whole
    assert timeline.window_of(run, lanes, State(t=(0, 10**16))).end_ns == end
    one = run.report.collectives[3]
    around = timeline.window_of(run, lanes, State(pick=3))
    assert around.start_ns < one.start_ns < one.start_ns + one.dur_ns < around.end_ns


@pytest.mark.parametrize("t", [None, (0, 10**18), (0, 10**6), (10**6, 10**6 + 50)])
def test_an_answer_of_the_timeline_is_small(store: Store, t: tuple[int, int] | None) -> None:
    run = run_of(store, "sp-recompute")
    figure, axis, told = timeline.draw(store, run, State(t=t, ranks=(1,)))
    assert len(json.dumps(figure)) < 300_000
    assert axis["end"] > axis["start"]
    assert "in view" in told


def test_a_click_on_a_collective_finds_its_like_on_other_ranks(store: Store) -> None:
    from dashboards.collective import peers

    run = run_of(store, "tp-async")
    for one in run.report.collectives:
        found = peers(run, one)
        assert not found.why
        assert found.ids[0] == one.id
        others = [run.report.collectives[number] for number in found.ids]
        assert sorted(other.rank for other in others if other.rank is not None) == [0, 1]
        assert {(other.op, other.group, other.module, other.phase) for other in others} == {
            (one.op, one.group, one.module, one.phase)
        }


def test_what_ran_meanwhile_is_what_overlapped(store: Store) -> None:
    from dashboards.collective import ran_meanwhile

    run = run_of(store, "tp-async")
    lanes = store.lanes(run, run.ranks[0])
    mine = [one for one in run.report.collectives if one.rank == 0 and one.note is None]
    assert any(one.overlapped_ns for one in mine)
    for one in mine:
        by_look, _ = ran_meanwhile(lanes, one)
        assert sum(by_look.values()) == one.overlapped_ns  # one lane of computation: nothing counts twice


def test_filters_choose_collectives_and_their_sums_are_told(store: Store) -> None:
    run = run_of(store, "tp-async")
    table = Collectives.of(run.report.collectives)
    everything = overlap.chosen(run, State())
    assert len(everything) == len(table)
    shares = [table[row].exposed_share_ns for row in everything.tolist()]
    assert shares == sorted(shares, reverse=True)
    for state in (
        State(purpose="dgrad"),
        State(of=1),
        State(step=2),
        State(q="MLP.up"),
        State(phase="forward"),
    ):
        rows = overlap.chosen(run, state).tolist()
        expected = [
            one.id
            for one in run.report.collectives
            if state.purpose in ("", one.purpose)
            and state.of in (None, one.rank)
            and state.step in (None, one.step)
            and state.phase in ("", one.phase)
            and state.q.lower() in f"{one.module} {one.kernel}".lower()
        ]
        assert sorted(rows) == expected
        assert expected
    assert (
        overlap.summary(run, overlap.chosen(run, State(q="no such"))) == "No collective passes these filters."
    )
    assert overlap.summary(run, everything).startswith("56 collectives")


def test_the_run_that_differs_least_is_compared(store: Store) -> None:
    run = run_of(store, "tp-async")
    base = compare.base_of(store, run, State())
    assert base is not None
    assert base.name == "tp-sync"
    asked = next(ref for ref in store.runs() if ref.name == "sp-basic")
    assert compare.base_of(store, run, State(base=asked.id)) == asked


def test_the_parts_of_a_step_differ_by_what_the_steps_do(store: Store) -> None:
    from sp_profiler.comparing.compare import compare as compared

    found = compared(*(run_of(store, name).report for name in ("tp-sync", "tp-async")))
    step = next(one for one in found.totals if one.figure == "window_ns")
    gap = sum(part.difference or 0 for part in found.step_parts) - (step.difference or 0)
    assert abs(gap) <= len(found.step_parts)  # each in whole ns


def test_collectives_of_no_group_or_uneven_order_are_not_matched(tmp_path: Path) -> None:
    from dashboards.collective import peers

    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2).step(1, 0, 500).kernel("gemm", 0, 100, stream=7)
        for number in range(3 - rank):
            writer.collective("allreduce", 100 * number + 10, 50, ranks=[0, 1])
        (tmp_path / f"rank{rank}.json").write_text(writer.text())
    found = Store(lambda: find_runs([str(tmp_path)]))
    run = found.ask(found.runs()[0], wait_s=60)
    assert isinstance(run, Opened)
    assert "different numbers" in peers(run, run.report.collectives[0]).why
    alone = replace(run.report.collectives[0], group=None)
    assert "group" in peers(run, alone).why


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sp_profiler.cli import dashboard
    from sp_profiler.cli.main import build_parser

    def run(*arguments: str) -> int:
        return dashboard.run(build_parser("dashboard").parse_args(["dashboard", *arguments]))

    with pytest.raises(UsageError, match="--port 70000"):
        run("--port", "70000")
    with pytest.raises(InputError, match="no-such-folder does not exist"):
        run(str(tmp_path / "no-such-folder"))
    taken = server.listen(server.Address(port=0))
    taken.listen()
    with taken, pytest.raises(UsageError, match=r"cannot listen on 127\.0\.0\.1 port"):
        run("--port", str(taken.getsockname()[1]))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'sp-profiler\[dashboard\]'"):
        run()


def test_started_with_nothing_it_says_where_it_looked(capsys: pytest.CaptureFixture[str]) -> None:
    dashboard._say(Store(list), server.Address(port=8050), [])
    assert capsys.readouterr().out.startswith("0 runs in ./sp-profile-runs. Open http://127.0.0.1:8050/")
