"""Opportunities of any training, from the blocks that cross the border: bounds that hold without its code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.memory.kept import keeps_most, kept_blocks, top_border
from sp_profiler.analysis.memory.results import MemoryBlock, MemoryFigures, Opportunity
from sp_profiler.analysis.memory.takes import Measured, Takes
from sp_profiler.analysis.results import CollectiveFigures, GemmFigures
from sp_profiler.theory.communication import WIRE_FACTORS, wire_bytes

ROUNDED = 512
"""CUDA's allocator rounds requests up to a multiple of this."""
_ANY = "(any module)"
_SOFTMAX = re.compile(r"(?<!log_)softmax", re.IGNORECASE)
_SCORES = re.compile(r"(?<!log_)softmax|dropout", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)

_REGATHER = "keep the shard and gather the input again in backward, as Megatron-LM's sequence parallel does"
_RESHARD = "free them after forward and gather them again in backward (FSDP: reshard_after_forward=True)"
_FUSED_ATTENTION = "a fused attention kernel, or selective recomputation of the attention core"
_CHECKPOINT = "activation checkpointing of whole layers"


def from_blocks(
    figures: Sequence[MemoryFigures],
    collectives: Sequence[CollectiveFigures],
    gemms: Sequence[GemmFigures],
    measured: Measured,
) -> list[Opportunity]:
    """Of the device that keeps most for backward. `freed_bytes` is what would be freed at least."""
    most = keeps_most(figures)
    border = None if most is None else top_border(most)
    if most is None or border is None:
        return []
    crossing = kept_blocks(most, border)
    forward = list(_of_forward(Collectives.of(collectives), most.rank, border.step))
    found = _gathered(crossing, forward, measured)
    found += _scores(crossing)
    if not any(gemm.role == "recompute" for gemm in gemms):
        found += _whole_layers(crossing, forward, measured)
    return found


def _of_forward(collectives: Collectives, rank: int | None, step: int | None) -> Collectives:
    """The collectives of one rank in the forward of one step."""
    chosen = collectives.words("phase").where(lambda phase: phase == "forward")
    for name, value in (("rank", rank), ("step", step)):
        column = collectives.numbers(name)
        chosen &= ~column.is_known if value is None else column.is_known & (column.or_zero() == value)
    return collectives.take(chosen)


@dataclass(frozen=True)
class _Gather:
    """A kept block and the all-gather that filled it."""

    block: MemoryBlock
    by: CollectiveFigures
    bytes: int  # of the gathered tensor

    @property
    def freed(self) -> int:
        """All but the shard: it is counted as kept for each gather, though several may share one."""
        return self.block.bytes - -(-self.block.bytes // len(self.by.ranks))

    @property
    def sends(self) -> Fraction:
        return wire_bytes("all_gather", self.bytes, len(self.by.ranks))


def _gathered(
    crossing: Sequence[MemoryBlock], forward: Sequence[CollectiveFigures], measured: Measured
) -> list[Opportunity]:
    """Communication blocks that have the size of an all-gather of this step's forward."""
    by_place: dict[tuple[int, str | None], CollectiveFigures] = {}
    for one in forward:
        if one.op == "all_gather" and one.bytes and len(one.ranks) > 1:
            by_place.setdefault((one.bytes, one.module), one)
            by_place.setdefault((one.bytes, _ANY), one)
    sizes = {size for size, _ in by_place}
    pairs = [
        _Gather(block, by, by.bytes or 0)
        for block in crossing
        if block.category == "communication" and (by := _filler(block, sizes, by_place)) is not None
    ]
    parameters = [pair for pair in pairs if pair.by.purpose == "param-gather"]
    inputs = [pair for pair in pairs if pair.by.purpose != "param-gather"]
    takes = measured.under_dgrad([("all_gather", pair.bytes) for pair in inputs])
    found = [_of_gathers("gathered-input", inputs, _REGATHER, takes)] if inputs else []
    if parameters:
        again = measured.alone([("all_gather", pair.bytes) for pair in parameters])
        takes = Takes(again.comm_ns, None, None)  # what is gathered ahead may hide under any layer
        found.append(_of_gathers("gathered-parameters", parameters, _RESHARD, takes))
    return found


def _filler(
    block: MemoryBlock, sizes: set[int], by_place: Mapping[tuple[int, str | None], CollectiveFigures]
) -> CollectiveFigures | None:
    """The all-gather of the block's size in its module; in any where one of the two names none."""
    for size in sizes:
        if size <= block.bytes < size + ROUNDED:
            places = (_ANY,) if block.module is None else (block.module, None)
            return next((by_place[size, place] for place in places if (size, place) in by_place), None)
    return None


def _of_gathers(kind: str, pairs: Sequence[_Gather], how: str, takes: Takes) -> Opportunity:
    return Opportunity(
        kind=kind,
        bytes=sum(pair.block.bytes for pair in pairs),
        layers=_layers([pair.block for pair in pairs]),
        freed_bytes=sum(pair.freed for pair in pairs),
        how=how,
        added_comm_bytes=int(sum((pair.sends for pair in pairs), Fraction(0))),
        added_comm_ns=takes.comm_ns,
        hideable_ns=takes.hideable_ns,
        would_be_exposed_ns=takes.exposed_ns,
    )


def _layers(blocks: Sequence[MemoryBlock]) -> int:
    """How many layers the blocks belong to; where none is named each module counts, at least one."""
    layers = {block.layer for block in blocks if block.layer is not None}
    return len(layers) or len({block.module for block in blocks}) or 1


def _scores(crossing: Sequence[MemoryBlock]) -> list[Opportunity]:
    """Attention scores that are stored: softmax and dropout inside a module of attention."""
    inside = [block for block in crossing if _ATTENTION.search(_where(block))]
    if not any(_SOFTMAX.search(_maker(block)) for block in inside):
        return []
    scores = [block for block in inside if _SCORES.search(_maker(block))]
    size = sum(block.bytes for block in scores)
    return [Opportunity("attention-core", size, _layers(scores), size, _FUSED_ATTENTION, 0, 0, 0, 0)]


def _where(block: MemoryBlock) -> str:
    return " ".join((block.module or "", *block.stack))


def _maker(block: MemoryBlock) -> str:
    return block.made_by or block.operator or ""


def _whole_layers(
    crossing: Sequence[MemoryBlock], forward: Sequence[CollectiveFigures], measured: Measured
) -> list[Opportunity]:
    """What layers keep, less the largest block of each: their inputs, which stay, are no larger."""
    by_layer: dict[int, list[int]] = {}
    for block in crossing:
        if block.layer is not None:
            by_layer.setdefault(block.layer, []).append(block.bytes)
    if not by_layer:
        return []
    freed = sum(sum(sizes) - max(sizes) for sizes in by_layer.values())
    again = [c for c in forward if c.layer is not None]
    takes = measured.alone([(c.op or "", c.bytes or 0) for c in again])
    if not all(c.is_async is False for c in again):
        takes = Takes(takes.comm_ns, None, None)
    kept = sum(sum(sizes) for sizes in by_layer.values())
    return [
        Opportunity(
            "block-activations", kept, len(by_layer), freed, _CHECKPOINT, _sends(again),
            takes.comm_ns, takes.hideable_ns, takes.exposed_ns,
        )
    ]  # fmt: skip


def _sends(collectives: Sequence[CollectiveFigures]) -> int | None:
    """What one rank sends for these; None where a size, a group or a ring's factor is not known."""
    if any(c.op not in WIRE_FACTORS or c.bytes is None or not c.ranks for c in collectives):
        return None
    parts = (wire_bytes(c.op or "", c.bytes or 0, len(c.ranks)) for c in collectives)
    return int(sum(parts, Fraction(0)))
