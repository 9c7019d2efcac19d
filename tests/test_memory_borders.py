"""What crosses from forward into backward. Times in µs, as `Training` draws them."""

from __future__ import annotations

from pathlib import Path

from memory_helpers import Training, drawn

from sp_profiler.record.annotate import format_range
from sp_profiler.trace.write import TraceWriter


def test_every_micro_batch_has_one(tmp_path: Path) -> None:
    writer = TraceWriter().step(1, 0, 100)
    for t in (0, 40):
        writer.cpu_op("aten::mm", t + 1, 10, sequence=t, fwd_thread=0)
        writer.cpu_op("autograd::engine::evaluate_function: MmBackward0", t + 20, 10, fwd_thread=1)
    writer.memory(2, 512, address=1, total_allocated=512)
    writer.memory(22, 256, address=3, total_allocated=768)  # a gradient
    writer.memory(25, -512, address=1, total_allocated=256)
    writer.memory(42, 1024, address=1, total_allocated=1280)
    writer.memory(65, -1024, address=1, total_allocated=256)
    writer.memory(66, -256, address=3, total_allocated=0)  # replaced by the sum of both
    figures, _ = drawn(writer, tmp_path)
    assert [(b.step, b.border_ns, b.bytes, b.blocks) for b in figures.borders] == [
        (1, 20_000, 512, 1),
        (1, 60_000, 1024, 1),
    ]
    assert figures.across_border_bytes == 1024
    assert {b.bytes: b.category for b in figures.blocks or ()} == {
        512: "activation",
        256: "gradient",
        1024: "activation",
    }


def test_what_is_interleaved_crosses_several(tmp_path: Path) -> None:
    writer = TraceWriter().step(1, 0, 100)
    writer.cpu_op("aten::mm", 1, 8, sequence=1, fwd_thread=0).cpu_op("aten::mm", 41, 8, sequence=2)
    for t in (20, 60):
        writer.cpu_op("autograd::engine::evaluate_function: MmBackward0", t, 10, fwd_thread=1)
    writer.memory(2, 512, address=1).memory(42, 256, address=2)
    writer.memory(61, -256, address=2).memory(62, -512, address=1)
    figures, _ = drawn(writer, tmp_path)
    assert [border.bytes for border in figures.borders] == [512, 768]


def test_by_layer_module_and_category(tmp_path: Path) -> None:
    training = Training()
    for index, address in ((0, 1), (1, 2)):
        name = format_range("fwd", module=f"layers.{index}.mlp.up", layer=index)
        training.writer.range(name, 12 + 8 * index, 6)
        training.event(13 + 8 * index, 512 << index, address)
    training.event(60, -512, 1).event(61, -1024, 2)
    (border,) = training.figures(tmp_path).borders
    assert border.by_module == {"layers.1.mlp.up": 1024, "layers.0.mlp.up": 512}
    assert border.by_layer == {"0": 512, "1": 1024}
    assert border.by_layer_category == {"0": {"activation": 512}, "1": {"activation": 1024}}
    assert border.by_operator == {"aten::linear": 1536}


def test_zero_grad_between_forward_and_backward_hides_no_border(tmp_path: Path) -> None:
    training = Training()
    training.writer.range("Optimizer.zero_grad#SGD.zero_grad", 44, 2)
    training.writer.cpu_op("aten::zero_", 44.5, 1)
    figures = training.block(20, 60, 512).figures(tmp_path)
    assert [(border.border_ns, border.bytes) for border in figures.borders] == [(50_000, 512)]


def test_work_of_other_threads_makes_no_border(tmp_path: Path) -> None:
    training = Training()
    training.writer.cpu_op("aten::copy_", 55, 1, tid=9).cpu_op("aten::copy_", 59, 1, tid=9)
    assert len(training.block(20, 60, 512).figures(tmp_path).borders) == 1


def test_a_function_of_forward_that_is_named_after_backward(tmp_path: Path) -> None:
    training = Training()
    training.writer.cpu_op("RegisterPostBackwardFunction", 15, 2, sequence=3, fwd_thread=0)
    figures = training.block(20, 60, 512).figures(tmp_path)
    assert [border.border_ns for border in figures.borders] == [50_000]
