"""Memory of a drawn training step: blocks by arithmetic alone, and the figures counted from them.

Nothing here uses the analyses. One step of a model of `layers` blocks, per layer in forward: the norm's
copy, the inputs of two column linears (sp with save=full: gathered, born in an all-gather), the MLP's
product; freed in backward in reverse order, when each layer's gradients are made. Sizes are in F.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from report_helpers import MS, T0

from sp_profiler.analysis.memory.results import (
    BorderFigures,
    Memory,
    MemoryBlock,
    MemoryCurve,
    MemoryFigures,
    PhaseStretch,
    SavedTensors,
    SavedTerm,
    Unpaired,
)
from sp_profiler.report.memory import assemble

F = 6 * 1024 * 1024
"""Bytes of one activation of the whole sequence."""
PARAMETERS = 20 * F
LINEARS = ("attention.q", "attention.k", "attention.v", "mlp.gate", "mlp.up")


def make_blocks(
    mode: str = "sp", save: str | None = "full", layers: int = 2, name: str | None = None
) -> list[MemoryBlock]:
    """The blocks of step 1, in the order of their birth; `name` is operator and module of all of them."""
    blocks: list[MemoryBlock] = []
    parts = 2
    end = (4 * layers + 2) * MS

    def add(size: int, category: str, what: str, layer: int, born: int, freed: int | None, by: str) -> None:
        blocks.append(
            MemoryBlock(
                bytes=size,
                category=category,
                birth_ns=T0 + born,
                death_ns=None if freed is None else T0 + freed,
                lifetime_ns=None if freed is None else freed - born,
                address=2**63 + 4096 * len(blocks),
                operator=name or by,
                stack=["ProfilerStep#1", name or f"layers.{layer}.{what}"],
                phase="forward" if born < 2 * layers * MS else "backward",
                step=1,
                module=name or f"layers.{layer}.{what}",
                layer=layer,
                freed_by=name or "MmBackward0",
                freed_phase=None if freed is None else "backward",
                crosses_border=born < 2 * layers * MS and freed is not None and freed > 2 * layers * MS,
                made_by=name or by,
            )
        )

    for layer in range(layers):
        born, freed = 2 * layer * MS, end - (2 * layer + 1) * MS
        add(4 * F // (parts if mode == "sp" else 1), "activation", "norm", layer, born, freed, "aten::pow")
        for place, linear in enumerate(LINEARS if mode == "sp" and save == "full" else ()):
            at = born + (place + 1) * MS // 8
            add(F, "communication", linear, layer, at, freed, "c10d::_allgather_base_")
        if not (mode == "sp" and save == "full"):
            size = F // parts if mode == "sp" else F
            add(size, "activation", "attention.q", layer, born + MS // 8, freed, "aten::mul")
            add(size, "activation", "mlp.gate", layer, born + MS // 2, freed, "aten::mul")
        add(3 * F, "activation", "mlp", layer, born + MS, freed, "aten::silu")
        add(F, "temporary", "mlp", layer, born + MS, born + MS + MS // 4, "aten::mm")
    for layer in reversed(range(layers)):
        born = end - (2 * layer + 2) * MS
        add(4 * F, "gradient", "mlp.down", layer, born, None, "aten::mm")
    return blocks


def figures_of(
    blocks: Sequence[MemoryBlock], *, rank: int | None = 0, layers: int = 2, device_type: str = "cuda"
) -> MemoryFigures:
    """What the blocks are on one device, with parameters that were there before."""
    border_ns = T0 + 2 * layers * MS
    crossing = [block for block in blocks if block.crosses_border]
    times = sorted({t for b in blocks for t in (b.birth_ns, b.death_ns) if t is not None})
    live = {
        category: [sum(b.bytes for b in blocks if b.category == category and _alive(b, t)) for t in times]
        for category in dict.fromkeys(block.category for block in blocks)
    }
    live = {"parameter-optimizer": [PARAMETERS] * len(times)} | live
    totals = [sum(part[place] for part in live.values()) for place in range(len(times))]
    at = totals.index(max(totals))
    border = BorderFigures(
        step=1,
        border_ns=border_ns,
        bytes=sum(b.bytes for b in crossing),
        blocks=len(crossing),
        by_module=_sums(crossing, "module"),
        by_layer=_sums(crossing, "layer"),
        by_category=_sums(crossing, "category"),
        by_operator=_sums(crossing, "made_by"),
        by_layer_category={
            str(layer): _sums([b for b in crossing if b.layer == layer], "category")
            for layer in range(layers)
        },
    )
    alive = sorted((b for b in blocks if _alive(b, times[at])), key=lambda b: -b.bytes)
    return MemoryFigures(
        source="events",
        rank=rank,
        device_type=device_type,
        device=0 if device_type == "cuda" else None,
        file=f"rank-{rank}.json",
        events=2 * len(blocks),
        peak_bytes=totals[at],
        peak_ns=times[at],
        peak_step=1,
        peak_phase="forward" if times[at] < border_ns else "backward",
        peak_reserved_bytes=totals[at] + 2 * F if device_type == "cuda" else None,
        peak_by_category={key: part[at] for key, part in live.items() if part[at]},
        peak_by_operator=_sums(alive, "made_by"),
        peak_by_module=_sums(alive, "module"),
        peak_blocks=alive[:50],
        start_bytes=PARAMETERS,
        end_bytes=totals[-1],
        across_border_bytes=border.bytes,
        across_border_by_module=border.by_module,
        across_border_by_layer=border.by_layer,
        borders=[border],
        blocks_count=len(blocks) + 1,
        blocks=sorted(blocks, key=lambda b: -b.bytes),
        unpaired_count=1,
        unpaired=[Unpaired("alive-at-end", PARAMETERS, 4096, None)],
        totals_checked=2 * len(blocks),
        totals_disagree=0,
        curve=MemoryCurve(
            times,
            totals,
            live,
            [
                PhaseStretch("forward", 1, times[0], border_ns),
                PhaseStretch("backward", 1, border_ns, times[-1]),
            ],
        ),
    )


def _alive(block: MemoryBlock, time_ns: int) -> bool:
    assert block.birth_ns is not None
    return block.birth_ns <= time_ns and (block.death_ns is None or time_ns < block.death_ns)


def _sums(blocks: Sequence[MemoryBlock], field: str) -> dict[str, int]:
    out: dict[str, int] = {}
    for block in blocks:
        key = str(getattr(block, field))
        out[key] = out.get(key, 0) + block.bytes
    return out


def saved_of(rank: int = 0, difference: int = 0) -> SavedTensors:
    """Saved tensors of one rank: as the closed form says, but for `difference` bytes of norms."""
    terms = [
        SavedTerm("norm", None, 8 * F + difference, 8 * F, 6),
        SavedTerm("column-input", None, 10 * F, 10 * F, 10),
        SavedTerm("column-input", 0, 5 * F, 5 * F, 5),
        SavedTerm("column-input", 1, 5 * F, 5 * F, 5),
        SavedTerm("mlp", None, 6 * F, 6 * F, 6),
    ]
    return SavedTensors(
        rank=rank,
        saved_bytes=24 * F + difference,
        theory_bytes=24 * F,
        terms=terms,
        by_module={"layers.0": 12 * F, "layers.1": 12 * F + difference},
        by_layer={"0": 12 * F, "1": 12 * F + difference},
        by_operator={"MulBackward0": 24 * F + difference},
        hidden_bytes=0,
        peak_bytes=60 * F,
    )


def make_memory(
    mode: str = "sp", save: str | None = "full", layers: int = 2, ranks: int = 2, **more: Any
) -> Memory:
    """The memory section of a run: equal blocks on all ranks, rank 1 with one more."""
    name = more.pop("name", None)
    device_type = more.pop("device_type", "cuda")
    figures = []
    for rank in range(ranks):
        blocks = make_blocks(mode, save, layers, name)
        figures.append(figures_of(blocks, rank=rank, layers=layers, device_type=device_type))
    memory = assemble(figures, **more)
    assert memory is not None
    return memory
