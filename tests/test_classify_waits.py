"""Device traces as torch before 2.13 writes them: the waits are there, but nothing says for what.

`Host` draws what a host does and what the device makes of it: kernels of a stream run in order, a collective
after what was launched before it, what is launched behind a wait after the collective.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify import classify
from sp_profiler.classify.tables import Collective
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.write import TraceWriter, collective_args

COMPUTE, GATHER = 7, 24
STREAMS = {"tp": 20, "dp": 22}
LAG = 30


class Host:
    """Draws events with a clock of its own, in µs."""

    def __init__(self, *, records: bool) -> None:
        self.writer = TraceWriter(world_size=4)
        self.records = records  # `record_param_comms` of waits; else only the streams' waits
        self.now = 1000
        self.free: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.waited: dict[int, int] = {}  # when the host began to wait for collective i
        self._next = 0

    def tick(self, by: int = 2) -> int:
        self.now += by
        return self.now

    def compute(self, dur: int = 200, name: str = "sm90_xmma_gemm_bf16") -> None:
        at = self.tick()
        start = max(at + LAG, self.free.get(COMPUTE, 0))
        self.writer.kernel(name, start, dur, launch=at, stream=COMPUTE)
        self.free[COMPUTE] = start + dur

    def collective(
        self, op: str = "allreduce", dur: int = 150, group: str = "tp", stream: int | None = None
    ) -> int:
        at = self.tick()
        stream = STREAMS[group] if stream is None else stream
        told = {"ranks": (0, 1) if group == "tp" else (0, 2), "group": group, "description": group}
        self.writer.cpu_op(f"c10d::{op}_", at, 8).param_comms(op, at + 1, 6, **told)
        self.writer.runtime("cudaStreamWaitEvent", at + 2, 1)  # the collective's stream, for its input
        start = max(at + LAG, self.free.get(stream, 0), self.free.get(COMPUTE, 0))
        self.writer.collective(op, start, dur, launch=at + 4, stream=stream, **told)
        self.free[stream] = start + dur
        self.tick(8)
        self._next += 1
        self.ends[self._next - 1] = start + dur
        return self._next - 1

    def wait(self, which: int, group: str = "tp", *, stream: int = COMPUTE, recorded: bool = True) -> None:
        at = self.tick()
        self.waited[which] = at
        if self.records and recorded:
            # As torch writes it: no ranks, a group of one.
            args = collective_args("wait", ranks=None, group=group, description=group, in_elements=0)
            args |= {"Process Group Ranks": "[]", "Group size": 1}
            self.writer.cpu_op("record_param_comms", at, 4, **args)
        self.writer.runtime("cudaStreamWaitEvent", at + (1 if self.records and recorded else 0), 2)
        self.free[stream] = max(self.free.get(stream, 0), self.ends[which])
        self.tick(4)

    def read(self, folder: Path) -> list[Collective]:
        """The collectives in order of launch."""
        found = classify(decode_trace(self.writer.write(folder / "rank0.json"))).collectives
        return sorted(found, key=lambda one: one.launch_ns or 0)


def waits(collectives: list[Collective]) -> dict[int, int]:
    return {
        i: one.wait_start_ns // 1000 for i, one in enumerate(collectives) if one.wait_start_ns is not None
    }


def causes(host: Host, folder: Path) -> list[tuple[str | None, str | None]]:
    trace = decode_trace(host.writer.write(folder / "rank0.json"))
    result = analyze_rank(trace, classify(trace), WindowRule("trace"))
    found = sorted(result.collectives, key=lambda one: one.launch_ns or 0)
    return [(one.cause, one.cause_evidence.rule if one.cause_evidence else None) for one in found]


@pytest.mark.parametrize("records", [True, False])
def test_a_synchronous_collective_is_waited_for_at_once(tmp_path: Path, records: bool) -> None:
    host = Host(records=records)
    host.compute()
    first = host.collective()
    host.wait(first)
    host.compute()
    assert waits(host.read(tmp_path)) == host.waited
    assert causes(host, tmp_path) == [("synchronous", "waited-at-once")]


def test_an_asynchronous_one_hides_under_what_is_launched_before_its_wait(tmp_path: Path) -> None:
    """Megatron: the all-reduce of dgrad under wgrad, recorded waits without a sequence number."""
    host = Host(records=True)
    host.compute()
    first = host.collective(dur=150)
    host.compute(dur=90)
    host.wait(first)
    host.compute()
    assert waits(host.read(tmp_path)) == host.waited
    assert causes(host, tmp_path) == [("partner-too-short", "partner")]


def test_nothing_tells_whose_a_later_wait_of_a_stream_is(tmp_path: Path) -> None:
    host = Host(records=False)
    host.compute()
    first = host.collective()
    host.compute(dur=90)
    host.wait(first)
    host.compute()
    assert waits(host.read(tmp_path)) == {}
    assert causes(host, tmp_path) == [("unknown", "wait-not-in-trace")]


@pytest.mark.parametrize("seed", range(20))
def test_recorded_waits_of_two_groups(tmp_path: Path, seed: int) -> None:
    """Any order of asynchronous and synchronous collectives whose groups' waits come in order."""
    draw = random.Random(seed)
    host = Host(records=True)
    pending: dict[str, list[int]] = {"tp": [], "dp": []}
    for _ in range(40):
        group = draw.choice(("tp", "dp"))
        what = draw.choice(("compute", "launch", "wait", "both"))
        if what == "compute":
            host.compute(dur=draw.choice((20, 300)))
        elif what == "launch":
            pending[group].append(host.collective(group=group, dur=draw.choice((50, 200))))
            host.compute(dur=100)
        elif what == "both" and not pending[group]:
            host.wait(host.collective(group=group), group)
            host.compute()
        elif pending[group]:
            host.compute(dur=10)
            host.wait(pending[group].pop(0), group)
            host.compute(dur=30)
    assert waits(host.read(tmp_path)) == host.waited


def test_a_wait_on_another_stream_blocks_nothing(tmp_path: Path) -> None:
    """ZeRO and FSDP wait on a side stream: computation runs on, so the collective is not synchronous."""
    host = Host(records=True)
    host.compute(dur=20)
    first = host.collective("_allgather_base", dur=400, group="dp", stream=GATHER)
    host.wait(first, "dp", stream=GATHER)
    host.compute(dur=300)
    assert waits(host.read(tmp_path)) == {}
    assert causes(host, tmp_path)[0][0] != "synchronous"


@pytest.mark.parametrize("beside", [True, False])
def test_synchronous_on_a_stream_of_its_own_is_asynchronous(tmp_path: Path, beside: bool) -> None:
    """torch 2.13 tells `Is asynchronized op: false`; computation launched behind it that runs beside it
    shows that this holds for another stream only."""
    writer = TraceWriter(world_size=2).kernel("gemm", 10, 20, launch=1)
    writer.collective("allreduce", 40, 100, launch=20, stream=20, is_async=False, seq=1)
    writer.kernel("gemm", 60 if beside else 140, 50, launch=30)
    found = classify(decode_trace(writer.write(tmp_path / "rank0.json"))).collectives
    assert found[0].is_async is beside


def test_the_reducer_waits_for_its_buckets_in_order(tmp_path: Path) -> None:
    host = Host(records=True)
    host.writer.range("DistributedDataParallel.forward", 900, 50)
    host.compute()
    accumulate = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    buckets = []
    for dur in (250, 250, 40):
        host.compute(dur=dur)
        start = host.tick()
        buckets.append(host.collective(group="dp"))
        host.writer.cpu_op(accumulate, start, host.tick() - start)
    for bucket in buckets:
        host.wait(bucket, "dp", recorded=False)
        host.compute(dur=3, name="copy_kernel")
    found = host.read(tmp_path)
    assert waits(found) == host.waited
    assert [one.is_async for one in found] == [True] * 3
    assert [one.purpose for one in found] == ["param-grad"] * 3
    assert causes(host, tmp_path)[2] == ("partner-too-short", "partner")  # it runs under the copies


def test_fsdp2_waits_where_it_copies_out(tmp_path: Path) -> None:
    """Prefetched: both gathers are launched first. `synchronous` in torch's words, on the gather's stream."""
    host = Host(records=True)
    host.compute()
    gathers = []
    for layer in range(2):
        start = host.tick()
        gathers.append(host.collective("_allgather_base", dur=200, group="dp", stream=GATHER))
        host.wait(gathers[-1], "dp", stream=GATHER)
        host.writer.range(f"FSDP::all_gather (layers.{layer})", start, host.tick() - start)
    for layer in range(2):
        at = host.waited[gathers[layer]] = host.tick()
        host.free[COMPUTE] = max(host.free[COMPUTE], host.ends[gathers[layer]])
        host.compute(dur=5, name="split_with_sizes_copy_out")
        host.writer.range(f"FSDP::all_gather_copy_out (layers.{layer})", at, host.tick() - at)
        host.compute(dur=300)
    found = host.read(tmp_path)
    assert [one.purpose for one in found] == ["param-gather"] * 2
    assert waits(found) == host.waited
    assert [one.is_async for one in found] == [True] * 2
    assert [cause for cause, _ in causes(host, tmp_path)] != ["synchronous"] * 2


def test_functional_collectives_are_waited_for_by_an_operator(tmp_path: Path) -> None:
    """torchtitan's tensor parallelism: `_c10d_functional::wait_tensor`, with the stream's wait inside."""
    host = Host(records=False)
    host.compute()
    first = host.collective("_allgather_base")
    start = host.tick()
    host.wait(first)
    host.writer.cpu_op("_c10d_functional::wait_tensor", start, host.tick() - start)
    host.compute()
    found = waits(host.read(tmp_path))
    assert found == {0: start}
    assert causes(host, tmp_path) == [("synchronous", "waited-at-once")]
