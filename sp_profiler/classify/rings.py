"""What a hop of a ring's backward carries, K, V or their gradients, where size, type or order tell.

p ranks. Forward hands K, V on p - 1 times. Backward does so again, and hands dK, dV on p times, until they
are home; or it sends the two together (TransformerEngine): K, V alone, then both, in the end the gradients
alone. Both in one transfer count as dkv. Of hops of one type and size between the first and the last block
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
