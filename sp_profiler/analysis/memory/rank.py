"""The memory of one rank from the `[memory]` events of its trace: every device by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sp_profiler.analysis.memory.blocks import BEFORE, BEFORE_WINDOW, PARAMETER, Blocks, Timeline
from sp_profiler.analysis.memory.categories import Lives, categorize, crossings
from sp_profiler.analysis.memory.composition import Composition
from sp_profiler.analysis.memory.cpu import CpuSide, read_cpu_side
from sp_profiler.analysis.memory.failures import failed_allocations
from sp_profiler.analysis.memory.figures import About, Borders, device_figures
from sp_profiler.analysis.memory.gathers import (
    Allocations,
    Launches,
    find_launches,
    inside_communication,
    is_ddp_forward,
    match_buffers,
)
from sp_profiler.analysis.memory.modules import Modules, find_modules
from sp_profiler.analysis.memory.notes import enter_device, enter_rank, no_memory_events
from sp_profiler.analysis.memory.order import (
    CheckedTotals,
    DeviceEvents,
    check_totals,
    device_events,
    device_keys,
)
from sp_profiler.analysis.memory.pairing import Pairs, live_bytes, pair, unpaired
from sp_profiler.analysis.memory.results import SHOWN_BLOCKS, MemoryFigures
from sp_profiler.analysis.steps import profiled_steps
from sp_profiler.classify.steps import steps_at
from sp_profiler.classify.tables import Classified, Phase
from sp_profiler.ledger import Ledger, LedgerEntry
from sp_profiler.trace.tables import NONE, Bool, Int8, Int32, Int64, Trace

DEVICE_TYPES = {
    0: "cpu",
    1: "cuda",
    3: "opengl",
    4: "opencl",
    5: "ideep",
    6: "hip",
    7: "fpga",
    8: "maia",
    9: "xla",
    10: "vulkan",
    11: "metal",
    12: "xpu",
    13: "mps",
    14: "meta",
    15: "hpu",
    16: "ve",
    17: "lazy",
    18: "ipu",
    19: "mtia",
    20: "privateuseone",
}
"""torch's numbers of device types (c10/core/DeviceType.h); a ROCm build of torch calls its GPUs cuda."""


def analyze_memory(
    trace: Trace, classified: Classified
) -> tuple[tuple[MemoryFigures, ...], tuple[LedgerEntry, ...]]:
    """The memory of each device that a trace tells of, GPUs first, and what was assumed on the way.

    Without `[memory]` events there are no figures, and the ledger says how to record them.
    """
    ledger = Ledger(trace.path)
    if len(trace.memory.ts_ns) == 0:
        no_memory_events(ledger)
        return (), ledger.entries
    rank = _Rank.read(trace, classified)
    enter_rank(trace, rank.cpu, ledger)
    figures = tuple(_device(rank, key, ledger) for key in _keys(trace))
    return figures, ledger.entries


@dataclass(frozen=True)
class _Rank:
    """What all devices of a trace share. Columns have one value per position of the nest and one for NONE."""

    trace: Trace
    cpu: CpuSide
    modules: Modules
    inside: Int64  # nearest communication
    launches: Launches
    step_borders_ns: Int64

    @classmethod
    def read(cls, trace: Trace, classified: Classified) -> _Rank:
        cpu = read_cpu_side(trace, profiled_steps(classified))
        inside = inside_communication(cpu)
        starts = np.array([step.start_ns for step in cpu.steps[1:]], dtype=np.int64)
        borders = starts if len(cpu.steps) else cpu.runs.after_optimizer_ns
        return cls(
            trace, cpu, find_modules(cpu, classified), inside, find_launches(cpu, inside), np.sort(borders)
        )


@dataclass(frozen=True)
class _Moments:
    """What happens around each event of a device; one value per event, in the allocator's order."""

    time_ns: Int64
    thread: Int64
    position: Int64  # of the innermost operator or range
    phase: Int8
    run: Int64
    step: Int32


def _moments(rank: _Rank, events: DeviceEvents) -> _Moments:
    cpu = rank.cpu
    thread = cpu.threads(rank.trace.memory.tid[events.row])
    position = cpu.around(thread, events.time_ns)
    step = steps_at(cpu.steps, events.time_ns)
    return _Moments(
        time_ns=events.time_ns,
        thread=thread,
        position=position,
        phase=cpu.phase_at(position, events.time_ns),
        run=cpu.runs.at(events.time_ns),
        step=np.where(step < 0, NONE, step).astype(np.int32),
    )


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device as columns, before figures are made of it."""

    key: tuple[int, int]  # device type and id, as torch numbers them
    events: DeviceEvents
    checked: CheckedTotals | None
    pairs: Pairs
    timeline: Timeline
    blocks: Blocks | None  # None where no event has an address: nothing to pair
    borders: Borders
    unseen_category: int  # what was allocated before the first event and is never freed counts as this

    @property
    def composition(self) -> Composition | None:
        """What the live bytes consist of; None without addresses."""
        return None if self.blocks is None else Composition(self.timeline, self.blocks, self.unseen_category)


def device_memory(trace: Trace, classified: Classified) -> Iterator[DeviceMemory]:
    """The memory of each device that a trace's `[memory]` events tell of, GPUs first."""
    if len(trace.memory.ts_ns):
        rank = _Rank.read(trace, classified)
        for key in _keys(trace):
            yield _read_device(rank, key)


def _keys(trace: Trace) -> list[tuple[int, int]]:
    return sorted(device_keys(trace.memory), key=lambda key: (key[0] == 0, key))


def _read_device(rank: _Rank, key: tuple[int, int]) -> DeviceMemory:
    events = device_events(rank.trace.memory, key)
    checked = check_totals(events)
    pairs = pair(events)
    moments = _moments(rank, events)
    timeline = _timeline(rank, events, moments, checked, pairs)
    # Nothing to pair: blocks are null, not absent.
    without = len(pairs) == 0 and len(pairs.without_address) > 0
    borders = _borders(rank.cpu, timeline)
    step_borders = np.searchsorted(timeline.time_ns, rank.step_borders_ns, side="left")
    blocks = None if without else _blocks(rank, events, pairs, moments, borders.position, step_borders)
    trains = len(step_borders) > 0 or len(borders.position) > 0
    unseen = PARAMETER if trains else BEFORE_WINDOW
    return DeviceMemory(key, events, checked, pairs, timeline, blocks, borders, unseen)


def _device(rank: _Rank, key: tuple[int, int], ledger: Ledger) -> MemoryFigures:
    one = _read_device(rank, key)
    about = _about(rank, key, one.events, one.checked, None if one.blocks is None else one.pairs)
    enter_device(about.device_type, key[1], one.events, one.checked, one.pairs, ledger)
    figures = device_figures(about, one.timeline, one.blocks, one.borders, one.unseen_category)
    if not rank.trace.memory.failed.any():
        return figures
    return replace(figures, out_of_memory=failed_allocations(rank.trace.memory, key, one.composition))


def _about(
    rank: _Rank,
    key: tuple[int, int],
    events: DeviceEvents,
    checked: CheckedTotals | None,
    pairs: Pairs | None,
) -> About:
    count, listed = unpaired(events, pairs, SHOWN_BLOCKS) if pairs is not None else (None, None)
    return About(
        source="events",
        rank=rank.trace.rank,
        device_type=DEVICE_TYPES.get(key[0], "unknown" if key[0] < 0 else f"device-type-{key[0]}"),
        device=None if key[1] < 0 else key[1],
        file=rank.trace.path,
        events=len(events) + events.empty + events.impossible,
        totals_checked=checked.checked if checked else None,
        totals_disagree=checked.disagree if checked else None,
        unpaired_count=count,
        unpaired=listed,
    )


def _borders(cpu: CpuSide, timeline: Timeline) -> Borders:
    times = cpu.runs.borders_ns
    steps = steps_at(cpu.steps, times)
    return Borders(
        time_ns=times,
        position=np.searchsorted(timeline.time_ns, times, side="left"),
        step=np.where(steps < 0, NONE, steps).astype(np.int32),
    )


def _timeline(
    rank: _Rank, events: DeviceEvents, moments: _Moments, checked: CheckedTotals | None, pairs: Pairs
) -> Timeline:
    reserved = rank.trace.memory.total_reserved[events.row]
    told = checked if checked is not None and checked.trusted else None
    return Timeline(
        time_ns=np.maximum.accumulate(events.time_ns) if len(events) else events.time_ns,
        total=told.total if told else live_bytes(events, pairs)[1],
        reserved=reserved if (reserved != NONE).any() else None,
        phase=moments.phase,
        step=moments.step,
        start_bytes=told.start_bytes if told else None,
        is_relative=told is None,
    )


def _blocks(
    rank: _Rank,
    events: DeviceEvents,
    pairs: Pairs,
    moments: _Moments,
    borders: Int64,
    step_borders: Int64,
) -> Blocks:
    """All blocks of a device with what made, freed and needs them."""
    cpu, modules = rank.cpu, rank.modules
    count = len(events)
    born, freed = pairs.birth != BEFORE, (pairs.death < count) & ~pairs.free_missing
    # One place more for blocks without a birth or a free.
    birth, death = np.where(born, pairs.birth, count), np.where(freed, pairs.death, count)
    at, ends_at = np.append(moments.position, NONE)[birth], np.append(moments.position, NONE)[death]
    # A buffer that a collective writes into belongs where the collective does.
    launch = _buffers(rank, events, pairs, moments, at)
    place = np.where(launch == NONE, at, np.append(rank.launches.position, NONE)[launch])
    place = np.where(modules.module[place] == NONE, at, place)
    phase = np.append(moments.phase, np.int8(Phase.UNKNOWN))[birth]
    freed_phase = np.append(moments.phase, np.int8(Phase.UNKNOWN))[death]
    lives = Lives(
        birth=pairs.birth,
        death=pairs.death,
        events=count,
        phase=phase,
        freed_phase=freed_phase,
        run=np.append(moments.run, -1)[birth],
        freed_run=np.append(moments.run, -1)[death],
        communicates=(launch != NONE)
        | (rank.inside[at] != NONE)
        | _ddp_buckets(rank, pairs, at, step_borders),
        zero_grad=cpu.zero_grad[ends_at] != NONE,
        step_borders=step_borders,
        borders=borders,
        freed=freed,
        frees_unseen=bool(pairs.free_missing.any()),
    )
    times = np.append(events.time_ns, NONE)
    return Blocks(
        bytes=pairs.bytes,
        address=pairs.address,
        birth=pairs.birth,
        death=pairs.death,
        birth_ns=times[birth],
        death_ns=times[death],
        category=categorize(lives),
        operator=cpu.name_at(cpu.operator[at]),
        made_by=cpu.name_at(cpu.made_by[at]),
        phase=phase,
        step=np.append(moments.step, np.int32(NONE))[birth],
        module=modules.module[place],
        layer=modules.layer[place],
        freed_by=cpu.name_at(cpu.operator[ends_at]),
        freed_phase=freed_phase,
        crosses_border=_crosses(lives),
        freed_unseen=pairs.free_missing,
        names=modules.names,
        stack_of=lambda row: cpu.stack(int(cpu.operator[at[row]])),
    )


def _crosses(lives: Lives) -> Bool:
    forward = (lives.birth != BEFORE) & (lives.phase == Phase.FORWARD) & ~lives.doubtful
    return forward & (crossings(lives.birth, lives.death, lives.borders) > 0)


def _ddp_buckets(rank: _Rank, pairs: Pairs, at: Int64, step_borders: Int64) -> Bool:
    """Blocks that DistributedDataParallel's forward allocates in no operator and keeps: its buckets."""
    cpu, operator = rank.cpu, rank.cpu.operator[at]
    around = np.append(cpu.nest.parent, NONE)[operator]
    inside = rank.trace.strings.match(cpu.name_at(around), is_ddp_forward)
    kept = crossings(pairs.birth, pairs.death, step_borders) > 0
    return inside & kept & (cpu.made_by[at] == NONE)


def _buffers(rank: _Rank, events: DeviceEvents, pairs: Pairs, moments: _Moments, at: Int64) -> Int64:
    """For each block the launch (place in `rank.launches`) of the collective that writes into it, or NONE."""
    made = np.flatnonzero(pairs.birth != BEFORE)
    cpu, strings = rank.cpu, rank.trace.strings
    operator, maker = cpu.operator[at[made]], cpu.made_by[at[made]]
    called = strings.match(cpu.name_at(maker), lambda name: name.startswith("aten::"))
    times = np.append(events.time_ns, np.iinfo(np.int64).max)
    found = match_buffers(
        cpu,
        rank.launches,
        Allocations(
            thread=moments.thread[pairs.birth[made]],
            time_ns=events.time_ns[pairs.birth[made]],
            bytes=pairs.bytes[made],
            death_ns=times[np.where(pairs.free_missing[made], len(events), pairs.death[made])],
            bare=(operator != maker) & ~called & (rank.inside[at[made]] == NONE),
        ),
    )
    launch = np.full(len(pairs), NONE, dtype=np.int64)
    launch[made] = found
    return launch
