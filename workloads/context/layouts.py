"""Which tokens of the sequence each rank of a ring holds, and what a causal mask leaves of each block.

p ranks, S tokens, n = S/p of them on each rank, ascending by position everywhere:

========== =================================================== ==========================================
layout     rank i holds                                        source
========== =================================================== ==========================================
contiguous i n to (i+1) n                                      Liu et al. 2023 (arXiv 2310.01889)
zigzag     chunks i and 2p-1-i of 2p                           Zhu 2024 (zigzag ring), Llama 3 (2407.21783)
striped    i, i+p, i+2p, ...                                   Brandon et al. 2023 (arXiv 2311.09431)
========== =================================================== ==========================================

In a step of a ring the queries of one rank meet the keys of another. Because both ascend, the keys that a
query may see are the first few of the block, more for later queries: a staircase. It is cut into tiles that
are either wholly visible or a square with the mask of ordinary causal attention, the two things that every
attention kernel can do. Queries that see nothing of a block are in none of its tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from workloads.context.scheme import LAYOUTS, ring_chunk

__all__ = ["LAYOUTS", "Tile", "balance", "block_tiles", "ring_work", "token_positions"]


def token_positions(layout: str, seq_len: int, ranks: int, rank: int) -> Tensor:
    """Positions [S/p] in the sequence, int64, ascending, of the tokens that `rank` of `ranks` holds.

    Data, targets and rotary embedding of this rank follow from them. Raises UsageError where the layout
    cannot divide the sequence.
    """
    chunk = ring_chunk(layout, seq_len, ranks)
    if layout == "striped":
        return torch.arange(rank, seq_len, ranks)
    if layout == "contiguous":
        return torch.arange(rank * chunk, (rank + 1) * chunk)
    first, second = rank * chunk, (2 * ranks - 1 - rank) * chunk
    return torch.cat((torch.arange(first, first + chunk), torch.arange(second, second + chunk)))


@dataclass(frozen=True)
class Tile:
    """Part of a block of scores: these queries and keys of it, all of them or the causal half."""

    queries: slice
    keys: slice
    is_causal: bool

    @property
    def scores(self) -> int:
        """Scores that the mask leaves."""
        rows = self.queries.stop - self.queries.start
        if self.is_causal:
            return rows * (rows + 1) // 2
        return rows * (self.keys.stop - self.keys.start)


def block_tiles(queries: Tensor, keys: Tensor, *, causal: bool) -> tuple[Tile, ...]:
    """What of the scores of a block is visible; `queries` [n] and `keys` [m] are ascending positions.

    Raises ValueError when they do not ascend.
    """
    for positions in (queries, keys):
        if not bool((positions[1:] > positions[:-1]).all()):
            raise ValueError("the positions of a rank's tokens must ascend")
    if not causal:
        return (Tile(slice(0, len(queries)), slice(0, len(keys)), False),)
    visible = torch.searchsorted(keys, queries, right=True)  # keys that each query sees
    tiles: list[Tile] = []
    for first, end, grows in _runs(visible):
        seen = int(visible[first])
        square = (Tile(slice(first, end), slice(seen - 1, seen - 1 + end - first), True),) if grows else ()
        before = seen - len(square)  # keys that every query of the run sees, besides the square
        if before:
            tiles.append(Tile(slice(first, end), slice(0, before), False))
        tiles.extend(square)
    return tuple(tiles)


def _runs(visible: Tensor) -> list[tuple[int, int, bool]]:
    """Runs [first, end) of queries that see equally many keys, or (True) each one more than the one before.

    Queries that see none are left out.
    """
    runs = []
    first = int((visible == 0).sum())
    steps, lengths = torch.unique_consecutive(visible[first:].diff(), return_counts=True)
    taken = first
    for step, length in zip(steps.tolist(), lengths.tolist(), strict=True):
        if step in (0, 1):
            # the run includes the query that its first step starts from, unless an earlier run has it
            end = first + length + 1
            runs.append((taken, end, step == 1 and end - taken > 1))
            taken = end
        else:
            runs.extend((row, row + 1, False) for row in range(taken, first + length))
            taken = max(taken, first + length)
        first += length
    runs.extend((row, row + 1, False) for row in range(taken, len(visible)))
    return runs


def ring_work(positions: Sequence[Tensor], *, causal: bool) -> tuple[tuple[int, ...], ...]:
    """Scores that rank i computes in step s of a ring, when it has the keys of rank i - s: [i][s]."""
    ranks = len(positions)
    return tuple(
        tuple(
            sum(tile.scores for tile in block_tiles(positions[i], positions[(i - s) % ranks], causal=causal))
            for s in range(ranks)
        )
        for i in range(ranks)
    )


def balance(work: Sequence[Sequence[int]]) -> Fraction:
    """Ideal time over that of a ring whose every step waits for its slowest rank; `work` is `ring_work`'s."""
    slowest = sum(max(step) for step in zip(*work, strict=True))
    return Fraction(sum(map(sum, work)), len(work) * slowest)
