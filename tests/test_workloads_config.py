"""What a workload may be, and the sentence for what it may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sp_profiler.errors import EXIT_USAGE, UsageError
from workloads.config import DTYPES, WorkloadConfig


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "pp"}, "the workload is 'pp', expected one of ddp, tp, sp, ring, ulysses, rsa, usp"),
        ({"comm": "later"}, "--comm is 'later', expected one of sync, async"),
        ({"save": "none"}, "--save is 'none', expected one of full, shard"),
        ({"norm": None}, "--norm is 'None', expected one of eager, fused"),
        ({"recompute": "some"}, "--recompute is 'some', expected one of none, selective, full"),
        ({"dtype": "fp8"}, "--dtype is 'fp8', expected one of f64, f32, bf16, f16"),
        ({"layers": 0}, "--layers is 0, expected a whole number of at least 1"),
        ({"ranks": 2.0}, "--ranks is 2.0, expected a whole number of at least 1"),
        ({"micro_batch": True}, "--micro-batch is True, expected a whole number of at least 1"),
        ({"warmup": -1}, "--warmup is -1, expected a whole number of at least 0"),
        ({"vocab": 1}, "--vocab is 1, expected a whole number of at least 2"),
        ({"kv_heads": 0}, "--kv-heads is 0, expected a whole number of at least 1"),
        ({"learning_rate": 0}, "--learning-rate is 0, expected a number above 0"),
        ({"learning_rate": float("nan")}, "--learning-rate is nan, expected a number above 0"),
        ({"mode": "ddp", "bucket_mib": -1}, "--bucket-mib is -1, expected a number above 0"),
        ({"hidden": 250}, "--hidden 250 is not divisible by --heads 8"),
        (
            {"hidden": 24},
            "--hidden 24 with --heads 8 gives a head size of 3, "
            "which must be even for rotary position embedding",
        ),
        ({"kv_heads": 3}, "--heads 8 is not divisible by --kv-heads 3"),
        ({"ranks": 3, "kv_heads": 4}, "--heads 8 is not divisible by --ranks 3 in mode tp"),
        (
            {"ranks": 8, "kv_heads": 4},
            "--kv-heads 4 is less than --ranks 8: in mode tp every rank needs at least one key/value head",
        ),
        (
            {"ranks": 4, "heads": 12, "hidden": 48, "kv_heads": 6},
            "--kv-heads 6 is not divisible by --ranks 4 in mode tp",
        ),
        ({"mode": "sp", "ffn": 301}, "--ffn 301 is not divisible by --ranks 2 in mode sp"),
        ({"mode": "sp", "seq_len": 255}, "--seq-len 255 is not divisible by --ranks 2 in mode sp"),
    ],
)
def test_one_sentence_says_what_is_wrong(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        WorkloadConfig(**options)
    assert str(caught.value) == sentence
    assert caught.value.exit_code == EXIT_USAGE


def test_a_split_that_a_mode_does_not_make_needs_no_divisor() -> None:
    WorkloadConfig(mode="tp", seq_len=255)
    WorkloadConfig(mode="ddp", ranks=3, seq_len=255, ffn=301)


@pytest.mark.parametrize("mode", ["ddp", "tp", "sp"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_defaults_work_at_every_usual_world_size(mode: str, ranks: int) -> None:
    config = WorkloadConfig(mode=mode, ranks=ranks).canonical()
    assert (config.tp * config.dp, config.ffn) == (ranks, 704)
    assert config.kv_heads == (8 if ranks == 8 and mode != "ddp" else 4)


def test_defaults_that_follow_from_other_sizes() -> None:
    assert WorkloadConfig(hidden=768, heads=8).canonical().ffn == 2048
    assert WorkloadConfig(heads=1, ranks=1).canonical().kv_heads == 1
    odd = WorkloadConfig(ranks=3, heads=9, hidden=54).canonical()
    assert (odd.kv_heads, odd.ffn) == (9, 192)
    assert WorkloadConfig(mode="ddp", hidden=8192, heads=64).canonical().bucket_mib == 25.0


def test_options_that_do_not_apply_are_ignored() -> None:
    """Two spellings of one workload have one canonical form, so a sweep runs it once."""
    canonical = WorkloadConfig(mode="tp").canonical()
    assert WorkloadConfig(mode="tp", comm="sync", save="shard", bucket_mib=3).canonical() == canonical
    assert (canonical.comm, canonical.save, canonical.bucket_mib) == ("sync", None, None)
    ddp = WorkloadConfig(mode="ddp", comm="async", save="shard").canonical()
    assert ddp == WorkloadConfig(mode="ddp").canonical()
    assert (ddp.comm, ddp.save) == (None, None)
    assert (
        WorkloadConfig(mode="sp").canonical()
        == WorkloadConfig(mode="sp", comm="sync", save="full").canonical()
    )
    assert WorkloadConfig(mode="sp", save="shard").canonical() != WorkloadConfig(mode="sp").canonical()


@pytest.mark.parametrize("mode", ["ddp", "tp", "sp"])
def test_json_and_back(mode: str) -> None:
    config = WorkloadConfig(mode=mode, dtype="bf16", layers=3)
    values = json.loads(json.dumps(config.to_dict()))
    assert WorkloadConfig.from_dict(values) == config.canonical()
    assert (values["tp"], values["dp"]) == ((1, 2) if mode == "ddp" else (2, 1))
    with pytest.raises(UsageError, match="unknown workload option 'layer'"):
        WorkloadConfig.from_dict({"layer": 3})


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_activation(dtype: str) -> None:
    """F = e S B H."""
    size = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}[dtype]
    assert WorkloadConfig(dtype=dtype).activation_bytes == size * 256 * 2 * 256
