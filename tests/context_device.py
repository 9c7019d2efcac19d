"""Several ranks' devices, played through: what a schedule launches, when it runs, and what is known of it.

    machine = Machine(ranks=2)
    for rank in machine.ranks:
        work = rank.batch(CP, sends={peer: [1024]}, receives={peer: [1024]}, truth=...)
        rank.attention(500_000)
        rank.wait(work)
    machine.play()                       # streams, arrivals, ends
    machine.write(folder)                # rank0.json ... as torch.profiler writes them
    machine.truth                        # one Transfer for each communication kernel

The rules are those of CUDA streams and of torch's NCCL process groups, nothing of the profiler's: kernels of
one stream follow each other; a collective begins after what was launched before it on the stream that it was
issued from; `wait` makes that stream wait; a transfer begins when the last of its ranks has arrived and takes
latency + bytes / bandwidth. Times are int ns on one time axis (each rank's file may have a clock of its own).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from sp_profiler.trace.write import TraceWriter, collective_args

MAIN, BACKWARD = 100, 101  # threads
COMPUTE, SIDE, COMM, PAIR = 7, 13, 20, 30  # streams; PAIR + peer is that of sends and receives one by one
EVALUATE = "autograd::engine::evaluate_function: "
DTYPES = {"bfloat16": ("BFloat16", 2), "float32": ("Float", 4)}
_LATENCY_NS, _BYTES_PER_NS = 8_000, 40
_CALL_NS, _DELAY_NS = 4_000, 3_000  # of a launch on the host, and until it reaches an idle device


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
    nowhere ("none"). A batch of sends and receives has no record around its launch: they stand before it, and
    only `batch_metadata` puts those of the send on the kernel. `waits`: a record of torch >= 2.4 or the
    stream's wait alone.
    """

    metadata: Literal["kernel", "record", "none"] = "kernel"
    batch_metadata: bool = True
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


@dataclass(frozen=True)
class Transfer:
    """The truth of one communication kernel. Times on the file's own clock."""

    rank: int
    said: Said
    op: str  # send_recv | all_to_all | all_gather | reduce_scatter | all_reduce
    group: ProcessGroup
    peers: tuple[int, ...]  # of a send/recv
    source: int | None
    target: int | None
    bytes: int  # the largest buffer, as DESIGN counts; of a batch what it sends, else what it receives
    dtype: str
    start_ns: int
    end_ns: int
    wait_ns: int  # until the last of its ranks has arrived
    transfer_ns: int
    attention_ns: int | None  # of the ring step beside it: 0 where the rank computes nothing in it
    hidden_ns: int
    exposed_ns: int
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

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(sorted({peer for peer in (self.source, self.target) if peer is not None}))


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


class Machine:
    """All ranks. Write the ranks' programs, `play`, then `write`."""

    def __init__(
        self, ranks: int, style: Style | None = None, *, bytes_per_ns: float = _BYTES_PER_NS
    ) -> None:
        self.style = style or Style()
        self.bytes_per_ns = bytes_per_ns
        self.ranks = [Rank(self, number) for number in range(ranks)]
        self.truth: list[Transfer] = []

    def play(self) -> Machine:
        """Give every kernel its time. Raises AssertionError where ranks wait for each other for ever."""
        arrived: dict[Any, dict[int, int]] = defaultdict(dict)
        parties = self._parties()
        todo = [list(rank.launched) for rank in self.ranks]
        while any(todo):
            before = sum(map(len, todo))
            for queue in todo:
                queue[:] = [one for one in queue if not self._settle(one, arrived, parties)]
            assert sum(map(len, todo)) < before, "the schedule deadlocks"
        return self

    def _parties(self) -> dict[Any, int]:
        found: dict[Any, int] = defaultdict(int)
        for rank in self.ranks:
            for one in rank.launched:
                for key in one.meetings if isinstance(one, Work) else ():
                    found[key] += 1
        for key, count in found.items():
            assert count == key[-1], f"{count} of {key[-1]} ranks come to {key}"
        return found

    def _settle(
        self, one: Work | Kernel, arrived: dict[Any, dict[int, int]], parties: dict[Any, int]
    ) -> bool:
        if isinstance(one, Kernel):
            needed = [one.before, *one.after]
            if any(other is not None and other.end_ns is None for other in needed):
                return False
            free = [other.end_ns or 0 for other in needed if other is not None]
            one.start_ns = max([one.launch_ns + _DELAY_NS, *free])
            one.end_ns = one.start_ns + one.dur_ns
            return True
        if one.start_ns is None:
            needed = [one.before, one.after]
            if any(other is not None and other.end_ns is None for other in needed):
                return False
            free = [other.end_ns or 0 for other in needed if other is not None]
            one.start_ns = max([one.launch_ns + _DELAY_NS, *free])
            for key in one.meetings:
                arrived[key][one.rank] = one.start_ns
        if any(len(arrived[key]) < parties[key] for key in one.meetings):
            return False
        one.last_ns = max(max(arrived[key].values()) for key in one.meetings)
        one.transfer_ns = _LATENCY_NS + int(one.bytes / self.bytes_per_ns)
        one.end_ns = one.last_ns + one.transfer_ns
        return True

    def write(
        self,
        folder: Path,
        *,
        only: Sequence[int] | None = None,
        clocks: Mapping[int, int] | None = None,
        cut_ns: int = 0,
        hosts: bool = False,
    ) -> Path:
        """The ranks' files. `only`: the ranks whose files are there; `clocks`: ns that a clock is ahead;
        `cut_ns`: the profiler began then: nothing from before is in the files. Fills `truth`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.truth.clear()
        for rank in self.ranks:
            if only is None or rank.number in only:
                ahead = (clocks or {}).get(rank.number, 0)
                rank.write(
                    folder / f"rank{rank.number}.json",
                    ahead,
                    cut_ns,
                    f"host-{rank.number}" if hosts else None,
                )
                self.truth += [
                    _truth(rank, work, ahead, cut_ns) for work in rank.works if (work.start_ns or 0) >= cut_ns
                ]
        return folder


def _truth(rank: Rank, work: Work, ahead: int, cut_ns: int) -> Transfer:
    assert work.start_ns is not None
    assert work.end_ns is not None
    assert work.transfer_ns is not None
    kernels = [one for one in rank.kernels if (one.start_ns or 0) >= cut_ns]
    hidden = _covered(work.start_ns, work.end_ns, kernels)
    said, beside = work.said, None
    if said.step is not None and said.number is not None:
        beside = sum(one.dur_ns for one in kernels if one.step == (said.number, said.step))
    return Transfer(
        rank=work.rank,
        said=said,
        op=work.op,
        group=work.group,
        peers=work.peers if work.op == "send_recv" else (),
        source=work.source,
        target=work.target,
        bytes=work.bytes,
        dtype=work.dtype,
        start_ns=work.start_ns + ahead,
        end_ns=work.end_ns + ahead,
        wait_ns=work.last_ns - work.start_ns,
        transfer_ns=work.transfer_ns,
        attention_ns=beside,
        hidden_ns=hidden,
        exposed_ns=work.end_ns - work.start_ns - hidden,
        launched=work.launch_ns >= cut_ns,
    )


def _covered(start: int, end: int, kernels: Sequence[Kernel]) -> int:
    """How much of [start, end) any of the kernels covers."""
    total, reached = 0, start
    for one in sorted(kernels, key=lambda one: one.start_ns or 0):
        assert one.start_ns is not None
        assert one.end_ns is not None
        low, high = max(one.start_ns, reached), min(one.end_ns, end)
        if low < high:
            total += high - low
            reached = high
    return total


class Rank:
    """One rank's program, written in the order in which its host runs it."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.number = number
        self.now = 1_000_000
        self.tid = MAIN
        self.stream = COMPUTE
        self.launched: list[Work | Kernel] = []
        self.kernels: list[Kernel] = []
        self.works: list[Work] = []
        self.passes = 0
        self._host: list[tuple[int, str, str, int, dict[str, Any]]] = []  # start, kind, name, dur, options
        self._last: dict[int, Kernel] = {}
        self._last_work: dict[int, Work] = {}
        self._awaited: dict[int, list[Work]] = defaultdict(list)
        self._met: dict[Any, int] = defaultdict(int)
        self._sequence = 10
        self._seq: dict[str, int] = defaultdict(int)

    @property
    def style(self) -> Style:
        return self.machine.style

    # --- the host ------------------------------------------------------------------------------------

    def spend(self, ns: int) -> None:
        """The host does something else."""
        self.now += ns

    @contextmanager
    def op(self, name: str, **options: Any) -> Iterator[None]:
        """An operator around what is launched inside."""
        start = self.now
        self.now += 500
        yield
        self.now += 500
        self._host.append((start, "cpu_op", name, self.now - start, {"tid": self.tid, **options}))

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        start = self.now
        self.now += 200
        yield
        self.now += 200
        self._host.append((start, "range", name, self.now - start, {"tid": self.tid}))

    @contextmanager
    def function(self, name: str) -> Iterator[int]:
        """A differentiable function of forward; gives the sequence number that its node has."""
        self._sequence += 1
        number = self._sequence
        if not self.style.functions:
            yield number
            return
        with self.op(name, sequence=number, fwd_thread=0):
            yield number

    @contextmanager
    def node(self, name: str, sequence: int) -> Iterator[None]:
        """The node of backward of the function with this number, on the thread of backward."""
        self.tid = BACKWARD
        options: dict[str, Any] = {"sequence": sequence, "fwd_thread": 1}
        if self.style.functions:
            with self.op(EVALUATE + name, **options), self.op(name, **options):
                yield
        else:
            yield
        self.tid = MAIN

    @contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """`with torch.cuda.stream(...)`."""
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def new_pass(self) -> int:
        """The number of the pass that begins here."""
        self.passes += 1
        return self.passes - 1

    # --- computation ---------------------------------------------------------------------------------

    def kernel(
        self, name: str, dur_ns: int, *, op: str | None = "aten::mm", step: tuple[int, int] | None = None
    ) -> None:
        """A computation on the current stream, launched from an operator."""
        with self.op(op) if op else nullcontext():
            one = Kernel(name, self.stream, dur_ns, self.now, self.tid, self._last.get(self.stream), [], step)
            one.after = list(self._awaited.pop(self.stream, []))
            self._last[self.stream] = one
            self.kernels.append(one)
            self.launched.append(one)
            self.now += _CALL_NS

    # --- communication -------------------------------------------------------------------------------

    def batch(
        self,
        group: ProcessGroup,
        *,
        sends: Mapping[int, Sequence[int]],
        receives: Mapping[int, Sequence[int]],
        said: Said,
        dtype: str = "bfloat16",
    ) -> Work:
        """`batch_isend_irecv`: one kernel. Elements of each tensor by the (global) rank at the other end."""
        tensors = [("send", peer, n) for peer, many in sends.items() for n in many]
        tensors += [("recv", peer, n) for peer, many in receives.items() for n in many]
        for name, peer, elements in tensors:
            record = self._record(self._p2p_args(group, name, peer, elements, dtype))
            with self.op("c10d::send" if name == "send" else "c10d::recv_"), record:
                self.now += 300
        own, args = self.style.batch_metadata and self.style.metadata == "kernel", {}
        if own:
            target = next(iter(sends), None)
            total = sum(n for many in (sends or receives).values() for n in many)
            name, peer = ("send", target) if target is not None else ("recv", next(iter(receives)))
            args = self._p2p_args(group, name, peer, total, dtype)
        with self.range("nccl:coalesced"):
            return self._exchange(group, sends, receives, said, dtype, COMM, args)

    def isend(
        self, group: ProcessGroup, peer: int, elements: int, said: Said, dtype: str = "bfloat16"
    ) -> Work:
        """`isend`: a kernel of its own, on the stream of the pair."""
        return self._alone(group, "send", peer, elements, said, dtype)

    def irecv(
        self, group: ProcessGroup, peer: int, elements: int, said: Said, dtype: str = "bfloat16"
    ) -> Work:
        return self._alone(group, "recv", peer, elements, said, dtype)

    def _alone(
        self, group: ProcessGroup, name: str, peer: int, elements: int, said: Said, dtype: str
    ) -> Work:
        args = self._p2p_args(group, name, peer, elements, dtype)
        sends, receives = ({peer: [elements]}, {}) if name == "send" else ({}, {peer: [elements]})
        operator = "c10d::send" if name == "send" else "c10d::recv_"
        with self.op(operator), self._record(args):
            own = args if self.style.metadata == "kernel" else {}
            return self._exchange(group, sends, receives, said, dtype, PAIR + peer, own)

    def _p2p_args(
        self, group: ProcessGroup, name: str, peer: int, elements: int, dtype: str
    ) -> dict[str, Any]:
        ends = (self.number, peer) if name == "send" else (peer, self.number)
        return self._args(
            group, name, elements, elements, dtype, **{"Src Rank": ends[0], "Dst Rank": ends[1]}
        )

    def _exchange(
        self,
        group: ProcessGroup,
        sends: Mapping[int, Sequence[int]],
        receives: Mapping[int, Sequence[int]],
        said: Said,
        dtype: str,
        stream: int,
        args: dict[str, Any],
    ) -> Work:
        width = DTYPES[dtype][1]
        total = sum(n for many in (sends or receives).values() for n in many) * width
        work = self._post(
            group,
            "send_recv",
            total,
            dtype,
            stream,
            _SEND_RECV,
            said,
            args,
        )
        work.target, work.source = next(iter(sends), None), next(iter(receives), None)
        for peer, many in sends.items():
            work.meetings += [self._meet(group, self.number, peer) for _ in many]
        for peer, many in receives.items():
            work.meetings += [self._meet(group, peer, self.number) for _ in many]
        return work

    def _meet(self, group: ProcessGroup, source: int, target: int) -> tuple[Any, ...]:
        key = (group.name, group.ranks, source, target)
        self._met[key] += 1
        return (*key, self._met[key], 2)

    def collective(
        self,
        group: ProcessGroup,
        op: str,
        elements: tuple[int, int],
        said: Said,
        *,
        dtype: str = "bfloat16",
        is_async: bool = True,
        splits: tuple[Sequence[int], Sequence[int]] | None = None,
        ends: tuple[int | None, int | None] = (None, None),
        operator: str | None = None,
    ) -> Work:
        """A collective of all the group's ranks; synchronous ones are awaited at once. `elements`: (in, out).

        `splits` of an all-to-all; `ends`: (source, target) where it stands for a shift around the ring.
        """
        name, called, kernel = _COLLECTIVES[op]
        args = self._args(group, name, *elements, dtype)
        if splits is not None:
            args |= {"In split size": str(list(splits[0])), "Out split size": str(list(splits[1]))}
        if self.style.is_async:
            args["Is asynchronized op"] = is_async
        with self.op(operator or called), self._record(args):
            own = args if self.style.metadata == "kernel" else {}
            size = max(elements) * DTYPES[dtype][1]
            with self.range(f"nccl:{op}"):
                work = self._post(group, op, size, dtype, COMM, kernel, said, own)
        self._met[group.key, "all"] += 1
        work.meetings.append((group.key, "all", self._met[group.key, "all"], len(group.ranks)))
        work.source, work.target = ends
        if not is_async:
            self.wait(work)
        return work

    @contextmanager
    def _record(self, args: dict[str, Any]) -> Iterator[None]:
        if self.style.metadata == "none":
            yield
            return
        with self.op("record_param_comms", **args):
            yield

    def _args(
        self, group: ProcessGroup, name: str, given: int, taken: int, dtype: str, **more: Any
    ) -> dict[str, Any]:
        seq = None
        if self.style.seq:
            self._seq[group.key + ("p2p" if name in ("send", "recv") else "")] += 1
            seq = self._seq[group.key + ("p2p" if name in ("send", "recv") else "")]
        return collective_args(
            name,
            ranks=group.ranks,
            group=group.name,
            description=group.description,
            in_elements=given,
            out_elements=taken,
            dtype=DTYPES[dtype][0],
            seq=seq,
            **more,
        )

    def _post(
        self,
        group: ProcessGroup,
        op: str,
        size: int,
        dtype: str,
        stream: int,
        kernel: str,
        said: Said,
        args: dict[str, Any],
    ) -> Work:
        work = Work(
            self.number, said, op, group, size, dtype, stream, self.now, self._last.get(self.stream),
            self._last_work.get(stream), kernel=self.style.nccl(kernel), args=args, tid=self.tid,
        )  # fmt: skip
        # What this stream waits for, the collective's waits for as well.
        work.after = self._with_awaited(work.after)
        self._last_work[stream] = work
        self.works.append(work)
        self.launched.append(work)
        self.now += _CALL_NS
        return work

    def _with_awaited(self, after: Kernel | None) -> Kernel | None:
        awaited = self._awaited.get(self.stream)
        if not awaited:
            return after
        marker = Kernel("", self.stream, 0, self.now - _DELAY_NS, self.tid, after, list(awaited))
        self.launched.append(marker)
        self._last[self.stream] = marker
        return marker

    def wait(self, *works: Work) -> None:
        """`work.wait()`: the current stream goes on when the transfer has ended."""
        for work in works:
            self._awaited[self.stream].append(work)
            if self.style.waits == "none":
                continue
            if self.style.waits == "record" and self.style.metadata != "none":
                of = work.group
                named = {"ranks": of.ranks, "group": of.name, "description": of.description}
                record = collective_args("wait", in_elements=0, **named)
                if self.style.seq and "Seq" in work.args:
                    record["Seq"] = work.args["Seq"]
                with self.op("record_param_comms", **record):
                    self._stream_wait()
            else:
                self._stream_wait()

    def _stream_wait(self) -> None:
        self._host.append((self.now, "runtime", self.style.wait_name, 800, {"tid": self.tid}))
        self.now += 1_000

    def join(self, stream: int) -> None:
        """`current_stream().wait_stream(stream)`."""
        other = self._last.get(stream)
        if other is not None:
            marker = Kernel(
                "", self.stream, 0, self.now - _DELAY_NS, self.tid, self._last.get(self.stream), []
            )
            marker.after = [*self._awaited.pop(self.stream, []), other]
            self.launched.append(marker)
            self._last[self.stream] = marker
        self._stream_wait()

    # --- the file ------------------------------------------------------------------------------------

    def write(self, path: Path, ahead: int, cut_ns: int, host: str | None) -> None:
        writer = TraceWriter(self.number, len(self.machine.ranks), tid=MAIN, host_name=host)

        def us(ns: int) -> Decimal:
            return Decimal(ns + ahead) / 1000

        for start, kind, name, dur, options in sorted(self._host, key=lambda event: (event[0], -event[3])):
            if start >= cut_ns:
                add = {"cpu_op": writer.cpu_op, "range": writer.range, "runtime": writer.runtime}[kind]
                add(name, us(start), Decimal(dur) / 1000, **options)
        for one in self.launched:
            if isinstance(one, Kernel) and not one.name:
                continue
            assert one.start_ns is not None
            assert one.end_ns is not None
            if one.start_ns < cut_ns:
                continue
            is_work = isinstance(one, Work)
            options = dict(one.args) if is_work else {}
            name = one.kernel if is_work else one.name
            called = self.style.launch_nccl if is_work else self.style.launch_name
            launch = us(one.launch_ns) if one.launch_ns >= cut_ns else None
            more = {"launch": launch, "launch_dur": 2, "launch_name": called, "launch_tid": one.tid}
            if launch is None:
                more = {"correlation": 900_000 + len(writer.events)}
            dur = Decimal(one.end_ns - one.start_ns) / 1000
            writer.kernel(name, us(one.start_ns), dur, stream=one.stream, **more, **options)
        writer.write(path)


_SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_SUM = "ncclDevKernel_{}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_COLLECTIVES = {  # as the metadata, the operator and the kernel call it
    "all_gather": ("_allgather_base", "c10d::_allgather_base_", _GATHER),
    "reduce_scatter": ("_reduce_scatter_base", "c10d::_reduce_scatter_base_", _SUM.format("ReduceScatter")),
    "all_reduce": ("allreduce", "c10d::allreduce_", _SUM.format("AllReduce")),
    "all_to_all": ("all_to_all", "c10d::alltoall_base_", _SEND_RECV),
}
