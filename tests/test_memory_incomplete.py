"""Files that lack something, and bytes that no device has: null and an entry of the ledger, no zeros."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_helpers import Training, analyzed, drawn, only

from sp_profiler.trace.write import TraceWriter


def test_no_memory_events(tmp_path: Path) -> None:
    path = TraceWriter().step(1, 0, 100).write(tmp_path / "rank0.json")
    figures, ledger = analyzed(path)
    assert figures == ()
    assert "profile_memory=True" in ledger["no-memory-events"].text


def test_neither_address_nor_totals(tmp_path: Path) -> None:
    writer = TraceWriter().step(1, 0, 100)
    for ts, size in ((1, -512), (2, 1024), (3, 256), (4, -1024)):
        writer.memory(ts, size)
    figures, ledger = drawn(writer, tmp_path)
    assert figures.is_relative
    assert (figures.peak_bytes, figures.peak_ns, figures.end_bytes) == (768, 3000, -256)
    assert figures.blocks is figures.peak_by_category is figures.unpaired is None
    assert figures.start_bytes is figures.totals_checked is None
    assert ledger["memory-without-address"].count == 4


def test_addresses_without_totals(tmp_path: Path) -> None:
    figures = Training(totals=False).event(2, -512, 1).block(20, 60, 1024, 2).figures(tmp_path)
    assert figures.is_relative
    assert figures.start_bytes is None
    assert (figures.peak_bytes, figures.end_bytes) == (1024, 0)
    assert figures.blocks_count == 2


def test_no_operator(tmp_path: Path) -> None:
    writer = TraceWriter().memory(1, 512, address=1, total_allocated=512)
    writer.memory(2, -512, address=1, total_allocated=0)
    figures, ledger = drawn(writer, tmp_path)
    block = only(figures)
    assert (block.category, block.operator, block.phase, block.step) == ("unknown", None, None, None)
    assert figures.across_border_bytes is None
    assert "memory-without-operators" in ledger


def test_one_step_is_entered_as_an_assumption(tmp_path: Path) -> None:
    assert drawn(Training(1).block(20, 60, 512).writer, tmp_path)[1]["memory-one-step"].severity == (
        "assumption"
    )
    assert "memory-one-step" not in drawn(Training(2).block(20, 60, 512).writer, tmp_path)[1]


def test_steps_without_ranges_are_told_by_the_optimizer(tmp_path: Path) -> None:
    training = Training(2)
    training.writer.events = [e for e in training.writer.events if "ProfilerStep" not in e["name"]]
    block = only(training.block(82, None, 512).figures(tmp_path))
    assert (block.category, block.step) == ("parameter-optimizer", None)


def test_freed_twice(tmp_path: Path) -> None:
    training = Training().block(20, 60, 512).event(61, -512, 1)
    figures, ledger = drawn(training.writer, tmp_path)
    assert [(one.kind, one.time_ns) for one in figures.unpaired or ()] == [("freed-twice", 61_000)]
    assert ledger["memory-freed-twice"].count == 1


def test_a_cpu_only_file(tmp_path: Path) -> None:
    figures, ledger = drawn(Training(cpu=True).block(20, 60, 512).writer, tmp_path)
    assert (figures.device_type, figures.device) == ("cpu", None)
    assert "memory-cpu-since-recording" in ledger


@pytest.mark.parametrize(
    ("kind", "number", "name", "device"),
    [(6, 1, "hip", 1), (12, 0, "xpu", 0), (20, 0, "privateuseone", 0), (99, -1, "device-type-99", None)],
)
def test_other_devices(tmp_path: Path, kind: int, number: int, name: str, device: int | None) -> None:
    writer = TraceWriter().memory(1, 512, address=1, device_type=kind, device_id=number)
    figures, _ = drawn(writer, tmp_path)
    assert (figures.device_type, figures.device) == (name, device)


def test_gpus_come_first(tmp_path: Path) -> None:
    writer = TraceWriter().memory(1, 8, address=1, device_type=0, device_id=-1)
    writer.memory(2, 8, address=1, device_id=1).memory(3, 8, address=1)
    figures, _ = analyzed(writer.write(tmp_path / "rank0.json"))
    assert [(one.device_type, one.device) for one in figures] == [("cuda", 0), ("cuda", 1), ("cpu", None)]


def test_events_of_no_bytes(tmp_path: Path) -> None:
    figures, ledger = drawn(Training().event(19, 0, 9).block(20, 60, 512).writer, tmp_path)
    assert (figures.events, figures.blocks_count) == (3, 1)
    assert ledger["memory-zero-bytes"].count == 1


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
