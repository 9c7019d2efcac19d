"""Context parallelism as users' traces hold it: each implementation's launches, with the truth.

    drawn = draw(RING, tmp_path)          # the files, and what is true of them
    drawn.transfers                       # one Transfer for each communication kernel of the files
    drawn.attention[rank, number, step]   # ns of attention in a ring step of a pass

The implementations are in context_schedules.py, the devices they run on in context_device.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from context_device import Machine
from context_facts import ProcessGroup, Said, Style, Transfer
from context_kernels import GEMM, Attention
from context_rank import Rank
from context_schedules import (
    Implementation,
    gathered,
    llama3,
    ring_flash_attention,
    torch_ring,
    transformer_engine,
    transformer_engine_a2a,
    ulysses,
    usp,
)


@dataclass(frozen=True)
class Case:
    """A run: its implementation, sizes, and how it is written down."""

    name: str
    implementation: Implementation
    attention: Attention | Callable[[int], Attention]  # of all ranks, of each group of ranks, or by rank
    scheme: str
    ranks: int = 4
    layers: int = 2
    steps: int = 1
    backward: bool = True
    tensor: bool = False  # every rank shares its heads with a tensor-parallel neighbour
    checkpointed: bool = False  # backward runs each layer's forward again
    data: bool = False  # all ranks sum the gradients of their parameters
    pipeline: bool = False  # the second half of the ranks is a second stage
    style: Style = field(default_factory=Style)
    late: dict[int, int] = field(default_factory=dict)  # ns that a rank's host is late before each layer
    write: dict[str, Any] = field(default_factory=dict)  # options of Machine.write

    def but(self, name: str, **changes: Any) -> Case:
        """The case with something changed."""
        return replace(self, name=name, **changes)


@dataclass(frozen=True)
class Drawn:
    """The files of a case and what is true of them."""

    case: Case
    folder: Path
    transfers: list[Transfer]
    attention: dict[tuple[int, int, int], int]  # ns by rank, pass and ring step, cut ones included

    def of(self, rank: int) -> list[Transfer]:
        """A rank's transfers in order of start."""
        return sorted((t for t in self.transfers if t.rank == rank), key=lambda t: (t.start_ns, t.end_ns))


def draw(case: Case, folder: Path) -> Drawn:
    """Play a case through and write its files."""
    machine = Machine(case.ranks, case.style)
    for rank in machine.ranks:
        for step in range(case.steps):
            with rank.range(f"ProfilerStep#{step}"):
                train(rank, case)
    machine.play().write(folder / case.name, **case.write)
    attention: dict[tuple[int, int, int], int] = defaultdict(int)
    for rank in machine.ranks:
        for kernel in rank.kernels:
            if kernel.step is not None:
                attention[rank.number, *kernel.step] += kernel.dur_ns
    return Drawn(case, folder / case.name, machine.truth, dict(attention))


def train(rank: Rank, case: Case) -> None:
    """Forward through the layers, backward through them, an optimizer's step."""
    running: list[Iterator[None]] = []
    if case.pipeline:
        hand_over(rank, case.ranks, "forward", first=True)
    for _ in range(case.layers):
        rank.spend(case.late.get(rank.number, 0))
        running.append(checkpoint(rank, case) if case.checkpointed else layer_of(rank, case))
        next(running[-1])
        if case.tensor:
            reduce(rank, "forward")
    if case.pipeline:
        hand_over(rank, case.ranks, "forward", first=False)
        hand_over(rank, case.ranks, "backward", first=True)
    for layer in reversed(running if case.backward else []):
        if case.tensor:
            reduce(rank, "backward")
        assert next(layer, None) is None
    if case.pipeline:
        hand_over(rank, case.ranks, "backward", first=False)
    if case.data:
        said = Said("param-grad", phase="backward")
        everyone = ProcessGroup(tuple(range(case.ranks)), "0", "default_pg")
        rank.collective(everyone, "all_reduce", (1 << 20, 1 << 20), said, is_async=False)
    with rank.range("Optimizer.step#AdamW.step"):
        rank.kernel(
            "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(int)",
            50_000,
            op="aten::_fused_adamw_",
        )


def layer_of(rank: Rank, case: Case) -> Iterator[None]:
    """Attention between two linears: forward, then backward."""
    linear(rank, 60_000)
    attention = case.implementation(rank, attention_of(case, rank.number))
    next(attention)
    linear(rank, 120_000)
    yield
    linear_backward(rank, 120_000)
    next(attention, None)
    linear_backward(rank, 60_000)


def checkpoint(rank: Rank, case: Case) -> Iterator[None]:
    """The same under activation checkpointing: in backward forward runs once more, for good this time."""
    with rank.function("CheckpointFunction") as sequence:
        next(layer_of(rank, case))
    yield
    with rank.node("CheckpointFunctionBackward", sequence):
        again = layer_of(rank, case)
        rank.repeats = True
        next(again)
        rank.repeats = False
        next(again, None)


def attention_of(case: Case, rank: int) -> Attention:
    """The attention in the rank's own group: groups of equal size follow each other."""
    at = case.attention
    if not isinstance(at, Attention):
        return at(rank)
    by = rank // at.ranks * at.ranks
    if rank in at.group.ranks:
        return at
    return replace(at, group=replace(at.group, ranks=tuple(r + by for r in at.group.ranks), name=f"1{by}"))


def linear(rank: Rank, dur_ns: int) -> None:
    rank.kernel(GEMM, dur_ns)


def linear_backward(rank: Rank, dur_ns: int) -> None:
    with rank.node("MmBackward0", 0):
        rank.kernel(GEMM, dur_ns)
        rank.kernel(GEMM, dur_ns)


def reduce(rank: Rank, phase: str) -> None:
    """Tensor parallelism beside it: an all-reduce of Megatron's regions."""
    first = rank.number // 2 * 2
    group = ProcessGroup((first, first + 1), f"2{first}", "tp")
    said = Said("activation" if phase == "forward" else "dgrad", phase=phase)
    if phase == "forward":
        with rank.function("_ReduceFromModelParallelRegion"):
            rank.collective(group, "all_reduce", (65_536, 65_536), said, is_async=False)
    else:
        with rank.node("_CopyToModelParallelRegionBackward", 1):
            rank.collective(group, "all_reduce", (65_536, 65_536), said, is_async=False)


def hand_over(rank: Rank, ranks: int, phase: str, *, first: bool) -> None:
    """Pipeline parallelism beside it: activations to the next stage, their gradients back."""
    half = ranks // 2
    stage, place = divmod(rank.number, half)
    peer = place + (1 - stage) * half
    pair = ProcessGroup((place, place + half), f"3{place}", "pp")
    said = Said("pipeline", phase=phase)
    receives = stage == (1 if phase == "forward" else 0)
    if receives and first:
        rank.wait(rank.batch(pair, sends={}, receives={peer: [262_144]}, said=said))
    if not receives and not first:
        rank.batch(pair, sends={peer: [262_144]}, receives={}, said=said)


def group(ranks: int) -> ProcessGroup:
    return ProcessGroup(tuple(range(ranks)))


def both(rank: int) -> Attention:
    """Of four ranks two exchange heads and two are a ring."""
    ring = ProcessGroup((rank % 2, rank % 2 + 2), f"4{rank % 2}", "ring")
    first = rank // 2 * 2
    return Attention(ring, inner=ProcessGroup((first, first + 1), f"5{first}", "ulysses"))


OLD = Style(metadata="none", waits="stream")
LISTED = Style(batch_metadata=False)  # what a batch does stands before its launch only
RECORD = Style(metadata="record", batch_metadata=False)
SEND_ONLY = Style(batch_records=False)  # of a batch no more than what its kernel says: to whom it sends
DEVICE_ONLY = replace(SEND_ONLY, host=False)
NEW = Style(seq=True, is_async=True)
AMD = Style(vendor="amd", forward="aiter")
APART = {"clocks": {1: 700_000, 3: -250_000}, "hosts": True}
CAUSAL, ZIGZAG_CAUSAL = Attention(group(4), causal=True), Attention(group(4), causal=True, layout="zigzag")

RING = Case("ring", ring_flash_attention, Attention(group(4)), "ring")
RING_CAUSAL = RING.but("ring-causal", attention=CAUSAL)
ZIGZAG = RING.but("zigzag", attention=ZIGZAG_CAUSAL)
STRIPED = RING.but("striped", attention=Attention(group(4), causal=True, layout="striped"))
ULYSSES = Case("ulysses", ulysses, Attention(group(4)), "ulysses")
GATHERED = Case("all-gather", gathered, Attention(group(4)), "all-gather")
TE_RING = Case("te-p2p", transformer_engine, ZIGZAG_CAUSAL, "ring")
TORCH_RING = Case("torch-all-to-all", partial(torch_ring, rotate="all_to_all"), ZIGZAG_CAUSAL, "ring")
TORCH_GATHER = Case("torch-all-gather", torch_ring, CAUSAL, "all-gather")
TE_ULYSSES = Case("te-a2a", transformer_engine_a2a, Attention(group(4)), "ulysses")
LLAMA3 = Case("llama3", llama3, CAUSAL, "all-gather")
USP = Case("usp", usp, both, "usp")
IMPLEMENTATIONS = (
    RING,
    RING_CAUSAL,
    ZIGZAG,
    STRIPED,
    RING.but("ring-two-batches", implementation=partial(ring_flash_attention, batches=2)),
    RING.but("ring-sync", implementation=partial(ring_flash_attention, sync=True)),
    RING.but("ring-bf16-gradients", implementation=partial(ring_flash_attention, gradients="bfloat16")),
    TE_RING,
    TE_RING.but("te-p2p-batched", implementation=partial(transformer_engine, batched=True)),
    TORCH_RING,
    TORCH_GATHER,
    ULYSSES,
    TE_ULYSSES,
    GATHERED,
    LLAMA3,
    USP,
)
WRITTEN = (
    RING.but("ring-listed", style=LISTED),
    RING.but("ring-old", style=OLD),
    TE_RING.but("te-p2p-record", style=RECORD),
    TE_RING.but("te-p2p-old", style=OLD),
    ULYSSES.but("ulysses-old", style=OLD),
    USP.but("usp-listed", style=LISTED),
    RING.but("ring-send-only", style=SEND_ONLY),
    RING.but("ring-device-only", style=DEVICE_ONLY),
    TE_RING.but("te-p2p-device-only", style=DEVICE_ONLY),
    ULYSSES.but("ulysses-device-only", style=DEVICE_ONLY),
    GATHERED.but("all-gather-device-only", style=DEVICE_ONLY),
    RING.but("ring-amd", style=AMD),
    RING.but("ring-amd-listed", style=replace(AMD, batch_metadata=False, forward="ck")),
    RING.but("ring-seq", style=NEW),
    TE_RING.but("te-p2p-cudnn", style=replace(NEW, forward="cudnn")),
    ZIGZAG.but("zigzag-flash-3", style=Style(forward="flash-3")),
    TORCH_RING.but("torch-efficient", style=Style(forward="efficient")),
    TORCH_GATHER.but("torch-split", style=Style(forward="flash-split")),
)
AROUND = (
    RING.but("ring-2", ranks=2, attention=Attention(group(2))),
    RING_CAUSAL.but("ring-3", ranks=3, attention=Attention(group(3), causal=True)),
    ZIGZAG.but("zigzag-8", ranks=8, layers=1, attention=Attention(group(8), causal=True, layout="zigzag")),
    RING.but("two-rings", ranks=4, attention=Attention(group(2))),
    RING.but("tensor-beside", tensor=True),
    RING.but("pipeline-beside", pipeline=True, attention=Attention(group(2))),
    RING.but("cut", write={"cut_ns": 1_256_000}),
    RING.but("cut-late", write={"cut_ns": 3_000_000}),  # no launch is left
    TE_RING.but("te-p2p-3", ranks=3, attention=replace(ZIGZAG_CAUSAL, group=group(3)), style=NEW),
    TE_RING.but("te-p2p-2", ranks=2, attention=replace(ZIGZAG_CAUSAL, group=group(2))),
    TE_RING.but("te-p2p-2-old", ranks=2, attention=replace(ZIGZAG_CAUSAL, group=group(2)), style=OLD),
    RING_CAUSAL.but("cut-unevenly", write={"cut_ns": {1: 1_160_000, 2: 1_600_000}}),
    RING.but("ranks-missing", write={"only": (0, 2)}),
    RING.but("clocks", write={"clocks": {1: 700_000, 3: -250_000}, "hosts": True}),
    RING.but(
        "clocks-aligned", data=True, steps=3, write={"clocks": {1: 700_000, 3: -250_000}, "hosts": True}
    ),
    RING_CAUSAL.but("checkpointed", checkpointed=True),
    USP.but("usp-checkpointed", checkpointed=True),
    RING.but("late", late={2: 900_000}),
)
CASES = (*IMPLEMENTATIONS, *WRITTEN, *AROUND)
