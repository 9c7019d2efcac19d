"""What one device shows of one process group's context parallelism, in columns: all that stays of a trace."""

from __future__ import annotations

from dataclasses import dataclass

from sp_profiler.trace.tables import Bool, Int64

RING, SELF_ATTENTION, EXCHANGES, GATHERS, UNKNOWN = (
    "ring",
    "ring-self-attention",
    "exchange",
    "gather",
    "unknown",
)
BOTH, SENDS, RECEIVES = range(3)


@dataclass(frozen=True)
class Passes:
    """A row for each pass; int64 columns."""

    phase: Int64  # lines.FORWARD, BACKWARD or RECOMPUTE
    is_whole: Bool  # all its transfers are there, and inside the windows
    is_incomplete: Bool  # the others, but for those of steps that were not chosen
    begin_ns: Int64  # of its first transfer or attention on the device
    end_ns: Int64
    attention_ns: Int64  # (passes, steps): |union| of each ring step's attention
    step_begin_ns: Int64  # (passes, steps): of the first attention or K,V hop of the step; NONE without any
    step_end_ns: Int64  # (passes, steps): of its last attention; NONE without any

    def __len__(self) -> int:
        return len(self.phase)


@dataclass(frozen=True)
class Transfers:
    """A row for each kernel, in order of launch; int64 columns. Several kernels of a pass may be one hop."""

    number: Int64  # place in Classified.collectives
    of_pass: Int64
    payload: Int64  # index into `payloads`
    hop: Int64
    beside: Int64  # the ring step whose attention it travels beside, NONE without one
    order: Int64  # its place among the transfers of its pass
    before_ns: Int64  # attention launched since the transfer before it ...
    needs: Int64  # ... and the row of the last transfer that had ended when that began, NONE without one
    follows: Int64  # the row of the last transfer launched before it that had ended when it began
    start_ns: Int64
    end_ns: Int64
    bytes: Int64  # NONE where unknown
    way: Int64  # SENDS, RECEIVES, or BOTH (also where nobody knows)
    payloads: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True)
class Copies:
    """Layout copies around the all-to-alls of a phase, sums over its whole passes."""

    phase: int
    passes: int
    copies: int
    copy_ns: int


@dataclass(frozen=True)
class Family:
    """One process group's transfers on one device and how they were read."""

    kind: str  # RING ... UNKNOWN
    group: str | None  # the group's key
    ranks: tuple[int, ...]
    size: int | None
    ends: tuple[
        tuple[int | None, int | None], ...
    ]  # of a ring by phase: the rank before it, the one after it
    in_pairs: bool  # sends and receives are kernels of their own
    op: str  # of most transfers
    is_async: bool | None  # of most transfers of which it is known
    unread: int  # runs of transfers that fit no pass
    passes: Passes
    transfers: Transfers
    copies: tuple[Copies, ...] = ()
    both_ways: tuple[int, ...] = ()  # of a ring that sends as much one way as the other: its neighbours
    peers: tuple[tuple[int, tuple[int, ...]], ...] = ()  # numbers of shifts and all their ends, completed


@dataclass(frozen=True)
class DeviceContext:
    """All families of a device."""

    device: int
    is_cpu: bool
    families: tuple[Family, ...]
