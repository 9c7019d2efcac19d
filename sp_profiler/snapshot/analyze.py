"""The memory figures of a snapshot: every device by itself, in the result type that traces have too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sp_profiler.analysis.memory.blocks import BEFORE, BEFORE_WINDOW, Timeline
from sp_profiler.analysis.memory.figures import About, Borders, device_figures
from sp_profiler.analysis.memory.results import SHOWN_BLOCKS, MemoryFigures, Unpaired
from sp_profiler.classify.tables import Phase
from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger, LedgerEntry
from sp_profiler.snapshot.blocks import label
from sp_profiler.snapshot.frames import Told, tell
from sp_profiler.snapshot.history import History, blocks_of, live_bytes, reserved_bytes
from sp_profiler.snapshot.notes import enter_device
from sp_profiler.snapshot.oom import explain
from sp_profiler.snapshot.phases import Phases, phases_of
from sp_profiler.snapshot.ranges import Ranges, paint
from sp_profiler.snapshot.tables import DeviceSnapshot, Ints, Snapshot
from sp_profiler.snapshot.worker.protocol import INACTIVE, NONE

_MOST_BYTES = 1 << 61


def analyze_snapshot(snapshot: Snapshot) -> tuple[tuple[MemoryFigures, ...], tuple[LedgerEntry, ...]]:
    """Figures of each device that the snapshot tells of, and what was assumed on the way.

    Raises InputError when its sizes cannot be those of any memory.
    """
    ledger = Ledger(snapshot.path)
    ledger.extend(snapshot.ledger)
    told = tell(snapshot.stacks)
    figures = tuple(_device(snapshot, device, told, ledger) for device in snapshot.devices)
    return figures, ledger.entries


def _device(snapshot: Snapshot, device: DeviceSnapshot, told: Told, ledger: Ledger) -> MemoryFigures:
    _refuse_nonsense(snapshot, device)
    history = blocks_of(device)
    times = _times(device)
    events_us = device.events.time_us if times is None else times // 1000
    ranges = paint(device.annotations, events_us, snapshot.stacks.texts)
    phases = phases_of(device, history, told, ranges)
    labelled = label(snapshot, history, phases, ranges, told, times)
    blocks = labelled.blocks
    enter_device(snapshot, device, history, phases, labelled.assumed_activations, ledger)
    count, listed = _unpaired(device, history, times)
    checked, disagree = _checked(device)
    if disagree:
        ledger.add(
            "snapshot-segments-disagree",
            "repair",
            f"segments of device {device.device} whose active bytes are not those of their blocks: the blocks"
            " are taken as true",
            count=disagree,
        )
    about = About(
        source="snapshot",
        rank=snapshot.rank,
        device_type="cuda",
        device=device.device,
        file=snapshot.path,
        events=len(device.events.action),
        totals_checked=checked,
        totals_disagree=disagree,
        unpaired_count=count,
        unpaired=listed,
        out_of_memory=explain(snapshot, device, history, blocks, told),
    )
    timeline = _timeline(device, history, phases, ranges, times)
    borders = Borders(
        timeline.time_ns[phases.borders], phases.borders, timeline.step[phases.borders].astype(np.int32)
    )
    figures = device_figures(about, timeline, blocks, borders, BEFORE_WINDOW)
    if times is None:
        return replace(figures, peak_ns=None, curve=None)
    return figures


def _refuse_nonsense(snapshot: Snapshot, device: DeviceSnapshot) -> None:
    """Sizes whose sums no int64 holds are of no memory."""
    for sizes in (device.events.size, device.blocks.size, device.segments.size):
        if sizes.astype(np.float64).sum() > _MOST_BYTES:
            raise InputError(f"{snapshot.path} is refused: its sizes add up to more than any memory has.")


def _times(device: DeviceSnapshot) -> Ints | None:
    """Times of the events in ns that never decrease; None where the snapshot does not tell all."""
    times = device.events.time_us
    if not len(times) or (times == NONE).any():
        return None
    return np.maximum.accumulate(times) * 1000


def _timeline(
    device: DeviceSnapshot, history: History, phases: Phases, ranges: Ranges, times: Ints | None
) -> Timeline:
    start, total = live_bytes(history, history.bytes)
    count = history.events
    some = len(device.events.action) > 0
    return Timeline(
        time_ns=np.zeros(count, dtype=np.int64) if times is None else times,
        total=total,
        reserved=reserved_bytes(device),
        phase=phases.phase if some else np.full(count, Phase.UNKNOWN, dtype=np.int8),
        step=ranges.step.astype(np.int32) if some else np.full(count, NONE, dtype=np.int32),
        start_bytes=start if some and history.usable else None,
    )


def _checked(device: DeviceSnapshot) -> tuple[int | None, int | None]:
    """How many segments tell their active bytes, and of how many that is not the sum of their blocks."""
    segments, blocks = device.segments, device.blocks
    active = blocks.state != INACTIVE
    sums = np.zeros(len(segments.size), dtype=np.int64)
    np.add.at(sums, blocks.segment[active], blocks.size[active])
    told = segments.active != NONE
    if not told.any():
        return None, None
    return int(told.sum()), int((sums != segments.active)[told].sum())


def _unpaired(device: DeviceSnapshot, history: History, times: Ints | None) -> tuple[int, list[Unpaired]]:
    """Events and blocks without their other half: how many, and the largest of each kind."""
    if not history.usable or not len(device.events.action):
        return 0, []
    born, dies = history.birth != BEFORE, history.death < history.events
    kinds = (
        ("freed-twice", history.freed_twice, None),
        ("allocated-twice", None, np.flatnonzero(history.free_missing)),
        ("freed-without-allocation", None, np.flatnonzero(~born & dies)),
        ("alive-at-end", None, np.flatnonzero(born & ~dies)),
    )
    listed: list[Unpaired] = []
    total = 0
    for kind, positions, rows in kinds:
        if positions is not None:
            sizes, addresses, at = (
                device.events.size[positions],
                device.events.address[positions],
                positions,
            )
        else:
            sizes, addresses = history.bytes[rows], history.address[rows]
            at = history.death[rows] if kind == "freed-without-allocation" else history.birth[rows]
        total += len(sizes)
        for row in np.argsort(-sizes, kind="stable")[: SHOWN_BLOCKS - len(listed)].tolist():
            time_ns = None if times is None else int(times[at[row]])
            listed.append(Unpaired(kind, int(sizes[row]), int(addresses[row]) or None, time_ns))
    return total, listed
