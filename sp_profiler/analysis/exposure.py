"""Whose communication is exposed: every exposed nanosecond belongs to a collective, and by it to its
group, operation, purpose, phase, module and layer.

Shares are divided window by window, so that they sum to `exposed_ns` of the window, the rank and the run.
A collective that runs across the border of two windows has a share in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.intervals import (
    Pieces,
    TimeSet,
    cut_at_windows,
    divide_equally,
    subtract,
    sum_by,
    union_by_key,
)
from sp_profiler.analysis.overlap import DeviceSets, IdentityError
from sp_profiler.analysis.steps import Windows
from sp_profiler.classify.tables import Activities, Classified, Collective, Kind, Phase
from sp_profiler.trace.tables import Int64

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Keys:
    """One word for each collective, interned: `names[codes[i]]`."""

    names: tuple[str, ...]
    codes: Int64

    @staticmethod
    def of(words: Sequence[str | None]) -> Keys:
        """Intern words; a missing one is "unknown"."""
        known: dict[str, int] = {}
        codes = [known.setdefault(UNKNOWN if word is None else word, len(known)) for word in words]
        return Keys(tuple(known), np.array(codes, np.int64))


@dataclass(frozen=True)
class DeviceCollectives:
    """The communication of one device, in columns: one row a collective, in order of (start, id).

    `id` is the place in `Classified.collectives`, which keeps the order of activities. Columns are int64.
    """

    id: Int64
    activity: Int64  # row of Activities
    start_ns: Int64
    end_ns: Int64
    is_fused: np.ndarray  # bool
    rows: tuple[Collective, ...]

    def __len__(self) -> int:
        return len(self.id)


def device_collectives(classified: Classified, device: int) -> DeviceCollectives:
    """The collectives of a device.

    Raises IdentityError when an activity that only communicates is no collective: its exposed time would
    belong to nobody.
    """
    activities = classified.activities
    activity = np.array([collective.activity for collective in classified.collectives], np.int64)
    mine = np.flatnonzero(activities.device[activity] == device) if len(activity) else activity
    activity = activity[mine]
    communicates = (activities.kind == Kind.COMMUNICATION) & (activities.device == device)
    communicates[activity] = False
    if communicates.any():
        raise IdentityError(f"activity {int(np.argmax(communicates))} communicates and is no collective")
    return DeviceCollectives(
        mine,
        activity,
        activities.start_ns[activity],
        activities.end_ns[activity],
        activities.kind[activity] == Kind.FUSED,
        tuple(classified.collectives[i] for i in mine),
    )


@dataclass(frozen=True)
class Exposure:
    """What of each collective is overlapped and exposed inside the windows; int64 ns, a row each."""

    inside_ns: Int64
    overlapped_ns: Int64
    exposed_ns: Int64
    share_ns: Int64
    window: Int64  # the first window it runs in, -1 when it runs in none
    pieces: Pieces  # its pieces in the windows
    piece_share_ns: Int64


def exposure(collectives: DeviceCollectives, sets: DeviceSets, windows: Windows) -> Exposure:
    """Cut collectives at the windows and divide the exposed time among them (DESIGN: Per collective).

    Raises IdentityError when the shares do not sum to the exposed time of each window.
    """
    n = len(collectives)
    pieces = cut_at_windows(collectives.start_ns, collectives.end_ns, windows.start_ns, windows.end_ns)
    exposed = subtract(sets.comm, sets.compute)
    share = divide_equally(pieces.start, pieces.end, exposed)
    if (sum_by(pieces.window, share, len(windows)) != windows.measure(exposed)).any():
        raise IdentityError("the shares of the collectives do not sum to the exposed time")
    inside = sum_by(pieces.owner, pieces.length, n)
    overlapped = sum_by(pieces.owner, sets.compute.overlap(pieces.start, pieces.end), n)
    return Exposure(
        inside_ns=inside,
        overlapped_ns=overlapped,
        exposed_ns=inside - overlapped,
        share_ns=sum_by(pieces.owner, share, n),
        window=_first_window(collectives, pieces, windows),
        pieces=pieces,
        piece_share_ns=share,
    )


def _first_window(collectives: DeviceCollectives, pieces: Pieces, windows: Windows) -> Int64:
    """The window in which a collective begins to run; an empty one belongs where it stands."""
    first = np.full(len(collectives), -1, np.int64)
    owner, at = np.unique(pieces.owner, return_index=True)
    first[owner] = pieces.window[at]
    empty = np.flatnonzero(collectives.end_ns <= collectives.start_ns)
    first[empty] = windows.holding(collectives.start_ns[empty])
    return first


def collective_keys(collectives: DeviceCollectives, activities: Activities) -> dict[str, Keys]:
    """The words by which exposed time is divided, each named as the report's field is."""
    rows = collectives.rows
    phases = [phase.name.lower() for phase in Phase]
    return {
        "group": Keys.of([row.group.key if row.group else None for row in rows]),
        "op": Keys.of([row.op for row in rows]),
        "purpose": Keys.of([row.purpose for row in rows]),
        "phase": Keys.of([phases[i] for i in activities.phase[collectives.activity].tolist()]),
        "module": Keys.of([row.module for row in rows]),
        "layer": Keys.of([None if row.layer is None else str(row.layer) for row in rows]),
    }


def exposed_by(keys: Keys, exposed: Exposure, windows: int) -> list[dict[str, int]]:
    """For each window the exposed ns of each word, share-based: they sum to the window's `exposed_ns`.

    A word whose collectives are wholly hidden is there with 0.
    """
    pieces = exposed.pieces
    return _by_window(keys, pieces.window, keys.codes[pieces.owner], exposed.piece_share_ns, windows)


def exposed_union_by(
    keys: Keys, collectives: DeviceCollectives, compute: TimeSet, windows: Windows
) -> list[dict[str, int]]:
    """For each window how long each word was exposed: `|C_word \\ K|`, union-based."""
    code, merged = union_by_key(keys.codes, collectives.start_ns, collectives.end_ns)
    pieces = cut_at_windows(merged.start, merged.end, windows.start_ns, windows.end_ns)
    exposed = pieces.length - compute.overlap(pieces.start, pieces.end)
    return _by_window(keys, pieces.window, code[pieces.owner], exposed, len(windows))


def _by_window(keys: Keys, window: Int64, code: Int64, amount: Int64, windows: int) -> list[dict[str, int]]:
    """Sums by (window, word) as one dictionary a window, words in order of their first collective."""
    result: list[dict[str, int]] = [{} for _ in range(windows)]
    cells, place = np.unique(window * max(1, len(keys.names)) + code, return_inverse=True)
    sums = sum_by(place, amount, len(cells))
    for cell, value in zip(cells.tolist(), sums.tolist(), strict=True):
        result[cell // len(keys.names)][keys.names[cell % len(keys.names)]] = value
    return result
