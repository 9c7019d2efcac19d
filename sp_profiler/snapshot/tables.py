"""A snapshot as columns: what the allocator held when it was taken, and the history that led there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sp_profiler.ledger import LedgerEntry
from sp_profiler.snapshot.worker.protocol import NONE

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Events:
    """The history of one device, in the order in which it happened.

    `size` is what the program asked for of `alloc` and `free_*` (torch records the requested size), the
    whole range of segment events, and of `oom` the request that failed. `address` is the device's free
    bytes for `oom`. `time_us` is microseconds since the epoch, NONE in old snapshots.
    """

    action: Ints
    address: Ints
    size: Ints
    stream: Ints
    time_us: Ints
    stack: Ints  # number of a stack in `Stacks`
    category: Ints  # number of a text: what torch's memory profiler took the tensor for
    label: Ints  # number of a text: torch.cuda.memory._set_memory_metadata
    private: Ints  # 1: of a pool of its own (a CUDA graph's, a MemPool's)


@dataclass(frozen=True)
class Segments:
    """What the allocator had from the driver at the end."""

    address: Ints
    size: Ints
    allocated: Ints
    active: Ints
    stream: Ints
    small: Ints  # 1: of the pool for blocks up to 1 MiB
    private: Ints
    expandable: Ints


@dataclass(frozen=True)
class EndBlocks:
    """The pieces of the segments at the end. `size` is rounded up, `requested` what was asked for."""

    segment: Ints  # number of a segment of the same device
    address: Ints
    size: Ints
    requested: Ints
    state: Ints
    stack: Ints
    label: Ints


@dataclass(frozen=True)
class Annotations:
    """Starts and ends of `record_function` ranges (`global_record_annotations=True`)."""

    time_us: Ints
    name: Ints
    is_end: Ints


@dataclass(frozen=True)
class DeviceSnapshot:
    device: int
    events: Events
    segments: Segments
    blocks: EndBlocks
    annotations: Annotations


@dataclass(frozen=True)
class Stacks:
    """Every distinct stack once. `frames[starts[i]:ends[i]]` are the frames of stack i, innermost first.

    `file`, `line`, `function`, `origin` are columns over distinct frames; texts are numbers of `texts`.
    """

    texts: list[str]
    file: Ints
    line: Ints
    function: Ints
    origin: Ints
    frames: Ints
    ends: Ints

    def __len__(self) -> int:
        return len(self.ends)

    def of(self, stack: int) -> Ints:
        """The frames of one stack, innermost first; none for NONE."""
        if stack == NONE:
            return self.frames[:0]
        return self.frames[self.ends[stack - 1] if stack else 0 : self.ends[stack]]


@dataclass(frozen=True)
class Snapshot:
    """One file. `has_history` is False for one that holds only the state at the end."""

    path: str
    rank: int | None
    devices: tuple[DeviceSnapshot, ...]
    stacks: Stacks
    has_history: bool
    expandable_segments: bool | None
    allocator_conf: str | None
    ledger: tuple[LedgerEntry, ...] = field(default=())
