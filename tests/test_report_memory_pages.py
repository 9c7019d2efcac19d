"""Pages of memory in a real browser: drawn, small, readable on a phone; figures hold the report's numbers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser_helpers import Page
from browser_helpers import page as page  # a fixture
from memory_report_helpers import F, figures_of, make_blocks, make_memory, saved_of
from report_helpers import HOSTILE, MS, T0, make_report
from test_report_memory_formats import four_runs, with_memory

from sp_profiler.analysis.memory.results import MemoryCurve, MemoryFigures, PhaseStretch
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report import html, memory_figures
from sp_profiler.report.memory_html import memory_part, render_html

PLOTS = ("memory-curve", "memory-peak", "memory-border", "memory-saved", "memory-lifetimes")
MIB = 1024 * 1024


# --- figures ---------------------------------------------------------------------------------------


def data_of(figure: Any) -> list[dict[str, Any]]:
    assert figure is not None
    return figure.to_plotly_json()["data"]


def test_the_areas_of_the_curve_add_up_to_what_is_allocated() -> None:
    one = figures_of(make_blocks())
    *areas, line = data_of(memory_figures.live_bytes(one))
    assert {area["stackgroup"] for area in areas} == {"categories"}
    assert line["name"] == "allocated"
    for place, whole in enumerate(line["y"]):
        assert sum(area["y"][place] for area in areas) == pytest.approx(whole, abs=1e-3)
    assert max(line["y"]) == pytest.approx((one.peak_bytes or 0) / MIB, abs=1e-3)


def long_curve(points: int) -> MemoryFigures:
    """A curve with one peak a point wide."""
    totals = [F + (place * 7919) % 1000 for place in range(points)]
    totals[points // 3] = 9 * F
    times = [T0 + place * 1000 for place in range(points)]
    curve = MemoryCurve(times, totals, {"unknown": totals})
    return replace(figures_of(make_blocks()), curve=curve, peak_bytes=9 * F, peak_ns=times[points // 3])


@pytest.mark.parametrize("points", [2, 1200, 100_000])
def test_a_thinned_curve_keeps_its_peak_and_its_ends(points: int) -> None:
    one = long_curve(points)
    assert one.curve is not None
    kept = memory_figures.thinned(one.curve)
    assert len(kept) <= memory_figures.MOST_POINTS + 2
    assert {0, points // 3, points - 1} <= set(kept)
    assert kept == sorted(set(kept))


def test_phases_and_the_peak_are_marked() -> None:
    figure = memory_figures.live_bytes(figures_of(make_blocks()))
    assert figure is not None
    layout = figure.to_plotly_json()["layout"]
    assert [shape["fillcolor"] for shape in layout["shapes"]] == [
        memory_figures.PHASE_TINTS["forward"],
        memory_figures.PHASE_TINTS["backward"],
    ]
    assert layout["shapes"][0]["x1"] == layout["shapes"][1]["x0"] == 4  # ms: the border
    texts = [annotation["text"] for annotation in layout["annotations"]]
    assert texts == ["forward", "backward", "peak 264.0 MiB"]


def test_countless_phases_are_not_all_drawn() -> None:
    one = figures_of(make_blocks())
    assert one.curve is not None
    stretches = [PhaseStretch("forward", 1, T0 + i, T0 + i + 1) for i in range(10_000)]
    stretches += [PhaseStretch("backward", 1, T0 + 4 * MS, T0 + 9 * MS)] * 1000
    figure = memory_figures.live_bytes(replace(one, curve=replace(one.curve, phases=stretches)))
    assert figure is not None
    assert len(figure.to_plotly_json()["layout"]["shapes"]) == 400


def test_lifetimes_are_bars_from_birth_to_free_in_the_order_of_birth() -> None:
    one = figures_of(make_blocks())
    bars = [
        (bar["y"][i], bar["base"][i], bar["x"][i])
        for bar in data_of(memory_figures.lifetimes(one))
        for i in range(len(bar["y"]))
    ]
    blocks = sorted(make_blocks(), key=lambda b: (b.birth_ns or 0, b.death_ns or 0))
    assert len(bars) == len(blocks)
    bars.sort()
    assert [base for _, base, _ in bars] == [((b.birth_ns or 0) - T0) / 1e6 for b in blocks]
    freed = [(place, b) for place, b in enumerate(blocks) if b.lifetime_ns is not None]
    assert [bars[place][2] for place, _ in freed] == [(b.lifetime_ns or 0) / 1e6 for _, b in freed]


def test_only_the_largest_of_many_blocks_are_drawn() -> None:
    one = figures_of(make_blocks(layers=60), layers=60)
    drawn = memory_figures.drawn_blocks(one)
    assert len(drawn) == memory_figures.MOST_BLOCKS
    assert min(block.bytes for block in drawn) >= sorted(b.bytes for b in make_blocks(layers=60))[-160]


def test_the_border_by_layer_is_stacked_by_category() -> None:
    parts = {
        bar["name"]: bar["y"] for bar in data_of(memory_figures.border_by_layer(figures_of(make_blocks())))
    }
    assert parts == {"activations": [30.0, 30.0], "communication buffers": [30.0, 30.0]}


def test_measured_bars_have_the_closed_form_as_marks() -> None:
    bars, marks = data_of(memory_figures.saved_beside_theory(saved_of(0, 6 * MIB)))
    assert dict(zip(bars["y"], bars["x"], strict=True)) == {"column-input": 60, "norm": 54, "mlp": 36}
    assert dict(zip(marks["y"], marks["x"], strict=True)) == {"column-input": 60, "norm": 48, "mlp": 36}


@pytest.mark.parametrize(("most", "unit"), [(1000, "B"), (2048, "KiB"), (5 * MIB, "MiB"), (1024**4, "GiB")])
def test_axes_have_the_binary_unit_that_fits(most: int, unit: str) -> None:
    size, name = memory_figures.unit_of(most)
    assert name == unit
    assert 1 <= most / size <= 1024


# --- pages -----------------------------------------------------------------------------------------


def test_page_data_of_a_large_run_stays_small() -> None:
    """10,000 blocks and 2,000 points on each of 8 ranks are not all in the page."""
    blocks = make_blocks(layers=400)
    one = replace(figures_of(blocks[:400], layers=30), blocks=blocks, curve=long_curve(2000).curve)
    ranks = [replace(one, rank=rank) for rank in range(8)]
    memory = replace(make_memory(saved=[saved_of()]), ranks=ranks)
    text = html.render(replace(make_report(), memory=memory))
    found = re.search(r'id="page-data">(.*?)</script>', text, re.DOTALL)
    assert found
    assert len(found[1]) < 700_000
    assert json.loads(found[1])["plots"].keys() >= set(PLOTS)


def test_no_panel_leaves_a_hole_beside_it() -> None:
    whole = make_memory(saved=[saved_of()])
    widths = {name: panel.width for name, panel in memory_part(whole).panels.items()}
    assert widths == {
        "memory-curve": "wide",
        "memory-peak": "",
        "memory-border": "tall",
        "memory-saved": "",
        "memory-lifetimes": "wide",
    }
    assert [p.width for p in memory_part(replace(whole, saved=[])).panels.values()] == [
        "wide",
        "",
        "",
        "wide",
    ]
    bare = replace(figures_of(make_blocks()), borders=[], across_border_bytes=None)
    alone = replace(whole, ranks=[bare], saved=[])
    assert [p.width for p in memory_part(alone).panels.values()] == ["wide", "wide"]


def test_a_report_without_memory_says_so_and_draws_nothing_of_it() -> None:
    text = html.render(make_report())
    assert "profile_memory=True" in text
    assert "plot-memory" not in text
    assert memory_part(None).plots == {}


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_section_is_drawn_in_both_themes(page: Page, tmp_path: Path, scheme: str) -> None:
    page.show(html.render(with_memory()), tmp_path, scheme)
    for plot in PLOTS:
        assert page.run(f"document.querySelectorAll('#plot-{plot} .main-svg').length") >= 1, plot
    bars = page.run("document.querySelectorAll('#plot-memory-lifetimes .bars .point path').length")
    assert bars == len(make_blocks())
    row = "document.querySelector('#table-memory-ranks tbody tr').textContent"
    assert "120.0 MiB" in page.run(row)
    assert page.problems == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [420, 1360])
def test_nothing_scrolls_sideways(page: Page, tmp_path: Path, width: int) -> None:
    page.size(width)
    for text in (
        html.render(with_memory()),
        html.render_comparison(four_runs(), "demo"),
        render_html(with_memory().memory, "alone"),
    ):
        page.show(text, tmp_path)
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.problems == []
    page.size(1360)


@pytest.mark.browser
def test_the_comparison_shows_what_each_run_keeps(page: Page, tmp_path: Path) -> None:
    page.show(html.render_comparison(four_runs(), "demo"), tmp_path)
    drawn = "document.querySelector('#plot-memory-runs').data.map((t) => [t.name, t.y, t.x])"
    parts = {name: dict(zip(runs, sizes, strict=True)) for name, runs, sizes in page.run(drawn)}
    assert parts["communication buffers"] == {"TP sync": 0, "TP async": 0, "SP basic": 60, "SP recompute": 0}
    assert parts["activations"]["SP recompute"] == 72
    assert "SP recompute keeps" in page.run("document.querySelector('.lead').textContent")
    assert page.problems == []


@pytest.mark.browser
def test_a_page_alone_and_the_reason_where_there_is_nothing(page: Page, tmp_path: Path) -> None:
    entry = LedgerEntry("memory-order", "note", "put in order", "a.json", 2)
    page.show(render_html(with_memory().memory, "snapshots", ledger=[entry]), tmp_path)
    assert "put in order" in page.run("document.querySelector('main').textContent")
    path = tmp_path / "none.html"
    path.write_text(render_html(None, "nothing"), encoding="utf-8")
    page.open(path)
    assert "profile_memory=True" in page.run("document.querySelector('.lead').textContent")
    assert page.problems == []


@pytest.mark.browser
@pytest.mark.parametrize("name", [HOSTILE[0], HOSTILE[1], HOSTILE[2], "<a href=javascript:alert(1)>x</a>"])
def test_hostile_names_run_nothing(page: Page, tmp_path: Path, name: str) -> None:
    memory = make_memory(name=name, saved=[saved_of()])
    report = replace(make_report(), memory=memory)
    for text in (html.render(report), render_html(memory, name), html.render_comparison([report] * 2, name)):
        page.show(text, tmp_path)
        assert page.run("typeof window.pwned") == "undefined"
        assert page.run("document.querySelectorAll('main img, main script, main iframe').length") == 0
        assert page.run("document.querySelectorAll('main svg a').length") == 0
        assert page.problems == []
