"""Closed forms of a cell's workload: what a rank keeps, sends and cannot do without."""

from __future__ import annotations

from fractions import Fraction

from sp_profiler.analysis.memory.closed_form import context_shape_of, shape_of, terms_of, whole
from sp_profiler.sweeps.model import CellTheory
from sp_profiler.theory.communication import model_schedule, norm_gradient_bytes, sum_wire_bytes, wire_bytes
from sp_profiler.theory.context_communication import attention_transfers, sent_bytes
from sp_profiler.theory.context_memory import ContextShape
from sp_profiler.theory.machine import Machine
from sp_profiler.theory.memory import Shape, states
from sp_profiler.theory.time import step_times, step_wire_bytes
from workloads.config import WorkloadConfig


def theory_of(config: WorkloadConfig, machine: Machine | None = None) -> CellTheory:
    """Of one rank; bytes, and with a machine the ns of a step there."""
    workload = config.to_dict()
    layers = config.layers
    context = context_shape_of(workload)
    shape = shape_of(workload) if context is None else None
    if context is not None:
        saved = whole(terms_of(context, layers))
        sent = _context_wire_bytes(config, context)
        held = None if config.attention_only else states(context.local, layers)
    else:
        assert shape is not None
        saved = whole(terms_of(shape, layers))
        sent = step_wire_bytes(shape, config.comm, layers)
        held = states(shape, layers)
    peak = None
    if held is not None:
        peak = held.parameter_bytes + held.optimizer_bytes + max(saved, held.gradient_bytes)
    return CellTheory(
        saved_bytes=saved,
        comm_bytes=round(sent),
        peak_bytes_at_least=peak,
        step_ns_at_least=None if machine is None or shape is None else _step_ns(config, shape, machine),
    )


def _step_ns(config: WorkloadConfig, shape: Shape, machine: Machine) -> int:
    """GEMMs, attention, and what stays exposed; of ddp, whose buckets may hide, without communication."""
    times = step_times(shape, config.comm, config.layers, machine)
    return round((times.gemm_s + times.attention_s + (times.exposed_s or 0.0)) * 1e9)


def _context_wire_bytes(config: WorkloadConfig, shape: ContextShape) -> Fraction:
    """Attention's transfers, those of the ranks that share the model inside a part, the sums of gradients."""
    transfers = attention_transfers(shape)
    once = (*transfers.forward, *transfers.backward, *transfers.again(config.recompute))
    sent = config.layers * sent_bytes(once)
    local = shape.local
    if config.attention_only:
        return sent * config.num_microbatches
    if local.parts > 1:
        schedule = model_schedule(
            local.mode,
            comm=config.comm,
            save=local.save,
            projections=local.projections,
            layers=config.layers,
            activation_bytes=local.activation_bytes,
            recompute=config.recompute,
        )
        sent += sum_wire_bytes((*schedule.forward, *schedule.backward), local.parts)
    sent *= config.num_microbatches
    if local.mode == "sp":
        norms = norm_gradient_bytes(
            layers=config.layers, hidden=local.hidden, element_bytes=local.element_bytes
        )
        sent += wire_bytes("all_reduce", norms, local.parts)
    gradients = states(local, config.layers).gradient_bytes
    return sent + wire_bytes("all_reduce", gradients, shape.parts)
