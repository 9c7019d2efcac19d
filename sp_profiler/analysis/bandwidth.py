"""algbw and busbw of collectives, with the factors of nccl-tests (doc/PERFORMANCE.md); 1 GB = 1e9 bytes.

    algbw = bytes / transfer, busbw = algbw * factor(op, n)

`bytes` is the full tensor of all-reduce, all-gather and reduce-scatter, one rank's buffer of the others, so
busbw is what one rank's link carries and compares with its peak whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "send_recv": lambda n: 1.0,
}
_NO_SIZE = frozenset({"barrier"})


def bus_factor(op: str | None, size: int | None) -> float | None:
    """busbw / algbw; None for an operation without a factor, or a group of unknown size or of one."""
    factor = _FACTORS.get(op or "")
    if factor is None or size is None or size < 2:
        return None
    return factor(size)


def bandwidth(
    op: str | None, size: int | None, count_bytes: int | None, transfer_ns: int | None
) -> tuple[float | None, float | None]:
    """(algbw, busbw) in GB/s, 1e9 bytes; None where bytes, time or the factor are not known.

    `size` is the number of ranks of the group, `count_bytes` DESIGN's `bytes`.
    """
    if not count_bytes or not transfer_ns or op in _NO_SIZE:
        return None, None
    algbw = count_bytes / transfer_ns  # bytes per ns are 1e9 bytes per s
    factor = bus_factor(op, size)
    return algbw, None if factor is None else algbw * factor
