"""What one training step of a workload keeps, holds and sends on one rank, measured as it runs.

The same code runs on real ranks and under FakeTensorMode with the fake process group (`fake_rank`), where
a model of any size takes no memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sp_profiler.record.live_bytes import LiveBytes, LiveStorage
from sp_profiler.record.places import Place, Places
from sp_profiler.record.saved_tensors import SavedReport, SavedTensors, storages
from sp_profiler.record.storages import NamedStorage
from sp_profiler.theory.communication import wire_bytes
from workloads.attention_only import AttentionOnly
from workloads.communication import Call, Communicator
from workloads.config import WorkloadConfig
from workloads.groups import Groups
from workloads.train import Workload, assemble, attention_only

_MOMENTS_S = (0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class SavedMeasurement:
    """One rank's step: one micro-batch's forward, all backwards, the optimizer. All in bytes."""

    saved: SavedReport
    """What one micro-batch keeps for backward."""
    hidden: tuple[NamedStorage, ...]
    """What lives at the end of forward although no operator saved it and nobody was given it."""
    parameter_bytes: int
    gradient_bytes: int
    """Of the distinct storages behind `.grad` when the optimizer steps."""
    optimizer_bytes: int
    peak_bytes: int
    """The most that tensors held at once in the step: with parameters, optimizer state and the batch. On gloo
    it may be higher by tensors of a collective that its threads had not let go of yet."""
    peak_operator: str | None
    comm_bytes: Fraction
    """What this rank sends in the step with ring algorithms; a fraction of a byte where T does not divide."""
    calls: tuple[Call, ...]
    """The step's collectives, in order; one group's after another's."""
    allocator_peak_bytes: int | None = None
    """`torch.cuda.max_memory_allocated` in the step above what lay there before; None on the CPU."""

    @property
    def hidden_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.hidden)

    def to_json(self) -> dict[str, Any]:
        """As run.json has it, for one rank."""
        return {
            **self.saved.to_json(),
            "hidden_bytes": self.hidden_bytes,
            "hidden": [tensor.to_json() for tensor in self.hidden],
            "parameter_bytes": self.parameter_bytes,
            "gradient_bytes": self.gradient_bytes,
            "optimizer_bytes": self.optimizer_bytes,
            "peak_bytes": self.peak_bytes,
            "allocator_peak_bytes": self.allocator_peak_bytes,
        }


def measure_saved(
    config: WorkloadConfig,
    groups: Groups,
    device: torch.device,
    *,
    follow: Callable[[Callable[[], Place]], LiveBytes] = LiveBytes,
) -> SavedMeasurement:
    """Builds the workload of `config`, measures one step of it and lets it go.

    `follow` makes what follows the step's storages, for who wants to see more of the step.

    Every rank of `groups` must call this at the same time; their records and numberings stay as they are.
    Weights and tokens are constants: sizes do not depend on them. The optimizer's state exists from the
    start, as in every step but the first.
    """
    groups = groups.twin()
    on_gpu = device.type == "cuda"
    before = _reset_allocator(device) if on_gpu else 0
    make = attention_only if config.attention_only else assemble
    workload: Workload | AttentionOnly = make(config, groups, device)
    _prepare(workload)
    batch: Any = workload.constants()
    parameters = list(workload.model.parameters())
    state = _optimizer_state(workload.optimizer) if workload.optimizer is not None else []
    places = Places(workload.model)
    live = follow(lambda: places.current)
    live.track([*parameters, *workload.model.buffers()], "parameter")
    live.track([*state, *workload.tensors(batch)], "state")
    with live:
        saved, hidden = _measured_step(workload, batch, places, live)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return SavedMeasurement(
        saved=saved,
        hidden=hidden,
        parameter_bytes=_bytes(parameters),
        gradient_bytes=_bytes(gradients),
        optimizer_bytes=_bytes(state),
        peak_bytes=live.peak_bytes,
        peak_operator=live.peak_operator,
        comm_bytes=sum(
            (wire_bytes(c.op, c.bytes, one.size) for one in groups.communicators for c in one.calls),
            Fraction(0),
        ),
        calls=tuple(call for one in groups.communicators for call in one.calls),
        allocator_peak_bytes=torch.cuda.max_memory_allocated(device) - before if on_gpu else None,
    )


@contextmanager
def fake_rank(ranks: int, description: str = "tp") -> Iterator[Communicator]:
    """Rank 0 of a world that does not exist: tensors have no data, collectives return at once.

    For measuring any size on the device "cpu" in this process, which must not be in a process group.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook  # a process group leaves one that writes "[rank0]: " before tracebacks
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        with FakeTensorMode():
            yield Communicator(description, range(ranks), 0, dist.group.WORLD)
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


@torch.no_grad()
def _prepare(workload: Workload | AttentionOnly) -> None:
    """Weights that are numbers, and the state that the optimizer makes in its first step."""
    if workload.optimizer is None:
        return
    for parameter in workload.model.parameters():
        parameter.fill_(0.01)
        parameter.grad = torch.zeros_like(parameter)
    workload.optimizer.step()
    workload.optimizer.zero_grad(set_to_none=True)


def _measured_step(
    workload: Any, batch: Any, places: Places, live: LiveBytes
) -> tuple[SavedReport, tuple[LiveStorage, ...]]:
    """A step as the workload's `step` does it; saved and hidden are those of its first micro-batch."""
    known = {storage.storage for storage in live.alive()}
    with places, SavedTensors(workload.model, places=places) as saved:
        result = workload.forward(batch[0], len(batch))
    known.update(saved.storages, storages([result] if isinstance(result, Tensor) else result.outs))
    hidden = _hidden_from(live, known)
    workload.backward(result, is_last=len(batch) == 1)
    del result
    for i, microbatch in enumerate(batch[1:], start=2):
        workload.backward(workload.forward(microbatch, len(batch)), is_last=i == len(batch))
    workload.update()
    return saved.report(), hidden


def _hidden_from(live: LiveBytes, known: set[int]) -> tuple[LiveStorage, ...]:
    """What lives and is not known. The transport's threads let go of a collective's tensors a moment after
    it is over: they are given that moment, and whoever keeps a tensor keeps it longer."""

    def unknown() -> list[LiveStorage]:
        return [one for one in live.alive() if one.bytes and one.storage not in known]

    found = unknown()
    for moment_s in () if dist.get_backend() == "fake" else _MOMENTS_S:
        if found:
            time.sleep(moment_s)
            found = unknown()
    return tuple(found)


def _optimizer_state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    values = (value for state in optimizer.state.values() for value in state.values())
    return [value for value in values if isinstance(value, Tensor)]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(storages(tensors).values())


def _reset_allocator(device: torch.device) -> int:
    """What other tensors hold; from now on the allocator's peak is that of the measured step."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
