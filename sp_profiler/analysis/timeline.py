"""What to draw of one window of one device: a lane each for computation, communication and memory.

Lanes are named "compute", "communication" and "memory"; where several streams (on the CPU: threads) do the
same, each is a lane of its own, "compute (stream 7)". Stretches are exact. Only in a window with more than
`MOST` activities alike neighbours of a lane are joined, over gaps that grow until the number fits; such a
stretch is named by how many it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.results import Segment
from sp_profiler.classify.tables import Activities, Classified, Collective, Kind, Phase, Role
from sp_profiler.trace.tables import NONE, Int64, Trace

MOST = 50_000
"""Activities that are drawn one by one; more than these nobody could tell apart."""

_LANES = {
    Kind.COMPUTATION: "compute",
    Kind.FUSED: "compute",
    Kind.COMMUNICATION: "communication",
    Kind.MEMORY: "memory",
}
_GAPS = (0, 20_000, 5_000, 2_000, 1_000, 500, 200)  # parts of the window; 0: only where they touch

_KINDS, _ROLES, _PHASES = ([one.name.lower() for one in enum] for enum in (Kind, Role, Phase))


@dataclass(frozen=True)
class _Stretches:
    """Rows of Activities to draw, perhaps several in one; int64 columns."""

    first: Int64  # row that stands for the stretch
    start: Int64
    end: Int64
    lane: Int64
    count: Int64


def timeline_segments(
    trace: Trace, classified: Classified, device: int, start_ns: int, end_ns: int, *, most: int = MOST
) -> list[Segment]:
    """The activities of a device inside `[start_ns, end_ns)`, clipped to it, sorted by start."""
    activities = classified.activities
    rows = np.flatnonzero(
        (activities.device == device)
        & (activities.start_ns < end_ns)
        & (activities.end_ns > start_ns)
        & (activities.end_ns > activities.start_ns)
    )
    if len(rows) == 0:
        return []
    lane, names = lanes_of(activities, rows, classified.is_cpu_only)
    stretches = _Stretches(
        rows,
        np.maximum(activities.start_ns[rows], start_ns),
        np.minimum(activities.end_ns[rows], end_ns),
        lane,
        np.ones(len(rows), np.int64),
    )
    for parts in _GAPS:
        if len(stretches.first) <= most:
            break
        stretches = _joined(stretches, activities, (end_ns - start_ns) // parts if parts else 0)
    return _segments(trace, classified, stretches, names)


def lanes_of(activities: Activities, rows: Int64, is_cpu_only: bool) -> tuple[Int64, list[str]]:
    """The lane of each row, and the lanes' names: computation, communication, copies, each by stream."""
    lane_of_kind = {kind: list(dict.fromkeys(_LANES.values())).index(name) for kind, name in _LANES.items()}
    of_kind = np.array([lane_of_kind[kind] for kind in Kind], np.int64)[activities.kind[rows]]
    streams, stream = np.unique(activities.stream[rows], return_inverse=True)
    codes, lane = np.unique(of_kind * len(streams) + stream, return_inverse=True)  # pairs of columns: slow
    kinds, stream = np.divmod(codes, max(len(streams), 1))
    words = list(dict.fromkeys(_LANES.values()))
    what = "thread" if is_cpu_only else "stream"
    alone = np.bincount(kinds, minlength=len(words)) == 1
    names = [
        words[kind] if alone[kind] else f"{words[kind]} ({what} {number})"
        for kind, number in zip(kinds.tolist(), streams[stream].tolist(), strict=True)
    ]
    return lane.astype(np.int64), names


def _joined(stretches: _Stretches, activities: Activities, gap_ns: int) -> _Stretches:
    """Join neighbours of a lane that are alike in kind, role, phase and layer and at most `gap_ns` apart."""
    order = np.lexsort((stretches.start, stretches.lane))
    first, lane = stretches.first[order], stretches.lane[order]
    start, end = stretches.start[order], stretches.end[order]
    differs = start[1:] - end[:-1] > gap_ns
    for column in (
        lane,
        activities.kind[first],
        activities.role[first],
        activities.phase[first],
        activities.layer[first],
    ):
        differs |= column[1:] != column[:-1]
    begin = np.flatnonzero(np.concatenate(([True], differs)))
    return _Stretches(
        first[begin],
        start[begin],
        np.maximum.reduceat(end, begin),
        lane[begin],
        np.add.reduceat(stretches.count[order], begin),
    )


def _segments(trace: Trace, classified: Classified, stretches: _Stretches, lanes: list[str]) -> list[Segment]:
    activities = classified.activities
    rows = stretches.first
    order = np.lexsort((stretches.lane, stretches.end, stretches.start))
    columns = (
        rows,
        stretches.lane,
        stretches.count,
        stretches.start,
        stretches.end,
        activities.kind[rows],
        activities.role[rows],
        activities.phase[rows],
        activities.module[rows],
        activities.layer[rows],
    )
    result: list[Segment] = []
    for row, lane, count, start, end, kind, role, phase, module, layer in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        at = int(activities.collective[row])
        collective = classified.collectives[at] if at >= 0 else None
        name = _name(trace, activities, row, collective)
        result.append(
            Segment(
                lane=lanes[lane],
                name=name if count == 1 else f"{count} activities, first {name}",
                start_ns=start,
                end_ns=end,
                kind=_KINDS[kind],
                role=_ROLES[role],
                phase=_PHASES[phase],
                module=None if module == NONE or count > 1 else classified.names[module],
                layer=None if layer == NONE else layer,
            )
        )
    return result


def _name(trace: Trace, activities: Activities, row: int, collective: Collective | None) -> str:
    """A collective by what it does, anything else by its own name."""
    if collective is not None and collective.op is not None:
        return f"{collective.op} {collective.group.key}" if collective.group else collective.op
    return trace.strings[int(activities.name[row])] or "unnamed"
