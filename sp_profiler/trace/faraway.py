"""Events whose time lies absurdly far from all others: kept as they stand, and told.

One event at time 0, or with a clock of its own, makes the whole trace decades long: `window_ns` and `idle_ns`
over the whole trace then say nothing, and nobody sees why.
"""

from __future__ import annotations

import numpy as np

from sp_profiler.ledger import Ledger
from sp_profiler.trace.tables import Events, Int64, Strings

CODE = "far-away-event"
_HOUR_NS = 3600 * 10**9
_TIMES_THE_SPAN = 1000
_MOST = 0.01  # of all events: more are another session, not a stray
_UNITS = ((365.25 * 24 * _HOUR_NS, "years"), (24 * _HOUR_NS, "days"), (_HOUR_NS, "hours"))
_LONGEST = 60  # characters of a name


def enter_far_away(events: Events, strings: Strings, ledger: Ledger) -> None:
    """Enter the events that lie far from all others as an assumption: that their times are right.

    Far is more than an hour and more than 1000 times what the others span; no more than one event in a
    hundred (of fewer than 200, one) may lie so. Recording several sessions an hour apart is nothing strange.
    """
    if len(events) < 2:
        return
    end = events.end_ns
    if int(end.max()) - int(events.start_ns.min()) <= _HOUR_NS:
        return
    order = np.lexsort((end, events.start_ns))
    gaps = events.start_ns[order[1:]] - np.maximum.accumulate(end[order])[:-1]
    borders = np.concatenate(([0], np.flatnonzero(gaps > _HOUR_NS) + 1, [len(order)]))
    largest = int(np.argmax(np.diff(borders)))
    low, high = int(borders[largest]), int(borders[largest + 1])
    strays = np.concatenate((order[:low], order[high:]))
    if not 0 < len(strays) <= max(1, int(_MOST * len(events))):
        return
    core = order[low:high]
    distance = _distance(events, strays, int(events.start_ns[core].min()), int(end[core].max()))
    far = distance > _TIMES_THE_SPAN * int(end[core].max() - events.start_ns[core].min())
    if far.any():
        name = strings[int(events.name[strays[np.argmax(distance)]])]
        count = int(np.count_nonzero(far))
        lie, away = "lies" if count == 1 else "lie", _long(int(distance.max()))
        text = (
            f"{count} of {len(events)} events {lie} far from all others, up to {away} away ('{_short(name)}')"
            "; no time is changed, so the whole trace is that long"
        )
        ledger.add(CODE, "assumption", text, count=count)


def _distance(events: Events, rows: Int64, start_ns: int, end_ns: int) -> Int64:
    """How far each event lies outside [start_ns, end_ns)."""
    return np.maximum(start_ns - events.end_ns[rows], events.start_ns[rows] - end_ns)


def _long(ns: int) -> str:
    size, unit = next((one for one in _UNITS if ns >= one[0]), _UNITS[-1])
    return f"{ns / size:.1f} {unit}"


def _short(name: str | None) -> str:
    text = name or ""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
