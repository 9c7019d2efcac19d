"""The text of one rank's trace of a played run, as Kineto writes it (fleet_schedule.py plays it)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleet_schedule import (
    DATA,
    DGRAD,
    EMBEDDING,
    FORWARD,
    OPTIMIZER,
    TENSOR,
    WGRAD,
    WORLD,
    Comm,
    Compute,
    Played,
    group_ranks,
)

BASE_NS = 1_700_000_000_000_000_000
HOST_AHEAD_NS = 60_000  # the thread launches the first kernel of a step this long before it begins
_CALL_NS = 8_000  # the thread's time for one kernel
_LISTED = 30  # Kineto cuts longer lists

_TOKENS, _IN, _OUT = 4096, 768, 2304
_DIMS = {
    FORWARD: [[_TOKENS, _IN], [_IN, _OUT]],
    DGRAD: [[_TOKENS, _OUT], [_OUT, _IN]],
    WGRAD: [[_OUT, _TOKENS], [_TOKENS, _IN]],
}
_GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
_EMBEDDING = "void at::native::embedding_dense_backward_kernel<c10::BFloat16, float, long>(long)"
_ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>(int)"
_NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_LINEAR = "LinearWithGradAccumulationAndAsyncCommunication"
_NODE = "autograd::engine::evaluate_function: "
NAMES = {TENSOR: "tp", DATA: "dp", WORLD: "default_pg"}
_ELEMENTS = {TENSOR: _TOKENS * _IN, DATA: 3 * _IN * _OUT, WORLD: 1}
_STREAM = {TENSOR: 20, DATA: 24, WORLD: 28}


def us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def event(category: str, name: str, pid: int, tid: int, start: int, dur: int, args: str = "") -> str:
    told = f',\n    "args": {{\n      {args}\n    }}' if args else ""
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {us(start)}, "dur": {us(dur)}{told}\n  }}'
    )


@dataclass(frozen=True)
class Rank:
    """What the text of a rank needs beside the run: `clock_ns` is added to all times."""

    number: int
    clock_ns: int
    with_seq: bool
    steps: Sequence[int]  # those of which the events are written


def head(rank: Rank, ranks: int) -> str:
    """All that stands before the first event."""
    groups = [
        {
            "pg_name": _name(kind, rank.number),
            "pg_desc": NAMES[kind],
            "backend_config": "cuda:nccl",
            "pg_size": len(group_ranks(kind, rank.number, ranks)),
            "ranks": list(group_ranks(kind, rank.number, ranks)),
        }
        for kind in (WORLD, TENSOR, DATA)
    ]
    about = {"backend": "nccl", "rank": rank.number, "world_size": ranks, "pg_count": 3, "pg_config": groups}
    return (
        '{\n  "schemaVersion": 1,\n  "deviceProperties": [\n'
        '    {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}\n  ],\n'
        f'  "distributedInfo": {json.dumps(about)},\n  "host_name": "{host_of(rank.number)}",\n'
        f'  "baseTimeNanoseconds": {BASE_NS},\n  "traceEvents": [\n'
    )


def host_of(rank: int) -> str:
    return f"node{rank // 8}"


def _name(kind: str, rank: int) -> str:
    """Process groups are numbered; all groups of a kind share the description."""
    return {WORLD: "0", TENSOR: str(1 + rank // 8), DATA: str(1001 + rank % 8)}[kind]


def _metadata(one: Comm, rank: Rank, ranks: int) -> str:
    mine = group_ranks(one.kind, rank.number, ranks)
    listed = ", ".join(map(str, mine[:_LISTED])) + (", ..." if len(mine) > _LISTED else "")
    seq = f', "Seq": {one.seq}' if rank.with_seq else ""
    return (
        f'"Collective name": "allreduce", "In msg nelems": {_ELEMENTS[one.kind]},'
        f' "Out msg nelems": {_ELEMENTS[one.kind]}, "Group size": {len(mine)}, "dtype": "BFloat16",'
        ' "In split size": "[]", "Out split size": "[]",'
        f' "Process Group Name": "{_name(one.kind, rank.number)}",'
        f' "Process Group Description": "{NAMES[one.kind]}", "Process Group Ranks": "[{listed}]",'
        f' "Rank": {rank.number}{seq}, "Is asynchronized op": {str(one.is_async).lower()}'
    )


def events_of(played: Played, rank: Rank) -> Iterator[str]:
    """The events of the rank: those of a step follow each other."""
    thread = _Thread(rank, played.ranks)
    starts = {id(one): one.start_ns[rank.number].item() for one in played.kernels}
    ends = {id(one): one.end_ns[rank.number].item() for one in played.kernels}
    for step in rank.steps:
        first, end = played.first_ns[rank.number, step].item(), played.end_ns[rank.number, step].item()
        begin = first - HOST_AHEAD_NS + rank.clock_ns
        yield event(
            "user_annotation", f"ProfilerStep#{step}", thread.pid, thread.pid, begin,
            end + 3_000 + rank.clock_ns - begin,
        )  # fmt: skip
        thread.at = begin + 1_000
        for one in played.kernels:
            if one.step == step:
                launch = thread.collective if isinstance(one, Comm) else thread.kernel
                span = (starts[id(one)] + rank.clock_ns, ends[id(one)] - starts[id(one)])
                yield from launch(one, *span)  # pyright: ignore[reportArgumentType]


class _Thread:
    """Launches one kernel after the other, each with the operators around it."""

    def __init__(self, rank: Rank, ranks: int) -> None:
        self.pid = 1000 + rank.number
        self.at = 0
        self._rank, self._ranks = rank, ranks
        self._id = 0
        self._sequence: dict[tuple[int, int | None], int] = {}

    def _next(self) -> int:
        self._id += 1
        return self._id

    def _op(self, name: str, start: int, dur: int, tid: int, args: str = "") -> str:
        number = self._next()
        told = f'"External id": {number}, "Ev Idx": {number}' + (f", {args}" if args else "")
        return event("cpu_op", name, self.pid, tid, start, dur, told)

    def kernel(self, one: Compute, start: int, dur: int) -> Iterator[str]:
        at, backward = self.at, one.what in (DGRAD, WGRAD, EMBEDDING)
        tid = self.pid + 1 if backward else self.pid
        self.at += _CALL_NS
        name = {EMBEDDING: _EMBEDDING, OPTIMIZER: _ADAM}.get(one.what, _GEMM)
        if one.what == FORWARD:
            sequence = self._sequence[one.step, one.layer] = self._next()
            yield self._op(_LINEAR, at, 6_000, tid, f'"Fwd thread id": 0, "Sequence number": {sequence}')
        elif one.what == DGRAD:  # its node also holds the all-reduce and the wgrad
            told = f'"Fwd thread id": {self.pid}, "Sequence number": {self._sequence[one.step, one.layer]}'
            span = 3 * _CALL_NS - 1_000
            yield self._op(f"{_NODE}{_LINEAR}Backward", at, span, tid, told)
            yield self._op(f"{_LINEAR}Backward", at + 100, span - 200, tid, told)
        elif one.what == EMBEDDING:
            yield self._op(f"{_NODE}EmbeddingBackward0", at, 6_000, tid, f'"Fwd thread id": {self.pid}')
        elif one.what == OPTIMIZER:
            yield event("user_annotation", "Optimizer.step#AdamW.step", self.pid, tid, at, 6_000)
        op = {EMBEDDING: "aten::embedding_dense_backward", OPTIMIZER: "aten::_fused_adamw_"}.get(one.what)
        dims = f'"Input Dims": {json.dumps(_DIMS[one.what])}' if one.what in _DIMS else ""
        if one.what != WGRAD:  # the wgrad's GEMM is launched by the node itself
            yield self._op("aten::matmul" if op is None else op, at + 300, 5_000, tid, dims)
            if op is None:
                yield self._op("aten::mm", at + 400, 4_000, tid, dims)
        yield from self._launch(name, at + 600, tid, 7, start, dur, "")

    def collective(self, one: Comm, start: int, dur: int) -> Iterator[str]:
        at, tid = self.at, self.pid
        self.at += _CALL_NS
        if one.purpose == "activation":
            told = f'"Fwd thread id": 0, "Sequence number": {self._next()}'
            yield self._op("_ReduceFromModelParallelRegion", at, 6_000, tid, told)
        elif one.purpose == "dgrad":
            tid = self.pid + 1
        elif one.purpose == "param-grad":
            tid = self.pid + 1
            yield self._op(f"{_NODE}torch::autograd::AccumulateGrad", at, 6_000, tid)
        metadata = _metadata(one, self._rank, self._ranks)
        yield self._op("record_param_comms", at + 300, 5_000, tid, metadata)
        yield from self._launch(_NCCL, at + 600, tid, _STREAM[one.kind], start, dur, ", " + metadata)

    def _launch(
        self, name: str, at: int, tid: int, stream: int, start: int, dur: int, more: str
    ) -> Iterator[str]:
        correlation = self._next()
        ids = f'"External id": {correlation - 1}'  # the operator right before
        told = f'{ids}, "cbid": 211, "correlation": {correlation}'
        yield event("cuda_runtime", "cudaLaunchKernelExC", self.pid, tid, at, 2_000, told)
        told = (
            f'{ids}, "queued": 0, "device": 0, "context": 1, "stream": {stream},'
            f' "correlation": {correlation}, "grid": [24, 1, 1], "block": [512, 1, 1]{more}'
        )
        yield event("kernel", name, 0, stream, start, dur, told)
