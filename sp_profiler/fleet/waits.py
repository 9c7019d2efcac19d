"""Who waited for whom, unit by unit, and what all units together say.

A task writes of its unit what each rank's collectives are to be filled with (`waits/<unit>`: rows in order of
places, an index beside them), and returns a `Found` of bounded size. These add up in any order, so that the
coordinator holds one of them and never all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from operator import itemgetter
from typing import Any

import numpy as np

from sp_profiler.analysis.across_notes import NoteCounts, counts_of
from sp_profiler.analysis.anomalies import NAMED, EndsApart, ends_apart, largest_apart
from sp_profiler.analysis.filled import FromOthers, from_others
from sp_profiler.analysis.joined import Joined, measured
from sp_profiler.analysis.results import Straggler, Unmatched
from sp_profiler.analysis.skew import stragglers_of
from sp_profiler.analysis.unmatched import lacking, without_trace
from sp_profiler.fleet.aligning import clocks_for
from sp_profiler.fleet.matching import matched_of
from sp_profiler.fleet.units import Run, Unit, gather
from sp_profiler.fleet.work import Work, replace_whole
from sp_profiler.trace.tables import Int64

_GROUPS_NAMED = 50  # of those whose Seq is contradicted

Place = tuple[int, ...]
"""Where an entry stands in its list; lists are merged by it."""


@dataclass(frozen=True)
class Listing:
    """The first entries of a list of collectives that ranks lack, by place. `cut`: from there on entries are
    only counted."""

    entries: tuple[tuple[Place, Unmatched], ...] = ()
    left_out: int = 0
    cut: Place | None = None

    @staticmethod
    def merged(parts: Sequence[Listing], most: int, most_ranks: int) -> Listing:
        """The entries of all, of so many at most, which name so many ranks at most."""
        entries = sorted((entry for part in parts for entry in part.entries), key=itemgetter(0))
        left_out = sum(part.left_out for part in parts)
        cut = min((part.cut for part in parts if part.cut is not None), default=None)
        named = kept = 0
        for place, one in entries:
            named += len(one.ranks_present) + len(one.ranks_missing)
            if (cut is not None and place >= cut) or kept == most or named > most_ranks:
                cut = place if cut is None else min(cut, place)
                break
            kept += 1
        return Listing(tuple(entries[:kept]), left_out + len(entries) - kept, cut)


@dataclass(frozen=True)
class NoTrace:
    """Collectives some of whose ranks have no trace: an entry for each group (or pair) and operation, with
    the number of its community."""

    entries: tuple[tuple[int, Unmatched], ...] = ()

    @staticmethod
    def merged(parts: Sequence[NoTrace]) -> NoTrace:
        found: dict[tuple[int, str, str, tuple[int, ...], tuple[int, ...]], Unmatched] = {}
        for community, one in (entry for part in parts for entry in part.entries):
            what = (one.group or "", one.op or "", tuple(one.ranks_present), tuple(one.ranks_missing))
            old = found.get((community, *what))
            if old is not None:  # of several slices: `seq` names the only one
                one = replace(old, seq=None, collectives=old.collectives + one.collectives)
            found[(community, *what)] = one
        return NoTrace(tuple((key[0], found[key]) for key in sorted(found)))

    def listing(self, most: int, most_ranks: int) -> Listing:
        entries = tuple(((k,), one) for k, (_, one) in enumerate(self.entries))
        return Listing.merged([Listing(entries)], most, most_ranks)


@dataclass(frozen=True)
class Lost:
    """What was lost to each rank: (rank, place in `groups`, ns), and (rank, collectives)."""

    groups: tuple[str, ...] = ()
    costs: tuple[tuple[int, int, int], ...] = ()
    collectives: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(stragglers: Sequence[Straggler]) -> Lost:
        groups = {
            name: code
            for code, name in enumerate(
                dict.fromkeys(name for one in stragglers for name in one.cost_by_group_ns)
            )
        }
        return Lost(
            tuple(groups),
            tuple((s.rank, groups[name], ns) for s in stragglers for name, ns in s.cost_by_group_ns.items()),
            tuple((s.rank, s.collectives) for s in stragglers),
        )

    @staticmethod
    def merged(parts: Sequence[Lost]) -> Lost:
        groups: dict[str, int] = {}
        costs: Counter[tuple[int, int]] = Counter()
        collectives: Counter[int] = Counter()
        for part in parts:
            code = [groups.setdefault(name, len(groups)) for name in part.groups]
            for rank, group, ns in part.costs:
                costs[rank, code[group]] += ns
            for rank, count in part.collectives:
                collectives[rank] += count
        rows = tuple((rank, group, ns) for (rank, group), ns in costs.items())
        return Lost(tuple(groups), rows, tuple(collectives.items()))

    def stragglers(self) -> list[Straggler]:
        """Ranks by the time the others lost to them, as `analysis.skew.stragglers_of` has them."""
        by_group: dict[int, dict[str, int]] = {}
        for rank, group, ns in self.costs:
            by_group.setdefault(rank, {})[self.groups[group]] = ns
        found = [
            Straggler(
                rank,
                sum(by_group[rank].values()),
                count,
                dict(sorted(by_group[rank].items(), key=lambda part: (-part[1], part[0]))),
            )
            for rank, count in self.collectives
        ]
        return sorted(found, key=lambda one: (-one.cost_ns, one.rank))


@dataclass(frozen=True)
class Apart:
    """Collectives whose ends disagree. `largest`: (place, ranks' places and rows) of the worst."""

    collectives: int = 0
    groups: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    largest: tuple[tuple[Place, tuple[tuple[int, int], ...]], ...] = ()

    @staticmethod
    def merged(parts: Sequence[Apart]) -> Apart:
        return Apart(
            sum(part.collectives for part in parts),
            tuple(sorted({name for part in parts for name in part.groups})),
            tuple(sorted({name for part in parts for name in part.ops})),
            tuple(sorted({rank for part in parts for rank in part.ranks})),
            tuple(sorted((one for part in parts for one in part.largest), key=itemgetter(0))[:NAMED]),
        )

    def result(self) -> EndsApart | None:
        if not self.collectives:
            return None
        return EndsApart(
            collectives=self.collectives,
            largest_ns=-self.largest[0][0][0],
            groups=list(self.groups),
            ops=list(self.ops),
            ranks=list(self.ranks),
            figures=[figure for _, figures in self.largest for figure in figures],
        )


@dataclass(frozen=True)
class Noted:
    """What the ledger counts. `inconsistent`: (place, group, collectives) of the first groups whose `Seq` is
    contradicted; of the others how many there are, and their collectives."""

    counts: NoteCounts = field(default_factory=NoteCounts)  # without `inconsistent`
    inconsistent: tuple[tuple[Place, str, int], ...] = ()
    more_groups: int = 0
    more_collectives: int = 0

    @staticmethod
    def merged(parts: Sequence[Noted]) -> Noted:
        every = sorted((one for part in parts for one in part.inconsistent), key=itemgetter(0))
        more = every[_GROUPS_NAMED:]
        counted = [name.name for name in fields(NoteCounts) if name.name != "inconsistent"]
        sums: dict[str, Any] = {name: sum(getattr(part.counts, name) for part in parts) for name in counted}
        return Noted(
            NoteCounts(**sums),
            tuple(every[:_GROUPS_NAMED]),
            sum(part.more_groups for part in parts) + len(more),
            sum(part.more_collectives for part in parts) + sum(rows for _, _, rows in more),
        )

    def all_counts(self) -> NoteCounts:
        return replace(self.counts, inconsistent=tuple((name, rows) for _, name, rows in self.inconsistent))


@dataclass(frozen=True)
class Waits:
    """What one unit, or several, say of waits."""

    waited_ns: int = 0
    tied_ns: int = 0
    is_matched: bool = False
    lost: Lost = field(default_factory=Lost)
    lacking: Listing = field(default_factory=Listing)
    no_trace: NoTrace = field(default_factory=lambda: NoTrace())
    apart: Apart = field(default_factory=Apart)
    noted: Noted = field(default_factory=Noted)
    assumed_size: int | None = None

    @staticmethod
    def merged(parts: Sequence[Waits], most: int, most_ranks: int) -> Waits:
        """Associative, and the same in any order; `most` and `most_ranks` bound what is listed."""
        sizes = [part.assumed_size for part in parts if part.assumed_size is not None]
        return Waits(
            waited_ns=sum(part.waited_ns for part in parts),
            tied_ns=sum(part.tied_ns for part in parts),
            is_matched=any(part.is_matched for part in parts),
            lost=Lost.merged([part.lost for part in parts]),
            lacking=Listing.merged([part.lacking for part in parts], most, most_ranks),
            no_trace=NoTrace.merged([part.no_trace for part in parts]),
            apart=Apart.merged([part.apart for part in parts]),
            noted=Noted.merged([part.noted for part in parts]),
            assumed_size=max(sizes, default=None),
        )


@dataclass(frozen=True)
class WaitsTask:
    """Measures one unit. `number` is its place among the units, `most` and `most_ranks` bound its lists."""

    work: Work
    unit: Unit
    state: str
    number: int
    most: int
    most_ranks: int

    @property
    def name(self) -> str:
        return f"waits/unit-{self.unit.name}"


def waits_of_unit(task: WaitsTask) -> Waits:
    """Measure a unit, and keep what the collectives of its ranks are to be filled with."""
    run = Run.load(task.work)
    rows = gather(task.work, run, task.unit)
    found = measured(
        rows.places.tolist(),
        rows.arrivals,
        frozenset(run.traced.tolist()),
        rows.member_rank,
        rows.ends,
        matched_of(task.work, task.state),
        clocks_for(task.work, rows.member),
        run.facts.world_size,
    )
    _save(task.work, f"waits/{task.unit.name}", found)
    waited = found.skew.wait_ns[found.chosen & (found.skew.wait_ns > 0)]
    labels = [key.label for key in found.ends.keys]
    late = stragglers_of(found.skew, found.chosen, found.member_rank, labels, found.key_of_row)
    community = task.unit.community
    one = Waits(
        waited_ns=int(waited.sum()),
        tied_ns=int(found.skew.tied_ns[found.chosen].sum()),
        is_matched=bool((found.chosen & (found.skew.wait_ns >= 0)).any()),
        lost=Lost.of(late),
        lacking=_lacking(found, task),
        no_trace=NoTrace(tuple((community, one) for one in without_trace(found))),
        apart=_apart(found, task.number),
        noted=_noted(found, task.number),
        assumed_size=found.assumed_size,
    )
    return Waits.merged([one], task.most, task.most_ranks)


def _lacking(found: Joined, task: WaitsTask) -> Listing:
    listed = lacking(found, task.most)
    left_out = len(found.lacking) - len(listed)
    entries = tuple(((start, task.number, k), one) for k, (start, one) in enumerate(listed))
    cut = (entries[-1][0][0], task.number, len(entries)) if left_out else None
    return Listing(entries, left_out, cut)


def _apart(found: Joined, number: int) -> Apart:
    told = ends_apart(found)
    if told is None:
        return Apart()
    largest = tuple(
        ((-span, number, k), tuple(figures)) for k, (span, figures) in enumerate(largest_apart(found))
    )
    return Apart(told.collectives, tuple(told.groups), tuple(told.ops), tuple(told.ranks), largest)


def _noted(found: Joined, number: int) -> Noted:
    counts = counts_of(found)
    inconsistent = tuple(((number, k), name, rows) for k, (name, rows) in enumerate(counts.inconsistent))
    return Noted(replace(counts, inconsistent=()), inconsistent)


# --- what collectives are filled with --------------------------------------------------------------------

_COLUMNS = ("figure", "wait_ns", "transfer_ns", "is_bound", "apart_ns")


def _save(work: Work, name: str, found: Joined) -> None:
    parts = [from_others(found, k) for k in range(len(found.arrivals))]
    columns = [np.concatenate([getattr(part, column) for part in parts]) for column in _COLUMNS]
    starts = np.cumsum([0, *(len(part.figure) for part in parts)]).astype(np.int64)
    rows = np.ascontiguousarray(np.stack(columns, axis=1))  # row by row: a rank reads one stretch of the file
    replace_whole(work.path(f"{name}.npy"), lambda file: np.save(file, rows))
    work.save(name, {"place": np.array(found.taking, np.int64), "start": starts})


def others_of(work: Work, names: Sequence[str], place: int) -> FromOthers:
    """What these units tell of the collectives of the rank at `place`. Raises one of `work.BROKEN`."""
    parts: list[Int64] = [np.zeros((0, len(_COLUMNS)), np.int64)]
    for name in names:
        with work.open(f"waits/{name}") as table:
            at, start = np.flatnonzero(table["place"] == place), table["start"]
        for k in at.tolist():
            rows = np.load(work.path(f"waits/{name}.npy"), mmap_mode="r")
            parts.append(np.array(rows[start[k] : start[k + 1]]))
    return FromOthers(*np.concatenate(parts).T)
