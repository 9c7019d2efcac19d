"""The trace's blocks against the hooks' saved tensors: every byte that only one of them counts, named."""

from __future__ import annotations

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


_Item = tuple[int, str | None, str | None]  # bytes, operator, module


def differences(one: MemoryFigures, saved: SavedTensors) -> list[Difference]:
    """What the border with most counts and the hooks do not, and the other way round, largest first.

    `trace` and `rounding` bytes less those of `hooks` are the border's bytes less `saved_bytes`. Pairs are
    made by size: a block is a tensor's when it has its bytes, on a GPU rounded up by the allocator. Empty
    where the border's blocks are not all listed, or the hooks' parts are not told.
    """
    border = top_border(one)
    blocks = [] if border is None else kept_blocks(one, border)
    if border is None or len(blocks) != border.blocks or not saved.parts:
        return []
    in_trace: list[_Item] = [(b.bytes, b.made_by or b.operator, b.module) for b in blocks]
    in_hooks: list[_Item] = [
        (part.bytes // part.count, part.operator, part.module)
        for part in saved.parts
        for _ in range(part.count)
    ]
    tolerance = 1 if one.device_type == "cpu" else ROUNDED
    return _unpaired(sorted(in_trace, key=_largest), sorted(in_hooks, key=_largest), tolerance)


def _largest(item: _Item) -> int:
    return -item[0]


def _unpaired(in_trace: list[_Item], in_hooks: list[_Item], tolerance: int) -> list[Difference]:
    """Both sorted, largest first: walk along both at once."""
    alone: dict[tuple[str, str | None, str | None], list[int]] = {}
    rounded = [0, 0]
    places = [0, 0]
    while places[0] < len(in_trace) or places[1] < len(in_hooks):
        block = in_trace[places[0]] if places[0] < len(in_trace) else None
        tensor = in_hooks[places[1]] if places[1] < len(in_hooks) else None
        if block is not None and tensor is not None and 0 <= block[0] - tensor[0] < tolerance:
            rounded = [rounded[0] + block[0] - tensor[0], rounded[1] + (block[0] != tensor[0])]
            places = [places[0] + 1, places[1] + 1]
            continue
        is_block = tensor is None or (block is not None and block[0] > tensor[0])
        item = block if is_block else tensor
        assert item is not None  # one of them is left
        places[0 if is_block else 1] += 1
        sums = alone.setdefault(("trace" if is_block else "hooks", item[1], item[2]), [0, 0])
        sums[0] += item[0]
        sums[1] += 1
    found = [Difference(*key, *sums) for key, sums in alone.items()]
    found += [Difference("rounding", None, None, *rounded)] if rounded[0] else []
    return sorted(found, key=lambda one: -one.bytes)
