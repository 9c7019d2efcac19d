"""The HTML page: self-contained, exact figures beside their text, hostile names inert."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from report_helpers import HOSTILE, make_report

from sp_profiler.analysis.results import Unmatched
from sp_profiler.report import html, page, table, view
from sp_profiler.report.answers import family_answer
from sp_profiler.report.backward import backward_span, layer_backward
from sp_profiler.report.figures import caption, collectives, narrow_patch, step_time, timeline
from sp_profiler.report.format import short_group
from sp_profiler.report.json import to_plain
from sp_profiler.report.model import Finding, Report, by_step

VOID = {"meta", "link", "input", "br", "img", "hr", "area", "base", "col", "embed", "source", "track", "wbr"}
EXPECTED_TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "script",
        "body",
        "header",
        "main",
        "section",
        "footer",
    ),
    *("h1", "h2", "p", "a", "b", "i", "small", "span", "div", "ul", "li", "dl", "dt", "dd", "code", "pre"),
    *("table", "thead", "tbody", "tr", "th", "td", "button", "details", "summary", "noscript", "article"),
}


@dataclass
class Seen(HTMLParser):
    """All elements with attributes, and the text of each script."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    open_tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open_tags.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open_tags.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open_tags and self.open_tags[-1] == "script":
            self.scripts[-1] += data


def parse(text: str) -> Seen:
    seen = Seen()
    seen.feed(text)
    seen.close()
    assert seen.open_tags == []
    return seen


def value_at(report: Report, path: str) -> Any:
    node: Any = to_plain(report)
    for key in path.split("."):
        node = node[key]
    return node


@pytest.mark.parametrize("comm", ["sync", "async"])
def test_figures_on_the_page_are_the_fields_of_the_report(comm: str) -> None:
    report = make_report(comm=comm)
    shown = [a for _, a in parse(html.render(report)).elements if "data-figure" in a]
    assert len({a["data-figure"] for a in shown}) >= 10
    for attributes in shown:
        path, raw = attributes["data-figure"], attributes["data-value"]
        assert path is not None
        assert raw is not None
        assert json.loads(raw) == value_at(report, path), path


def test_unknown_figures_are_null_not_zero() -> None:
    report = make_report()
    totals = replace(
        report.totals, partner_hideable_ns=None, hidden_of_hideable=None, wgrad_overlap_ratio=None
    )
    text = html.render(replace(report, totals=totals))
    assert 'data-figure="totals.hidden_of_hideable" data-value="null">unknown<' in text
    assert "no collective has a known partner" in text


def test_text_is_made_from_the_value_beside_it() -> None:
    report = make_report(ranks=2, steps=3)
    totals = replace(report.totals, exposed_ns=6 * 7_890_000)  # 6 windows
    shown = {s.path: s for s in view.cards(replace(report, totals=totals))}["totals.exposed_ns"]
    assert (shown.text, shown.raw) == ("7.89 ms", "47340000")


def test_page_is_self_contained_and_small() -> None:
    text = html.render(make_report())
    assert len(text) < 2_600_000
    for tag, attributes in parse(text).elements:
        for name in ("src", "href", "action", "srcset", "data", "poster"):
            link = attributes.get(name) or ""
            assert link.startswith(("#", "data:")) or link == "", (tag, link)
    assert "@import" not in text
    assert "url(" not in text.split("<script", 1)[0]


def test_embedded_plot_library_is_the_installed_one() -> None:
    scripts = parse(html.render(make_report())).scripts
    packed = next(script for script in scripts if script.startswith("H4sI"))
    unpacked = gzip.decompress(base64.b64decode(packed))
    assert unpacked == page._plotly_js()
    assert b"plotly.js" in unpacked[:100]


def test_policy_lets_only_our_scripts_and_plotly_run() -> None:
    seen = parse(html.render(make_report()))
    policy = next(
        a["content"] for t, a in seen.elements if t == "meta" and "content-security-policy" in str(a).lower()
    )
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    allowed = set(rules["script-src"].split())
    types = [a.get("type") for t, a in seen.elements if t == "script"]
    running = [s for s, kind in zip(seen.scripts, types, strict=True) if kind is None]
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in running}
    assert len(hashes) == 2
    assert hashes < allowed  # the third is plotly's
    assert len(allowed) == 3


def hostile_report(name: str) -> Report:
    report = make_report(
        name=name, findings=[Finding("x", "warning", name, {name: name}, name)], summary=[name]
    )
    environment = {name: name, "versions": {name: name}, "list": [name]}
    run = replace(report.run, workload={name: name, "mode": name}, path=name, backend=name)
    entries = [replace(report.data_quality[0], text=name, file=name, code=name)]
    modules = [replace(c, module=name, op=name, group=name, purpose=name) for c in report.collectives]
    totals = replace(report.totals, exposed_by_module_ns={name: 5})
    assert report.timeline
    segments = [replace(s, lane=name, module=name, kind="computation") for s in report.timeline.segments]
    return replace(
        report,
        environment=environment,
        run=run,
        data_quality=entries,
        collectives=modules,
        totals=totals,
        timeline=replace(report.timeline, segments=segments),
    )


@pytest.mark.parametrize("name", [*HOSTILE, "\ud800", "nul\0"])
def test_hostile_names_are_inert(name: str) -> None:
    text = html.render(hostile_report(name))
    text.encode("utf-8")
    seen = parse(text)
    assert {tag for tag, _ in seen.elements} <= EXPECTED_TAGS
    assert not [a for _, a in seen.elements if any(key.startswith("on") for key in a)]
    assert len(seen.scripts) == 4
    data = next(s for s in seen.scripts if s.startswith('{"report"'))
    assert not set("<>&\u2028\u2029") & set(data)
    assert data.isascii()
    assert json.loads(data)["report"]["run"]["name"] == name  # exact, though inert
    assert not set(text) & set("\x00\x1b\x9b\u202e\u2066\u2028\r")


@pytest.mark.parametrize("name", HOSTILE)
def test_plot_labels_hold_no_markup_of_theirs(name: str) -> None:
    """Plotly reads a small HTML in labels and hovers; ours holds `<br>` alone."""
    drawn = hostile_report(name).timeline
    assert drawn
    figure = timeline(drawn).to_plotly_json()
    texts = [text for trace in figure["data"] for text in trace["hovertext"]]
    texts += figure["layout"]["yaxis"]["ticktext"]
    assert texts
    for text in texts:
        assert "<" not in text.replace("<br>", "")
        assert not set(text) & set("\n\x1b\u202e")


def test_links_of_a_comparison_stay_in_their_folder() -> None:
    for name in (*HOSTILE, "../../etc", "//evil.example", "data:text/html,x"):
        text = html.render_comparison([make_report(name=name)], name)
        links = [a["href"] for t, a in parse(text).elements if t == "a" and a.get("class") != "skip"]
        assert len(links) == 1
        link = links[0]
        assert link is not None
        assert link.startswith("./")
        assert link.endswith("/report.html")
        assert link.count("/") == 2
        assert ":" not in link


def test_backward_of_a_layer_is_cut_from_the_step() -> None:
    report = make_report(comm="async", layers=3)
    assert report.timeline
    span = backward_span(report.timeline, 1)
    assert span is not None
    # attention 1 ms, dgrad 2 ms, all-reduce 3 ms with wgrad under it
    assert span.end_ns - span.start_ns == 6_000_000
    assert backward_span(report.timeline, 7) is None


def test_runs_of_a_family_share_one_time_scale() -> None:
    reports = [make_report(comm=comm, layers=3) for comm in ("sync", "async")]
    figure = layer_backward(reports, ["TP sync", "TP async"])
    assert figure is not None
    layout = figure.to_plotly_json()["layout"]
    assert tuple(layout["xaxis"]["range"]) == tuple(layout["xaxis2"]["range"])
    assert layout["xaxis"]["range"][1] == pytest.approx(8.0 * 1.01)  # the longer one: 1 + 2 + 3 + 2 ms
    first = [min(t["base"]) for t in figure.to_plotly_json()["data"] if t["name"] == "attention"]
    assert first == [0.0, 0.0]  # both begin where the layer's backward begins


def test_comparison_shows_families_apart_and_sync_above_async() -> None:
    reports = [  # in the order of their folders' names
        make_report(mode="sp", save="full", comm="sync"),
        make_report(mode="sp", save="shard", comm="async"),
        make_report(comm="async"),
        make_report(comm="sync"),
    ]
    seen = parse(html.render_comparison(reports, "demo", ["./0", "./1", "./2", "./3"]))
    links = [a["href"] for t, a in seen.elements if t == "a" and a.get("class") != "skip"]
    assert links == ["./3", "./2", "./0", "./1"]  # each with its own run
    data = json.loads(next(s for s in seen.scripts if s.startswith('{"plots"')))
    assert list(data["plots"]) == ["backward-0", "backward-1"]
    titles = [[a["text"] for a in plot["layout"]["annotations"]] for plot in data["plots"].values()]
    assert ["TP sync" in titles[0][0], "TP async" in titles[0][1]] == [True, True]
    assert ["SP basic" in titles[1][0], "SP recompute" in titles[1][1]] == [True, True]


def test_a_report_without_anything_is_a_page_too() -> None:
    report = make_report()
    nothing: dict[str, Any] = {"ranks": [], "steps": [], "collectives": [], "groups": [], "gemms": []}
    empty = replace(report, **nothing, timeline=None, data_quality=[], environment={})
    parse(html.render(empty))
    parse(html.render_comparison([empty], "one"))


def test_a_big_table_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_ROWS", 5)
    report = make_report()
    cut = next(t for t in view.tables(report) if t.id == "collectives")
    assert len(cut.rows) == 5
    assert cut.total == len(report.collectives)
    assert f"The first 5 of {len(report.collectives)}; all are in report.json." in cut.note
    rest = table.plain_table(cut)["rest"]
    by_key = dict(zip([column.key for column in cut.columns], rest, strict=True))
    whole = sum(c.dur_ns for c in report.collectives)
    shown = sum(row[[column.key for column in cut.columns].index("dur_ns")] for row in cut.rows)
    assert by_key["dur_ns"] == whole - shown > 0
    assert by_key["op"] == f"… and {len(report.collectives) - 5} more rows"
    assert by_key["rank"] == ""  # ranks do not add up


def test_a_whole_table_has_no_rest() -> None:
    for whole in view.tables(make_report()):
        assert table.plain_table(whole)["rest"] is None


def test_a_rest_with_a_part_that_nobody_knows_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_ROWS", 1)
    report = make_report()
    groups = [replace(report.groups[0], bytes=count) for count in (1, None, 2)]
    cut = next(t for t in view.tables(replace(report, groups=groups)) if t.id == "groups")
    rest = table.plain_table(cut)["rest"]
    by_key = dict(zip([column.key for column in cut.columns], rest, strict=True))
    assert by_key["bytes"] is None
    assert by_key["comm_ns"] == 2 * report.groups[0].comm_ns
    assert by_key["group"] == "… and 2 more rows"


def test_the_page_does_not_grow_with_the_report() -> None:
    """What it embeds is small: neither maps by module of each step nor collectives that did not match."""
    report = make_report()
    modules = {f"model.layers.{k}.self_attention.linear_proj": 1000 + k for k in range(500)}
    steps = [replace(report.steps[0], step=k, exposed_by_module_ns=modules) for k in range(200)]
    lone = Unmatched("dp[0,1]", "all_reduce", 1, [0], [1])
    collectives = [replace(report.collectives[k % 7], id=k) for k in range(20_000)]
    big = replace(report, steps=steps, unmatched=[lone] * 20_000, collectives=collectives)
    more = len(html.render(big)) - len(html.render(report))
    assert more < 2_000_000


def test_no_button_sends_the_profile_anywhere() -> None:
    data = json.loads(next(s for s in parse(html.render(make_report())).scripts if s.startswith('{"report"')))
    for plot in data["plots"].values():
        assert plot["config"]["showSendToCloud"] is False
        assert plot["config"]["plotlyServerURL"] == ""
    assert "sendChartToCloud" in data["plots"]["timeline"]["config"]["modeBarButtonsToRemove"]


def test_a_cpu_run_promises_no_shorter_step() -> None:
    paths = {s.path for s in view.more_figures(make_report(device="cpu"))}
    assert "totals.step_ns_if_all_hidden" not in paths
    assert "totals.step_ns_if_all_hidden" in {s.path for s in view.more_figures(make_report(device="cuda"))}


def with_causes(report: Report, causes: dict[str, int]) -> Report:
    return replace(report, totals=replace(report.totals, exposed_by_cause_ns=causes))


def test_causes_stand_on_the_page_largest_first() -> None:
    report = with_causes(make_report(), {"queued": 1_000_000, "peer-skew": 3_000_000, "unknown": 0})
    shown = [a for _, a in parse(html.render(report)).elements if "by_cause" in (a.get("data-figure") or "")]
    assert [(a["data-figure"], a["data-value"]) for a in shown] == [
        ("totals.exposed_by_cause_ns.peer-skew", "3000000"),
        ("totals.exposed_by_cause_ns.queued", "1000000"),
    ]


def test_exposed_time_is_tabled_by_one_grouping_at_a_time() -> None:
    report = with_causes(make_report(layers=3), {"peer-skew": 7})
    data = json.loads(next(s for s in parse(html.render(report)).scripts if s.startswith('{"report"')))
    found = {t["id"]: t for t in data["tables"] if t["id"].startswith("exposed-")}
    assert list(found)[:2] == ["exposed-cause", "exposed-purpose"]
    assert "exposed-layer" in found
    layers = {row[0]: row[1] for row in found["exposed-layer"]["rows"]}
    assert layers == {str(k): v for k, v in report.totals.exposed_by_layer_ns.items() if v}
    assert found["exposed-layer"]["columns"][0]["label"] == "Layer"


@pytest.mark.parametrize(
    ("key", "short"),
    [
        ("default_pg[0,1,2,3,4,5,6,7]", "default_pg[0-7]"),
        ("tp[0,2,4,5,6]", "tp[0,2,4-6]"),
        ("tp[0,1]", "tp[0,1]"),
        ("tp[3,2,1]", "tp[3,2,1]"),  # in an order of its own
        ("tp[0,1,1,2]", "tp[0,1,1,2]"),
        ("unknown", "unknown"),
        ("[0,1,2] and more", "[0,1,2] and more"),
    ],
)
def test_keys_of_groups_are_shortened_for_showing_only(key: str, short: str) -> None:
    assert short_group(key) == short


def test_a_shortened_group_is_whole_in_the_title_and_the_filter() -> None:
    report = make_report()
    key = "tp[0,1,2,3]"
    report = replace(report, collectives=[replace(c, group=key) for c in report.collectives])
    data = json.loads(next(s for s in parse(html.render(report)).scripts if s.startswith('{"report"')))
    table = next(t for t in data["tables"] if t["id"] == "kinds")
    assert table["rows"][0][1] == "tp[0-3]"
    assert table["full"] == {"tp[0-3]": key}
    assert "tp[0-3]" in collectives(report).to_plotly_json()["layout"]["yaxis"]["ticktext"][0]


def test_caption_tells_only_of_what_is_drawn() -> None:
    drawn = make_report(comm="async").timeline
    assert drawn
    assert caption(drawn).startswith(
        f"rank {drawn.rank}, step {drawn.step}; wgrad is hatched green; the lowest"
    )
    alone = replace(drawn, rank=None, exposed=[], segments=[s for s in drawn.segments if s.role == "fwd"])
    assert caption(alone) == f"rank unknown, step {drawn.step}; drag to zoom, double-click to reset"
    assert "exposed" not in timeline(alone).to_plotly_json()["layout"]["yaxis"]["ticktext"]


def test_no_rank_is_called_none() -> None:
    report = make_report(ranks=1)
    nameless = replace(report, ranks=[replace(r, rank=None) for r in report.ranks])
    assert list(step_time(nameless).to_plotly_json()["data"][0]["y"]) == ["rank unknown"]


def test_narrow_screens_get_the_labels_above_their_lanes() -> None:
    drawn = make_report(comm="async").timeline
    assert drawn
    figure = timeline(drawn)
    narrow, wide = narrow_patch(figure)
    names = list(figure.to_plotly_json()["layout"]["yaxis"]["ticktext"])
    assert [(a["text"], a["y"]) for a in narrow["annotations"]] == [
        (name, place - 0.5) for place, name in enumerate(names)
    ]
    assert (narrow["yaxis.showticklabels"], wide["yaxis.showticklabels"]) == (False, True)
    assert wide["annotations"] == []
    assert narrow["height"] > wide["height"]


def test_a_comparison_answers_in_words() -> None:
    runs = [make_report(comm=comm) for comm in ("sync", "async")]
    (said,) = family_answer(runs)
    assert said.startswith("TP async hides ")
    assert said.endswith("TP sync hides none.")
    assert family_answer([runs[0]]) == ["TP sync hides none of its dgrad communication under wgrad."]
    unknown = replace(runs[0], totals=replace(runs[0].totals, wgrad_overlap_ratio=None))
    assert family_answer([unknown]) == []


def test_data_quality_is_folded_at_the_end_where_it_holds_notes_alone() -> None:
    report = make_report()
    note = replace(report.data_quality[0], severity="note")
    loss = replace(note, severity="loss")
    text = html.render(replace(report, data_quality=[note]))
    assert text.index('id="head-quality"') > text.index('id="head-environment"')
    text = html.render(replace(report, data_quality=[note, loss]))
    assert text.index('id="head-quality"') < text.index('id="head-figures"')


def test_settings_of_the_run_have_names() -> None:
    report = make_report()
    text = html.render(replace(report, run=replace(report.run, workload={"kv_heads": 4, "seq_len": 256})))
    assert "<dt>KV heads</dt><dd>4</dd>" in text
    assert "<dt>Sequence length</dt><dd>256</dd>" in text
    assert "seq_len" not in text.split('id="page-data"', 1)[0]


def test_an_axis_without_steps_is_per_rank_and_leaves_room_for_its_title() -> None:
    report = make_report()
    whole = replace(report, window=replace(report.window, rule="trace"))
    assert not by_step(whole)
    for one, title in ((report, "ms per step and rank"), (whole, "ms per rank")):
        layout = collectives(replace(one, collectives=one.collectives[:1])).to_plotly_json()["layout"]
        assert layout["xaxis"]["title"]["text"] == title
        assert layout["height"] >= 112
