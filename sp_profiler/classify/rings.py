"""What a hop of a ring's backward carries, K, V or their gradients, where size, type or order tell.

p ranks. Forward hands K, V on p - 1 times. Backward does so again, and hands dK, dV on p times, until they
are home; or it sends the two together (TransformerEngine): K, V alone, then both, in the end the gradients
alone. What carries both counts as dkv. Of hops of one type and size between the first and the last block
of attention nobody knows which is which, unless there are only two ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sp_profiler.classify.dtypes import dtype_bytes

Size = tuple[str | None, int | None]
"""Type and bytes of a transfer; None where the trace does not say."""


@dataclass(frozen=True)
class Pass:
    """The transfers of one node of backward, in order of launch, and where its attention lies among them."""

    sizes: Sequence[Size]
    early: int  # how many were launched before the first block of attention
    forward: Sequence[Size]  # transfers of the forward function of the node; empty where it is not known
    gathered: bool = False  # K, V are gathered by the node or its function: only gradients go round


def carried(one: Pass, forward_sizes: set[Size], backward_sizes: set[Size]) -> Sequence[str | None]:
    """kv, dkv or None for each transfer. The sets: sizes of all of the group's transfers."""
    if one.gathered:
        return ["dkv"] * len(one.sizes)
    together = _together(one)
    if together is not None:
        return together
    if (both := _size_of_both(one.sizes)) is not None:
        return _beside_both(one.sizes, both)
    by_size = [_by_size(size, forward_sizes, backward_sizes) for size in one.sizes]
    return (_of_two(one) or by_size) if None in by_size else by_size


def _by_size(size: Size, forward: set[Size], backward: set[Size]) -> str | None:
    """Of several sizes or types in backward those of forward are K, V; without forward the wider type is of
    gradients."""
    if len(backward) < 2:
        return None
    if forward:
        return "kv" if size in forward else "dkv"
    widths = {dtype_bytes(dtype) for dtype, _ in backward}
    if None in widths or len(widths) != 2:
        return None
    return "dkv" if dtype_bytes(size[0]) == max(width for width in widths if width) else "kv"


def _together(one: Pass) -> list[str] | None:
    """K, V alone, then both in p - 2 hops, then the gradients alone: one hop more than forward's, and of as
    many kernels as all."""
    kernels = len(one.sizes) - len(one.forward)
    if not _fit(one, kernels) or len(one.sizes) <= 2 * kernels:
        return None
    alone, both = {*one.sizes[:kernels], *one.sizes[-kernels:]}, set(one.sizes[kernels:-kernels])
    told = (None, None) not in alone | both
    if told and not all(_is_twice(two, size) for two in both for size in alone):
        return None
    return ["kv"] * kernels + ["dkv"] * (len(one.sizes) - kernels)


def _size_of_both(sizes: Sequence[Size]) -> Size | None:
    """Of two sizes of one type, of which one is twice the other, the larger: K, V with their gradients."""
    several = sorted(set(sizes), key=lambda size: (size[0] or "", size[1] or 0))
    return several[1] if len(several) == 2 and _is_twice(several[1], several[0]) else None


def _beside_both(sizes: Sequence[Size], both: Size) -> list[str | None]:
    """Transfers of several passes, or of a part of one, in order: what precedes both together is K, V, what
    follows them their gradients. Where a run could be cut off at the window's edge it stays open."""
    runs: list[list[int]] = []
    for i, size in enumerate(sizes):
        if not i or (size == both) != (sizes[i - 1] == both):
            runs.append([])
        runs[-1].append(i)
    found: list[str | None] = ["dkv" if size == both else None for size in sizes]
    alone = [run for run in runs if sizes[run[0]] != both]
    first = alone.pop(0) if runs[0] is alone[0] else []
    last = alone.pop() if alone and runs[-1] is alone[-1] else []
    kernels = {len(run) / 2 for run in alone} or {float(len(run)) for run in (first, last) if run}
    if len(kernels) == 1 and (half := kernels.pop()).is_integer():
        for run in alone:
            for place, i in enumerate(run):
                found[i] = "dkv" if place < half else "kv"
        for run, purpose in ((first, "kv"), (last, "dkv")):
            for i in run if len(run) == half else ():
                found[i] = purpose
    return found


def _of_two(one: Pass) -> list[str] | None:
    """Two ranks: K, V are handed on once, before the first block; whatever follows carries gradients, once
    (together) or twice."""
    for kernels in (len(one.sizes) - len(one.forward), len(one.sizes) - 2 * len(one.forward)):
        if len(one.forward) == kernels and _fit(one, kernels):
            return ["kv"] * kernels + ["dkv"] * (len(one.sizes) - kernels)
    return None


def _fit(one: Pass, kernels: int) -> bool:
    """Whether so many kernels make a hop: they are launched before the first block, and forward's hops are
    whole."""
    return kernels > 0 and one.early == kernels and len(one.forward) % kernels == 0


def _is_twice(two: Size, one: Size) -> bool:
    return two[0] == one[0] and two[1] is not None and one[1] is not None and two[1] == 2 * one[1]
