"""Context parallelism on pages, in a real browser: drawn, with the report's numbers, at every width."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser_helpers import Page
from browser_helpers import page as page  # a fixture
from context_report_helpers import Ring, draw, runs, scores, ulysses, usp, with_context
from report_helpers import HOSTILE, US, make_report

from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.report import context_figures, html
from sp_profiler.report.context import balances, families
from sp_profiler.report.context_html import context_comparison, context_part
from sp_profiler.report.figures import narrow_patch

UNEVEN = Ring(layout="contiguous", late=1, late_ns=2500 * US)
MANY = Ring(ranks=64, tokens=2, layout="contiguous", score_ns=200_000)


def traces_of(figure: Any) -> list[dict[str, Any]]:
    assert figure is not None
    return figure.to_plotly_json()["data"]


# --- figures ----------------------------------------------------------------------------------------------


def test_hops_stand_beside_the_attention_that_runs_meanwhile() -> None:
    (family,) = families(draw(Ring(layout="contiguous")))
    bars = traces_of(context_figures.hops(family.hop_sums))
    assert [(bar["name"], bar["xaxis"]) for bar in bars] == [
        ("transfer of K, V", "x"),
        ("attention", "x"),
        ("transfer of dK, dV", "x2"),
        ("attention", "x2"),
    ]
    assert list(bars[0]["x"]) == [0, 1, 2]
    assert list(bars[0]["y"]) == [0.4, 0.4, 0.4]
    assert list(bars[1]["y"]) == [1.36, 2.56, 1.28]  # medians of 4 ranks: of hop 2 two compute nothing
    assert list(bars[1]["error_y"]["array"]) == pytest.approx([0, 0, 1.28])
    assert list(bars[1]["error_y"]["arrayminus"]) == pytest.approx([0, 2.56, 1.28])
    assert "1.28 ms (0 ms to 2.56 ms over 4 ranks)" in bars[1]["hovertext"][2]


def test_many_hops_stand_in_rows_few_beside_each_other() -> None:
    few, many = (families(draw(ring))[0].hop_sums for ring in (Ring(), MANY))
    layouts = [context_figures.hops(sums).to_plotly_json()["layout"] for sums in (few, many)]  # type: ignore[union-attr]
    assert layouts[0]["xaxis"]["domain"] != layouts[0]["xaxis2"]["domain"]
    assert layouts[1]["xaxis"]["domain"] == layouts[1]["xaxis2"]["domain"]
    assert layouts[1]["xaxis"]["dtick"] == 4


def test_all_to_alls_are_named_by_what_they_carry() -> None:
    (family,) = families(ulysses())
    bars = traces_of(context_figures.hops(family.hop_sums))
    places = {name: list(bar["x"]) for bar in bars for name in [bar["name"]]}
    assert places["transfer of Q"] == ["Q"]
    assert places["transfer of dQ, dK, dV"] == [f"dQ, dK, dV · {hop}" for hop in (1, 2, 3)]
    assert not any(bar["name"] == "attention" for bar in bars)


def test_the_map_of_work_is_in_multiples_of_an_even_division() -> None:
    (family,) = families(draw(Ring(layout="contiguous")))
    forward, backward, counted = traces_of(context_figures.work(balances(family)))
    expected = scores("contiguous", 4, 16)
    cell = sum(map(sum, expected)) / 16
    for drawn in (forward, backward, counted):
        cells = [value for row in drawn["z"] for value in row]
        assert cells == pytest.approx([count / cell for row in expected for count in row], abs=1e-4)
        assert sum(cells) == pytest.approx(16, abs=1e-2)
    assert [list(row) for row in counted["customdata"]] == expected
    assert [drawn["name"] for drawn in (forward, counted)] == ["forward, measured", "by counting"]


def test_what_is_not_known_is_no_cell_and_no_map() -> None:
    found = draw(Ring())
    lacking = [replace(b, work_ns=[[None] * 4, *b.work_ns[1:]]) for b in found.balance]
    (family,) = families(replace(found, balance=lacking))
    assert [one["name"] for one in traces_of(context_figures.work(balances(family)))] == ["by counting"]
    unknown = [replace(b, scores=None) for b in lacking]
    (family,) = families(replace(found, balance=unknown))
    assert context_figures.work(balances(family)) is None
    gathered = [replace(b, work_ns=[row[:1] for row in b.work_ns]) for b in found.balance]
    (family,) = families(replace(found, balance=gathered))
    assert context_figures.work(balances(family)) is None


def test_neighbours_share_a_cell_where_there_are_too_many() -> None:
    ranks = 300
    work: list[list[int | None]] = [[i + s for s in range(ranks)] for i in range(ranks)]
    (drawn, *_) = draw(Ring()).balance
    many = replace(drawn, ranks=list(range(ranks)), work_ns=work, scores=None)
    (family,) = families(replace(draw(Ring()), balance=[many]))
    (one,) = traces_of(context_figures.work(balances(family)))
    assert (len(one["z"]), len(one["z"][0]), one["dx"]) == (100, 100, 3)
    assert one["y"][1] == "rank 3 to 5"
    cell = sum(map(sum, work)) / ranks**2  # type: ignore[arg-type]
    assert one["z"][0][0] == pytest.approx(2 / cell, abs=1e-4)  # the mean of 0 to 2 and 0 to 2 summed
    assert "3 ranks and 3 ring steps a cell" in one["name"]


def test_bars_of_ranks_add_up_to_what_is_exposed() -> None:
    found = draw(UNEVEN)
    bars = traces_of(context_figures.exposed(families(found), 3, " per step"))
    assert [bar["name"].split(":")[0].split(",")[0] for bar in bars] == ["communication", "imbalance", "skew"]
    for place in range(4):
        whole = sum(hop.exposed_ns for hop in found.hops if hop.rank == place)
        assert sum(bar["x"][place] for bar in bars) == pytest.approx(whole / 3 / 1e6)


def test_panels_beside_each_other_go_below_each_other_on_narrow_screens() -> None:
    (family,) = families(draw(Ring()))
    figure = context_figures.work(balances(family))
    assert figure is not None
    narrow, wide = narrow_patch(figure)
    layout = figure.to_plotly_json()["layout"]
    for number in ("", "2", "3"):
        assert narrow[f"xaxis{number}.domain"] == [0, 1]
        assert wide[f"xaxis{number}.domain"] == list(layout[f"xaxis{number}"]["domain"])
        assert wide[f"yaxis{number}.domain"] == [0, 1]
    tops = [narrow[f"yaxis{number}.domain"] for number in ("", "2", "3")]
    assert tops[0][1] == 1
    assert tops[0][0] > tops[1][1] > tops[1][0] > tops[2][1] > tops[2][0] >= 0
    assert narrow["height"] > wide["height"]


# --- pages ------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize(
    ("found", "plots"),
    [
        (draw(UNEVEN), ["context-hops", "context-work", "context-exposed"]),
        (ulysses(), ["context-all-to-alls", "context-exposed"]),
        (usp(), ["context-hops", "context-all-to-alls", "context-work", "context-exposed"]),
    ],
)
def test_the_section_is_drawn_with_the_reports_numbers(
    page: Page, tmp_path: Path, found: ContextParallel, plots: list[str]
) -> None:
    report = with_context(found)
    page.show(html.render(report), tmp_path)
    drawn = "[...document.querySelectorAll('.plot[data-drawn]')].map((e) => e.id)"
    assert [name for name in page.run(drawn) if name.startswith("plot-context")] == [
        f"plot-{name}" for name in plots
    ]
    heads = page.run("[...document.querySelectorAll('h2.part')].map((e) => e.id)")
    assert heads.index("context-part") < heads.index("memory-part")
    assert page.run("document.querySelectorAll('#plot-context-exposed .bars .point path').length") >= 4
    legend = "document.querySelector('#plot-context-exposed').previousElementSibling.textContent"
    assert "communication" in page.run(legend)
    assert page.problems == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.browser
def test_the_map_shows_its_values_and_needs_no_legend(page: Page, tmp_path: Path) -> None:
    page.show(html.render(with_context(draw(UNEVEN))), tmp_path)
    texts = page.run(
        "[...document.querySelectorAll('#plot-context-work .heatmap-label text')].map((e) => e.textContent)"
    )
    assert texts.count("0.00") == 3 * 6
    assert texts.count("1.97") == 3 * 6
    before = "document.querySelector('#plot-context-work').previousElementSibling.className"
    assert page.run(before) != "legend"
    layout = "document.querySelector('#plot-context-work')._fullLayout.coloraxis.colorbar"
    ink = page.run(f"{layout}.tickfont.color")
    page.media("dark")
    page.wait_for(f"{layout}.tickfont.color !== '{ink}'")
    assert page.problems == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 800, 1360])
@pytest.mark.parametrize("ring", [UNEVEN, MANY])
def test_no_width_makes_the_page_scroll_sideways(page: Page, tmp_path: Path, width: int, ring: Ring) -> None:
    page.size(width)
    page.show(html.render(with_context(draw(ring), steps=1)), tmp_path, "dark")
    assert page.run("document.documentElement.scrollWidth") <= width
    plot = "document.querySelector('#plot-context-work')"
    count = page.run(f"Object.keys({plot}._fullLayout).filter((k) => /^yaxis/.test(k)).length")
    assert count == 3
    stacked = page.run(f"{plot}._fullLayout.yaxis2.domain[1] < {plot}._fullLayout.yaxis.domain[0]")
    assert stacked == (width < 640)
    page.size(1360)
    assert page.problems == []


@pytest.mark.browser
def test_the_table_of_hops_sorts_by_keyboard(page: Page, tmp_path: Path) -> None:
    found = draw(UNEVEN)
    page.show(html.render(with_context(found)), tmp_path)
    head = (
        "[...document.querySelectorAll('#table-context-hops-ranks th button')]"
        ".find((b) => b.textContent.startsWith('Rank'))"
    )
    page.run(f"{head}.focus()")
    for key in ("keyDown", "keyUp"):
        page.send(
            "Input.dispatchKeyEvent", type=key, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    assert page.run(f"{head}.parentElement.getAttribute('aria-sort')") == "descending"
    place = page.run(f"[...document.querySelectorAll('#table-context-hops-ranks th button')].indexOf({head})")
    ranks = page.run(
        "[...document.querySelectorAll('#table-context-hops-ranks tbody tr')]"
        f".map((row) => Number(row.children[{place}].textContent))"
    )
    assert ranks == sorted((hop.rank for hop in found.hops), key=lambda rank: -(rank or 0))[:20]
    focusable = "document.querySelector('#table-context-hops .scroll').tabIndex"
    assert page.run(focusable) == 0


@pytest.mark.browser
def test_shares_above_the_whole_are_shown_as_they_are(page: Page, tmp_path: Path) -> None:
    """Of a contiguous ring the last rank has 174 % of an even share."""
    page.show(html.render(with_context(draw(Ring(layout="contiguous")))), tmp_path)
    cells = "[...document.querySelectorAll('#table-context-ranks td')].map((e) => e.textContent)"
    assert "174" in page.run(cells)
    assert "99.9" not in page.run(cells)


@pytest.mark.browser
@pytest.mark.parametrize("name", [HOSTILE[0], HOSTILE[1], "<a href=javascript:alert(1)>x</a>"])
def test_hostile_names_run_nothing(page: Page, tmp_path: Path, name: str) -> None:
    found = draw(Ring())
    scheme = replace(found.schemes[0], evidence=name, groups=[name])
    hops = [replace(hop, group=name, payload=name, phase=name) for hop in found.hops]
    balance = [replace(one, group=name, phase=name) for one in found.balance]
    models = [replace(one, group=name, phase=name) for one in found.models]
    changed = ContextParallel([scheme], hops, models, balance, [])
    page.show(html.render(with_context(changed)), tmp_path)
    assert page.run("typeof window.pwned") == "undefined"
    assert page.run("document.querySelectorAll('main img, main script, main iframe').length") == 0
    assert page.run("document.querySelectorAll('main a, main svg a').length") == 0
    assert page.problems == []


@pytest.mark.browser
def test_runs_side_by_side_are_drawn(page: Page, tmp_path: Path) -> None:
    page.show(html.render_comparison(runs(), "demo"), tmp_path)
    assert page.run("document.querySelectorAll('#plot-context-runs .bars .point path').length") >= 4
    lead = page.run("[...document.querySelectorAll('.answer')].map((e) => e.textContent).join(' ')")
    assert "By counting, causal attention is 58 % even in contiguous and 100 % even in zigzag." in lead
    order = page.run(
        "[...document.querySelectorAll('#context-part, #plot-context-runs, #plot-backward-0')]"
        ".map((e) => e.id)"
    )
    assert order == ["context-part", "plot-context-runs", "plot-backward-0"]
    assert page.problems == []


def test_page_data_of_many_ranks_stays_small() -> None:
    report = with_context(draw(MANY), steps=1)
    text = html.render(report)
    (data,) = re.findall(r'id="page-data">(.*?)</script>', text, re.DOTALL)
    assert len(data) < 700_000
    assert (
        sum(map(len, map(json.dumps, context_part(with_context(draw(MANY), steps=1)).plots.values()))) < 5e5
    )


def test_without_context_parallelism_there_is_no_section() -> None:
    assert context_part(make_report()).told
    assert context_comparison([make_report(), make_report(comm="sync")]).tables == []
    assert 'id="context-part"' not in html.render(make_report())
