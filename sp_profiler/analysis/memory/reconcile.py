"""The trace's blocks against the hooks' saved tensors: every byte that only one of them counts, named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sp_profiler.analysis.memory.from_blocks import ROUNDED
from sp_profiler.analysis.memory.kept import kept_blocks, top_border
from sp_profiler.analysis.memory.results import MemoryFigures, SavedTensors


@dataclass(frozen=True)
class Difference:
    """Equal blocks that one side counts alone; of `rounding` the bytes that the allocator added."""

    seen_by: str  # trace | hooks | rounding
    operator: str | None
    module: str | None
    bytes: int
    count: int


@dataclass(frozen=True)
class _Item:
    bytes: int
    operator: str | None
    module: str | None


@dataclass(frozen=True)
class _Left:
    """What a walk could not pair, and the bytes that the allocator added to the blocks it paired."""

    in_trace: list[_Item]
    in_hooks: list[_Item]
    rounded: list[int]


def differences(one: MemoryFigures, saved: SavedTensors) -> list[Difference]:
    """What the border with most counts and the hooks do not, and the other way round, largest first.

    `trace` and `rounding` bytes less those of `hooks` are the border's bytes less `saved_bytes`. Pairs are
    made by size, first within a module and then across modules: a block is a tensor's when it has its
    bytes, on a GPU rounded up by the allocator. Empty where the border's blocks are not all listed, or the
    hooks' parts are not told.
    """
    border = top_border(one)
    blocks = [] if border is None else kept_blocks(one, border)
    if border is None or len(blocks) != border.blocks or not saved.parts:
        return []
    in_trace = [_Item(b.bytes, b.made_by or b.operator, b.module) for b in blocks]
    in_hooks = [
        _Item(part.bytes // part.count, part.operator, part.module)
        for part in saved.parts
        for _ in range(part.count)
    ]
    tolerance = 1 if one.device_type == "cpu" else ROUNDED
    by_module = [
        _walk(
            [item for item in in_trace if item.module == module],
            [item for item in in_hooks if item.module == module],
            tolerance,
        )
        for module in dict.fromkeys(item.module for item in (*in_trace, *in_hooks))
    ]
    rest = _walk(
        [item for left in by_module for item in left.in_trace],
        [item for left in by_module for item in left.in_hooks],
        tolerance,
    )
    rounded = [added for left in (*by_module, rest) for added in left.rounded]
    found = [*_together("trace", rest.in_trace), *_together("hooks", rest.in_hooks)]
    found += [Difference("rounding", None, None, sum(rounded), len(rounded))] if rounded else []
    return sorted(found, key=lambda one: -one.bytes)


def _walk(in_trace: Iterable[_Item], in_hooks: Iterable[_Item], tolerance: int) -> _Left:
    """Along both sides at once, largest first."""
    blocks = sorted(in_trace, key=lambda item: item.bytes)
    tensors = sorted(in_hooks, key=lambda item: item.bytes)
    left = _Left([], [], [])
    while blocks and tensors:
        added = blocks[-1].bytes - tensors[-1].bytes
        if 0 <= added < tolerance:
            blocks.pop()
            tensors.pop()
            left.rounded.extend([added] if added else [])
        elif added > 0:
            left.in_trace.append(blocks.pop())
        else:
            left.in_hooks.append(tensors.pop())
    return _Left([*left.in_trace, *blocks], [*left.in_hooks, *tensors], left.rounded)


def _together(seen_by: str, items: Iterable[_Item]) -> list[Difference]:
    """One entry for all items of an operator and module."""
    sums: dict[tuple[str | None, str | None], list[int]] = {}
    for item in items:
        entry = sums.setdefault((item.operator, item.module), [0, 0])
        entry[0] += item.bytes
        entry[1] += 1
    return [Difference(seen_by, *place, *entry) for place, entry in sums.items()]
