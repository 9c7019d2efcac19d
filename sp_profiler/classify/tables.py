"""What each activity is: the columns that `classify` adds and every analysis reads.

`Activities` are the device-side events of one rank (kernels, copies, memsets), or, in CPU-only
files, `gloo:*` ranges and the self time of operators: one activity per stretch of time in which an
operator is the innermost on its thread. Rows are sorted by (start_ns, row in the trace).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from sp_profiler.ledger import LedgerEntry
from sp_profiler.trace.tables import Bool, Int8, Int32, Int64


class Kind(IntEnum):
    """What an activity does to the device's time."""

    COMMUNICATION = 0  # enters C
    COMPUTATION = 1  # enters K
    FUSED = 2  # a GEMM fused with its collective: enters C and K
    MEMORY = 3  # copies and memsets that are not communication: enters M


class Role(IntEnum):
    """Role of a computation; the order breaks ties when shares are rounded."""

    FWD = 0
    RECOMPUTE = 1
    DGRAD = 2
    WGRAD = 3
    ATTENTION = 4
    OPTIMIZER = 5
    OTHER = 6  # known to be none of these: norms, element-wise kernels, embedding, loss, convolutions
    UNKNOWN = 7  # a GEMM, or a compiled or fused kernel, of which no rule tells the role


class Phase(IntEnum):
    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    UNKNOWN = 3


UNKNOWN_STEP = -2  # the launch is not in the trace, so nobody knows
OUTSIDE_STEPS = -1  # launched, but outside every ProfilerStep range


@dataclass(frozen=True)
class Activities:
    """One row per activity; all columns have the same length. NONE (-1) where not known."""

    event: Int64  # row of Trace.events
    name: Int32  # string code
    device: Int32  # 0 in CPU-only files
    stream: Int64  # CPU-only files: the thread, numbered in order of appearance
    start_ns: Int64
    end_ns: Int64
    kind: Int8  # Kind
    role: Int8  # Role; of communication: UNKNOWN
    role_rule: Int32  # index into Classified.rules
    phase: Int8  # Phase
    launch_ns: Int64  # start of the launching call; NONE when not in the trace
    step: Int32  # number of the launching ProfilerStep; UNKNOWN_STEP, OUTSIDE_STEPS
    module: Int32  # string code (Classified.names)
    layer: Int32
    is_gemm: Bool
    range_start_ns: Int64  # start of the innermost sp:: range around the launch, NONE without one
    node: Int64  # event row of the autograd node around the launch ("same linear"), NONE in forward
    recomputed: Bool  # forward work inside a node of backward
    collective: Int32  # row of Collectives, NONE for the others

    def __len__(self) -> int:
        return len(self.event)


@dataclass(frozen=True)
class Group:
    """A process group. `key` is its description and ranks, `tp[0,1]`, the same string everywhere."""

    key: str
    description: str
    ranks: tuple[int, ...]  # empty when the trace does not say
    size: int | None
    backend: str | None = None


@dataclass(frozen=True)
class Collective:
    """What is known of one communication activity; None where the trace does not say."""

    activity: int  # row of Activities
    op: str | None  # all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv, ...
    group: Group | None
    bytes: int | None  # the full tensor: max(in, out) elements x element size
    dtype: str | None  # torch's spelling: bfloat16, float32, float8_e4m3fn
    seq: int | None
    is_async: bool | None
    purpose: str
    purpose_rule: str
    module: str | None
    layer: int | None
    partner_what: str | None  # from the annotation: "wgrad"
    launch_ns: int | None
    launch_end_ns: int | None  # end of the launching call or of the sp::comm range
    wait_start_ns: int | None  # the launching thread waits from here ...
    wait_end_ns: int | None  # ... to here
    in_elements: int | None = None
    out_elements: int | None = None
    peers: tuple[int, ...] = ()
    bandwidth_known: bool = True  # False: the interval is not the transfer (gloo send/recv)
    group_name: str | None = None  # torch's name of the group in its metadata; not unique, see `group`
    thread_sat_idle: bool = False  # CPU files: the launching thread began nothing until the collective's end
    # Of a send_recv, and of an all-to-all that is a shift around a ring, as metadata number the ranks.
    source: int | None = None  # it receives from
    target: int | None = None  # it sends to


@dataclass(frozen=True)
class Step:
    """A `ProfilerStep#number` range on the CPU."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Classified:
    """The result of `classify` for one rank."""

    activities: Activities
    collectives: tuple[Collective, ...]  # in order of their activities
    groups: tuple[Group, ...]
    steps: tuple[Step, ...]  # sorted by start
    names: tuple[str, ...]  # strings that module codes refer to
    rules: tuple[str, ...]  # names of the rules that decided roles
    is_cpu_only: bool
    cpu_comm_ns: int | None  # gloo time in files that also hold device events; never in C
    ledger: tuple[LedgerEntry, ...]
