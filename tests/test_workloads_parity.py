"""Every workload trains the same model as one device does; mistakes that are easily made would show."""

from __future__ import annotations

import dataclasses

import pytest
from workloads_ranks import (
    BROKEN,
    Case,
    Outcome,
    broken_cases,
    delayed_cases,
    outcomes,
    whole_cases,
)

pytestmark = [pytest.mark.gloo, pytest.mark.timeout(900)]

F64_LIMIT = 1e-11
FLOOR = {"f32": 1e-6, "bf16": 5e-3}
FINAL_LOSS_LIMIT = {"f32": 1e-5, "bf16": 2e-2}

ALL = [case for world in (2, 4) for case in whole_cases(world)]


def name_of(case: Case) -> str:
    c = case.config
    parts = (
        c.ranks,
        c.mode,
        c.comm,
        c.save,
        c.projections,
        c.norm,
        c.dtype,
        c.num_microbatches,
        None if c.recompute == "none" else c.recompute,
        case.sabotage,
    )
    return "-".join(str(part) for part in parts if part is not None)


def outcome_of(case: Case) -> Outcome:
    return outcomes(case.config.ranks)[case]


def largest(outcome: Outcome) -> float:
    """The worst of all errors, of the first step and after the last."""
    errors = outcome.errors
    return max(errors.logits, errors.loss, *errors.gradients.values(), errors.final_loss, errors.weights)


@pytest.mark.parametrize("case", [c for c in ALL if c.config.dtype == "f64"], ids=name_of)
def test_f64_equals_the_dense_model(case: Case) -> None:
    assert largest(outcome_of(case)) <= F64_LIMIT


@pytest.mark.parametrize("case", [c for c in ALL if c.config.dtype != "f64"], ids=name_of)
def test_lower_precision_is_as_good_as_the_dense_model_in_it(case: Case) -> None:
    outcome, dtype = outcome_of(case), case.config.dtype
    ours, dense = outcome.errors, outcome.dense_errors
    assert ours.logits <= 2 * dense.logits + FLOOR[dtype]
    assert ours.loss <= 2 * dense.loss + FLOOR[dtype]
    for name, error in ours.gradients.items():
        assert error <= 2 * dense.gradients[name] + FLOOR[dtype], name
    assert ours.final_loss <= FINAL_LOSS_LIMIT[dtype]
    assert ours.weights <= 3 * dense.weights


@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_ranks_agree_on_what_they_all_hold(case: Case) -> None:
    assert outcome_of(case).replicas_equal


@pytest.mark.parametrize("case", [c for c in ALL if c.config.comm == "async"], ids=name_of)
def test_async_and_sync_are_bitwise_equal(case: Case) -> None:
    sync = Case(dataclasses.replace(case.config, comm="sync"))
    assert outcome_of(case).digest == outcome_of(sync).digest


@pytest.mark.parametrize("case", [c for c in ALL if c.config.save == "shard"], ids=name_of)
def test_saving_a_shard_or_all_is_bitwise_equal(case: Case) -> None:
    full = Case(dataclasses.replace(case.config, save="full"))
    assert outcome_of(case).digest == outcome_of(full).digest


@pytest.mark.parametrize("case", [c for c in ALL if c.config.recompute != "none"], ids=name_of)
def test_running_forward_again_or_keeping_it_is_bitwise_equal(case: Case) -> None:
    kept = Case(dataclasses.replace(case.config, recompute="none"))
    assert outcome_of(case).early == outcome_of(kept).early


@pytest.mark.parametrize("case", delayed_cases(), ids=name_of)
def test_every_result_is_waited_for_and_no_input_is_touched_before(case: Case) -> None:
    """Results appear at `wait` alone, and the delivery itself checks that its input has not changed."""
    assert largest(outcome_of(case)) <= F64_LIMIT


@pytest.mark.parametrize("case", broken_cases(), ids=name_of)
def test_a_mistake_breaks_parity(case: Case) -> None:
    outcome = outcome_of(case)
    assert max(outcome.errors.gradients.values()) > 0.1, f"{case.sabotage} went unnoticed"
    assert outcome.errors.weights > 1e-8, "AdamW forgives a gradient of the wrong size, but not this much"


def test_leaving_out_the_norm_reduction_touches_the_norms_alone() -> None:
    for case in broken_cases():
        if case.sabotage != "no norm reduction":
            continue
        for name, error in outcome_of(case).errors.gradients.items():
            assert (error > 0.1) if "norm" in name else (error <= F64_LIMIT), name


def test_every_mistake_is_tried() -> None:
    assert {case.sabotage for case in broken_cases()} == set(BROKEN)
