"""What made and freed a block, in which phase, and what it is for. Times in µs, as `Training` draws them."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_helpers import Training, only


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
