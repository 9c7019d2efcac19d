"""Times of schedules drawn by hand, and of executed ones against the closed form."""

from __future__ import annotations

from typing import Any

import pytest

from sp_profiler.planning.events import Compute, Event, Launch, Wait
from sp_profiler.planning.step import execute
from sp_profiler.planning.timeline import StepTimes, simulate
from sp_profiler.theory.machine import Machine
from sp_profiler.theory.memory import Shape
from sp_profiler.theory.time import step_times
from workloads.config import WorkloadConfig

# 1 FLOP and 1 byte of memory a second; an all-reduce of x bytes between two ranks takes x seconds.
UNIT = Machine("unit", flops_per_s=1.0, bytes_per_s=1.0, step_latency_s=0.0, memory_bytes_per_s=1.0)


def gemm(seconds: int, role: str = "wgrad") -> Compute:
    return Compute("gemm", seconds, 0, role)


def reduce(seq: int, seconds: int, is_async: bool = True) -> Launch:
    return Launch("all_reduce", seconds, is_async, seq, "dgrad")


def times(*events: Event) -> StepTimes:
    found = simulate(events, 2, UNIT)
    assert found.hidden_s + found.exposed_s == pytest.approx(found.comm_s)
    assert sum(found.exposed_by_purpose_s.values()) == pytest.approx(found.exposed_s)
    assert sum(found.compute_by_role_s.values()) == pytest.approx(found.compute_s)
    return found


def test_a_synchronous_collective_is_exposed() -> None:
    # gemm 0-3, all-reduce 3-5, gemm 5-9
    found = times(gemm(3), reduce(0, 2, is_async=False), gemm(4))
    assert (found.comm_s, found.hidden_s, found.exposed_s, found.step_s) == (2, 0, 2, 9)


@pytest.mark.parametrize(("seconds", "hidden"), [(2, 2), (4, 4), (7, 4)])
def test_an_asynchronous_one_hides_under_what_runs_before_its_wait(seconds: int, hidden: int) -> None:
    found = times(gemm(3, "dgrad"), reduce(0, seconds), gemm(4), Wait(0), gemm(1))
    assert (found.hidden_s, found.exposed_s) == (hidden, seconds - hidden)
    assert found.step_s == 8 + seconds - hidden


def test_collectives_queue_on_the_link() -> None:
    # launched at 0 and 1: on the link 0-5 and 5-8; waits after gemms that end at 6; 6-8 exposed
    found = times(reduce(0, 5), gemm(1), reduce(1, 3), gemm(5), Wait(0), Wait(1))
    assert (found.comm_s, found.hidden_s, found.exposed_s, found.step_s) == (8, 6, 2, 8)


def test_who_waits_for_a_late_one_waits_for_those_before_it() -> None:
    # on the link 0-5 and 5-8; the wait for the second at 1 is exposed time of both: 4 and 3
    found = times(reduce(0, 5), reduce(1, 3), gemm(1), Wait(1), gemm(10), Wait(0))
    assert (found.exposed_s, found.hidden_s, found.step_s) == (7, 1, 18)


def test_a_collective_nobody_waits_for_ends_before_the_step() -> None:
    assert times(reduce(0, 5), gemm(2)).step_s == 5


def test_memory_operators_take_time_only_where_the_bandwidth_is_known() -> None:
    moved = Compute("memory", 0, 6, "other")
    assert times(moved).memory_s == 6
    unknown = Machine("unit", flops_per_s=1.0, bytes_per_s=1.0, step_latency_s=0.0)
    assert simulate([moved, gemm(2)], 2, unknown).step_s == 2


SIZES = {"seq_len": 512, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 128, "micro_batch": 2}
SCHEDULES = [
    *({"mode": "tp", "comm": comm} for comm in ("sync", "async")),
    *({"mode": "sp", "save": save, "comm": comm} for save in ("full", "shard") for comm in ("sync", "async")),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: "-".join(s.values()))
@pytest.mark.parametrize(
    ("projections", "recompute"), [("separate", "none"), ("fused", "none"), ("fused", "full")]
)
def test_an_executed_schedule_takes_what_the_closed_form_says(
    schedule: dict[str, Any], projections: str, recompute: str
) -> None:
    """GEMMs, attention, collectives, and what hides: min(|c|, |w|) of each asynchronous collective."""
    config = WorkloadConfig(
        **SIZES, **schedule, projections=projections, recompute=recompute, ranks=4, layers=2, dtype="bf16"
    )
    events = execute(config).events
    shape = Shape(
        config.mode, **SIZES, ranks=4, save=config.save, projections=projections, recompute=recompute
    )
    # collectives of 0.7 to 0.9 ms; GEMMs that are shorter for k and v, longer for gate and up
    machine = Machine(
        "test", flops_per_s=1e11, bytes_per_s=1e9, step_latency_s=1e-5, launch_latency_s=2e-5, efficiency=0.5
    )
    found, theory = simulate(events, 4, machine), step_times(shape, config.comm, 2, machine)
    assert found.gemm_s == pytest.approx(theory.gemm_s)
    assert found.attention_s == pytest.approx(theory.attention_s)
    assert found.comm_s == pytest.approx(theory.comm_s)
    assert found.hidden_s == pytest.approx(theory.hidden_s, abs=1e-12)
    assert found.step_s == pytest.approx(theory.step_s)
    assert theory.hideable_s is not None
    assert theory.hidden_s is not None
    assert 0 < theory.hideable_s < theory.comm_s
    assert theory.hidden_s == pytest.approx(theory.hideable_s if config.comm == "async" else 0.0)
