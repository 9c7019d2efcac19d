"""Memory joined with overlap: what could be freed, what it would send, and whether that could be hidden.

For each kind of buffer that stays alive from forward to backward. A run of our own workloads is compared
with the closed form of the same workload under another option; of any other run the blocks tell: gathered
inputs, stored attention scores, and whole layers, as far as the trace names them.

All figures are of one rank and one step. Times are made of this run's own collectives and GEMMs, and not told
of CPU runs, where overlap does not shorten the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp_profiler.analysis.memory.closed_form import context_shape_of, shape_of, terms_of, whole
from sp_profiler.analysis.memory.from_blocks import from_blocks
from sp_profiler.analysis.memory.results import MemoryFigures, Opportunity, SavedTensors
from sp_profiler.analysis.memory.takes import Measured, Takes
from sp_profiler.analysis.results import CollectiveFigures, GemmFigures
from sp_profiler.ledger import LedgerEntry
from sp_profiler.theory.communication import (
    Expected,
    block_schedule,
    model_schedule,
    norm_gradient_bytes,
    sum_wire_bytes,
    wire_bytes,
)
from sp_profiler.theory.context_communication import Transfer, attention_transfers, sent_bytes
from sp_profiler.theory.context_memory import ContextShape
from sp_profiler.theory.memory import Shape

_NO_TIMES = LedgerEntry(
    "opportunity-times-not-on-cpu",
    "note",
    "what memory opportunities would cost in time is null: this is a CPU run, where overlap does not "
    "shorten the step",
)


@dataclass(frozen=True)
class Run:
    """What opportunities are looked for in. `windows` is the number of (rank, device, step)."""

    figures: Sequence[MemoryFigures]
    saved: Sequence[SavedTensors]
    workload: Mapping[str, Any] | None
    collectives: Sequence[CollectiveFigures]
    gemms: Sequence[GemmFigures]
    windows: int
    is_cpu: bool


def opportunities(run: Run) -> tuple[list[Opportunity], list[LedgerEntry]]:
    """Every kind of buffer whose giving up would free anything, most first; why times are unknown."""
    context = context_shape_of(run.workload)
    shape = shape_of(run.workload) if context is None else context.local
    measured = Measured(run.collectives, run.gemms, run.windows, run.is_cpu)
    if shape is not None:
        known = _Known(run, shape, measured, context)
        looks = _ALONE if context is not None and context.attention_only else _LOOKS
        found = [one for look in looks if (one := look(known)) is not None]
    else:
        found = from_blocks(run.figures, run.collectives, run.gemms, measured)
    found = [one for one in found if one.freed_bytes > 0]
    found.sort(key=lambda one: -one.freed_bytes)
    return found, [_NO_TIMES] if run.is_cpu and any(one.added_comm_bytes for one in found) else []


@dataclass(frozen=True)
class _Known:
    """A run of a shipped workload: its shape, and what was measured. Where ranks divide the sequence `shape`
    is that of the model that shares one part, and `context` says how attention brings the parts together."""

    run: Run
    shape: Shape
    measured: Measured
    context: ContextShape | None = None

    @property
    def layers(self) -> int:
        return int((self.run.workload or {})["layers"])

    @property
    def comm(self) -> str | None:
        return (self.run.workload or {}).get("comm")

    def kept(self, *terms: str) -> int:
        """Bytes of these terms, of the rank that saves most; no term: of all blocks. As hooks measured them,
        or by the closed form where a run has none."""
        most = max(self.run.saved, key=lambda one: one.saved_bytes, default=None)
        if most is None:
            sizes = terms_of(self.context or self.shape, self.layers)
        else:
            sizes = {(one.term, one.layer): one.bytes for one in most.terms}
        if terms:
            return sum(sizes.get((term, None), 0) for term in terms)
        return sum(size for (_, layer), size in sizes.items() if layer is not None)

    def freed(self, **options: str) -> int:
        """What the closed form says that other options would free."""
        shape, other = self.shape, replace(self.shape, **options)
        if self.context is not None:
            shape, other = self.context, replace(self.context, local=other)
        return whole(terms_of(shape, self.layers)) - whole(terms_of(other, self.layers))

    def attention_again(self, recompute: str) -> list[Transfer]:
        """What attention of all layers sends once more in a step where its forward is run again."""
        if self.context is None:
            return []
        again = attention_transfers(self.context).again(recompute)
        return list(again) * self.layers * self.shape.num_microbatches

    def schedule_bytes(self, mode: str, save: str | None, comm: str | None) -> int:
        """Bytes that one rank sends in forward and backward of a step."""
        schedule = model_schedule(
            mode,
            comm=comm,
            save=save,
            projections=self.shape.projections,
            layers=self.layers,
            activation_bytes=self.shape.activation_bytes,
        )
        return int(schedule.wire_bytes(self.shape.ranks) * self.shape.num_microbatches)

    def of_blocks(self, save: str | None, comm: str | None) -> tuple[list[Expected], list[Expected]]:
        """Collectives of all blocks in a step, forward and backward."""
        schedule = block_schedule(
            self.shape.mode,
            comm=comm,
            save=save,
            projections=self.shape.projections,
            activation_bytes=self.shape.activation_bytes,
        )
        times = self.layers * self.shape.num_microbatches
        return list(schedule.forward) * times, list(schedule.backward) * times

    def opportunity(
        self, kind: str, kept: int, freed: int, how: str, sends: int, takes: Takes
    ) -> Opportunity:
        return Opportunity(
            kind=kind,
            bytes=kept,
            layers=self.layers,
            freed_bytes=freed,
            how=how,
            added_comm_bytes=sends,
            added_comm_ns=takes.comm_ns,
            hideable_ns=takes.hideable_ns,
            would_be_exposed_ns=takes.exposed_ns,
        )


def _gathered_input(known: _Known) -> Opportunity | None:
    """SP basic: each column linear keeps the input that it gathered. Keeping the shard frees (5 - 2/T) F a
    block (separate projections) and gathers each input again, under the dgrad GEMM of its linear."""
    shape = known.shape
    if shape.mode != "sp" or shape.save != "full" or shape.recompute == "full":
        return None
    _, backward = known.of_blocks("shard", "async")
    again = [one for one in backward if one.purpose == "input-regather"]
    takes = known.measured.under_dgrad([(one.op, one.bytes) for one in again])
    how = "--save shard" if known.comm == "async" else "--save shard --comm async"
    return known.opportunity(
        "gathered-input",
        known.kept("column-input"),
        known.freed(save="shard"),
        how,
        int(sum_wire_bytes(again, shape.ranks)),
        takes,
    )


def _attention_core(known: _Known) -> Opportunity | None:
    """Selective recompute (Korthikanti et al. 2022): the attention core once more. That communicates only
    where ranks divide the sequence."""
    if known.shape.recompute != "none":
        return None
    kept = known.kept("attention")
    freed = known.freed(recompute="selective")
    again = known.attention_again("selective")
    takes = known.measured.alone([(one.op, one.bytes) for one in again])
    if again and known.comm == "async":
        takes = replace(takes, hideable_ns=None, exposed_ns=None)  # attention hides part of them again
    sends = int(sent_bytes(again))
    return known.opportunity("attention-core", kept, freed, "--recompute selective", sends, takes)


def _attention_scores(known: _Known) -> Opportunity | None:
    """Ring self-attention keeps whole rows of scores. Ring attention keeps one number a row, and sends its
    gradients of keys and values in fp32 from rank to rank."""
    context = known.context
    if context is None or context.scheme != "rsa" or known.shape.recompute != "none":
        return None
    ring = replace(context, scheme="ring")
    freed = whole(terms_of(context, known.layers)) - whole(terms_of(ring, known.layers))
    there, here = (attention_transfers(one) for one in (ring, context))
    more = sent_bytes(there.forward + there.backward) - sent_bytes(here.forward + here.backward)
    sends = int(more * known.layers * known.shape.num_microbatches)
    takes = known.measured.unknown() if sends > 0 else Takes(0, 0, 0)
    return known.opportunity(
        "attention-scores", known.kept("attention"), freed, "mode ring in place of rsa", max(sends, 0), takes
    )


def _block_activations(known: _Known) -> Opportunity | None:
    """Full recompute: every block keeps its input alone and runs its forward, collectives and all, again.

    These are waited for where they are launched, as in forward: nothing hides them, but attention those of a
    ring that is asynchronous.
    """
    if known.shape.recompute == "full":
        return None
    forward, _ = known.of_blocks(known.shape.save, known.comm)
    again = known.attention_again("full")
    sends = int(sum_wire_bytes(forward, known.shape.parts) + sent_bytes(again))
    takes = known.measured.alone([(one.op, one.bytes) for one in (*forward, *again)])
    if again and known.comm == "async":
        takes = replace(takes, hideable_ns=None, exposed_ns=None)
    freed = known.freed(recompute="full")
    return known.opportunity("block-activations", known.kept(), freed, "--recompute full", sends, takes)


def _norm_input(known: _Known) -> Opportunity | None:
    """An eager norm keeps its input in fp32 and the normalised one; a fused one only its input."""
    if known.shape.norm != "eager":
        return None
    freed = known.freed(norm="fused")
    return known.opportunity("norm-input", known.kept("norm"), freed, "--norm fused", 0, Takes(0, 0, 0))


def _replicated(known: _Known) -> Opportunity | None:
    """TP: every rank keeps all tokens of norms and column inputs. SP with recompute divides them."""
    shape = known.shape
    if shape.mode != "tp" or shape.ranks < 2 or shape.recompute == "full":
        return None
    norms = norm_gradient_bytes(layers=known.layers, hidden=shape.hidden, element_bytes=shape.element_bytes)
    sends = known.schedule_bytes("sp", "shard", "async") - known.schedule_bytes("tp", None, known.comm)
    sends += int(wire_bytes("all_reduce", norms, shape.ranks))  # summed once a step
    return known.opportunity(
        "replicated-activations",
        known.kept("norm", "column-input"),
        known.freed(mode="sp", save="shard"),
        f"{'mode sp' if known.context is None else '--inside sp'} with --save shard --comm async",
        sends,
        known.measured.unknown() if sends else Takes(0, 0, 0),
    )


_LOOKS: tuple[Callable[[_Known], Opportunity | None], ...] = (
    _gathered_input,
    _block_activations,
    _replicated,
    _norm_input,
    _attention_core,
    _attention_scores,
)
_ALONE = (_attention_core, _attention_scores)
"""Of attention without the model around it."""
