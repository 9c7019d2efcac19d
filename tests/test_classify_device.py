"""Tiny device traces drawn by hand: launches, steps, phases, roles and what is known of collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp_profiler.classify import classify
from sp_profiler.classify.tables import OUTSIDE_STEPS, UNKNOWN_STEP, Classified, Kind, Phase, Role
from sp_profiler.record.annotate import format_range
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.tables import Category, Trace
from sp_profiler.trace.write import TraceWriter

GEMM = "sm90_xmma_gemm_bf16"
NODE = "autograd::engine::evaluate_function: MmBackward0"


def read(writer: TraceWriter, folder: Path, run: dict[str, Any] | None = None) -> tuple[Trace, Classified]:
    trace = decode_trace(writer.write(folder / "rank0.json"))
    return trace, classify(trace, run)


def column(classified: Classified, name: str) -> list[Any]:
    return getattr(classified.activities, name).tolist()


def roles(classified: Classified) -> list[tuple[str, str, str]]:
    a = classified.activities
    return [
        (Role(r).name, classified.rules[rule], Phase(p).name)
        for r, rule, p in zip(a.role, a.role_rule, a.phase, strict=True)
    ]


def test_kinds_and_order(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.kernel(GEMM, 50, 10).collective("allreduce", 40, 30).memcpy("HtoD (Pinned -> Device)", 10, 5)
    writer.memset(5, 1).sync(0, 100).device_range("nccl:all_reduce", 40, 30)
    writer.memcpy("PtoP (Device -> Device)", 70, 4).memcpy(
        "DtoD (Device -> Device)", 80, 4, launch=75, launch_name="cudaMemcpyPeerAsync"
    )
    writer.kernel("ag_gemm_kernel", 90, 3)
    _, classified = read(writer, tmp_path)
    M, C, K, F = Kind.MEMORY, Kind.COMMUNICATION, Kind.COMPUTATION, Kind.FUSED
    assert column(classified, "kind") == [M, M, C, K, C, C, F]
    assert column(classified, "start_ns") == [5000, 10_000, 40_000, 50_000, 70_000, 80_000, 90_000]
    assert column(classified, "collective") == [-1, -1, 0, -1, 1, 2, 3]
    assert [c.op for c in classified.collectives] == ["all_reduce", "peer_copy", "peer_copy", None]
    assert [c.activity for c in classified.collectives] == [2, 4, 5, 6]
    assert not classified.is_cpu_only
    assert classified.cpu_comm_ns == 0


def test_steps_are_those_of_the_launch(tmp_path: Path) -> None:
    """Launched in step 4, run after it; the ranges' device copies and other threads do not matter."""
    writer = TraceWriter()
    writer.step(4, 0, 100).step(5, 100, 100).device_range("ProfilerStep#4", 150, 300)
    writer.kernel("k", 150, 10, launch=99, launch_dur=0.5, launch_tid=7)
    writer.kernel("k", 170, 10, launch=100)
    writer.kernel("k", 180, 10, launch=250)
    writer.kernel("k", 190, 10, correlation=999)
    trace, classified = read(writer, tmp_path)
    assert [(s.number, s.start_ns, s.end_ns) for s in classified.steps] == [
        (4, 0, 100_000),
        (5, 100_000, 200_000),
    ]
    assert column(classified, "step") == [4, 5, OUTSIDE_STEPS, UNKNOWN_STEP]
    assert column(classified, "launch_ns") == [99_000, 100_000, 250_000, -1]
    assert column(classified, "phase") == [Phase.UNKNOWN] * 4  # no operator around the launches
    assert column(classified, "event") == np.flatnonzero(trace.events.category == Category.KERNEL).tolist()


def test_steps_filed_as_operators(tmp_path: Path) -> None:
    writer = TraceWriter().complete("Operator", "ProfilerStep#7", 0, 10).kernel("k", 20, 1, launch=5)
    _, classified = read(writer, tmp_path)
    assert [s.number for s in classified.steps] == [7]
    assert column(classified, "step") == [7]


def test_roles_and_phases_without_annotations(tmp_path: Path) -> None:
    writer = TraceWriter()
    # forward: a GEMM with its split-K reduction, an attention core, a pointwise and a compiled kernel
    writer.cpu_op("aten::linear", 0, 20).cpu_op("aten::mm", 1, 15, sequence=3, fwd_thread=0)
    writer.kernel(GEMM, 100, 1, launch=2).kernel("splitKreduce_kernel", 101, 1, launch=4)
    writer.cpu_op("aten::scaled_dot_product_attention", 20, 10).kernel(GEMM, 102, 1, launch=22)
    writer.kernel("flash_fwd_kernel", 103, 1, launch=24)
    writer.cpu_op("aten::add", 30, 5).kernel("void at::native::add_kernel<float>(int)", 104, 1, launch=31)
    writer.cpu_op("CompiledFunction", 35, 5).kernel("triton_poi_fused_add_0", 105, 1, launch=36)
    # backward, on another thread: a node by name, and one by its forward thread alone
    writer.cpu_op(NODE, 40, 20, tid=9).cpu_op("MmBackward0", 41, 18, tid=9, sequence=3, fwd_thread=1)
    writer.cpu_op("aten::mm", 42, 5, tid=9).kernel(GEMM, 106, 1, launch=43, launch_tid=9)
    writer.cpu_op("custom", 60, 5, tid=9, fwd_thread=2).kernel("k", 107, 1, launch=61, launch_tid=9)
    # optimizer: its own frame, and a fused kernel known by its name only
    writer.range("Optimizer.step#AdamW.step", 70, 10).cpu_op("aten::mm", 71, 5).kernel(
        GEMM, 108, 1, launch=72
    )
    writer.range("Optimizer.zero_grad#AdamW.zero_grad", 80, 5).cpu_op("aten::zero_", 81, 3)
    writer.kernel("fill", 109, 1, launch=82)
    writer.kernel("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int)", 110, 1)
    writer.kernel(GEMM, 111, 1)
    trace, classified = read(writer, tmp_path)
    assert roles(classified) == [
        ("FWD", "launching-op", "FORWARD"),
        ("FWD", "launching-op", "FORWARD"),
        ("ATTENTION", "launching-op", "FORWARD"),
        ("ATTENTION", "kernel-name", "FORWARD"),
        ("OTHER", "not-a-gemm", "FORWARD"),
        ("UNKNOWN", "none", "FORWARD"),
        ("UNKNOWN", "none", "BACKWARD"),  # dgrad or wgrad: not guessed
        ("OTHER", "not-a-gemm", "BACKWARD"),
        ("OPTIMIZER", "launching-op", "OPTIMIZER"),
        ("OTHER", "not-a-gemm", "FORWARD"),
        ("OPTIMIZER", "kernel-name", "OPTIMIZER"),
        ("UNKNOWN", "none", "UNKNOWN"),
    ]
    names = [
        trace.strings[trace.events.name[node]] if node >= 0 else None for node in column(classified, "node")
    ]
    assert names == [None] * 6 + [NODE, "custom"] + [None] * 4
    assert column(classified, "is_gemm") == [i in (0, 2, 6, 8, 11) for i in range(12)]


def test_a_replayed_graph_is_not_guessed(tmp_path: Path) -> None:
    """Two kernels with the correlation of one cudaGraphLaunch: launched in forward, role unknown."""
    writer = TraceWriter().cpu_op("aten::mm", 0, 10)
    writer.kernel(GEMM, 20, 1, launch=1, launch_name="cudaGraphLaunch", correlation=5)
    writer.kernel("k", 21, 1, correlation=5)
    _, classified = read(writer, tmp_path)
    assert roles(classified) == [("UNKNOWN", "none", "FORWARD")] * 2
    assert column(classified, "launch_ns") == [1000, 1000]


def test_annotations_decide_roles_modules_and_layers(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.range(format_range("fwd", module="m.q", layer=3), 0, 9).kernel(GEMM, 100, 1, launch=1)
    writer.kernel("pointwise", 101, 1, launch=2)  # launched inside: has the range's role
    writer.cpu_op(NODE, 10, 30)
    writer.range(format_range("dgrad", module="m.q", layer=3), 11, 5).kernel(GEMM, 102, 1, launch=12)
    writer.range(format_range("wgrad", module="m.q", layer=3), 20, 5).kernel(GEMM, 103, 1, launch=21)
    # checkpointing: a forward range inside an autograd node is done again
    writer.range(format_range("fwd", module="m.k", layer=2), 30, 5).kernel(GEMM, 104, 1, launch=31)
    # recompute around a forward outside any node
    writer.range(format_range("recompute", layer=1), 50, 9).range(format_range("fwd", module="m.v"), 51, 5)
    writer.kernel(GEMM, 105, 1, launch=52)
    writer.range(format_range("optimizer"), 60, 5).kernel("k", 106, 1, launch=61)
    writer.range(format_range("attention", layer=0), 70, 5).kernel(GEMM, 107, 1, launch=71)
    writer.range("sp::nonsense|module=x", 80, 5).kernel("k", 108, 1, launch=81)
    _, classified = read(writer, tmp_path)
    assert roles(classified) == [
        ("FWD", "annotation", "FORWARD"),
        ("FWD", "annotation", "FORWARD"),
        ("DGRAD", "annotation", "BACKWARD"),
        ("WGRAD", "annotation", "BACKWARD"),
        ("RECOMPUTE", "annotation", "BACKWARD"),
        ("RECOMPUTE", "annotation", "BACKWARD"),
        ("OPTIMIZER", "annotation", "OPTIMIZER"),
        ("ATTENTION", "annotation", "FORWARD"),
        ("OTHER", "not-a-gemm", "UNKNOWN"),
    ]
    modules = [classified.names[m] if m >= 0 else None for m in column(classified, "module")]
    assert modules == ["m.q", "m.q", "m.q", "m.q", "m.k", "m.v", None, None, None]
    assert column(classified, "layer") == [3, 3, 3, 3, 2, 1, -1, 0, -1]
    starts = [0, 0, 11_000, 20_000, 30_000, 51_000, 60_000, 70_000, -1]
    assert column(classified, "range_start_ns") == starts


def test_operator_by_external_id_when_the_launch_is_missing(tmp_path: Path) -> None:
    writer = TraceWriter().step(1, 0, 50).cpu_op(NODE, 10, 30).cpu_op("aten::mm", 12, 5, external_id=77)
    writer.kernel(GEMM, 100, 1, external_id=77, correlation=5000)
    writer.kernel(GEMM, 102, 1, external_id=1234, correlation=5001)
    _, classified = read(writer, tmp_path)
    assert column(classified, "launch_ns") == [-1, -1]
    assert column(classified, "step") == [1, UNKNOWN_STEP]
    assert [Phase(p).name for p in column(classified, "phase")] == ["BACKWARD", "UNKNOWN"]


def test_external_id_that_repeats_the_correlation_names_no_operator(tmp_path: Path) -> None:
    writer = TraceWriter().cpu_op(NODE, 0, 5, external_id=41).cpu_op(NODE, 5, 5, external_id=42)
    writer.kernel(GEMM, 100, 1, external_id=41, correlation=41)
    writer.kernel(GEMM, 101, 1, external_id=42, correlation=42)
    _, classified = read(writer, tmp_path)
    assert [Phase(p).name for p in column(classified, "phase")] == ["UNKNOWN", "UNKNOWN"]


@pytest.mark.parametrize("device", [0, 3])
def test_metadata_of_a_collective(tmp_path: Path, device: int) -> None:
    writer = TraceWriter(world_size=2, device=device).collective(
        "_reduce_scatter_base",
        20,
        5,
        launch=3,
        launch_dur=2,
        description="tp",
        in_elements=64,
        out_elements=32,
        seq=9,
        is_async=True,
    )
    _, classified = read(writer, tmp_path)
    (found,) = classified.collectives
    assert (found.op, found.bytes, found.dtype, found.seq, found.is_async) == (
        "reduce_scatter",
        128,
        "bfloat16",
        9,
        True,
    )
    assert found.group is not None
    assert (found.group.key, found.group.ranks, found.group.size) == ("tp[0,1]", (0, 1), 2)
    assert (found.launch_ns, found.launch_end_ns, found.wait_start_ns) == (3000, 5000, None)
    assert (found.purpose, found.purpose_rule) == ("unknown", "none")
    assert column(classified, "device") == [device]


def test_metadata_from_record_param_comms_and_the_wait_that_is_none(tmp_path: Path) -> None:
    writer = TraceWriter().param_comms("wait", 0, 2, external_id=1, seq=4)
    writer.param_comms("allreduce", 5, 10, external_id=2, in_elements=8, dtype="Float", seq=4, is_async=True)
    writer.collective("allreduce", 20, 5, launch=7, metadata=False, kernel="ncclDevKernel_Generic(int)")
    writer.param_comms("wait", 30, 3, external_id=3, seq=4)
    _, classified = read(writer, tmp_path)
    (found,) = classified.collectives
    assert (found.op, found.bytes, found.dtype, found.seq) == ("all_reduce", 32, "float32", 4)
    assert (found.wait_start_ns, found.wait_end_ns) == (30_000, 33_000)  # the first wait after the launch


def test_what_names_and_ranges_say_without_metadata(tmp_path: Path) -> None:
    config = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
    writer = TraceWriter(world_size=2, pg_config=config)
    types, dims = ["float"], [[4, 4]]
    writer.range("nccl:all_to_all", 0, 5, **{"Input type": types, "Input Dims": dims})
    writer.kernel("ncclDevKernel_SendRecv(int)", 100, 1, launch=1)
    writer.kernel("ncclDevKernel_SendRecv(int)", 102, 1, launch=10)
    writer.kernel("ncclDevKernel_Generic(int)", 104, 1, launch=12)
    writer.kernel("void multimem_all_reduce_kernel<float>(int)", 106, 1, launch=14)
    _, classified = read(writer, tmp_path)
    assert [(c.op, c.bytes, c.dtype) for c in classified.collectives] == [
        ("all_to_all", 64, "float32"),
        ("send_recv", None, None),
        (None, None, None),
        ("all_reduce", None, None),
    ]
    keys = [c.group.key if c.group else None for c in classified.collectives]
    assert keys == ["default_pg[0,1]"] * 3 + [None]  # NCCL's kernels belong to the file's only group


def test_annotated_collective(tmp_path: Path) -> None:
    comm: dict[str, Any] = {"op": "all_reduce", "group": "tp[0,1]", "bytes": 512, "dtype": "bfloat16"}
    comm |= {"async_": True, "seq": 7, "purpose": "dgrad", "partner": "wgrad", "module": "m.q", "layer": 1}
    writer = TraceWriter(world_size=2).cpu_op(NODE, 0, 100)
    writer.range(format_range("comm", **comm), 10, 6).collective(
        "allreduce", 30, 20, launch=12, in_elements=256
    )
    writer.range(format_range("wait", op="all_reduce", group="tp[0,1]", seq=7), 60, 4)
    writer.range(format_range("wait", op="all_reduce", group="tp[0,1]", seq=8), 70, 4)
    sync = comm | {"async_": False, "seq": 8, "phase": "optimizer"}
    writer.range(format_range("comm", **sync), 80, 9).collective(
        "allreduce", 85, 2, launch=82, metadata=False
    )
    _, classified = read(writer, tmp_path)
    first, second = classified.collectives
    assert (first.purpose, first.purpose_rule, first.partner_what) == ("dgrad", "annotation", "wgrad")
    assert (first.module, first.layer, first.is_async, first.seq, first.bytes) == ("m.q", 1, True, 7, 512)
    assert first.group is not None
    assert first.group.key == "tp[0,1]"  # the annotation's name for the same ranks
    assert (first.launch_ns, first.launch_end_ns) == (12_000, 16_000)
    assert (first.wait_start_ns, first.wait_end_ns) == (60_000, 64_000)
    assert (second.op, second.bytes, second.dtype, second.seq) == ("all_reduce", 512, "bfloat16", 8)
    assert (second.is_async, second.wait_start_ns) == (False, None)
    assert [Phase(p).name for p in column(classified, "phase")] == ["BACKWARD", "OPTIMIZER"]
    assert column(classified, "range_start_ns") == [10_000, 80_000]


def test_gloo_beside_device_events_is_counted_apart(tmp_path: Path) -> None:
    """gloo 0-10, 5-15 and 30-40: 25 µs of union, none of it communication of the device."""
    writer = TraceWriter().kernel("k", 0, 100)
    writer.gloo("all_reduce", 0, 10).gloo("all_reduce", 5, 10, tid=201).gloo("all_gather", 30, 10)
    _, classified = read(writer, tmp_path)
    assert column(classified, "kind") == [Kind.COMPUTATION]
    assert classified.cpu_comm_ns == 25_000


def test_a_gpu_trace_without_device_events(tmp_path: Path) -> None:
    _, classified = read(TraceWriter().cpu_op("aten::mm", 0, 5).gloo("all_reduce", 0, 1), tmp_path)
    assert len(classified.activities) == 0
    assert classified.collectives == ()
    assert not classified.is_cpu_only
    assert classified.cpu_comm_ns is None


def test_two_devices_in_one_file(tmp_path: Path) -> None:
    writer = TraceWriter().kernel(GEMM, 0, 10, device=1).collective("allreduce", 0, 10, device=0)
    _, classified = read(writer, tmp_path)
    by_device = dict(zip(column(classified, "device"), column(classified, "kind"), strict=True))
    assert by_device == {0: Kind.COMMUNICATION, 1: Kind.COMPUTATION}


def test_epoch_times_stay_exact(tmp_path: Path) -> None:
    writer = TraceWriter().kernel("k", "1778655624745710.730", "0.001", launch="1778655624745700.999")
    _, classified = read(writer, tmp_path)
    assert column(classified, "start_ns") == [1778655624745710730]
    assert column(classified, "end_ns") == [1778655624745710731]
    assert column(classified, "launch_ns") == [1778655624745700999]
    assert classified.activities.start_ns.dtype == np.int64
