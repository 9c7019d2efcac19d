"""The collectives that the workloads run are those of the closed forms: op, order, bytes, async, partner."""

from __future__ import annotations

from fractions import Fraction

import pytest
from workloads_ranks import Case, Outcome, outcomes, whole_cases

from sp_profiler.theory.communication import (
    Expected,
    block_schedule,
    gradient_bytes,
    model_parameters,
    model_schedule,
    norm_gradient_bytes,
    wire_bytes,
)
from workloads.communication import Call
from workloads.config import DTYPE_BYTES, WorkloadConfig

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(900)]

ALL = [case for world in (2, 4) for case in whole_cases(world)]
SPLIT = [case for case in ALL if case.config.mode != "ddp"]
DDP = [case for case in ALL if case.config.mode == "ddp"]

# FACTS: bytes on the wire per block, in r*F with r = (T-1)/T.
WIRE_IN_RF = {
    # mode, save: (fused, separate)
    ("tp", None): (8, 14),
    ("sp", "full"): (8, 14),
    ("sp", "shard"): (10, 19),
}
# FACTS: collectives of one block with fused projections, written out. * is asynchronous, /x its partner.
FUSED = {
    ("tp", None, "sync"): "o:AR down:AR | gate_up:AR/wgrad qkv:AR/wgrad",
    ("tp", None, "async"): "o:AR down:AR | gate_up:AR*/wgrad qkv:AR*/wgrad",
    ("sp", "full", "sync"): "qkv:AG o:RS gate_up:AG down:RS | down:AG gate_up:RS/wgrad o:AG qkv:RS/wgrad",
    ("sp", "full", "async"): "qkv:AG o:RS gate_up:AG down:RS | down:AG gate_up:RS*/wgrad o:AG qkv:RS*/wgrad",
    ("sp", "shard", "sync"): "qkv:AG o:RS gate_up:AG down:RS | "
    "down:AG gate_up:AG/dgrad gate_up:RS/wgrad o:AG qkv:AG/dgrad qkv:RS/wgrad",
    ("sp", "shard", "async"): "qkv:AG o:RS gate_up:AG down:RS | "
    "down:AG gate_up:AG*/dgrad gate_up:RS*/wgrad o:AG qkv:AG*/dgrad qkv:RS*/wgrad",
}
# Beside them with full recompute: the collectives of forward once more.
REPEATED_IN_RF = {"tp": (4, 4), "sp": (4, 7)}
LETTERS = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS"}


def name_of(case: Case) -> str:
    c = case.config
    recompute = None if c.recompute == "none" else c.recompute
    parts = (c.ranks, c.mode, c.comm, c.save, c.projections, c.norm, c.dtype, c.num_microbatches, recompute)
    return "-".join(str(part) for part in parts if part is not None)


def outcome_of(case: Case) -> Outcome:
    return outcomes(case.config.ranks)[case]


def as_expected(call: Call) -> Expected:
    """The recorded collective in the words of the closed form: its module without the block's number."""
    module = call.module.removeprefix(f"layers.{call.layer}.")
    return Expected(call.op, module, call.bytes, call.is_async, call.purpose, call.partner, call.phase)


def step_schedule(config: WorkloadConfig) -> list[Expected]:
    """A whole step: the micro-batches, then the sum of the norm gradients in sp."""
    schedule = model_schedule(
        config.mode,
        comm=config.comm,
        save=config.save,
        projections=config.projections,
        layers=config.layers,
        activation_bytes=config.activation_bytes,
        recompute=config.recompute,
    )
    step = [*schedule.forward, *schedule.backward] * config.num_microbatches
    if config.mode == "sp":
        size = norm_gradient_bytes(
            layers=config.layers, hidden=config.hidden, element_bytes=DTYPE_BYTES[config.dtype]
        )
        step.append(Expected("all_reduce", "norms", size, False, "param-grad", None, "optimizer"))
    return step


def written(calls: list[Call]) -> str:
    """Calls in the notation of FUSED."""
    words = []
    for call in calls:
        partner = f"/{call.partner}" if call.partner else ""
        name = call.module.rsplit(".", 1)[-1]
        words.append(f"{name}:{LETTERS[call.op]}{'*' if call.is_async else ''}{partner}")
    return " ".join(words)


@pytest.mark.parametrize("case", SPLIT, ids=name_of)
def test_a_step_runs_the_collectives_of_the_closed_form(case: Case) -> None:
    for calls in outcome_of(case).calls:
        assert [as_expected(call) for call in calls] == step_schedule(case.config)


@pytest.mark.parametrize("case", SPLIT, ids=name_of)
def test_blocks_come_in_order_and_in_backward_reversed(case: Case) -> None:
    calls = outcome_of(case).calls[0]
    layers = [call.layer for call in calls if call.layer is not None and call.phase == "backward"]
    assert layers == sorted(layers, reverse=True) or case.config.num_microbatches > 1
    assert set(layers) == set(range(case.config.layers))


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_every_rank_launches_the_same_in_the_same_order(case: Case) -> None:
    first, *others = outcome_of(case).calls
    assert first
    assert all(calls == first for calls in others)
    assert len(others) == case.config.ranks - 1


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_calls_name_their_group_and_are_numbered(case: Case) -> None:
    calls = outcome_of(case).calls[0]
    description = "dp" if case.config.mode == "ddp" else "tp"
    ranks = ",".join(map(str, range(case.config.ranks)))
    assert {call.group for call in calls} == {f"{description}[{ranks}]"}
    assert [call.seq for call in calls] == list(range(calls[0].seq, calls[0].seq + len(calls)))
    dtype = {"f64": "float64", "f32": "float32", "bf16": "bfloat16"}[case.config.dtype]
    assert {call.dtype for call in calls} == {dtype}


@pytest.mark.parametrize("case", [c for c in SPLIT if c.config.num_microbatches == 1], ids=name_of)
def test_bytes_on_the_wire_per_block(case: Case) -> None:
    config = case.config
    form = ("fused", "separate").index(config.projections)
    factor = WIRE_IN_RF[config.mode, config.save][form]
    if config.recompute == "full":
        factor += REPEATED_IN_RF[config.mode][form]
    want = factor * Fraction(config.ranks - 1, config.ranks) * config.activation_bytes
    for layer in range(config.layers):
        calls = [call for call in outcome_of(case).calls[0] if call.layer == layer]
        assert sum(wire_bytes(call.op, call.bytes, config.ranks) for call in calls) == want


@pytest.mark.parametrize(
    "case",
    [c for c in SPLIT if c.config.num_microbatches == 1 and c.config.projections == "fused"],
    ids=name_of,
)
def test_fused_block_in_words(case: Case) -> None:
    config = case.config
    calls = [call for call in outcome_of(case).calls[0] if call.layer == 0]
    forward = written([call for call in calls if call.phase == "forward"])
    backward = written([call for call in calls if call.phase == "backward"])
    assert config.comm is not None
    want = FUSED[config.mode, config.save, config.comm]
    if config.recompute == "full":
        want = want.replace(" | ", f" | {forward} ")
    assert f"{forward} | {backward}" == want


def test_only_the_named_collectives_are_asynchronous() -> None:
    """Nothing of a synchronous schedule is in flight; of an asynchronous one what has a partner is."""
    for case in SPLIT:
        for call in outcome_of(case).calls[0]:
            assert call.is_async == (case.config.comm == "async" and call.partner is not None)


@pytest.mark.parametrize("case", DDP, ids=name_of)
def test_ddp_reduces_every_gradient_once_a_step_under_backward(case: Case) -> None:
    config = case.config.canonical()
    assert config.kv_heads is not None
    assert config.ffn is not None
    calls = outcome_of(case).calls[0]
    parameters = model_parameters(
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        ffn=config.ffn,
        vocab=config.vocab,
    )
    size = gradient_bytes(parameters=parameters, element_bytes=DTYPE_BYTES[config.dtype])
    assert sum(call.bytes for call in calls) == size
    assert [call.module for call in calls] == [f"buckets.{i}" for i in range(len(calls))]
    assert len(calls) > config.layers, "with one bucket there would be no backward left to hide it"
    assert {(call.op, call.purpose, call.phase, call.is_async) for call in calls} == {
        ("all_reduce", "param-grad", "backward", True)
    }
    r = Fraction(config.ranks - 1, config.ranks)
    assert sum(wire_bytes(c.op, c.bytes, config.ranks) for c in calls) == 2 * r * size


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("mode", "save"), list(WIRE_IN_RF))
@pytest.mark.parametrize("comm", ["sync", "async"])
def test_closed_forms_have_the_published_totals(ranks: int, mode: str, save: str | None, comm: str) -> None:
    r = Fraction(ranks - 1, ranks)
    for projections, factor in zip(("fused", "separate"), WIRE_IN_RF[mode, save], strict=True):
        schedule = block_schedule(mode, comm=comm, save=save, projections=projections, activation_bytes=4096)
        assert schedule.wire_bytes(ranks) == factor * r * 4096


def test_sp_recompute_sends_a_quarter_or_a_third_more() -> None:
    """FACTS: +25 % fused, +36 % separate."""
    sizes = {
        (projections, save): block_schedule(
            "sp", comm="async", save=save, projections=projections, activation_bytes=64
        ).wire_bytes(2)
        for projections in ("fused", "separate")
        for save in ("full", "shard")
    }
    assert sizes["fused", "shard"] / sizes["fused", "full"] == Fraction(5, 4)
    assert sizes["separate", "shard"] / sizes["separate", "full"] == Fraction(19, 14)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("mode", "save"), list(WIRE_IN_RF))
def test_closed_forms_of_what_recompute_sends(ranks: int, mode: str, save: str | None) -> None:
    """Full: the forward's bytes again; selective: the attention core holds no collective."""
    r = Fraction(ranks - 1, ranks)
    for projections, factor in zip(("fused", "separate"), REPEATED_IN_RF[mode], strict=True):

        def sent(recompute: str, projections: str = projections) -> Fraction:
            schedule = block_schedule(
                mode,
                comm="async",
                save=save,
                projections=projections,
                activation_bytes=4096,
                recompute=recompute,
            )
            return schedule.wire_bytes(ranks)

        assert sent("selective") == sent("none")
        assert sent("full") - sent("none") == factor * r * 4096


def test_an_unknown_recompute_has_no_schedule() -> None:
    with pytest.raises(ValueError, match="some"):
        block_schedule(
            "tp", comm="sync", save=None, projections="fused", activation_bytes=1, recompute="some"
        )


def test_unknown_mode_has_no_schedule() -> None:
    with pytest.raises(ValueError, match="ring3"):
        block_schedule("ring3", comm=None, save=None, projections="fused", activation_bytes=1)
