"""The screens of a comparison: hostile names stay inert on all of them, and what is drawn is what changed."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_helpers import HOSTILE, make_report
from rich.console import Console
from test_report_html import EXPECTED_TAGS, Seen

from sp_profiler.comparing import html, markdown
from sp_profiler.comparing.bars import bars
from sp_profiler.comparing.compare import compare, deltas
from sp_profiler.comparing.document import render
from sp_profiler.comparing.tables import sections
from sp_profiler.comparing.terminal import print_comparison
from sp_profiler.report.model import Finding, Report


def hostile(name: str, comm: str) -> Report:
    """A report whose every text from outside is `name`."""
    report = make_report(comm=comm, name=f"{name}{comm}")
    collectives = [
        replace(c, group=f"{name}[0,1]", module=name, purpose=name if comm == "sync" else "dgrad", op=name)
        for c in report.collectives
    ]
    return replace(
        report,
        run=replace(report.run, workload={name: comm, "mode": name}),
        environment={"versions": {name: f"{name}{comm}"}, "hosts": [{"host": name + comm}]},
        collectives=collectives,
        groups=[replace(group, group=f"{name}[0,1]") for group in report.groups],
        gemms=[replace(gemm, name=name, shape=name) for gemm in report.gemms],
        findings=[Finding(name, "advice", name, {name: 1})] if comm == "sync" else [],
    )


@pytest.fixture(params=[*HOSTILE, "\ud800", "nul\0"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_hostile_names_are_inert_on_the_page(name: str) -> None:
    reports = [hostile(name, comm) for comm in ("sync", "async")]
    text = html.render(compare(*reports), reports)
    text.encode()
    seen = Seen()
    seen.feed(text)
    seen.close()
    assert {tag for tag, _ in seen.elements} <= EXPECTED_TAGS
    for tag, attributes in seen.elements:
        assert not [key for key in attributes if key.startswith("on")], (tag, attributes)
        links = [attributes.get(key) or "" for key in ("href", "src", "action")]
        assert not any(link.lower().startswith("javascript:") for link in links)
    shown = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not set(shown) & set("\x00\x1b\x9b\u202e\u2066\u2028")


def test_hostile_names_are_inert_in_text(name: str) -> None:
    found = compare(*(hostile(name, comm) for comm in ("sync", "async")))
    out = io.StringIO()
    print_comparison(found, Console(file=out, width=160))
    written = markdown.render(found)
    for text in (out.getvalue(), written):
        assert not set(text) & set("\x00\x1b\x9b\r\u202e\u2066\u2028\ud800")
    assert "\n# heading" not in written
    assert not re.search(r"(?<!\\)<(img|script|!--)", written)
    assert render(found).isascii()


def test_tables_hold_every_figure_that_is_known() -> None:
    found = compare(make_report(comm="sync"), make_report(comm="async"))
    titles = {section.listing.title for section in sections(found)}
    steps = {"Parts of the step", "Rank by rank", "Exposed, by layer", "GEMMs", "Settings that differ"}
    kinds = {"Collectives, by kind", "Collectives, one by one", "Single collectives of both runs"}
    assert steps | kinds <= titles
    for section in sections(found):
        assert len(section.changed) == len(section.listing.rows)
        for row in section.listing.rows:
            assert len(row) == len(section.listing.columns)


def test_only_what_changed_is_printed_and_nothing_where_nothing_did() -> None:
    same = compare(make_report(), make_report())
    out = io.StringIO()
    print_comparison(same, Console(file=out, width=160))
    lines = [line for line in out.getvalue().splitlines() if line.strip()]
    assert lines[1] == "No difference beyond noise."
    assert len(lines) == 3  # the title, the sentence, how much was compared
    assert bars(same) == []
    known = sum(one.verdict != "unknown" for one in deltas(same))
    assert f"{known} figures compared: 0 beyond noise, 0 within, {known} equal." in lines[2].replace(
        "\u202f", ""
    )


def test_bars_are_faint_within_noise_and_sum_to_the_step() -> None:
    found = compare(make_report(comm="sync"), make_report(comm="async"))
    first = bars(found)[0]
    assert first.id == "change-parts"
    plain = first.figure.to_plotly_json()["data"]
    drawn = sum(value for bar in plain for value in bar["x"])
    step = next(one for one in found.totals if one.figure == "window_ns")
    assert drawn == pytest.approx((step.difference or 0) / 1e6, abs=1e-5)
    for bar, sign in zip(plain, (-1, 1), strict=False):
        assert all(value * sign > 0 for value in bar["x"])


def test_the_page_embeds_its_data_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    reports = [make_report(comm="sync"), make_report(comm="async")]
    text = html.render(compare(*reports), reports)
    assert "default-src &#39;none&#39;" in text
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", text)
    assert "Backward" in text or "backward" in text
