"""A training run of many ranks, played through in whole nanoseconds: who computes or communicates when.

    played = play(1024, steps=4, layers=3)
    played.comms[5].start_ns   # int64, one for each rank, on the common time axis

A step is the forward of `layers` linears, each with a synchronous tensor-parallel all-reduce behind it; the
backward, where each linear's all-reduce runs beside its wgrad; the data-parallel all-reduce of gradients
beside the backward of the embedding; a synchronous all-reduce of one number over all ranks; the optimizer.
A rank begins a collective when what it waits for is done, and all ranks of its group leave it together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.trace.tables import Int64

HOST = 8  # ranks of a host, and of a tensor-parallel group
FORWARD, DGRAD, WGRAD, EMBEDDING, OPTIMIZER = "forward", "dgrad", "wgrad", "embedding", "optimizer"
TENSOR, DATA, WORLD = "tp", "dp", "world"
_GAP_NS = 80_000  # between two steps of a rank
_TRANSFER_NS = {DATA: 250_000, WORLD: 30_000}


@dataclass(frozen=True)
class Late:
    """A rank that computes longer before collectives of a kind (`tp`, `dp`, `world`), once a step."""

    rank: int
    before: str
    ns: int
    steps: Sequence[int] | None = None  # None: every step


@dataclass(frozen=True)
class Compute:
    """A kernel of every rank; int64 columns with a row for each rank."""

    what: str
    step: int
    layer: int | None
    start_ns: Int64
    end_ns: Int64


@dataclass(frozen=True)
class Comm:
    """An all-reduce in every group of a kind; int64 columns with a row for each rank."""

    kind: str
    purpose: str
    is_async: bool
    step: int
    layer: int | None
    seq: int  # of the group
    start_ns: Int64
    end_ns: Int64
    beside: Compute | None  # the only kernel that may run at the same time

    @property
    def overlapped_ns(self) -> Int64:
        """Of each rank: how long that kernel runs during the collective."""
        if self.beside is None:
            return np.zeros_like(self.start_ns)
        end = np.minimum(self.end_ns, self.beside.end_ns)
        return np.maximum(end - np.maximum(self.start_ns, self.beside.start_ns), 0)


@dataclass(frozen=True)
class Played:
    """All kernels of a run in the order of launch; `first_ns` and `end_ns` bound steps: (ranks, steps)."""

    ranks: int
    steps: int
    kernels: tuple[Compute | Comm, ...]
    first_ns: Int64
    end_ns: Int64

    @property
    def comms(self) -> tuple[Comm, ...]:
        return tuple(one for one in self.kernels if isinstance(one, Comm))

    @property
    def computes(self) -> tuple[Compute, ...]:
        return tuple(one for one in self.kernels if isinstance(one, Compute))


def members(kind: str, ranks: int) -> Int64:
    """By rank the number of the group of this kind that it is in."""
    rank = np.arange(ranks)
    return {TENSOR: rank // HOST, DATA: rank % HOST, WORLD: np.zeros(ranks, np.int64)}[kind]


def group_ranks(kind: str, rank: int, ranks: int) -> range:
    """The ranks of the group of this kind that `rank` is in."""
    first = rank // HOST * HOST
    return {
        TENSOR: range(first, first + HOST),
        DATA: range(rank % HOST, ranks, HOST),
        WORLD: range(ranks),
    }[kind]


def last_of(kind: str, values: Int64) -> Int64:
    """By rank the largest value in its group of this kind."""
    group = members(kind, len(values))
    largest = np.full(int(group.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(largest, group, values)
    return largest[group]


class _Player:
    """The time of each rank, and what ran so far."""

    def __init__(self, ranks: int, late: Sequence[Late], seed: int) -> None:
        self.at = np.full(ranks, 1_000_000_000, np.int64)
        self.kernels: list[Compute | Comm] = []
        self._late = late
        self._rng = np.random.default_rng(seed)
        self._seq: dict[str, int] = dict.fromkeys((TENSOR, DATA, WORLD), 0)

    def jitter(self, below: int) -> Int64:
        return self._rng.integers(0, below, len(self.at))

    def compute(self, what: str, step: int, ns: int, layer: int | None = None, before: str = "") -> Compute:
        """A kernel that begins now; ranks late before collectives of the kind `before` take longer."""
        dur = ns + self.jitter(20_000)
        for one in self._late:
            if one.before == before and (one.steps is None or step in one.steps):
                dur[one.rank] += one.ns
        kernel = Compute(what, step, layer, self.at, self.at + dur)
        self.kernels.append(kernel)
        return kernel

    def comm(
        self, kind: str, purpose: str, step: int, ready: Int64, transfer: int,
        layer: int | None = None, beside: Compute | None = None,
    ) -> Comm:  # fmt: skip
        """An all-reduce that ranks begin shortly after `ready`; asynchronous with something beside it."""
        start = ready + 2_000 + self.jitter(2_000)
        self._seq[kind] += 1
        seq, end = self._seq[kind], last_of(kind, start) + transfer
        return Comm(kind, purpose, beside is not None, step, layer, seq, start, end, beside)


def play(ranks: int, steps: int, layers: int, late: Sequence[Late], seed: int = 1) -> Played:
    """The run. Ranks come in hosts of 8. Raises ValueError for other numbers of ranks."""
    if ranks < 2 * HOST or ranks % HOST:
        raise ValueError(f"{ranks} ranks do not fill two or more hosts of {HOST}")
    now = _Player(ranks, late, seed)
    now.at = now.at + now.jitter(30_000)
    first, end = np.zeros((ranks, steps), np.int64), np.zeros((ranks, steps), np.int64)
    for step in range(steps):
        first[:, step] = now.at
        _forward(now, step, layers)
        _backward(now, step, layers)
        _last(now, step)
        end[:, step] = now.at
        now.at = now.at + _GAP_NS + now.jitter(10_000)
    return Played(ranks, steps, tuple(now.kernels), first, end)


def _forward(now: _Player, step: int, layers: int) -> None:
    for layer in range(layers):
        gemm = now.compute(FORWARD, step, 200_000, layer, before=TENSOR if layer == 0 else "")
        reduced = now.comm(TENSOR, "activation", step, gemm.end_ns, 150_000, layer)
        now.kernels.append(reduced)
        now.at = reduced.end_ns + 1_000


def _backward(now: _Player, step: int, layers: int) -> None:
    """The all-reduce of layer i takes 60 us longer than that of layer i - 1: its last part is exposed."""
    for layer in reversed(range(layers)):
        now.at = now.compute(DGRAD, step, 200_000, layer).end_ns
        ready, now.at = now.at, now.at + 500
        wgrad = now.compute(WGRAD, step, 220_000, layer, before=DATA if layer == 0 else "")
        transfer = 150_000 + 60_000 * layer
        reduced = now.comm(TENSOR, "dgrad", step, ready, transfer, layer, beside=wgrad)
        now.kernels.insert(-1, reduced)  # it is launched before the wgrad
        now.at = np.maximum(wgrad.end_ns, reduced.end_ns) + 1_000


def _last(now: _Player, step: int) -> None:
    ready, now.at = now.at, now.at + 500
    embedding = now.compute(EMBEDDING, step, 180_000, before=WORLD)
    summed = now.comm(DATA, "param-grad", step, ready, _TRANSFER_NS[DATA], beside=embedding)
    now.kernels.insert(-1, summed)
    everyone = now.comm(
        WORLD, "other", step, np.maximum(embedding.end_ns, summed.end_ns), _TRANSFER_NS[WORLD]
    )
    now.kernels.append(everyone)
    now.at = everyone.end_ns + 1_000
    now.at = now.compute(OPTIMIZER, step, 120_000).end_ns
