"""A plan of long context: published figures, sums, links, constraints, recommendation, what it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from fractions import Fraction
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sp_profiler
from sp_profiler.errors import UsageError
from sp_profiler.planning.long_context.links import Group
from sp_profiler.planning.long_context.model import ContextScheme, LongContextPlan, RingFigures
from sp_profiler.report.planned.json import LONG_CONTEXT_SCHEMA_PATH, render_long_context_schema
from sp_profiler.theory.korthikanti import korthikanti
from sp_profiler.theory.ring import RingSizes, causal_balance, ring_saved_bytes

# FACTS, section 3
EXAMPLE: dict[str, Any] = {"seq_len": 131072, "hidden": 4096, "heads": 32, "cp": 16}
VALIDATOR = jsonschema.Draft202012Validator(json.loads(LONG_CONTEXT_SCHEMA_PATH.read_text()))
RATES: dict[str, Any] = {"flops": 400e12, "bandwidth": 50e9, "latency": 10e-6}


def plan(**asked: Any) -> LongContextPlan:
    return sp_profiler.plan_long_context(**{**EXAMPLE, "kv_heads": 32, **RATES, **asked})


def of(made: LongContextPlan, label: str) -> ContextScheme:
    (found,) = [one for one in made.schemes if one.label == label]
    return found


def ring(made: LongContextPlan, label: str = "ring zigzag") -> RingFigures:
    found = of(made, label).ring
    assert found is not None
    return found


# --- FACTS, section 3 -----------------------------------------------------------------------------------


def test_the_example_of_facts() -> None:
    """134 MB a hop, 15 hops 2.01 GB a layer, 2.68 ms; 1.10 TFLOP in 2.75 ms."""
    made = plan()
    found, scheme = ring(made), of(made, "ring zigzag")
    assert found.hop_bytes == 134_217_728
    assert found.hops == 15
    assert scheme.forward_wire_bytes == 2_013_265_920
    assert found.hop_transfer_ns == pytest.approx(2.68e6, rel=2e-3)
    assert found.hop_ns == found.hop_transfer_ns + 10_000
    assert found.block_flops == pytest.approx(1.10e12, rel=2e-3)
    assert found.block_ns == pytest.approx(2.75e6, rel=2e-3)
    assert found.block_tokens == 8192


@pytest.mark.parametrize("causal", [True, False])
def test_the_example_is_hidden_without_a_mask_and_not_with_causal_zigzag(causal: bool) -> None:
    found = ring(plan(causal=causal))
    assert found.is_hidden is not causal
    assert found.is_hidden_unmasked is True
    assert found.hidden_hops == (0 if causal else 15)
    if causal:
        # 15 hops, each beside half a block but for the own one, which is a little more
        half = found.later_block_ns
        assert half == pytest.approx(found.block_ns / 2, abs=1)
        assert found.exposed_ns == pytest.approx(15 * found.hop_ns - 14 * half - found.own_block_ns, abs=20)
    else:
        assert found.exposed_ns == 0


@pytest.mark.parametrize("causal", [True, False])
def test_with_8_key_value_heads_hops_hide_with_causal_zigzag_too(causal: bool) -> None:
    found = ring(plan(kv_heads=8, causal=causal))
    assert found.hop_bytes == 33_554_432
    assert found.hop_transfer_ns == pytest.approx(0.67e6, rel=2e-3)
    assert found.is_hidden is True
    assert found.hidden_hops == 15


@pytest.mark.parametrize(
    ("tflops", "gbps", "thousand", "within"),
    [(312, 300, 1.0, 0.05), (312, 12.5, 24.5, 0.02), (123, 112, 1.1, 0.05), (275, 268, 1.0, 0.05),
     (196, 186, 1.1, 0.05)],
)  # fmt: skip
def test_table_2_of_liu_et_al(tflops: float, gbps: float, thousand: float, within: float) -> None:
    """Their smallest block, and the sequence of 16 such blocks."""
    made = plan(flops=tflops * 1e12, bandwidth=gbps * 1e9, latency=0.0, causal=False)
    hide = ring(made, "ring contiguous").to_hide
    assert hide is not None
    assert hide.tokens / 1000 == pytest.approx(thousand, rel=within)
    assert hide.tokens == hide.unmasked_tokens == pytest.approx(hide.with_latency_tokens)
    assert hide.seq_len == pytest.approx(16 * hide.tokens, abs=16)
    masked = ring(plan(flops=tflops * 1e12, bandwidth=gbps * 1e9, latency=0.0)).to_hide
    assert masked is not None
    assert masked.tokens == 2 * hide.tokens
    grouped = ring(plan(flops=tflops * 1e12, bandwidth=gbps * 1e9, latency=0.0, kv_heads=8)).to_hide
    assert grouped is not None
    assert grouped.tokens == masked.tokens / 4


def test_the_memory_of_facts() -> None:
    """s=8192, b=4, h=4096, a=32, t=8: SP keeps 16.5 % less than TP; both with selective recompute: 67 %."""
    made = plan(seq_len=8192, micro_batch=4, tp=8, cp=2)
    tp, sp, selective = (
        of(made, label).saved_bytes_per_layer for label in ("TP", "TP + SP", "TP + SP, selective recompute")
    )
    sizes: dict[str, Any] = {"sequence": 8192, "micro_batch": 4, "hidden": 4096, "heads": 32, "ranks": 8}
    assert tp == korthikanti("tp", **sizes)
    assert sp == korthikanti("sp", **sizes)
    assert selective == korthikanti("sp", recompute="selective", **sizes)
    assert tp is not None
    assert sp is not None
    assert selective is not None
    assert 1 - sp / tp == pytest.approx(0.165, abs=5e-4)
    assert 1 - selective / float(korthikanti("tp", recompute="selective", **sizes)) == pytest.approx(
        0.67, abs=5e-3
    )
    assert made.single_device_bytes_per_layer == korthikanti("none", **sizes)


# --- what adds up ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked", [{}, {"kv_heads": 8, "tp": 4}, {"causal": False, "tp": 1}, {"hardware": "b200-ib"}]
)
def test_times_and_bytes_add_up(asked: dict[str, Any]) -> None:
    rates = dict.fromkeys(RATES) if "hardware" in asked else {}
    for one in plan(**(rates | asked)).schemes:
        if not one.is_possible:
            continue
        assert one.transfers is not None
        for direction, time in (("forward", one.forward), ("backward", one.backward)):
            assert time is not None
            assert time.layer_ns == time.gemm_ns + time.attention_ns + time.exposed_ns
            assert time.comm_ns == time.hidden_ns + time.exposed_ns
            assert 0 <= time.exposed_context_ns <= time.exposed_ns
            mine = [each for each in one.transfers if each.direction == direction]
            assert sum(each.wire_bytes for each in mine) == getattr(one, f"{direction}_wire_bytes")
            assert sum(each.count * (each.ns or 0) for each in mine) == pytest.approx(time.comm_ns, abs=50)
        assert one.saved_by_term is not None
        assert one.saved_bytes == one.saved_bytes_per_layer == sum(one.saved_by_term.values())


def test_layers_multiply_what_is_saved_and_nothing_else() -> None:
    one, many = plan(), plan(layers=80)
    for few, more in zip(one.schemes, many.schemes, strict=True):
        assert more.saved_bytes == (None if few.saved_bytes is None else 80 * few.saved_bytes)
        assert dataclasses.replace(more, saved_bytes=None) == dataclasses.replace(few, saved_bytes=None)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
def test_the_balance_of_a_layout_is_in_its_times(layout: str) -> None:
    made = plan()
    one, found = of(made, f"ring {layout}"), ring(made, f"ring {layout}")
    exact = causal_balance(layout, ranks=16, tokens=8192)
    assert found.balance_ratio == float(exact)
    assert one.forward is not None
    whole = 131072 * 131073 // 2  # scores of a head
    ideal_ns = 4 * whole * 4096 / 16 / 400e12 * 1e9
    assert one.forward.attention_ns == pytest.approx(ideal_ns / exact, rel=1e-6)
    assert found.imbalance_ns == pytest.approx(one.forward.attention_ns - ideal_ns, rel=1e-3, abs=2)


def test_what_attention_keeps_is_the_rings_closed_form() -> None:
    """Of the decoder's block with flash attention: q, k, v, out and lse of the ring, whatever divides it."""
    made = plan(kv_heads=8, tp=1)
    whole = plan(kv_heads=8, tp=1, heads=64)  # twice the heads, half as large: more lse, less of k and v
    kept = [of(one, "ring zigzag").decoder_saved_bytes_per_layer or 0 for one in (made, whole)]
    sizes = RingSizes(131072, 16, 1, 32, 8, 128)
    twice = dataclasses.replace(sizes, heads=64, head_dim=64)
    assert kept[1] - kept[0] == ring_saved_bytes(twice) - ring_saved_bytes(sizes)
    same = {of(made, label).decoder_saved_bytes_per_layer for label in ("ring striped", "USP 2 × 8 zigzag")}
    assert same == {kept[0]}


def test_backward_sends_gradients_in_fp32() -> None:
    found = of(plan(), "ring zigzag")
    hop = 134_217_728
    assert found.backward_wire_bytes == 15 * hop + 16 * 2 * hop
    sent = [(e.direction, e.payload, e.count, e.bytes, e.hides_under) for e in found.transfers or ()]
    assert sent == [
        ("forward", "kv", 15, hop, "attention"),
        ("backward", "kv", 15, hop, "attention"),
        ("backward", "dkv", 15, 2 * hop, "attention"),
        ("backward", "dkv", 1, 2 * hop, None),
    ]
    single = of(plan(dtype="f32"), "ring zigzag")
    assert single.backward_wire_bytes == 31 * 2 * hop


def test_ulysses_sends_four_all_to_alls_and_hides_none() -> None:
    made = plan(kv_heads=16)
    one = of(made, "Ulysses")
    part = 2 * 8192 * 4096  # e n B a d
    assert one.forward_wire_bytes == one.backward_wire_bytes == Fraction(15, 16) * (2 * part + 2 * part // 2)
    assert one.ring is None
    assert one.forward is not None
    assert one.forward.hidden_ns == 0
    assert one.forward.exposed_context_ns == one.forward.comm_ns > 0


def test_usp_exchanges_inside_and_passes_the_same_keys_around_less_often() -> None:
    made = plan()
    whole, hybrid = ring(made), ring(made, "USP 4 × 4 zigzag")
    assert hybrid.hop_bytes == whole.hop_bytes
    assert hybrid.hops == 3
    assert hybrid.block_tokens == 4 * whole.block_tokens
    assert (
        hybrid.later_block_flops == 4 * whole.later_block_flops
    )  # 16 times the scores, a fourth of the heads
    assert hybrid.is_hidden
    splits = [one.ulysses_ranks for one in made.schemes if one.scheme == "usp" and one.tp == 1]
    assert splits == [2, 4, 8]
    chosen = plan(ulysses=(8,))
    assert [one.ulysses_ranks for one in chosen.schemes if one.scheme == "usp" and one.tp == 1] == [8]


# --- links ----------------------------------------------------------------------------------------------


def test_what_fits_into_a_node_takes_the_link_inside() -> None:
    """16 ranks of context parallelism, 8 a node: TP and Ulysses of 4 inside; a ring of 16 between nodes."""
    made = plan(intra_bandwidth=450e9, intra_latency=1e-6)
    links = {
        label: {(each.op, each.link) for each in of(made, label).transfers or ()}
        for label in ("TP", "USP 4 × 4 zigzag", "USP 2 × 8 zigzag + TP + SP")
    }
    assert links["TP"] == {("all_reduce", "inside")}
    assert links["USP 4 × 4 zigzag"] == {("all_to_all", "inside"), ("send_recv", "across")}
    assert ("all_to_all", "across") in links["USP 2 × 8 zigzag + TP + SP"]
    assert ("all_gather", "inside") in links["USP 2 × 8 zigzag + TP + SP"]
    assert ring(made).hop_transfer_ns == pytest.approx(134_217_728 / 50)
    small = plan(cp=8, intra_bandwidth=450e9, intra_latency=1e-6)
    assert ring(small).hop_transfer_ns == pytest.approx(2 * 134_217_728 / 450, abs=1)
    assert ring(small).hop_ns == pytest.approx(2 * 134_217_728 / 450 + 1000, abs=1)


@pytest.mark.parametrize(
    ("ranks", "stride", "world", "node", "where", "peers"),
    [
        (8, 1, 8, 8, "inside", 7),
        (8, 1, 64, 8, "inside", 7),
        (4, 2, 64, 8, "inside", 3),
        (16, 1, 16, 8, "across", 7),
        (4, 8, 32, 8, "across", 0),
        (3, 1, 6, 8, "inside", 2),  # one node holds all
        (3, 1, 12, 8, "across", 0),  # ranks 6 and 7 are in one node, 8 in the next
        (6, 1, 12, 8, "across", 1),  # 6 and 7 of the second group are alone
        (16, 1, 16, 6, "across", 3),  # the third node has four
    ],
)
def test_a_group_is_inside_a_node_when_none_of_its_kind_is_split(
    ranks: int, stride: int, world: int, node: int, where: str, peers: int
) -> None:
    """By counting: global ranks fill nodes in order."""
    group = Group(ranks, stride, world)
    members = [
        [base + offset + i * stride for i in range(ranks)]
        for base in range(0, world, ranks * stride)
        for offset in range(stride)
    ]
    split = any(len({rank // node for rank in one}) > 1 for one in members)
    assert group.where(node) == where == ("across" if split else "inside")
    fewest = min(sum(o // node == rank // node for o in one) - 1 for one in members for rank in one)
    assert group.peers_inside(node) == peers == fewest


def test_an_all_to_all_between_nodes_sends_over_both_links_at_once() -> None:
    made = plan(intra_bandwidth=450e9, intra_latency=0.0, latency=0.0)
    (query,) = [
        e for e in of(made, "Ulysses").transfers or () if e.payload == "q" and e.direction == "forward"
    ]
    part = 2 * 8192 * 4096 / 16  # to each other rank
    assert query.ns == pytest.approx(8 * part / 50, abs=1), "8 of 15 peers are in the other node"
    slow = plan(intra_bandwidth=10e9, intra_latency=0.0, latency=0.0)
    (query,) = [
        e for e in of(slow, "Ulysses").transfers or () if e.payload == "q" and e.direction == "forward"
    ]
    assert query.ns == pytest.approx(7 * part / 10, abs=1)


def test_a_hop_over_lanes_of_its_own_takes_one_lane() -> None:
    """MI300X: seven lanes of 64 GB/s, a ring's hop has one of them."""
    made = sp_profiler.plan_long_context(**{**EXAMPLE, "cp": 8}, hardware="mi300x-xgmi", tp=1)
    assert ring(made).hop_transfer_ns == pytest.approx(2 * 134_217_728 / 64, abs=1)
    assert made.machine is not None
    assert (made.machine.across.bandwidth_gb_per_s, made.machine.across.peer_bandwidth_gb_per_s) == (448, 64)


def test_profiles_have_both_links_and_say_where_their_figures_are_from() -> None:
    made = sp_profiler.plan_long_context(**EXAMPLE, hardware="h100-ib")
    machine = made.machine
    assert machine is not None
    assert (machine.across.bandwidth_gb_per_s, machine.inside.bandwidth_gb_per_s) == (50, 450)
    assert (machine.across.step_latency_us, machine.inside.step_latency_us) == (14, pytest.approx(3.4))
    told = " ".join(machine.sources)
    assert "DGX H100 datasheet" in told
    assert "NVIDIA H100 Tensor Core GPU datasheet" in told
    assert "tuning.cc" in told
    reach = sp_profiler.plan_long_context(**EXAMPLE, hardware="h100-nvlink")
    assert ring(reach).hop_transfer_ns == pytest.approx(134_217_728 / 450, abs=1)
    (entry,) = [one for one in reach.data_quality if one.code == "one-link"]
    assert "within reach of nvlink, but a node has 8" in entry.text


# --- without rates --------------------------------------------------------------------------------------


def test_without_rates_there_are_no_times_and_it_says_so() -> None:
    made = sp_profiler.plan_long_context(**EXAMPLE)
    assert made.machine is None
    assert "no-rates" in {entry.code for entry in made.data_quality}
    for one in made.schemes:
        assert one.forward is one.backward is None
        assert all(each.ns is None and each.transfer_ns is None for each in one.transfers or ())
        if one.ring is not None:
            timed = {name: getattr(one.ring, name) for name in vars(one.ring) if name.endswith("_ns")}
            assert set(timed.values()) == {None}
            assert one.ring.is_hidden is one.ring.is_hidden_unmasked is one.ring.to_hide is None
            assert one.ring.hidden_hops is None
    assert ring(made).hop_bytes == 134_217_728
    assert not any("take" in text and "bandwidth" in text for text in made.assumptions)
    last = made.recommendation[-1]
    assert last.code == "hide-hops"
    # 8192 tokens, half of the scores, as many key/value heads: Phi/beta <= c/2 x 2
    assert "bytes/s is at most 4096" in last.reason


# --- constraints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "label", "said"),
    [
        ({"kv_heads": 8}, "Ulysses", "Ulysses cannot divide the 8 key/value heads among 16 ranks"),
        ({"heads": 8, "kv_heads": 8, "tp": 1}, "Ulysses", "Ulysses cannot divide the 8 heads among 16 ranks"),
        (
            {"kv_heads": 8, "tp": 8},
            "USP 2 × 8 zigzag + TP + SP",
            "Ulysses cannot divide the 1 key/value head, which TP over 8 leaves a rank, among 2 ranks",
        ),
        (
            {"seq_len": 131056, "tp": 1},
            "ring zigzag",
            "zigzag cannot divide 131056 tokens into 32 chunks, two for each ring rank",
        ),
        ({"seq_len": 131073, "tp": 2}, "ring striped", "131073 tokens cannot be divided among 16 ranks"),
        ({"seq_len": 131073, "tp": 2}, "TP + SP", "SP cannot divide 131073 tokens among 2 ranks"),
        (
            {"seq_len": 131088, "tp": 2},
            "ring contiguous + TP + SP",
            "SP cannot divide the 8193 tokens of a context rank among 2 ranks",
        ),
        ({"kv_heads": 4, "tp": 8}, "TP", "TP cannot divide 4 key/value heads among 8 ranks"),
        ({"ffn": 10001, "tp": 8}, "TP + SP", "TP cannot divide 10001 feed-forward columns among 8 ranks"),
    ],
)
def test_constraints_fail_for_one_scheme_with_a_sentence_and_null_figures(
    asked: dict[str, Any], label: str, said: str
) -> None:
    made = plan(**asked)
    one = of(made, label)
    assert said in [failure.text for failure in one.failures]
    assert not one.is_possible
    for name in ("tokens", "saved_bytes", "forward_wire_bytes", "transfers", "ring", "forward", "backward"):
        assert getattr(one, name) is None
    assert any(other.is_possible for other in made.schemes)
    assert "scheme-not-possible" in {entry.code for entry in made.data_quality}


def test_a_contiguous_ring_needs_no_chunks() -> None:
    made = plan(seq_len=131056, tp=1)
    assert of(made, "ring contiguous").is_possible
    assert of(made, "ring striped").is_possible


def test_tp_is_what_a_node_can_share() -> None:
    assert plan().sizes.tp == 8
    assert plan(ranks_per_node=4).sizes.tp == 4
    assert plan(heads=24, hidden=3072, kv_heads=12).sizes.tp == 4
    alone = plan(heads=32, kv_heads=1)
    assert alone.sizes.tp == 1
    assert not [one for one in alone.schemes if one.scheme in ("tp", "sp")]
    assert "no-tp" in {entry.code for entry in alone.data_quality}
    wide = plan(tp=16, kv_heads=32)
    assert "tp-across-nodes" in {entry.code for entry in wide.data_quality}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seq_len": 0}, "--seq-len is 0, expected a whole number of at least 1"),
        ({"cp": 1}, "--cp is 1: context parallelism divides the sequence among at least 2 ranks"),
        ({"cp": 0}, "--cp is 0, expected a whole number of at least 1"),
        ({"seq_len": 8}, "--cp 16 is more than the 8 tokens of --seq-len"),
        ({"hidden": 4097}, "--hidden 4097 is not divisible by --heads 32"),
        ({"kv_heads": 5}, "--heads 32 is not divisible by --kv-heads 5"),
        ({"ulysses": 3}, "--ulysses 3 cannot divide --cp 16 into rings"),
        ({"ulysses": 16}, "--ulysses 16 cannot divide --cp 16 into rings"),
        ({"dtype": "f8"}, "--dtype is 'f8', expected one of f64, f32, bf16, f16"),
        ({"layers": True}, "--layers is True"),
        ({"flops": None}, "--flops is missing"),
        ({"bandwidth": 50}, "--bandwidth is 50, expected bytes/s"),
        ({"intra_bandwidth": 450}, "--intra-bandwidth is 450, expected bytes/s"),
        ({"intra_latency": 3.0}, "--intra-latency is 3, expected seconds"),
        ({"hardware": "h100-wifi"}, "unknown hardware 'h100-wifi', expected one of a100-nvlink, a100-ib"),
        ({"seq_len": 2**40}, "makes figures beyond 2^63"),
        ({"cp": 2**17, "seq_len": 2**20, "tp": 2}, "--cp 131072 with --tp 2 are more than 131072 ranks"),
        ({"seq_len": 131073, "heads": 30, "hidden": 3840, "kv_heads": 30, "tp": 7}, "no scheme can be built"),
        ({"efficiency": 1.5}, "--efficiency is 1.5"),
    ],
)
def test_what_is_impossible_for_all_is_refused_in_one_sentence(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        plan(**asked)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_link_inside_needs_rates() -> None:
    with pytest.raises(UsageError, match="times also need"):
        sp_profiler.plan_long_context(**EXAMPLE, intra_bandwidth=450e9)


# --- the recommendation ---------------------------------------------------------------------------------


def test_the_recommendation_goes_from_the_node_outwards() -> None:
    made = sp_profiler.plan_long_context(**EXAMPLE, kv_heads=8, hardware="h100-ib")
    codes = [step.code for step in made.recommendation]
    assert codes[:3] == ["tensor-sequence-parallel", "selective-recompute", "context-parallel"]
    assert [step.order for step in made.recommendation] == list(range(1, len(codes) + 1))
    first, second, third = made.recommendation[:3]
    assert first.scheme is not None
    assert made.schemes[first.scheme].label == "TP + SP"
    assert first.saved_bytes_per_layer_before == made.single_device_bytes_per_layer
    assert second.saved_bytes_per_layer_before == first.saved_bytes_per_layer
    assert third.saved_bytes_per_layer_before == second.saved_bytes_per_layer
    kept = [step.saved_bytes_per_layer or 0 for step in (first, second, third)]
    assert kept == sorted(kept, reverse=True)
    assert made.recommended == third.scheme
    assert "with TP alone" in first.reason
    assert "over the link between nodes they would take" in first.reason
    assert "flash kernel" in second.reason
    for step in made.recommendation:
        assert step.reason.endswith(".")
        assert "None" not in step.reason


@pytest.mark.parametrize(
    "rates", [RATES, {"hardware": "a100-ib"}, {"hardware": "b200-nvlink", "efficiency": 0.5}]
)
@pytest.mark.parametrize("kv_heads", [8, 32])
def test_context_parallelism_is_the_scheme_whose_layer_is_shortest(
    rates: dict[str, Any], kv_heads: int
) -> None:
    made = sp_profiler.plan_long_context(**EXAMPLE, kv_heads=kv_heads, **rates)
    assert made.recommended is not None
    chosen = made.schemes[made.recommended]
    shared = [one for one in made.schemes if one.cp > 1 and one.tp > 1 and one.is_possible]
    layers = [one.forward.layer_ns + one.backward.layer_ns for one in shared if one.forward and one.backward]
    assert chosen.forward is not None
    assert chosen.backward is not None
    assert chosen.forward.layer_ns + chosen.backward.layer_ns == min(layers)


def test_the_recommendation_states_what_it_assumes() -> None:
    assert (
        "takes the one whose layer is shortest, forward and backward, at these rates"
        in plan().assumptions[-1]
    )
    without = sp_profiler.plan_long_context(**EXAMPLE)
    assert "takes the ring that divides the work of the mask most evenly" in without.assumptions[-1]
    assert without.schemes[without.recommended or 0].layout == "zigzag"
    wide = plan(tp=16)
    assert wide.recommendation[0].title == "TP + SP over 16 ranks, wider than a node"
    assert "between nodes, which is not free" in wide.recommendation[0].reason


def test_without_tp_context_parallelism_stands_alone() -> None:
    made = plan(tp=1)
    first, second, third = made.recommendation[:3]
    assert not first.is_taken
    assert first.reason == "--tp 1 divides nothing inside a node."
    assert second.saved_bytes_per_layer_before == made.single_device_bytes_per_layer
    assert third.is_taken
    assert made.schemes[made.recommended or 0].tp == 1


def test_where_no_context_parallelism_can_be_built_the_node_is_the_end() -> None:
    made = plan(seq_len=131064)  # divisible by 8, not by 16
    third = made.recommendation[2]
    assert not third.is_taken
    assert "131064 tokens cannot be divided among 16 ranks" in third.reason
    assert made.schemes[made.recommended or 0].label == "TP + SP, selective recompute"


def test_how_hops_could_hide_is_true() -> None:
    """Its sequence, its ranks and its heads, planned: hops hide; a little less and they do not."""
    made = plan(tp=1, micro_batch=2)
    told = ring(made)
    assert told.to_hide is not None
    assert told.is_hidden is False
    longer = max(told.to_hide.seq_len, told.to_hide.backward_seq_len)
    there, below = (ring(plan(tp=1, seq_len=length, micro_batch=2)) for length in (longer, longer - 512))
    assert there.is_hidden
    assert there.is_backward_hidden
    assert not (below.is_hidden and below.is_backward_hidden)
    exact = told.to_hide.seq_len
    assert ring(plan(tp=1, seq_len=exact, micro_batch=2)).is_hidden
    assert not ring(plan(tp=1, seq_len=exact - 32, micro_batch=2)).is_hidden


@pytest.mark.parametrize(
    "sizes",
    [{"causal": False}, {}, {"cp": 2}, {"cp": 4, "kv_heads": 8, "tp": 2}, {"cp": 8, "dtype": "f32", "tp": 2}],
)
def test_every_smallest_sequence_is_where_its_scheme_begins_to_hide(sizes: dict[str, Any]) -> None:
    """In each direction of every scheme with a ring: there hops hide, in the next shorter one they do not."""
    rates = {**RATES, "intra_bandwidth": 450e9}
    asked: dict[str, Any] = {**EXAMPLE, "kv_heads": 32, "tp": 1, **rates, **sizes}
    checked = 0
    for one in sp_profiler.plan_long_context(**asked).schemes:
        if one.ring is None or one.ring.to_hide is None:
            continue
        parts = one.cp * (one.tp if one.sequence_parallel else 1)
        parts = math.lcm(parts, 2 * one.ring_ranks) if one.layout == "zigzag" else parts
        hide = one.ring.to_hide
        for field, length in (("is_hidden", hide.seq_len), ("is_backward_hidden", hide.backward_seq_len)):
            assert length % parts == 0
            for seq_len, is_hidden in ((length, True), (length - parts, False)):
                made = sp_profiler.plan_long_context(**{**asked, "seq_len": seq_len})
                assert getattr(ring(made, one.label), field) == is_hidden, (one.label, field, seq_len)
                checked += 1
    assert checked >= 12


@pytest.mark.parametrize(("dtype", "of_score"), [("bf16", 5), ("f32", 9), ("f64", 17)])
def test_what_scores_keep_is_said_of_the_dtype(dtype: str, of_score: int) -> None:
    """Softmax and its dropout in elements, a mask of one byte: 5as/h is of 16 bits."""
    made = sp_profiler.plan_long_context(**EXAMPLE, dtype=dtype, tp=1)
    reason = made.recommendation[1].reason
    assert f"{of_score}as/h = {of_score * 1024} times sbh on one device" in reason
    sbh = EXAMPLE["seq_len"] * EXAMPLE["hidden"]
    step = made.recommendation[1]
    given_up = (step.saved_bytes_per_layer_before or 0) - (step.saved_bytes_per_layer or 0)
    assert given_up == of_score * 1024 * sbh


def test_fewer_ranks_are_as_many_as_divide_the_sequence() -> None:
    """131072 tokens hide with 9 ranks or fewer, of which 8 divide them."""
    made = sp_profiler.plan_long_context(**EXAMPLE, kv_heads=8, tp=8, hardware="h100-ib")
    (step,) = [one for one in made.recommendation if one.code == "hide-hops"]
    assert "rings of at most 8 ranks instead of 16" in step.reason
    eight = sp_profiler.plan_long_context(**{**EXAMPLE, "cp": 8}, kv_heads=8, tp=8, hardware="h100-ib")
    assert ring(eight, "ring zigzag + TP + SP").is_hidden
    assert ring(eight, "ring zigzag + TP + SP").is_backward_hidden


def test_fewer_ranks_or_heads_hide_as_the_reason_says() -> None:
    made = sp_profiler.plan_long_context(**EXAMPLE, kv_heads=32, tp=8, hardware="h100-ib", ulysses=())
    (step,) = [one for one in made.recommendation if one.code == "hide-hops"]
    assert "rings of at most 2 ranks instead of 16" in step.reason
    assert "With 8 key/value heads" not in step.reason, "they would not hide"
    two = sp_profiler.plan_long_context(**{**EXAMPLE, "cp": 2}, tp=8, hardware="h100-ib", ulysses=())
    four = sp_profiler.plan_long_context(**{**EXAMPLE, "cp": 4}, tp=8, hardware="h100-ib", ulysses=())
    assert ring(two, "ring zigzag + TP + SP").is_hidden
    assert ring(two, "ring zigzag + TP + SP").is_backward_hidden
    assert not ring(four, "ring zigzag + TP + SP").is_hidden


def test_fewer_key_value_heads_hide_as_the_reason_says() -> None:
    """64 ranks, more than Ulysses could divide 32 heads among: a ring, in which 8192 tokens are a block."""
    asked: dict[str, Any] = {"cp": 64, "seq_len": 64 * 8192, "tp": 1, "ulysses": ()}
    made = plan(**asked)
    (step,) = [one for one in made.recommendation if one.code == "hide-hops"]
    assert "With 8 key/value heads instead of 32 they hide as it is" in step.reason
    eight, sixteen = (ring(plan(**asked, kv_heads=kv_heads)) for kv_heads in (8, 16))
    assert eight.is_hidden
    assert eight.is_backward_hidden
    assert not sixteen.is_backward_hidden


# --- any size -------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    seq_len=st.one_of(st.integers(1, 300_000), st.sampled_from([4096, 65536, 131072, 1_000_000])),
    heads=st.sampled_from([1, 2, 4, 6, 8, 12, 32, 64, 96]),
    head_dim=st.sampled_from([1, 8, 128]),
    groups=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 3, 4, 8, 16, 64]),
    tp=st.sampled_from([None, 1, 2, 3, 8, 16]),
    node=st.sampled_from([None, 1, 2, 6, 8, 72]),
    causal=st.booleans(),
    rates=st.sampled_from(
        [{}, RATES, {"hardware": "h100-ib"}, {"hardware": "mi300x-xgmi"}, {"hardware": "A100"}]
    ),
)
def test_any_size_is_planned_or_refused_in_one_sentence(
    seq_len: int,
    heads: int,
    head_dim: int,
    groups: int,
    cp: int,
    tp: int | None,
    node: int | None,
    causal: bool,
    rates: dict[str, Any],
) -> None:
    asked = {
        "seq_len": seq_len,
        "hidden": heads * head_dim,
        "heads": heads,
        "kv_heads": max(heads // groups, 1),
    }
    made, refusal = None, ""
    try:
        made = sp_profiler.plan_long_context(
            **asked, cp=cp, tp=tp, ranks_per_node=node, causal=causal, **rates
        )
    except UsageError as error:
        refusal = str(error)
    if made is None:
        assert refusal
        assert "\n" not in refusal
        return
    VALIDATOR.validate(json.loads(made.to_json()))
    for one in made.schemes:
        assert (
            bool(one.failures) == (one.tokens is None) == (one.saved_bytes is None) == (one.transfers is None)
        )
        assert (one.forward is None) == (not rates or bool(one.failures))
        if one.ring is not None and one.ring.hop_ns is not None:
            assert one.ring.is_hidden == (one.ring.hidden_hops == one.ring.hops)
            assert one.ring.exposed_ns == 0 or not one.ring.is_hidden
    for step in made.recommendation:
        assert not {"None", "unknown", "nan"} & set(re.findall(r"\w+", step.reason))
    assert made.recommended is None or made.schemes[made.recommended].is_possible


# --- the contract ---------------------------------------------------------------------------------------


def test_json_follows_the_schema_and_the_schema_the_classes() -> None:
    assert LONG_CONTEXT_SCHEMA_PATH.read_text() == render_long_context_schema()
    for made in (plan(), plan(causal=False, tp=1, kv_heads=8), sp_profiler.plan_long_context(**EXAMPLE)):
        plain = json.loads(made.to_json())
        VALIDATOR.validate(plain)
        assert plain["schema"] == "sp-profile/long-context-plan"
        assert plain["schema_version"] == 1
    plain["schemes"][0]["saved_bytes"] = "much"
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(plain)


def test_tables_have_the_same_columns_whatever_is_null() -> None:
    known, unknown = plan(), sp_profiler.plan_long_context(**EXAMPLE, kv_heads=1)
    for table in ("schemes", "transfers", "recommendation"):
        assert known.to_polars(table).schema == unknown.to_polars(table).schema
    schemes = known.to_polars("schemes")
    (zigzag,) = [row for row in schemes.rows(named=True) if row["label"] == "ring zigzag"]
    assert zigzag["ring.hop_bytes"] == 134_217_728
    assert zigzag["ring.to_hide.tokens"] == 16000
    forward = of(known, "ring zigzag").forward
    assert forward is not None
    assert zigzag["forward.layer_ns"] == forward.layer_ns
    assert known.to_polars("transfers")["wire_bytes"].sum() == sum(
        (one.forward_wire_bytes or 0) + (one.backward_wire_bytes or 0) for one in known.schemes
    )
    with pytest.raises(UsageError, match="no table 'rings'"):
        known.to_polars("rings")


def test_it_needs_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import sp_profiler\n"
        "made = sp_profiler.plan_long_context(seq_len=131072, hidden=4096, heads=32, cp=8, hardware='a100')\n"
        "print(made.schemes[made.recommended].label)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip()
