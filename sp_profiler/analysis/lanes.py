"""Everything that can be drawn of one rank, in columns, and what of it a screen of so many pixels can show.

A rank has a million activities and a screen 1500 pixels. `view` answers for any stretch of time: lanes with
few activities in it exactly, the others as bins that tell how much of their time which role or kind of
activity takes. Bins come from prefix sums over the exact intervals, so they are exact too: over a lane they
add up to its busy time in view, and no zoom level has to be prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.intervals import EMPTY, TimeSet, clip, subtract, time_set
from sp_profiler.analysis.overlap import device_sets
from sp_profiler.analysis.results import RankResult
from sp_profiler.analysis.timeline import lanes_of
from sp_profiler.classify.tables import Activities, Classified, Kind, Phase, Role
from sp_profiler.trace.tables import NONE, Bool, Int8, Int32, Int64, Trace

LOOKS = (*(role.name.lower() for role in Role), "communication", "fused", "memory")
"""What a stretch is drawn as: computation by its role, everything else by its kind."""

PHASES = tuple(phase.name.lower() for phase in Phase)

_LOOK_OF_KIND = {
    Kind.COMMUNICATION: LOOKS.index("communication"),
    Kind.FUSED: LOOKS.index("fused"),
    Kind.MEMORY: LOOKS.index("memory"),
}


@dataclass(frozen=True, eq=False)
class Lanes:
    """The activities of one rank, sorted by (lane, start_ns). Times are int64 ns of the trace's own clock.

    Rows of lane i are `first[i]` to `first[i + 1]`. `name` and `module` are places in `strings`;
    `collective` is the place among the collectives of this rank's report; NONE (-1) where there is none.
    `exposed` has a row (device, start_ns, end_ns) for each stretch in which communication runs on the device
    and no computation; `steps` a row (step, device, start_ns, end_ns) for each window.
    """

    rank: int | None
    file: str
    names: tuple[str, ...]  # of lanes: "compute", "communication (stream 20)"
    device: Int32  # of lanes
    first: Int64  # (lanes + 1,)
    start_ns: Int64
    end_ns: Int64
    look: Int8  # place in LOOKS
    name: Int32
    module: Int32
    layer: Int32
    phase: Int8  # place in PHASES
    collective: Int32
    strings: tuple[str, ...]
    exposed: Int64  # (stretches, 3)
    steps: Int64  # (windows, 4)

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def span(self) -> tuple[int, int]:
        """From the first start to the last end; (0, 1) without an activity."""
        if len(self) == 0:
            return 0, 1
        start = int(self.start_ns.min())
        return start, max(int(self.end_ns.max()), start + 1)

    def text(self, code: int) -> str | None:
        return None if code == NONE else self.strings[code]

    @cached_property
    def _latest_end(self) -> Int64:
        """For each row the latest end in its lane so far: a row that is still running is found by it."""
        latest = np.empty_like(self.end_ns)
        for low, high in self._borders():
            np.maximum.accumulate(self.end_ns[low:high], out=latest[low:high])
        return latest

    def _borders(self) -> list[tuple[int, int]]:
        return list(zip(self.first[:-1].tolist(), self.first[1:].tolist(), strict=True))

    @cached_property
    def _shares(self) -> tuple[dict[int, TimeSet], ...]:
        """Per lane the time of each look. Disjoint: an instant belongs to the activity that began first."""
        return tuple(self._shares_of(low, high) for low, high in self._borders())

    def _shares_of(self, low: int, high: int) -> dict[int, TimeSet]:
        if low == high:
            return {}
        begin, end = self.start_ns[low:high].copy(), self.end_ns[low:high]
        np.maximum(begin[1:], self._latest_end[low : high - 1], out=begin[1:])
        seen = end > begin
        begin, end, look = begin[seen], end[seen], self.look[low:high][seen]
        return {int(one): time_set(begin[look == one], end[look == one]) for one in np.unique(look)}

    @cached_property
    def exposed_sets(self) -> dict[int, TimeSet]:
        """The exposed time of each device that has any."""
        devices = np.unique(self.exposed[:, 0]).tolist()
        rows = {device: self.exposed[self.exposed[:, 0] == device] for device in devices}
        return {device: time_set(found[:, 1].copy(), found[:, 2].copy()) for device, found in rows.items()}

    def rows_within(self, lane: int, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Rows of a lane between which all that run in [start_ns, end_ns) lie (of old traces, others too)."""
        low, high = int(self.first[lane]), int(self.first[lane + 1])
        begin = low + int(np.searchsorted(self._latest_end[low:high], start_ns, side="right"))
        stop = low + int(np.searchsorted(self.start_ns[low:high], end_ns, side="left"))
        return begin, max(begin, stop)

    def busy_ns(self, lane: int, start_ns: int, end_ns: int) -> int:
        """How long anything runs on a lane in [start_ns, end_ns)."""
        edges = np.array([start_ns, end_ns], np.int64)
        return sum(int(np.diff(one.covered_before(edges))[0]) for one in self._shares[lane].values())

    def binned(self, lane: int, edges: Int64) -> dict[int, Int64]:
        """The ns of each look between neighbouring edges; looks that are nowhere there are left out."""
        found = {look: np.diff(one.covered_before(edges)) for look, one in self._shares[lane].items()}
        return {look: ns for look, ns in found.items() if ns.any()}


def lanes_of_rank(trace: Trace, classified: Classified, result: RankResult) -> Lanes:
    """All activities of a rank as lanes, device by device, computation before communication before copies."""
    activities = classified.activities
    lane, names, devices = _all_lanes(activities, classified.is_cpu_only)
    order = np.lexsort((activities.start_ns, lane))
    order = order[activities.end_ns[order] > activities.start_ns[order]]
    look = np.array([_LOOK_OF_KIND.get(kind, NONE) for kind in Kind], np.int8)[activities.kind]
    name, module, strings = _texts(trace, classified)
    return Lanes(
        rank=trace.rank,
        file=trace.path,
        names=tuple(names),
        device=np.array(devices, np.int32),
        first=np.searchsorted(lane[order], np.arange(len(names) + 1)).astype(np.int64),
        start_ns=activities.start_ns[order],
        end_ns=activities.end_ns[order],
        look=np.where(look == NONE, activities.role, look).astype(np.int8)[order],
        name=name[order],
        module=module[order],
        layer=activities.layer[order],
        phase=activities.phase[order],
        collective=_places(activities, result)[order],
        strings=strings,
        exposed=_exposed(activities),
        steps=np.array(
            [
                (step.step, step.device, step.start_ns, step.end_ns)
                for step in result.steps
                if None not in (step.step, step.start_ns, step.end_ns)
            ],
            np.int64,
        ).reshape(-1, 4),
    )


def _all_lanes(activities: Activities, is_cpu_only: bool) -> tuple[Int64, list[str], list[int]]:
    """Of each activity its lane; of each lane its name and device."""
    lane = np.zeros(len(activities), np.int64)
    names: list[str] = []
    devices: list[int] = []
    found = np.unique(activities.device).tolist()
    for device in found:
        rows = np.flatnonzero(activities.device == device)
        here, told = lanes_of(activities, rows, is_cpu_only)
        lane[rows] = here + len(names)
        names += [f"device {device}: {name}" for name in told] if len(found) > 1 else told
        devices += [device] * len(told)
    return lane, names, devices


def _texts(trace: Trace, classified: Classified) -> tuple[Int32, Int32, tuple[str, ...]]:
    """Codes of names and modules, and the strings that they are of: only those in use.

    A collective is named by what it does, anything else by its own name.
    """
    activities = classified.activities
    strings: dict[str, int] = {}

    def recoded(codes: Int32, text: Sequence[str]) -> Int32:
        used, place = np.unique(codes, return_inverse=True)
        known: list[int] = used.tolist()
        new = [NONE if code == NONE else strings.setdefault(text[code], len(strings)) for code in known]
        return np.array(new, np.int32)[place]

    name = recoded(activities.name, trace.strings.pool)
    module = recoded(activities.module, classified.names)
    for one in classified.collectives:
        if one.op is not None:
            told = f"{one.op} {one.group.key}" if one.group else one.op
            name[one.activity] = strings.setdefault(told, len(strings))
    return name, module, tuple(strings)


def _places(activities: Activities, result: RankResult) -> Int32:
    """Of each activity its place among the result's collectives."""
    numbers = Collectives.of(result.collectives).numbers("id").values
    known = activities.collective >= 0
    size = max(int(activities.collective.max(initial=-1)), int(numbers.max(initial=-1))) + 1
    place = np.full(size + 1, NONE, np.int32)
    place[numbers] = np.arange(len(numbers), dtype=np.int32)
    return np.where(known, place[activities.collective], NONE).astype(np.int32)


def _exposed(activities: Activities) -> Int64:
    parts = []
    for device in np.unique(activities.device).tolist():
        sets = device_sets(activities, np.flatnonzero(activities.device == device))
        found = subtract(sets.comm, sets.compute)
        parts.append(np.column_stack((np.full(len(found), device, np.int64), found.start, found.end)))
    return np.concatenate(parts) if parts else np.zeros((0, 3), np.int64)


# --- what a screen shows -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """What an answer may hold. `rows`: activities drawn one by one; `cells`: bins times looks; `lanes`."""

    rows: int = 700
    cells: int = 120_000
    lanes: int = 24

    def shared(self, parts: int) -> Budget:
        """The budget of one of several answers that are drawn together."""
        parts = max(parts, 1)
        return Budget(self.rows // parts, self.cells // parts, max(self.lanes // parts, 2))


@dataclass(frozen=True, eq=False)
class LaneView:
    """One lane in view: `rows` of `Lanes` when it is exact, else ns by look in each bin."""

    lane: int
    rows: Int64 | None
    bins: dict[int, Int64]
    activities: int  # that begin or run in view, about


@dataclass(frozen=True, eq=False)
class View:
    """`edges` are the borders of bins (bins + 1,). `exposed`: by device, exact when few, else ns per bin."""

    start_ns: int
    end_ns: int
    edges: Int64
    lanes: tuple[LaneView, ...]
    lanes_left_out: int
    exposed: dict[int, TimeSet]
    exposed_bins: dict[int, Int64]


_FEWEST_BINS = 64


def view(
    lanes: Lanes,
    start_ns: int,
    end_ns: int,
    pixels: int,
    budget: Budget | None = None,
    chosen: Bool | None = None,
) -> View:
    """What a screen `pixels` wide shows of `[start_ns, end_ns)`.

    `chosen`: which lanes are asked for, by default all; of more than the budget allows the busiest in view.
    Needs `start_ns < end_ns`.
    """
    budget = budget or Budget()
    asked = range(len(lanes.names)) if chosen is None else np.flatnonzero(chosen).tolist()
    drawn = _busiest(lanes, list(asked), start_ns, end_ns, budget.lanes)
    exact = _exact(lanes, drawn, start_ns, end_ns, budget.rows)
    dense = [lane for lane in drawn if lane not in exact]
    looks = sum(len(lanes._shares[lane]) for lane in dense) + len(lanes.exposed_sets)
    bins = max(min(pixels, budget.cells // max(looks, 1)), _FEWEST_BINS)
    bins = max(min(bins, end_ns - start_ns), 1)
    edges = start_ns + (end_ns - start_ns) * np.arange(bins + 1, dtype=np.int64) // bins
    shown = []
    for lane in drawn:
        rows = exact.get(lane)
        begin, stop = lanes.rows_within(lane, start_ns, end_ns)
        found = {} if rows is not None else lanes.binned(lane, edges)
        shown.append(LaneView(lane, rows, found, stop - begin if rows is None else len(rows)))
    exposed, exposed_bins = _exposed_view(lanes, edges, max(budget.rows // 3, 1))
    return View(start_ns, end_ns, edges, tuple(shown), len(list(asked)) - len(drawn), exposed, exposed_bins)


def _busiest(lanes: Lanes, asked: list[int], start_ns: int, end_ns: int, most: int) -> list[int]:
    if len(asked) <= most:
        return asked
    by_time = sorted(asked, key=lambda lane: -lanes.busy_ns(lane, start_ns, end_ns))
    return sorted(by_time[:most])


def _exact(lanes: Lanes, drawn: list[int], start_ns: int, end_ns: int, most: int) -> dict[int, Int64]:
    """The rows of lanes that can be drawn one by one: those with fewest first, as long as all fit."""
    borders = {lane: lanes.rows_within(lane, start_ns, end_ns) for lane in drawn}
    exact: dict[int, Int64] = {}
    left = most
    for lane in sorted(drawn, key=lambda one: borders[one][1] - borders[one][0]):
        begin, stop = borders[lane]
        if stop - begin > 50 * most:  # of overlapping ones most may have ended
            break
        rows = np.arange(begin, stop)[lanes.end_ns[begin:stop] > start_ns]
        if len(rows) > left:
            break
        exact[lane] = rows
        left -= len(rows)
    return exact


def _exposed_view(lanes: Lanes, edges: Int64, most: int) -> tuple[dict[int, TimeSet], dict[int, Int64]]:
    exact: dict[int, TimeSet] = {}
    bins: dict[int, Int64] = {}
    for device, whole in lanes.exposed_sets.items():
        low, high = int(edges[0]), int(edges[-1])
        begin = int(np.searchsorted(whole.end, low, side="right"))
        stop = int(np.searchsorted(whole.start, high, side="left"))
        if stop - begin <= most:
            some = time_set(whole.start[begin:stop], whole.end[begin:stop])
            exact[device] = clip(some, low, high) if len(some) else EMPTY
        else:
            bins[device] = np.diff(whole.covered_before(edges))
    return exact, bins
