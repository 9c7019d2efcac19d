"""When most is allocated, how much and of what; allocations that failed. Times in µs."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

from memory_helpers import Training, drawn

from sp_profiler.analysis.memory.blocks import BEFORE_RECORDING, FREED_UNSEEN, NO_MODULE, UNEXPLAINED
from sp_profiler.analysis.memory.results import CATEGORIES
from sp_profiler.trace.write import TraceWriter


def test_when_how_much_and_of_what(tmp_path: Path) -> None:
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


def test_before_the_first_event(tmp_path: Path) -> None:
    figures = Training(start=2048).event(60, -1024, 1).figures(tmp_path)
    assert (figures.peak_bytes, figures.peak_ns, figures.end_bytes) == (2048, 60_000, 1024)
    assert figures.peak_by_category == {"parameter-optimizer": 1024, "before-window": 1024}


def test_freed_unseen(tmp_path: Path) -> None:
    """The allocator goes on counting a block whose address it gives away again."""
    training = Training().event(20, 1024, 1).event(30, 512, 1).event(32, -512, 1)
    figures = training.figures(tmp_path)
    assert figures.peak_bytes == 1536
    assert figures.peak_by_category == {"temporary": 512, "unknown": 1024}
    assert figures.peak_by_operator == {FREED_UNSEEN: 1024, "aten::linear": 512}
    first = next(block for block in figures.blocks or () if block.bytes == 1024)
    assert (first.death_ns, first.lifetime_ns, first.freed_by) == (None, None, None)


def test_what_totals_and_events_disagree_by(tmp_path: Path) -> None:
    training = Training().event(15, 512, 1).event(16, 512, 2)
    training.total += 4096  # an event that was lost
    training.event(20, 1024, 3)
    figures, ledger = drawn(training.writer, tmp_path)
    assert (figures.totals_checked, figures.totals_disagree) == (3, 1)
    assert ledger["memory-totals-disagree"].count == 1
    assert figures.peak_by_operator == {UNEXPLAINED: 4096, "aten::linear": 2048}
    assert sum((figures.peak_by_category or {}).values()) == figures.peak_bytes == 6144


def test_the_curve_keeps_the_peak_and_sums_to_the_total(tmp_path: Path) -> None:
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
