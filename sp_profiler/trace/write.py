"""Draw small Kineto traces with known answers.

    TraceWriter(rank=0, world_size=2).step(0, 0, 100).kernel("gemm", 10, 20, launch=5).write("rank0.json")

Times are given in µs, as in a trace file, and may carry nanoseconds (`10.001`, `"1778655624745710.730"`,
`Decimal`); they are written exactly, three decimals where needed. Every method that adds an event
returns the writer. Keyword arguments that are not named go to the event's `args` as they are.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

Micros = int | float | str | Decimal
"""A time or duration in µs."""

_ELEMENT_BYTES_DTYPE = "BFloat16"


def micros_to_ns(value: Micros) -> int:
    """Nanoseconds of a time in µs. Raises ValueError when it does not fall on a nanosecond."""
    exact = Decimal(str(value)) * 1000
    if exact != exact.to_integral_value():
        raise ValueError(f"{value} µs is not a whole number of nanoseconds")
    return int(exact)


def ns_to_text(ns: int) -> str:
    """The µs text of a time in ns, as Kineto writes it: `1500` -> `1.500`."""
    whole, fraction = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{fraction:03d}"


class TraceWriter:
    """Collects the events of one rank and writes them as one trace file.

    `rank=None` leaves `distributedInfo` out; `cpu_only=True` writes empty `deviceProperties`.
    `device` is the default device of kernels, `pid` and `tid` the default thread of CPU events.
    """

    def __init__(
        self,
        rank: int | None = 0,
        world_size: int = 1,
        *,
        backend: str = "nccl",
        device: int = 0,
        pid: int = 100,
        tid: int = 100,
        base_time_ns: int | None = None,
        cpu_only: bool = False,
        pg_config: Sequence[Mapping[str, Any]] | None = None,
        host_name: str | None = None,
    ) -> None:
        self.device = device
        self.pid = pid
        self.tid = tid
        self.events: list[dict[str, Any]] = []
        self.metadata: dict[str, Any] = {"schemaVersion": 1}
        self.metadata["deviceProperties"] = (
            [] if cpu_only else [{"id": device, "name": "Test device", "numSms": 132}]
        )
        if rank is not None:
            info: dict[str, Any] = {"backend": backend, "rank": rank, "world_size": world_size}
            if pg_config is not None:
                info |= {"pg_count": len(pg_config), "pg_config": [dict(group) for group in pg_config]}
            self.metadata["distributedInfo"] = info
        if base_time_ns is not None:
            self.metadata["baseTimeNanoseconds"] = base_time_ns
        if host_name is not None:
            self.metadata["host_name"] = host_name
        self._next_id = 0

    def event(self, event: Mapping[str, Any]) -> TraceWriter:
        """Add an event as it is; `ts` and `dur`, where numbers, are taken as µs."""
        drawn = dict(event)
        for key in ("ts", "dur"):
            if isinstance(drawn.get(key), (int, float, Decimal)):
                drawn[key] = _raw_time(drawn[key])
        self.events.append(drawn)
        return self

    def complete(
        self,
        category: str,
        name: str,
        start: Micros,
        dur: Micros,
        *,
        pid: int | str | None = None,
        tid: int | str | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> TraceWriter:
        """Add a complete event (`ph: X`). Arguments that are None are left out."""
        kept = {key: value for key, value in (args or {}).items() if value is not None}
        event = {"ph": "X", "cat": category, "name": name}
        event |= {"pid": self.pid if pid is None else pid, "tid": self.tid if tid is None else tid}
        event |= {"ts": _raw_time(start), "dur": _raw_time(dur)}
        self.events.append(event | {"args": kept} if kept else event)
        return self

    # --- device side -------------------------------------------------------------------------

    def kernel(
        self,
        name: str,
        start: Micros,
        dur: Micros,
        *,
        stream: int = 7,
        device: int | None = None,
        launch: Micros | None = None,
        launch_dur: Micros = 1,
        launch_name: str = "cudaLaunchKernel",
        launch_tid: int | None = None,
        correlation: int | None = None,
        external_id: int | None = None,
        category: str = "kernel",
        **args: Any,
    ) -> TraceWriter:
        """A kernel; with `launch`, also its launching call (a `cuda_runtime` event) and their `ac2g` flow.

        `correlation` is numbered automatically when there is a launch.
        """
        device = self.device if device is None else device
        if launch is not None:
            correlation = self._number() if correlation is None else correlation
            self.runtime(
                launch_name,
                launch,
                launch_dur,
                correlation=correlation,
                external_id=external_id,
                tid=launch_tid,
            )
            self.flow("ac2g", "s", correlation, launch, tid=launch_tid)
        args = {"External id": external_id, "device": device, "stream": stream, **args}
        self.complete(
            category, name, start, dur, pid=device, tid=stream, args=args | {"correlation": correlation}
        )
        if launch is not None:
            self.flow("ac2g", "f", correlation or 0, start, pid=device, tid=stream)
        return self

    def memcpy(self, kind: str, start: Micros, dur: Micros, **options: Any) -> TraceWriter:
        """A copy; `kind` as in names: `DtoD (Device -> Device)`. Options as for `kernel`."""
        options = {"launch_name": "cudaMemcpyAsync", **options}
        return self.kernel(f"Memcpy {kind}", start, dur, category="gpu_memcpy", **options)

    def memset(self, start: Micros, dur: Micros, **options: Any) -> TraceWriter:
        """A memset. Options as for `kernel`."""
        options = {"launch_name": "cudaMemsetAsync", **options}
        return self.kernel("Memset (Device)", start, dur, category="gpu_memset", **options)

    def sync(
        self, start: Micros, dur: Micros, *, name: str = "Stream Sync", stream: int = 7, **args: Any
    ) -> TraceWriter:
        """A synchronisation record (`cuda_sync`): drawn on a stream, but nothing runs."""
        args = {"device": self.device, "stream": stream, **args}
        return self.complete("cuda_sync", name, start, dur, pid=self.device, tid=stream, args=args)

    def device_range(
        self, name: str, start: Micros, dur: Micros, *, stream: int = 7, **args: Any
    ) -> TraceWriter:
        """A range as it is shown on the device (`gpu_user_annotation`): not an activity."""
        args = {"device": self.device, "stream": stream, **args}
        return self.complete("gpu_user_annotation", name, start, dur, pid=self.device, tid=stream, args=args)

    def collective(
        self,
        op: str,
        start: Micros,
        dur: Micros,
        *,
        kernel: str | None = None,
        stream: int = 20,
        ranks: Sequence[int] | None = (0, 1),
        group: str = "0",
        description: str = "default_pg",
        in_elements: int = 1024,
        out_elements: int | None = None,
        dtype: str = _ELEMENT_BYTES_DTYPE,
        seq: int | None = None,
        is_async: bool | None = None,
        metadata: bool = True,
        **options: Any,
    ) -> TraceWriter:
        """A NCCL kernel with its metadata. `op` is the name as NCCL metadata has it (`allreduce`,
        `_allgather_base`, ...); `kernel` the kernel's name, else one is made from `op`.

        `metadata=False` leaves everything but the name out. Options as for `kernel`.
        """
        name = kernel or f"ncclDevKernel_{_nccl_name(op)}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        args = (
            collective_args(
                op,
                ranks=ranks,
                group=group,
                description=description,
                in_elements=in_elements,
                out_elements=out_elements,
                dtype=dtype,
                seq=seq,
                is_async=is_async,
            )
            if metadata
            else {}
        )
        return self.kernel(name, start, dur, stream=stream, **args, **options)

    # --- CPU side ----------------------------------------------------------------------------

    def runtime(
        self,
        name: str,
        start: Micros,
        dur: Micros,
        *,
        correlation: int | None = None,
        external_id: int | None = None,
        tid: int | None = None,
        **args: Any,
    ) -> TraceWriter:
        """A runtime call (`cuda_runtime`)."""
        args = {"External id": external_id, "cbid": 211, "correlation": correlation, **args}
        return self.complete("cuda_runtime", name, start, dur, tid=tid, args=args)

    def cpu_op(
        self,
        name: str,
        start: Micros,
        dur: Micros,
        *,
        tid: int | None = None,
        external_id: int | None = None,
        sequence: int | None = None,
        fwd_thread: int | None = None,
        dims: Sequence[Any] | None = None,
        strides: Sequence[Any] | None = None,
        types: Sequence[str] | None = None,
        **args: Any,
    ) -> TraceWriter:
        """An operator (`cpu_op`); `dims`, `strides`, `types` are its input shapes, strides and types."""
        named = {
            "External id": external_id,
            "Sequence number": sequence,
            "Fwd thread id": fwd_thread,
            "Input Dims": dims,
            "Input Strides": strides,
            "Input type": types,
        }
        return self.complete("cpu_op", name, start, dur, tid=tid, args=named | args)

    def param_comms(
        self, op: str, start: Micros, dur: Micros, *, external_id: int | None = None, **options: Any
    ) -> TraceWriter:
        """The `record_param_comms` operator of a collective. Options as for `collective_args`."""
        return self.cpu_op(
            "record_param_comms", start, dur, external_id=external_id, **collective_args(op, **options)
        )

    def range(
        self, name: str, start: Micros, dur: Micros, *, tid: int | None = None, **args: Any
    ) -> TraceWriter:
        """A CPU range (`user_annotation`): a `record_function`, an `sp::` range."""
        return self.complete("user_annotation", name, start, dur, tid=tid, args=args)

    def step(self, number: int, start: Micros, dur: Micros) -> TraceWriter:
        """The range of a profiled step, `ProfilerStep#number`."""
        return self.range(f"ProfilerStep#{number}", start, dur)

    def gloo(
        self, op: str, start: Micros, dur: Micros, *, tid: int = 200, dims: Sequence[Any] | None = None
    ) -> TraceWriter:
        """A gloo range on a worker thread, `gloo:all_reduce` for `op="all_reduce"`."""
        return self.range(f"gloo:{op}", start, dur, tid=tid, **{"Input Dims": dims})

    def python(
        self, name: str, start: Micros, dur: Micros, *, tid: int | None = None, **args: Any
    ) -> TraceWriter:
        """A Python frame (`python_function`)."""
        return self.complete("python_function", name, start, dur, tid=tid, args=args)

    def memory(
        self,
        ts: Micros,
        size: int,
        *,
        address: int | None = None,
        total_allocated: int | None = None,
        total_reserved: int | None = None,
        device_type: int = 1,
        device_id: int = 0,
        tid: int | None = None,
    ) -> TraceWriter:
        """A `[memory]` instant: `size` bytes allocated, or freed when negative."""
        args = {"Device Type": device_type, "Device Id": device_id, "Bytes": size, "Addr": address}
        args |= {"Total Allocated": total_allocated, "Total Reserved": total_reserved}
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": self.pid}
        event |= {"tid": self.tid if tid is None else tid, "ts": _raw_time(ts)}
        self.events.append(event | {"args": {k: v for k, v in args.items() if v is not None}})
        return self

    def flow(
        self,
        kind: str,
        phase: str,
        flow_id: int,
        ts: Micros,
        *,
        pid: int | str | None = None,
        tid: int | str | None = None,
    ) -> TraceWriter:
        """One end of a flow: `kind` is `ac2g` or `fwdbwd`, `phase` is `s` (start) or `f` (end)."""
        event: dict[str, Any] = {"ph": phase, "id": flow_id, "pid": self.pid if pid is None else pid}
        event |= {"tid": self.tid if tid is None else tid, "ts": _raw_time(ts), "cat": kind, "name": kind}
        self.events.append(event | {"bp": "e"} if phase == "f" else event)
        return self

    def fwdbwd(
        self, fwd_ts: Micros, bwd_ts: Micros, *, fwd_tid: int | None = None, bwd_tid: int | None = None
    ) -> TraceWriter:
        """The flow from a forward operator (its start) to its autograd node (its start)."""
        number = self._number()
        self.flow("fwdbwd", "s", number, fwd_ts, tid=fwd_tid)
        return self.flow("fwdbwd", "f", number, bwd_ts, tid=bwd_tid)

    # --- output ------------------------------------------------------------------------------

    def text(self) -> str:
        """The file's text: one event a line, so that damage can be put where a test wants it."""
        encode = msgspec.json.encode
        head = ",".join(f"{_json(key)}:{_json(value)}" for key, value in self.metadata.items())
        lines = ",\n".join(encode(event).decode() for event in self.events)
        return f'{{{head},"traceEvents":[\n{lines}\n]}}'

    def write(self, path: str | os.PathLike[str]) -> str:
        """Write the file, gzipped when its name ends in .gz, and return its path."""
        data = self.text().encode()
        if os.fspath(path).endswith(".gz"):
            data = gzip.compress(data, mtime=0)
        with open(path, "wb") as out:
            out.write(data)
        return os.fspath(path)

    def _number(self) -> int:
        self._next_id += 1
        return self._next_id


def collective_args(
    op: str,
    *,
    ranks: Sequence[int] | None = (0, 1),
    group: str = "0",
    description: str = "default_pg",
    in_elements: int = 1024,
    out_elements: int | None = None,
    dtype: str = _ELEMENT_BYTES_DTYPE,
    seq: int | None = None,
    is_async: bool | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The NCCL metadata of a collective as `args` hold it. `out_elements` defaults to what the op makes
    of `in_elements` (all-gather: times the group's size, reduce-scatter: divided by it).
    """
    size = len(ranks) if ranks is not None else 1
    kind = _nccl_name(op)
    if out_elements is None:
        scaled = {"AllGather": in_elements * size, "ReduceScatter": in_elements // size}
        out_elements = scaled.get(kind, in_elements)
    args: dict[str, Any] = {
        "Collective name": op,
        "In msg nelems": in_elements,
        "Out msg nelems": out_elements,
        "Group size": size if ranks is not None else None,
        "dtype": dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group,
        "Process Group Description": description,
        "Process Group Ranks": str(list(ranks)) if ranks is not None else None,
        "Seq": seq,
        "Is asynchronized op": is_async,
    }
    return {key: value for key, value in (args | more).items() if value is not None}


def _nccl_name(op: str) -> str:
    """The word NCCL kernels are named with, for an op as the metadata names it."""
    word = op.strip("_").replace("_", "").lower()
    for part, name in (
        ("reducescatter", "ReduceScatter"),
        ("allgather", "AllGather"),
        ("allreduce", "AllReduce_Sum_bf16"),
        ("broadcast", "Broadcast"),
    ):
        if part in word:
            return name
    return "Reduce" if word == "reduce" else "SendRecv"


def _raw_time(value: Micros) -> msgspec.Raw:
    return msgspec.Raw(ns_to_text(micros_to_ns(value)).encode())


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
