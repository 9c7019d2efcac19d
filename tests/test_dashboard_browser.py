"""The dashboard in a real browser: every view, what can be clicked, and names that would like to be code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browser_helpers import Page, page  # noqa: F401 - a fixture
from context_traces import CASES, draw
from serving import answering

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from dashboards import server
from dashboards.app import Settings, create_app
from dashboards.state import VIEWS
from dashboards.store import Opened, Store
from sp_profiler.report.quality import shown, totals
from sp_profiler.report.tables import csv_text, to_polars
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.write import TraceWriter

DEMO = Path(__file__).resolve().parent.parent / "traces/demo"
EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"&{{7*7}}'

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@contextmanager
def dashboard(*paths: Path) -> Iterator[tuple[str, Store]]:
    """A server in this process; its address, and its store."""
    store = Store(lambda: find_runs([str(path) for path in paths]) if paths else [])
    bound = server.listen(server.Address(port=0))
    address = server.Address(port=bound.getsockname()[1])
    app = create_app(store, Settings(tuple(map(str, paths))))
    server.guard(app, address)
    with answering(server.make_server(app, bound)):
        yield address.url, store


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[str, Store]]:
    with dashboard(DEMO) as running:
        yield running


def opened(store: Store, name: str) -> Opened:
    ref = next(ref for ref in store.runs() if ref.name == name)
    found = store.ask(ref, wait_s=200)
    assert isinstance(found, Opened)
    return found


def show(page: Page, url: str, view: str = "overview", **query: Any) -> None:  # noqa: F811
    """Open a view, and wait until all of it is drawn."""
    told = "&".join(f"{key}={value}" for key, value in {"view": view, **query}.items())
    page.visit(f"{url}?{told}")
    settle(page, view)


def settle(page: Page, view: str) -> None:  # noqa: F811
    page.wait_for(f"document.querySelector('#content [data-view={view}]')", 150)
    graphs = "document.querySelectorAll('#content .js-plotly-plot, #content .dash-graph')"
    page.wait_for(f"[...{graphs}].every(one => one.querySelector('.main-svg'))", 150)
    page.wait_for("!document.querySelector('#overview-rest:empty')", 60)  # what comes after the first view


def text_of(page: Page, selector: str = "#content") -> str:  # noqa: F811
    return page.run(f"document.querySelector({json.dumps(selector)}).innerText")


def ours(page: Page, url: str) -> list[str]:  # noqa: F811
    """Addresses that were asked for and are not the dashboard's."""
    return [one for one in page.requests if not one.startswith((url, "data:", "blob:"))]


def test_every_view_of_the_demo(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    run = opened(store, "tp-async")
    for view in VIEWS:
        show(page, url, view, run=run.ref.id)
        assert page.problems == [], view
        assert ours(page, url) == []
        assert page.run("document.querySelector('nav [aria-current]').id") == f"tab-{view}"
        assert not page.run("document.documentElement.scrollWidth > innerWidth"), view
        told = text_of(page)
        assert "failed" not in told
        assert text_of(page, "header a.quality") == f"Data quality: {totals(shown(run.report.data_quality))}"
        assert ("No context parallelism" in told) == (view == "ring")


def test_the_ledger_of_every_view_leads_to_its_list(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    show(page, url, "timeline", run=opened(store, "tp-async").ref.id, t="250000000-290000000")
    page.run("document.querySelector('header a.quality').click()")
    settle(page, "overview")
    place = "document.getElementById('data-quality').getBoundingClientRect()"
    page.wait_for(f"{place}.top > 0 && {place}.top < innerHeight", 30)
    assert "legal" in text_of(page, "#data-quality")
    assert page.problems == []


def test_figures_on_the_page_are_the_reports_fields(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    run = opened(store, "tp-async")
    show(page, url, run=run.ref.id)
    shown = page.run(
        "[...document.querySelectorAll('[data-figure]')].map(one => [one.dataset.figure, one.dataset.value])"
    )
    assert len({path for path, _ in shown}) >= 10
    for path, value in shown:
        expected: Any = run.report
        for part in path.split("."):
            expected = expected[part] if isinstance(expected, dict) else getattr(expected, part)
        assert json.loads(value) == expected, path
    assert run.report.summary[0].split(";")[0] in text_of(page, ".lead")
    assert "Data quality" in text_of(page)


def test_the_first_view_waits_neither_for_plotly_nor_for_tables(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    run = opened(store, "tp-async")
    page.send("Network.setCacheDisabled", cacheDisabled=True)
    page.send("Network.setBlockedURLs", urls=["*plotly.min.js*"])
    try:
        page.visit(f"{url}?run={run.ref.id}")
        page.wait_for("document.querySelector('#content [aria-label=Findings] li')", 60)
        assert run.report.summary[0].split(";")[0] in text_of(page, ".lead")
        seen = page.run("document.querySelector('[aria-label=\"Time by rank\"] .poster').innerText")
        assert "rank 0" in seen
        assert "rank 1" in seen
        high = "document.querySelector('[aria-label=\"Time by rank\"] .drawn').offsetHeight"
        before = page.run(high)
        assert page.run("typeof window.Plotly") == "undefined"
        assert not any("ag_grid" in one for one in page.requests)
    finally:
        page.send("Network.setBlockedURLs", urls=[])
        page.send("Network.setCacheDisabled", cacheDisabled=False)
    show(page, url, run=run.ref.id)
    assert page.run(high) == before  # nothing moves when plotly draws over it
    cover = "getComputedStyle(document.querySelector('[aria-label=\"Time by rank\"] .poster')).display"
    assert page.run(cover) == "none"
    assert page.problems == []


def axis(page: Page, graph: str = "timeline") -> list[float]:  # noqa: F811
    return page.run(f"document.querySelector('#{graph} .js-plotly-plot')._fullLayout.xaxis.range")


def test_the_timeline_zooms_by_url_button_wheel_and_key(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    run = opened(store, "tp-async")
    show(page, url, "timeline", run=run.ref.id, rank=0, t="250000000-290000000")
    assert axis(page) == [250, 290]
    page.run("document.querySelector('[data-move=in]').click()")
    page.wait_for("location.search.includes('t=260000000-280000000')", 30)
    page.wait_for(
        "document.querySelector('#timeline .js-plotly-plot')._fullLayout.xaxis.range[0] === 260", 30
    )
    page.send("Input.dispatchKeyEvent", type="keyDown", key="f", text="f")
    page.send("Input.dispatchKeyEvent", type="keyUp", key="f")
    page.wait_for("document.querySelector('#timeline .js-plotly-plot')._fullLayout.xaxis.range[0] === 0", 30)
    box = page.run(
        "(() => { const b = document.querySelector('#timeline .nsewdrag').getBoundingClientRect();"
        " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    before = axis(page)
    page.send("Input.dispatchMouseEvent", type="mouseWheel", x=box[0], y=box[1], deltaX=0, deltaY=-400)
    page.wait_for(
        f"document.querySelector('#timeline .js-plotly-plot')._fullLayout.xaxis.range[0] > {before[0]}", 30
    )
    page.wait_for("!location.search.includes('t=0-')", 30)
    zero, last = store.lanes(run, run.ranks[0]).span
    end = (last - zero) / 1e6
    beyond = (
        f"{{'xaxis.range': [{end - 10}, {end + 30}]}}"  # dragged past the end: up to it, as wide as before
    )
    drawn = "document.querySelector('#timeline .js-plotly-plot')"
    page.run(f"Plotly.relayout({drawn}, {beyond}).then(() => 0)")
    page.wait_for(f"location.search.includes('t={last - zero - 40_000_000}-{last - zero}')", 30)
    assert page.problems == []


def test_a_click_on_a_collective_tells_what_hid_it(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    run = opened(store, "tp-async")
    one = max(
        (c for c in run.report.collectives if c.rank == 0 and c.overlapped_ns and c.partner is not None),
        key=lambda c: c.dur_ns,
    )
    zero, _ = store.lanes(run, run.ranks[0]).span
    start = one.start_ns - zero
    show(page, url, "timeline", run=run.ref.id, rank=0, t=f"{start - one.dur_ns}-{start + 2 * one.dur_ns}")
    # The bar is in the middle third of the axis, in the lane of its thread.
    spot = page.run(
        "(() => { const plot = document.querySelector('#timeline .js-plotly-plot'), full = plot._fullLayout;"
        " const trace = plot._fullData.find(t => t.type === 'bar' && t.customdata.some(d => d[0] === "
        f"{one.id}));"
        f" const at = trace.customdata.findIndex(d => d[0] === {one.id});"
        " const box = plot.querySelector('.nsewdrag').getBoundingClientRect();"
        " return [box.x + full.xaxis.c2p(trace.base[at] + trace.x[at] / 2),"
        " box.y + full.yaxis.c2p(trace.y[at])]; })()"
    )
    page.click(*spot)
    page.wait_for(f"location.search.includes('pick={one.id}')", 30)
    page.wait_for("document.querySelector('#pick h3')", 30)
    told = text_of(page, "#pick")
    assert f"#{one.id}" in told
    assert "What ran meanwhile" in told
    assert one.partner is not None
    assert one.partner.what in told
    assert "On other ranks" in told
    assert page.problems == []


def test_filters_and_a_picked_row(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    run = opened(store, "tp-async")
    show(page, url, "overlap", run=run.ref.id, purpose="dgrad", of=1)
    expected = [c for c in run.report.collectives if c.purpose == "dgrad" and c.rank == 1]
    page.wait_for(
        f"document.getElementById('overlap-told').innerText.startsWith('{len(expected)} collectives')", 30
    )
    page.wait_for("document.querySelector('#grid-collectives .ag-row [col-id=\"3\"]')", 60)
    first = max(expected, key=lambda c: (c.exposed_share_ns, -c.id))
    spot = page.run(
        '(() => { const b = document.querySelector(\'#grid-collectives [row-index="0"] [col-id="3"]\');'
        " b.scrollIntoView({block: 'center'}); const r = b.getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    page.click(*spot)
    page.wait_for(f"location.search.includes('pick={first.id}')", 30)
    page.wait_for("document.querySelector('#overlap-pick h2')", 30)
    assert f"#{first.id}" in text_of(page, "#overlap-pick")
    assert page.problems == []


def test_dark_mode_is_in_the_url_and_in_the_figures(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, _ = demo
    page.media("light")
    show(page, url, theme="light")
    paper = "document.querySelector('#graph-step-time .js-plotly-plot')._fullLayout.paper_bgcolor"
    light = page.run(paper)
    page.run("document.getElementById('theme').click()")
    page.wait_for("location.search.includes('theme=dark')", 30)
    page.wait_for("document.querySelector('#content [data-theme=dark]')", 60)
    settle(page, "overview")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    page.wait_for(f"{paper} !== {json.dumps(light)}", 60)
    page.media("dark")
    show(page, url)  # without a word in the URL the system decides
    assert page.run("document.documentElement.dataset.theme") == "dark"
    page.media("light")
    assert page.problems == []


def test_what_is_seen_can_be_taken_along(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    run = opened(store, "tp-sync")
    show(page, url, run=run.ref.id)
    links = page.run("[...document.querySelectorAll('.menu a')].map(one => one.getAttribute('href'))")
    assert f"/export/{run.ref.id}/report/html" in links
    got = page.run(f"fetch('/export/{run.ref.id}/table/collectives').then(answer => answer.text())")
    assert got == csv_text(to_polars(run.report, "collectives"))
    picture = page.run(
        "Plotly.toImage(document.querySelector('#graph-step-time .js-plotly-plot'), {format: 'svg'})"
    )
    assert picture.startswith("data:image/svg")
    assert page.problems == []


def test_the_figures_of_a_view_are_saved_as_pictures(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    show(page, url, run=opened(store, "tp-sync").ref.id)
    count = page.run("document.querySelectorAll('#content .js-plotly-plot').length")
    page.run(
        "window.saved = []; Plotly.downloadImage = async (plot, how) =>"
        " window.saved.push([how.filename, (await Plotly.toImage(plot, how)).slice(0, 15)])"
    )
    page.run("document.querySelector('[data-save=png]').click()")
    page.wait_for(f"window.saved.length === {count}", 60)
    saved = page.run("window.saved")
    assert {start for _, start in saved} == {"data:image/png;"}
    assert {name for name, _ in saved} >= {"overview-step-time", "overview-collectives"}
    assert page.problems == []


def test_a_cell_of_the_wait_map_leads_to_its_collective(page: Page, demo: tuple[str, Store]) -> None:  # noqa: F811
    url, store = demo
    run = opened(store, "tp-async")
    show(page, url, "across", run=run.ref.id)
    expected = page.run("document.querySelector('#graph-waits .js-plotly-plot').data[0].customdata[1][4][0]")
    assert run.report.collectives[expected].rank == 1
    spot = page.run(
        "(() => { const plot = document.querySelector('#graph-waits .js-plotly-plot');"
        " const full = plot._fullLayout, box = plot.querySelector('.nsewdrag').getBoundingClientRect();"
        " return [box.x + full.xaxis.c2p(5), box.y + full.yaxis.c2p('1')]; })()"
    )
    page.click(*spot)
    settle(page, "timeline")
    page.wait_for("document.querySelector('#pick h3')", 60)
    assert f"#{expected}" in text_of(page, "#pick")
    assert page.problems == []


def hostile(folder: Path) -> Path:
    """A run whose names would all like to be code."""
    folder = folder / "evil & <b>run<b>"
    folder.mkdir()
    for rank in (0, 1):
        writer = TraceWriter(rank=rank, world_size=2).step(1, 0, 500)
        for n in range(3):
            writer.kernel(f"{EVIL}{n}", 20 * n, 15, stream=7, launch=20 * n)
        writer.collective(
            "allreduce", 30 + rank, 60, kernel=f"ncclDevKernel_AllReduce_{EVIL}", description=EVIL, seq=1,
            ranks=[0, 1], launch=10,
        )  # fmt: skip
        (folder / f"rank{rank}.json").write_text(writer.text())
    return folder


def test_names_that_would_like_to_be_code_are_text(page: Page, tmp_path: Path) -> None:  # noqa: F811
    with dashboard(hostile(tmp_path), DEMO / "tp-sync") as (url, store):
        run = next(ref.id for ref in store.runs() if "evil" in ref.name)
        for view in VIEWS:
            show(page, url, view, run=run, pick=0)
            box = page.run(
                "(() => { const b = document.querySelector('#content .nsewdrag'); if (!b) return null;"
                " b.scrollIntoView({block: 'center'}); const r = b.getBoundingClientRect();"
                " return [r.x, r.y, r.width, r.height]; })()"
            )
            if box:
                x, y, width, height = box
                for part in range(1, 8):  # hover over what is drawn, and click on it
                    page.mouse("mouseMoved", x + width * part / 8, y + height * (part % 3 + 0.5) / 3)
                page.click(x + width / 2, y + height / 2)
            assert page.run("window.hacked") is None, view
            assert (
                page.run("document.querySelectorAll('#react-entry-point img[src=x], .hoverlayer img').length")
                == 0
            )
            assert page.problems == [], view
        show(page, url, "timeline", run=run, pick=0)
        assert "<img src=x" in text_of(page)  # as text, it is there


@pytest.mark.parametrize("found", ["nothing", "a folder without traces", "a broken trace", "an unknown run"])
def test_what_a_new_user_may_meet_first(page: Page, tmp_path: Path, found: str) -> None:  # noqa: F811
    paths = {"nothing": [], "a folder without traces": [tmp_path]}.get(found, [tmp_path / "broken.json"])
    if found == "a broken trace":
        (tmp_path / "broken.json").write_text('{"traceEvents": 7}')
    if found == "an unknown run":
        paths = [DEMO / "tp-sync"]
    with dashboard(*paths) as (url, _):
        page.visit(f"{url}?run=no-such-run" if found == "an unknown run" else url)
        page.wait_for("document.querySelector('#content .notice h2')", 60)
        told = text_of(page)
        expected = {
            "nothing": "sp-profile dashboard PATH",
            "a folder without traces": str(tmp_path),
            "a broken trace": "broken.json",
            "an unknown run": "no such run",
        }
        assert expected[found] in told
        assert page.problems == []


def test_64_ranks(page: Page, tmp_path: Path) -> None:  # noqa: F811
    for rank in range(64):
        writer = TraceWriter(rank=rank, world_size=64).step(1, 0, 900)
        for n in range(6):
            writer.kernel("gemm", 100 * n, 70, stream=7, launch=100 * n)
            writer.collective(
                "allreduce", 100 * n + 50 + rank % 5, 40, ranks=list(range(64)), seq=n, launch=100 * n
            )
        (tmp_path / f"rank{rank}.json").write_text(writer.text())
    with dashboard(tmp_path) as (url, store):
        for view in ("overview", "timeline", "across"):
            show(page, url, view, ranks="1.2.3.63")
            assert page.problems == [], view
            assert not page.run("document.documentElement.scrollWidth > innerWidth")
            if view == "overview":  # bars of many ranks scroll in their panel: findings stay in reach
                highest = (
                    "Math.max(...[...document.querySelectorAll('.times .plot')].map(p => p.offsetHeight))"
                )
                assert 500 < page.run(highest) <= 620
        assert len(store.ask(store.runs()[0], wait_s=5).report.ranks) == 64  # type: ignore[union-attr]


def test_a_ring_shows_its_hops(page: Page, tmp_path: Path) -> None:  # noqa: F811
    case = next(case for case in CASES if case.name == "zigzag")
    with dashboard(draw(case, tmp_path).folder) as (url, store):
        show(page, url, "ring")
        told = text_of(page)
        summary = store.ask(store.runs()[0], wait_s=60).report.summary  # type: ignore[union-attr]
        own = page.run("[...document.querySelectorAll('#content .lead p')].map(p => p.textContent)")
        assert own
        assert set(own) <= set(summary)
        assert "Hops beside attention" in told
        assert "Work by rank and ring step" in told
        assert page.problems == []


@pytest.mark.shared
@pytest.mark.parametrize("name", ["dlrm_v100_8ranks", "alltoall_2_of_128", "resnet_v100_memory"])
def test_every_view_of_real_traces(page: Page, shared: Path, name: str) -> None:  # noqa: F811
    with dashboard(shared / "corpus" / name) as (url, _):
        for view in VIEWS:
            show(page, url, view)
            assert page.problems == [], view
            assert "failed" not in text_of(page)
