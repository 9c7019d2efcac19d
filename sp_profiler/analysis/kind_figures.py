"""Collectives by kind as screens show them: by operation, group, purpose, layer, cause.

Of a run in memory they are made from its collectives. A report of a run that is too large for that holds them
instead (`report.model.Fleet`): exact sums over all collectives, of which it lists the most exposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sp_profiler.analysis.collective_table import Collectives, kinds_of
from sp_profiler.analysis.columns import Numbers
from sp_profiler.analysis.kinds import sums_by
from sp_profiler.analysis.results import CollectiveFigures

KEY = ("op", "group", "purpose", "phase", "layer", "cause")


@dataclass(frozen=True)
class KindFigures:
    """Sums over the collectives that are equal in the first six fields (of sums over several: None).

    `hideable_ns` and `hidden_ns` are of those whose partner is known, each at most the collective's own
    length; the length of the others is `partner_unknown_ns`.
    """

    op: str | None
    group: str | None
    purpose: str | None
    phase: str | None
    layer: int | None
    cause: str | None
    collectives: int
    asynchronous: int | None  # None where one does not tell
    bytes: int | None  # None where the size of one is not known
    dur_ns: int
    overlapped_ns: int
    exposed_ns: int
    exposed_share_ns: int
    hideable_ns: int
    hidden_ns: int
    partner_unknown_ns: int

    def __add__(self, other: KindFigures) -> KindFigures:
        """The sums of both, under this one's key."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in ("asynchronous", "bytes")}
        known = {name: None if None in pair else sum(pair) for name, pair in pairs.items()}
        return replace(self, **sums, **known)


_SUMS = (
    "collectives", "dur_ns", "overlapped_ns", "exposed_ns", "exposed_share_ns", "hideable_ns", "hidden_ns",
    "partner_unknown_ns",
)  # fmt: skip


def kind_figures(collectives: Iterable[CollectiveFigures]) -> list[KindFigures]:
    """The kinds of these collectives, in the order in which they first appear."""
    table = Collectives.of(collectives)
    first, kind = kinds_of([table.codes(name) for name in KEY], len(table))
    count = len(first)
    keys = zip(*(table.column(name).take(first).tolist() for name in KEY), strict=True)
    dur = table.numbers("dur_ns").values
    hideable, hidden = table.numbers("hideable_ns"), table.numbers("hidden_ns")
    known = hideable.is_known & hidden.is_known
    could = np.where(known, np.minimum(hideable.or_zero(), dur), 0)
    did = np.where(known, np.minimum(hidden.or_zero(), could), 0)
    columns = {
        "dur_ns": table.column("dur_ns"),
        "overlapped_ns": table.column("overlapped_ns"),
        "exposed_ns": table.column("exposed_ns"),
        "exposed_share_ns": table.column("exposed_share_ns"),
        "hideable_ns": Numbers(could),
        "hidden_ns": Numbers(did),
        "partner_unknown_ns": Numbers(np.where(known, 0, dur)),
        "bytes": table.column("bytes"),
        "asynchronous": Numbers(table.words("is_async").where(bool).astype(np.int64)),
    }
    sums = {name: sums_by(column, kind, count) for name, column in columns.items()}
    sums["collectives"] = np.bincount(kind, minlength=count).tolist()
    unknown = {
        "bytes": np.bincount(kind[table.codes("bytes") < 0], minlength=count).tolist(),
        "asynchronous": np.bincount(kind[table.codes("is_async") < 0], minlength=count).tolist(),
    }
    return [
        KindFigures(
            *key,
            **{
                name: None if name in unknown and unknown[name][place] else column[place]
                for name, column in sums.items()
            },
        )
        for place, key in enumerate(keys)
    ]


def added(kinds: Iterable[KindFigures]) -> list[KindFigures]:
    """Each kind once, in the order in which they first appear."""
    found: dict[tuple[object, ...], KindFigures] = {}
    for one in kinds:
        key = tuple(getattr(one, name) for name in KEY)
        found[key] = found[key] + one if key in found else one
    return list(found.values())


def together(kinds: Iterable[KindFigures], names: Sequence[str]) -> list[KindFigures]:
    """The kinds with no more than these of their fields told apart; the others are None."""
    others = dict.fromkeys(name for name in KEY if name not in names)
    return added(replace(one, **others) for one in kinds)  # type: ignore[arg-type]
