"""Tables of context parallelism, from rings whose every hop follows by arithmetic, and their formats."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import polars as pl
import pytest
from context_report_helpers import (
    RINGS,
    Ring,
    column,
    draw,
    printed,
    table,
    ulysses,
    usp,
    with_context,
)
from report_helpers import HOSTILE, US, make_report

from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.report import context_view, html, markdown, save, terminal
from sp_profiler.report import json as report_json
from sp_profiler.report.context import families
from sp_profiler.theory.ring import causal_balance


@pytest.mark.parametrize("name", RINGS)
def test_hops_of_a_phase_add_up_to_a_pass(name: str) -> None:
    found = draw(RINGS[name])
    one = table(found, "context-hops")
    (family,) = families(found)
    for phase in ("forward", "backward"):
        rows = [place for place, at in enumerate(column(one, "Phase")) if at == phase]
        exposed = sum(column(one, "Exposed")[place] for place in rows)
        assert exposed == pytest.approx(family.exposure(phase).exposed_ns / 4 / 6)
    if name == "unmatched":
        assert set(column(one, "Communication")) == {None}
        assert column(one, "Cause not known") == column(one, "Exposed")
    else:
        parts = zip(*(column(one, part) for part in ("Communication", "Imbalance", "Skew")), strict=True)
        assert [sum(row) for row in parts] == pytest.approx(column(one, "Exposed"))


def test_the_table_of_hops_says_which_is_larger() -> None:
    striped, even = (table(draw(RINGS[name]), "context-hops") for name in ("striped", "even"))
    assert set(column(striped, "Larger")) == {"transfer"}
    assert set(column(striped, "Transfer longer in")) == {1.0}
    assert set(column(even, "Larger")) == {"attention"}
    assert "Transfer longer in" not in [label for label, *_ in even.columns]
    assert "By" not in [label for label, *_ in even.columns]
    assert column(even, "Sends") == ["K, V"] * 3 + ["dK, dV"] * 3


def test_runs_of_hops_add_up_to_a_pass_too() -> None:
    found = draw(Ring(ranks=12, tokens=4, layout="contiguous"))
    (family,) = families(found)
    one = context_view.hops([family], 4)
    assert column(one, "Hop") == ["0-5", "6-10"] * 2
    for rows, phase in ((slice(0, 2), "forward"), (slice(2, 4), "backward")):
        whole = family.exposure(phase).exposed_ns / 12 / 6
        assert sum(column(one, "Exposed")[rows]) == pytest.approx(whole)
    alone = context_view.hops([family], 22)
    assert column(alone, "Hop") == list(range(11)) * 2


def test_balance_by_phase_ring_step_and_rank() -> None:
    found = draw(RINGS["contiguous"])
    whole = table(found, "context-balance")
    ideal = float(causal_balance("contiguous", ranks=4, tokens=16))
    assert column(whole, "Even, measured") == pytest.approx([ideal, ideal])
    assert column(whole, "By counting") == pytest.approx([ideal, ideal])
    assert column(whole, "Endless sequence") == pytest.approx([4 / 7, 4 / 7])
    assert column(whole, "By rank") == [0, 0]
    steps = table(found, "context-steps")
    # ring step s is computed by the ranks from s on
    assert column(steps, "Even, measured")[1:4] == [0.75, 0.5, 0.25]
    assert column(steps, "Even, measured") == pytest.approx(column(steps, "By counting"))
    ranks = table(found, "context-ranks")
    assert column(ranks, "Rank") == [0, 1, 2, 3] * 2
    assert sum(column(ranks, "Of an even share")[:4]) == pytest.approx(4)
    hidden, exposed = column(ranks, "Hidden"), column(ranks, "Exposed")
    assert (hidden[3], exposed[3]) == (1.0, 0.0)
    assert hidden[0] < hidden[1] < hidden[2]


def test_a_rank_whose_attention_is_not_known_makes_no_mean() -> None:
    found = draw(RINGS["contiguous"])
    lacking = [replace(b, work_ns=[[None] * 4, *b.work_ns[1:]], measured_ratio=None) for b in found.balance]
    one = table(replace(found, balance=lacking), "context-steps")
    assert set(column(one, "Even, measured")) == {None}
    assert column(one, "Slowest") == column(table(found, "context-steps"), "Slowest")
    ranks = table(replace(found, balance=lacking), "context-ranks")
    assert column(ranks, "Attention")[0] is None
    assert set(column(ranks, "Of an even share")) == {None} if "Of an even share" in ranks.columns else True


def test_what_a_cpu_run_fits_is_called_this_machines() -> None:
    note = table(draw(RINGS["even"], is_cpu=True), "context-models").note
    assert note.endswith("the fit is this machine's and says nothing of a network.")
    assert "this machine" not in table(draw(RINGS["even"]), "context-models").note


def test_the_evidence_stands_by_the_schemes() -> None:
    one = table(draw(RINGS["even"]), "context-schemes")
    assert "send/recv to the next rank of the group, attention beside each." in one.note
    assert one.rows[0][:4] == ["Ring attention", "0-3", "zigzag", "run.json"]


def test_kinds_side_by_side_are_named_in_front() -> None:
    found = draw(Ring(), Ring(layout="contiguous", first_rank=4))
    one = table(found, "context-hops")
    assert set(column(one, "Scheme")) == {"Ring attention (zigzag)", "Ring attention (contiguous)"}
    assert column(table(usp(), "context-hops"), "By") == ["hop"] * 2 + ["all-to-all"] * 8


# --- formats ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [draw(Ring()), draw(RINGS["unmatched"]), ulysses(), usp(), None])
def test_json_follows_the_schema_and_comes_back_equal(found: ContextParallel | None) -> None:
    report = with_context(found)
    text = report_json.render(report)
    jsonschema.validate(json.loads(text), report_json.schema())
    assert report_json.read_report(text) == report
    assert (json.loads(text)["context_parallel"] is None) == (found is None)


def test_a_residual_beyond_the_whole_is_in_the_schema() -> None:
    found = draw(Ring())
    models = [replace(one, residual_ratio=2.5) for one in found.models]
    text = report_json.render(with_context(replace(found, models=models)))
    jsonschema.validate(json.loads(text), report_json.schema())


def test_data_files_hold_every_hop_and_ring_step_of_every_rank() -> None:
    found = draw(RINGS["contiguous"])
    report = with_context(found)
    hops = report.to_polars("context_hops")
    assert hops.height == len(found.hops) == 2 * 3 * 4
    parts = hops.select(pl.sum_horizontal("communication_ns", "imbalance_ns", "skew_ns")).to_series()
    assert parts.to_list() == hops["exposed_ns"].to_list()
    balance = report.to_polars("context_balance")
    steps, whole = (
        balance.filter(pl.col("ring_step").is_not_null()),
        balance.filter(pl.col("ring_step").is_null()),
    )
    assert (steps.height, whole.height) == (2 * 4 * 4, 2 * 4)
    assert steps["score"].sum() == whole["score"].sum() == 2 * 64 * 65 // 2
    sums = steps.group_by("phase", "rank").agg(pl.col("work_ns").sum())
    both = whole.join(sums, on=["phase", "rank"])
    assert both["work_ns"].to_list() == both["work_ns_right"].to_list()
    assert whole["measured_ratio"].to_list() == [b.measured_ratio for b in found.balance for _ in range(4)]
    assert report.to_polars("context_models").height == 2
    assert with_context(ulysses()).to_polars("context_layout_copies")["copy_ns"].sum() == 8 * 12 * 50 * US
    schemes = report.to_polars("context_schemes")
    assert schemes["ranks"].to_list() == [[0, 1, 2, 3]]
    assert schemes["groups"].to_list() == [["cp[0,1,2,3]"]]


@pytest.mark.parametrize("name", ["schemes", "hops", "balance", "models", "layout_copies"])
def test_columns_without_a_value_have_the_type_of_those_with_one(name: str) -> None:
    """So that the files of several runs can be put together."""
    table_name = f"context_{name}"
    full = with_context(replace(usp(), models=draw(Ring()).models)).to_polars(table_name)
    empty = make_report().to_polars(table_name)
    assert empty.columns == full.columns
    assert full.height > empty.height == 0
    assert pl.concat([empty, full]).equals(full)
    nulls = with_context(draw(RINGS["unmatched"])).to_polars(table_name)
    pl.concat([nulls, full])


def test_without_context_parallelism_no_output_has_a_section(tmp_path: Any) -> None:
    report = make_report()
    assert report.context_parallel is None
    assert context_view.listings(None) == []
    for path in save.save(report, ["html", "markdown"], tmp_path, force=False):
        assert "Context parallelism" not in path.read_text().replace("context_parallel", "")
    assert "Ring attention" not in printed(terminal.print_report, report)
    assert report.to_polars("context_hops").height == 0


@pytest.mark.parametrize("found", [draw(RINGS["contiguous"]), usp(), draw(RINGS["unmatched"])])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_table_is_wider_than_the_terminal(found: ContextParallel, width: int) -> None:
    text = printed(terminal.print_report, with_context(found), width=width, terminal_like=True)
    assert max(len(line) for line in text.splitlines()) <= width
    for part in ("beside attention, of one pass", "How evenly attention is divided", "step model"):
        assert part in text


def test_many_ranks_and_hops_are_cut_and_say_so() -> None:
    report = with_context(draw(Ring(ranks=64, tokens=2, layout="contiguous", score_ns=200_000)), steps=1)
    text = printed(terminal.print_report, report)
    assert len(text.splitlines()) < 200
    assert "neighbours together" in text  # 8 runs of hops of each phase
    assert "0-7" in text
    assert "56-62" in text
    assert "least even first" in text
    assert "the first 16 of 128" in text
    shown = markdown.render(report)
    assert "… and 106 more rows" in shown
    assert "All rows are in context\\_hops.csv" in shown or "All rows are in context_hops.csv" in shown
    page = html.context_part(report)
    by_id = {one.id: one for one in page.tables}
    assert len(by_id["context-hops-ranks"].rows) == 2000
    assert by_id["context-hops-ranks"].note.endswith("The first 2000 of 8064; all are in report.json.")
    assert len(json.dumps(page.plots)) < 600_000


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert(name: str) -> None:
    found = draw(Ring())
    scheme = replace(found.schemes[0], evidence=name, groups=[name])
    changed = {
        part: [replace(one, group=name) for one in getattr(found, part)]
        for part in ("hops", "models", "balance")
    }
    report = with_context(replace(found, schemes=[scheme], **changed))
    text = printed(terminal.print_report, report)
    assert all(char in "\n" or char.isprintable() for char in text)
    shown = markdown.render(report)
    assert all(char in "\n\u202f" or char.isprintable() for char in shown)
    assert "<script>" not in shown.replace("\\<", "")
    from sp_profiler.report.tables import csv_tables

    csv = csv_tables(report)["context_schemes"]
    assert all(char == "\n" or char.isprintable() for char in csv)
    assert ",=HYPERLINK" not in csv
    assert report.to_polars("context_hops")["group"][0] == name
