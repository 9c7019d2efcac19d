"""The walk back from what the allocator held: figures of any history equal the allocator's own, whatever
part of the beginning is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_helpers import (
    MAIN,
    MIB,
    Allocator,
    backward,
    figures,
    forward,
    must,
    optimizer,
    snapshot,
    write,
)

from sp_profiler.analysis.memory.blocks import BEFORE
from sp_profiler.snapshot.analyze import analyze_snapshot
from sp_profiler.snapshot.history import blocks_of, live_bytes, reserved_bytes
from sp_profiler.snapshot.layout import Layout
from sp_profiler.snapshot.read import read_snapshot

Steps = list[tuple[str, int, int]]
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "alloc", "free", "free", "defer", "complete", "empty"]),
        st.integers(1, 40 * MIB) | st.integers(1, 4096),
        st.integers(0, 2),
    ),
    max_size=60,
)


def played(steps: Steps, *, expandable: bool, capacity: int) -> tuple[Allocator, list[set[int]]]:
    """An allocator after these steps, and the addresses that are taken after each of its events."""
    device = Allocator(expandable=expandable, capacity=capacity)
    taken: list[int] = []
    waiting: list[int] = []
    live: list[set[int]] = []
    for what, number, stream in steps:
        if what == "alloc":
            address = device.alloc(number, stream=stream)
            taken += [] if address is None else [address]
        elif what in ("free", "defer") and taken:
            address = taken.pop(number % len(taken))
            device.free(address, completed=what == "free")
            waiting += [address] if what == "defer" else []
        elif what == "complete" and waiting:
            device.complete(waiting.pop(number % len(waiting)))
        elif what == "empty":
            device.empty_cache()
        while len(live) < len(device.events):
            live.append(set(taken) | set(waiting))
    return device, live


@settings(max_examples=60, deadline=None)
@given(steps=_STEPS, expandable=st.booleans(), tight=st.booleans(), kept=st.integers(0, 150))
def test_the_walk_back_finds_what_was_true(
    tmp_path_factory: pytest.TempPathFactory, steps: Steps, expandable: bool, tight: bool, kept: int
) -> None:
    device, _ = played(steps, expandable=expandable, capacity=(100 * MIB if tight else 1 << 40))
    path = write(
        tmp_path_factory.mktemp("walk") / "a.pickle", snapshot(device, last=min(kept, len(device.events)))
    )
    read = read_snapshot(str(path))
    if not read.devices:
        assert not device.segments
        return
    (one,) = read.devices
    history = blocks_of(one)
    count = len(one.events.action)
    if not history.usable:
        assert set(one.events.action.tolist()) & {0, 1, 2} in (
            {0},
            {1, 2},
            {1},
            {2},
        )  # half of it was cut off
        return
    if count:
        assert live_bytes(history, history.bytes)[1].tolist() == device.live[-count:]
        reserved = reserved_bytes(one)
        assert reserved is not None
        assert reserved.tolist() == device.reserved[-count:]
        assert history.lost == history.appeared == history.sizes_differ == 0
    _check_layouts(device, one, history, count)


def _check_layouts(device: Allocator, one: Any, history: Any, count: int) -> None:
    """Walked back to any event, the segments hold what the allocator had, and no block lies outside."""
    layout = Layout(one)
    for position in range(count - 1, -1, -1):
        layout.back_to(position)
        assert layout.reserved_bytes == device.reserved[len(device.reserved) - count + position]
        alive = history.alive_after(position)
        unused = layout.unused(history, alive)
        assert int(unused.bytes.sum()) >= layout.reserved_bytes - int(history.held[alive].sum())


def test_a_drawn_history(tmp_path: Path) -> None:
    """
    a: 4 MiB  |=================        freed
    b: 3 MiB       |==================  alive at the end
    c: 1 MiB            |==|            freed
    """
    device = Allocator()
    a = device.alloc(4 * MIB, forward(line=1))
    device.alloc(3 * MIB, forward(line=2))
    c = device.alloc(MIB, forward(line=3))
    assert a is not None
    assert c is not None
    device.free(c)
    device.free(a)
    found, ledger = figures(tmp_path / "rank5.pickle", snapshot(device))
    assert (found.rank, found.device, found.source, found.device_type) == (5, 0, "snapshot", "cuda")
    assert (found.peak_bytes, found.start_bytes, found.end_bytes) == (8 * MIB, 0, 3 * MIB)
    assert found.peak_reserved_bytes == device.reserved[-1] == 22 * MIB
    assert found.peak_by_operator == {
        "me/model.py:1 forward": 4 * MIB,
        "me/model.py:2 forward": 3 * MIB,
        "me/model.py:3 forward": MIB,
    }
    assert [block.bytes for block in found.peak_blocks] == [4 * MIB, 3 * MIB, MIB]
    assert found.curve is not None
    assert max(found.curve.allocated_bytes) == 8 * MIB
    assert found.blocks_count == 3
    assert {entry.kind for entry in found.unpaired or ()} == {"alive-at-end"}
    assert [entry.code for entry in ledger] == ["snapshot-alive-in-forward"]


def test_what_was_there_before_the_history_counts_from_its_beginning(tmp_path: Path) -> None:
    """The peak lies at the beginning: a block that is freed in the history, but allocated before it."""
    device = Allocator()
    old = device.alloc(30 * MIB, forward())
    stays = device.alloc(5 * MIB, optimizer())
    assert old is not None
    assert stays is not None
    before = len(device.events)
    other = device.alloc(1024)
    assert other is not None
    device.free(old)
    device.free(other)
    found, ledger = figures(tmp_path / "a.pickle", snapshot(device, last=len(device.events) - before))
    assert found.start_bytes == 35 * MIB
    assert found.peak_bytes == 35 * MIB + 1024
    assert found.end_bytes == 5 * MIB
    # The one that is alive has its stack still, the other is known by its size only.
    assert found.peak_by_category == {
        "parameter-optimizer": 5 * MIB,
        "before-window": 30 * MIB,
        "unknown": 1024,  # in no phase
    }
    assert found.peak_by_operator is not None
    assert found.peak_by_operator["(before the recording)"] == 30 * MIB
    late = next(entry for entry in ledger if entry.code == "snapshot-begins-late")
    assert late.count == 2
    assert str(35 * MIB) in late.text


def test_the_peak_may_lie_before_the_first_event(tmp_path: Path) -> None:
    device = Allocator()
    old = [device.alloc(20 * MIB) for _ in range(3)]
    before = len(device.events)
    for address in old:
        assert address is not None
        device.free(address)
    device.alloc(1024)
    found, _ = figures(tmp_path / "a.pickle", snapshot(device, last=len(device.events) - before))
    assert found.peak_bytes == 60 * MIB
    assert found.peak_by_category == {"before-window": 60 * MIB}


def test_a_block_lives_until_its_free_is_completed(tmp_path: Path) -> None:
    device = Allocator()
    a = device.alloc(4 * MIB)
    assert a is not None
    device.free(a, completed=False)
    device.alloc(2 * MIB)
    device.complete(a)
    found, _ = figures(tmp_path / "a.pickle", snapshot(device))
    assert found.peak_bytes == 6 * MIB


def test_without_completed_frees_the_request_frees(tmp_path: Path) -> None:
    """`skip_actions=["free_completed"]`."""
    device = Allocator()
    for _ in range(3):
        address = device.alloc(4 * MIB)
        assert address is not None
        device.free(address)
    content = snapshot(device)
    content["device_traces"][0] = [e for e in device.events if e["action"] != "free_completed"]
    found, ledger = figures(tmp_path / "a.pickle", content)
    assert (found.peak_bytes, found.end_bytes) == (4 * MIB, 0)
    assert not any(entry.severity in ("loss", "repair") for entry in ledger)


@pytest.mark.parametrize("skipped", [("alloc",), ("free_requested", "free_completed")])
def test_half_a_history_is_not_walked(tmp_path: Path, skipped: tuple[str, ...]) -> None:
    device = Allocator()
    for _ in range(3):
        address = device.alloc(4 * MIB)
        assert address is not None
        device.free(address)
    device.alloc(3 * MIB)
    content = snapshot(device)
    content["device_traces"][0] = [e for e in device.events if e["action"] not in skipped]
    found, ledger = figures(tmp_path / "a.pickle", content)
    assert found.peak_bytes == found.end_bytes == 3 * MIB
    assert found.start_bytes is None
    assert [entry.code for entry in ledger if entry.severity == "loss"] == ["snapshot-half-a-history"]


def test_without_a_history_the_figures_are_of_the_moment(tmp_path: Path) -> None:
    device = Allocator()
    device.alloc(4 * MIB, optimizer())
    device.alloc(2 * MIB, backward())
    gone = device.alloc(MIB)
    assert gone is not None
    device.free(gone)
    content = snapshot(device, last=0)
    found, ledger = figures(tmp_path / "a.pickle", content)
    assert (found.events, found.peak_bytes, found.peak_ns, found.curve) == (0, 6 * MIB, None, None)
    assert found.peak_by_category == {"parameter-optimizer": 4 * MIB, "gradient": 2 * MIB}
    assert [entry.code for entry in ledger] == ["snapshot-without-history"]


def test_without_times_the_order_is_enough(tmp_path: Path) -> None:
    """Snapshots of torch 2.0."""
    device = Allocator()
    a = device.alloc(4 * MIB)
    assert a is not None
    device.free(a)
    device.alloc(MIB)
    content = snapshot(device)
    content["device_traces"][0] = [{k: v for k, v in e.items() if k != "time_us"} for e in device.events]
    found, ledger = figures(tmp_path / "a.pickle", content)
    assert (found.peak_bytes, found.peak_ns, found.curve) == (4 * MIB, None, None)
    assert all(block.birth_ns is None and block.lifetime_ns is None for block in found.blocks or ())
    assert "snapshot-without-times" in [entry.code for entry in ledger]


def test_frees_without_sense_are_listed_and_nothing_is_lost(tmp_path: Path) -> None:
    """Freed twice; allocated while taken; gone at the end without a free; there at the end though freed."""
    device = Allocator()
    kept = device.alloc(8 * MIB)
    content = snapshot(device)
    entry = {"stream": 0, "time_us": 1_700_000_000_000_100, "frames": [MAIN]}
    content["device_traces"][0] += [
        {"action": "alloc", "addr": 512, "size": 1024, **entry},
        {"action": "free_completed", "addr": 512, "size": 1024, **entry},
        {"action": "free_completed", "addr": 512, "size": 1024, **entry},
        {"action": "alloc", "addr": 1 << 20, "size": 2048, **entry},
        {"action": "alloc", "addr": 1 << 20, "size": 4096, **entry},
        {"action": "free_completed", "addr": kept, "size": 8 * MIB, **entry},
    ]
    found, ledger = figures(tmp_path / "a.pickle", content)
    kinds = [one.kind for one in found.unpaired or ()]
    assert kinds == ["freed-twice", "allocated-twice", "alive-at-end"]
    assert found.end_bytes == 8 * MIB  # what the allocator held
    contradiction = next(one for one in ledger if one.code == "snapshot-contradicts")
    assert (contradiction.severity, contradiction.count) == ("repair", 2)


def test_a_free_that_tells_another_size_contradicts(tmp_path: Path) -> None:
    """A free tells what was asked for or, rounded, what was held; anything else is damage."""
    device = Allocator()
    for _ in range(2):
        device.free(must(device.alloc(1000)))
    device.alloc(4 * MIB)
    content = snapshot(device)
    frees = [one for one in content["device_traces"][0] if one["action"] == "free_completed"]
    frees[0]["size"] = 1024
    _, ledger = figures(tmp_path / "a.pickle", content)
    assert "snapshot-contradicts" not in [entry.code for entry in ledger]
    frees[1]["size"] = 744
    found, ledger = figures(tmp_path / "b.pickle", content)
    assert [e.count for e in ledger if e.code == "snapshot-contradicts"] == [1]
    assert sorted(block.bytes for block in found.blocks or ()) == [1000, 1000, 4 * MIB]


def test_segments_that_do_not_add_up_are_told(tmp_path: Path) -> None:
    device = Allocator()
    device.alloc(4 * MIB)
    content = snapshot(device)
    content["segments"][0]["active_size"] += 512
    found, ledger = figures(tmp_path / "a.pickle", content)
    (entry,) = (entry for entry in ledger if entry.code == "snapshot-segments-disagree")
    assert (entry.severity, entry.count) == ("repair", 1)
    assert (found.end_bytes, found.totals_disagree) == (4 * MIB, 1)


def test_several_devices_are_told_apart(tmp_path: Path) -> None:
    first, third = Allocator(0), Allocator(2)
    first.alloc(4 * MIB)
    third.alloc(2 * MIB)
    found, _ = analyze_snapshot(read_snapshot(str(write(tmp_path / "a.pickle", snapshot(first, third)))))
    assert [(one.device, one.peak_bytes) for one in found] == [(0, 4 * MIB), (2, 2 * MIB)]


def test_segments_whose_bytes_disagree_with_their_blocks_are_counted(tmp_path: Path) -> None:
    device = Allocator()
    device.alloc(4 * MIB)
    device.alloc(512)
    content = snapshot(device)
    content["segments"][1]["active_size"] = 0
    found, _ = figures(tmp_path / "a.pickle", content)
    assert (found.totals_checked, found.totals_disagree) == (2, 1)


def test_birth_before_the_history_is_marked(tmp_path: Path) -> None:
    device = Allocator()
    device.alloc(4 * MIB)
    device.alloc(512)
    read = read_snapshot(str(write(tmp_path / "a.pickle", snapshot(device, last=1))))
    history = blocks_of(read.devices[0])
    assert sorted(history.birth.tolist()) == [BEFORE, 0]
