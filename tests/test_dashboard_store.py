"""The runs that a dashboard shows, and what its URLs say."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from dashboards import state as url
from dashboards import store as stores
from dashboards.store import Failed, Opened, Reading, Store
from sp_profiler.analysis.lanes import view
from sp_profiler.trace.cache import decode_cached
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.write import TraceWriter

REPOSITORY = Path(__file__).resolve().parent.parent
DEMO = REPOSITORY / "traces/demo"


def store_of(*paths: Path | str, **options) -> Store:
    return Store(lambda: find_runs([str(path) for path in paths]), **options)


def opened(store: Store, place: int = 0) -> Opened:
    found = store.ask(store.runs()[place], wait_s=120)
    assert isinstance(found, Opened), found
    return found


def test_runs_have_ids_that_stay_and_are_no_paths(tmp_path: Path) -> None:
    one, two = store_of(DEMO), store_of(DEMO)
    assert [ref.id for ref in one.runs()] == [ref.id for ref in two.runs()]
    assert len({ref.id for ref in one.runs()}) == 4
    shutil.copytree(DEMO / "tp-sync", tmp_path / "odd..name&<b>")
    (odd,) = store_of(tmp_path).runs()
    assert odd.id.replace("-", "").isalnum()
    assert url.parse(f"?run={odd.id}").run == odd.id


@pytest.mark.parametrize(
    "asked", ["../../etc/passwd", "..%2f..%2fetc", "/etc/passwd", "tp-sync", "", "tp-sync-00000000", "a/b"]
)
def test_only_ids_of_the_store_open_a_run(asked: str) -> None:
    assert store_of(DEMO).ref(asked) is None


def test_lanes_lead_to_the_collectives_of_the_report() -> None:
    store = store_of(DEMO / "tp-async")
    run = opened(store)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    for rank in run.ranks:
        lanes = store.lanes(run, rank)
        rows = [row for row, place in enumerate(lanes.collective.tolist()) if place >= 0]
        assert rows
        for row in rows:
            one = run.report.collectives[rank.first_collective + int(lanes.collective[row])]
            assert one.rank == rank.rank
            assert one.start_ns == lanes.start_ns[row]
            assert one.start_ns + one.dur_ns == lanes.end_ns[row]


def test_a_run_is_analysed_once_and_again_when_its_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(DEMO / "tp-sync", folder)
    calls: list[str] = []
    analyze = stores.analyze_files
    monkeypatch.setattr(
        stores, "analyze_files", lambda files, *a, **k: calls.append("") or analyze(files, *a, **k)
    )
    store = store_of(folder)
    first = opened(store)
    assert opened(store) is first
    assert len(calls) == 1
    (folder / "rank-00001.pt.trace.json.gz").unlink()
    store.refresh()
    again = opened(store)
    assert len(calls) == 2
    assert again.report.run.ranks == [0]
    assert again.report.run.ranks_missing == [1]


def test_a_big_run_is_kept_between_starts_and_a_damaged_entry_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SP_PROFILER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stores, "SMALLEST_BYTES", 0)
    first = opened(store_of(DEMO / "tp-sync"))
    assert first.folder.parent == tmp_path / "cache"
    analyze = stores.analyze_files
    monkeypatch.setattr(stores, "analyze_files", lambda *_, **__: pytest.fail("analysed again"))
    store = store_of(DEMO / "tp-sync")
    again = opened(store)
    assert again.report == first.report
    lanes = store.lanes(again, again.ranks[0])
    assert view(lanes, *lanes.span, 100).lanes
    monkeypatch.setattr(stores, "analyze_files", analyze)
    (first.folder / "report.json").write_text("{")
    assert opened(store_of(DEMO / "tp-sync")).report == first.report


def test_without_a_cache_everything_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SP_PROFILER_CACHE", str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(stores, "SMALLEST_BYTES", 0)
    store = store_of(DEMO / "tp-sync", decode=decode_cached)
    run = opened(store)
    assert len(store.lanes(run, run.ranks[1]))


def test_what_cannot_be_read_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nothing = store_of(tmp_path / "empty")
    assert nothing.runs() == []
    assert "empty" in nothing.trouble
    (tmp_path / "broken.json").write_text('{"traceEvents": 7}')
    store = store_of(tmp_path / "broken.json", DEMO / "tp-sync")
    broken = store.ask(store.runs()[0], wait_s=60)
    assert isinstance(broken, Failed)
    assert "broken.json" in broken.text
    assert isinstance(opened(store, 1), Opened)  # the others work


def test_a_run_that_takes_long_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    for rank in range(3):
        writer = TraceWriter(rank=rank, world_size=3).step(1, 0, 500).kernel("gemm", 0, 100, stream=7)
        (tmp_path / f"rank{rank}.json").write_text(writer.text())
    go_on, once = threading.Event(), threading.Event()

    def slow(path: str, limits):
        if path.endswith("rank2.json"):
            once.set()
            go_on.wait(30)
        return decode_cached(path, limits)

    store = store_of(tmp_path, decode=slow)
    (ref,) = store.runs()
    store.ask(ref, wait_s=0)
    assert once.wait(30)
    until = time.monotonic() + 20
    while (found := store.ask(ref, wait_s=0)) != Reading(5, 6) and time.monotonic() < until:
        time.sleep(0.01)
    assert found == Reading(5, 6)  # the third file is being read, two are analysed
    go_on.set()
    assert isinstance(opened(store), Opened)


texts = st.text(max_size=30)
states = st.builds(
    url.State,
    view=st.sampled_from(url.VIEWS),
    run=st.none() | st.from_regex(r"[A-Za-z0-9-]{1,64}", fullmatch=True),
    rank=st.none() | st.integers(0, 10**6),
    theme=st.sampled_from([None, "light", "dark"]),
    t=st.none()
    | st.tuples(st.integers(0, 10**12), st.integers(1, 10**12)).map(lambda p: (p[0], p[0] + p[1])),
    ranks=st.lists(st.integers(0, 99), max_size=4, unique=True).map(tuple),
    pick=st.none() | st.integers(0, 10**7),
    q=texts,
    group=texts,
)


@given(states)
def test_a_state_survives_its_url(state: url.State) -> None:
    assert url.parse(url.search(state)) == state


@given(texts)
def test_no_url_is_an_error(text: str) -> None:
    assert isinstance(url.parse(text), url.State)
    assert isinstance(url.parse(f"?t={text}&rank={text}&view={text}&run={text}&ranks={text}"), url.State)
