"""What one rank does in a step, in order: computation, launches of collectives, waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Compute:
    """Work on the device. `flops` of GEMMs and attention; `bytes` that other operators read and write."""

    kind: Literal["gemm", "attention", "memory"]
    flops: int
    bytes: int
    role: str  # the range around it: fwd, dgrad, wgrad, attention, recompute, optimizer; else other


@dataclass(frozen=True)
class Launch:
    """A collective. A synchronous one is waited for at once. `bytes` is the full tensor."""

    op: str
    bytes: int
    is_async: bool
    seq: int
    purpose: str


@dataclass(frozen=True)
class Wait:
    """The computation that follows needs the result of the asynchronous collective `seq`."""

    seq: int


Event = Compute | Launch | Wait


@dataclass(frozen=True)
class Segment:
    """A stretch of a step. `key` is a block's number, or what runs besides the blocks."""

    phase: str  # forward | backward | between (backward and what follows it) | optimizer
    key: int | str
    peak_bytes: int
    """The most that tensors hold at once in it."""
