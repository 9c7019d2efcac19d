"""Kinds of collectives where a run is too large to list all: from the sums that its report holds of them.

Steps are not told apart in those sums, so the noise of times is not known; nor are waits for the last rank,
so a duration is one part. Groups are told apart by their names alone, as such a report may have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from sp_profiler.analysis.kind_figures import KindFigures
from sp_profiler.comparing.groups import NO_GROUP, described
from sp_profiler.comparing.kinds import Because
from sp_profiler.comparing.model import Delta, KindChange, Part, Unit
from sp_profiler.comparing.noise import LEAST_BYTES, LEAST_RATIO, SHARE_OF_BYTES, NoiseFrom, delta
from sp_profiler.comparing.parts import Sums, added, parts, rounded
from sp_profiler.comparing.side import Side, resolution_ns
from sp_profiler.report.model import kinds_of

Key = tuple[str | None, str, str]


def fleet_kind_changes(
    base: Side, here: Side, because: Because
) -> tuple[list[KindChange], list[Part]] | tuple[None, None]:
    """Every kind of either run, largest difference first, and the parts of all exposed time.

    None where the sums of a run do not account for all of it.
    """
    both = [_by_kind(side) for side in (base, here)]
    for side, kinds in zip((base, here), both, strict=True):
        if sum(one.exposed_share_ns for one in kinds.values()) != side.report.totals.exposed_ns:
            return None, None
    keys = list(dict.fromkeys([*both[0], *both[1]]))
    made = [_change(base, here, key, both[0].get(key), both[1].get(key), because) for key in keys]
    made.sort(key=lambda one: (-abs(one.exposed.contribution), one.op or "", one.group, one.purpose))
    exposed = [side.mean(lambda f: f.exposed_ns) or 0 for side in (base, here)]
    sums = (
        [_sums(side, kinds.get(key)) for side, kinds in zip((base, here), both, strict=True)] for key in keys
    )
    return made, rounded(added(parts(*pair) for pair in sums), int(exposed[1] - exposed[0]))


def _by_kind(side: Side) -> dict[Key, KindFigures]:
    found: dict[Key, KindFigures] = {}
    for one in kinds_of(side.report):
        if not one.overlapped_ns and not one.exposed_ns:
            continue  # outside of the windows
        group = NO_GROUP if one.group is None else described(one.group)
        key = (one.op, group, one.purpose or "unknown")
        found[key] = found[key] + one if key in found else one
    return found


def _sums(side: Side, kind: KindFigures | None) -> Sums:
    if kind is None:
        return Sums(side.windows)
    return Sums(
        side.windows,
        kind.collectives,
        kind.overlapped_ns + kind.exposed_ns,
        kind.overlapped_ns,
        kind.exposed_ns,
        kind.exposed_share_ns,
        bytes=kind.bytes or None,
    )


def _change(
    base: Side, here: Side, key: Key, one: KindFigures | None, two: KindFigures | None, because: Because
) -> KindChange:
    sides, pair = (base, here), (one, two)
    there = (one is not None, two is not None)
    resolution = resolution_ns(base, here)

    def figure(
        name: str,
        unit: Unit,
        values: Sequence[float | None],
        least: float,
        noise_from: NoiseFrom | None = None,
    ) -> Delta:
        return delta(name, "", unit, *values, resolution=least, noise_from=noise_from, is_there=there)

    def time(name: str) -> Delta:
        values = [
            None if kind is None else round(Fraction(getattr(kind, name), side.windows))
            for side, kind in zip(sides, pair, strict=True)
        ]
        return figure(name, "ns", values, resolution)

    counts = [
        None if kind is None else kind.collectives / side.windows
        for side, kind in zip(sides, pair, strict=True)
    ]
    sizes = [None if kind is None or not kind.bytes else kind.bytes / kind.collectives for kind in pair]
    least = max(LEAST_BYTES, SHARE_OF_BYTES * max((size for size in sizes if size is not None), default=0.0))
    shares = [
        None if kind is None or kind.asynchronous is None else kind.asynchronous / kind.collectives
        for kind in pair
    ]
    exposed = time("exposed_share_ns")
    names = ("dur_ns", "overlapped_ns", "hidden_ns", "hideable_ns")
    made = KindChange(
        op=key[0],
        group=key[1],
        base_groups=[],
        here_groups=[],
        purpose=key[2],
        exposed=exposed,
        figures=[
            figure("count", "count", counts, 1e-9, "counted"),
            *(time(name) for name in names),
            figure("bytes", "bytes", sizes, least, "counted"),
            figure("is_async", "ratio", shares, LEAST_RATIO, "counted"),
        ],
        parts=rounded(parts(_sums(base, one), _sums(here, two)), int(exposed.contribution)),
        by_cause=[],
        became="async" if shares == [0.0, 1.0] else "sync" if shares == [1.0, 0.0] else None,
        because="",
    )
    return replace(made, because=because(made))
