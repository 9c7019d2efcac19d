"""The timeline of one representative step: which step is drawn, and no more stretches than can be.

The drawn step is the last one that shows a dgrad collective and wgrad, else the last that shows
communication, else the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.intervals import TimeSet, subtract, union
from sp_profiler.analysis.results import RankResult, Segment
from sp_profiler.analysis.timeline import timeline_segments
from sp_profiler.classify.tables import Classified, Kind
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.model import Timeline
from sp_profiler.trace.tables import Trace

MOST_SEGMENTS = 6000
"""More stretches than this are joined before they are drawn: a browser cannot draw them in time, and
on a screen of a few thousand pixels nobody could see them."""

_TRIED = 4  # steps in which wgrad is looked for: where the last ones have none, none has

_COMMUNICATION = (Kind.COMMUNICATION.name.lower(), Kind.FUSED.name.lower())
_COMPUTATION = (Kind.COMPUTATION.name.lower(), Kind.FUSED.name.lower())

Window = tuple[int, int | None, int, int]  # device, step, start_ns, end_ns


def draw_timeline(
    trace: Trace, classified: Classified, result: RankResult
) -> tuple[Timeline | None, tuple[LedgerEntry, ...]]:
    """The step of this rank that is drawn in reports, and what had to be left out of the drawing."""
    for window in _candidates(trace, classified, result):
        device, step, start_ns, end_ns = window
        segments = timeline_segments(trace, classified, device, start_ns, end_ns)
        if segments:
            kept, entries = thin(segments, trace.path)
            exposed = [list(pair) for pair in exposed_stretches(segments)]
            return Timeline(trace.rank, device, step, start_ns, end_ns, kept, exposed), entries
    return None, ()


def _candidates(trace: Trace, classified: Classified, result: RankResult) -> Iterator[Window]:
    """Windows worth drawing, best first."""
    windows: list[Window] = [
        (s.device, s.step, s.start_ns, s.end_ns)
        for s in result.steps
        if s.start_ns is not None and s.end_ns is not None and s.end_ns > s.start_ns
    ] or _whole_devices(classified)
    kinds, _ = Collectives.of(result.collectives).kinds("device", "step", "purpose")
    dgrad = {(device, step) for device, step, purpose in kinds if purpose == "dgrad"}
    communicating = {(device, step) for device, step, _ in kinds}
    newest = windows[::-1]
    with_dgrad = [w for w in newest if (w[0], w[1]) in dgrad][:_TRIED]
    yield from (w for w in with_dgrad if _shows_wgrad(trace, classified, w))
    yield from (w for w in newest if (w[0], w[1]) in communicating)
    yield from newest


def _shows_wgrad(trace: Trace, classified: Classified, window: Window) -> bool:
    segments = timeline_segments(trace, classified, window[0], window[2], window[3])
    return any(segment.role == "wgrad" for segment in segments)


def _whole_devices(classified: Classified) -> list[Window]:
    """Without steps each device's span is the window."""
    activities = classified.activities
    out: list[Window] = []
    for device in np.unique(activities.device)[::-1]:
        rows = activities.device == device
        out.append(
            (int(device), None, int(activities.start_ns[rows].min()), int(activities.end_ns[rows].max()))
        )
    return out


def exposed_stretches(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """Where communication runs and no computation does: C \\ K of the drawn stretches."""
    exposed = subtract(_times(segments, _COMMUNICATION), _times(segments, _COMPUTATION))
    return list(zip(exposed.start.tolist(), exposed.end.tolist(), strict=True))


def _times(segments: Sequence[Segment], kinds: tuple[str, ...]) -> TimeSet:
    chosen = [s for s in segments if s.kind in kinds]
    return union(
        np.array([s.start_ns for s in chosen], np.int64), np.array([s.end_ns for s in chosen], np.int64)
    )


def thin(
    segments: Sequence[Segment], path: str, most: int = MOST_SEGMENTS
) -> tuple[list[Segment], tuple[LedgerEntry, ...]]:
    """At most `most` stretches: alike neighbours are joined over growing gaps, then the longest kept.

    Only the drawing is thinned; every number of a report comes from the exact intervals.
    """
    kept = sorted(segments, key=lambda s: (s.start_ns, s.end_ns, s.lane))
    if len(kept) <= most:
        return kept, ()
    span = max(s.end_ns for s in kept) - kept[0].start_ns
    for parts in (20_000, 5_000, 2_000):  # a gap of span/2000 is less than a pixel
        kept = _joined(kept, span // parts)
        if len(kept) <= most:
            break
    text = f"The drawn timeline joins neighbouring stretches of one role ({len(segments)} became {len(kept)})"
    if len(kept) > most:
        kept = sorted(kept, key=lambda s: (s.start_ns - s.end_ns, s.start_ns))[:most]
        kept.sort(key=lambda s: (s.start_ns, s.end_ns, s.lane))
        text += f" and shows the {most} longest"
    entry = LedgerEntry("timeline-thinned", "note", f"{text}; all figures are exact.", path)
    return kept, (entry,)


def _joined(segments: Sequence[Segment], gap_ns: int) -> list[Segment]:
    """Neighbours on a lane that are alike in kind, role, phase and layer, joined over gaps up to `gap_ns`."""
    out: list[Segment] = []
    last: dict[str, int] = {}  # lane -> place of its latest stretch
    for segment in segments:
        place = last.get(segment.lane)
        before = out[place] if place is not None else None
        if place is not None and before is not None and _alike(before, segment, gap_ns):
            name = before.name if before.name == segment.name else f"{before.role} …"
            module = before.module if before.module == segment.module else None
            end_ns = max(before.end_ns, segment.end_ns)
            out[place] = replace(before, name=name, module=module, end_ns=end_ns)
        else:
            last[segment.lane] = len(out)
            out.append(segment)
    return out


def _alike(one: Segment, two: Segment, gap_ns: int) -> bool:
    same = (one.kind, one.role, one.phase, one.layer) == (two.kind, two.role, two.phase, two.layer)
    return same and two.start_ns - one.end_ns <= gap_ns
