"""Findings on context parallelism: each from evidence, none that advises a setting already set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from context_report_helpers import Ring, draw, ulysses, usp
from report_helpers import MS, US, make_report

from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.report.context import families, middle
from sp_profiler.report.findings import Facts, context
from sp_profiler.report.findings import findings as all_findings
from sp_profiler.report.model import Finding
from sp_profiler.theory.ring import RingSizes, block_flops, hop_bytes, tokens_to_hide

LONG = Ring(transfer_ns=3000 * US)  # of a block of 1.28 ms


def facts(found: ContextParallel | None, *, cpu: bool = False, **workload: Any) -> Facts:
    report = make_report(ranks=4)
    told = {"mode": "ring", "comm": "async", "layout": "zigzag", "seq_len": 64, "heads": 8, "kv_heads": 8}
    return Facts(
        totals=report.totals,
        collectives=[],
        windows=len(report.steps),
        is_cpu=cpu,
        workload=told | workload,
        environment=None,
        compute_capability=9,
        context_parallel=found,
    )


def found(*given: Any, **more: Any) -> dict[str, Finding]:
    return {one.code: one for one in context.findings(facts(*given, **more))}


def test_a_ring_that_hides_its_hops_has_nothing_to_mend() -> None:
    assert found(draw(Ring())) == {}
    assert found(None) == {}
    assert found(draw(Ring()), cpu=True) == {}


# --- layout -----------------------------------------------------------------------------------------------


def test_a_contiguous_causal_ring_is_told_of_zigzag() -> None:
    one = found(draw(Ring(layout="contiguous")), layout="contiguous")["ring-layout-uneven"]
    # of 4 ranks and 16 tokens: (16 * 4 + 1) / (7 * 16 + 1)
    assert one.evidence["ideal_ratio"] == one.evidence["measured_ratio"] == round(65 / 113, 4)
    # every step but the first lasts 2.56 ms, that one 1.36; evenly divided 2080 scores of 10 us on 4 ranks
    assert one.evidence["slowest_steps_ns_per_pass"] == 9040 * US
    assert one.evidence["even_ns_per_pass"] == 5200 * US
    assert one.evidence["lost_ns_per_rank_and_pass"] == 3840 * US
    assert "58 % even; counting gives 58 %" in one.text
    assert one.text.endswith("attention of a forward pass takes 9.04 ms instead of 5.20 ms.")
    assert one.advice is not None
    assert one.advice.startswith("Use the zigzag layout (--layout zigzag)")


@pytest.mark.parametrize("ring", [Ring(), Ring(layout="striped"), Ring(layout="contiguous", causal=False)])
def test_zigzag_is_not_advised_where_it_is_set_or_wins_nothing(ring: Ring) -> None:
    assert "ring-layout-uneven" not in found(draw(ring), layout=ring.layout)


def test_a_layout_is_not_advised_where_the_mask_saves_no_work() -> None:
    """Ring self-attention computes every score: no layout is more even than another."""
    every = draw(Ring(layout="contiguous", scheme="ring-self-attention"))
    assert not found(every, layout="contiguous").keys() & {"ring-layout-uneven", "ring-work-uneven"}
    unknown = unknown_layout(None)
    schemes = [replace(one, scheme="ring-self-attention") for one in unknown.schemes]
    assert "ring-work-uneven" not in found(replace(unknown, schemes=schemes))


def test_an_option_of_ours_is_named_only_where_the_workload_has_it() -> None:
    one = found(draw(Ring(layout="contiguous")), layout=None, mode=None)["ring-layout-uneven"]
    assert "--layout" not in str(one.advice)


def test_on_cpu_a_layout_is_told_without_times() -> None:
    one = found(draw(Ring(layout="contiguous"), is_cpu=True), cpu=True, layout="contiguous")
    assert set(one) == {"ring-layout-uneven"}
    assert " ms" not in one["ring-layout-uneven"].text
    assert str(one["ring-layout-uneven"].advice).endswith("changes the structure, not the speed.")


def unknown_layout(causal: bool | None) -> ContextParallel:
    drawn = draw(Ring(layout="contiguous"))
    schemes = [replace(one, layout=None, layout_rule=None, causal=causal) for one in drawn.schemes]
    balance = [replace(one, scores=None, ideal_ratio=None, limit_ratio=None) for one in drawn.balance]
    return replace(drawn, schemes=schemes, balance=balance)


def test_imbalance_of_an_unknown_layout_is_told_by_what_was_measured() -> None:
    one = found(unknown_layout(None))["ring-work-uneven"]
    assert (
        one.evidence["imbalance_ns"] == families(draw(Ring(layout="contiguous")))[0].exposure().imbalance_ns
    )
    assert one.evidence["measured_ratio"] == round(65 / 113, 4)
    assert str(one.advice).startswith("If the mask is causal")
    assert "of hops wait for ranks" in one.text
    assert "ring-work-uneven" not in found(unknown_layout(False))


def test_uneven_work_over_gathered_keys_is_told_too() -> None:
    drawn = unknown_layout(None)
    gathered = replace(drawn, schemes=[replace(one, scheme="all-gather") for one in drawn.schemes])
    assert "of all-gathers wait for ranks" in found(gathered)["ring-work-uneven"].text


def test_a_slow_device_is_not_the_layouts_fault() -> None:
    drawn = draw(Ring())
    slow = [
        replace(one, work_ns=[[2 * (ns or 0) for ns in one.work_ns[0]], *one.work_ns[1:]], measured_ratio=0.6)
        for one in drawn.balance
    ]
    one = found(replace(drawn, balance=slow))["ring-uneven-beyond-layout"]
    assert (one.evidence["slowest_rank"], one.evidence["times_the_median_per_score"]) == (0, 2.0)
    assert "ring-layout-uneven" not in found(replace(drawn, balance=slow))
    assert found(replace(drawn, balance=slow), cpu=True) == {}  # there ranks share the cores


# --- hops -------------------------------------------------------------------------------------------------


def test_hops_that_outlast_their_block_tell_how_many_tokens_would_hide_them() -> None:
    one = found(draw(LONG))["ring-hops-outlast-attention"]
    assert (one.evidence["transfer_ns"], one.evidence["attention_ns"]) == (6000 * US, 2560 * US)
    assert one.evidence["tokens_per_rank"] == 16
    assert one.evidence["tokens_per_rank_to_hide"] == 38  # 16 * 6 / 2.56 = 37.5
    assert "2.34 times as many tokens per rank (38 instead of 16)" in str(one.advice)
    assert "Ulysses inside the node" in str(one.advice)
    assert "fewer key/value heads" in str(one.advice)


def test_the_tokens_are_those_of_the_closed_form() -> None:
    """Phi and beta from what was measured: tokens_to_hide is the tokens of now times transfer / attention."""
    drawn = draw(replace(LONG, causal=False))
    (family,) = families(drawn)
    forward = [one for one in family.hop_sums if one.phase == "forward"]
    transfer, attention = (
        middle(getattr(one, n) for one in forward) for n in ("transfer_ns", "attention_ns")
    )
    assert transfer is not None
    assert attention is not None
    sizes = RingSizes(seq_len=64, ranks=4, micro_batch=1, heads=8, kv_heads=2, head_dim=64)
    flops_per_s = float(block_flops(sizes)) / attention * 1e9
    bytes_per_s = hop_bytes(sizes) / transfer * 1e9
    needed = tokens_to_hide(flops_per_s=flops_per_s, bytes_per_s=bytes_per_s, heads=8, kv_heads=2)
    assert needed == pytest.approx(16 * transfer / attention)
    told = context._tokens(facts(drawn), family, transfer / attention)
    assert told["tokens_per_rank_to_hide"] - 1 < needed <= told["tokens_per_rank_to_hide"]


def test_no_advice_that_is_taken_already() -> None:
    grouped = found(draw(LONG), kv_heads=2)["ring-hops-outlast-attention"]
    assert "key/value" not in str(grouped.advice)
    drawn = usp()
    long = draw(replace(LONG, ranks=2, layout="zigzag"), replace(LONG, ranks=2, first_rank=2))
    mixed = replace(drawn, hops=long.hops, schemes=[replace(drawn.schemes[0], layout="zigzag")])
    one = found(mixed)["ring-hops-outlast-attention"]
    assert "Ulysses" not in str(one.advice)
    assert one.evidence["tokens_per_rank"] == 16


def test_without_the_sequences_length_only_the_factor_is_told() -> None:
    one = found(draw(LONG), seq_len=None)["ring-hops-outlast-attention"]
    assert "tokens_per_rank" not in one.evidence
    assert "2.34 times as many tokens per rank on" in str(one.advice)


@pytest.mark.parametrize("ring", [LONG, replace(LONG, comm="sync")])
def test_cpu_runs_get_no_verdict_on_bandwidth(ring: Ring) -> None:
    assert "ring-hops-outlast-attention" not in found(draw(ring), cpu=True)


def test_a_synchronous_ring_is_told_what_could_be_hidden() -> None:
    one = found(draw(Ring(comm="sync")), comm="sync")["ring-synchronous"]
    # 3 hops of 0.4 ms in forward and of 0.8 ms in backward, 6 passes, 4 ranks, all shorter than their block
    assert one.evidence["hideable_ns"] == 3 * (400 + 800) * US * 6 * 4
    assert str(one.advice).endswith("(--comm async).")
    assert "--comm" not in str(found(draw(Ring(comm="sync")), comm=None)["ring-synchronous"].advice)
    assert "structure" in str(
        found(draw(Ring(comm="sync")), cpu=True, comm="sync")["ring-synchronous"].advice
    )


def test_synchronous_hops_are_told_of_once_and_exactly() -> None:
    """The partners of the collectives tell to the nanosecond what medians cannot; no rule repeats it."""
    ring = Ring(comm="sync")
    one = next(c for c in make_report(comm="sync").collectives if c.purpose == "dgrad")
    hop = replace(one, purpose="kv", group=ring.group, ranks=ring.members, hideable_ns=123, hidden_ns=0)
    other = replace(one, id=one.id + 1, group="tp[0,1]", hideable_ns=77, hidden_ns=0)
    given = replace(facts(draw(ring), comm="sync"), collectives=[hop, other])
    by_code = {finding.code: finding for finding in all_findings(given)}
    assert by_code["ring-synchronous"].evidence["hideable_ns"] == 123
    assert by_code["synchronous-with-partner"].evidence["hideable_ns"] == 77
    alone = replace(given, collectives=[hop])
    assert "synchronous-with-partner" not in {finding.code for finding in all_findings(alone)}
    without = replace(given, context_parallel=None)
    by_code = {finding.code: finding for finding in all_findings(without)}
    assert by_code["synchronous-with-partner"].evidence["hideable_ns"] == 200


def test_waits_and_length_of_hops_are_told_once() -> None:
    """A contiguous layout is no reason to look what a rank does before its collectives."""
    ring = Ring(layout="contiguous", transfer_ns=3000 * US)
    one = replace(make_report().collectives[0], purpose="kv", group=ring.group, ranks=ring.members)
    parts = {"peer-skew": 30 * MS, "partner-too-short": 20 * MS}
    hop = replace(one, exposed_share_ns=50 * MS, exposed_by_cause_ns=parts)
    given = replace(facts(draw(ring), layout="contiguous"), collectives=[hop])
    codes = {finding.code for finding in all_findings(given)}
    assert {"ring-layout-uneven", "ring-hops-outlast-attention"} <= codes
    assert not codes & {"peer-skew", "partner-too-short"}
    without = {finding.code for finding in all_findings(replace(given, context_parallel=None))}
    assert {"peer-skew", "partner-too-short"} <= without
    unmatched = replace(given, context_parallel=draw(replace(ring, matched=False)))
    assert "peer-skew" in {finding.code for finding in all_findings(unmatched)}


def test_asynchronous_rings_are_not_told_to_become_so() -> None:
    assert "ring-synchronous" not in found(draw(LONG))
    launched = [replace(c, purpose="kv", is_async=True) for c in make_report().collectives[:2]]
    apart = replace(facts(draw(Ring(comm="sync"))), collectives=launched)
    assert "ring-synchronous" not in {one.code for one in context.findings(apart)}


def test_a_rank_that_comes_late_from_outside_is_named() -> None:
    one = found(draw(Ring(late=2, late_ns=2000 * US)))["ring-late-from-outside"]
    assert one.evidence["waited_most_for_rank"] == 2
    assert list(one.evidence["waited_for"]) == ["2"]
    assert "not for its share of attention" in one.text
    assert "ring-late-from-outside" not in found(draw(Ring(layout="contiguous")))
    assert "ring-late-from-outside" not in found(draw(Ring(matched=False)))


# --- other schemes ----------------------------------------------------------------------------------------


def test_gathered_keys_that_stay_exposed() -> None:
    drawn = ulysses()
    schemes = [replace(one, scheme="all-gather") for one in drawn.schemes]
    one = found(ContextParallel(schemes, drawn.hops, [], [], []))["gathered-keys-exposed"]
    assert one.evidence["exposed_ns"] == 4 * 4 * 6 * 200 * US
    assert one.evidence["exposed_without_waits_ns"] == 4 * 4 * 6 * 170 * US
    assert "nothing of it is hidden" in one.text
    assert "gathered-keys-exposed" not in found(drawn)


def test_layout_copies_are_told_where_they_take_long() -> None:
    drawn = ulysses()
    long = [replace(one, copy_ns=5 * one.copy_ns) for one in drawn.layout_copies]
    one = found(replace(drawn, layout_copies=long))["layout-copies"]
    assert one.evidence["copy_ns"] == 8 * 12 * 50 * US * 5
    assert "layout-copies" not in found(drawn)  # an eighth of the all-to-alls
    assert found(replace(drawn, layout_copies=long), cpu=True) == {}


# --- all of them ------------------------------------------------------------------------------------------

DRAWN = [
    draw(Ring(layout=layout, comm=comm, late=late, late_ns=4000 * US, matched=matched, transfer_ns=transfer))
    for layout in ("contiguous", "zigzag", "striped")
    for comm in ("sync", "async")
    for late in (None, 1)
    for matched in (True, False)
    for transfer in (400 * US, 3000 * US)
]


@pytest.mark.parametrize("cpu", [True, False])
def test_every_finding_has_evidence_and_its_place(cpu: bool) -> None:
    seen = set()
    for drawn in [*DRAWN, ulysses(), usp(), unknown_layout(True)]:
        for one in context.findings(facts(drawn, cpu=cpu, comm="sync")):
            seen.add(one.code)
            assert {"scheme", "ranks", "groups"} <= set(one.evidence)
            assert len(one.evidence) > 4
            assert one.text.endswith(".")
            assert str(one.advice).endswith(".")
    assert len(seen) == (2 if cpu else 5)


def test_they_are_among_the_findings_of_a_report() -> None:
    codes = [one.code for one in all_findings(facts(draw(Ring(layout="contiguous")), layout="contiguous"))]
    assert "ring-layout-uneven" in codes


def test_many_groups_are_counted_not_listed() -> None:
    drawn = draw(*(Ring(layout="contiguous", first_rank=4 * place) for place in range(16)))
    one = found(drawn, layout="contiguous")["ring-layout-uneven"]
    assert len(one.evidence["groups"]) == 5
    assert one.evidence["groups_in_all"] == 16
    assert one.evidence["ranks"] == "0-63"
