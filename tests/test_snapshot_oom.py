"""Why an allocation failed: what is told of it, in figures and in sentences."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from snapshot_helpers import MIB, Allocator, backward, figures, forward, must, optimizer, snapshot

from sp_profiler.analysis.memory.results import MemoryFigures
from sp_profiler.report.memory import assemble
from sp_profiler.report.memory_sentences import sentences


def told(one: MemoryFigures) -> list[str]:
    memory = assemble([one])
    assert memory is not None
    return sentences(memory)


def test_out_of_memory_because_too_much_is_held(tmp_path: Path) -> None:
    """
    100 MiB of device: 60 + 20 MiB held; 40 MiB are asked for.
    """
    device = Allocator(capacity=100 * MIB)
    device.alloc(60 * MIB, optimizer())
    device.alloc(20 * MIB, forward(line=10))
    assert device.alloc(40 * MIB, forward("attention", 33)) is None
    found, _ = figures(tmp_path, snapshot(device))
    (oom,) = found.out_of_memory
    assert (oom.asked_bytes, oom.device_free_bytes) == (40 * MIB, 20 * MIB)
    assert (oom.allocated_bytes, oom.reserved_bytes) == (80 * MIB, 80 * MIB)
    assert (oom.reserved_unused_bytes, oom.largest_unused_bytes) == (0, 0)
    assert oom.by_frame == {"me/train.py:99 main": 60 * MIB, "me/model.py:10 forward": 20 * MIB}
    assert oom.by_category == {"parameter-optimizer": 60 * MIB, "activation": 20 * MIB}
    assert (oom.reason, oom.asked_by) == ("full", "me/model.py:33 attention")
    assert [block.bytes for block in oom.largest_blocks] == [60 * MIB, 20 * MIB]
    first, kinds, why, *_ = told(found)
    assert first == (
        "Device 0 ran out of memory on a request of 40.0 MiB by me/model.py:33 attention; 80.0 MiB were held:"
        " 60.0 MiB (75 %) by me/train.py:99 main and 20.0 MiB (25 %) by me/model.py:10 forward."
    )
    assert kinds == "By kind: 60.0 MiB (75 %) parameters and optimizer state and 20.0 MiB (25 %) activations."
    assert "too little even in one piece, by 20.0 MiB" in why


def fragmented(*, expandable: bool | None) -> dict[str, Any]:
    """80 MiB in two segments, every second 10 MiB of them free: 40 MiB unused, none larger than 10."""
    device = Allocator(capacity=80 * MIB)
    whole = [must(device.alloc(40 * MIB)) for _ in range(2)]
    for address in whole:
        device.free(address)
    taken = [must(device.alloc(10 * MIB, forward(line=1))) for _ in range(8)]
    for address in taken[::2]:
        device.free(address)
    assert device.alloc(20 * MIB, forward(line=2)) is None
    content = snapshot(device)
    if expandable is not None:
        content["allocator_settings"]["expandable_segments"] = expandable
    return content


def test_out_of_memory_because_of_fragmentation(tmp_path: Path) -> None:
    found, _ = figures(tmp_path, fragmented(expandable=False))
    (oom,) = found.out_of_memory
    assert (oom.reserved_unused_bytes, oom.largest_unused_bytes, oom.device_free_bytes) == (
        40 * MIB,
        10 * MIB,
        0,
    )
    assert oom.reason == "fragmentation"
    assert any("expandable_segments:True lets" in sentence for sentence in told(found))


def test_no_setting_is_advised_that_is_set(tmp_path: Path) -> None:
    found, _ = figures(tmp_path, fragmented(expandable=True))
    assert found.out_of_memory[0].reason == "fragmentation"
    assert not any("PYTORCH_CUDA_ALLOC_CONF" in sentence for sentence in told(found))


def test_out_of_memory_because_the_process_may_not_have_more(tmp_path: Path) -> None:
    device = Allocator(capacity=60 * MIB)
    device.alloc(40 * MIB)
    assert device.alloc(30 * MIB) is None
    device.events[-1]["device_free"] = 1 << 34
    found, _ = figures(tmp_path, snapshot(device))
    assert found.out_of_memory[0].reason == "limit"
    assert any("set_per_process_memory_fraction" in sentence for sentence in told(found))


def test_a_piece_of_another_stream_is_not_usable(tmp_path: Path) -> None:
    device = Allocator(capacity=60 * MIB)
    other = must(device.alloc(30 * MIB, stream=5))
    device.alloc(15 * MIB, stream=5)
    device.free(other, completed=False)
    device.complete(other)
    device.alloc(1024, stream=5)
    device.alloc(8 * MIB, stream=5)  # the segment of 30 MiB is in use again
    assert device.alloc(20 * MIB) is None
    (oom,) = figures(tmp_path, snapshot(device))[0].out_of_memory
    assert oom.largest_unused_bytes == 22 * MIB
    assert oom.largest_usable_bytes == 0


def test_what_awaits_another_stream_is_told(tmp_path: Path) -> None:
    device = Allocator(capacity=60 * MIB)
    device.free(must(device.alloc(40 * MIB)), completed=False)
    assert device.alloc(30 * MIB) is None
    found, _ = figures(tmp_path, snapshot(device))
    assert found.out_of_memory[0].awaiting_free_bytes == 40 * MIB
    assert any("still in use on another stream" in sentence for sentence in told(found))


@pytest.mark.parametrize("expandable", [False, True])
def test_what_comes_after_a_failure_does_not_change_what_is_told_of_it(
    tmp_path: Path, expandable: bool
) -> None:
    """A program that catches the error frees, empties the cache and goes on; the beginning may be cut off."""
    device = Allocator(capacity=100 * MIB, expandable=expandable)
    first = must(device.alloc(50 * MIB, optimizer()))
    second = must(device.alloc(30 * MIB, forward(line=10)))
    assert device.alloc(60 * MIB) is None
    at_failure, _ = figures(tmp_path, snapshot(device))
    before = len(device.events) - 1
    device.free(first)
    device.free(second)
    device.empty_cache()
    device.alloc(70 * MIB, backward())
    later, _ = figures(tmp_path, snapshot(device))
    shown = functools.partial(replace, by_category={}, largest_blocks=[])
    assert shown(later.out_of_memory[0]) == shown(at_failure.out_of_memory[0])
    cut, _ = figures(tmp_path, snapshot(device, last=len(device.events) - before))
    assert cut.out_of_memory[0].allocated_bytes == 80 * MIB
    assert cut.out_of_memory[0].by_frame == {"(before the recording)": 80 * MIB}


def test_many_failures_are_explained_from_the_last(tmp_path: Path) -> None:
    device = Allocator(capacity=20 * MIB)
    for size in range(30, 90):
        assert device.alloc(size * MIB) is None
    found, ledger = figures(tmp_path, snapshot(device))
    assert [oom.asked_bytes // MIB for oom in found.out_of_memory] == list(range(40, 90))
    (entry,) = [entry for entry in ledger if entry.code == "snapshot-many-failures"]
    assert entry.count == 60


def test_a_failure_without_a_usable_history_tells_what_it_says_itself(tmp_path: Path) -> None:
    device = Allocator(capacity=20 * MIB)
    device.alloc(MIB)
    device.free(must(device.alloc(MIB)))
    assert device.alloc(30 * MIB, forward(line=3)) is None
    content = snapshot(device)
    content["device_traces"][0] = [e for e in device.events if e["action"] != "alloc"]
    (oom,) = figures(tmp_path, content)[0].out_of_memory
    assert (oom.asked_bytes, oom.allocated_bytes, oom.reason) == (30 * MIB, None, "unknown")
    assert oom.asked_by == "me/model.py:3 forward"
