"""A plan of long context: the recommendation with its reasons, and what hides."""

from __future__ import annotations

import math
from typing import Any

import pytest
from plan_long_context_helpers import EXAMPLE, RATES, plan, ring

import sp_profiler


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
