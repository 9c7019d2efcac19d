"""Which module and layer a block belongs to, and which collective's buffer it is. Times in µs."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_helpers import MIB, Training, drawn, only

from sp_profiler.record.annotate import format_range
from sp_profiler.trace.write import TraceWriter


def test_operators_beside_the_range_of_a_linear_belong_to_it(tmp_path: Path) -> None:
    training = Training()
    name = format_range("fwd", module="layers.3.attention.q", layer=3)
    training.writer.cpu_op("ColumnFunction", 15, 20, sequence=7, fwd_thread=0).range(name, 22, 8)
    training.writer.cpu_op("aten::empty", 17, 2)
    block = only(training.block(18, 60, 512).figures(tmp_path))
    assert (block.module, block.layer) == ("layers.3.attention.q", 3)


def test_norms_between_two_linears_belong_to_the_block_of_the_next(tmp_path: Path) -> None:
    writer = TraceWriter().step(1, 0, 100)
    for start, path, layer in ((10, "layers.0.mlp.down", 0), (30, "layers.1.attention.q", 1)):
        writer.range(format_range("fwd", module=path, layer=layer), start, 5)
        writer.cpu_op("aten::mm", start + 1, 3, sequence=start, fwd_thread=0)
    writer.cpu_op("aten::rsqrt", 20, 4, sequence=20, fwd_thread=0)
    writer.cpu_op("autograd::engine::evaluate_function: RsqrtBackward0", 50, 9, sequence=20, fwd_thread=1)
    writer.cpu_op("aten::mul", 52, 4)
    writer.memory(21, 512, address=1).memory(53, 256, address=2)
    writer.memory(54, -512, address=1).memory(55, -256, address=2)
    figures, _ = drawn(writer, tmp_path)
    kept, gradient = figures.blocks or []
    assert (kept.module, kept.layer) == ("layers.1", 1)
    assert (gradient.module, gradient.layer) == ("layers.1", 1)  # by its forward operator


def test_python_frames_of_modules(tmp_path: Path) -> None:
    training = Training()
    training.writer.python("nn.Module: BertLayer_2", 11, 28).python("nn.Module: Linear_7", 15, 10)
    block = only(training.block(18, 60, 512).figures(tmp_path))
    assert block.module is None  # the operator began before the frames
    training = Training()
    training.writer.python("nn.Module: BertLayer_2", 9, 30).python("nn.Module: Linear_7", 9.5, 29)
    block = only(training.block(18, 60, 512).figures(tmp_path))
    assert (block.module, block.layer) == ("Linear_7", 2)


def test_ranges_of_fsdp(tmp_path: Path) -> None:
    training = Training()
    training.writer.range("FSDP::all_gather (layers.4)", 15, 10)
    block = only(training.block(18, 60, 512).figures(tmp_path))
    assert (block.module, block.layer, block.category) == ("layers.4", 4, "communication")


def gathered(training: Training, size: int) -> Training:
    """A column linear that allocates its gathered input, gathers into it and multiplies."""
    comm = format_range(
        "comm",
        op="all_gather",
        group="tp[0,1]",
        bytes=MIB,
        module="layers.0.attention.q",
        layer=0,
        purpose="activation",
    )
    training.writer.cpu_op("ColumnFunction", 12, 20, sequence=5, fwd_thread=0)
    training.writer.cpu_op("aten::new_empty", 13, 2).cpu_op("aten::empty", 13.5, 1)
    training.writer.range(comm, 16, 4).cpu_op("c10d::_allgather_base_", 17, 2)
    return training.event(14, size, 1).event(60, -size, 1)


@pytest.mark.parametrize("size", [MIB, MIB + 512 * 3])  # CUDA keeps a small rest
def test_the_buffer_that_a_gather_writes_into(tmp_path: Path, size: int) -> None:
    figures = gathered(Training(), size).figures(tmp_path)
    block = only(figures)
    assert (block.category, block.crosses_border, block.module) == (
        "communication",
        True,
        "layers.0.attention.q",
    )
    (border,) = figures.borders
    assert border.by_category == {"communication": size}


@pytest.mark.parametrize("size", [MIB - 512, 3 * MIB])
def test_not_of_another_size(tmp_path: Path, size: int) -> None:
    assert only(gathered(Training(), size).figures(tmp_path)).category == "activation"


def test_nor_what_an_operator_computes(tmp_path: Path) -> None:
    training = Training()
    training.writer.cpu_op("aten::clone", 13, 2).cpu_op("aten::empty", 13.5, 1)
    training.writer.cpu_op(
        "c10d::_allgather_base_", 17, 2, dims=[[MIB // 2], [MIB // 4]], types=["c10::BFloat16"]
    )
    assert only(training.block(14, 60, MIB).figures(tmp_path)).category == "activation"


def test_without_annotations_by_the_shape_of_the_output(tmp_path: Path) -> None:
    training = Training()
    training.writer.cpu_op("aten::empty", 13.5, 1)
    training.writer.cpu_op(
        "c10d::_allgather_base_", 17, 2, dims=[[MIB // 2], [MIB // 4]], types=["c10::BFloat16"]
    )
    # aten::linear, an aten operator, is around it in `Training`: this one is called from Python.
    training.writer.events = [e for e in training.writer.events if e["name"] != "aten::linear"]
    training.writer.cpu_op("aten::mm", 25, 10, sequence=1, fwd_thread=0)
    assert only(training.block(14, 60, MIB).figures(tmp_path)).category == "communication"


def test_nor_what_another_collective_allocated(tmp_path: Path) -> None:
    training = gathered(Training(), MIB)
    first = format_range("comm", op="all_gather", bytes=MIB, module="layers.0.attention.k", layer=0)
    training.writer.range(first, 10, 1.5).cpu_op("aten::empty", 10.5, 0.5)
    blocks = training.event(10.75, MIB, 2).event(62, -MIB, 2).figures(tmp_path).blocks or ()
    assert sorted((block.birth_ns, block.module) for block in blocks) == [
        (10_750, "layers.0.attention.k"),
        (14_000, "layers.0.attention.q"),
    ]


def test_born_inside_a_collective(tmp_path: Path) -> None:
    training = Training()
    training.writer.cpu_op("_c10d_functional::all_gather_into_tensor", 15, 8)
    assert only(training.block(18, 60, 512).figures(tmp_path)).category == "communication"


def test_buckets_of_ddp(tmp_path: Path) -> None:
    writer = TraceWriter()
    for k in (0, 1):
        writer.step(k + 1, 100 * k, 100).range("DistributedDataParallel.forward", 100 * k + 5, 40)
        writer.cpu_op("aten::mm", 100 * k + 20, 5, sequence=k, fwd_thread=0)
        writer.cpu_op("autograd::engine::evaluate_function: MmBackward0", 100 * k + 50, 9, fwd_thread=1)
    writer.cpu_op("aten::empty", 6, 2).cpu_op("aten::empty", 10, 2)
    writer.memory(7, 512, address=1).memory(11, 256, address=2).memory(52, -256, address=2)
    figures, _ = drawn(writer, tmp_path)
    assert [b.category for b in figures.blocks or ()] == ["communication", "activation"]
