"""What a workload is: its sizes, its schedule, and what cannot be, each told in one sentence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sp_profiler.errors import UsageError
from sp_profiler.theory.communication import block_parameters

MODES = ("ddp", "tp", "sp")
COMMS = ("sync", "async")
SAVES = ("full", "shard")
PROJECTIONS = ("separate", "fused")
NORMS = ("eager", "fused")
RECOMPUTES = ("none", "selective", "full")
DTYPES = ("f64", "f32", "bf16", "f16")
DTYPE_BYTES = {"f64": 8, "f32": 4, "bf16": 2, "f16": 2}

FFN_MULTIPLE = 64
"""The default feed-forward size is 8/3 of the hidden size, as in LLaMA, rounded up to a multiple of this
(and of the ranks that share it)."""

MAX_SEED = 2**32 - 1

_CHOICES = {
    "mode": MODES,
    "comm": COMMS,
    "save": SAVES,
    "projections": PROJECTIONS,
    "norm": NORMS,
    "recompute": RECOMPUTES,
}
_COUNTS = ("ranks", "layers", "seq_len", "hidden", "heads", "vocab", "micro_batch", "num_microbatches")


@dataclass(frozen=True)
class WorkloadConfig:
    """One workload. Sizes are of the whole model; `kv_heads` and `ffn` left None follow from the others.

    `comm`, `save` and `bucket_mib` may be None, which means the mode's default; a value that the mode
    has no use for is ignored (see `canonical`). Raises UsageError when it cannot be built.
    """

    mode: str = "tp"
    ranks: int = 2
    comm: str | None = None
    """When the collectives of backward run. sync: after the last GEMM of their linear; async: under one."""
    save: str | None = None
    """What a column linear of sp keeps for backward. full: its gathered input; shard: its own part."""
    projections: str = "separate"
    """separate: q, k, v, gate and up are five linears; fused: QKV is one, gate and up another."""
    norm: str = "eager"
    """eager: RMSNorm in fp32, operator by operator; fused: one node that keeps only its input."""
    recompute: str = "none"
    """Forward work that backward runs again instead of keeping what it needs. selective: the attention core
    (Korthikanti et al. 2022, arXiv 2205.05198, section 5); full: whole blocks."""
    layers: int = 2
    seq_len: int = 256
    hidden: int = 256
    heads: int = 8
    kv_heads: int | None = None
    """Default: half the heads where the ranks of tp or sp can share them, else all."""
    ffn: int | None = None
    vocab: int = 1024
    micro_batch: int = 2
    """Sequences per micro-batch; in ddp per rank, as is num_microbatches."""
    num_microbatches: int = 1
    dtype: str = "f32"
    warmup: int = 2
    active_steps: int = 3
    learning_rate: float = 1e-3
    bucket_mib: float | None = None
    """Size of ddp's gradient buckets. Default: the parameters of one block, at most 25 MiB."""
    seed: int = 0

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_counts(self)
        _check_sizes(self.resolved_sizes())

    @property
    def tp(self) -> int:
        """Ranks that share one model."""
        return 1 if self.mode == "ddp" else self.ranks

    @property
    def dp(self) -> int:
        """Ranks that hold a copy of the model each."""
        return self.ranks if self.mode == "ddp" else 1

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def activation_bytes(self) -> int:
        """F of the closed forms: bytes of one full-sequence activation [S, B, H]."""
        return self.seq_len * self.micro_batch * self.hidden * DTYPE_BYTES[self.dtype]

    def resolved_sizes(self) -> WorkloadConfig:
        """Self with `kv_heads` and `ffn` filled in."""
        if self.kv_heads is not None and self.ffn is not None:
            return self
        changes: dict[str, int] = {}
        if self.kv_heads is None:
            half, odd = divmod(self.heads, 2)
            changes["kv_heads"] = self.heads if odd or half % self.tp else half
        if self.ffn is None:
            multiple = math.lcm(FFN_MULTIPLE, self.tp)
            changes["ffn"] = -(-8 * self.hidden // (3 * multiple)) * multiple
        return dataclasses.replace(self, **changes)

    def canonical(self) -> WorkloadConfig:
        """The config with every default filled in and every option its mode ignores set to None.

        Two configs that describe the same workload have equal canonical forms.
        """
        sizes = self.resolved_sizes()
        return dataclasses.replace(
            sizes,
            comm=None if self.mode == "ddp" else self.comm or COMMS[0],
            save=(self.save or SAVES[0]) if self.mode == "sp" else None,
            bucket_mib=(self.bucket_mib or sizes.default_bucket_mib()) if self.mode == "ddp" else None,
        )

    def default_bucket_mib(self) -> float:
        """MiB of one block's parameters, at most 25 (torch's own default for DDP)."""
        sizes = self.resolved_sizes()
        assert sizes.kv_heads is not None
        assert sizes.ffn is not None
        parameters = block_parameters(
            hidden=self.hidden, heads=self.heads, kv_heads=sizes.kv_heads, ffn=sizes.ffn
        )
        return min(25.0, parameters * DTYPE_BYTES[self.dtype] / 2**20)

    def to_dict(self) -> dict[str, Any]:
        """The canonical form as JSON values, with `tp` and `dp` beside it; what run.json calls `workload`."""
        config = self.canonical()
        return {**dataclasses.asdict(config), "tp": config.tp, "dp": config.dp}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WorkloadConfig:
        """The inverse of `to_dict`. Raises UsageError for a key that is no option."""
        names = {field.name for field in dataclasses.fields(cls)}
        derived = {"tp", "dp"}
        unknown = sorted(set(values) - names - derived)
        if unknown:
            raise UsageError(f"unknown workload option '{unknown[0]}'")
        return cls(**{key: value for key, value in values.items() if key in names})


def _check_choices(config: WorkloadConfig) -> None:
    for name, choices in _CHOICES.items():
        value = getattr(config, name)
        if value not in choices and not (value is None and name in ("comm", "save")):
            raise UsageError(f"{_option(name)} is '{value}', expected one of {', '.join(choices)}")
    if config.dtype not in DTYPES:
        raise UsageError(f"--dtype is '{config.dtype}', expected one of {', '.join(DTYPES)}")


def _check_counts(config: WorkloadConfig) -> None:
    optional = [name for name in ("kv_heads", "ffn") if getattr(config, name) is not None]
    minimum = {**dict.fromkeys((*_COUNTS, *optional, "active_steps"), 1), "warmup": 0, "seed": 0, "vocab": 2}
    for name, least in minimum.items():
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{_option(name)} is {value!r}, expected a whole number of at least {least}")
    if config.seed > MAX_SEED:
        raise UsageError(f"--seed is {config.seed}, expected a whole number of at most {MAX_SEED}")
    if not config.learning_rate > 0:
        raise UsageError(f"--learning-rate is {config.learning_rate}, expected a number above 0")
    if config.bucket_mib is not None and not config.bucket_mib > 0:
        raise UsageError(f"--bucket-mib is {config.bucket_mib}, expected a number above 0")


def _check_sizes(config: WorkloadConfig) -> None:
    """`config` has all its sizes. The order is from the shape of the model to how it is split."""
    assert config.kv_heads is not None
    assert config.ffn is not None
    _divides("hidden", config.hidden, "heads", config.heads)
    if config.head_dim % 2:
        raise UsageError(
            f"--hidden {config.hidden} with --heads {config.heads} gives a head size of {config.head_dim}, "
            "which must be even for rotary position embedding"
        )
    _divides("heads", config.heads, "kv_heads", config.kv_heads)
    if config.mode == "ddp":
        return
    where = f"in mode {config.mode}"
    _divides("heads", config.heads, "ranks", config.ranks, where)
    if config.kv_heads < config.ranks:
        raise UsageError(
            f"--kv-heads {config.kv_heads} is less than --ranks {config.ranks}: "
            f"{where} every rank needs at least one key/value head"
        )
    _divides("kv_heads", config.kv_heads, "ranks", config.ranks, where)
    _divides("ffn", config.ffn, "ranks", config.ranks, where)
    if config.mode == "sp":
        _divides("seq_len", config.seq_len, "ranks", config.ranks, where)


def _divides(name: str, size: int, by_name: str, by: int, where: str = "") -> None:
    if size % by:
        tail = f" {where}" if where else ""
        raise UsageError(f"{_option(name)} {size} is not divisible by {_option(by_name)} {by}{tail}")


def _option(name: str) -> str:
    return "the workload" if name == "mode" else "--" + name.replace("_", "-")
