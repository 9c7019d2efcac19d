"""What is added to the trace of one rank: tracks of slices, links and counters, before they are text.

Times are int nanoseconds of the rank's axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from sp_profiler.analysis.causes import CAUSES
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.memory.composition import Composition
from sp_profiler.analysis.memory.rank import DEVICE_TYPES, DeviceMemory, device_memory
from sp_profiler.analysis.memory.results import CATEGORIES
from sp_profiler.analysis.overlap import IdentityError, device_sets
from sp_profiler.analysis.pieces import (
    ExposedPieces,
    OverlappedPieces,
    exposed_pieces,
    overlapped_pieces,
    shares_by_cause,
)
from sp_profiler.analysis.results import (
    CollectiveFigures,
    ExposedStretches,
    Figures,
    RankFigures,
    RankResult,
    StepFigures,
)
from sp_profiler.analysis.steps import WindowRule, Windows, device_windows
from sp_profiler.classify.tables import Activities, Classified, Kind, Role
from sp_profiler.ledger import Ledger
from sp_profiler.report.format import size
from sp_profiler.trace.tables import NONE, Int64, Trace

ROLES = tuple(role.name.lower() for role in Role)
_EVENTS_AT_ONCE = 1 << 15
_MOST_LISTED = 16
"""Collectives that a slice names: thousands at once, each naming all, would be a file of their square."""


@dataclass(frozen=True)
class Link:
    """From a slice of ours to an activity of the trace: where that begins, and on whose thread it lies."""

    start_ns: int
    pid: str
    tid: str


@dataclass(frozen=True)
class Slice:
    start_ns: int
    end_ns: int
    name: str
    args: dict[str, Any]
    link: Link | None = None


@dataclass(frozen=True)
class Track:
    """Slices of one kind in order of start, which may overlap. They are made as they are asked for: a million
    need not be held."""

    name: str
    slices: Callable[[], Iterator[Slice]]


@dataclass(frozen=True)
class Counter:
    """Values over time: every point has a number for each of `series`. Perfetto calls them `name series`."""

    name: str
    series: tuple[str, ...]
    points: Callable[[], Iterator[tuple[int, tuple[int, ...]]]]


@dataclass(frozen=True)
class DeviceTracks:
    """What is added for one device, drawn as a process of its own."""

    name: str  # GPU 0, CPU
    tracks: tuple[Track, ...]
    counters: tuple[Counter, ...]


def tracks_of(
    trace: Trace, classified: Classified, result: RankResult, rule: WindowRule, first_id: int = 0
) -> list[DeviceTracks]:
    """The tracks of each device of a rank. `result` is what was found for these windows, causes settled.

    `first_id`: the id of its first collective in the report of the run, which numbers those of all ranks.
    Raises IdentityError where slices do not sum to the figures of `result` (a defect of ours).
    """
    of_device = _counters(trace, classified)
    found: list[DeviceTracks] = []
    if result.stretches:
        collectives = Collectives.of(result.collectives)
        for place, figures in enumerate(result.ranks):
            tracks = _device(trace, classified, result, rule, place, collectives, first_id)
            name = "CPU" if classified.is_cpu_only else f"GPU {figures.device}"
            found.append(DeviceTracks(name, tracks, of_device.pop(name, ())))
    found += [DeviceTracks(name, (), counters) for name, counters in of_device.items()]
    return found


def _device(
    trace: Trace,
    classified: Classified,
    result: RankResult,
    rule: WindowRule,
    place: int,
    collectives: Collectives,
    first_id: int,
) -> tuple[Track, ...]:
    figures, stretches = result.ranks[place], result.stretches[place]
    device = figures.device
    rows = np.flatnonzero(classified.activities.device == device)
    windows = device_windows(trace, classified, rows, rule, Ledger())
    steps = [step for step in result.steps if step.device == device]
    here = np.flatnonzero(collectives.numbers("device").values == device)
    mine, ids = collectives.take(here), (first_id + here).tolist()
    exposed = exposed_pieces(stretches, _waits(stretches, mine))
    by_role = np.array([[step.overlapped_by_role_ns[role] for role in ROLES] for step in steps], np.int64)
    overlapped = overlapped_pieces(device_sets(classified.activities, rows), windows, by_role)
    links = _links(trace, classified, rows, mine)
    _check(figures, exposed, overlapped)
    return (
        Track("steps", lambda: _steps(steps)),
        Track("exposed", lambda: _exposed(exposed, stretches, mine, ids, windows)),
        Track("overlapped by role", lambda: _overlapped(overlapped, windows)),
        Track("collectives", lambda: _collectives(mine, ids, links)),
    )


def _check(figures: RankFigures, exposed: ExposedPieces, overlapped: OverlappedPieces) -> None:
    for name, pieces, whole in (
        ("exposed", exposed, figures.exposed_ns),
        ("overlapped", overlapped, figures.overlapped_ns),
    ):
        if int((pieces.end_ns - pieces.start_ns).sum()) != whole:
            raise IdentityError(f"the {name} slices do not sum to {name}_ns")
    causes = {cause: ns for cause, ns in (figures.exposed_by_cause_ns or {}).items() if ns}
    if shares_by_cause(exposed) != causes:
        raise IdentityError("the causes of the exposed slices do not sum to exposed_by_cause_ns")


# --- slices ----------------------------------------------------------------------------------------


def _steps(steps: Sequence[StepFigures]) -> Iterator[Slice]:
    names = [field.name for field in fields(Figures)]
    for step in steps:
        if step.start_ns is not None and step.end_ns is not None:
            args = _told({name: getattr(step, name) for name in names})
            name = "whole trace" if step.step is None else f"step {step.step}"
            yield Slice(step.start_ns, step.end_ns, name, args)


def _waits(stretches: ExposedStretches, mine: Collectives) -> Int64:
    """The skew wait of each collective of the stretches; 0 where not known, or outside the windows."""
    waits = np.zeros(len(stretches.id), np.int64)
    row = np.searchsorted(stretches.id, mine.numbers("id").values)
    waits[row] = mine.numbers("skew_wait_ns").or_zero()
    return waits


def _exposed(
    pieces: ExposedPieces,
    stretches: ExposedStretches,
    mine: Collectives,
    ids: Sequence[int],
    windows: Windows,
) -> Iterator[Slice]:
    """Named by their causes, the one with most time first."""
    row_of = {number: row for row, number in enumerate(mine.numbers("id").values.tolist())}
    ops, groups = mine.column("op").tolist(), mine.column("group").tolist()
    numbers = stretches.id.tolist()
    owner, cause, share = pieces.owner.tolist(), pieces.cause.tolist(), pieces.share_ns.tolist()
    first, window = pieces.first.tolist(), pieces.window.tolist()
    for i, (start, end) in enumerate(zip(pieces.start_ns.tolist(), pieces.end_ns.tolist(), strict=True)):
        by_cause: dict[str, int] = {}
        listed: list[dict[str, Any]] = []
        for part in range(first[i], first[i + 1]):
            number, why = numbers[owner[part]], CAUSES[cause[part]]
            by_cause[why] = by_cause.get(why, 0) + share[part]
            if len(listed) == _MOST_LISTED:
                continue
            row = row_of[number]
            told = {"id": ids[row], "op": ops[row], "group": groups[row], "cause": why}
            listed.append(_told({**told, "exposed_share_ns": share[part]}))
        causes = sorted(by_cause, key=lambda why: (-by_cause[why], CAUSES.index(why)))
        args = {"exposed_by_cause_ns": by_cause, "collectives": listed, "step": windows.step[window[i]]}
        args["collectives_at_once"] = first[i + 1] - first[i]
        yield Slice(start, end, " + ".join(causes), _told(args))


def _overlapped(pieces: OverlappedPieces, windows: Windows) -> Iterator[Slice]:
    shares, window = pieces.share_ns.tolist(), pieces.window.tolist()
    times = zip(pieces.start_ns.tolist(), pieces.end_ns.tolist(), pieces.roles.tolist(), strict=True)
    for i, (start, end, bits) in enumerate(times):
        roles = [role for place, role in enumerate(ROLES) if bits >> place & 1]
        by_role = {role: shares[i][ROLES.index(role)] for role in roles}
        args = {"overlapped_by_role_ns": by_role, "step": windows.step[window[i]]}
        yield Slice(start, end, " + ".join(roles), _told(args))


def _collectives(mine: Collectives, ids: Sequence[int], links: Sequence[Link | None]) -> Iterator[Slice]:
    for row, one in enumerate(mine):
        args = _told({**asdict(one), "id": ids[row]})
        yield Slice(one.start_ns, one.start_ns + one.dur_ns, _title(one), args, links[row])


def _title(one: CollectiveFigures) -> str:
    """`all_reduce 4.00 MiB tp[0,1]`, without what is not known.

    Never the kernel's name: who reads the new trace by names would count it twice.
    """
    parts = (one.op or "communication", None if one.bytes is None else size(one.bytes), one.group)
    return " ".join(part for part in parts if part)


def _links(trace: Trace, classified: Classified, rows: Int64, mine: Collectives) -> list[Link | None]:
    """For each collective where its partner begins, None where none is known.

    The partner's first activity may be a small one in front of what is meant: then it is the first GEMM of
    the same annotated range, or autograd node.
    """
    activities = classified.activities
    computing = rows[activities.kind[rows] == Kind.COMPUTATION]
    computing = computing[activities.end_ns[computing] > activities.start_ns[computing]]
    starts = activities.start_ns[computing]
    partners = zip(mine.records("partner").tolist(), mine.records("cause_evidence").tolist(), strict=True)
    links: list[Link | None] = []
    for (partner, told), dur in zip(partners, mine.numbers("dur_ns").values.tolist(), strict=True):
        begins = None if told is None else told.partner_start_ns
        if partner is None or told is None or begins is None or dur == 0:
            links.append(None)
            continue
        low, high = np.searchsorted(starts, [begins, told.partner_end_ns or begins])
        row = _chosen(activities, computing[low : max(high, low + 1)], begins, ROLES.index(partner.what))
        links.append(None if row is None else _link(trace, activities, row))
    return links


def _chosen(activities: Activities, rows: Int64, begins: int, role: int) -> int | None:
    """Of a partner's rows, and others that run meanwhile, the one to lead to; `rows` are sorted by start."""
    of_role = rows[activities.role[rows] == role]
    first = next(iter(of_role[activities.start_ns[of_role] == begins].tolist()), None)
    if first is None:
        return next(iter(rows[activities.start_ns[rows] == begins].tolist()), None)
    for column in (activities.range_start_ns, activities.node):
        if column[first] != NONE:
            gemms = of_role[activities.is_gemm[of_role] & (column[of_role] == column[first])]
            return int(gemms[0]) if len(gemms) else first
    return first


def _link(trace: Trace, activities: Activities, row: int) -> Link | None:
    event = int(activities.event[row])
    pid, tid = trace.strings[int(trace.events.pid[event])], trace.strings[int(trace.events.tid[event])]
    return None if pid is None or tid is None else Link(int(activities.start_ns[row]), pid, tid)


def _told(values: dict[str, Any]) -> dict[str, Any]:
    """What is known of the values, records inside them too: what nobody could look at is left out."""
    return {
        key: _told(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None and value != {} and value != []
    }


# --- counters --------------------------------------------------------------------------------------


def _counters(trace: Trace, classified: Classified) -> dict[str, tuple[Counter, ...]]:
    """The live bytes of each device by its name, in the order of `device_memory`."""
    found: dict[str, tuple[Counter, ...]] = {}
    for memory in device_memory(trace, classified):
        kind = DEVICE_TYPES.get(memory.key[0], "unknown")
        name = (
            "CPU"
            if kind == "cpu"
            else f"{'GPU' if kind in ('cuda', 'hip') else kind} {max(memory.key[1], 0)}"
        )
        counters = _device_counters(memory)
        if counters:
            found[name] = (*found.get(name, ()), *counters)
    return found


def _device_counters(memory: DeviceMemory) -> tuple[Counter, ...]:
    timeline, composition = memory.timeline, memory.composition
    if len(timeline) == 0:
        return ()
    time = timeline.time_ns
    positions = np.flatnonzero(np.append(time[1:] != time[:-1], True))  # what stands after each instant
    since = " (since recording began)" if timeline.is_relative else ""
    reserved = timeline.reserved
    is_told = reserved is not None and (reserved > 0).any() and (reserved != NONE).all()
    columns = [timeline.total, *((reserved,) if is_told and reserved is not None else ())]
    names = ("allocated", "reserved")[: len(columns)]

    def totals() -> Iterator[tuple[int, tuple[int, ...]]]:
        for part in _parts(positions):
            values = zip(*(column[part].tolist() for column in columns), strict=True)
            yield from zip(time[part].tolist(), values, strict=True)

    counters = [Counter(f"bytes{since}", names, totals)]
    if composition is not None:
        series = _series(composition, positions)
        name = f"bytes of{since}"
        counters.append(Counter(name, series, lambda: _by_category(composition, series, time, positions)))
    return tuple(one for one in counters if one.series)


def _parts(positions: Int64) -> Iterator[Int64]:
    for low in range(0, len(positions), _EVENTS_AT_ONCE):
        yield positions[low : low + _EVENTS_AT_ONCE]


def _series(composition: Composition, positions: Int64) -> tuple[str, ...]:
    """The categories that are ever alive."""
    alive = {name for part in _parts(positions) for name in composition.curve(part)}
    return tuple(name for name in CATEGORIES if name in alive)


def _by_category(
    composition: Composition, series: tuple[str, ...], time: Int64, positions: Int64
) -> Iterator[tuple[int, tuple[int, ...]]]:
    for part in _parts(positions):
        curve = composition.curve(part)
        nothing = [0] * len(part)
        values = zip(*(curve.get(name, nothing) for name in series), strict=True) if series else ()
        yield from zip(time[part].tolist(), values, strict=False)
