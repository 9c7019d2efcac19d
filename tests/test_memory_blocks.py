"""What made a block, which phase, module and category it has, and what crosses into backward: drawn traces.

Times in µs. Every trace has an operator in forward from 10, a node of backward from 50, the optimizer from
80 in a step of 100, unless it says otherwise.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from memory_helpers import analyzed, drawn

from sp_profiler.analysis.memory.blocks import BEFORE_RECORDING, FREED_UNSEEN, NO_MODULE, UNEXPLAINED
from sp_profiler.analysis.memory.results import CATEGORIES, MemoryBlock, MemoryFigures
from sp_profiler.record.annotate import format_range
from sp_profiler.trace.write import TraceWriter

MIB = 1 << 20


class Training:
    """Steps of forward, backward and optimizer, with allocations that keep the allocator's total."""

    def __init__(self, steps: int = 1, *, start: int = 0, cpu: bool = False, totals: bool = True) -> None:
        self.writer = TraceWriter(cpu_only=cpu)
        self.total = start
        self._totals = totals
        self._device = {"device_type": 0, "device_id": -1} if cpu else {}
        for k in range(steps):
            t = 100 * k
            self.writer.step(k + 1, t, 100)
            self.writer.range("Optimizer.zero_grad#AdamW.zero_grad", t + 1, 4)
            self.writer.cpu_op("aten::linear", t + 10, 30, sequence=k + 1, fwd_thread=0)
            self.writer.cpu_op(
                "autograd::engine::evaluate_function: MmBackward0", t + 50, 20, sequence=k + 1, fwd_thread=1
            )
            self.writer.range("Optimizer.step#AdamW.step", t + 80, 10)
            self.writer.cpu_op("aten::_fused_adamw_", t + 81, 8)

    def event(self, ts: float | Decimal, size: int, address: int, tid: int | None = None) -> Training:
        self.total += size
        self.writer.memory(
            ts,
            size,
            address=address,
            total_allocated=self.total if self._totals else None,
            tid=tid,
            **self._device,
        )
        return self

    def block(self, birth: float, death: float | None, size: int, address: int = 1) -> Training:
        self.event(birth, size, address)
        return self if death is None else self.event(death, -size, address)

    def figures(self, folder: Path) -> MemoryFigures:
        return drawn(self.writer, folder)[0]


def only(figures: MemoryFigures) -> MemoryBlock:
    assert figures.blocks is not None
    (block,) = figures.blocks
    return block


@pytest.mark.parametrize(
    ("steps", "birth", "death", "category", "crosses"),
    [
        (1, 20, 30, "temporary", False),
        (1, 20, 60, "activation", True),
        (1, 20, 85, "activation", True),  # logits held by a variable until after backward
        (1, 55, 60, "temporary", False),
        (1, 55, 85, "gradient", False),
        (2, 55, 102, "gradient", False),  # freed by the next step's zero_grad
        (2, 155, None, "gradient", False),
        (1, 82, 84, "temporary", False),
        (1, 82, None, "parameter-optimizer", False),  # made by the first step of the optimizer
        (2, 82, 185, "parameter-optimizer", False),
        (2, 20, None, "parameter-optimizer", True),
        (2, 20, 120, "activation", True),  # held into the next step
        (3, 20, 220, "parameter-optimizer", True),
        (1, 20, None, "activation", True),
        (2, 115, 112, None, False),
    ],
)
def test_categories(
    tmp_path: Path, steps: int, birth: float, death: float | None, category: str | None, crosses: bool
) -> None:
    training = Training(steps)
    if category is None:  # freed before it is allocated: a block from before, and one that stays
        training.event(death or 0, -512, 1).event(birth, 512, 1)
        figures = training.figures(tmp_path)
        assert [b.category for b in figures.blocks or ()] == ["before-window", "activation"]
        return
    block = only(training.block(birth, death, 512).figures(tmp_path))
    assert (block.category, block.crosses_border) == (category, crosses)
    assert block.birth_ns == birth * 1000
    assert block.lifetime_ns == (None if death is None else (death - birth) * 1000)


def test_a_gradient_from_before_the_recording_is_told_by_zero_grad(tmp_path: Path) -> None:
    training = Training(start=1536).event(2, -512, 1).event(60, -1024, 2)
    blocks = training.figures(tmp_path).blocks or []
    assert {b.bytes: b.category for b in blocks} == {512: "gradient", 1024: "before-window"}
    assert all(b.birth_ns is None and b.lifetime_ns is None for b in blocks)


def test_zero_grad_between_forward_and_backward_hides_no_border(tmp_path: Path) -> None:
    training = Training()
    training.writer.range("Optimizer.zero_grad#SGD.zero_grad", 44, 2)
    training.writer.cpu_op("aten::zero_", 44.5, 1)
    figures = training.block(20, 60, 512).figures(tmp_path)
    assert [(border.border_ns, border.bytes) for border in figures.borders] == [(50_000, 512)]


def test_what_made_and_freed_a_block(tmp_path: Path) -> None:
    training = Training()
    training.writer.cpu_op("aten::clone", 18, 6).cpu_op("aten::empty_strided", 19, 3)
    block = only(training.block(20, 60, 512).figures(tmp_path))
    assert (block.operator, block.made_by) == ("aten::empty_strided", "aten::clone")
    assert block.stack == ["ProfilerStep#1", "aten::linear", "aten::clone"]
    assert (block.phase, block.step) == ("forward", 1)
    assert block.freed_by == "autograd::engine::evaluate_function: MmBackward0"
    assert block.freed_phase == "backward"


def test_between_operators_the_phase_is_that_of_the_time(tmp_path: Path) -> None:
    training = Training().block(41, 71, 512)
    training.block(75, 95, 256, address=2)  # between backward and the optimizer's step, no operator around
    first, second = training.figures(tmp_path).blocks or []
    assert (first.operator, first.phase, first.freed_by, first.freed_phase) == (
        None,
        "forward",
        None,
        "backward",
    )
    assert (second.phase, second.freed_phase) == ("backward", "optimizer")


def test_what_clips_gradients_belongs_to_the_optimizer(tmp_path: Path) -> None:
    training = Training()
    training.writer.cpu_op("aten::linalg_vector_norm", 74, 4)
    block = only(training.block(75, 85, 512).figures(tmp_path))
    assert (block.phase, block.category) == ("optimizer", "temporary")


def test_backward_on_a_thread_of_its_own(tmp_path: Path) -> None:
    training = Training()
    training.writer.cpu_op("autograd::engine::evaluate_function: AddBackward0", 60, 5, tid=7, fwd_thread=1)
    training.writer.cpu_op("AddBackward0", 61, 3, tid=7, sequence=9, fwd_thread=1)
    training.event(20, 512, 1).event(62, -512, 1, tid=7)
    block = only(training.figures(tmp_path))
    assert (block.freed_by, block.freed_phase, block.category) == ("AddBackward0", "backward", "activation")


def test_work_of_other_threads_makes_no_border(tmp_path: Path) -> None:
    training = Training()
    training.writer.cpu_op("aten::copy_", 55, 1, tid=9).cpu_op("aten::copy_", 59, 1, tid=9)
    assert len(training.block(20, 60, 512).figures(tmp_path).borders) == 1


class TestBorders:
    def test_every_micro_batch_has_one(self, tmp_path: Path) -> None:
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

    def test_what_is_interleaved_crosses_several(self, tmp_path: Path) -> None:
        writer = TraceWriter().step(1, 0, 100)
        writer.cpu_op("aten::mm", 1, 8, sequence=1, fwd_thread=0).cpu_op("aten::mm", 41, 8, sequence=2)
        for t in (20, 60):
            writer.cpu_op("autograd::engine::evaluate_function: MmBackward0", t, 10, fwd_thread=1)
        writer.memory(2, 512, address=1).memory(42, 256, address=2)
        writer.memory(61, -256, address=2).memory(62, -512, address=1)
        figures, _ = drawn(writer, tmp_path)
        assert [border.bytes for border in figures.borders] == [512, 768]

    def test_by_layer_module_and_category(self, tmp_path: Path) -> None:
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


class TestModules:
    def test_operators_beside_the_range_of_a_linear_belong_to_it(self, tmp_path: Path) -> None:
        training = Training()
        name = format_range("fwd", module="layers.3.attention.q", layer=3)
        training.writer.cpu_op("ColumnFunction", 15, 20, sequence=7, fwd_thread=0).range(name, 22, 8)
        training.writer.cpu_op("aten::empty", 17, 2)
        block = only(training.block(18, 60, 512).figures(tmp_path))
        assert (block.module, block.layer) == ("layers.3.attention.q", 3)

    def test_norms_between_two_linears_belong_to_the_block_of_the_next(self, tmp_path: Path) -> None:
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

    def test_python_frames_of_modules(self, tmp_path: Path) -> None:
        training = Training()
        training.writer.python("nn.Module: BertLayer_2", 11, 28).python("nn.Module: Linear_7", 15, 10)
        block = only(training.block(18, 60, 512).figures(tmp_path))
        assert block.module is None  # the operator began before the frames
        training = Training()
        training.writer.python("nn.Module: BertLayer_2", 9, 30).python("nn.Module: Linear_7", 9.5, 29)
        block = only(training.block(18, 60, 512).figures(tmp_path))
        assert (block.module, block.layer) == ("Linear_7", 2)

    def test_ranges_of_fsdp(self, tmp_path: Path) -> None:
        training = Training()
        training.writer.range("FSDP::all_gather (layers.4)", 15, 10)
        block = only(training.block(18, 60, 512).figures(tmp_path))
        assert (block.module, block.layer, block.category) == ("layers.4", 4, "communication")


class TestCommunication:
    def gathered(self, training: Training, size: int) -> Training:
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
    def test_the_buffer_that_a_gather_writes_into(self, tmp_path: Path, size: int) -> None:
        figures = self.gathered(Training(), size).figures(tmp_path)
        block = only(figures)
        assert (block.category, block.crosses_border, block.module) == (
            "communication",
            True,
            "layers.0.attention.q",
        )
        (border,) = figures.borders
        assert border.by_category == {"communication": size}

    @pytest.mark.parametrize("size", [MIB - 512, 3 * MIB])
    def test_not_of_another_size(self, tmp_path: Path, size: int) -> None:
        assert only(self.gathered(Training(), size).figures(tmp_path)).category == "activation"

    def test_nor_what_an_operator_computes(self, tmp_path: Path) -> None:
        training = Training()
        training.writer.cpu_op("aten::clone", 13, 2).cpu_op("aten::empty", 13.5, 1)
        training.writer.cpu_op(
            "c10d::_allgather_base_", 17, 2, dims=[[MIB // 2], [MIB // 4]], types=["c10::BFloat16"]
        )
        assert only(training.block(14, 60, MIB).figures(tmp_path)).category == "activation"

    def test_without_annotations_by_the_shape_of_the_output(self, tmp_path: Path) -> None:
        training = Training()
        training.writer.cpu_op("aten::empty", 13.5, 1)
        training.writer.cpu_op(
            "c10d::_allgather_base_", 17, 2, dims=[[MIB // 2], [MIB // 4]], types=["c10::BFloat16"]
        )
        # aten::linear, an aten operator, is around it in `Training`: this one is called from Python.
        training.writer.events = [e for e in training.writer.events if e["name"] != "aten::linear"]
        training.writer.cpu_op("aten::mm", 25, 10, sequence=1, fwd_thread=0)
        assert only(training.block(14, 60, MIB).figures(tmp_path)).category == "communication"

    def test_nor_what_another_collective_allocated(self, tmp_path: Path) -> None:
        training = self.gathered(Training(), MIB)
        first = format_range("comm", op="all_gather", bytes=MIB, module="layers.0.attention.k", layer=0)
        training.writer.range(first, 10, 1.5).cpu_op("aten::empty", 10.5, 0.5)
        blocks = training.event(10.75, MIB, 2).event(62, -MIB, 2).figures(tmp_path).blocks or ()
        assert sorted((block.birth_ns, block.module) for block in blocks) == [
            (10_750, "layers.0.attention.k"),
            (14_000, "layers.0.attention.q"),
        ]

    def test_born_inside_a_collective(self, tmp_path: Path) -> None:
        training = Training()
        training.writer.cpu_op("_c10d_functional::all_gather_into_tensor", 15, 8)
        assert only(training.block(18, 60, 512).figures(tmp_path)).category == "communication"

    def test_buckets_of_ddp(self, tmp_path: Path) -> None:
        writer = TraceWriter()
        for k in (0, 1):
            writer.step(k + 1, 100 * k, 100).range("DistributedDataParallel.forward", 100 * k + 5, 40)
            writer.cpu_op("aten::mm", 100 * k + 20, 5, sequence=k, fwd_thread=0)
            writer.cpu_op("autograd::engine::evaluate_function: MmBackward0", 100 * k + 50, 9, fwd_thread=1)
        writer.cpu_op("aten::empty", 6, 2).cpu_op("aten::empty", 10, 2)
        writer.memory(7, 512, address=1).memory(11, 256, address=2).memory(52, -256, address=2)
        figures, _ = drawn(writer, tmp_path)
        assert [b.category for b in figures.blocks or ()] == ["communication", "activation"]

    def test_a_function_of_forward_that_is_named_after_backward(self, tmp_path: Path) -> None:
        training = Training()
        training.writer.cpu_op("RegisterPostBackwardFunction", 15, 2, sequence=3, fwd_thread=0)
        figures = training.block(20, 60, 512).figures(tmp_path)
        assert [border.border_ns for border in figures.borders] == [50_000]


class TestPeak:
    def test_when_how_much_and_of_what(self, tmp_path: Path) -> None:
        training = Training(2, start=4096).event(20, 1024, 1).event(22, 512, 2).event(25, -512, 2)
        training.event(55, 256, 3).event(60, -1024, 1).event(102, -256, 3)
        figures = training.figures(tmp_path)
        assert (figures.peak_bytes, figures.peak_ns) == (4096 + 1536, 22_000)
        assert (figures.peak_step, figures.peak_phase) == (1, "forward")
        assert (figures.start_bytes, figures.end_bytes) == (4096, 4096)
        # Alive from before the recording across a step border.
        assert figures.peak_by_category == {
            "parameter-optimizer": 4096,
            "activation": 1024,
            "temporary": 512,
        }
        assert figures.peak_by_operator == {BEFORE_RECORDING: 4096, "aten::linear": 1536}
        assert figures.peak_by_module == {BEFORE_RECORDING: 4096, NO_MODULE: 1536}
        assert [block.bytes for block in figures.peak_blocks] == [1024, 512]

    def test_before_the_first_event(self, tmp_path: Path) -> None:
        figures = Training(start=2048).event(60, -1024, 1).figures(tmp_path)
        assert (figures.peak_bytes, figures.peak_ns, figures.end_bytes) == (2048, 60_000, 1024)
        assert figures.peak_by_category == {"parameter-optimizer": 1024, "before-window": 1024}

    def test_freed_unseen(self, tmp_path: Path) -> None:
        """The allocator goes on counting a block whose address it gives away again."""
        training = Training().event(20, 1024, 1).event(30, 512, 1).event(32, -512, 1)
        figures = training.figures(tmp_path)
        assert figures.peak_bytes == 1536
        assert figures.peak_by_category == {"temporary": 512, "unknown": 1024}
        assert figures.peak_by_operator == {FREED_UNSEEN: 1024, "aten::linear": 512}
        first = next(block for block in figures.blocks or () if block.bytes == 1024)
        assert (first.death_ns, first.lifetime_ns, first.freed_by) == (None, None, None)

    def test_what_totals_and_events_disagree_by(self, tmp_path: Path) -> None:
        training = Training().event(15, 512, 1).event(16, 512, 2)
        training.total += 4096  # an event that was lost
        training.event(20, 1024, 3)
        figures, ledger = drawn(training.writer, tmp_path)
        assert (figures.totals_checked, figures.totals_disagree) == (3, 1)
        assert ledger["memory-totals-disagree"].count == 1
        assert figures.peak_by_operator == {UNEXPLAINED: 4096, "aten::linear": 2048}
        assert sum((figures.peak_by_category or {}).values()) == figures.peak_bytes == 6144

    def test_the_curve_keeps_the_peak_and_sums_to_the_total(self, tmp_path: Path) -> None:
        training = Training(start=4096)
        for k in range(6000):
            size = 1024 if k == 4321 else 512
            birth, death = Decimal(20_000 + 2 * k) / 1000, Decimal(20_001 + 2 * k) / 1000
            training.event(birth, size, 1).event(death, -size, 1)
        curve = training.figures(tmp_path).curve
        assert curve is not None
        assert len(curve.time_ns) <= 2003
        assert max(curve.allocated_bytes) == 4096 + 1024
        assert curve.time_ns == sorted(curve.time_ns)
        parts = [sum(values) for values in zip(*curve.by_category.values(), strict=True)]
        assert parts == curve.allocated_bytes
        assert set(curve.by_category) <= set(CATEGORIES)


class TestWhatFilesLack:
    def test_no_memory_events(self, tmp_path: Path) -> None:
        path = TraceWriter().step(1, 0, 100).write(tmp_path / "rank0.json")
        figures, ledger = analyzed(path)
        assert figures == ()
        assert "profile_memory=True" in ledger["no-memory-events"].text

    def test_neither_address_nor_totals(self, tmp_path: Path) -> None:
        writer = TraceWriter().step(1, 0, 100)
        for ts, size in ((1, -512), (2, 1024), (3, 256), (4, -1024)):
            writer.memory(ts, size)
        figures, ledger = drawn(writer, tmp_path)
        assert figures.is_relative
        assert (figures.peak_bytes, figures.peak_ns, figures.end_bytes) == (768, 3000, -256)
        assert figures.blocks is figures.peak_by_category is figures.unpaired is None
        assert figures.start_bytes is figures.totals_checked is None
        assert ledger["memory-without-address"].count == 4

    def test_addresses_without_totals(self, tmp_path: Path) -> None:
        figures = Training(totals=False).event(2, -512, 1).block(20, 60, 1024, 2).figures(tmp_path)
        assert figures.is_relative
        assert figures.start_bytes is None
        assert (figures.peak_bytes, figures.end_bytes) == (1024, 0)
        assert figures.blocks_count == 2

    def test_no_operator(self, tmp_path: Path) -> None:
        writer = TraceWriter().memory(1, 512, address=1, total_allocated=512)
        writer.memory(2, -512, address=1, total_allocated=0)
        figures, ledger = drawn(writer, tmp_path)
        block = only(figures)
        assert (block.category, block.operator, block.phase, block.step) == ("unknown", None, None, None)
        assert figures.across_border_bytes is None
        assert "memory-without-operators" in ledger

    def test_one_step_is_entered_as_an_assumption(self, tmp_path: Path) -> None:
        assert drawn(Training(1).block(20, 60, 512).writer, tmp_path)[1]["memory-one-step"].severity == (
            "assumption"
        )
        assert "memory-one-step" not in drawn(Training(2).block(20, 60, 512).writer, tmp_path)[1]

    def test_steps_without_ranges_are_told_by_the_optimizer(self, tmp_path: Path) -> None:
        training = Training(2)
        training.writer.events = [e for e in training.writer.events if "ProfilerStep" not in e["name"]]
        block = only(training.block(82, None, 512).figures(tmp_path))
        assert (block.category, block.step) == ("parameter-optimizer", None)

    def test_freed_twice(self, tmp_path: Path) -> None:
        training = Training().block(20, 60, 512).event(61, -512, 1)
        figures, ledger = drawn(training.writer, tmp_path)
        assert [(one.kind, one.time_ns) for one in figures.unpaired or ()] == [("freed-twice", 61_000)]
        assert ledger["memory-freed-twice"].count == 1

    def test_a_cpu_only_file(self, tmp_path: Path) -> None:
        figures, ledger = drawn(Training(cpu=True).block(20, 60, 512).writer, tmp_path)
        assert (figures.device_type, figures.device) == ("cpu", None)
        assert "memory-cpu-since-recording" in ledger

    @pytest.mark.parametrize(
        ("kind", "number", "name", "device"),
        [(6, 1, "hip", 1), (12, 0, "xpu", 0), (20, 0, "privateuseone", 0), (99, -1, "device-type-99", None)],
    )
    def test_other_devices(
        self, tmp_path: Path, kind: int, number: int, name: str, device: int | None
    ) -> None:
        writer = TraceWriter().memory(1, 512, address=1, device_type=kind, device_id=number)
        figures, _ = drawn(writer, tmp_path)
        assert (figures.device_type, figures.device) == (name, device)

    def test_gpus_come_first(self, tmp_path: Path) -> None:
        writer = TraceWriter().memory(1, 8, address=1, device_type=0, device_id=-1)
        writer.memory(2, 8, address=1, device_id=1).memory(3, 8, address=1)
        figures, _ = analyzed(writer.write(tmp_path / "rank0.json"))
        assert [(one.device_type, one.device) for one in figures] == [("cuda", 0), ("cuda", 1), ("cpu", None)]

    def test_events_of_no_bytes(self, tmp_path: Path) -> None:
        figures, ledger = drawn(Training().event(19, 0, 9).block(20, 60, 512).writer, tmp_path)
        assert (figures.events, figures.blocks_count) == (3, 1)
        assert ledger["memory-zero-bytes"].count == 1


def test_an_allocation_that_failed(tmp_path: Path) -> None:
    training = Training(start=4096).event(20, 1024, 1)
    args = {
        "Device Type": 1,
        "Device Id": 0,
        "Bytes": 1 << 30,
        "Total Allocated": 5120,
        "Total Reserved": 8192,
    }
    training.writer.event(
        {"ph": "i", "s": "t", "name": "[OutOfMemory]", "pid": 100, "tid": 100, "ts": 25, "args": args}
    )
    training.event(60, -1024, 1)
    figures = training.figures(tmp_path)
    assert (figures.events, figures.peak_bytes, figures.totals_disagree) == (2, 5120, 0)
    (failure,) = figures.out_of_memory
    assert (failure.time_ns, failure.asked_bytes) == (25_000, 1 << 30)
    assert (failure.allocated_bytes, failure.reserved_bytes, failure.reserved_unused_bytes) == (
        5120,
        8192,
        3072,
    )
    assert failure.device_free_bytes is failure.largest_unused_bytes is None
    assert failure.by_category == {"parameter-optimizer": 4096, "activation": 1024}
    assert failure.by_frame == {BEFORE_RECORDING: 4096, "aten::linear": 1024}


def test_a_file_that_holds_nothing_but_a_failure(tmp_path: Path) -> None:
    args = {"Device Type": 1, "Device Id": 0, "Bytes": 512}
    writer = TraceWriter().event(
        {"ph": "i", "s": "t", "name": "[OutOfMemory]", "pid": 100, "tid": 100, "ts": 25, "args": args}
    )
    figures, _ = drawn(writer, tmp_path)
    assert (figures.events, figures.peak_bytes, figures.blocks) == (0, None, [])
    assert [failure.asked_bytes for failure in figures.out_of_memory] == [512]


def test_a_device_whose_events_have_no_bytes(tmp_path: Path) -> None:
    figures, _ = drawn(Training().event(20, 0, 1).writer, tmp_path)
    assert (figures.events, figures.peak_bytes, figures.blocks_count) == (1, None, 0)


@pytest.mark.parametrize("size", [1 << 62, -(1 << 63), 1 << 50])
def test_bytes_that_no_device_has(tmp_path: Path, size: int) -> None:
    training = Training(totals=False).event(20, size, 1).event(21, size, 2).block(25, 60, 512, 3)
    figures, ledger = drawn(training.writer, tmp_path)
    assert (figures.events, figures.blocks_count, figures.peak_bytes) == (4, 1, 512)
    assert (ledger["memory-impossible-bytes"].count, ledger["memory-impossible-bytes"].severity) == (
        2,
        "loss",
    )


def test_totals_that_no_device_has_are_not_compared(tmp_path: Path) -> None:
    writer = TraceWriter().memory(1, 512, address=1, total_allocated=1 << 62)
    figures, _ = drawn(writer.memory(2, 512, address=2, total_allocated=2048), tmp_path)
    assert (figures.totals_checked, figures.start_bytes, figures.peak_bytes) == (1, 1024, 2048)
