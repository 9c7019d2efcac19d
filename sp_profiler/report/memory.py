"""The memory section of a report, assembled from every rank's figures.

The same for the report of a run (`of_run`) and for snapshots (`assemble` alone).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sp_profiler import __version__
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.memory.closed_form import context_shape_of, shape_of, terms_of
from sp_profiler.analysis.memory.kept import keeps_most
from sp_profiler.analysis.memory.opportunities import Run, opportunities
from sp_profiler.analysis.memory.results import (
    SHOWN_BLOCKS,
    Memory,
    MemoryFigures,
    Opportunity,
    SavedTensors,
)
from sp_profiler.analysis.results import CollectiveFigures, GemmFigures
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.json import to_plain
from sp_profiler.report.memory_saved import saved_tensors

NOT_RECORDED = (
    "Memory was not recorded: there are no [memory] events. Record them with profile_memory=True "
    "(sp_profiler.capture and sp-profile run do), or give sp-profile memory a CUDA memory snapshot"
)
"""How to get a memory section: every format says it."""
EMPTY_SNAPSHOT = (
    "The snapshot tells of no memory: it holds neither segments nor a history. Take it in the process that "
    "uses the GPU, after torch.cuda.memory._record_memory_history()"
)


def why_none(ledger: Iterable[LedgerEntry]) -> str:
    """Why there is no memory section, and how to get one."""
    codes = {entry.code for entry in ledger}
    return EMPTY_SNAPSHOT if "snapshot-empty" in codes and "no-memory-events" not in codes else NOT_RECORDED


def assemble(
    figures: Iterable[MemoryFigures],
    *,
    saved: Sequence[SavedTensors] = (),
    opportunities: Sequence[Opportunity] = (),
) -> Memory | None:
    """The memory of all devices of all ranks; None when nobody could look at any.

    `figures`: one per rank and device, in any order; `saved`: one per rank, of a run that measured them.
    """
    ranks = sorted(figures, key=_order)
    if not ranks and not saved:
        return None
    top = _leading(ranks)
    most = max(saved, key=lambda one: one.saved_bytes, default=None)
    whole = Memory(
        source="hooks",
        rank=None,
        device=None,
        peak_bytes=None,
        peak_ns=None,
        is_relative=False,
        peak_by_category=None,
        peak_blocks=[],
        across_border_bytes=None,
        across_border_by_module=None,
        saved_bytes=None if most is None else most.saved_bytes,
        theory_bytes=None if most is None else most.theory_bytes,
        blocks=None,
        unpaired=None,
        ranks=ranks,
        saved=list(saved),
        opportunities=list(opportunities),
    )
    if top is None:
        return whole if most is None else replace(whole, rank=most.rank)
    return replace(
        whole,
        source=top.source,
        rank=top.rank,
        device=top.device,
        peak_bytes=top.peak_bytes,
        peak_ns=top.peak_ns,
        is_relative=top.is_relative,
        peak_by_category=top.peak_by_category,
        peak_blocks=top.peak_blocks,
        across_border_bytes=top.across_border_bytes,
        across_border_by_module=top.across_border_by_module,
        blocks=top.blocks,
        unpaired=top.unpaired,
    )


def listed_within(
    figures: Sequence[MemoryFigures], most: int = SHOWN_BLOCKS
) -> tuple[list[MemoryFigures], list[LedgerEntry]]:
    """The figures with so few blocks listed that a report of many ranks can still be opened.

    The devices that lead the report (`_leading`, `keeps_most`) list all they have. The others share `most`
    blocks: each lists its largest; what one does not use, others may. The entry counts those in no list.
    """
    whole = [one for one in (_leading(figures), keeps_most(figures)) if one is not None]
    others = [one for one in figures if one.blocks and not any(one is other for other in whole)]
    allowed: dict[int, int] = {}
    left = most
    for place, one in enumerate(sorted(others, key=lambda one: len(one.blocks or ()))):
        allowed[id(one)] = min(len(one.blocks or ()), left // (len(others) - place))
        left -= allowed[id(one)]
    found = [_with_largest(one, allowed[id(one)]) if id(one) in allowed else one for one in figures]
    unlisted = [(one.blocks_count or 0) - len(one.blocks) for one in found if one.blocks is not None]
    missing = sum(max(0, count) for count in unlisted)
    if not missing:
        return found, []
    text = (
        "blocks of memory are in no list, each smaller than its device's listed ones: the figures count them"
    )
    return found, [LedgerEntry("memory-blocks-not-listed", "note", text, count=missing)]


def _with_largest(one: MemoryFigures, count: int) -> MemoryFigures:
    """With `count` blocks listed, in their order."""
    blocks = one.blocks or []
    if len(blocks) <= count:
        return one
    kept = sorted(sorted(range(len(blocks)), key=lambda row: -blocks[row].bytes)[:count])
    return replace(one, blocks=[blocks[row] for row in kept])


def _order(one: MemoryFigures) -> tuple[bool, int, bool, int, str]:
    """By rank, GPUs before the CPU, then by device."""
    return (one.rank is None, one.rank or 0, one.device_type == "cpu", one.device or 0, one.file)


def _leading(ranks: Sequence[MemoryFigures]) -> MemoryFigures | None:
    """The device with the highest peak, of a GPU where there is any; the first of several."""
    devices = [one for one in ranks if one.device_type != "cpu"] or ranks
    return max(devices, key=lambda one: -1 if one.peak_bytes is None else one.peak_bytes, default=None)


def leading(memory: Memory) -> MemoryFigures | None:
    """The device that the figures on top of `memory` are of; None where only hooks were at work."""
    return _leading(memory.ranks)


def memory_json(memory: Memory | None, name: str, *, ledger: Sequence[LedgerEntry] = ()) -> str:
    """The memory section alone as JSON text (`sp-profile memory`)."""
    document: dict[str, Any] = {
        "schema": "sp-profile/memory",
        "schema_version": 1,
        "tool": {"name": "sp-profiler", "version": __version__},
        "name": name,
        "memory": to_plain(memory),
        "data_quality": to_plain(list(ledger)),
    }
    members = [f"{json.dumps(key)}: {_dumps(value)}" for key, value in document.items()]
    return "{\n" + ",\n".join(members) + "\n}\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True)
class Kept:
    """The memory section of a run's report, and what its ledger says about it."""

    memory: Memory | None
    ledger: list[LedgerEntry]


def of_run(
    figures: Sequence[MemoryFigures],
    run_json: Mapping[str, Any] | None,
    collectives: Sequence[CollectiveFigures],
    gemms: Sequence[GemmFigures],
    windows: int,
    *,
    is_cpu: bool,
) -> Kept:
    """All ranks' figures with the saved tensors of run.json, their closed form, and the opportunities.

    `windows`: number of (rank, device, step).
    """
    told = (run_json or {}).get("workload")
    workload = told if isinstance(told, dict) else None
    shape = shape_of(workload) or context_shape_of(workload)
    theory = None if shape is None or workload is None else terms_of(shape, workload["layers"])
    saved, entries = saved_tensors(run_json, theory)
    if not figures and not saved:
        return Kept(None, entries)
    found, notes = opportunities(Run(figures, saved, workload, collectives, gemms, windows, is_cpu))
    ranks, left_out = listed_within(figures)
    memory = assemble(ranks, saved=saved, opportunities=found)
    if memory is not None:
        memory = replace(memory, gathered_input_bytes=_gathered(collectives))
    return Kept(memory, [*entries, *notes, *left_out])


def _gathered(collectives: Iterable[CollectiveFigures]) -> list[int]:
    """The sizes of what forward gathers for its linears."""
    kinds, _ = Collectives.of(collectives).kinds("op", "purpose", "bytes")
    return sorted(
        size for op, purpose, size in kinds if (op, purpose) == ("all_gather", "activation") and size
    )
