"""A plan of long context without rates, with constraints that fail, at any size, and its contract."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_long_context_helpers import EXAMPLE, RATES, VALIDATOR, of, plan, ring

import sp_profiler
from sp_profiler.errors import UsageError
from sp_profiler.report.planned.json import LONG_CONTEXT_SCHEMA_PATH, render_long_context_schema

# --- without rates -----------------------------------------------------------------------------------


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


# --- constraints -------------------------------------------------------------------------------------


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


# --- any size ----------------------------------------------------------------------------------------


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


# --- the contract ------------------------------------------------------------------------------------


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
