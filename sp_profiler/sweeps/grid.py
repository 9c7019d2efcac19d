"""From lists of options to cells: every combination once, what cannot be or is the same with its reason."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sp_profiler.errors import UsageError
from sp_profiler.record.workload import MAX_RANKS
from sp_profiler.report.compare_table import workload_label
from sp_profiler.sweeps.model import Cell, Skipped
from sp_profiler.sweeps.request import VARIED, SweepRequest, flag
from sp_profiler.sweeps.theory import theory_of
from sp_profiler.theory.machine import Machine
from workloads.config import CONTEXT_MODES, FFN_MULTIPLE, RING_MODES, WorkloadConfig, scheme_name

SIZES = ("ranks", "dtype", "hidden", "heads", "kv_heads", "ffn", "vocab", "micro_batch", "num_microbatches",
         "seq_len", "layers")  # fmt: skip
"""What is equal in cells that are compared with each other."""
SCHEME = tuple(name for name in VARIED if name not in SIZES)
_CONTEXT_ONLY = ("layout", "ulysses", "model_ranks", "inside")
_IN_NAMES = (("ranks", "r"), ("layers", "l"), ("seq_len", "s"), ("micro_batch", "b"))
_MORE_IN_NAMES = ("num_microbatches", "dtype", "hidden", "heads", "kv_heads", "ffn", "vocab")

Options = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """`configs`: name of a cell -> its workload, as it is run."""

    cells: list[Cell]
    configs: dict[str, WorkloadConfig]
    skipped: list[Skipped]


def cells_of(request: SweepRequest, machine: Machine | None = None) -> Grid:
    """Every combination that can be run, in the order of the table; `machine`: what theory takes times of.

    Raises UsageError when none can be.
    """
    made: dict[str, tuple[Cell, WorkloadConfig]] = {}
    impossible: dict[tuple[str, str], list[str]] = {}
    unused: dict[str, set[str]] = {}
    same = 0
    combinations = [_used(options, request) for options in _product(request)]
    models = _models([options for options, _ in combinations])
    for options, dropped in combinations:
        sizes = {**options, **models[_model_key(options)]}
        try:
            config = _config(sizes, request)
        except UsageError as error:
            impossible.setdefault((options["mode"], str(error)), []).append(_told(options))
            continue
        name = cell_name(config)
        if name in made:
            same += 1
            unused.setdefault(options["mode"], set()).update(dropped)
        else:
            made[name] = (_cell(name, sizes, config, machine), config)
    skipped = [
        Skipped(mode, reason, len(told), list(dict.fromkeys(told)))
        for (mode, reason), told in impossible.items()
    ]
    if not made:
        raise UsageError(f"none of the combinations can be run: {skipped[0].reason}")
    if same:
        skipped.append(Skipped("the same as another cell", _why_same(unused), same, []))
    return Grid([cell for cell, _ in made.values()], {n: config for n, (_, config) in made.items()}, skipped)


def _product(request: SweepRequest) -> Iterable[Options]:
    values = [request.values(name) for name in VARIED]
    for combination in itertools.product(*values):
        yield dict(zip(VARIED, combination, strict=True))


def _used(options: Options, request: SweepRequest) -> tuple[Options, list[str]]:
    """The options, those that the mode has no use for None; and the names of these."""
    mode = options["mode"]
    is_context = mode in CONTEXT_MODES
    drop: list[str] = [] if is_context else list(_CONTEXT_ONLY)
    if is_context and mode not in RING_MODES:
        drop.append("layout")
    if is_context and mode != "usp":
        drop.append("ulysses")
    if is_context and ((options["model_ranks"] or 1) == 1 or request.attention_only):
        drop.append("inside")
    inside = "inside" not in drop and options["inside"] == "sp"
    if mode != "sp" and not inside:
        drop.append("save")
    if mode == "ddp":
        drop.append("comm")
    dropped = [name for name in drop if options[name] is not None]
    return {name: None if name in drop else value for name, value in options.items()}, dropped


def _why_same(unused: Mapping[str, set[str]]) -> str:
    parts = [
        f"{mode} has no use for {', '.join(flag(name) for name in VARIED if name in names)}"
        for mode, names in unused.items()
        if names
    ]
    return "; ".join(parts) or "options that differ in name only"


def _model_key(options: Options) -> tuple[Any, ...]:
    return tuple(options[name] for name in ("hidden", "heads", "kv_heads", "ffn"))


def _sharing(options: Options) -> tuple[int, int]:
    """Ranks that share the weights of a model, and those that share its heads."""
    mode, ranks = options["mode"], options["ranks"]
    if mode == "ddp":
        return 1, 1
    if mode not in CONTEXT_MODES:
        return ranks, ranks
    inside = options["model_ranks"] or 1
    exchanging = {"ulysses": ranks // inside, "usp": options["ulysses"] or 2}.get(mode, 1)
    return inside, max(inside * exchanging, 1)


def _models(combinations: list[Options]) -> dict[tuple[Any, ...], Options]:
    """`kv_heads` and `ffn` where they are left to follow: the same in all cells, which so train one model.

    What WorkloadConfig would choose for a cell by itself depends on how its ranks share the model.
    """
    shared: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for options in combinations:
        heads = options["heads"]
        of_weights, of_heads = _sharing(options)
        possible = options["ranks"] > 0 and heads > 0 and heads % of_heads == 0
        shared.setdefault(_model_key(options), []).extend([(of_weights, of_heads)] if possible else [])
    made: dict[tuple[Any, ...], Options] = {}
    for key, ranks in shared.items():
        hidden, heads, kv_heads, ffn = key
        if kv_heads is None:
            half, odd = divmod(heads, 2)
            kv_heads = heads if odd or any(half % of_heads for _, of_heads in ranks) else half
        if ffn is None:
            multiple = math.lcm(FFN_MULTIPLE, *(of_weights for of_weights, _ in ranks))
            ffn = -(-8 * hidden // (3 * multiple)) * multiple
        made[key] = {"kv_heads": kv_heads, "ffn": ffn}
    return made


def _config(options: Options, request: SweepRequest) -> WorkloadConfig:
    """The workload of a cell. Raises UsageError with the sentence that says why there is none."""
    if not 1 <= options["ranks"] <= MAX_RANKS:
        raise UsageError(f"--ranks {options['ranks']} is not between 1 and {MAX_RANKS}")
    is_context = options["mode"] in CONTEXT_MODES
    only_context: Options = {"causal": request.causal, "attention_only": request.attention_only}
    if request.attention_only and not is_context:
        raise UsageError(f"--attention-only is for {', '.join(CONTEXT_MODES)}, not for {options['mode']}")
    config = WorkloadConfig(
        **{name: value for name, value in options.items() if value is not None},
        **(only_context if is_context else {}),
        warmup=1,
        active_steps=request.profiled_steps,
        seed=request.seed,
    )
    if request.batch_policy == "fixed-global" and config.dp > 1:
        config = _shared_batch(config)
    return config.canonical()


def _shared_batch(config: WorkloadConfig) -> WorkloadConfig:
    """The batch of one model divided among its copies: the sequences of a micro-batch, else micro-batches."""
    for name in ("micro_batch", "num_microbatches"):
        count = getattr(config, name)
        if count % config.dp == 0:
            return dataclasses.replace(config, **{name: count // config.dp})
    batch = f"--micro-batch {config.micro_batch} and --num-microbatches {config.num_microbatches}"
    raise UsageError(
        f"{batch} cannot be divided among the {config.dp} ranks of {config.mode}, as --batch-policy "
        "fixed-global wants"
    )


def _cell(name: str, asked: Options, config: WorkloadConfig, machine: Machine | None) -> Cell:
    workload = config.to_dict()
    return Cell(
        name=name,
        scheme=scheme_name(config),
        label=_label(workload),
        sizes={size: asked[size] for size in SIZES},
        workload=workload,
        tokens_per_step=tokens_per_step(config),
        theory=theory_of(config, machine),
    )


def tokens_per_step(config: WorkloadConfig) -> int:
    """Of all ranks together. Ranks that share a model or a sequence work on the same tokens."""
    return config.seq_len * config.micro_batch * config.num_microbatches * config.dp


def _label(workload: Mapping[str, Any]) -> str:
    label = workload_label(workload, "")
    label += ", fused projections" if workload.get("projections") == "fused" else ""
    return label + (", fused norm" if workload.get("norm") == "fused" else "")


def cell_name(config: WorkloadConfig) -> str:
    """`tp-sync-r2-l4-s256-b2`, and what else is not a workload's default. Equal names, equal workloads."""
    usual = WorkloadConfig(mode="ddp", hidden=config.hidden, heads=config.heads).resolved_sizes()
    common = {"hidden": WorkloadConfig.hidden, "heads": WorkloadConfig.heads}
    parts = [scheme_name(config), *(f"{letter}{getattr(config, name)}" for name, letter in _IN_NAMES)]
    for name in _MORE_IN_NAMES:
        value = getattr(config, name)
        if value != common.get(name, getattr(usual, name)):
            parts.append(f"{name.replace('num_', '').replace('_', '')}{value}")
    return "-".join(parts)


def order_of(cell: Cell) -> str:
    """Sorts cells of several requests as one would."""
    from workloads.config import COMMS, MODES, RECOMPUTES, SAVES

    known: dict[str, tuple[str, ...]] = {"mode": MODES, "save": SAVES, "comm": COMMS, "recompute": RECOMPUTES}

    def place(name: str) -> Any:
        value = cell.workload.get(name)
        return known[name].index(value) if value in known[name] else -1

    sizes = [f"{value:020d}" if isinstance(value, int) else str(value) for value in cell.sizes.values()]
    return json.dumps([[place(name) for name in known], cell.scheme, sizes])


def _told(options: Options) -> str:
    """A combination for people: `sp full async, 2 ranks, seq-len 33`."""
    scheme = " ".join(str(options[n]) for n in ("mode", "layout", "save", "comm") if options[n] is not None)
    rest = [f"{flag(n).lstrip('-')} {options[n]}" for n in ("ranks", "micro_batch", "seq_len", "layers")]
    more = [
        f"{flag(n).lstrip('-')} {options[n]}"
        for n in ("recompute", "ulysses", "model_ranks", "inside", "hidden", "heads", "kv_heads")
        if options[n] not in (None, "none", getattr(WorkloadConfig, n, None))
    ]
    return ", ".join([scheme, *rest, *more])
