"""A decoder whose sequence is divided among ranks: the layout for `workloads.model.Decoder`.

Embedding, norms, linears and loss work token by token and run on this rank's tokens alone; attention is
replaced by a scheme that reaches all tokens. Every rank has the parameters of its model part whole and sees
the loss of its own tokens, so gradients are averaged over the ranks as in data parallelism. Inside a rank's
part of the sequence tensor or sequence parallelism may divide the model further.

A global rank is ((ring * ulysses ranks) + ulysses) * tp ranks + tp: tensor parallelism, which communicates
most, on neighbouring ranks, then Ulysses, then the ring (Fang and Zhao 2024, arXiv 2405.07719).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from workloads.attention import Attend, attention_core, full_attention_core
from workloads.communication import Communicator, Site, own_communicator
from workloads.context.ring import Ring
from workloads.context.scheme import ContextScheme
from workloads.context.self_attention import RingSelfAttention
from workloads.context.ulysses import Ulysses
from workloads.ddp import BucketedAverage, UndividedLinears
from workloads.layout import GradientReduction, Layout, NothingToReduce, WholeSequence
from workloads.linear import Piece, Weighted


@dataclass(frozen=True)
class ContextGroups:
    """The process groups of one rank. Those that would hold it alone are None."""

    everyone: Communicator
    """All ranks with the same part of the model, for the gradients."""
    ring: Communicator | None
    ulysses: Communicator | None
    model: Communicator | None = None
    """The ranks that share one model, of this rank's part of the sequence."""

    @property
    def rank(self) -> int:
        """This rank's part of the sequence."""
        return self.everyone.rank

    @property
    def communicators(self) -> tuple[Communicator, ...]:
        found = (self.model, self.ulysses, self.ring, self.everyone)
        return tuple(one for one in found if one is not None)

    def twin(self) -> ContextGroups:
        """The same groups, with records and numberings of their own."""

        def twin(one: Communicator | None) -> Communicator | None:
            return one and one.twin()

        return replace(
            self,
            everyone=self.everyone.twin(),
            ring=twin(self.ring),
            ulysses=twin(self.ulysses),
            model=twin(self.model),
        )


def context_groups(scheme: ContextScheme, model_parts: int = 1) -> ContextGroups:
    """Every rank of a world of `scheme.ranks * model_parts` must call this."""
    ring, ulysses, parts = scheme.ring_ranks, scheme.ulysses_ranks, model_parts
    grid = torch.arange(ring * ulysses * parts).view(ring, ulysses, parts)

    def communicator(description: str, *dimensions: int) -> Communicator:
        size = torch.Size([grid.shape[dimension] for dimension in dimensions]).numel()
        rows = grid.movedim(dimensions, tuple(range(-len(dimensions), 0))).reshape(-1, size)
        return own_communicator(description, rows.tolist())

    both = scheme.scheme == "usp"
    return ContextGroups(
        communicator("dp_cp", 0, 1),
        communicator("cp_ring" if both else "cp", 0) if ring > 1 else None,
        communicator("cp_ulysses" if both else "cp", 1) if ulysses > 1 else None,
        communicator("tp", 2) if parts > 1 else None,
    )


def context_attention(scheme: ContextScheme, groups: ContextGroups, seq_len: int) -> Attend:
    """Attention over all tokens of q [n, B, a, d] and k, v [n, B, k, d] of this rank's n tokens."""
    positions = scheme.ring_positions(seq_len)
    inner: Attend = attention_core if scheme.causal else full_attention_core
    if groups.ring is not None:
        ring = RingSelfAttention if scheme.scheme == "rsa" else Ring
        inner = ring.of(groups.ring, scheme.comm, positions, causal=scheme.causal)
    if groups.ulysses is None:
        return inner
    return Ulysses(groups.ulysses, scheme.comm, inner)


@dataclass(frozen=True)
class Undivided(UndividedLinears, WholeSequence):
    """The layout of one rank alone."""

    device: torch.device
    dtype: torch.dtype

    def gradient_reduction(self, model: nn.Module) -> GradientReduction:
        return NothingToReduce()


@dataclass(frozen=True)
class ContextParallel:
    """The layout: every rank has its own tokens, and `inner` divides the model for them.

    `attention` reaches all tokens; `positions` [n] are those of this rank's.
    """

    inner: Layout
    attention: Attend
    positions: Tensor
    everyone: Communicator
    comm: str
    bucket_bytes: float

    @property
    def model_parts(self) -> int:
        return self.inner.model_parts

    @property
    def model_part(self) -> int:
        return self.inner.model_part

    def column(self, site: Site, pieces: Sequence[Piece]) -> Weighted:
        return self.inner.column(site, pieces)

    def row(self, site: Site, piece: Piece) -> Weighted:
        return self.inner.row(site, piece)

    def replicated(self, site: Site, piece: Piece) -> Weighted:
        return self.inner.replicated(site, piece)

    def enter(self, x: Tensor, site: Site) -> Tensor:
        return self.inner.enter(x, site)

    def leave(self, x: Tensor, site: Site) -> Tensor:
        return self.inner.leave(x, site)

    def own_tokens(self, x: Tensor) -> Tensor:
        return x[self.positions.to(x.device)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, site: Site) -> Tensor:
        return self.attention(q, k, v, site)

    def gradient_reduction(self, model: nn.Module) -> GradientReduction:
        """The mean over all ranks' tokens is the mean of their means: each has as many."""
        average = BucketedAverage(model, self.everyone, self.bucket_bytes, self.comm)
        return BothReductions(average, self.inner.gradient_reduction(model))


@dataclass(frozen=True)
class BothReductions:
    """One after the other; they sum over different ranks, so that their order is of no account."""

    first: GradientReduction
    second: GradientReduction

    def before_last_backward(self) -> None:
        self.first.before_last_backward()
        self.second.before_last_backward()

    def finish(self) -> None:
        self.first.finish()
        self.second.finish()


def context_parallel(
    scheme: ContextScheme, groups: ContextGroups, inner: Layout, *, seq_len: int, bucket_bytes: float
) -> ContextParallel:
    """The layout of this rank. Raises UsageError where the sequence cannot be divided."""
    return ContextParallel(
        inner,
        context_attention(scheme, groups, seq_len),
        scheme.positions(seq_len)[groups.rank],
        groups.everyone,
        scheme.comm,
        bucket_bytes,
    )
