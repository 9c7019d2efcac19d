"""Node structures of frameworks that are not installed here, drawn as their traces show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp_profiler.classify import classify
from sp_profiler.classify.backward import layout_letters
from sp_profiler.classify.tables import Classified, Phase, Role
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.write import TraceWriter

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_execute_kernel__5x_cublas"
EVALUATE = "autograd::engine::evaluate_function: "
FORWARD_TID, BACKWARD_TID = 100, 101


def read(writer: TraceWriter, folder: Path) -> Classified:
    return classify(decode_trace(writer.write(folder / "rank0.json")))


def gemms(classified: Classified) -> list[tuple[str, str]]:
    activities = classified.activities
    rows = np.flatnonzero(activities.is_gemm)
    return [
        (Role(activities.role[row]).name.lower(), classified.rules[activities.role_rule[row]]) for row in rows
    ]


def purposes(classified: Classified) -> list[tuple[str, str]]:
    return [(c.purpose, c.purpose_rule) for c in classified.collectives]


def node(writer: TraceWriter, name: str, start: float, dur: float, sequence: int = 9) -> TraceWriter:
    """A node on the backward thread: the engine's name around its own."""
    options: dict[str, Any] = {"tid": BACKWARD_TID, "sequence": sequence, "fwd_thread": 1}
    writer.cpu_op(EVALUATE + name, start, dur, **options)
    return writer.cpu_op(name, start + 1, dur - 2, **options)


def kernel(writer: TraceWriter, launch: float, tid: int = BACKWARD_TID, name: str = GEMM) -> TraceWriter:
    return writer.kernel(name, launch + 1000, 5, launch=launch, launch_dur=0.5, launch_tid=tid)


def product(
    writer: TraceWriter, at: float, a: list[int], b: list[int], tid: int = BACKWARD_TID
) -> TraceWriter:
    writer.cpu_op("aten::matmul", at, 8, tid=tid, dims=[a, b])
    writer.cpu_op("aten::mm", at + 1, 6, tid=tid, dims=[a, b])
    return kernel(writer, at + 3, tid)


# --- Megatron -------------------------------------------------------------------------------------------

MEGATRON = "LinearWithGradAccumulationAndAsyncCommunication"


def megatron(folder: Path, *, fused: bool, shapes: bool, sequence_parallel: bool) -> Classified:
    """A column linear of 64 tokens, 32 inputs, 64 outputs (so shapes do not tell), with its collectives."""
    writer = TraceWriter(world_size=2).step(3, 0, 900)
    sizes = ([64, 32], [32, 64]) if shapes else ([], [])
    writer.cpu_op(MEGATRON, 10, 80, tid=FORWARD_TID, sequence=9, fwd_thread=0)
    op = "_allgather_base" if sequence_parallel else None
    if op:
        writer.collective(op, 1005, 20, launch=15, launch_tid=FORWARD_TID, in_elements=1024)
    product(writer, 30, *sizes, tid=FORWARD_TID)
    node(writer, MEGATRON + "Backward", 200, 200)
    if sequence_parallel:
        writer.collective(op or "", 1205, 20, launch=205, launch_tid=BACKWARD_TID, in_elements=1024)
    product(writer, 220, *(([64, 64], [64, 32]) if shapes else ([], [])))
    reduction = "_reduce_scatter_base" if sequence_parallel else "allreduce"
    writer.collective(reduction, 1245, 20, launch=240, launch_tid=BACKWARD_TID, in_elements=2048)
    if fused:
        kernel(writer, 260)
    else:
        product(writer, 260, *(([64, 64], [64, 32]) if shapes else ([], [])))
    return read(writer, folder)


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_megatrons_linear(tmp_path: Path, fused: bool, shapes: bool) -> None:
    """dgrad under aten::matmul, wgrad straight under the node (fused accumulation) or a matmul too."""
    found = gemms(megatron(tmp_path, fused=fused, shapes=shapes, sequence_parallel=False))
    assert found == [("fwd", "launching-op"), ("dgrad", "node-table"), ("wgrad", "node-table")]


def test_megatrons_collectives(tmp_path: Path) -> None:
    parallel = megatron(tmp_path, fused=True, shapes=False, sequence_parallel=True)
    assert purposes(parallel) == [
        ("activation", "autograd-function"),
        ("input-regather", "autograd-node"),
        ("dgrad", "autograd-node"),
    ]
    tensor = megatron(tmp_path, fused=True, shapes=False, sequence_parallel=False)
    assert purposes(tensor) == [("dgrad", "autograd-node")]


@pytest.mark.parametrize(
    ("function", "forward", "backward"),
    [
        ("_CopyToModelParallelRegion", None, "allreduce"),
        ("_ReduceFromModelParallelRegion", "allreduce", None),
        ("_GatherFromSequenceParallelRegion", "_allgather_base", "_reduce_scatter_base"),
        ("_ReduceScatterToSequenceParallelRegion", "_reduce_scatter_base", "_allgather_base"),
        ("_ScatterToSequenceParallelRegion", None, "_allgather_base"),
    ],
)
def test_megatrons_regions(tmp_path: Path, function: str, forward: str | None, backward: str | None) -> None:
    writer = TraceWriter(world_size=2)
    writer.cpu_op(function, 10, 20, sequence=4, fwd_thread=0)
    node(writer, function + "Backward", 100, 50, sequence=4)
    if forward:
        writer.collective(forward, 1000, 20, launch=15)
    if backward:
        writer.collective(backward, 1100, 20, launch=110, launch_tid=BACKWARD_TID)
    expected = [("activation", "autograd-function")] * bool(forward) + [("dgrad", "autograd-node")] * bool(
        backward
    )
    assert purposes(read(writer, tmp_path)) == expected


# --- TransformerEngine ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("_LinearBackward", ["dgrad", "wgrad"]),
        ("_LayerNormLinearBackward", ["dgrad", "wgrad"]),
        ("_LayerNormMLPBackward", ["dgrad", "wgrad", "dgrad", "wgrad"]),
        ("_GroupedLinearBackward", ["dgrad"] * 3 + ["wgrad"] * 3),
    ],
)
def test_transformer_engines_nodes(tmp_path: Path, name: str, roles: list[str]) -> None:
    """Its GEMMs are an extension's: no operator, no shapes. FP8 kernels are all `tn`."""
    writer = node(TraceWriter(), name, 0, 300)
    for i, _ in enumerate(roles):
        kernel(writer, 10 + 20 * i, name="sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128")
        writer.kernel("splitKreduce_kernel", 1016 + 20 * i, 1, launch=12 + 20 * i, launch_tid=BACKWARD_TID)
    classified = read(writer, tmp_path)
    assert gemms(classified) == [(role, "node-table") for role in roles]
    parts = np.flatnonzero(~classified.activities.is_gemm)
    assert [Role(classified.activities.role[part]).name.lower() for part in parts] == roles


@pytest.mark.parametrize("count", [1, 3])
def test_a_table_speaks_only_of_whole_nodes(tmp_path: Path, count: int) -> None:
    """Without a gradient of the input, or with the wgrad put off, which one it is the table does not say."""
    writer = node(TraceWriter(), "_LinearBackward", 0, 300)
    for i in range(count):
        kernel(writer, 10 + 20 * i)
    assert gemms(read(writer, tmp_path)) == [("unknown", "none")] * count


def test_transformer_engines_block_gathers_the_gradient_first(tmp_path: Path) -> None:
    writer = node(TraceWriter(world_size=2), "_LayerNormMLPBackward", 0, 300)
    for at, op in ((10, "_allgather_base"), (20, "_allgather_base"), (30, "_reduce_scatter_base")):
        writer.collective(op, 1000 + at, 5, launch=at, launch_tid=BACKWARD_TID)
    for i in range(4):
        kernel(writer, 100 + 20 * i)
    assert [purpose for purpose, _ in purposes(read(writer, tmp_path))] == [
        "dgrad",
        "input-regather",
        "dgrad",
    ]


# --- weak and no evidence -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "letters"),
    [
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize256x128x32_stage3_warpsize4x2x1", "tn"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nt", "nt"),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_64x6_nn_align8>(Params)",
            "nn",
        ),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopB_NTT", "nt"),
        ("nvjet_tst_192x192_64x4_1x2_h_bz_coopA_NNT", "nn"),
        ("nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT", None),  # FP8
        ("Cijk_Ailk_Bljk_BBS_BH_MT32x32x64_MI16x16x16x1_SN", "nn"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", "tn"),
        ("Cijk_Ailk_Bjlk_SB_Bias_AS_SAV_UserArgs_MT64x16x16", "nt"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", None),
        ("sm90_xmma_gemm_bf16", None),
        ("gemm_antenna_kernel", None),
    ],
)
def test_layout_letters(name: str, letters: str | None) -> None:
    assert layout_letters(name) == letters


def test_letters_decide_where_nothing_better_does(tmp_path: Path) -> None:
    writer = node(TraceWriter(), "SomebodysLinearBackward", 0, 300)
    for at, letters in ((10, "nn"), (30, "nt"), (50, "tn")):
        kernel(writer, at, name=f"ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_{letters}")
    assert gemms(read(writer, tmp_path)) == [
        ("dgrad", "kernel-layout"),
        ("wgrad", "kernel-layout"),
        ("unknown", "none"),
    ]


def test_shapes_by_the_flow_alone(tmp_path: Path) -> None:
    """Files without sequence numbers: the flow leads from the forward operator to its node."""
    writer = TraceWriter().cpu_op("aten::mm", 10, 10, dims=[[20, 12], [12, 16]])
    kernel(writer, 12, FORWARD_TID)
    writer.cpu_op("MmBackward0", 100, 100, tid=BACKWARD_TID)
    writer.fwdbwd(10, 100, fwd_tid=FORWARD_TID, bwd_tid=BACKWARD_TID)
    for at, a, b in ((110, [16, 20], [20, 12]), (140, [20, 16], [16, 12])):
        writer.cpu_op("aten::mm", at, 10, tid=BACKWARD_TID, dims=[a, b])
        kernel(writer, at + 2)
    assert gemms(read(writer, tmp_path)) == [
        ("fwd", "launching-op"),
        ("wgrad", "shapes"),
        ("dgrad", "shapes"),
    ]


def test_numbers_count_per_thread(tmp_path: Path) -> None:
    """Two forward threads used the number 5; the node names its thread, which 6 and 7 make known.

    (16,20) @ (20,12) is the wgrad of thread 200's (20,12) @ (12,16) and the dgrad of 300's (16,12) @ (12,20).
    """
    writer = TraceWriter()
    sizes = {200: ([20, 12], [12, 16]), 300: ([16, 12], [12, 20])}
    for tid, other in ((200, 6), (300, 7)):
        for sequence in (5, other):
            options: dict[str, Any] = {"tid": tid, "sequence": sequence, "fwd_thread": 0, "dims": sizes[tid]}
            writer.cpu_op("aten::mm", 10 * sequence, 5, **options)
    for at, sequence, thread in ((100, 6, 1), (120, 7, 2), (140, 5, 1), (160, 5, 2)):
        writer.cpu_op("MmBackward0", at, 15, tid=BACKWARD_TID, sequence=sequence, fwd_thread=thread)
        writer.cpu_op("aten::mm", at + 2, 5, tid=BACKWARD_TID, dims=[[16, 20], [20, 12]])
        kernel(writer, at + 4)
    assert gemms(read(writer, tmp_path)) == [("wgrad", "shapes"), ("dgrad", "shapes")] * 2


def test_graph_replays_and_fused_kernels_are_unknown_and_counted(tmp_path: Path) -> None:
    writer = node(TraceWriter(), "CompiledFunctionBackward", 0, 300)
    name = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nn"
    writer.runtime("cudaGraphLaunch", 10, 2, correlation=70, tid=BACKWARD_TID)
    writer.kernel(name, 1000, 5, correlation=70).kernel(name, 1010, 5, correlation=70)
    writer.kernel("triton_tem_fused_mm_3", 1020, 5, launch=50, launch_tid=BACKWARD_TID)
    writer.kernel("triton_poi_fused_add_gelu_0", 1030, 5, launch=60, launch_tid=BACKWARD_TID)
    classified = read(writer, tmp_path)
    assert set(classified.activities.role.tolist()) == {Role.UNKNOWN}
    assert {entry.code: entry.count for entry in classified.ledger} == {
        "graph-replay-role-unknown": 2,
        "compiled-role-unknown": 2,
    }


def test_recomputation_in_a_hook_and_in_a_node(tmp_path: Path) -> None:
    """Inside a node, an operator with a sequence number of its own does forward work again."""
    writer = node(TraceWriter(), "MmBackward0", 0, 300)
    writer.cpu_op("aten::linear", 10, 30, tid=BACKWARD_TID, sequence=40, fwd_thread=0)
    writer.cpu_op("aten::mm", 12, 20, tid=BACKWARD_TID, sequence=41, fwd_thread=0)
    kernel(writer, 14)
    writer.cpu_op("aten::gelu", 50, 10, tid=BACKWARD_TID, sequence=42, fwd_thread=0)
    writer.kernel("gelu_kernel", 1060, 5, launch=52, launch_tid=BACKWARD_TID)
    classified = read(writer, tmp_path)
    assert [Role(role) for role in classified.activities.role] == [Role.RECOMPUTE] * 2
    assert [Phase(phase) for phase in classified.activities.phase] == [Phase.BACKWARD] * 2


def test_asynchronous_tensor_parallelism_takes_the_tokens_in_pieces(tmp_path: Path) -> None:
    """torchtitan, compiled: forward and dgrad multiply the tokens rank by rank, wgrad all of them."""
    M, K, N = 128, 48, 80
    writer = TraceWriter(world_size=2)
    writer.cpu_op("CompiledFunction", 10, 80, tid=FORWARD_TID, sequence=9, fwd_thread=0)
    writer.cpu_op("symm_mem::fused_all_gather_matmul", 12, 70, tid=FORWARD_TID)
    product(writer, 20, [M // 2, K], [K, N], tid=FORWARD_TID)
    product(writer, 40, [M // 2, K], [K, N], tid=FORWARD_TID)
    node(writer, "CompiledFunctionBackward", 200, 200)
    product(writer, 210, [M // 2, N], [N, K])
    product(writer, 230, [M // 2, N], [N, K])
    product(writer, 250, [K, M], [M, N])
    product(writer, 270, [N, M // 4], [M // 4, K])
    product(writer, 290, [K, M + 1], [M + 1, N])
    assert gemms(read(writer, tmp_path))[2:] == [
        ("dgrad", "shapes"),
        ("dgrad", "shapes"),
        ("wgrad", "shapes"),
        ("wgrad", "shapes"),
        ("unknown", "none"),
    ]
