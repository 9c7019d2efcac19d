"""From a request to a plan: every scheme executed, the closed form beside it, and the differences."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from sp_profiler import __version__
from sp_profiler.ledger import Ledger, LedgerEntry
from sp_profiler.planning.layers import Found, Layers
from sp_profiler.planning.machines import machine_for
from sp_profiler.planning.model import (
    Difference,
    Plan,
    PlanTool,
    Scheme,
    SchemeTheory,
    SchemeTime,
    TheoryTime,
    as_ns,
    is_usual,
    plain_machine,
)
from sp_profiler.planning.request import PlanRequest, grid
from sp_profiler.planning.step import ExecutedStep, execute
from sp_profiler.theory.machine import Machine
from sp_profiler.theory.memory import TERMS, Shape, block_terms, peak_bytes_at_least, shape_terms, states
from sp_profiler.theory.time import step_times, step_wire_bytes
from workloads.config import DTYPE_BYTES, WorkloadConfig

OnScheme = Callable[[int, int, str], None]
"""Called before each scheme with its place, how many there are, and its label."""

_ABOUT_MEMORY = [
    "Sizes are of one rank; saved bytes of one micro-batch; every storage once, parameters excluded.",
    "The peak is the most that tensors hold at once; what an allocator rounds up, keeps in reserve or "
    "fragments, workspaces of kernels and buffers of the communication library come on top.",
    "Attention keeps what torch's flash kernel for CPUs keeps; another kernel may keep more.",
    "AdamW with moments of the parameters' type and no master weights; its state exists from the start.",
]
_ABOUT_TIME = [
    "GEMMs and attention take their FLOPs / (peak x efficiency), whatever their shape.",
    "Causal attention computes half of the scores; its backward 5/2 of its forward.",
    "A collective is a ring alone on its link: launch + steps x (latency + full tensor / (T x bandwidth)).",
    "Communication slows no computation and is slowed by none; all ranks arrive together.",
    "Launching takes no time: a host that is slower than the device is not seen.",
]
_MEMORY_TIME = "Operators that only read and write take their bytes / memory bandwidth, each on its own."
_NO_MEMORY_TIME = (
    "No memory bandwidth is known: norms, activations and the optimizer take no time, "
    "the step is a lower bound."
)


def build_plan(request: PlanRequest, on_scheme: OnScheme | None = None) -> Plan:
    """Execute and extrapolate what the request asks for. Raises UsageError for what cannot be built."""
    import torch

    configs = grid(request)
    machine = machine_for(request.machine, request.dtype)
    runs: dict[WorkloadConfig, Layers] = {}
    schemes: list[Scheme] = []
    ledger = Ledger()
    for place, config in enumerate(configs):
        if on_scheme is not None:
            on_scheme(place, len(configs), scheme_label(config))
        one_layer = dataclasses.replace(config, layers=1)
        if one_layer not in runs:
            runs[one_layer] = Layers(_runner(config), machine, extrapolate=request.extrapolate)
        schemes.append(_scheme(config, runs[one_layer].at(config.layers), machine))
        ledger.extend(_remarks(schemes[-1]))
    return Plan(
        tool=PlanTool("sp-profiler", __version__, torch.__version__),
        machine=None if machine is None else plain_machine(machine),
        assumptions=_assumptions(machine),
        schemes=schemes,
        differences=differences(schemes),
        data_quality=list(ledger.entries),
    )


def _runner(config: WorkloadConfig) -> Callable[[int], ExecutedStep]:
    return lambda layers: execute(dataclasses.replace(config, layers=layers))


def _assumptions(machine: Machine | None) -> list[str]:
    if machine is None:
        return list(_ABOUT_MEMORY)
    of_memory = _NO_MEMORY_TIME if machine.memory_bytes_per_s is None else _MEMORY_TIME
    return [*_ABOUT_MEMORY, *_ABOUT_TIME, of_memory]


def scheme_label(config: WorkloadConfig) -> str:
    """The scheme in the words people use: `TP sync`, `SP basic`, `SP recompute`; options that are not the
    usual ones behind it."""
    named = {("full", "sync"): "SP basic", ("shard", "async"): "SP recompute"}
    if config.mode == "sp":
        label = named.get((str(config.save), str(config.comm)), f"SP save={config.save} {config.comm}")
    else:
        label = "DDP" if config.mode == "ddp" else f"TP {config.comm}"
    if config.projections == "fused":
        label += ", fused projections"
    if config.norm == "fused":
        label += ", fused norm"
    if config.recompute != "none":
        label += f", {config.recompute} activation recompute"
    return label


def shape_of(config: WorkloadConfig) -> Shape:
    """A canonical config in the closed form's words."""
    assert config.kv_heads is not None
    assert config.ffn is not None
    return Shape(
        mode=config.mode,
        seq_len=config.seq_len,
        micro_batch=config.micro_batch,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        ffn=config.ffn,
        vocab=config.vocab,
        ranks=config.ranks,
        element_bytes=DTYPE_BYTES[config.dtype],
        save=config.save,
        projections=config.projections,
        norm=config.norm,
        recompute=config.recompute,
        num_microbatches=config.num_microbatches,
    )


def _scheme(config: WorkloadConfig, found: Found, machine: Machine | None) -> Scheme:
    saved = {term: int(found.values.get(f"saved.{term}", 0)) for term in TERMS}
    peaks = found.group("peak")
    peak_in = max(peaks, key=lambda where: peaks[where])
    by_purpose = found.group("comm")
    assert config.kv_heads is not None
    assert config.ffn is not None
    return Scheme(
        label=scheme_label(config),
        mode=config.mode,
        save=config.save,
        comm=config.comm,
        projections=config.projections,
        norm=config.norm,
        recompute=config.recompute,
        layers=config.layers,
        seq_len=config.seq_len,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        ffn=config.ffn,
        vocab=config.vocab,
        micro_batch=config.micro_batch,
        num_microbatches=config.num_microbatches,
        dtype=config.dtype,
        tp=config.tp,
        dp=config.dp,
        ranks=config.ranks,
        saved_bytes=sum(saved.values()),
        saved_by_term=saved,
        saved_bytes_per_layer=int(found.values["layer"]),
        hidden_bytes=int(found.values["hidden"]),
        parameter_bytes=int(found.values["parameter"]),
        gradient_bytes=int(found.values["gradient"]),
        optimizer_bytes=int(found.values["optimizer"]),
        peak_bytes_estimate=int(peaks[peak_in]),
        peak_in=_place(peak_in),
        comm_bytes_per_step=_whole(sum(by_purpose.values())),
        comm_bytes_by_purpose={purpose: _whole(size) for purpose, size in by_purpose.items()},
        collectives_per_step=int(found.values["collectives"]),
        extrapolated_from=None if found.extrapolated_from is None else list(found.extrapolated_from),
        theory=_theory(config, machine),
        time=None if machine is None else _time(found),
    )


def _place(where: str) -> str:
    """`2 backward, a block last` as people read it."""
    place = where.partition(" ")[2]
    return place.partition(" block")[0] + " block" if " block" in place else place


def _whole(size: int | float | Fraction) -> int:
    """Bytes to the nearest whole one: with an all-reduce that T does not divide they are a fraction."""
    return round(size)


def _theory(config: WorkloadConfig, machine: Machine | None) -> SchemeTheory:
    shape, layers = shape_of(config), config.layers
    terms, held = shape_terms(shape, layers), states(shape, layers)
    time = None
    if machine is not None:
        times = step_times(shape, config.comm, layers, machine)
        time = TheoryTime(
            gemm_ns=as_ns(times.gemm_s),
            attention_ns=as_ns(times.attention_s),
            comm_ns=as_ns(times.comm_s),
            hideable_ns=None if times.hideable_s is None else as_ns(times.hideable_s),
            hidden_ns=None if times.hidden_s is None else as_ns(times.hidden_s),
            exposed_ns=None if times.exposed_s is None else as_ns(times.exposed_s),
        )
    return SchemeTheory(
        saved_bytes=sum(terms.values()),
        saved_by_term=terms,
        saved_bytes_per_layer=sum(block_terms(shape).values()),
        parameter_bytes=held.parameter_bytes,
        gradient_bytes=held.gradient_bytes,
        optimizer_bytes=held.optimizer_bytes,
        peak_bytes_at_least=peak_bytes_at_least(shape, layers),
        comm_bytes_per_step=_whole(step_wire_bytes(shape, config.comm, layers)),
        time=time,
    )


def _time(found: Found) -> SchemeTime:
    """Rounded parts; sums are of the rounded parts, so that they add up."""
    parts = {name: as_ns(float(value)) for name, value in found.group("time").items()}
    compute = parts["gemm"] + parts["attention"] + parts["memory"]
    return SchemeTime(
        step_ns=compute + parts["exposed"],
        compute_ns=compute,
        gemm_ns=parts["gemm"],
        attention_ns=parts["attention"],
        memory_op_ns=parts["memory"],
        comm_ns=parts["hidden"] + parts["exposed"],
        hidden_ns=parts["hidden"],
        exposed_ns=parts["exposed"],
        exposed_by_purpose_ns={p: as_ns(float(s)) for p, s in found.group("exposed").items()},
        compute_by_role_ns={role: as_ns(float(s)) for role, s in found.group("role").items()},
    )


def _remarks(scheme: Scheme) -> list[LedgerEntry]:
    """What a reader must know of the figures of a scheme."""
    entries: list[LedgerEntry] = []
    if scheme.extrapolated_from is not None:
        counts = ", ".join(map(str, scheme.extrapolated_from))
        text = f"figures of more layers are extrapolated from {counts} executed ones, which add the same each"
        entries.append(LedgerEntry("layers-extrapolated", "note", text))
    if scheme.saved_bytes != scheme.theory.saved_bytes:
        more = scheme.saved_bytes - scheme.theory.saved_bytes
        text = (
            f"{scheme.label}, {scheme.layers} layers: the executed schedule keeps {abs(more)} bytes "
            f"{'more' if more > 0 else 'less'} than the closed form"
        )
        entries.append(LedgerEntry("saved-differs-from-theory", "note", text))
    if scheme.hidden_bytes:
        text = (
            f"{scheme.label}: {scheme.hidden_bytes} bytes are kept for backward past autograd's saved tensors"
        )
        entries.append(LedgerEntry("kept-past-autograd", "note", text))
    if scheme.theory.time is not None and scheme.theory.time.hidden_ns is None:
        text = "what hides of ddp's collectives depends on its buckets: the closed form has no value for it"
        entries.append(LedgerEntry("no-closed-form", "note", text))
    return entries


_SIZES = ("layers", "seq_len", "micro_batch", "num_microbatches", "ranks")
_SCHEME = ("mode", "save")
_OPTIONS = ("comm", "projections", "norm", "recompute")


def differences(schemes: Sequence[Scheme]) -> list[Difference]:
    """Of schemes of equal sizes: those of other mode or save with equal options, and those of one mode and
    save that differ in one option. Options that a mode does not have are equal to all."""
    pairs = itertools.combinations(range(len(schemes)), 2)
    return [_difference(schemes, i, j) for i, j in pairs if _comparable(schemes[i], schemes[j])]


def _comparable(one: Scheme, other: Scheme) -> bool:
    if any(getattr(one, name) != getattr(other, name) for name in _SIZES):
        return False
    differing = [name for name in _OPTIONS if _differs(one, other, name)]
    if all(getattr(one, name) == getattr(other, name) for name in _SCHEME):
        return len(differing) == 1
    return not differing or (differing == ["comm"] and is_usual(one) and is_usual(other))


def _differs(one: Scheme, other: Scheme, name: str) -> bool:
    values = (getattr(one, name), getattr(other, name))
    return None not in values and values[0] != values[1]


def _difference(schemes: Sequence[Scheme], i: int, j: int) -> Difference:
    one, other = schemes[i], schemes[j]

    def less(name: str, a: Any = one, b: Any = other) -> int:
        return getattr(a, name) - getattr(b, name)

    by_term = {term: size - other.saved_by_term[term] for term, size in one.saved_by_term.items()}
    return Difference(
        first=i,
        second=j,
        label=f"{one.label} − {other.label}",
        layers=one.layers,
        micro_batch=one.micro_batch,
        tp=max(one.tp, other.tp),
        saved_bytes=less("saved_bytes"),
        saved_by_term={term: size for term, size in by_term.items() if size},
        peak_bytes_estimate=less("peak_bytes_estimate"),
        comm_bytes_per_step=less("comm_bytes_per_step"),
        theory_saved_bytes=less("saved_bytes", one.theory, other.theory),
        theory_comm_bytes_per_step=less("comm_bytes_per_step", one.theory, other.theory),
        step_ns=less("step_ns", one.time, other.time) if one.time and other.time else None,
    )
