#!/usr/bin/env python3
"""What a whole `sp-profile analyze FOLDER` costs: 64 ranks with 16,000 collectives each, files to report.

    benchmarks/whole_run.py [--ranks 16 32 64] [--collectives 16000] [--format terminal json] [--keep DIR]

Writes a synthetic run of the largest number of ranks and analyses it, and the first ranks of it alone, each
time in a process of its own and without the cache. Each rank takes part in a tensor-parallel group of 8, a
data-parallel group and the group of all; hosts of 8 ranks have clocks up to a second apart, rank 3 is slow.
Of each collective a file holds its operator, its launch and its kernel with metadata (`Seq` among them), and
a GEMM with operator and launch, half of them in autograd nodes. Prints CPU seconds and peak memory of all
processes, the cost of decoding alone, and how the cost grows; checks that clocks and the slow rank are found.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from across_ranks import schedule
from analyze import Cost, measure
from isal import igzip

from sp_profiler.classify.tables import Group

HOST = 8  # ranks of a host, and of a tensor-parallel group
SLOW = 3  # the rank that arrives late
BASE_NS = 1_700_000_000_000_000_000
STEPS = 16
_S = 1_000_000_000
_DECODE = """
import glob, sys
from sp_profiler.trace.decode import decode_trace
for path in sorted(glob.glob(sys.argv[1] + "/*.gz")):
    decode_trace(path)
"""

# Kineto's shape: a decoder's speed depends on it.
_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0}
  ],
  "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": %d, "pg_count": 3},
  "host_name": "node%d",
  "baseTimeNanoseconds": %d,
  "traceEvents": [
"""
_EVENT = """  {
    "ph": "X", "cat": "%s", "name": "%s", "pid": %d, "tid": %d,
    "ts": %s, "dur": %s%s
  }"""
_ARGS = ',\n    "args": {\n      %s\n    }'
_KERNEL = (
    '"External id": %d, "queued": 0, "device": 0, "context": 1, "stream": %d, "correlation": %d,'
    ' "registers per thread": 96, "shared memory": 82240, "blocks per SM": 0.18181819,'
    ' "warps per SM": 2.9090909, "grid": [24, 1, 1], "block": [512, 1, 1], "est. achieved occupancy %%": 5%s'
)
_COMM = (
    ', "Collective name": "allreduce", "In msg nelems": %d, "Out msg nelems": %d, "Group size": %d,'
    ' "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", "Process Group Name": "%s",'
    ' "Process Group Description": "%s", "Process Group Ranks": "[%s]", "Rank": %d, "Seq": %d,'
    ' "Is asynchronized op": %s'
)
_SHAPES = (
    '"External id": %d, "Ev Idx": %d, "Input Dims": %s, "Input type": ["c10::BFloat16", "c10::BFloat16"]'
)
_NODE = '"External id": %d, "Ev Idx": %d, "Fwd thread id": 1, "Sequence number": %d'
_CALL = '"External id": %d, "cbid": 211, "correlation": %d'
_NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
_MM = ("[[4096, 768], [768, 2304]]", "[[4096, 2304], [2304, 768]]")  # forward, dgrad


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _event(category: str, name: str, pid: int, tid: int, start: int, dur: int, args: str = "") -> str:
    inside = _ARGS % args if args else ""
    return _EVENT % (category, name, pid, tid, _us(start), _us(dur), inside)


def rank_events(
    rank: int, mine: list[Group], kind: list[int], begin: list[int], start: list[int], end: list[int],
    kept: list[int],
) -> Iterator[str]:  # fmt: skip
    """The events of one rank; times in ns on its own clock. Every eighth collective is not asynchronous."""
    pid, per_step = 1000 + rank, max(1, len(begin) // STEPS)
    told = [(g.size, g.description, g.description, ", ".join(map(str, g.ranks)), rank) for g in mine]
    for number in range(0, len(begin), per_step):
        low, high = begin[number] - 800_000, begin[min(number + per_step, len(begin)) - 1] + 190_000
        yield _event("user_annotation", f"ProfilerStep#{number // per_step}", pid, pid, low, high - low)
    for k in kept:
        at, backward = begin[k], k % 8 >= 4
        tid = pid + 1 if backward else pid
        ids = 4 * k + 1
        if backward:
            node = _NODE % (ids, ids, k - 4)
            name = "autograd::engine::evaluate_function: MmBackward0"
            yield _event("cpu_op", name, pid, tid, at - 600_000, 420_000, node)
        shapes = _SHAPES % (ids + 1, ids + 1, _MM[backward])
        if not backward:
            shapes += f', "Sequence number": {k}, "Fwd thread id": 0'
        yield _event("cpu_op", "aten::mm", pid, tid, at - 590_000, 60_000, shapes)
        call = _CALL % (ids + 1, 2 * k + 1)
        yield _event("cuda_runtime", "cudaLaunchKernelExC", pid, tid, at - 560_000, 8_000, call)
        gemm = _KERNEL % (ids + 1, 7, 2 * k + 1, "")
        yield _event("kernel", _GEMM, 0, 7, start[k] - 350_000, 500_000 + 1000 * (k % 97), gemm)
        comm = _COMM % (3 << 20, 3 << 20, *told[kind[k]], k, "false" if k % 8 == 0 else "true")
        recorded = f'"External id": {ids + 2}, "Ev Idx": {ids + 2}{comm}'
        yield _event("cpu_op", "record_param_comms", pid, tid, at - 500_000, 50_000, recorded)
        call = _CALL % (ids + 2, 2 * k + 2)
        yield _event("cuda_runtime", "cudaLaunchKernelExC", pid, tid, at - 480_000, 9_000, call)
        yield _event(
            "kernel", _NCCL, 0, 20, start[k], end[k] - start[k], _KERNEL % (ids + 2, 20, 2 * k + 2, comm)
        )


def write_run(folder: Path, ranks: int, count: int) -> list[int]:
    """Write one file a rank; returns how far the clock of each host is ahead, in ns."""
    groups, kind, arrival, end = schedule(ranks, count)
    rng = np.random.default_rng(2)
    ahead = [0, *rng.integers(-_S, _S, -(-ranks // HOST) - 1).tolist()]
    begin = arrival.min(axis=0)
    kinds = kind.tolist()
    for rank in range(ranks):
        mine = [
            next(g for g in groups if g.description == d and rank in g.ranks) for d in ("tp", "dp", "world")
        ]
        host = rank // HOST
        clock = 2 * _S + ahead[host]
        kept = np.flatnonzero(rng.random(count) > 0.001).tolist()
        begins, starts, ends = ((column + clock).tolist() for column in (begin, arrival[rank], end[rank]))
        texts = rank_events(rank, mine, kinds, begins, starts, ends, kept)
        text = _HEAD % (rank, ranks, host, BASE_NS) + ",\n".join(texts) + "\n]}\n"
        packed = igzip.compress(text.encode(), 1)
        (folder / f"rank-{rank:05d}.pt.trace.json.gz").write_bytes(packed)
    return ahead


def check(report: dict, ahead: list[int], ranks: int) -> None:
    """SystemExit when the report does not show what the run was made of."""
    told = [clock["offset_ns"] for clock in report["clocks"] or []]
    true = ahead[: -(-ranks // HOST)]
    if len(told) != len(true) or any(
        one is None or abs(one - is_) > 10_000 for one, is_ in zip(told, true, strict=True)
    ):
        raise SystemExit(f"clock offsets are {told}, not {true}")
    if not report["stragglers"] or report["stragglers"][0]["rank"] != SLOW:
        raise SystemExit(f"the slow rank was not found: {report['stragglers']}")
    known = sum(one["skew_wait_ns"] is not None for one in report["collectives"])
    if known < 0.9 * len(report["collectives"]) or not known:
        raise SystemExit(f"only {known} of {len(report['collectives'])} collectives have a wait")


def part_of(folder: Path, ranks: int, scratch: Path) -> Path:
    """A folder with the first ranks of a run."""
    part = scratch / f"ranks-{ranks}"
    part.mkdir()
    for path in sorted(folder.glob("*.gz"))[:ranks]:
        (part / path.name).symlink_to(path.resolve())
    return part


def _line(what: str, cost: Cost, ranks: int) -> str:
    return (
        f"  {what:9} {cost.cpu_s:7.1f} s CPU  {cost.rss_bytes / 1e6:7,.0f} MB peak  "
        f"{cost.cpu_s / ranks:5.2f} s CPU a rank  {cost.wall_s:6.1f} s wall"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--collectives", type=int, default=16_000, help="of each rank")
    parser.add_argument(
        "--format", nargs="+", choices=("decode", "terminal", "json"), default=["decode", "terminal", "json"]
    )
    parser.add_argument("--keep", type=Path, help="folder for the run: kept, and used again when it is there")
    asked = parser.parse_args()
    if min(asked.ranks) <= SLOW:
        parser.error(f"--ranks must exceed {SLOW}: rank {SLOW} is the slow one")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = asked.keep or scratch / "run"
        truth = folder / "truth.txt"
        if not truth.exists():
            folder.mkdir(parents=True, exist_ok=True)
            begin = time.process_time()
            truth.write_text(json.dumps(write_run(folder, max(asked.ranks), asked.collectives)))
            print(f"written in {time.process_time() - begin:.0f} s CPU")
        ahead = json.loads(truth.read_text())
        for ranks in asked.ranks:
            part = part_of(folder, ranks, scratch)
            size = sum(os.path.getsize(path) for path in part.iterdir())
            print(f"{ranks} ranks x {asked.collectives:,} collectives, {size / 1e6:,.0f} MB packed")
            report = scratch / f"report-{ranks}.json"
            analyze = [sys.executable, "-m", "sp_profiler", "analyze", str(part), "--no-cache"]
            commands = {
                "decode": [sys.executable, "-c", _DECODE, str(part)],
                "terminal": analyze,
                "json": [*analyze, "--format", "json", "-o", str(report)],
            }
            for what in asked.format:
                print(_line(what, measure(commands[what]), ranks), flush=True)
            if report.exists():
                check(json.loads(report.read_text()), ahead, ranks)


if __name__ == "__main__":
    main()
