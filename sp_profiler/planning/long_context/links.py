"""What is sent in one layer by one rank of a scheme, over which link, and how long it takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from sp_profiler.planning.long_context.model import ContextSizes, Direction, Transfer
from sp_profiler.planning.long_context.schemes import Candidate
from sp_profiler.planning.machines import Machines
from sp_profiler.theory.communication import Expected, block_schedule, wire_bytes
from sp_profiler.theory.machine import Machine
from sp_profiler.theory.ring import RingSizes, all_to_all_bytes, gradient_hop_bytes, hop_bytes
from sp_profiler.theory.time import RING_STEPS, collective_seconds

Where = Literal["inside", "across"]


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: `ranks` of them, every `stride`-th of `world` global ranks, which fill nodes in
    order."""

    ranks: int
    stride: int
    world: int

    @property
    def extent(self) -> int:
        return self.ranks * self.stride

    def where(self, ranks_per_node: int) -> Where:
        """Inside a node when every such group is; else some hops are not, and everything waits for those."""
        fits = self.extent <= ranks_per_node
        return "inside" if fits and _none_is_split(self, ranks_per_node) else "across"

    def peers_inside(self, ranks_per_node: int) -> int:
        """Of a rank's peers those in its own node, of the rank that has fewest."""
        if self.where(ranks_per_node) == "inside":
            return self.ranks - 1
        return _fewest_together(self, ranks_per_node) - 1


def _none_is_split(group: Group, ranks_per_node: int) -> bool:
    return group.world <= ranks_per_node or ranks_per_node % group.extent == 0


@cache
def _fewest_together(group: Group, ranks_per_node: int) -> int:
    """Counted over the groups until their places in nodes repeat."""
    period = min(group.world, math.lcm(group.extent, ranks_per_node))
    starts = (first + offset for first in range(0, period, group.extent) for offset in range(group.stride))
    return min(
        min(Counter((start + i * group.stride) // ranks_per_node for i in range(group.ranks)).values())
        for start in starts
    )


def tensor_group(one: Candidate) -> Group:
    return Group(one.tp, 1, one.ranks)


def ulysses_group(one: Candidate) -> Group:
    return Group(one.ulysses, one.tp, one.ranks)


def ring_group(one: Candidate) -> Group:
    return Group(one.ring, one.tp * one.ulysses, one.ranks)


@dataclass(frozen=True)
class Timed:
    """Seconds of one transfer: its bytes alone, and with latencies."""

    transfer_s: float
    seconds: float


def hop_time(size: int, where: Where, machines: Machines) -> Timed:
    """m/beta + alpha of a message to the next rank; alpha is a launch and one step."""
    machine = _machine(where, machines)
    transfer = size / machine.bytes_per_s_among(2)
    return Timed(transfer, machine.launch_latency_s + machine.step_latency_s + transfer)


def collective_time(op: str, size: int, group: Group, node: int, machines: Machines) -> Timed:
    """A ring of the group's ranks, bound by its slowest link. An all-to-all has no such bound: what goes to
    ranks of the own node goes over that link, the rest over the other, at the same time."""
    where = group.where(node)
    machine = _machine(where, machines)
    if op != "all_to_all" or where == "inside" or machines.inside == machines.across:
        seconds = collective_seconds(op, size, group.ranks, machine)
        latency = machine.launch_latency_s + RING_STEPS[op] * (group.ranks - 1) * machine.step_latency_s
        return Timed(seconds - latency, seconds)
    near = group.peers_inside(node)
    parts = [(near, machines.inside, near + 1), (group.ranks - 1 - near, machines.across, group.ranks)]
    sent = [count * size / (group.ranks * m.bytes_per_s_among(among)) for count, m, among in parts]
    steps = [count * m.step_latency_s for count, m, _ in parts]
    whole = max(bytes_s + latency for bytes_s, latency in zip(sent, steps, strict=True))
    return Timed(max(sent), machine.launch_latency_s + whole)


def _machine(where: Where, machines: Machines) -> Machine:
    return machines.inside if where == "inside" else machines.across


def as_ns(seconds: float) -> int:
    return round(seconds * 1e9)


def transfers(
    one: Candidate, sizes: ContextSizes, ring: RingSizes, element_bytes: int, machines: Machines | None
) -> Iterator[Transfer]:
    """All of a layer. `ring`: the tokens among all context ranks, the heads that TP leaves a rank."""
    for direction in ("forward", "backward"):
        yield from _of_tensor(one, sizes, element_bytes, direction, machines)
        yield from _of_ulysses(one, sizes, ring, direction, machines)
        yield from _of_ring(one, sizes, ring, direction, machines)


def tensor_collectives(one: Candidate, sizes: ContextSizes, element_bytes: int) -> tuple[Expected, ...]:
    """Of TP or TP + SP in one block, as Megatron has them: QKV in one linear, gate and up in another; in
    backward asynchronous, and inputs gathered again. Empty without TP."""
    if one.tp == 1:
        return ()
    schedule = block_schedule(
        "sp" if one.sequence_parallel else "tp",
        comm="async",
        save="shard" if one.sequence_parallel else None,
        projections="fused",
        activation_bytes=element_bytes * (sizes.seq_len // one.cp) * sizes.micro_batch * sizes.hidden,
    )
    return (*schedule.forward, *schedule.backward)


def _of_tensor(
    one: Candidate,
    sizes: ContextSizes,
    element_bytes: int,
    direction: Direction,
    machines: Machines | None,
) -> Iterator[Transfer]:
    counts: dict[tuple[str, str, str | None, int], int] = {}
    for c in tensor_collectives(one, sizes, element_bytes):
        if c.phase == direction:
            under = c.partner if c.is_async else None
            key = (c.op, c.purpose, under, c.bytes)
            counts[key] = counts.get(key, 0) + 1
    for (op, payload, under, size), count in counts.items():
        yield _collective(direction, op, payload, size, count, under, tensor_group(one), sizes, machines)


def _of_ulysses(
    one: Candidate, sizes: ContextSizes, ring: RingSizes, direction: Direction, machines: Machines | None
) -> Iterator[Transfer]:
    """Nothing runs beside them: attention needs what they bring, the output linear what they take back."""
    if one.ulysses == 1:
        return
    for payload, size in all_to_all_bytes(ring).items():
        group = ulysses_group(one)
        yield _collective(direction, "all_to_all", payload, size, 1, None, group, sizes, machines)


def _collective(
    direction: Direction,
    op: str,
    payload: str,
    size: int,
    count: int,
    under: str | None,
    group: Group,
    sizes: ContextSizes,
    machines: Machines | None,
) -> Transfer:
    time = None
    if machines is not None:
        time = collective_time(op, size, group, sizes.ranks_per_node, machines)
    return Transfer(
        direction=direction,
        op=op,
        payload=payload,
        ranks=group.ranks,
        link=group.where(sizes.ranks_per_node),
        count=count,
        bytes=size,
        wire_bytes=round(count * wire_bytes(op, size, group.ranks)),
        hides_under=under,
        transfer_ns=None if time is None else as_ns(time.transfer_s),
        ns=None if time is None else as_ns(time.seconds),
    )


def _of_ring(
    one: Candidate, sizes: ContextSizes, ring: RingSizes, direction: Direction, machines: Machines | None
) -> Iterator[Transfer]:
    if one.ring == 1:
        return
    hops: list[tuple[str, int, int, str | None]] = [("kv", one.ring - 1, hop_bytes(ring), "attention")]
    if direction == "backward":
        size = gradient_hop_bytes(ring)
        # The last hop of dK and dV has nothing left to hide under.
        hops += [("dkv", one.ring - 1, size, "attention"), ("dkv", 1, size, None)]
    group = ring_group(one)
    where = group.where(sizes.ranks_per_node)
    for payload, count, size, under in hops:
        time = None if machines is None else hop_time(size, where, machines)
        yield Transfer(
            direction=direction,
            op="send_recv",
            payload=payload,
            ranks=group.ranks,
            link=where,
            count=count,
            bytes=size,
            wire_bytes=count * size,
            hides_under=under,
            transfer_ns=None if time is None else as_ns(time.transfer_s),
            ns=None if time is None else as_ns(time.seconds),
        )


def wire_sum(some: Iterable[Transfer], direction: Direction) -> int:
    return sum(one.wire_bytes for one in some if one.direction == direction)
