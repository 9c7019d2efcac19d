"""The closed form of saved bytes is, by term and to the byte, what the workloads' real code keeps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from sp_profiler.planning import build
from sp_profiler.theory.memory import (
    TERMS,
    Shape,
    block_terms,
    outer_terms,
    peak_bytes_at_least,
    saved_terms,
    shape_terms,
    states,
)
from workloads.config import WorkloadConfig
from workloads.measure import SavedMeasurement, fake_rank, measure_saved

MIB = 2**20
SIZES = {"seq_len": 64, "hidden": 96, "heads": 8, "kv_heads": 4, "ffn": 160, "vocab": 72, "micro_batch": 3}
PUBLISHED = {"seq_len": 2048, "hidden": 768, "heads": 8, "kv_heads": 4, "vocab": 6400, "ffn": 2048}
"""FACTS, memory: F is 6 MiB with 2 sequences in bf16, 12 MiB with 4."""


def measured(config: WorkloadConfig) -> SavedMeasurement:
    with fake_rank(config.ranks) as communicator:
        return measure_saved(config, communicator, torch.device("cpu"))


def by_term(measurement: SavedMeasurement) -> dict[str, int]:
    terms = dict.fromkeys(TERMS, 0)
    for tensor in measurement.saved.tensors:
        terms[tensor.term] += tensor.bytes
    return terms


def shape_of(config: WorkloadConfig) -> Shape:
    return build.shape_of(config.canonical())


SCHEMES = [{"mode": "ddp"}, {"mode": "tp"}, {"mode": "sp", "save": "full"}, {"mode": "sp", "save": "shard"}]
OPTIONS = [
    *(
        {"projections": projections, "norm": norm, "recompute": recompute, "dtype": "bf16", "ranks": 2}
        for projections, norm, recompute in itertools.product(
            ("separate", "fused"), ("eager", "fused"), ("none", "selective", "full")
        )
    ),
    {"projections": "separate", "norm": "eager", "recompute": "none", "dtype": "f32", "ranks": 4},
    {"projections": "fused", "norm": "fused", "recompute": "selective", "dtype": "f64", "ranks": 4},
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: "-".join(s.values()))
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_every_term_is_what_the_workload_keeps(scheme: dict[str, Any], options: dict[str, Any]) -> None:
    config = WorkloadConfig(**SIZES, **scheme, **options, layers=1)
    measurement = measured(config)
    shape = shape_of(config)
    assert by_term(measurement) == shape_terms(shape, 1)
    held = states(shape, 1)
    assert measurement.parameter_bytes == held.parameter_bytes
    assert measurement.gradient_bytes == held.gradient_bytes
    assert measurement.optimizer_bytes == held.optimizer_bytes
    assert measurement.peak_bytes >= peak_bytes_at_least(shape, 1)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_layers_and_micro_batches(dtype: str) -> None:
    """Blocks add up; of the micro-batches only the tokens are all there at once."""
    for layers, microbatches in ((1, 1), (3, 1), (1, 3)):
        config = WorkloadConfig(**SIZES, layers=layers, num_microbatches=microbatches, dtype=dtype)
        assert by_term(measured(config)) == shape_terms(shape_of(config), layers)


def test_saved_terms_takes_the_sizes_by_name() -> None:
    config = WorkloadConfig(**SIZES, mode="sp", save="shard", layers=3, dtype="bf16")
    terms = saved_terms(**SIZES, mode="sp", save="shard", layers=3, ranks=2, element_bytes=2)
    assert terms == shape_terms(shape_of(config), 3)
    assert tuple(terms) == TERMS


def published(mode: str, save: str | None = None, norm: str = "eager", batch: int = 2) -> Shape:
    return Shape(mode, micro_batch=batch, ranks=2, save=save, norm=norm, **PUBLISHED)


def block(shape: Shape) -> int:
    return sum(block_terms(shape).values())


def outer(shape: Shape) -> int:
    return sum(outer_terms(shape).values())


def test_the_table_of_differences() -> None:
    """FACTS: per block 6 MiB, 24 MiB, 30 MiB; 12 MiB once; and 4SB(1-1/T) bytes per norm."""
    tp, basic, recompute = published("tp"), published("sp", "full"), published("sp", "shard")
    rsqrt = 4 * 2048 * 2 // 2
    assert block(tp) - block(basic) == 6 * MIB + 2 * rsqrt
    assert outer(tp) - outer(basic) == 12 * MIB + rsqrt
    assert block(basic) - block(recompute) == 24 * MIB
    assert block(tp) - block(recompute) == 30 * MIB + 2 * rsqrt
    assert outer(basic) == outer(recompute)
    doubled = block(published("sp", "full", batch=4)) - block(published("sp", "shard", batch=4))
    assert doubled == 48 * MIB


def test_a_fused_norm_turns_the_sign() -> None:
    """2F(1-1/T) - 3F: SP basic keeps more than TP."""
    difference = block(published("tp", norm="fused")) - block(published("sp", "full", norm="fused"))
    assert difference == 6 * MIB - 18 * MIB + 2 * (4 * 2048 * 2 // 2)
    assert difference < 0


@pytest.mark.parametrize(("ranks", "kv_heads"), [(2, 4), (4, 4), (8, 8)])
def test_sp_basic_less_sp_recompute_is_5_less_2_over_t(ranks: int, kv_heads: int) -> None:
    sizes = PUBLISHED | {"kv_heads": kv_heads}
    full = Shape("sp", micro_batch=2, ranks=ranks, save="full", **sizes)
    shard = Shape("sp", micro_batch=2, ranks=ranks, save="shard", **sizes)
    assert (block(full) - block(shard)) * ranks == (5 * ranks - 2) * full.activation_bytes


def test_what_there_is_no_closed_form_for() -> None:
    for wrong in ({"mode": "pp"}, {"save": "some"}, {"norm": "layer"}, {"recompute": "half"}):
        with pytest.raises(ValueError, match=next(iter(wrong.values()))):
            Shape(**({"mode": "sp", "micro_batch": 1, **PUBLISHED} | wrong))
