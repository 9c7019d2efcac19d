"""What a report says and shows of context parallelism, from rings whose every hop follows by arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import jsonschema
import polars as pl
import pytest
from context_report_helpers import Ring, draw, scores, ulysses, usp, with_context
from report_helpers import HOSTILE, US, make_report
from rich.console import Console

from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.report import context_compare, context_view, html, markdown, save, terminal
from sp_profiler.report import json as report_json
from sp_profiler.report.comparison import comparison
from sp_profiler.report.context import balances, families
from sp_profiler.report.context_sentences import sentences
from sp_profiler.report.model import Report
from sp_profiler.report.sentences import Basis
from sp_profiler.report.view_ranks import Listing
from sp_profiler.theory.ring import causal_balance

RINGS = {
    "even": Ring(),
    "sync": Ring(comm="sync"),
    "contiguous": Ring(layout="contiguous"),
    "striped": Ring(layout="striped", transfer_ns=3000 * US),
    "late": Ring(late=2, late_ns=2000 * US),
    "unmatched": Ring(transfer_ns=3000 * US, matched=False),
    "no mask": Ring(causal=False),
}


def said(found: ContextParallel | None, *, is_cpu: bool = False) -> list[str]:
    report = make_report(ranks=4)
    windows = len(report.steps)
    return sentences(found, Basis(report.totals, report.ranks, report.collectives, 3, windows, is_cpu))


def table(found: ContextParallel, name: str) -> Listing:
    (one,) = [one for one in context_view.listings(found) if one.id == name]
    return one


def column(one: Listing, label: str) -> list[Any]:
    (place,) = [place for place, (name, *_) in enumerate(one.columns) if name == label]
    return [row[place] for row in one.rows]


def printed(print_it: Any, *args: Any, width: int = 120, terminal_like: bool = False) -> str:
    console = Console(file=StringIO(), width=width, force_terminal=terminal_like, color_system=None)
    print_it(*args, console=console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


# --- sums -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RINGS)
def test_what_is_exposed_is_the_sum_of_its_parts(name: str) -> None:
    (family,) = families(draw(RINGS[name]))
    for phase in ("forward", "backward", None):
        whole = family.exposure(phase)
        assert sum(whole.parts.values()) == whole.exposed_ns
        hops = [hop for hop in family.hops if phase in (None, hop.phase)]
        assert whole.hidden_ns + whole.exposed_ns == sum(hop.dur_ns * hop.passes for hop in hops)
    assert (family.exposure().unknown_ns > 0) == (name == "unmatched")


@pytest.mark.parametrize(("layout", "p"), [(x, p) for x in ("contiguous", "striped") for p in (2, 4, 8)])
def test_counting_one_by_one_gives_the_closed_forms(layout: str, p: int) -> None:
    """The drawn rings rest on it, and so does every ratio of these tests."""
    counted = scores(layout, p, 64)
    slowest = sum(max(step) for step in zip(*counted, strict=True))
    assert sum(map(sum, counted)) / (p * slowest) == pytest.approx(
        float(causal_balance(layout, ranks=p, tokens=64))
    )


def test_several_sets_of_ranks_of_one_kind_are_one_family() -> None:
    found = draw(
        *(Ring(first_rank=4 * place) for place in range(8)), Ring(layout="contiguous", first_rank=32)
    )
    even, other = families(found)
    assert even.name == "Ring attention (zigzag, causal, 8 × 4 ranks)"
    assert other.name == "Ring attention (contiguous, causal, 4 ranks)"
    assert [one.hop for one in even.hop_sums] == [0, 1, 2, 0, 1, 2]
    assert {len(one.hops) for one in even.hop_sums} == {32}
    (forward, _) = balances(even)
    assert len(forward.balances) == 8


def test_keys_and_values_stand_before_the_gradients_of_the_same_hop() -> None:
    found = draw(Ring())
    both = [*found.hops, *(replace(h, payload="kv") for h in found.hops if h.phase == "backward")]
    (family,) = families(replace(found, hops=both))
    sent = [(one.hop, one.payload) for one in family.hop_sums if one.phase == "backward"]
    assert sent == [(hop, payload) for hop in (0, 1, 2) for payload in ("kv", "dkv")]


def test_the_ring_and_the_all_to_alls_of_usp_are_told_apart() -> None:
    (family,) = families(usp())
    assert {way: len(hops) for way, hops in family.by_way.items()} == {"hop": 8, "all-to-all": 32}
    assert family.exposure(way="all-to-all").hidden_ns == 0
    assert family.exposure(way="hop").exposed_ns == 0


# --- sentences --------------------------------------------------------------------------------------------


def test_a_ring_that_hides_its_hops() -> None:
    assert said(draw(RINGS["even"])) == [
        "Ring attention (zigzag, causal, 4 ranks): computation hides all of its hops' time, nothing stays "
        "exposed.",
        "A forward hop takes 400.0 µs and the block it can run under 1.28 ms, a backward hop 800.0 µs and "
        "2.56 ms (medians): both can be hidden whole.",
        "Its ranks' work is 100 % even (counting gives 100 % for zigzag).",
    ]


def test_a_contiguous_ring_names_imbalance_and_what_it_costs() -> None:
    first, _, balance = said(draw(RINGS["contiguous"]))
    # Forward, of 6 passes: rank 0 waits in hop 2 for rank 3 (2.16 ms); each step's maximum is 2.56 ms.
    assert first == (
        "Ring attention (contiguous, causal, 4 ranks): computation hides 52 % of its forward hops' time "
        "and 52 % of backward's; 5.04 ms of it per step stay exposed, of which 3.24 ms wait for a peer "
        "that had more attention to compute and 1.80 ms are communication with every peer there."
    )
    assert balance == (
        "Its ranks' work is 58 % even (counting gives 58 % for contiguous): where every ring step lasts as "
        "long as on its slowest rank, a rank loses 3.84 ms of a forward pass and 7.68 ms of a backward pass."
    )


def test_a_synchronous_ring_hides_nothing() -> None:
    assert said(draw(RINGS["sync"]))[0] == (
        "Ring attention (zigzag, causal, 4 ranks): computation hides nothing of its hops' time; 7.20 ms of "
        "it per step stay exposed, all of it communication with every peer there."
    )


def test_a_late_rank_is_skew_and_no_imbalance() -> None:
    first = said(draw(RINGS["late"]))[0]
    assert "wait for a peer that came late for another reason" in first
    assert "more attention" not in first


def test_what_is_not_known_is_said_to_be_so() -> None:
    first, *others = said(draw(RINGS["unmatched"]))
    assert first.endswith("all of it of a cause that is not known, because its ranks were not matched.")
    assert not any("medians" in sentence for sentence in others)  # no transfer is known
    found = draw(RINGS["even"])
    (first,) = said(replace(found, hops=[], balance=[], models=[]))
    assert first == (
        "Ring attention (zigzag, causal, 4 ranks) was found, but none of its transfers could be measured: "
        "the data-quality ledger says why."
    )
    scheme = replace(found.schemes[0], scheme="unknown", layout=None, evidence="SendRecv in no order.")
    assert said(ContextParallel([scheme], [], [], [], [])) == [
        "Context parallelism of an unknown scheme (causal, 4 ranks): SendRecv in no order."
    ]
    assert said(None) == []


def test_cpu_runs_get_no_verdict_on_sizes() -> None:
    on_device, on_cpu = said(draw(RINGS["even"])), said(draw(RINGS["even"]), is_cpu=True)
    assert on_cpu == [
        on_device[0],
        "Its ranks' work was 100 % even where ranks share the cores; counting gives 100 % for zigzag.",
    ]


def test_layout_copies_are_neither_attention_nor_communication() -> None:
    first, copies = said(ulysses())
    # 8 all-to-alls of 200 us, 30 of them waiting, and 4 copies of 50 us in each of 6 passes and 3 steps
    assert first == (
        "Ulysses (causal, 4 ranks): computation hides nothing of its all-to-alls' time; 3.20 ms of it per "
        "step stay exposed, of which 2.72 ms are communication with every peer there and 480.0 µs wait "
        "for a peer that came late for another reason."
    )
    assert copies == (
        "96 copies that bring heads and tokens into the order of the all-to-alls take 400.0 µs per step: "
        "they are neither attention nor communication."
    )


def test_more_kinds_than_sentences_are_counted() -> None:
    kinds = [Ring(ranks=2 * (place + 1), first_rank=20 * place) for place in range(5)]
    assert said(draw(*kinds))[-1] == (
        "The tables tell of 2 more schemes: Ring attention (zigzag, causal, 8 ranks) and Ring attention "
        "(zigzag, causal, 10 ranks)."
    )


def test_the_sentences_stand_right_below_the_first_one() -> None:
    from test_report_build import assembled

    plain, with_ring = (
        assembled(make_report()),
        assembled(make_report(), context_parallel=draw(RINGS["even"])),
    )
    assert with_ring.summary[0] == plain.summary[0]
    assert with_ring.summary[1].startswith("Ring attention (zigzag")
    assert [*with_ring.summary[:1], *with_ring.summary[4:]] == plain.summary


# --- tables -----------------------------------------------------------------------------------------------


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


# --- runs side by side ------------------------------------------------------------------------------------


def runs() -> list[Report]:
    """As `sp-profile run demo-long-context` has them, in another order."""
    kinds = (("contiguous", "async"), ("zigzag", "async"), ("zigzag", "sync"))
    reports = [
        named(with_context(draw(Ring(layout=layout, comm=comm))), "ring", layout, comm)
        for layout, comm in kinds
    ]
    return [named(with_context(ulysses()), "ulysses", None, "sync"), *reports]


def named(report: Report, mode: str, layout: str | None, comm: str) -> Report:
    workload = {"mode": mode, "layout": layout, "comm": comm, "causal": True, "tp": 1, "cp": 4}
    return replace(report, run=replace(report.run, workload=workload))


def test_one_look_tells_whether_hops_are_hidden_and_how_even_the_work_is() -> None:
    (one,) = context_compare.listings(runs())
    assert [label for label, *_ in one.columns][:5] == [
        "Run", "Hidden, forward", "Hidden, backward", "Even, measured", "By counting"
    ]  # fmt: skip
    ideal = float(causal_balance("contiguous", ranks=4, tokens=16))
    assert [row[0] for row in one.rows] == [
        "Ring zigzag sync", "Ring zigzag async", "Ring contiguous async", "Ulysses sync"
    ]  # fmt: skip
    assert column(one, "Hidden, forward") == pytest.approx([0, 1, 270 / 522, 0], abs=1e-3)
    assert column(one, "By counting") == pytest.approx([1, 1, ideal, None])
    text = printed(terminal.print_comparison, runs())
    for part in ("hidden, forward", "even, measured", "by counting"):
        assert part in text
        assert part.capitalize().replace(", ", ", ") in markdown.render_comparison(runs(), "demo")


def test_what_was_not_measured_is_no_zero_side_by_side() -> None:
    found = replace(draw(Ring()), hops=[], balance=[], models=[])
    (one,) = context_compare.listings([named(with_context(found), "ring", "zigzag", "sync")])
    assert one.rows == [["Ring zigzag sync", None, None, None, None, "Ring attention", "zigzag", 4]]
    (told,) = comparison([named(with_context(found), "ring", "zigzag", "sync")])["runs"][0][
        "context_parallel"
    ]
    assert (told["hidden_ns"], told["exposed_ns"], told["hidden_ratio"]) == (None, None, None)


def test_the_answers_say_it_in_words() -> None:
    hidden, even = context_compare.answers(runs())
    assert hidden == (
        "Ring zigzag sync hides nothing of the time of its transfers; Ring zigzag async hides 100 %; Ring "
        "contiguous async hides 52 %; Ulysses sync hides nothing."
    )
    assert even == "By counting, causal attention is 58 % even in contiguous and 100 % even in zigzag."
    assert context_compare.answers([make_report()]) == []
    two = named(with_context(draw(Ring(layout="contiguous", ranks=2))), "ring", "contiguous", "sync")
    assert "is 58 % to 67 % even in contiguous and" in context_compare.answers([two, *runs()])[1]
    every = draw(Ring(layout="contiguous", causal=False))  # its ideal division is even, whatever the mask
    schemes = [replace(one, scheme="ring-self-attention", causal=True) for one in every.schemes]
    other = named(with_context(replace(every, schemes=schemes)), "rsa", "contiguous", "async")
    assert context_compare.answers([other, *runs()])[1] == even


def test_the_comparison_for_programs_has_exact_sums() -> None:
    told = [one["context_parallel"] for one in comparison([*runs(), make_report()])["runs"]]
    assert told[-1] is None
    (ring,) = told[1]
    (family,) = families(draw(RINGS["contiguous"]))
    assert ring["exposed_ns"] == family.exposure().exposed_ns
    assert sum(ring["exposed_parts_ns"].values()) == ring["exposed_ns"]
    assert ring["layout"] == "contiguous"
    (exchange,) = told[0]
    assert exchange["layout_copy_ns"] == 8 * 12 * 50 * US
    assert exchange["measured_balance_ratio"] is None
