"""Every scheme of context parallelism equals dense attention, and trains the model that one device trains."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
from context_attention import (
    BATCH,
    HEAD_DIM,
    SEQ_LEN,
    AttentionCase,
    AttentionOutcome,
    attention_cases,
    broken_cases,
)
from context_models import SABOTAGES, ModelCase, ModelOutcome, model_cases
from context_ranks import MODEL_WORLDS, WORLDS, outcomes

from sp_profiler.theory.communication import wire_bytes
from sp_profiler.theory.ring import (
    RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER,
    RingSizes,
    backward_wire_bytes,
    forward_wire_bytes,
    hop_bytes,
    ring_saved_bytes,
    ring_self_attention_score_bytes,
    ulysses_wire_bytes,
)

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(600)]

F64_LIMIT = 1e-11
FLOOR = {"f32": 1e-6, "bf16": 5e-3}
FINAL_LOSS_LIMIT = {"f32": 1e-5, "bf16": 2e-2}
BYTES = {"f64": 8, "f32": 4, "bf16": 2}

ATTENTION = [case for world in WORLDS for case in attention_cases(world)]
LOW = [case for case in ATTENTION if case.dtype != "f64"]
MODELS = [case for world in MODEL_WORLDS for case in model_cases(world)]
WHOLE = [case for case in MODELS if case.sabotage is None]


def name_of(case: AttentionCase | ModelCase) -> str:
    s = case.scheme
    parts = [s.scheme, s.ranks, s.ulysses, s.layout, s.comm, "causal" if s.causal else "full"]
    fields = (f.name for f in dataclasses.fields(case) if f.name != "scheme")
    return "-".join(str(part) for part in (*parts, *(getattr(case, f) for f in fields)) if part is not None)


def attention(case: AttentionCase) -> AttentionOutcome:
    return outcomes(case.scheme.ranks).attention[case]


def model(case: ModelCase) -> ModelOutcome:
    return outcomes(case.scheme.ranks * (2 if case.tp else 1)).models[case]


def sizes_of(case: AttentionCase) -> RingSizes:
    """Of the ring: with usp between ranks that hold some of the heads."""
    s = case.scheme
    return RingSizes(
        seq_len=SEQ_LEN,
        ranks=s.ring_ranks,
        micro_batch=BATCH,
        heads=case.heads // s.ulysses_ranks,
        kv_heads=case.kv_heads // s.ulysses_ranks,
        head_dim=HEAD_DIM,
        element_bytes=BYTES[case.dtype],
    )


# --- attention alone --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in ATTENTION if c.dtype == "f64"], ids=name_of)
def test_f64_equals_dense_attention(case: AttentionCase) -> None:
    """Forward and the gradients of q, k and v; delayed: nothing is read before it was waited for."""
    assert max(attention(case).errors.values()) <= F64_LIMIT


@pytest.mark.parametrize("case", LOW, ids=name_of)
def test_lower_precision_is_as_good_as_dense_attention_in_it(case: AttentionCase) -> None:
    outcome = attention(case)
    for name, error in outcome.errors.items():
        assert error <= 2 * outcome.dense_errors[name] + FLOOR[case.dtype], name


@pytest.mark.parametrize(
    "case", [c for c in ATTENTION if c.scheme.comm == "async" and c.dtype == "f64"], ids=name_of
)
def test_async_and_sync_are_bitwise_equal(case: AttentionCase) -> None:
    scheme = dataclasses.replace(case.scheme, comm="sync")
    sync = dataclasses.replace(case, scheme=scheme, delayed=False)
    assert attention(case).bits == attention(sync).bits


@pytest.mark.parametrize("case", broken_cases(), ids=name_of)
def test_a_mistake_breaks_parity(case: AttentionCase) -> None:
    errors = outcomes(4).attention[case].errors
    assert all(error > 0.05 for error in errors.values()), f"{case.sabotage} went unnoticed"


# --- what is sent and kept, against the closed forms -----------------------------------------------------


def sent(case: AttentionCase, rank: int, phase: str, *purposes: str) -> Fraction:
    group_ranks = {"layout": case.scheme.ulysses_ranks}
    return sum(
        (
            wire_bytes(call.op, call.bytes, group_ranks.get(call.purpose, case.scheme.ring_ranks))
            for call in attention(case).calls[rank]
            if call.phase == phase and call.purpose in purposes
        ),
        Fraction(0),
    )


@pytest.mark.parametrize("case", [c for c in LOW if c.scheme.scheme in ("ring", "usp")], ids=name_of)
def test_rings_send_what_the_closed_form_says(case: AttentionCase) -> None:
    sizes = sizes_of(case)
    for rank in range(case.scheme.ranks):
        assert sent(case, rank, "forward", "kv") == forward_wire_bytes(sizes)
        assert sent(case, rank, "backward", "kv", "dkv") == backward_wire_bytes(sizes)


@pytest.mark.parametrize("case", [c for c in LOW if c.scheme.scheme in ("ulysses", "usp")], ids=name_of)
def test_all_to_alls_send_what_the_closed_form_says(case: AttentionCase) -> None:
    """Four of them each way. usp exchanges the tokens of one part of its ring."""
    s = case.scheme
    sizes = RingSizes(
        seq_len=SEQ_LEN // s.ring_ranks,
        ranks=s.ulysses_ranks,
        micro_batch=BATCH,
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=HEAD_DIM,
        element_bytes=BYTES[case.dtype],
    )
    for rank in range(s.ranks):
        calls = [call for call in attention(case).calls[rank] if call.op == "all_to_all"]
        assert [call.phase for call in calls] == ["forward"] * 4 + ["backward"] * 4
        for phase in ("forward", "backward"):
            assert sent(case, rank, phase, "layout") == ulysses_wire_bytes(sizes)


@pytest.mark.parametrize(
    "case", [c for c in LOW if c.scheme.scheme == "rsa" and c.kv_heads == c.heads], ids=name_of
)
def test_ring_self_attention_sends_6rf(case: AttentionCase) -> None:
    p = case.scheme.ranks
    activation = BYTES[case.dtype] * SEQ_LEN * BATCH * case.heads * HEAD_DIM  # F
    for rank in range(p):
        total = sum(sent(case, rank, phase, "kv", "dkv") for phase in ("forward", "backward"))
        assert total == RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER * Fraction(p - 1, p) * activation


@pytest.mark.parametrize("case", LOW, ids=name_of)
def test_backward_keeps_what_the_closed_form_says(case: AttentionCase) -> None:
    """q, k, v, out and lse; ring self-attention q, k, v and the probabilities."""
    sizes = dataclasses.replace(
        sizes_of(case), ranks=case.scheme.ranks, heads=case.heads, kv_heads=case.kv_heads
    )
    expected = ring_saved_bytes(sizes)
    if case.scheme.scheme == "rsa":
        queries = sizes.tokens * BATCH * case.heads * HEAD_DIM * sizes.element_bytes
        expected = queries + hop_bytes(sizes) + ring_self_attention_score_bytes(sizes)
    assert attention(case).saved_bytes == expected


def test_order_of_a_ring() -> None:
    """Keys and values go first, the gradients follow one step behind, and the last shift hides nowhere."""
    case = next(c for c in attention_cases(4) if c.scheme.layout == "zigzag" and c.scheme.comm == "async")
    calls = attention(case).calls[1]
    assert {(call.op, call.is_async, call.group, call.src, call.dst) for call in calls} == {
        ("send_recv", True, "cp[0,1,2,3]", 0, 2)
    }
    assert [(call.phase[0], call.purpose, call.partner) for call in calls] == [
        *[("f", "kv", "attention")] * 3,
        *[("b", "kv", "attention"), ("b", "dkv", "attention")] * 3,
        ("b", "dkv", None),
    ]
    assert [call.seq for call in calls] == list(range(10))


def test_a_block_that_nobody_computes_on_is_no_partner() -> None:
    """Contiguous with a causal mask: rank 0 sees its own block alone, rank 3 all of them."""
    case = next(c for c in attention_cases(4) if c.scheme.layout == "contiguous" and c.scheme.causal)
    by_rank = [[call.partner for call in calls if call.phase == "forward"] for calls in attention(case).calls]
    assert by_rank[0] == ["attention", None, None]
    assert by_rank[3] == ["attention"] * 3


# --- whole models -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in WHOLE if c.dtype == "f64"], ids=name_of)
def test_f64_trains_the_dense_model(case: ModelCase) -> None:
    """Logits, loss and every gradient of the first step, loss and weights after five of AdamW."""
    errors = model(case).errors
    largest = max(errors.logits, errors.loss, *errors.gradients.values(), errors.final_loss, errors.weights)
    assert largest <= F64_LIMIT


@pytest.mark.parametrize("case", [c for c in WHOLE if c.dtype != "f64"], ids=name_of)
def test_lower_precision_is_as_good_as_the_dense_model_in_it(case: ModelCase) -> None:
    outcome, floor = model(case), FLOOR[case.dtype]
    ours, dense = outcome.errors, outcome.dense_errors
    assert ours.logits <= 2 * dense.logits + floor
    assert ours.loss <= 2 * dense.loss + floor
    for name, error in ours.gradients.items():
        assert error <= 2 * dense.gradients[name] + floor, name
    assert ours.final_loss <= FINAL_LOSS_LIMIT[case.dtype]
    assert ours.weights <= 3 * dense.weights


@pytest.mark.parametrize("case", WHOLE, ids=name_of)
def test_ranks_agree_on_what_they_all_hold(case: ModelCase) -> None:
    assert model(case).replicas_equal


@pytest.mark.parametrize(
    "case",
    [
        c
        for c in WHOLE
        if c.scheme.comm == "async" and c.dtype == "f64" and c.tp is None and c.microbatches == 1
    ],
    ids=name_of,
)
def test_async_and_recompute_train_bitwise_the_same(case: ModelCase) -> None:
    sync = ModelCase(dataclasses.replace(case.scheme, comm="sync"))
    assert model(case).bits == model(sync).bits


@pytest.mark.parametrize("name", SABOTAGES)
def test_tokens_targets_and_positions_must_follow_the_layout(name: str) -> None:
    (case,) = [c for c in MODELS if c.sabotage == name]
    errors = model(case).errors
    assert errors.loss > 1e-3
    assert max(errors.gradients.values()) > 0.1
    assert errors.weights > 1e-3
