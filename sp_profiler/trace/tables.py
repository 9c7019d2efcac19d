"""The decoded trace of one rank: plain columns, one numpy array each.

Times are int64 nanoseconds on the axis of the file's `baseTimeNanoseconds` (added in). A missing
integer is `NONE` (-1). Strings are interned: a column of int32 codes into `Strings.pool`, -1 for
none, so that whatever depends on a name is decided once per distinct name and gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sp_profiler.ledger import LedgerEntry
from sp_profiler.trace.remote import is_remote

NONE = -1

Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


class Category(IntEnum):
    """What Kineto calls `cat`, with the names of all schema versions folded together."""

    OTHER = 0
    KERNEL = 1  # kernel, Kernel
    MEMCPY = 2  # gpu_memcpy, Memcpy
    MEMSET = 3  # gpu_memset, Memset
    DEVICE_SYNC = 4  # cuda_sync: waits that are shown on a stream
    CPU_OP = 5  # cpu_op, Operator
    CPU_ANNOTATION = 6  # user_annotation
    DEVICE_ANNOTATION = 7  # gpu_user_annotation
    RUNTIME = 8  # cuda_runtime, cuda_driver, hip..., Runtime
    PYTHON = 9  # python_function


DEVICE_CATEGORIES = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
"""Categories whose events occupy a device. Neither annotations nor synchronisation records do."""


@dataclass(frozen=True)
class Strings:
    """Distinct strings of one file. `pool[code]` is the text; code -1 is "none"."""

    pool: list[str]

    def __getitem__(self, code: int) -> str | None:
        return self.pool[code] if code >= 0 else None

    def match(self, codes: Int32, predicate: Callable[[str], bool]) -> Bool:
        """Which rows hold a string for which `predicate` is true; it is called once per distinct string."""
        places = codes.astype(np.intp, copy=False)  # what indexing makes of it, once
        verdict = np.zeros(len(self.pool) + 1, dtype=np.bool_)  # the last place answers for code -1
        for code in self.used(places):
            verdict[code] = predicate(self.pool[code])
        return verdict[places]

    def used(self, codes: NDArray[Any]) -> list[int]:
        """The distinct codes of a column, ascending, without that of "none"."""
        used = np.zeros(len(self.pool) + 1, dtype=np.bool_)
        used[codes] = True
        return np.flatnonzero(used[:-1]).tolist()


@dataclass(frozen=True)
class Events:
    """All complete events (`ph: X`), in file order. `dur_ns >= 0` always."""

    category: Int8
    name: Int32  # string code
    start_ns: Int64
    dur_ns: Int64
    pid: Int32  # string code of the pid's text: pids may be words
    tid: Int32  # string code of the tid's text
    device: Int32  # args.device (old schema: the pid of a device event), NONE on the CPU
    stream: Int64  # args.stream
    correlation: Int64  # args.correlation
    external_id: Int64  # args["External id"] (old schema: "external id")
    sequence: Int64  # args["Sequence number"]
    fwd_thread: Int64  # args["Fwd thread id"]
    dims: Int32  # string code of args["Input Dims"], compact JSON text
    strides: Int32  # string code of args["Input Strides"], compact JSON text
    types: Int32  # string code of args["Input type"], compact JSON text
    concrete: Int32  # string code of args["Concrete Inputs"], compact JSON text; of c10d operators only
    collective: Int32  # row of Trace.collectives (equal metadata share a row), NONE without NCCL metadata

    def __len__(self) -> int:
        return len(self.name)

    @property
    def end_ns(self) -> Int64:
        return self.start_ns + self.dur_ns


@dataclass(frozen=True)
class CollectiveArgs:
    """The NCCL metadata that one kernel or `record_param_comms` event carries; None where it does not say."""

    name: str | None = None  # "Collective name", as written
    in_elements: int | None = None  # "In msg nelems"
    out_elements: int | None = None  # "Out msg nelems"
    dtype: str | None = None  # "dtype", as written: "BFloat16"
    group_size: int | None = None
    group_name: str | None = None  # "Process Group Name"
    group_description: str | None = None  # "Process Group Description"
    group_ranks: str | None = None  # "Process Group Ranks", as written, perhaps cut: "[0, 1, ..., ...]"
    in_split: str | None = None  # "In split size", as written
    out_split: str | None = None
    rank_start: int | None = None  # "Global rank start"
    rank_stride: int | None = None  # "Global rank stride"
    seq: int | None = None  # "Seq"
    is_async: bool | None = None  # "Is asynchronized op"
    src_rank: int | None = None
    dst_rank: int | None = None
    comms_id: str | None = None  # may exceed int64, so text


@dataclass(frozen=True)
class Flows:
    """Flow events (`ph: s` start, `f` end) of kinds fwdbwd and ac2g/async."""

    kind: Int32  # string code of cat
    is_start: Bool
    id: Int64
    pid: Int32
    tid: Int32
    ts_ns: Int64


@dataclass(frozen=True)
class MemoryEvents:
    """`[memory]` and `[OutOfMemory]` instants, in file order."""

    ts_ns: Int64
    address: NDArray[np.uint64]  # 0 where the file has none
    bytes: Int64  # positive: allocation, negative: free
    total_allocated: Int64  # NONE where the file has none
    total_reserved: Int64
    device_type: Int32  # 0 CPU, 1 CUDA/HIP, as torch numbers them
    device_id: Int32
    tid: Int32  # string code
    failed: Bool  # `[OutOfMemory]`: so many bytes were asked for and not given


@dataclass(frozen=True)
class Metadata:
    """What the file says about itself; None where it does not say."""

    rank: int | None  # distributedInfo.rank, else the file name; None when neither says
    rank_source: str  # "distributedInfo" | "file-name" | "unknown"
    world_size: int | None
    backend: str | None
    host: str | None  # host_name, else the host part of the file name
    schema_version: int | None
    base_time_ns: int
    has_device_properties: bool
    devices: tuple[dict[str, Any], ...] = ()  # deviceProperties
    groups: tuple[dict[str, Any], ...] = ()  # distributedInfo.pg_config
    top_level: dict[str, Any] = field(default_factory=dict)  # every other small top-level value


@dataclass(frozen=True)
class Trace:
    """One trace file: one rank (a file may hold several devices)."""

    path: str
    metadata: Metadata
    strings: Strings
    events: Events
    collectives: tuple[CollectiveArgs, ...]
    flows: Flows
    memory: MemoryEvents
    ledger: tuple[LedgerEntry, ...]
    uncompressed_bytes: int

    @property
    def rank(self) -> int | None:
        return self.metadata.rank

    @property
    def is_cpu_only(self) -> bool:
        """No device event and no device properties: a CPU (gloo) run (DESIGN: CPU runs)."""
        on_device = np.isin(self.events.category, [int(c) for c in DEVICE_CATEGORIES])
        return not self.metadata.has_device_properties and not bool(on_device.any())


@dataclass(frozen=True)
class RunFiles:
    """What `find` found: the trace files of one run, not yet read."""

    name: str  # for people: the folder's or file's name
    root: str  # folder that holds the files
    files: tuple[str, ...]  # trace files, sorted
    run_json: dict[str, Any] | None  # content of run.json when there is one
    ledger: tuple[LedgerEntry, ...] = ()

    def place_of(self, path: str) -> str:
        """Where the file that a trace calls `path` is read from: a URL with what lets somebody in."""
        return next((file for file in self.files if file == path), path) if is_remote(path) else path


@dataclass(frozen=True)
class TraceSet:
    """A run: its traces, one a rank, sorted by rank."""

    name: str
    root: str
    traces: tuple[Trace, ...]
    run_json: dict[str, Any] | None
    ledger: tuple[LedgerEntry, ...]  # entries about the run and of all files

    @property
    def ranks(self) -> tuple[int | None, ...]:
        return tuple(trace.rank for trace in self.traces)
