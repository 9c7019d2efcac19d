"""Each collective of one rank with its figures, and each process group.

What needs other ranks (skew, transfer, bandwidth) and the causes are not decided here: they stay None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Column, Numbers, Records, Words, column_of
from sp_profiler.analysis.exposure import UNKNOWN, DeviceCollectives, Exposure, Keys
from sp_profiler.analysis.intervals import TimeSet, cut_at_windows, sum_by, union_by_key
from sp_profiler.analysis.partners import BETWEEN, NO_RULE, RULES, Partners
from sp_profiler.analysis.results import CollectiveFigures, GroupFigures, Known, Partner
from sp_profiler.analysis.steps import Windows
from sp_profiler.classify.tables import Classified, Collective, Phase, Role
from sp_profiler.trace.tables import Int64, Trace

_PHASES = tuple(phase.name.lower() for phase in Phase)
_ROLES = tuple(role.name.lower() for role in Role)
_AS_TOLD = (
    "op", "bytes", "dtype", "seq", "is_async", "purpose", "purpose_rule", "module", "layer", "launch_ns",
)  # fmt: skip
"""Fields that are the classifier's of the same name."""


def collective_figures(
    trace: Trace,
    classified: Classified,
    device: int,
    collectives: DeviceCollectives,
    exposed: Exposure,
    partners: Partners,
) -> Collectives:
    """The collectives of a device that run, at least in part, in a chosen window; in order of (start, id)."""
    activities = classified.activities
    chosen = np.flatnonzero(exposed.window >= 0)
    rows = collectives.activity[chosen]
    told = [collectives.rows[i] for i in chosen.tolist()]
    groups = {one.group.key: one.group for one in told if one.group is not None}
    group = Words.of([None if one.group is None else one.group.key for one in told])
    names, name = np.unique(activities.name[rows], return_inverse=True)
    step = activities.step[rows].astype(np.int64)
    dur = collectives.end_ns[chosen] - collectives.start_ns[chosen]
    known = partners.known[chosen]
    # One list for each group: 64 ranks are longer than all the rest.
    lists = tuple(list(groups[key].ranks) for key in group.table)
    columns: dict[str, Column[Any]] = {
        "id": Numbers(collectives.id[chosen]),
        "rank": column_of(CollectiveFigures, "rank", [trace.rank]).take(np.zeros(len(chosen), np.int64)),
        "device": Numbers(np.full(len(chosen), device, np.int64)),
        "stream": Numbers(activities.stream[rows]),
        "step": Numbers(step, step >= 0),
        "group": group,
        "ranks": Words(np.where(group.codes < 0, len(lists), group.codes).astype(np.int32), (*lists, [])),
        "phase": Words(activities.phase[rows].astype(np.int32), _PHASES),
        "start_ns": Numbers(collectives.start_ns[chosen]),
        "dur_ns": Numbers(dur),
        "overlapped_ns": Numbers(exposed.overlapped_ns[chosen]),
        "exposed_ns": Numbers(exposed.exposed_ns[chosen]),
        "exposed_share_ns": Numbers(exposed.share_ns[chosen]),
        "partner": _partners(partners, collectives, chosen),
        "hidden_ns": Numbers(partners.hidden_ns[chosen], known),
        "hideable_ns": Numbers(partners.hideable_ns[chosen], known),
        "kernel": Words(name.astype(np.int32), tuple(trace.strings[code] for code in names.tolist())),
        "note": Words.of(_notes(collectives.is_fused[chosen], exposed.inside_ns[chosen], dur)),
    }
    for field in _AS_TOLD:
        columns[field] = column_of(CollectiveFigures, field, [getattr(one, field) for one in told])
    return Collectives(columns, len(chosen))


def _partners(partners: Partners, collectives: DeviceCollectives, chosen: Int64) -> Records:
    """The partner of each chosen collective, None where none is known."""
    rule = partners.rule[chosen]
    modules = [
        None if by in (NO_RULE, BETWEEN) else collectives.rows[i].module
        for i, by in zip(chosen.tolist(), rule.tolist(), strict=True)
    ]
    columns: dict[str, Column[Any]] = {
        "what": Words(partners.role[chosen].astype(np.int32), _ROLES),
        "module": Words.of(modules),
        "rule": Words(rule.astype(np.int32), RULES),
        "dur_ns": Numbers(partners.dur_ns[chosen]),
        "activities": Numbers(partners.activities[chosen]),
    }
    return Records(Partner, tuple(columns[field.name] for field in fields(Partner)), rule != NO_RULE)


def _notes(is_fused: np.ndarray, inside_ns: Int64, dur_ns: Int64) -> list[str | None]:
    notes: list[str | None] = [None] * len(dur_ns)
    for i in np.flatnonzero(is_fused | (inside_ns < dur_ns)).tolist():
        notes[i] = _note(bool(is_fused[i]), int(inside_ns[i]), int(dur_ns[i]))
    return notes


def _note(is_fused: bool, inside_ns: int, dur_ns: int) -> str | None:
    notes = []
    if is_fused:
        notes.append("computes and communicates in one kernel: its overlap is by construction, not measured")
    if inside_ns < dur_ns:
        notes.append(f"only {inside_ns} of {dur_ns} ns lie inside the chosen windows")
    return "; ".join(notes) or None


def group_figures(
    collectives: DeviceCollectives, exposed: Exposure, groups: Keys, compute: TimeSet, windows: Windows
) -> list[GroupFigures]:
    """The process groups of a device's collectives, in order of appearance; "unknown" for no group."""
    n = len(groups.names)
    key, merged = union_by_key(groups.codes, collectives.start_ns, collectives.end_ns)
    pieces = cut_at_windows(merged.start, merged.end, windows.start_ns, windows.end_ns)
    key = key[pieces.owner]
    comm = sum_by(key, pieces.length, n)
    overlapped = sum_by(key, compute.overlap(pieces.start, pieces.end), n)
    share = sum_by(groups.codes, exposed.share_ns, n)
    inside = exposed.window >= 0
    result: list[GroupFigures] = []
    for code, name in enumerate(groups.names):
        rows = [collectives.rows[i] for i in np.flatnonzero(inside & (groups.codes == code))]
        if rows:
            sizes = [row.bytes for row in rows]
            times = (int(comm[code]), int(overlapped[code]), int(share[code]))
            result.append(_group(name, rows[0], sizes, times))
    return result


def _group(
    name: str, first: Collective, sizes: Sequence[int | None], times: tuple[int, int, int]
) -> GroupFigures:
    group = first.group
    known = [size for size in sizes if size is not None]
    return GroupFigures(
        group=name,
        ranks=list(group.ranks) if group else [],
        size=group.size if group else None,
        backend=group.backend if group else None,
        collectives=len(sizes),
        bytes=sum(known) if len(known) == len(sizes) else None,
        comm_ns=times[0],
        overlapped_ns=times[1],
        exposed_share_ns=times[2],
    )


def collective_coverage(collectives: DeviceCollectives, exposed: Exposure) -> tuple[Known, Known]:
    """Communication time whose purpose is known, and whose op, group and bytes are all known.

    Weighted by time inside the windows, because an unlabelled barrier matters less than an unlabelled
    all-reduce.
    """
    rows = collectives.rows
    purpose = np.array([row.purpose != UNKNOWN for row in rows], np.bool_)
    metadata = np.array(
        [row.op is not None and row.group is not None and row.bytes is not None for row in rows], np.bool_
    )
    return _known(purpose, exposed.inside_ns), _known(metadata, exposed.inside_ns)


def _known(mask: np.ndarray, time_ns: Int64) -> Known:
    return Known(int(time_ns[mask].sum()), int(time_ns.sum()))
