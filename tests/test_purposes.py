"""Purposes without annotations: torch's own DDP, FSDP2 and tensor parallelism, and others' traces drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gloo_helpers import run_ranks
from purposes_worker import MODELS

from sp_profiler.classify import classify
from sp_profiler.classify.tables import Classified, Role
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.write import TraceWriter

GEMM = "sm90_xmma_gemm_bf16"
FLASH = "flash_fwd_kernel"
BACKWARD_TID = 101
EVALUATE = "autograd::engine::evaluate_function: "


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("purposes")
    run_ranks("purposes_worker", out)
    return out


def said(classified: Classified) -> list[tuple[str | None, str, str]]:
    return [(c.op, c.purpose, c.purpose_rule) for c in classified.collectives]


def read(writer: TraceWriter, folder: Path) -> Classified:
    return classify(decode_trace(writer.write(folder / "rank0.json")))


PARAMETERS = ("all_gather", "param-gather", "operator-name")
GRADIENTS = ("reduce_scatter", "param-grad", "operator-name")
NORM = ("all_reduce", "other", "scalar")
EXPECTED = {
    "ddp": [("all_reduce", "param-grad", "accumulate-grad")],
    "fsdp": [PARAMETERS] * 4 + [GRADIENTS] * 2 + [NORM],
    "fsdp-checkpointed": None,  # how often parameters are gathered again is FSDP's choice
    "tp": [
        ("all_reduce", "activation", "autograd-function"),
        ("all_reduce", "dgrad", "autograd-node"),
        NORM,
    ],
}


@pytest.mark.gloo
@pytest.mark.parametrize("name", MODELS)
def test_torchs_own_parallelism(recorded: Path, name: str) -> None:
    for rank in range(2):
        classified = classify(decode_trace(str(recorded / f"{name}.rank-{rank:05d}.json")))
        found = sorted(said(classified))
        expected = EXPECTED[name]
        if expected is None:
            assert set(found) == {PARAMETERS, GRADIENTS, NORM}
        else:
            assert found == sorted(expected)


@pytest.mark.gloo
@pytest.mark.parametrize("name", MODELS)
def test_roles_under_torchs_own_parallelism(recorded: Path, name: str) -> None:
    """Also in distributed tensors, where an operator on global sizes holds one on local sizes."""
    classified = classify(decode_trace(str(recorded / f"{name}.rank-00000.json")))
    activities = classified.activities
    roles = {Role(role).name for role in activities.role[activities.is_gemm]}
    assert roles == {"FWD", "DGRAD", "WGRAD"} | ({"RECOMPUTE"} if "checkpointed" in name else set())


# --- drawn ----------------------------------------------------------------------------------------------


def compute(writer: TraceWriter, at: float, name: str = GEMM, op: str = "aten::mm", **options: Any) -> None:
    writer.cpu_op(op, at, 8, **options)
    writer.kernel(name, at + 1000, 5, launch=at + 2, launch_tid=options.get("tid"))


def node(writer: TraceWriter, name: str, at: float, dur: float, sequence: int = 9) -> None:
    options: dict[str, Any] = {"tid": BACKWARD_TID, "sequence": sequence, "fwd_thread": 1}
    writer.cpu_op(EVALUATE + name, at, dur, **options)
    writer.cpu_op(name, at + 1, dur - 2, **options)


def send(writer: TraceWriter, at: float, *, tid: int | None = None, **options: Any) -> None:
    writer.collective("send", at + 1000, 5, launch=at, launch_dur=0.5, launch_tid=tid, **options)


def test_pipeline(tmp_path: Path) -> None:
    """Activations and their gradients between stages: send/recv that no attention is near."""
    writer = TraceWriter(world_size=2)
    writer.cpu_op("c10d::recv_any_source_", 0, 4)
    send(writer, 1)
    compute(writer, 10)
    writer.cpu_op("c10d::send", 20, 4)
    send(writer, 21)
    node(writer, "MmBackward0", 40, 20)
    compute(writer, 44, tid=BACKWARD_TID)
    writer.cpu_op("c10d::send", 70, 4)
    send(writer, 71)
    # Before the first, the window may have cut off attention; it is what the group's others are.
    rules = ["group", "point-to-point", "point-to-point"]
    assert said(read(writer, tmp_path)) == [("send_recv", "pipeline", rule) for rule in rules]


def test_a_stage_that_begins_and_ends_with_attention(tmp_path: Path) -> None:
    """What the pipeline's group carries is no K, V; what a group without a name carries there is."""
    for description, purpose in (("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"), ("undefined", "kv")):
        writer = TraceWriter(world_size=2)
        for at in (0, 100):
            compute(writer, at, FLASH, "flash_attn::_flash_attn_forward")
            writer.cpu_op("c10d::send", at + 20, 4)
            send(writer, at + 21, description=description)
        assert [one.purpose for one in read(writer, tmp_path).collectives] == [purpose, purpose]


def ring(folder: Path, gradient_dtype: str) -> Classified:
    writer = TraceWriter(world_size=2)
    writer.cpu_op("RingFlashAttnFunc", 0, 60, sequence=9, fwd_thread=0)
    for at in (2, 22):
        send(writer, at)
        compute(writer, at + 5, FLASH, "flash_attn::_flash_attn_forward")
    node(writer, "RingFlashAttnFuncBackward", 100, 80)
    for at in (104, 134):
        send(writer, at, tid=BACKWARD_TID)
        compute(writer, at + 5, "flash_bwd_kernel", "flash_attn::_flash_attn_backward", tid=BACKWARD_TID)
        send(writer, at + 20, tid=BACKWARD_TID, dtype=gradient_dtype)
    return read(writer, folder)


@pytest.mark.parametrize("call", ["c10d::send", "_c10d_functional::all_to_all_single", "nccl:send 0->1"])
def test_merges_of_a_ring_without_metadata_are_no_attention(tmp_path: Path, call: str) -> None:
    writer = TraceWriter(world_size=2)
    node(writer, "RingFlashAttnFuncBackward", 100, 80)
    writer.cpu_op(call, 104, 2, tid=BACKWARD_TID)
    writer.collective("send", 1104, 5, launch=108, launch_tid=BACKWARD_TID, metadata=False)
    compute(writer, 115, "flash_bwd_kernel", "flash_attn::_flash_attn_backward", tid=BACKWARD_TID)
    compute(writer, 130, "elementwise_kernel", "aten::add", tid=BACKWARD_TID)
    classified = read(writer, tmp_path)
    assert classified.activities.role.tolist().count(int(Role.ATTENTION)) == 1


def test_ring_attention(tmp_path: Path) -> None:
    """K, V go round in both directions; their gradients, in fp32 here, in backward."""
    classified = ring(tmp_path, "Float")
    assert [c.purpose for c in classified.collectives] == ["kv", "kv", "kv", "dkv", "kv", "dkv"]
    # Of equal type and size nobody can say which is which.
    classified = ring(tmp_path, "BFloat16")
    assert [c.purpose for c in classified.collectives] == ["kv", "kv", *["unknown"] * 4]


def test_ulysses(tmp_path: Path) -> None:
    writer = TraceWriter(world_size=2)
    compute(writer, 0)
    for at in (10, 20, 50):
        writer.cpu_op("_AllToAll", at, 5, sequence=at, fwd_thread=0)
        writer.collective("all_to_all", 1000 + at, 3, launch=at + 1)
    compute(writer, 35, FLASH, "aten::_flash_attention_forward")
    compute(writer, 60)
    node(writer, "_AllToAllBackward", 100, 20, sequence=50)
    writer.collective("all_to_all", 1105, 3, launch=105, launch_tid=BACKWARD_TID)
    found = said(read(writer, tmp_path))
    assert found == [("all_to_all", "layout", "attention")] * 3 + [("all_to_all", "layout", "forward-peer")]


@pytest.mark.parametrize("named", [True, False])
def test_experts(tmp_path: Path, named: bool) -> None:
    """Dispatch and combine, by the module's range or by the router's top-k; backward as forward."""
    writer = TraceWriter(world_size=2)
    compute(writer, 0, FLASH, "aten::_flash_attention_forward")
    compute(writer, 10)
    writer.cpu_op("MoELayer" if named else "Block", 20, 80)
    writer.cpu_op("aten::topk", 22, 2)
    for at in (30, 60):
        writer.cpu_op("_AllToAll", at, 5, sequence=at, fwd_thread=0)
        writer.collective("all_to_all", 1000 + at, 3, launch=at + 1)
    compute(writer, 45)
    compute(writer, 110)
    for at, sequence in ((200, 60), (230, 30)):
        node(writer, "_AllToAllBackward", at, 20, sequence=sequence)
        writer.collective("all_to_all", 1000 + at, 3, launch=at + 5, launch_tid=BACKWARD_TID)
    rule = "operator-name" if named else "router"
    assert [(purpose, by) for _, purpose, by in said(read(writer, tmp_path))] == [
        *[("expert", rule)] * 2,
        *[("expert", "forward-peer")] * 2,
    ]


def test_an_all_to_all_that_nothing_explains_stays_unknown(tmp_path: Path) -> None:
    writer = TraceWriter(world_size=2)
    compute(writer, 0)
    writer.cpu_op("Exchange", 10, 5, sequence=3, fwd_thread=0).collective("all_to_all", 1010, 3, launch=11)
    compute(writer, 20)
    assert said(read(writer, tmp_path)) == [("all_to_all", "unknown", "none")]


def test_sharding_by_hand(tmp_path: Path) -> None:
    """ZeRO without names: gradients in accumulation hooks or before the step, parameters after it."""
    writer = TraceWriter(world_size=2)
    compute(writer, 0)
    node(writer, "torch::autograd::AccumulateGrad", 20, 20)
    writer.collective("_reduce_scatter_base", 1025, 3, launch=25, launch_tid=BACKWARD_TID)
    writer.cpu_op("c10d::allreduce_", 60, 4).collective("allreduce", 1060, 3, launch=61)
    writer.cpu_op("c10d::allreduce_", 70, 4).collective("allreduce", 1070, 3, launch=71, in_elements=1)
    writer.range("Optimizer.step#AdamW.step", 80, 20)
    writer.cpu_op("c10d::allreduce_", 82, 4).collective("allreduce", 1082, 3, launch=83, in_elements=1)
    writer.cpu_op("c10d::_allgather_base_", 110, 4).collective("_allgather_base", 1110, 3, launch=111)
    compute(writer, 120)
    assert said(read(writer, tmp_path)) == [
        ("reduce_scatter", "param-grad", "accumulate-grad"),
        ("all_reduce", "param-grad", "after-backward"),
        ("all_reduce", "other", "scalar"),
        ("all_reduce", "other", "scalar"),
        ("all_gather", "param-gather", "after-optimizer"),
    ]


def test_inference_by_size(tmp_path: Path) -> None:
    """No function and no node: as large as what the GEMM before it gives."""
    writer = TraceWriter(world_size=2)
    compute(writer, 0, dims=[[20, 12], [12, 16]])
    writer.cpu_op("engine::all_reduce", 10, 5).collective("allreduce", 1010, 3, launch=11, in_elements=320)
    compute(writer, 20, dims=[[20, 16], [16, 12]])
    writer.cpu_op("c10d::allreduce_", 30, 5).collective("allreduce", 1030, 3, launch=31, in_elements=999)
    found = said(read(writer, tmp_path))
    assert found[0] == ("all_reduce", "activation", "size")
    assert found[1][1] == "activation"  # the group carries nothing else in forward
    assert found[1][2] == "group"


@pytest.mark.parametrize(
    ("description", "op", "purpose"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "allreduce", "activation"),
        ("mesh_tp", "allreduce", "activation"),
        ("mesh_dp_shard", "_allgather_base", "param-gather"),
        ("mesh_ep", "all_to_all", "expert"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "all_to_all", "expert"),
        ("cp", "_allgather_base", "kv"),
        ("undefined", "_allgather_base", "unknown"),
        ("mesh_dp_shard_cp", "allreduce", "unknown"),  # says two things
        ("mesh_steps", "allreduce", "unknown"),
    ],
)
def test_by_the_groups_name(tmp_path: Path, description: str, op: str, purpose: str) -> None:
    writer = TraceWriter(world_size=2)
    writer.cpu_op("c10d::something_", 0, 5)
    writer.collective(op, 1000, 3, launch=1, description=description)
    expected = "group-name" if purpose != "unknown" else "none"
    assert [(p, rule) for _, p, rule in said(read(writer, tmp_path))] == [(purpose, expected)]


def test_what_was_launched_before_the_window_is_like_its_group(tmp_path: Path) -> None:
    writer = TraceWriter(world_size=2)
    node(writer, "torch::autograd::AccumulateGrad", 20, 20)
    writer.collective("allreduce", 5, 3).collective("allreduce", 1025, 3, launch=25, launch_tid=BACKWARD_TID)
    writer.collective("allreduce", 8, 3, in_elements=2)
    assert sorted(said(read(writer, tmp_path))) == sorted(
        [
            ("all_reduce", "param-grad", "accumulate-grad"),
            ("all_reduce", "param-grad", "group"),
            ("all_reduce", "unknown", "none"),
        ]
    )


def test_synchronised_batch_norm_and_buffers_are_other(tmp_path: Path) -> None:
    writer = TraceWriter(world_size=2).range("DistributedDataParallel.forward", 0, 60)
    writer.cpu_op("c10d::broadcast_", 1, 4).collective("broadcast", 1001, 3, launch=2)
    writer.cpu_op("SyncBatchNorm", 10, 10, sequence=5, fwd_thread=0)
    writer.collective("_allgather_base", 1010, 3, launch=12)
    node(writer, "SyncBatchNormBackward", 80, 20, sequence=5)
    writer.collective("allreduce", 1085, 3, launch=85, launch_tid=BACKWARD_TID)
    assert [purpose for _, purpose, _ in said(read(writer, tmp_path))] == ["other"] * 3


def test_many_collectives_cost_no_more_than_their_number(tmp_path: Path) -> None:
    """Every collective is decided, and none looks at all others."""
    writer = TraceWriter(world_size=2)
    for i in range(3000):
        node(writer, "ColumnFunctionBackward", 20 * i, 18, sequence=i)
        writer.collective("allreduce", 20 * i + 4, 3, launch=20 * i + 3, launch_tid=BACKWARD_TID)
    classified = read(writer, tmp_path)
    assert set(said(classified)) == {("all_reduce", "dgrad", "autograd-node")}
    assert len(classified.collectives) == 3000
    assert np.unique(classified.activities.node).size == 3000


@pytest.mark.parametrize(
    "op", ["vllm::all_reduce", "_C_custom_ar::all_reduce", "sglang::outplace_all_reduce"]
)
def test_serving_engines_reduce_activations(tmp_path: Path, op: str) -> None:
    """Their kernels carry no metadata; the operator tells."""
    writer = TraceWriter(world_size=2)
    compute(writer, 10)
    writer.cpu_op(op, 30, 20)
    writer.kernel("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(int)", 1000, 5, launch=35)
    assert said(read(writer, tmp_path)) == [("all_reduce", "activation", "operator-name")]


def test_a_tensor_parallel_group_gathers_no_parameters(tmp_path: Path) -> None:
    """Straight after the optimizer's step, outside of every function: what its group's name says counts."""
    writer = TraceWriter(world_size=2)
    compute(writer, 0)
    node(writer, "MmBackward0", 20, 20)
    writer.range("Optimizer.step#AdamW.step", 80, 20)
    writer.cpu_op("c10d::_allgather_base_", 110, 4)
    writer.collective("_allgather_base", 1110, 3, launch=111, description="mesh_tp")
    compute(writer, 120)
    assert [purpose for _, purpose, _ in said(read(writer, tmp_path))] == ["activation"]
