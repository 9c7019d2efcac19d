"""From blocks and a timeline to the figures of one device: for traces and snapshots alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sp_profiler.analysis.memory.blocks import BEFORE, Blocks, Timeline, phase_name
from sp_profiler.analysis.memory.border import border_figures
from sp_profiler.analysis.memory.composition import Composition, drawn_curve, peak_position
from sp_profiler.analysis.memory.results import (
    SHOWN_BLOCKS,
    BorderFigures,
    MemoryFigures,
    OutOfMemory,
    Source,
    Unpaired,
)
from sp_profiler.trace.tables import NONE, Int32, Int64

PEAK_BLOCKS = 50
"""How many of the blocks alive at the peak are named."""


@dataclass(frozen=True)
class About:
    """What is known of a device beside its events."""

    source: Source
    rank: int | None
    device_type: str
    device: int | None
    file: str
    events: int
    totals_checked: int | None = None
    totals_disagree: int | None = None
    unpaired_count: int | None = None
    unpaired: list[Unpaired] | None = None
    out_of_memory: Sequence[OutOfMemory] = ()


@dataclass(frozen=True)
class Borders:
    """Where backward begins after forward: times, positions of the first event from there on, and steps."""

    time_ns: Int64
    position: Int64
    step: Int32  # NONE outside of steps


NO_BORDERS = Borders(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int32))


def device_figures(
    about: About, timeline: Timeline, blocks: Blocks | None, borders: Borders, unseen_category: int
) -> MemoryFigures:
    """All figures of one device.

    `blocks` is None where nothing tells which free belongs to which allocation. `unseen_category`: what the
    bytes count as that were allocated before the first event and never freed.
    """
    composition = Composition(timeline, blocks, unseen_category) if blocks is not None else None
    start = timeline.start_bytes
    before = composition.total_after(BEFORE) if composition is not None else start or 0
    peak = peak_position(timeline, before)
    shown = max(peak, 0)
    some = len(timeline) > 0
    figures = MemoryFigures(
        source=about.source,
        rank=about.rank,
        device_type=about.device_type,
        device=about.device,
        file=about.file,
        events=about.events,
        peak_bytes=(before if peak == BEFORE else int(timeline.total[peak])) if some else None,
        peak_ns=int(timeline.time_ns[shown]) if some else None,
        is_relative=timeline.is_relative,
        peak_step=_number(timeline.step[shown]) if some else None,
        peak_phase=phase_name(timeline.phase[shown]) if some else None,
        peak_reserved_bytes=_reserved(timeline),
        start_bytes=start,
        end_bytes=int(timeline.total[-1]) if some else start,
        unpaired_count=about.unpaired_count,
        unpaired=about.unpaired,
        totals_checked=about.totals_checked,
        totals_disagree=about.totals_disagree,
        curve=drawn_curve(timeline, composition),
        out_of_memory=list(about.out_of_memory),
    )
    return figures if composition is None else _with_blocks(figures, composition, borders, peak)


def _with_blocks(
    figures: MemoryFigures, composition: Composition, borders: Borders, peak: int
) -> MemoryFigures:
    blocks = composition.blocks
    crossing = border_figures(blocks, borders.time_ns, borders.position, borders.step)
    most = _with_most(crossing)
    everything = np.arange(len(blocks), dtype=np.int64)
    return replace(
        figures,
        peak_by_category=composition.by_category(peak),
        peak_by_operator=composition.by_operator(peak),
        peak_by_module=composition.by_module(peak),
        peak_blocks=blocks.shown(blocks.largest(blocks.alive_after(peak), PEAK_BLOCKS)),
        across_border_bytes=most.bytes if most else None,
        across_border_by_module=most.by_module if most else None,
        across_border_by_layer=most.by_layer if most else None,
        borders=crossing,
        blocks_count=len(blocks),
        blocks=blocks.shown(blocks.largest(everything, SHOWN_BLOCKS)),
    )


def _with_most(borders: Sequence[BorderFigures]) -> BorderFigures | None:
    return max(borders, key=lambda border: border.bytes, default=None)


def _reserved(timeline: Timeline) -> int | None:
    if timeline.reserved is None or len(timeline) == 0 or (timeline.reserved <= 0).all():
        return None
    return int(timeline.reserved.max())


def _number(value: int) -> int | None:
    return None if value == NONE else int(value)
