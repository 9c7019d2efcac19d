"""What schedules are drawn from: process groups, ways of writing a trace, and the truth of transfers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

MAIN, BACKWARD = 100, 101  # threads
COMPUTE, SIDE, COMM, PAIR = 7, 13, 20, 30  # streams; PAIR + peer is that of sends and receives one by one
DTYPES = {"bfloat16": ("BFloat16", 2), "float32": ("Float", 4)}


@dataclass(frozen=True)
class ProcessGroup:
    """`name` is torch's (a number), `description` what the user called it."""

    ranks: tuple[int, ...]
    name: str = "1"
    description: str = "cp"

    @property
    def key(self) -> str:
        return f"{self.description}[{','.join(map(str, sorted(self.ranks)))}]"

    def beside(self, rank: int, by: int) -> int:
        """The rank that lies `by` places further round the ring."""
        return self.ranks[(self.ranks.index(rank) + by) % len(self.ranks)]


@dataclass(frozen=True)
class Style:
    """How a version of torch and a vendor write down what happened.

    `metadata`: on the kernel ("kernel"), only on the `record_param_comms` around the launch ("record"), or
    nowhere ("none"). A batch of sends and receives has no record around its launch: they stand before it
    (`batch_records`), and only `batch_metadata` puts those of the send on the kernel. `waits`: a record of
    torch >= 2.4 or the stream's wait alone.
    """

    metadata: Literal["kernel", "record", "none"] = "kernel"
    batch_metadata: bool = True
    batch_records: bool = True
    host: bool = True  # operators and ranges: with activities=[CUDA] there are launches and kernels only
    waits: Literal["record", "stream", "none"] = "record"
    seq: bool = False
    is_async: bool = False
    vendor: Literal["nvidia", "amd"] = "nvidia"
    forward: str = "flash-2"
    functions: bool = True  # autograd functions and nodes around launches
    flows: bool = False

    @property
    def launch_name(self) -> str:
        return "cudaLaunchKernel" if self.vendor == "nvidia" else "hipLaunchKernel"

    @property
    def launch_nccl(self) -> str:
        return "cudaLaunchKernelExC" if self.vendor == "nvidia" else "hipExtLaunchKernel"

    @property
    def wait_name(self) -> str:
        return "cudaStreamWaitEvent" if self.vendor == "nvidia" else "hipStreamWaitEvent"

    def nccl(self, name: str) -> str:
        return "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)" if self.vendor == "amd" else name


@dataclass(frozen=True)
class Said:
    """What the schedule says of a transfer: the truth that no time belongs to."""

    purpose: str  # kv | dkv | layout | activation | dgrad | pipeline
    payload: str = ""  # kv, k, v, dkv, kv+dkv, q, out, ...
    phase: str = "forward"
    number: int | None = None  # of its pass on this rank, counted over the whole run
    hop: int | None = None  # counted from 1 in each kind of payload of a pass
    step: int | None = None  # the ring step whose attention it travels beside; None: beside none
    repeated: bool = False  # of a forward that backward runs again (activation checkpointing)


@dataclass(frozen=True)
class Transfer:
    """The truth of one communication kernel. Times on the file's own clock."""

    rank: int
    stream: int
    said: Said
    op: str  # send_recv (also an all-to-all with one receiver), all_to_all, all_gather, reduce_scatter, ...
    group: ProcessGroup
    peers: tuple[int, ...]  # of a send/recv
    source: int | None
    target: int | None
    bytes: int  # the largest buffer, as DESIGN counts; of a batch what it sends, else what it receives
    dtype: str
    start_ns: int
    end_ns: int
    wait_call_ns: int | None  # when its launching thread waits for it
    wait_ns: int  # until the last of its ranks has arrived
    transfer_ns: int
    meetings: tuple[tuple[Any, ...], ...]  # what it has in common with other ranks' transfers
    attention_ns: int | None  # of the ring step beside it: 0 where the rank computes nothing in it
    hidden_ns: int
    exposed_ns: int
    exposed_waiting_ns: int  # of that the part before the last of its ranks arrived
    launched: bool = True  # the launch lies in the window too


@dataclass
class Work:
    """A communication kernel on its way."""

    rank: int
    said: Said
    op: str
    group: ProcessGroup
    bytes: int
    dtype: str
    stream: int
    launch_ns: int
    after: Kernel | None  # what its issuing stream held then
    before: Work | None  # the kernel before it on its own stream
    meetings: list[tuple[Any, ...]] = field(
        default_factory=list
    )  # with whom: keys of what must come together
    source: int | None = None
    target: int | None = None
    kernel: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    tid: int = MAIN
    start_ns: int | None = None
    end_ns: int | None = None
    last_ns: int = 0
    transfer_ns: int | None = None
    wait_call_ns: int | None = None

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(sorted({peer for peer in (self.source, self.target) if peer is not None}))

    def seen(self, from_ns: int) -> bool:
        """Whether a profiler that began then has it."""
        return self.start_ns is not None and self.start_ns >= from_ns


@dataclass
class Kernel:
    name: str
    stream: int
    dur_ns: int
    launch_ns: int
    tid: int
    before: Kernel | None
    after: list[Work | Kernel]
    step: tuple[int, int] | None = None  # pass and ring step, of attention
    start_ns: int | None = None
    end_ns: int | None = None
