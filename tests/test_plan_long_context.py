"""A plan of long context: published figures, sums, links."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest
from plan_long_context_helpers import EXAMPLE, RATES, of, plan, ring

import sp_profiler
from sp_profiler.planning.long_context.links import Group
from sp_profiler.theory.korthikanti import korthikanti
from sp_profiler.theory.ring import RingSizes, causal_balance, ring_saved_bytes

# --- FACTS, section 3 --------------------------------------------------------------------------------


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


# --- what adds up ------------------------------------------------------------------------------------


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


# --- links -------------------------------------------------------------------------------------------


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
