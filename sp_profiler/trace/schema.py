"""How an event is spelled in the file: the fields we read and the names of categories.

All schema versions and vendors are folded together here and nowhere else.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sp_profiler.trace.tables import Category

NO_TEXT = msgspec.Raw()

MAX_DURATION_NS = 30 * 24 * 3600 * 10**9
"""Durations beyond 30 days are overflows of the recorder, not times.

A profiler keeps its whole recording in memory, so a recording, and with it every event, lasts
seconds to hours. The overflows seen from CUPTI and roctracer are end stamps of 0 or wrapped
differences: 10^15 µs (31 years) and above, up to 2^64 ns (584 years). 30 days lies far from both.
"""

MAX_TIME_NS = (1 << 62) - (1 << 53)
"""Start times and `baseTimeNanoseconds` beyond +-146 years mean nothing, and within it their sum, and
the end of the longest event from there, fit into int64."""


class Args(msgspec.Struct, frozen=True, gc=False):
    """The `args` we read. `Any` because vendors quote numbers; it is settled when columns are made."""

    external_id: Any = msgspec.field(name="External id", default=-1)
    sequence: Any = msgspec.field(name="Sequence number", default=-1)
    fwd_thread: Any = msgspec.field(name="Fwd thread id", default=-1)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NO_TEXT)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NO_TEXT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NO_TEXT)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NO_TEXT)
    device: Any = -1
    stream: Any = -1
    correlation: Any = -1
    old_external_id: Any = msgspec.field(name="external id", default=-1)
    collective_name: Any = msgspec.field(name="Collective name", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    dtype: Any = None
    in_split: Any = msgspec.field(name="In split size", default=None)
    out_split: Any = msgspec.field(name="Out split size", default=None)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    rank_start: Any = msgspec.field(name="Global rank start", default=None)
    rank_stride: Any = msgspec.field(name="Global rank stride", default=None)
    seq: Any = msgspec.field(name="Seq", default=None)
    is_async: Any = msgspec.field(name="Is asynchronized op", default=None)
    src_rank: Any = msgspec.field(name="Src Rank", default=None)
    dst_rank: Any = msgspec.field(name="Dst Rank", default=None)
    comms_id: Any = msgspec.field(name="Comms Id", default=None)
    bytes: Any = msgspec.field(name="Bytes", default=None)
    address: Any = msgspec.field(name="Addr", default=0)
    total_allocated: Any = msgspec.field(name="Total Allocated", default=-1)
    total_reserved: Any = msgspec.field(name="Total Reserved", default=-1)
    device_type: Any = msgspec.field(name="Device Type", default=-1)
    device_id: Any = msgspec.field(name="Device Id", default=-1)


NO_ARGS = Args()

COLLECTIVE_FIELDS = (
    "collective_name", "in_elements", "out_elements", "dtype", "group_size", "group_name",
    "group_description", "group_ranks", "in_split", "out_split", "rank_start", "rank_stride",
    "seq", "is_async", "src_rank", "dst_rank", "comms_id",
)  # fmt: skip
"""The NCCL metadata in `Args`, in the order of `CollectiveArgs`."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One entry of `traceEvents`. Times stay text, so that they become exact nanoseconds."""

    ph: str = ""
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = NO_TEXT
    dur: msgspec.Raw = NO_TEXT
    args: Args | None = NO_ARGS
    id: Any = -1


NO_EVENT = Event()

FLOW_PHASES = ("s", "f")
OUT_OF_MEMORY = "[OutOfMemory]"
MEMORY_NAMES = ("[memory]", OUT_OF_MEMORY)
"""Names of the instants (ph i) that tell of memory; the last one, of memory that was not given."""
BEGIN_END_PHASES = ("B", "E")
IGNORED_PHASES = "ICbneSTpFPtNODMVvRc()"
"""Phases of the Trace Event Format that hold none of a profiler's activities."""
PHASES = frozenset(("X", "i", *BEGIN_END_PHASES, *FLOW_PHASES, *IGNORED_PHASES))
"""Every phase of the Trace Event Format."""

_CATEGORIES = {
    Category.KERNEL: ("kernel", "concurrent_kernel", "mtia_ccp_events"),
    Category.MEMCPY: ("gpu_memcpy", "memcpy"),
    Category.MEMSET: ("gpu_memset", "memset"),
    Category.DEVICE_SYNC: ("cuda_sync", "gpu_sync", "hip_sync", "xpu_sync"),
    Category.CPU_OP: ("cpu_op", "operator"),
    Category.CPU_ANNOTATION: ("user_annotation",),
    Category.DEVICE_ANNOTATION: ("gpu_user_annotation",),
    Category.RUNTIME: (
        "runtime",
        "driver",
        "cuda_runtime",
        "cuda_driver",
        "hip_runtime",
        "hip_driver",
        "hip_api",
        "xpu_runtime",
        "xpu_driver",
        "mtia_runtime",
        "glow_runtime",
        "privateuse1_runtime",
        "privateuse1_driver",
    ),
    Category.PYTHON: ("python_function",),
}
_BY_NAME = {name: category for category, names in _CATEGORIES.items() for name in names}

_SYNC_NAMES = frozenset(
    f"{what} {sync}" for what in ("context", "stream", "event", "device") for sync in ("sync", "synchronize")
) | {"stream wait event", "synchronization"}


def category_of(cat: object) -> Category:
    """The category that a `cat` stands for, in any spelling; OTHER for all that is no activity."""
    return _BY_NAME.get(cat.lower(), Category.OTHER) if isinstance(cat, str) else Category.OTHER


WITH_CONCRETE_INPUTS = ("c10d::", "_c10d_functional")
"""How the names of operators begin of which the values of inputs are kept."""


def keeps_concrete_inputs(name: str) -> bool:
    """Whether the values of an operator's inputs are kept: only collectives' tell what shapes do not."""
    return name.startswith(WITH_CONCRETE_INPUTS)


def is_sync_name(name: str) -> bool:
    """Whether a "kernel" of this name is a synchronisation record that an older recorder filed wrongly."""
    return name.lower() in _SYNC_NAMES
