"""Each collective of one rank with its figures, and each process group.

What needs other ranks (skew, transfer, bandwidth) and the causes are not decided here: they stay None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sp_profiler.analysis.exposure import UNKNOWN, DeviceCollectives, Exposure, Keys
from sp_profiler.analysis.intervals import TimeSet, cut_at_windows, sum_by, union_by_key
from sp_profiler.analysis.partners import BETWEEN, NO_RULE, RULES, Partners
from sp_profiler.analysis.results import CollectiveFigures, GroupFigures, Known, Partner
from sp_profiler.analysis.steps import Windows
from sp_profiler.classify.tables import Classified, Collective, Phase, Role
from sp_profiler.trace.tables import Int64, Trace

# Looked up by number: making an enum of each of a million rows costs more than the row itself.
_PHASES = [phase.name.lower() for phase in Phase]
_ROLES = [role.name.lower() for role in Role]


def collective_figures(
    trace: Trace,
    classified: Classified,
    device: int,
    collectives: DeviceCollectives,
    exposed: Exposure,
    partners: Partners,
) -> list[CollectiveFigures]:
    """The collectives of a device that run, at least in part, in a chosen window; in order of (start, id)."""
    activities = classified.activities
    rows = collectives.activity
    chosen = np.flatnonzero(exposed.window >= 0)
    columns = zip(
        chosen.tolist(),
        *(
            column[chosen].tolist()
            for column in (
                collectives.id,
                activities.stream[rows],
                activities.step[rows],
                activities.phase[rows],
                activities.name[rows],
                collectives.start_ns,
                collectives.end_ns - collectives.start_ns,
                exposed.inside_ns,
                exposed.overlapped_ns,
                exposed.exposed_ns,
                exposed.share_ns,
                collectives.is_fused,
            )
        ),
        _partners(partners, collectives, chosen),
        strict=True,
    )
    lists: dict[tuple[int, ...], list[int]] = {}  # one for each group: 64 ranks are longer than the rest
    result: list[CollectiveFigures] = []
    for (
        i, number, stream, step, phase, name, start, dur, inside, overlapped, exposed_ns, share, fused, under
    ) in columns:  # fmt: skip
        row = collectives.rows[i]
        partner, hidden_ns, hideable_ns = under
        result.append(
            CollectiveFigures(
                id=number,
                rank=trace.rank,
                device=device,
                stream=stream,
                step=step if step >= 0 else None,
                op=row.op,
                group=row.group.key if row.group else None,
                ranks=lists.setdefault(row.group.ranks, list(row.group.ranks)) if row.group else [],
                bytes=row.bytes,
                dtype=row.dtype,
                seq=row.seq,
                is_async=row.is_async,
                purpose=row.purpose,
                purpose_rule=row.purpose_rule,
                phase=_PHASES[phase],
                module=row.module,
                layer=row.layer,
                launch_ns=row.launch_ns,
                start_ns=start,
                dur_ns=dur,
                overlapped_ns=overlapped,
                exposed_ns=exposed_ns,
                exposed_share_ns=share,
                partner=partner,
                hidden_ns=hidden_ns,
                hideable_ns=hideable_ns,
                kernel=trace.strings[name],
                note=_note(fused, inside, dur),
            )
        )
    return result


def _partners(
    partners: Partners, collectives: DeviceCollectives, chosen: Int64
) -> Iterator[tuple[Partner | None, int | None, int | None]]:
    """The partner of each chosen collective with its hidden and hideable ns; Nones where none is known."""
    names = ("rule", "role", "activities", "dur_ns", "hidden_ns", "hideable_ns")
    columns = [getattr(partners, name)[chosen].tolist() for name in names]
    for i, rule, role, activities, dur, hidden, hideable in zip(chosen.tolist(), *columns, strict=True):
        if rule == NO_RULE:
            yield None, None, None
            continue
        module = None if rule == BETWEEN else collectives.rows[i].module
        yield Partner(_ROLES[role], module, RULES[rule], dur, activities), hidden, hideable


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
