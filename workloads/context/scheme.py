"""How ranks share the sequence, and what cannot be. Needs no torch until positions are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sp_profiler.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

SCHEMES = ("ring", "ulysses", "rsa", "usp")
LAYOUTS = ("contiguous", "zigzag", "striped")


@dataclass(frozen=True)
class ContextScheme:
    """How `ranks` ranks share the sequence. Raises UsageError for what cannot be.

    `ulysses` is the number of ranks that exchange heads for tokens, of usp; the others follow from the
    scheme. `layout` is that of the ring; what Ulysses brings together is contiguous.
    """

    scheme: str
    ranks: int
    comm: str = "sync"
    layout: str = "contiguous"
    causal: bool = True
    ulysses: int | None = None

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise UsageError(
                f"'{self.scheme}' is no scheme of context parallelism, only {', '.join(SCHEMES)} are"
            )
        if self.ranks < 2:
            raise UsageError(f"{self.scheme} divides the sequence among at least 2 ranks, not {self.ranks}")
        if self.scheme == "ulysses" and self.layout != "contiguous":
            raise UsageError(f"--layout {self.layout} is for a ring: ulysses has none")
        if self.scheme != "usp" and self.ulysses is not None:
            raise UsageError(f"--ulysses is for usp: {self.scheme} has all ranks in one group")
        if self.scheme == "usp" and self.ulysses is None:
            raise UsageError(
                f"usp needs --ulysses, how many of the {self.ranks} ranks exchange heads for tokens"
            )
        if self.ulysses is not None and not 1 <= self.ulysses <= self.ranks:
            among = f"{self.ranks}, the ranks that share the sequence"
            raise UsageError(f"--ulysses {self.ulysses} is not between 1 and {among}")
        if self.ranks % self.ulysses_ranks:
            raise UsageError(f"{self.ranks} ranks cannot be divided into rings by --ulysses {self.ulysses}")

    @property
    def ulysses_ranks(self) -> int:
        return self.ranks if self.scheme == "ulysses" else self.ulysses or 1

    @property
    def ring_ranks(self) -> int:
        return self.ranks // self.ulysses_ranks

    def check_heads(self, heads: int, kv_heads: int) -> None:
        """`heads` and `kv_heads` of one model part. Raises UsageError where ranks cannot share them."""
        check_heads(heads, kv_heads, self.ulysses_ranks)

    def check_length(self, seq_len: int) -> None:
        """Raises UsageError where the ranks cannot share so many tokens."""
        ring_chunk(self.layout, seq_len, self.ring_ranks)
        if seq_len % self.ranks:
            raise UsageError(f"--seq-len {seq_len} cannot be divided among {self.ranks} ranks")

    def ring_positions(self, seq_len: int) -> list[Tensor]:
        """Ascending positions of the tokens of each part of the ring, of all its Ulysses ranks together."""
        from workloads.context.layouts import token_positions

        self.check_length(seq_len)
        ranks = self.ring_ranks
        return [token_positions(self.layout, seq_len, ranks, rank) for rank in range(ranks)]

    def positions(self, seq_len: int) -> list[Tensor]:
        """Ascending positions of the tokens of each of the ranks."""
        return [part for ring in self.ring_positions(seq_len) for part in ring.chunk(self.ulysses_ranks)]


def check_heads(heads: int, kv_heads: int, ranks: int) -> None:
    """Raises UsageError where the ranks cannot share the heads evenly."""
    for option, count in (("--heads", heads), ("--kv-heads", kv_heads)):
        if count % ranks:
            raise UsageError(
                f"{option} {count} of a rank cannot be divided among the {ranks} ranks of ulysses"
            )


def ring_chunk(layout: str, seq_len: int, ranks: int) -> int:
    """Tokens of the pieces that a layout is made of. Raises UsageError where it cannot be."""
    if layout not in LAYOUTS:
        raise UsageError(f"--layout is '{layout}', expected one of {', '.join(LAYOUTS)}")
    parts = 2 * ranks if layout == "zigzag" else ranks
    if seq_len % parts:
        chunks = f" in {parts} chunks, two for each" if layout == "zigzag" else ""
        raise UsageError(f"--seq-len {seq_len} cannot be divided among {ranks} ranks{chunks}")
    return seq_len // parts
