"""Collectives by kind: what the rules of findings and the sentences ask of all of them, in a bounded table.

A run of thousands of ranks has more collectives than one process can hold. What is asked of them are numbers
(how many, how long, how much of it exposed for which cause), who takes part, and a few examples. Collectives
that are alike in everything that is asked are one kind: their number, sums, their number by rank, and the
collectives that may become an example. Kinds of several ranks are merged by adding, in any order. Of a run
that is in memory every row may become an example, so the same rules give the same findings either way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sp_profiler.analysis.collective_table import Collectives, kinds_of
from sp_profiler.analysis.columns import Column, Numbers, Parts
from sp_profiler.analysis.intervals import sum_by
from sp_profiler.analysis.rank_runs import RankRun, added_runs, runs_of
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.trace.tables import NONE, Bool, Int64

EXAMPLES = 5
"""Collectives that a finding names."""


@dataclass(frozen=True)
class Kind:
    """What collectives of one kind have in common: everything that rules look at."""

    op: str | None
    group: str | None
    is_alone: bool  # of a group of one rank, which moves nothing
    purpose: str
    is_async: bool | None
    is_inside: bool  # some of it lies inside the chosen windows
    causes: tuple[str, ...]  # those with a part of its exposed time
    partner: str | None  # what its partner is: wgrad, dgrad, ...; None without one
    rule: str | None  # of the evidence for its cause, as the next three
    queued_behind: str | None
    is_after_partner: bool  # its partner had been launched, and had ended, before it began
    is_late_by_host: bool  # the host launched its partner only after it had begun
    has_gain: bool  # more of it could be hidden than is
    kernel: str | None


@dataclass(frozen=True)
class KindSums:
    """Exact sums over the collectives of a kind; what one of them does not know adds nothing."""

    collectives: int
    dur_ns: int
    hideable_ns: int
    hidden_ns: int
    partner_ns: int  # the partners' durations
    compared_ns: int  # the durations of those whose skew_wait is known
    exposed_by_cause_ns: tuple[int, ...]  # by `Kind.causes`

    def __add__(self, other: KindSums) -> KindSums:
        mine, theirs = (
            [getattr(one, field.name) for field in fields(KindSums)[:-1]] for one in (self, other)
        )
        causes = zip(self.exposed_by_cause_ns, other.exposed_by_cause_ns, strict=True)
        return KindSums(
            *(one + two for one, two in zip(mine, theirs, strict=True)),
            exposed_by_cause_ns=tuple(one + two for one, two in causes),
        )


@dataclass(frozen=True)
class KindEntry:
    """A kind with its sums and who has how many of it; `ranks` is None where they were too many to keep."""

    kind: Kind
    sums: KindSums
    ranks: tuple[RankRun, ...] | None


@dataclass(frozen=True, eq=False)
class CollectiveKinds:
    """Some collectives by kind. `len` is their number.

    `rows` are those that may become examples, of which each belongs to the entry whose number is its
    `entry_of_row`; `numbers` are those of `entries`. A choice of entries shares the rows.
    """

    entries: tuple[KindEntry, ...]
    numbers: Int64
    rows: Collectives
    entry_of_row: Int64

    @staticmethod
    def of(collectives: Iterable[CollectiveFigures] | CollectiveKinds) -> CollectiveKinds:
        """The kinds of these collectives, in the order in which they first appear; itself when they are."""
        if isinstance(collectives, CollectiveKinds):
            return collectives
        table = Collectives.of(collectives)
        codes, value_of = _key(table)
        first, kind = kinds_of(codes, len(table))
        kinds = [Kind(**{name: get(row) for name, get in value_of.items()}) for row in first.tolist()]
        entries = _entries(table, kinds, kind)
        return CollectiveKinds(tuple(entries), np.arange(len(entries)), table, kind)

    @staticmethod
    def merged(several: Sequence[CollectiveKinds]) -> CollectiveKinds:
        """All collectives of these, each of which is of other ranks (or of one nobody knows)."""
        sums: dict[Kind, KindSums] = {}
        ranks: dict[Kind, list[tuple[RankRun, ...] | None]] = {}
        for one in several:
            for entry in one.entries:
                old = sums.get(entry.kind)
                sums[entry.kind] = entry.sums if old is None else old + entry.sums
                ranks.setdefault(entry.kind, []).append(entry.ranks)
        entries = [KindEntry(kind, sums[kind], added_runs(ranks[kind])) for kind in sums]
        place = {kind: number for number, kind in enumerate(sums)}
        at: list[Int64] = []
        for one in several:
            new = np.full(int(one.numbers.max(initial=-1)) + 2, NONE, np.int64)
            new[one.numbers] = [place[entry.kind] for entry in one.entries]
            at.append(new[np.minimum(one.entry_of_row, len(new) - 1)])
        rows = Collectives.joined(one.rows for one in several)
        entry_of_row = np.concatenate(at) if at else np.zeros(0, np.int64)
        return CollectiveKinds(tuple(entries), np.arange(len(entries)), rows, entry_of_row)

    def __len__(self) -> int:
        return sum(entry.sums.collectives for entry in self.entries)

    def where(self, predicate: Callable[[Kind], bool]) -> CollectiveKinds:
        """The collectives of the kinds for which it is true."""
        kept = [place for place, entry in enumerate(self.entries) if predicate(entry.kind)]
        if len(kept) == len(self.entries):
            return self
        entries = tuple(self.entries[place] for place in kept)
        return replace(self, entries=entries, numbers=self.numbers[kept])

    def total(self, name: str) -> int:
        """A field of `KindSums`, summed."""
        return sum(getattr(entry.sums, name) for entry in self.entries)

    def of_cause(self, cause: str) -> int:
        """What a cause has of the exposed time."""
        return sum(
            ns
            for entry in self.entries
            for name, ns in zip(entry.kind.causes, entry.sums.exposed_by_cause_ns, strict=True)
            if name == cause
        )

    def distinct(self, name: str) -> list[Any]:
        """The values of a field of `Kind`, without None, in the order in which they first appear."""
        values = dict.fromkeys(getattr(entry.kind, name) for entry in self.entries)
        return [value for value in values if value is not None]

    def count(self, predicate: Callable[[Kind], bool]) -> int:
        """How many collectives are of kinds for which it is true."""
        return sum(entry.sums.collectives for entry in self.entries if predicate(entry.kind))

    def by_rank(self) -> dict[int | None, int] | None:
        """How many collectives each rank has, one nobody knows among them; None where that was not kept."""
        found: Counter[int | None] = Counter()
        for entry in self.entries:
            if entry.ranks is None:
                return None
            for first, last, number in entry.ranks:
                if first < 0:
                    found[None] += number
                else:
                    for rank in range(first, last + 1):
                        found[rank] += number
        return dict(found)

    def largest(self, amount: Callable[[Collectives], Int64]) -> list[tuple[int, CollectiveFigures]]:
        """The `EXAMPLES` collectives of which `amount` makes most, largest first, equal ones by id."""
        places = np.flatnonzero(np.isin(self.entry_of_row, self.numbers))
        table = self.rows.take(places)
        ns = amount(table)
        chosen = np.lexsort((table.numbers("id").values, -ns))[:EXAMPLES]
        return list(zip(ns[chosen].tolist(), table.take(chosen), strict=True))

    def changed(self, change: Callable[[Kind], Kind]) -> CollectiveKinds:
        """The same collectives with other kinds (not their `causes`): those that become equal are one."""
        kinds = [change(entry.kind) for entry in self.entries]
        if all(new == entry.kind for new, entry in zip(kinds, self.entries, strict=True)):
            return self
        entries = tuple(replace(entry, kind=new) for new, entry in zip(kinds, self.entries, strict=True))
        return CollectiveKinds.merged([replace(self, entries=entries)])

    def without_ranks(self) -> CollectiveKinds:
        """The same without knowing whose they are."""
        return replace(self, entries=tuple(replace(entry, ranks=None) for entry in self.entries))

    def with_examples_only(self) -> CollectiveKinds:
        """The same with only the rows that some rule may name: `EXAMPLES` of each cause, and of the longest.

        Rules choose by fields of `Kind`; what they tell apart of a cause's collectives is `_told_apart`, of
        synchronous ones `_told_apart_gain`. So the largest of any choice are among those of its parts.
        """
        kept: set[int] = set()
        by_entry = {int(n): e.kind for n, e in zip(self.numbers, self.entries, strict=True)}
        places: dict[tuple[Any, ...], list[int]] = {}
        for row, number in enumerate(self.entry_of_row.tolist()):
            kind = by_entry.get(number)
            if kind is None or not kind.is_inside or kind.is_alone:
                continue
            for cause in kind.causes:
                places.setdefault((cause, *_told_apart(kind)), []).append(row)
            if kind.has_gain:
                places.setdefault(("", *_told_apart_gain(kind)), []).append(row)
        numbers = self.rows.numbers("id").values
        amount = {cause: self.rows.exposed_by_cause(cause) for cause, *_ in places if cause}
        amount[""] = self.rows.numbers("dur_ns").values
        for (cause, *_), rows in places.items():
            at = np.array(rows, np.int64)
            best = np.lexsort((numbers[at], -amount[cause][at]))[:EXAMPLES]
            kept.update(at[best].tolist())
        chosen = np.array(sorted(kept), np.int64)
        return replace(self, rows=self.rows.take(chosen), entry_of_row=self.entry_of_row[chosen])


def _told_apart(kind: Kind) -> tuple[Any, ...]:
    return kind.purpose, kind.partner is None, kind.is_after_partner


def _told_apart_gain(kind: Kind) -> tuple[Any, ...]:
    return kind.purpose, kind.is_async, kind.rule


# --- the key -------------------------------------------------------------------------------------------


def _key(table: Collectives) -> tuple[list[Int64], dict[str, Callable[[int], Any]]]:
    """Of each field of `Kind` codes, equal where its values are, and its value in a row."""
    partner, told = table.records("partner"), table.records("cause_evidence")
    what = Collectives({"op": partner.field("what")}, len(table))
    masks = {
        "is_alone": table.words("ranks").where(lambda ranks: len(ranks or ()) == 1),
        "is_inside": _amount(table, "overlapped_ns") | _amount(table, "exposed_ns"),
        "is_after_partner": _after_partner(table),
        "is_late_by_host": _late_by_host(table),
        "has_gain": table.numbers("hideable_ns").or_zero() > table.numbers("hidden_ns").or_zero(),
    }
    names, parts = _causes(table)
    bits = (parts != 0) @ (1 << np.arange(len(names), dtype=np.int64))
    codes = {
        **{name: table.codes(name) for name in ("op", "group", "purpose", "is_async", "kernel")},
        **{name: mask.astype(np.int64) for name, mask in masks.items()},
        "causes": bits,
        "partner": np.where(partner.is_known, what.codes("op"), NONE),
    }
    value_of: dict[str, Callable[[int], Any]] = {
        **{name: _reader(table.column(name)) for name in ("op", "group", "purpose", "is_async", "kernel")},
        **{name: lambda row, mask=mask: bool(mask[row]) for name, mask in masks.items()},
        "causes": lambda row: tuple(n for n, ns in zip(names, parts[row].tolist(), strict=True) if ns),
        "partner": _reader(partner.field("what"), partner.is_known, str),
    }
    for name in ("rule", "queued_behind"):
        column = told.field(name)
        words = Collectives({"op": column}, len(table)).codes("op")
        codes[name] = np.where(told.is_known, words, NONE)
        value_of[name] = _reader(column, told.is_known)
    return list(codes.values()), value_of


def _amount(table: Collectives, name: str) -> Bool:
    return table.numbers(name).or_zero() != 0


def _reader(
    column: Column[Any], known: Bool | None = None, kind: Callable[[Any], Any] | None = None
) -> Callable[[int], Any]:
    def value(row: int) -> Any:
        if known is not None and not known[row]:
            return None
        (found,) = column.take(slice(row, row + 1)).tolist()
        return found if kind is None else kind(found)

    return value


def _causes(table: Collectives) -> tuple[list[str], Int64]:
    """The causes that have a part in any, and the part of each: shape (rows, causes)."""
    column = table.column("exposed_by_cause_ns")
    if isinstance(column, Parts):
        names = sorted(column.names)
    else:
        names = sorted({name for parts in column.tolist() for name in parts or ()})
    amounts = [table.exposed_by_cause(name) for name in names]
    return names, np.stack(amounts, axis=1) if amounts else np.zeros((len(table), 0), np.int64)


def _after_partner(table: Collectives) -> Bool:
    """Of which the partner had been launched, and had ended, before they began."""
    told, mine = table.records("cause_evidence"), table.numbers("launch_ns")
    ended, launched = told.field("partner_end_ns"), told.field("partner_launch_ns")
    assert isinstance(ended, Numbers)
    assert isinstance(launched, Numbers)
    known = told.is_known & ended.is_known & launched.is_known & mine.is_known
    before = (ended.values <= table.numbers("start_ns").values) & (launched.values < mine.values)
    return known & before


def _late_by_host(table: Collectives) -> Bool:
    told = table.records("cause_evidence")
    launch = told.field("partner_launch_ns")
    assert isinstance(launch, Numbers)
    return told.is_known & (launch.or_zero() > table.numbers("start_ns").values)


# --- sums ----------------------------------------------------------------------------------------------


def _entries(table: Collectives, kinds: Sequence[Kind], kind: Int64) -> list[KindEntry]:
    count = len(kinds)
    partner, dur = table.records("partner"), table.column("dur_ns")
    lasts = partner.field("dur_ns")
    compared = np.flatnonzero(table.numbers("skew_wait_ns").is_known)
    with_partner = np.flatnonzero(partner.is_known)
    sums = {
        "collectives": np.bincount(kind, minlength=count).tolist(),
        "dur_ns": sums_by(dur, kind, count),
        "hideable_ns": sums_by(table.column("hideable_ns"), kind, count),
        "hidden_ns": sums_by(table.column("hidden_ns"), kind, count),
        "partner_ns": sums_by(lasts.take(with_partner), kind[with_partner], count),
        "compared_ns": sums_by(dur.take(compared), kind[compared], count),
    }
    names, parts = _causes(table)
    by_cause = {name: sums_by(Numbers(parts[:, place]), kind, count) for place, name in enumerate(names)}
    ranks = runs_of(kind, table.numbers("rank"), count)
    return [
        KindEntry(
            one,
            KindSums(
                **{name: column[number] for name, column in sums.items()},
                exposed_by_cause_ns=tuple(by_cause[name][number] for name in one.causes),
            ),
            ranks[number],
        )
        for number, one in enumerate(kinds)
    ]


def sums_by(column: Column[Any], key: Int64, count: int) -> list[int]:
    """Exact sums of the known numbers of a column by `key` in `range(count)`, whatever their size."""
    if isinstance(column, Numbers):
        values = column.or_zero()
        largest = max(abs(int(values.max())), abs(int(values.min()))) if len(values) else 0
        if largest * len(values) < 2**63:
            return sum_by(key, values, count).tolist()
    sums = [0] * count
    for place, value in zip(key.tolist(), column.tolist(), strict=True):
        sums[place] += value or 0
    return sums
