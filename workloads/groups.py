"""The process groups of one rank of a workload: one, or in context parallelism several."""

from __future__ import annotations

from typing import Protocol

import torch.distributed as dist

from workloads.communication import Communicator, new_communicator
from workloads.config import WorkloadConfig
from workloads.context.parallel import ContextGroups, context_groups


class Groups(Protocol):
    """A `Communicator` where the workload has one group, else `ContextGroups`."""

    @property
    def communicators(self) -> tuple[Communicator, ...]: ...

    def twin(self) -> Groups:
        """The same groups, with records and numberings of their own."""
        ...


def groups_for(config: WorkloadConfig) -> Groups:
    """The groups of this rank. Every rank of the world must call this."""
    if config.is_context:
        return context_groups(config.scheme(), config.tp)
    return new_communicator("dp" if config.mode == "ddp" else "tp", range(dist.get_world_size()))


def only(groups: Groups) -> Communicator:
    """The one group of a workload without context parallelism."""
    assert isinstance(groups, Communicator)
    return groups


def of_context(groups: Groups) -> ContextGroups:
    """Those of a workload with context parallelism."""
    assert isinstance(groups, ContextGroups)
    return groups


def over_data(config: WorkloadConfig, groups: Groups) -> Communicator | None:
    """The ranks that see different tokens, over which losses are averaged; None where all see the same."""
    if config.is_context:
        return of_context(groups).everyone
    return only(groups) if config.mode == "ddp" else None
