"""What a workload is: its sizes, its schedule, and what cannot be, each told in one sentence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sp_profiler.errors import UsageError
from sp_profiler.theory.communication import block_parameters
from workloads.context.scheme import LAYOUTS, SCHEMES, ContextScheme

CONTEXT_MODES = SCHEMES
"""Modes in which ranks divide the sequence, and attention brings its parts together."""
RING_MODES = ("ring", "rsa", "usp")
"""Those with a ring, whose ranks may hold other tokens than a stretch of the sequence."""
MODES = ("ddp", "tp", "sp", *CONTEXT_MODES)
COMMS = ("sync", "async")
SAVES = ("full", "shard")
PROJECTIONS = ("separate", "fused")
NORMS = ("eager", "fused")
RECOMPUTES = ("none", "selective", "full")
INSIDES = ("tp", "sp")
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
    "layout": LAYOUTS,
    "inside": INSIDES,
}
_DEFAULTED = ("comm", "save", "layout", "inside")
"""Choices that may be None: the mode's default."""
_CONTEXT = ("layout", "causal", "ulysses", "model_ranks", "inside", "attention_only")
"""Options of context parallelism; the others have no use for them."""
_DERIVED = ("tp", "dp", "cp")
"""What run.json tells beside the options, for who does not want to compute it."""
_WHOLE_MODEL = ("projections", "norm", "ffn", "vocab", "learning_rate", "bucket_mib")
"""Options that attention alone has no use for."""
_COUNTS = ("ranks", "layers", "seq_len", "hidden", "heads", "vocab", "micro_batch", "num_microbatches")


@dataclass(frozen=True)
class WorkloadConfig:
    """One workload. Sizes are of the whole model; `kv_heads` and `ffn` left None follow from the others.

    Options that may be None have a default that follows from the mode. A part of the schedule that the mode
    has no use for is ignored (see `canonical`). Raises UsageError for a workload that cannot be built, and
    for one of the options of context parallelism in a mode without it: they say what is computed.
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
    """Size of the buckets in which ranks with the same weights average their gradients, in ddp and in context
    parallelism. Default: the parameters of one block, at most 25 MiB."""
    seed: int = 0
    layout: str | None = None
    """Which tokens a rank of a ring holds. Default: zigzag with a causal mask, which then costs every rank
    the same; contiguous without one, and in rsa, where no mask saves work."""
    causal: bool = True
    ulysses: int | None = None
    """Of usp: ranks that exchange heads for tokens inside each part of the ring. Default: 2."""
    model_ranks: int | None = None
    """In context parallelism the ranks that share one model inside each part of the sequence. Default: 1."""
    inside: str | None = None
    """How they share it: tp (default) or sp."""
    attention_only: bool = False
    """Forward and backward of the attention of `layers` layers over random q, k, v; nothing is trained."""

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_counts(self)
        _check_context(self)
        _check_sizes(self.resolved_sizes())

    @property
    def tp(self) -> int:
        """Ranks that share one model."""
        if self.is_context:
            return self.model_ranks or 1
        return 1 if self.mode == "ddp" else self.ranks

    @property
    def dp(self) -> int:
        """Ranks that hold a copy of the model each, for data of their own."""
        return self.ranks if self.mode == "ddp" else 1

    @property
    def cp(self) -> int:
        """Parts of the sequence that ranks hold."""
        return self.ranks // self.tp if self.is_context else 1

    @property
    def is_context(self) -> bool:
        return self.mode in CONTEXT_MODES

    @property
    def model_scheme(self) -> str:
        """How ranks share one model: ddp (they do not), tp or sp."""
        if not self.is_context:
            return self.mode
        return (self.inside or INSIDES[0]) if self.tp > 1 else "ddp"

    def scheme(self) -> ContextScheme:
        """How ranks share the sequence, of a mode of context parallelism. Raises UsageError."""
        layout = self.layout
        if layout is None:
            balances = self.mode in ("ring", "usp") and self.causal
            layout = "zigzag" if balances else "contiguous"
        ulysses = self.ulysses if self.mode != "usp" else self.ulysses or 2
        return ContextScheme(self.mode, self.cp, self.comm or COMMS[0], layout, self.causal, ulysses)

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
            sharing = self.tp * (self.scheme().ulysses_ranks if self.is_context else 1)
            changes["kv_heads"] = self.heads if odd or half % sharing else half
        if self.ffn is None:
            multiple = math.lcm(FFN_MULTIPLE, self.tp)
            changes["ffn"] = -(-8 * self.hidden // (3 * multiple)) * multiple
        return dataclasses.replace(self, **changes)

    def canonical(self) -> WorkloadConfig:
        """The config with every default filled in and every option its mode ignores set to None.

        Two configs that describe the same workload have equal canonical forms.
        """
        sizes = self.resolved_sizes()
        has_buckets = self.mode == "ddp" or self.is_context
        changes: dict[str, Any] = {
            "comm": None if self.mode == "ddp" else self.comm or COMMS[0],
            "save": (self.save or SAVES[0]) if self.model_scheme == "sp" else None,
            "bucket_mib": (self.bucket_mib or sizes.default_bucket_mib()) if has_buckets else None,
        }
        if self.is_context:
            scheme = self.scheme()
            changes |= {
                "layout": scheme.layout if self.mode in RING_MODES else None,
                "ulysses": scheme.ulysses,
                "model_ranks": self.tp,
                "inside": self.model_scheme if self.tp > 1 else None,
            }
        if self.attention_only:
            changes |= {"save": None, "inside": None}
            changes |= {name: _default(name) for name in _WHOLE_MODEL}
        return dataclasses.replace(sizes, **changes)

    def default_bucket_mib(self) -> float:
        """MiB of one block's parameters, at most 25 (torch's own default for DDP)."""
        sizes = self.resolved_sizes()
        assert sizes.kv_heads is not None
        assert sizes.ffn is not None
        parameters = block_parameters(
            hidden=self.hidden, heads=self.heads, kv_heads=sizes.kv_heads, ffn=sizes.ffn
        )
        return min(25.0, parameters // self.tp * DTYPE_BYTES[self.dtype] / 2**20)

    def to_dict(self) -> dict[str, Any]:
        """The canonical form as JSON values, with `tp`, `dp` and `cp` beside it: run.json's `workload`.

        `tp` stands for `model_ranks`. What the mode has no use for is left out.
        """
        config = self.canonical()
        values = {**dataclasses.asdict(config), **{name: getattr(config, name) for name in _DERIVED}}
        unused = {"model_ranks", *(() if config.is_context else _CONTEXT)}
        unused |= set(_WHOLE_MODEL) if config.attention_only else set()
        return {name: value for name, value in values.items() if name not in unused}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WorkloadConfig:
        """The inverse of `to_dict`. Raises UsageError for a key that is no option, and for a `tp`, `dp` or
        `cp` that the other options do not make."""
        names = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - names - set(_DERIVED))
        if unknown:
            raise UsageError(f"unknown workload option '{unknown[0]}'")
        options = {key: value for key, value in values.items() if key in names}
        if values.get("mode") in CONTEXT_MODES and "tp" in values:
            options.setdefault("model_ranks", values["tp"])
        config = cls(**options)
        for name in _DERIVED:
            made = getattr(config, name)
            if values.get(name, made) != made:
                raise UsageError(f"{name} is {values[name]!r}, but the workload's options make it {made}")
        return config


def _check_choices(config: WorkloadConfig) -> None:
    for name, choices in _CHOICES.items():
        value = getattr(config, name)
        if value not in choices and not (value is None and name in _DEFAULTED):
            raise UsageError(f"{_option(name)} is '{value}', expected one of {', '.join(choices)}")
    if config.dtype not in DTYPES:
        raise UsageError(f"--dtype is '{config.dtype}', expected one of {', '.join(DTYPES)}")


def _check_counts(config: WorkloadConfig) -> None:
    may_be_none = ("kv_heads", "ffn", "ulysses", "model_ranks")
    optional = [name for name in may_be_none if getattr(config, name) is not None]
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


def _check_context(config: WorkloadConfig) -> None:
    """The options of context parallelism, and that the ranks can be divided as they say."""
    for name in ("causal", "attention_only"):
        if not isinstance(getattr(config, name), bool):
            raise UsageError(f"{_option(name)} is {getattr(config, name)!r}, expected true or false")
    if not config.is_context:
        used = [name for name in _CONTEXT if getattr(config, name) != _default(name)]
        if used:
            modes = ", ".join(RING_MODES if used[0] == "layout" else CONTEXT_MODES)
            modes = "usp" if used[0] == "ulysses" else modes
            raise UsageError(f"{_option(used[0])} is for {modes}, not for {config.mode}")
        return
    _divides("ranks", config.ranks, "model_ranks", config.tp)
    if config.tp > 1 and config.cp < 2:
        raise UsageError(
            f"--ranks {config.ranks} with --tp {config.tp} leaves the sequence whole: "
            f"{config.mode} divides it among at least 2 times --tp ranks"
        )
    config.scheme()
    if config.attention_only and config.recompute == "full":
        raise UsageError(
            "--recompute full repeats whole blocks, and --attention-only has none: use selective"
        )
    if config.inside is not None and (config.tp == 1 or config.attention_only):
        why = "--attention-only has no linears" if config.attention_only else "--tp is 1"
        raise UsageError(f"--inside says how ranks share the linears of one model, and {why}")


def _check_sizes(config: WorkloadConfig) -> None:
    """`config` has all its sizes. The order is from the shape of the model to how it is split."""
    assert config.kv_heads is not None
    assert config.ffn is not None
    _divides("hidden", config.hidden, "heads", config.heads)
    if config.head_dim % 2 and not config.attention_only:
        raise UsageError(
            f"--hidden {config.hidden} with --heads {config.heads} gives a head size of {config.head_dim}, "
            "which must be even for rotary position embedding"
        )
    _divides("heads", config.heads, "kv_heads", config.kv_heads)
    if config.mode == "ddp":
        return
    where = f"in mode {config.mode}"
    sharing = "model_ranks" if config.is_context else "ranks"
    _divides("heads", config.heads, sharing, config.tp, where)
    if config.kv_heads < config.tp:
        raise UsageError(
            f"--kv-heads {config.kv_heads} is less than {_option(sharing)} {config.tp}: "
            f"{where} every rank needs at least one key/value head"
        )
    _divides("kv_heads", config.kv_heads, sharing, config.tp, where)
    if not config.attention_only:
        _divides("ffn", config.ffn, sharing, config.tp, where)
    if config.is_context:
        scheme = config.scheme()
        scheme.check_heads(config.heads // config.tp, config.kv_heads // config.tp)
        scheme.check_length(config.seq_len)
    if config.model_scheme == "sp":
        _check_sequence_parallel(config, sharing, where)


def _check_sequence_parallel(config: WorkloadConfig, sharing: str, where: str) -> None:
    own = config.seq_len // config.cp
    if config.cp == 1:
        _divides("seq_len", own, sharing, config.tp, where)
    elif own % config.tp:
        raise UsageError(
            f"--seq-len {config.seq_len} makes {config.cp} parts of {own} tokens, which --inside sp cannot "
            f"divide among --tp {config.tp}"
        )


def _divides(name: str, size: int, by_name: str, by: int, where: str = "") -> None:
    if size % by:
        tail = f" {where}" if where else ""
        raise UsageError(f"{_option(name)} {size} is not divisible by {_option(by_name)} {by}{tail}")


def _option(name: str) -> str:
    named = {"mode": "the workload", "model_ranks": "--tp", "causal": "--no-causal"}
    return named.get(name) or "--" + name.replace("_", "-")


def _default(name: str) -> Any:
    (field,) = [field for field in dataclasses.fields(WorkloadConfig) if field.name == name]
    return field.default


def scheme_name(config: WorkloadConfig) -> str:
    """The workload in a word or two: `tp-sync`, `sp-shard-async-recompute-full`, `ring-zigzag-async`.

    Folders of runs are named so, and schemes of a sweep.
    """
    whole = config.canonical()
    parts = [
        whole.mode,
        f"{whole.ulysses}" if whole.ulysses else None,
        whole.layout,
        whole.inside and f"{whole.inside}{whole.tp}",
        whole.save,
        whole.comm,
        None if whole.causal else "no-mask",
        None if whole.recompute == "none" else f"recompute-{whole.recompute}",
        None if whole.projections == "separate" else "fused",
        None if whole.norm == "eager" else "fused-norm",
        "attention" if whole.attention_only else None,
    ]
    return "-".join(part for part in parts if part)
