"""A plan's page in a real browser, and its texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_helpers import Page
from browser_helpers import page as page  # a fixture
from plan_helpers import executions_shared

import sp_profiler
from sp_profiler.planning.model import Plan
from sp_profiler.report.planned import html, markdown, view

SIZES = {"seq_len": 64, "hidden": 96, "heads": 8, "kv_heads": 4, "vocab": 72}


@pytest.fixture(scope="module")
def plan() -> Plan:
    rates = {"flops": 1e12, "bandwidth": 1e9, "latency": 5e-6, "memory_bandwidth": 1e11}
    with executions_shared():
        return sp_profiler.plan(**SIZES, layers=(1, 2, 3), **rates)


@pytest.mark.browser
def test_the_page_draws_and_shows_exact_differences(page: Page, plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    path.write_text(html.render(plan), encoding="utf-8")
    page.open(path)
    page.wait_for("document.documentElement.dataset.plots")
    assert page.run("document.documentElement.dataset.plots") == "drawn"
    assert page.problems == []
    for name in ("plan-saved", "plan-step", "plan-comm"):
        assert page.run(f"document.querySelectorAll('#plot-{name} .bars .point path').length") >= 3
    assert page.run("document.querySelectorAll('#plot-plan-layers .scatterlayer .trace').length") == 3
    rows = page.run(
        "[...document.querySelectorAll('#table-plan-differences tbody tr')].map(r => r.innerText)"
    )
    (row,) = [row for row in rows if row.startswith("SP basic − SP recompute\t1")]
    found = next(one for one in plan.differences if one.label == "SP basic − SP recompute")
    assert row.split("\t")[2] == f"{found.saved_bytes / 2**20:.4f}"


def test_sentences_speak_of_the_largest_size(plan: Plan) -> None:
    told = view.sentences(plan)
    assert told[0].startswith("With 3 layers SP recompute keeps least for backward")
    assert any("SP recompute keeps" in text and "less than SP basic and sends" in text for text in told)
    assert any(text.startswith("TP async hides") for text in told)
    assert "to the byte for all 18 schemes" in told[-1]


def test_one_scheme_is_compared_with_nothing() -> None:
    one = sp_profiler.plan(**SIZES, modes="tp")
    assert view.sentences(one)[0].startswith("With 2 layers TP sync keeps")
    assert [listing.id for listing in view.listings(one)] == ["plan-memory", "plan-terms"]
    assert "## Differences" not in markdown.render(one)


def test_markdown_has_every_table(plan: Plan) -> None:
    text = markdown.render(plan)
    for title in (
        "Memory and communication of one rank",
        "Differences",
        "Estimated step on as given",
        "Assumptions",
    ):
        assert f"## {title}" in text
    assert text.count("SP recompute") > 6
