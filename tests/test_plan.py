"""A plan: what it must reproduce, that it follows the executed schedule, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import torch
from plan_helpers import execute_anew, executions_shared
from torch import Tensor

import sp_profiler
from sp_profiler.errors import UsageError
from sp_profiler.planning.model import Difference, Plan, Scheme
from sp_profiler.report.planned.json import SCHEMA_PATH, render_schema
from workloads import sequence_parallel
from workloads.communication import Communicator, Site, activation_intent
from workloads.linear import forward_gemm

MIB = 2**20
PUBLISHED: dict[str, Any] = {
    "seq_len": 2048,
    "hidden": 768,
    "heads": 8,
    "kv_heads": 4,
    "vocab": 6400,
    "ffn": 2432,
}
SMALL: dict[str, Any] = {"seq_len": 64, "hidden": 96, "heads": 8, "kv_heads": 4, "ffn": 160, "vocab": 72}


def of(plan: Plan, label: str, **sizes: int) -> Scheme:
    (found,) = [
        s
        for s in plan.schemes
        if s.label == label and all(getattr(s, name) == value for name, value in sizes.items())
    ]
    return found


def difference(plan: Plan, label: str, layers: int) -> Difference:
    (found,) = [one for one in plan.differences if one.label == label and one.layers == layers]
    return found


@pytest.fixture(scope="module", autouse=True)
def _executed_once() -> Iterator[None]:
    with executions_shared():
        yield


@pytest.fixture(scope="module")
def published() -> Plan:
    return sp_profiler.plan(layers=(8, 16, 32, 64), micro_batch=2, **PUBLISHED)


# --- what it must reproduce ---------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [8, 16, 32, 64])
def test_tp_less_sp_basic_is_6_mib_a_layer_and_12_once(published: Plan, layers: int) -> None:
    """And 4SB/T bytes for each of 2L+1 norms: 0.0078 MiB."""
    found = difference(published, "TP sync − SP basic", layers)
    assert found.saved_bytes == 6 * MIB * layers + 12 * MIB + 8192 * (2 * layers + 1)
    assert found.theory_saved_bytes == found.saved_bytes
    assert found.peak_bytes_estimate == found.saved_bytes


@pytest.mark.parametrize("layers", [8, 16, 32, 64])
def test_sp_basic_less_sp_recompute_is_24_mib_a_layer(published: Plan, layers: int) -> None:
    found = difference(published, "SP basic − SP recompute", layers)
    assert found.saved_bytes == found.peak_bytes_estimate == 24 * MIB * layers
    assert found.saved_by_term == {"column-input": 24 * MIB * layers}


def test_with_four_sequences_it_is_48_mib_a_layer() -> None:
    plan = sp_profiler.plan(modes="sp", layers=(2, 4, 8, 16, 32), micro_batch=4, **PUBLISHED)
    for layers in (2, 4, 8, 16, 32):
        assert difference(plan, "SP basic − SP recompute", layers).saved_bytes == 48 * MIB * layers


def test_with_a_fused_norm_sp_basic_keeps_more_than_tp() -> None:
    """2F(1-1/T) - 3F = -12 MiB a layer, 2F(1-1/T) once, and the rsqrt of 2L+1 norms."""
    plan = sp_profiler.plan(layers=8, norm="fused", **PUBLISHED)
    found = difference(plan, "TP sync, fused norm − SP basic, fused norm", 8)
    # the final norm's input, F(1-1/T), once
    assert found.saved_bytes == (6 - 18) * MIB * 8 + 3 * MIB + 8192 * 17
    assert found.saved_bytes < 0


@pytest.mark.parametrize(("tp", "kv_heads"), [(2, 4), (4, 4), (8, 8)])
def test_sp_basic_less_sp_recompute_is_5_less_2_over_t_activations(tp: int, kv_heads: int) -> None:
    plan = sp_profiler.plan(modes="sp", layers=8, tp=tp, **(PUBLISHED | {"kv_heads": kv_heads}))
    f = 2 * 2048 * 2 * 768
    assert difference(plan, "SP basic − SP recompute", 8).saved_bytes * tp == 8 * (5 * tp - 2) * f


def test_executed_and_closed_form_agree(published: Plan) -> None:
    for scheme in published.schemes:
        assert scheme.saved_by_term == scheme.theory.saved_by_term
        assert scheme.saved_bytes_per_layer == scheme.theory.saved_bytes_per_layer
        for name in ("saved", "parameter", "gradient", "optimizer"):
            assert getattr(scheme, f"{name}_bytes") == getattr(scheme.theory, f"{name}_bytes")
        assert scheme.comm_bytes_per_step == scheme.theory.comm_bytes_per_step
        assert scheme.peak_bytes_estimate >= scheme.theory.peak_bytes_at_least
        assert scheme.hidden_bytes == 0


# --- the executed schedule, not the formula -----------------------------------------------------------


def keeps_full_x(
    ctx: Any,
    x: Tensor,
    weight: Tensor,
    communicator: Communicator,
    site: Site,
    save: str,
    backward: Any,
) -> Tensor:
    """A column linear that is to save its shard and keeps the gathered input besides."""
    full = communicator.run("all_gather", x, activation_intent(site))
    ctx.save_for_backward(x, weight)
    ctx.full_x = full
    ctx.about = (communicator, site)
    ctx.schedule = backward
    return forward_gemm(full, weight, site)


def saves_full_x(
    ctx: Any, x: Tensor, weight: Tensor, communicator: Communicator, site: Site, *_: Any
) -> Tensor:
    """A column linear that is to save its shard and saves the gathered input."""
    full = communicator.run("all_gather", x, activation_intent(site))
    ctx.save_for_backward(full, weight)
    ctx.about = (communicator, site)
    ctx.schedule = sequence_parallel.backward_full_sync
    return forward_gemm(full, weight, site)


def test_a_broken_schedule_changes_the_plan_and_not_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    right = of(sp_profiler.plan(modes="sp", save="shard", layers=8, **SMALL), "SP recompute")
    execute_anew(monkeypatch)
    monkeypatch.setattr(sequence_parallel.ColumnFunction, "forward", staticmethod(saves_full_x))
    plan = sp_profiler.plan(modes="sp", save="shard", layers=8, **SMALL)
    broken = of(plan, "SP recompute")
    f = 2 * 64 * 2 * 96
    assert broken.saved_bytes - right.saved_bytes == 8 * (5 * f - f)  # (5 - 2/T)F, T = 2
    assert broken.theory.saved_bytes == right.theory.saved_bytes == right.saved_bytes
    assert broken.comm_bytes_per_step < right.comm_bytes_per_step, "it gathers no input again"
    assert broken.theory.comm_bytes_per_step == right.comm_bytes_per_step
    (entry,) = [one for one in plan.data_quality if one.code == "saved-differs-from-theory"]
    assert f"keeps {8 * 4 * f} bytes more than the closed form" in entry.text


def test_what_is_kept_past_autograd_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """full_x on `ctx` is no saved tensor, but it lives."""
    right = of(sp_profiler.plan(modes="sp", save="shard", layers=8, **SMALL), "SP recompute")
    execute_anew(monkeypatch)
    monkeypatch.setattr(sequence_parallel.ColumnFunction, "forward", staticmethod(keeps_full_x))
    plan = sp_profiler.plan(modes="sp", save="shard", layers=8, **SMALL)
    broken = of(plan, "SP recompute")
    assert broken.saved_bytes == right.saved_bytes
    assert broken.hidden_bytes == 8 * 5 * 2 * 64 * 2 * 96
    assert broken.peak_bytes_estimate - right.peak_bytes_estimate == broken.hidden_bytes
    assert "kept-past-autograd" in {one.code for one in plan.data_quality}


# --- extrapolation ------------------------------------------------------------------------------------

WAYS = [
    {"modes": "tp", "comm": "async"},
    {"modes": "sp", "save": "full", "comm": "async"},
    {"modes": "sp", "save": "shard", "projections": "fused", "norm": "fused"},
    {"modes": "tp", "recompute": "full"},
    {"modes": "sp", "save": "shard", "num_microbatches": 2},
    {"modes": "ddp"},
]


def without_origin(scheme: Scheme) -> dict[str, Any]:
    return {**vars(scheme), "extrapolated_from": None, "peak_in": None}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_extrapolated_figures_are_the_executed_ones(way: dict[str, Any]) -> None:
    layers = 7 if "recompute" in way else 5  # beyond those it is told from
    asked: dict[str, Any] = {**SMALL, **way, "layers": layers, "flops": 1e12, "bandwidth": 1e9}
    asked |= {"latency": 3e-6, "memory_bandwidth": 1e11}
    extrapolated = sp_profiler.plan(**asked)
    executed = sp_profiler.plan(**asked, extrapolate=False)
    assert [without_origin(s) for s in extrapolated.schemes] == [without_origin(s) for s in executed.schemes]
    assert all(scheme.extrapolated_from is None for scheme in executed.schemes)
    codes = {entry.code for entry in extrapolated.data_quality}
    if way["modes"] != "ddp":  # whose buckets do not end where blocks do
        assert all(s.extrapolated_from in ([1, 2, 3], [4, 5, 6]) for s in extrapolated.schemes)
        assert "layers-extrapolated" in codes


def test_a_few_layers_are_executed_as_they_are() -> None:
    plan = sp_profiler.plan(modes="tp", layers=(1, 3), **SMALL)
    assert [scheme.extrapolated_from for scheme in plan.schemes] == [None, None]


# --- the contract -------------------------------------------------------------------------------------


def test_json_follows_the_schema_and_the_schema_the_classes() -> None:
    assert SCHEMA_PATH.read_text() == render_schema()
    schema = json.loads(SCHEMA_PATH.read_text())
    for rates in ({}, {"hardware": "H100 SXM"}):
        plan = sp_profiler.plan(modes=("ddp", "tp", "sp"), layers=(2, 5), **SMALL, **rates)
        plain = json.loads(plan.to_json())
        jsonschema.Draft202012Validator(schema).validate(plain)
        assert plain["schema"] == "sp-profile/plan"
        assert plain["schema_version"] == 1
        names = set(plain["schemes"][0])
        assert names >= {
            "mode", "save", "comm", "projections", "layers", "tp", "micro_batch", "saved_bytes", "theory",
            "parameter_bytes", "gradient_bytes", "optimizer_bytes", "peak_bytes_estimate",
            "comm_bytes_per_step", "extrapolated_from",
        }  # fmt: skip
        assert (plain["machine"] is None) == (not rates)


def test_a_broken_plan_does_not_follow_the_schema() -> None:
    plain = json.loads(sp_profiler.plan(modes="tp", **SMALL).to_json())
    plain["schemes"][0]["saved_bytes"] = "much"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plain, json.loads(SCHEMA_PATH.read_text()))


def test_times_add_up_and_only_asynchronous_schemes_hide() -> None:
    plan = sp_profiler.plan(layers=2, **PUBLISHED, hardware="A100", efficiency=0.6)
    for scheme in plan.schemes:
        time, theory = scheme.time, scheme.theory.time
        assert time is not None
        assert theory is not None
        assert time.step_ns == time.compute_ns + time.exposed_ns
        assert time.comm_ns == time.hidden_ns + time.exposed_ns
        assert time.compute_ns == time.gemm_ns + time.attention_ns + time.memory_op_ns
        assert abs(sum(time.compute_by_role_ns.values()) - time.compute_ns) < 10
        assert abs(sum(time.exposed_by_purpose_ns.values()) - time.exposed_ns) < 10
        assert theory.hidden_ns is not None
        assert abs(time.gemm_ns - theory.gemm_ns) <= 1
        # copies that a wgrad makes of a strided gradient hide communication too
        assert theory.hidden_ns - 1 <= time.hidden_ns <= 1.05 * theory.hidden_ns + 1
        assert (time.hidden_ns > 0) == (scheme.comm == "async")
        assert min(time.memory_op_ns, time.attention_ns, time.gemm_ns) > 0


def test_ddp_hides_under_backward_and_the_closed_form_says_nothing_of_it() -> None:
    plan = sp_profiler.plan(modes="ddp", layers=4, **SMALL, flops=1e12, bandwidth=1e9, latency=1e-6)
    (scheme,) = plan.schemes
    assert scheme.time is not None
    assert scheme.theory.time is not None
    assert scheme.time.hidden_ns > 0
    assert scheme.theory.time.hidden_ns is None
    assert "no-closed-form" in {entry.code for entry in plan.data_quality}


def test_tracebacks_after_a_plan_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process group, though not a real one, makes torch write "[rank0]: " before each line of them."""
    execute_anew(monkeypatch)
    before = sys.excepthook
    sp_profiler.plan(modes="tp", layers=1, **SMALL)
    assert sys.excepthook is before


# --- what it refuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"tp": 3}, "--heads 8 is not divisible by --tp 3 in mode tp"),
        ({"hardware": "RTX 9999"}, "unknown hardware 'RTX 9999', expected one of "),
        ({"flops": 1e14}, "--bandwidth, --latency are missing"),
        ({"hardware": "A100", "flops": 312}, "--flops is 312, expected FLOP/s, such as 312e12"),
        ({"hardware": "A100", "latency": 5}, "--latency is 5, expected seconds, such as 5e-6"),
        ({"hardware": "MI250X", "latency": 5e-6}, "no link bandwidth is known of MI250X"),
        ({"hardware": "MI250X", "bandwidth": 100e9}, "no latency is known of MI250X, one die's link"),
        ({"hardware": "V100 SXM2", "dtype": "bf16"}, "no peak is known of V100 SXM2 for --dtype bf16"),
        ({"hardware": "A100", "efficiency": 1.5}, "--efficiency is 1.5"),
        ({"hardware": "A100", "bandwidth": float("nan")}, "--bandwidth is nan"),
        ({"layers": 0}, "--layers is 0"),
        ({"seq_len": 2**50}, "tensor of more than 2^62 bytes"),
        ({"layers": 1000, "extrapolate": False}, "more than the 512 that are executed"),
        ({"layers": range(1, 2000)}, "more than 1000 schemes"),
        ({"modes": "pp"}, "--modes is 'pp'"),
    ],
)
def test_one_sentence_says_what_cannot_be(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        sp_profiler.plan(**({**SMALL} | asked))
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_not_in_a_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    execute_anew(monkeypatch)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        with pytest.raises(UsageError, match="in a process group"):
            sp_profiler.plan(**SMALL)
    finally:
        torch.distributed.destroy_process_group()
