"""Process groups for many schemes of context parallelism in one world, on request with late delivery."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from workloads_ranks import Delayed

from workloads.communication import Communicator
from workloads.context.parallel import ContextGroups, ContextScheme, context_groups


class DelayedContext(Delayed):
    """Asynchronous results arrive at `wait` alone, and their input may not have changed until then."""

    def all_to_all(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Any:
        return self._delay(super().all_to_all, output, source, group, is_async)

    def send_recv(self, output: Tensor, source: Tensor, group: Any, is_async: bool) -> Any:
        return self._delay(super().send_recv, output, source, group, is_async)


class Groups:
    """Process groups, each made once: making them costs more than using them."""

    def __init__(self) -> None:
        self._made: dict[Any, ContextGroups] = {}

    def of(self, scheme: ContextScheme, model_parts: int, *, delayed: bool = False) -> ContextGroups:
        """With records of their own, from 0 on."""
        key = (scheme.ring_ranks, scheme.ulysses_ranks, model_parts)
        if key not in self._made:
            self._made[key] = context_groups(scheme, model_parts)
        made = self._made[key]

        def fresh(one: Communicator | None) -> Communicator | None:
            if one is None or not delayed:
                return one.twin() if one else None
            return Communicator(one.description, one.ranks, dist.get_rank(), one._group, DelayedContext())

        everyone = fresh(made.everyone)
        assert everyone is not None
        return ContextGroups(everyone, fresh(made.ring), fresh(made.ulysses))


def everywhere(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
