"""The results of the memory analyses, the same for traces (`[memory]` events) and for CUDA memory snapshots.

All sizes are bytes, all times int nanoseconds of the rank's own axis. None means "could not look", and the
ledger says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Source = Literal["events", "snapshot", "hooks"]

CATEGORIES = (
    "parameter-optimizer",  # alive across steps: parameters and optimizer state
    "gradient",  # born in backward, alive until the optimizer's step or zero_grad
    "activation",  # born in forward, dies in backward: kept for backward
    "communication",  # born inside a collective: a gathered input, a bucket
    "temporary",  # dies in the phase in which it was born
    "before-window",  # alive when the recording began and known only by that
    "unknown",  # nothing tells: no address, no operator, no phase
)


@dataclass(frozen=True)
class MemoryBlock:
    """One block of memory from its allocation to its free.

    `birth_ns` is None for a block that was alive when the recording began, `death_ns` for one that is alive
    at its end; `lifetime_ns` is None with either.
    """

    bytes: int
    category: str  # one of CATEGORIES
    birth_ns: int | None
    death_ns: int | None
    lifetime_ns: int | None
    address: int | None
    operator: str | None  # the innermost operator around the allocation; of a snapshot the first user frame
    stack: list[str] = field(default_factory=list)  # the ranges or frames around it, outermost first
    phase: str | None = None  # forward | backward | optimizer
    step: int | None = None
    module: str | None = None
    layer: int | None = None
    freed_by: str | None = None  # the innermost operator around the free
    freed_phase: str | None = None
    crosses_border: bool = False  # born in forward, alive when backward begins
    # The innermost operator that is more than an allocation (`aten::empty` and its kind): figures by operator
    # go by this one.
    made_by: str | None = None


@dataclass(frozen=True)
class Unpaired:
    """An event or block without its other half."""

    kind: str  # freed-without-allocation | alive-at-end | freed-twice | allocated-twice | without-address
    bytes: int
    address: int | None
    time_ns: int | None


@dataclass(frozen=True)
class BorderFigures:
    """What is alive at one forward -> backward border and is freed in backward: kept for backward."""

    step: int | None
    border_ns: int  # the first backward work after forward work
    bytes: int
    blocks: int
    by_module: dict[str, int]
    by_layer: dict[str, int]
    by_category: dict[str, int]
    by_operator: dict[str, int]
    by_layer_category: dict[str, dict[str, int]] = field(default_factory=dict)  # keys as in `by_layer`


@dataclass(frozen=True)
class PhaseStretch:
    """From the first to the last memory event of one phase of a step, to be marked in drawings."""

    phase: str  # forward | backward | optimizer
    step: int | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class MemoryCurve:
    """Live bytes over time, thinned for drawing; every peak of the full curve is kept."""

    time_ns: list[int]
    allocated_bytes: list[int]
    by_category: dict[str, list[int]]  # live bytes of each category at `time_ns`; empty without addresses
    phases: list[PhaseStretch] = field(default_factory=list)  # in order of time


@dataclass(frozen=True)
class OutOfMemory:
    """An allocation that failed, as a snapshot's history tells it."""

    time_ns: int | None
    asked_bytes: int
    device_free_bytes: int | None  # what the device had left
    allocated_bytes: int | None
    reserved_bytes: int | None
    reserved_unused_bytes: int | None  # reserved by the allocator, not allocated
    largest_unused_bytes: int | None  # the largest piece of those: smaller than `asked` means fragmentation
    by_frame: dict[str, int] = field(default_factory=dict)  # live bytes by first user frame, largest first
    by_category: dict[str, int] = field(default_factory=dict)
    # fragmentation | full | limit | unknown: unused pieces would do if they lay together; there is not enough
    # in any case; the device had enough, but this process may not have it; sizes are missing
    reason: str = "unknown"
    asked_by: str | None = None  # the first user frame of the request
    stack: list[str] = field(default_factory=list)  # of the request, outermost first
    awaiting_free_bytes: int | None = None  # freed by the program, still used on another stream
    largest_usable_bytes: int | None = None  # the largest unused piece that this request may have at all
    expandable_segments: bool | None = None  # whether the allocator could join pieces; None: not told
    largest_blocks: list[MemoryBlock] = field(default_factory=list)


@dataclass(frozen=True)
class MemoryFigures:
    """The memory of one device of one rank."""

    source: Source
    rank: int | None
    device_type: str  # cuda | cpu
    device: int | None  # None: the CPU
    file: str
    events: int
    # The peak of live bytes. `is_relative`: the file tells neither totals nor addresses, so bytes count from
    # what was allocated when the recording began.
    peak_bytes: int | None
    peak_ns: int | None
    is_relative: bool = False
    peak_step: int | None = None
    peak_phase: str | None = None
    peak_reserved_bytes: int | None = None
    peak_by_category: dict[str, int] | None = None
    peak_by_operator: dict[str, int] | None = None
    peak_by_module: dict[str, int] | None = None
    peak_blocks: list[MemoryBlock] = field(default_factory=list)  # the largest alive at the peak
    start_bytes: int | None = None  # allocated before the first event
    end_bytes: int | None = None
    across_border_bytes: int | None = None  # of the border with most
    across_border_by_module: dict[str, int] | None = None
    across_border_by_layer: dict[str, int] | None = None
    borders: list[BorderFigures] = field(default_factory=list)
    blocks_count: int | None = None  # blocks seen, whole or in part
    blocks: list[MemoryBlock] | None = (
        None  # the largest of them, at most `SHOWN_BLOCKS`; None without addresses
    )
    unpaired_count: int | None = None
    unpaired: list[Unpaired] | None = None
    totals_checked: int | None = None  # events whose running total was compared with the file's own
    totals_disagree: int | None = None
    curve: MemoryCurve | None = None
    out_of_memory: list[OutOfMemory] = field(default_factory=list)


SHOWN_BLOCKS = 10_000
"""How many blocks a device lists, and all but the leading devices of a report together; `blocks_count` tells
how many there are."""


@dataclass(frozen=True)
class SavedTerm:
    """One term of what a rank keeps for backward: measured with hooks, and what the closed form says.

    `layer` is None for the sum over all layers and for terms outside of blocks.
    """

    term: str  # one of theory.memory.TERMS
    layer: int | None
    bytes: int
    theory_bytes: int | None  # None: no closed form for it
    tensors: int


@dataclass(frozen=True)
class SavedPart:
    """Equal tensors saved for backward; `bytes` is of all of them."""

    term: str
    module: str | None
    operator: str
    bytes: int
    count: int


@dataclass(frozen=True)
class SavedTensors:
    """Activations that one rank keeps for backward, counted once per storage, parameters excluded."""

    rank: int | None
    saved_bytes: int
    theory_bytes: int | None
    terms: list[SavedTerm]
    by_module: dict[str, int]
    by_layer: dict[str, int]
    by_operator: dict[str, int]
    # Live bytes at the end of forward that no hook saw, named: attributes put on `ctx` by hand, ...
    hidden_bytes: int | None = None
    hidden: list[MemoryBlock] = field(default_factory=list)
    peak_bytes: int | None = None  # of live tensor storages during the step
    allocator_peak_bytes: int | None = None  # what the CUDA allocator says of the same step
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_bytes: int | None = None
    parts: list[SavedPart] = field(default_factory=list)


@dataclass(frozen=True)
class Opportunity:
    """A kind of buffer that stays alive across the border, and what giving it up would cost."""

    kind: str  # gathered-input | attention-core | block-activations | norm-input ...
    bytes: int  # over all layers, of one rank
    layers: int
    freed_bytes: int  # what would be freed: e.g. all but the local shard; of a foreign run at least that
    how: str  # the knob: --save shard, --recompute selective, ...
    added_comm_bytes: int | None  # wire bytes per step that one rank sends more; None: not known
    added_comm_ns: (
        int | None
    )  # what that takes, from this run's own collectives of that size; None: not known
    hideable_ns: int | None  # compute time it could hide under
    would_be_exposed_ns: int | None


@dataclass(frozen=True)
class Memory:
    """The memory section of a report.

    The figures on top are those of the device with the highest peak (of a GPU where there is any): the first
    of `ranks` that has `peak_bytes` equal to this one's. All devices are in `ranks`.
    """

    source: Source
    rank: int | None
    device: int | None
    peak_bytes: int | None
    peak_ns: int | None
    is_relative: bool
    peak_by_category: dict[str, int] | None
    peak_blocks: list[MemoryBlock]
    across_border_bytes: int | None
    across_border_by_module: dict[str, int] | None
    saved_bytes: int | None  # of the rank that keeps most; from hooks
    theory_bytes: int | None
    blocks: list[MemoryBlock] | None
    unpaired: list[Unpaired] | None
    ranks: list[MemoryFigures] = field(default_factory=list)
    saved: list[SavedTensors] = field(default_factory=list)
    opportunities: list[Opportunity] = field(default_factory=list)
    # The sizes of what the run's forward gathers for its linears: kept blocks of such a size are those.
    gathered_input_bytes: list[int] = field(default_factory=list)
