"""What crosses from forward into backward: the memory that a training step keeps to differentiate."""

from __future__ import annotations

import numpy as np

from sp_profiler.analysis.memory.blocks import NO_MODULE, NO_OPERATOR, Blocks
from sp_profiler.analysis.memory.results import BorderFigures
from sp_profiler.classify.tables import Phase
from sp_profiler.trace.tables import NONE, Int32, Int64


def kept_for_backward(blocks: Blocks) -> Int64:
    """Rows of blocks that were not born in backward and are freed in one."""
    return np.flatnonzero((blocks.phase != Phase.BACKWARD) & (blocks.freed_phase == Phase.BACKWARD))


def border_figures(blocks: Blocks, borders_ns: Int64, positions: Int64, steps: Int32) -> list[BorderFigures]:
    """What is alive at each border and freed in backward.

    `borders_ns`: where backward begins after forward; `positions`: the first event from there on (sorted);
    `steps`: the profiled step of each, NONE outside.
    """
    kept = kept_for_backward(blocks)
    low = np.searchsorted(positions, blocks.birth[kept], side="right")
    high = np.searchsorted(positions, blocks.death[kept], side="right")
    crossed = np.maximum(high - low, 0)
    # One entry per block and border that it crosses: most blocks cross one.
    row = np.repeat(kept, crossed)
    within = np.arange(len(row)) - np.repeat(np.cumsum(crossed) - crossed, crossed)
    border = np.repeat(low, crossed) + within
    order = np.argsort(border, kind="stable")
    row, bounds = row[order], np.searchsorted(border[order], np.arange(len(positions) + 1))
    return [
        _figures(blocks, row[bounds[i] : bounds[i + 1]], int(borders_ns[i]), int(steps[i]))
        for i in range(len(positions))
    ]


def _figures(blocks: Blocks, rows: Int64, border_ns: int, step: int) -> BorderFigures:
    return BorderFigures(
        step=None if step == NONE else step,
        border_ns=border_ns,
        bytes=int(blocks.bytes[rows].sum()),
        blocks=len(rows),
        by_module=blocks.sums(blocks.module, rows, NO_MODULE),
        by_layer=blocks.sums_by_layer(rows),
        by_category=blocks.sums_by_category(rows),
        by_operator=blocks.sums(blocks.made_by, rows, NO_OPERATOR),
        by_layer_category=blocks.sums_by_layer_and_category(rows),
    )
