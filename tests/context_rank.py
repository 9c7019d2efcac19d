"""One rank's program as its host runs it: operators, launches, sends, collectives, waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from context_facts import (
    BACKWARD,
    COMM,
    COMPUTE,
    DTYPES,
    MAIN,
    PAIR,
    Kernel,
    ProcessGroup,
    Said,
    Style,
    Work,
)

from sp_profiler.trace.write import collective_args

EVALUATE = "autograd::engine::evaluate_function: "
CALL_NS, DELAY_NS = 4_000, 3_000  # of a launch on the host, and until it reaches an idle device
_SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_SUM = "ncclDevKernel_{}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_COLLECTIVES = {  # as the metadata, the operator and the kernel call it
    "all_gather": ("_allgather_base", "c10d::_allgather_base_", _GATHER),
    "reduce_scatter": ("_reduce_scatter_base", "c10d::_reduce_scatter_base_", _SUM.format("ReduceScatter")),
    "all_reduce": ("allreduce", "c10d::allreduce_", _SUM.format("AllReduce")),
    "all_to_all": ("all_to_all", "c10d::alltoall_base_", _SEND_RECV),
}


class Rank:
    """One rank's program, written in the order in which its host runs it."""

    def __init__(self, style: Style, number: int) -> None:
        self.style = style
        self.number = number
        self.now = 1_000_000
        self.tid = MAIN
        self.stream = COMPUTE
        self.launched: list[Work | Kernel] = []
        self.kernels: list[Kernel] = []
        self.works: list[Work] = []
        self.passes = 0
        self.repeats = False  # forward that backward runs again
        self.host: list[tuple[int, str, str, int, dict[str, Any]]] = []  # start, kind, name, dur, options
        self._last: dict[int, Kernel] = {}
        self._last_work: dict[int, Work] = {}
        self._awaited: dict[int, list[Work]] = defaultdict(list)
        self._met: dict[Any, int] = defaultdict(int)
        self._sequence = 10
        self._seq: dict[tuple[str, str], int] = defaultdict(int)

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
        self.host.append((start, "cpu_op", name, self.now - start, {"tid": self.tid, **options}))

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        start = self.now
        self.now += 200
        yield
        self.now += 200
        self.host.append((start, "range", name, self.now - start, {"tid": self.tid}))

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
        before, self.tid = self.tid, BACKWARD
        options: dict[str, Any] = {"sequence": sequence, "fwd_thread": 1}
        if self.style.functions:
            with self.op(EVALUATE + name, **options), self.op(name, **options):
                yield
        else:
            yield
        self.tid = before

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
            self.now += CALL_NS

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
        self._count(group, "p2p")
        for name, peer, elements in tensors:
            args = self._p2p_args(group, name, peer, elements, dtype)
            record = self._record(args) if self.style.batch_records else nullcontext()
            with self.op("c10d::send" if name == "send" else "c10d::recv_"), record:
                self._stream_wait()  # of the collectives' stream for the current one
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
        self._count(group, "p2p")
        args = self._p2p_args(group, name, peer, elements, dtype)
        sends, receives = ({peer: [elements]}, {}) if name == "send" else ({}, {peer: [elements]})
        operator = "c10d::send" if name == "send" else "c10d::recv_"
        places = [group.ranks.index(self.number), group.ranks.index(peer)]
        called = f"nccl:{name} {places[0]}{'->' if name == 'send' else '<-'}{places[1]}"
        with self.op(operator), self._record(args), self.range(called):
            self._stream_wait()
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
        operator: str | None = None,
    ) -> Work:
        """A collective of all the group's ranks; synchronous ones are awaited at once. `elements`: (in, out).

        `splits` of an all-to-all, given and taken: NCCL sends and receives what is not empty, so that ranks
        without elements for each other do not wait for each other.
        """
        name, called, kernel = _COLLECTIVES[op]
        name += "v" if splits is not None else ""
        self._count(group, "")
        args = self._args(group, name, *elements, dtype)
        if splits is not None:
            args |= {"In split size": str(list(splits[0])), "Out split size": str(list(splits[1]))}
        if self.style.is_async:
            args["Is asynchronized op"] = is_async
        with self.op(operator or called), self._record(args):
            self._stream_wait()
            own = args if self.style.metadata == "kernel" else {}
            size = max(elements) * DTYPES[dtype][1]
            with self.range(f"nccl:{op}"):
                work = self._post(group, op, size, dtype, COMM, kernel, said, own)
        if splits is None:
            self._met[group.key, "all"] += 1
            work.meetings.append((group.key, "all", self._met[group.key, "all"], len(group.ranks)))
        else:
            to, come = ([r for r, n in zip(group.ranks, given, strict=True) if n] for given in splits)
            work.meetings += [self._meet(group, self.number, peer) for peer in to]
            work.meetings += [self._meet(group, peer, self.number) for peer in come]
            work.op, work.target, work.source = "send_recv", to[0], come[0]
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
        kind = "p2p" if name in ("send", "recv") else ""
        seq = self._seq[group.key, kind] if self.style.seq else None
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

    def _count(self, group: ProcessGroup, kind: str) -> None:
        """The next sequence number: collectives and sends have one each; a batch is one."""
        self._seq[group.key, kind] += 1

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
        said = replace(said, repeated=self.repeats)
        work = Work(
            self.number, said, op, group, size, dtype, stream, self.now, self._last.get(self.stream),
            self._last_work.get(stream), kernel=self.style.nccl(kernel), args=args, tid=self.tid,
        )  # fmt: skip
        # What this stream waits for, the collective's waits for as well.
        work.after = self._with_awaited(work.after)
        self._last_work[stream] = work
        self.works.append(work)
        self.launched.append(work)
        self.now += CALL_NS
        return work

    def _with_awaited(self, after: Kernel | None) -> Kernel | None:
        awaited = self._awaited.get(self.stream)
        if not awaited:
            return after
        marker = Kernel("", self.stream, 0, self.now - DELAY_NS, self.tid, after, list(awaited))
        self.launched.append(marker)
        self._last[self.stream] = marker
        return marker

    def wait(self, *works: Work | None) -> None:
        """`work.wait()`: the current stream goes on when the transfer has ended."""
        for work in works:
            if work is None:
                continue
            self._awaited[self.stream].append(work)
            work.wait_call_ns = self.now if work.wait_call_ns is None else work.wait_call_ns
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
        self.host.append((self.now, "runtime", self.style.wait_name, 800, {"tid": self.tid}))
        self.now += 1_000

    def join(self, stream: int) -> None:
        """`current_stream().wait_stream(stream)`."""
        other = self._last.get(stream)
        if other is not None:
            marker = Kernel(
                "", self.stream, 0, self.now - DELAY_NS, self.tid, self._last.get(self.stream), []
            )
            marker.after = [*self._awaited.pop(self.stream, []), other]
            self.launched.append(marker)
            self._last[self.stream] = marker
        self._stream_wait()
