"""The pages in a real browser: nothing fails, plots are drawn, numbers are the report's, tables sort."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browser_helpers import Page
from browser_helpers import page as page  # a fixture
from report_helpers import HOSTILE, make_report
from test_report_html import hostile_report, value_at

from sp_profiler.report import html
from sp_profiler.report.model import Report

pytestmark = pytest.mark.browser


def show(page: Page, text: str, folder: Path) -> None:
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    page.media("light")
    page.open(path)
    page.wait_for("document.documentElement.dataset.plots")
    assert page.run("document.documentElement.dataset.plots") == "drawn", page.problems


def read_figures(page: Page) -> dict[str, str]:
    query = "[...document.querySelectorAll('[data-figure]')].map((e) => [e.dataset.figure, e.dataset.value])"
    return dict(page.run(query))


def check_figures(page: Page, report: Report) -> None:
    figures = read_figures(page)
    assert len(figures) >= 10
    for path, raw in figures.items():
        assert json.loads(raw) == value_at(report, path), path


@pytest.mark.parametrize("comm", ["sync", "async"])
def test_page_draws_and_shows_the_reports_numbers(page: Page, tmp_path: Path, comm: str) -> None:
    report = make_report(comm=comm, layers=3)
    show(page, html.render(report), tmp_path)
    check_figures(page, report)
    assert report.timeline
    bars = page.run("document.querySelectorAll('#plot-timeline .bars .point path').length")
    assert bars == len(report.timeline.segments) + len(report.timeline.exposed)
    for plot in ("step-time", "hidden-under", "collectives"):
        assert page.run(f"document.querySelectorAll('#plot-{plot} .bars .point path').length") >= 2
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def column(page: Page, table: str, place: int) -> list[str]:
    return page.run(
        f"[...document.querySelectorAll('#table-{table} tbody tr')]"
        f".map((row) => row.children[{place}].textContent)"
    )


def test_tables_sort_filter_and_page(page: Page, tmp_path: Path) -> None:
    report = make_report(layers=3)
    show(page, html.render(report), tmp_path)
    head = "document.querySelector('#table-collectives th:nth-child(1) button')"
    assert len(column(page, "collectives", 0)) == 20
    page.run(f"{head}.focus()")
    for key in ("keyDown", "keyUp"):  # by keyboard: Enter presses the button
        page.send(
            "Input.dispatchKeyEvent", type=key, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    numbers = [int(text) for text in column(page, "collectives", 0)]
    assert numbers == sorted((c.id for c in report.collectives), reverse=True)[:20]
    assert page.run(f"{head}.parentElement.getAttribute('aria-sort')") == "descending"
    box = page.run(f"(() => {{ const r = {head}.getBoundingClientRect(); return [r.x + 5, r.y + 5]; }})()")
    for kind in ("mousePressed", "mouseReleased"):
        page.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
    assert [int(text) for text in column(page, "collectives", 0)] == list(range(20))
    assert page.run(f"{head}.parentElement.getAttribute('aria-sort')") == "ascending"
    page.run("document.querySelector('#table-collectives .pager button:last-child').click()")
    assert [int(text) for text in column(page, "collectives", 0)] == list(range(20, 36))
    page.run(
        "(() => { const f = document.getElementById('filter-collectives'); f.value = 'layers.1.mlp.up';"
        " f.dispatchEvent(new Event('input')); })()"
    )
    wanted = sorted(c.id for c in report.collectives if c.module == "layers.1.mlp.up")
    assert [int(text) for text in column(page, "collectives", 0)] == wanted
    assert page.problems == []


def test_theme_follows_the_system_and_the_button(page: Page, tmp_path: Path) -> None:
    show(page, html.render(make_report()), tmp_path)
    paper = "document.querySelector('#plot-timeline')._fullLayout.paper_bgcolor"
    ground = "getComputedStyle(document.querySelector('.panel')).backgroundColor"
    assert page.run(ground) == "rgb(255, 255, 255)"
    assert page.run(paper) == "#ffffff"
    page.media("dark")
    page.wait_for(f"{paper} === '#161c25'")
    assert page.run(ground) == "rgb(22, 28, 37)"
    page.run("document.getElementById('theme-toggle').click()")
    page.wait_for(f"{paper} === '#ffffff'")
    assert page.run(ground) == "rgb(255, 255, 255)"
    page.run("localStorage.removeItem('sp-profile-theme')")
    assert page.problems == []


@pytest.mark.parametrize("width", [420, 800, 1360])
def test_no_width_makes_the_page_scroll_sideways(page: Page, tmp_path: Path, width: int) -> None:
    page.size(width)
    show(page, html.render(make_report()), tmp_path)
    assert page.run("document.documentElement.scrollWidth") <= width
    page.size(1360)


def test_a_narrow_screen_gives_the_plot_its_whole_width(page: Page, tmp_path: Path) -> None:
    """Labels stand above their lanes and the axis keeps its numbers; turned back, all is as before."""
    layout = "document.querySelector('#plot-timeline')._fullLayout"
    show(page, html.render(make_report(comm="async")), tmp_path)
    labels = page.run(f"{layout}.yaxis.ticktext.length")
    page.size(420)
    page.wait_for(f"{layout}.yaxis.showticklabels === false && {layout}.annotations.length === {labels}")
    assert page.run(f"{layout}._size.w / {layout}.width") > 0.85
    ticks = "[...document.querySelectorAll('#plot-timeline .xtick text')].map((e) => e.textContent)"
    assert page.run(ticks)[0] == "0"
    page.size(1360)
    page.wait_for(f"{layout}.yaxis.showticklabels === true && {layout}.annotations.length === 0")
    assert page.problems == []


@pytest.mark.parametrize("name", [HOSTILE[0], HOSTILE[1], HOSTILE[2], "<a href=javascript:alert(1)>x</a>"])
def test_hostile_names_run_nothing(page: Page, tmp_path: Path, name: str) -> None:
    report = hostile_report(name)
    show(page, html.render(report), tmp_path)
    check_figures(page, report)
    assert page.run("typeof window.pwned") == "undefined"
    assert page.run("document.querySelectorAll('main img, main script, main iframe').length") == 0
    assert page.run("document.querySelectorAll('main a, main svg a').length") == 0
    assert page.problems == []  # no dialog, no exception, nothing for the policy to refuse


def test_policy_stops_a_script_that_got_in(page: Page, tmp_path: Path) -> None:
    """The second wall: were markup ever left unescaped, it would not run."""
    text = html.render(make_report())
    broken = text.replace(
        "<footer>", "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'><footer>"
    )
    assert broken != text
    show(page, broken, tmp_path)
    assert page.run("typeof window.pwned") == "undefined"
    assert any("Content Security Policy" in problem for problem in page.problems)


def test_comparison_draws_every_family(page: Page, tmp_path: Path) -> None:
    reports = [
        make_report(comm="sync"),
        make_report(comm="async"),
        make_report(mode="sp", save="full", comm="sync"),
    ]
    show(page, html.render_comparison(reports, "demo"), tmp_path)
    assert page.run("document.querySelectorAll('.plot[data-drawn] .main-svg').length") >= 2
    ranges = page.run(
        "((l) => [l.xaxis.range, l.xaxis2.range])(document.querySelector('#plot-backward-0')._fullLayout)"
    )
    assert ranges[0] == ranges[1]
    shown = page.run("document.querySelector('tbody tr td[data-path=\"totals.overlapped_ns\"]').textContent")
    assert shown == "0"
    assert page.problems == []
