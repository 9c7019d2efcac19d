"""What is exposed and what is overlapped, stretch by stretch: where in time the figures of a device lie.

Nothing is measured here. The stretches are those that the figures are sums of, cut where a cause changes or
another role begins, so that their lengths and shares add up to the same figures to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.causes import CAUSES, SKEW
from sp_profiler.analysis.intervals import cut_at_windows, expand_ranges, intersect
from sp_profiler.analysis.overlap import SHARES, DeviceSets, IdentityError
from sp_profiler.analysis.results import ExposedStretches
from sp_profiler.analysis.steps import Windows
from sp_profiler.trace.tables import Int64


@dataclass(frozen=True)
class ExposedPieces:
    """Exposed time: in each piece `[start_ns, end_ns)` the same collectives run and none changes its cause.

    Pieces are disjoint and sorted, and sum to `exposed_ns`. The parts have a row for each (piece,
    collective), those of piece i at `[first[i], first[i + 1])`. All int64.
    """

    start_ns: Int64
    end_ns: Int64
    window: Int64
    first: Int64
    owner: Int64  # of each part: row of the collective in the stretches' columns
    cause: Int64  # place in CAUSES
    share_ns: Int64  # what the collective gets of the piece: by cause they sum to `exposed_by_cause_ns`

    def __len__(self) -> int:
        return len(self.start_ns)


def exposed_pieces(stretches: ExposedStretches, wait_ns: Int64) -> ExposedPieces:
    """Where a device is exposed and why. `wait_ns`: the skew wait of each collective, 0 where not known.

    Shares and turns are those of `causes.settle`.
    """
    owner, start, end = stretches.owner, stretches.start_ns, stretches.end_ns
    arrival = stretches.begins_ns + wait_ns
    turns = np.column_stack(
        (
            arrival,
            np.maximum(stretches.first_turn_ns, arrival),
            np.maximum(stretches.second_turn_ns, arrival),
        )
    )[owner]
    causes = np.column_stack((np.full(len(stretches.id), SKEW), stretches.causes))[owner]
    turning = (causes[:, 1:] != causes[:, :-1]) & (turns > start[:, None]) & (turns < end[:, None])
    points = np.unique(np.concatenate((start, end, turns[turning])))
    row, place = expand_ranges(np.searchsorted(points, start), np.searchsorted(points, end))
    order = np.argsort(place, kind="stable")
    row, place = row[order], place[order]
    begins, stops = points[place], points[place + 1]
    length = end[row] - start[row]

    def before(instant: Int64) -> Int64:
        return stretches.share_ns[row] * (instant - start[row]) // length

    which = (begins[:, None] >= turns[row]).sum(axis=1)
    piece, first = np.unique(place, return_index=True)
    return ExposedPieces(
        start_ns=points[piece],
        end_ns=points[piece + 1],
        window=stretches.window[row[first]],
        first=np.append(first, len(place)),
        owner=owner[row],
        cause=causes[row, which],
        share_ns=before(stops) - before(begins),
    )


def shares_by_cause(pieces: ExposedPieces) -> dict[str, int]:
    """The sums of the shares by cause, without those that have none."""
    sums = np.zeros(len(CAUSES), np.int64)
    np.add.at(sums, pieces.cause, pieces.share_ns)
    return {CAUSES[code]: ns for code, ns in enumerate(sums.tolist()) if ns}


@dataclass(frozen=True)
class OverlappedPieces:
    """Overlapped time: in each piece `[start_ns, end_ns)` the same roles run. Int64.

    Pieces are disjoint and sorted, and sum to `overlapped_ns`. `share_ns` (pieces, roles) is what each role
    gets of a piece: by window and role they sum to `overlapped_by_role_ns`.
    """

    start_ns: Int64
    end_ns: Int64
    window: Int64
    roles: Int64  # bit r is set where role r runs
    share_ns: Int64

    def __len__(self) -> int:
        return len(self.start_ns)


def overlapped_pieces(sets: DeviceSets, windows: Windows, by_role_ns: Int64) -> OverlappedPieces:
    """Where communication runs under computation, and of which roles.

    `by_role_ns`, shape (windows, roles), is the measured `overlapped_by_role_ns`. Raises IdentityError where
    the pieces do not sum to it.
    """
    both = intersect(sets.comm, sets.compute)
    parts = [intersect(one, both) for one in sets.by_role]
    starts, ends = (np.concatenate([getattr(one, side) for one in parts]) for side in ("start", "end"))
    bits = np.concatenate([np.full(len(one), 1 << role, np.int64) for role, one in enumerate(parts)])
    points, place = np.unique(np.concatenate((starts, ends)), return_inverse=True)
    change = np.zeros(len(points), np.int64)
    np.add.at(change, place, np.concatenate((bits, -bits)))
    running = np.cumsum(change)[:-1]
    some = np.flatnonzero(running)
    cut = cut_at_windows(points[some], points[some + 1], windows.start_ns, windows.end_ns)
    roles = running[some[cut.owner]]
    return OverlappedPieces(
        start_ns=cut.start,
        end_ns=cut.end,
        window=cut.window,
        roles=roles,
        share_ns=_shares(cut.length, cut.window, roles, by_role_ns),
    )


def _shares(length: Int64, window: Int64, roles: Int64, by_role_ns: Int64) -> Int64:
    """Whole nanoseconds of each piece for each role, shape (pieces, roles), that sum to the measured ones.

    Exact shares are in 1/840 ns. Rounded are the running sums of a window; what rounding the window gave a
    role more goes to its last piece that it shares with others, where fractions come from.
    """
    count = by_role_ns.shape[1]
    runs = (roles[:, None] >> np.arange(count) & 1).astype(np.bool_)
    exact = np.where(runs, (length * (SHARES // np.maximum(runs.sum(axis=1), 1)))[:, None], 0)
    total = np.zeros((len(length) + 1, count), np.int64)
    np.cumsum(exact, axis=0, out=total[1:])
    bounds = np.searchsorted(window, np.arange(len(by_role_ns) + 1))
    base = total[bounds[:-1]][window] if len(window) else total[:0]
    share = (total[1:] - base) // SHARES - (total[:-1] - base) // SHARES
    missing = by_role_ns - (total[bounds[1:]] - total[bounds[:-1]]) // SHARES
    for at, role in zip(*(column.tolist() for column in np.nonzero(missing)), strict=True):
        here = slice(int(bounds[at]), int(bounds[at + 1]))
        shared = np.flatnonzero(runs[here, role] & (runs[here].sum(axis=1) > 1))
        if missing[at, role] != 1 or len(shared) == 0:
            raise IdentityError("the overlapped stretches of a role do not sum to what was measured")
        share[here.start + shared[-1], role] += 1
    return share
