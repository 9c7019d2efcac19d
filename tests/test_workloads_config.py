"""What a workload may be, and the sentence for what it may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sp_profiler.errors import EXIT_USAGE, UsageError
from workloads.config import CONTEXT_MODES, DTYPES, WorkloadConfig


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
        ({"mode": "ring", "ranks": 1}, "ring divides the sequence among at least 2 ranks, not 1"),
        (
            {"mode": "ulysses", "ranks": 2, "model_ranks": 2},
            "--ranks 2 with --tp 2 leaves the sequence whole: ulysses divides it among at least 2 times --tp "
            "ranks",
        ),
        ({"mode": "ring", "ranks": 4, "model_ranks": 3}, "--ranks 4 is not divisible by --tp 3"),
        ({"mode": "ring", "model_ranks": 0}, "--tp is 0, expected a whole number of at least 1"),
        (
            {"mode": "ring", "ranks": 4, "seq_len": 252},
            "--seq-len 252 cannot be divided among 4 ranks in 8 chunks, two for each",
        ),
        (
            {"mode": "ring", "ranks": 4, "seq_len": 250, "layout": "striped"},
            "--seq-len 250 cannot be divided among 4 ranks",
        ),
        ({"mode": "rsa", "ranks": 4, "seq_len": 250}, "--seq-len 250 cannot be divided among 4 ranks"),
        (
            {"mode": "usp", "ranks": 8, "ulysses": 4, "seq_len": 252, "causal": False},
            "--seq-len 252 cannot be divided among 8 ranks",
        ),
        (
            {"mode": "ulysses", "ranks": 8, "kv_heads": 4},
            "--kv-heads 4 of a rank cannot be divided among the 8 ranks of ulysses",
        ),
        (
            {"mode": "ulysses", "ranks": 3},
            "--heads 8 of a rank cannot be divided among the 3 ranks of ulysses",
        ),
        (
            {"mode": "usp", "ranks": 8, "ulysses": 2, "model_ranks": 2, "kv_heads": 2},
            "--kv-heads 1 of a rank cannot be divided among the 2 ranks of ulysses",
        ),
        ({"mode": "usp", "ranks": 4, "ulysses": 3}, "4 ranks cannot be divided into rings by --ulysses 3"),
        ({"mode": "usp", "ranks": 3}, "3 ranks cannot be divided into rings by --ulysses 2"),
        (
            {"mode": "usp", "ranks": 4, "ulysses": 8},
            "--ulysses 8 is not between 1 and 4, the ranks that share the sequence",
        ),
        ({"mode": "ring", "ulysses": 2}, "--ulysses is for usp: ring has all ranks in one group"),
        ({"mode": "ulysses", "layout": "zigzag"}, "--layout zigzag is for a ring: ulysses has none"),
        (
            {"mode": "ring", "layout": "spiral"},
            "--layout is 'spiral', expected one of contiguous, zigzag, striped",
        ),
        ({"mode": "ring", "ranks": 6, "model_ranks": 3}, "--heads 8 is not divisible by --tp 3 in mode ring"),
        (
            {"mode": "ring", "ranks": 8, "model_ranks": 4, "kv_heads": 2},
            "--kv-heads 2 is less than --tp 4: in mode ring every rank needs at least one key/value head",
        ),
        (
            {"mode": "ring", "ranks": 4, "model_ranks": 2, "ffn": 301},
            "--ffn 301 is not divisible by --tp 2 in mode ring",
        ),
        (
            {"mode": "ring", "ranks": 8, "model_ranks": 4, "seq_len": 36, "inside": "sp"},
            "--seq-len 36 makes 2 parts of 18 tokens, which --inside sp cannot divide among --tp 4",
        ),
        ({"mode": "ring", "inside": "pp"}, "--inside is 'pp', expected one of tp, sp"),
        (
            {"mode": "ring", "inside": "sp"},
            "--inside says how ranks share the linears of one model, and --tp is 1",
        ),
        (
            {"mode": "ring", "ranks": 4, "model_ranks": 2, "inside": "sp", "attention_only": True},
            "--inside says how ranks share the linears of one model, and --attention-only has no linears",
        ),
        (
            {"mode": "ring", "attention_only": True, "recompute": "full"},
            "--recompute full repeats whole blocks, and --attention-only has none: use selective",
        ),
        ({"mode": "tp", "layout": "zigzag"}, "--layout is for ring, rsa, usp, not for tp"),
        ({"mode": "sp", "ulysses": 2}, "--ulysses is for usp, not for sp"),
        ({"mode": "tp", "model_ranks": 2}, "--tp is for ring, ulysses, rsa, usp, not for tp"),
        ({"mode": "ddp", "inside": "sp"}, "--inside is for ring, ulysses, rsa, usp, not for ddp"),
        ({"mode": "tp", "causal": False}, "--no-causal is for ring, ulysses, rsa, usp, not for tp"),
        (
            {"mode": "tp", "attention_only": True},
            "--attention-only is for ring, ulysses, rsa, usp, not for tp",
        ),
        ({"mode": "ring", "causal": 1}, "--no-causal is 1, expected true or false"),
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


@pytest.mark.parametrize("mode", CONTEXT_MODES)
@pytest.mark.parametrize(("ranks", "tp"), [(2, 1), (4, 1), (8, 1), (4, 2), (8, 4)])
def test_the_defaults_of_context_parallelism_work(mode: str, ranks: int, tp: int) -> None:
    config = WorkloadConfig(mode=mode, ranks=ranks, model_ranks=tp).canonical()
    assert (config.tp, config.dp, config.cp) == (tp, 1, ranks // tp)
    shares_heads = {"ulysses": config.cp, "usp": 2}.get(mode, 1) * tp
    assert config.kv_heads == (8 if shares_heads == 8 else 4)
    assert config.layout == {"ring": "zigzag", "usp": "zigzag", "rsa": "contiguous", "ulysses": None}[mode]
    assert config.ulysses == (2 if mode == "usp" else None)
    assert config.inside == ("tp" if tp > 1 else None)
    assert config.save is None
    assert WorkloadConfig(mode=mode, ranks=ranks, causal=False).canonical().layout in ("contiguous", None)


def test_attention_alone_has_no_model_around_it() -> None:
    plain = WorkloadConfig(mode="ring", attention_only=True)
    other = WorkloadConfig(mode="ring", attention_only=True, ffn=301, vocab=7, norm="fused", learning_rate=1)
    assert plain.canonical() == other.canonical() == plain.canonical().canonical()
    unknown = {"ffn", "vocab", "norm", "projections", "learning_rate", "bucket_mib"}
    assert not unknown & set(plain.to_dict())
    assert unknown < set(WorkloadConfig(mode="ring").to_dict())
    WorkloadConfig(mode="ring", attention_only=True, hidden=24)  # no rotary embedding: heads of 3 will do


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


@pytest.mark.parametrize(
    ("options", "derived"),
    [
        ({"mode": "ddp"}, (1, 2, 1)),
        ({"mode": "tp"}, (2, 1, 1)),
        ({"mode": "sp"}, (2, 1, 1)),
        ({"mode": "ring", "causal": False, "layout": "striped"}, (1, 1, 2)),
        ({"mode": "ulysses"}, (1, 1, 2)),
        ({"mode": "rsa", "ranks": 8, "model_ranks": 4, "inside": "sp"}, (4, 1, 2)),
        ({"mode": "usp", "ranks": 4, "attention_only": True}, (1, 1, 4)),
    ],
)
def test_json_and_back(options: dict[str, Any], derived: tuple[int, int, int]) -> None:
    config = WorkloadConfig(**options, dtype="bf16", layers=3)
    values = json.loads(json.dumps(config.to_dict()))
    assert WorkloadConfig.from_dict(values) == config.canonical()
    assert (values["tp"], values["dp"], values["cp"]) == derived
    with pytest.raises(UsageError, match="unknown workload option 'layer'"):
        WorkloadConfig.from_dict({"layer": 3})
    with pytest.raises(UsageError, match=f"dp is 16, but the workload's options make it {derived[1]}"):
        WorkloadConfig.from_dict({**values, "dp": 16})
    told = {"layout", "causal", "ulysses", "inside", "attention_only"}
    assert told & set(values) == (told if derived[2] > 1 else set())


def test_a_configuration_file_says_tp_as_the_command_line_does() -> None:
    config = WorkloadConfig.from_dict({"mode": "ring", "ranks": 4, "tp": 2})
    assert (config.model_ranks, config.cp) == (2, 2)
    with pytest.raises(UsageError, match="--ranks 4 is not divisible by --tp 3"):
        WorkloadConfig.from_dict({"mode": "ring", "ranks": 4, "tp": 3})
    with pytest.raises(UsageError, match="tp is 2, but the workload's options make it 4"):
        WorkloadConfig.from_dict({"mode": "sp", "ranks": 4, "tp": 2})


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_activation(dtype: str) -> None:
    """F = e S B H."""
    size = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}[dtype]
    assert WorkloadConfig(dtype=dtype).activation_bytes == size * 256 * 2 * 256
