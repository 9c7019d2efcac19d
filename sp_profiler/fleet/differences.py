"""Differences of end times on disk, and exact medians of them in bounded memory.

A unit writes its differences in runs of equal (place, other), grouped into partitions by place. A task reads
one partition of all units, so what it needs of a pair of places is all there: its median is that of all
collectives of the run. A partition that is too large for memory is gone through pair by pair, and a pair that
is too large counted in passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.hosts import Differences, Link, left_of, links, middle
from sp_profiler.fleet.work import Work, replace_whole
from sp_profiler.trace.tables import Int64

Chunks = Callable[[], Iterable[Int64]]
"""Gives the parts of one long column, anew whenever it is called."""


@dataclass(frozen=True)
class Stored:
    """Where differences lie: tables below `folder`, one for each of `units`, in so many partitions."""

    folder: str
    units: tuple[str, ...]
    partitions: int


def save_differences(work: Work, name: str, found: Differences, partitions: int) -> None:
    """Write the differences of a unit: the column `<name>.npy`, and where its runs lie. Raises OSError."""
    order = np.lexsort((found.other, found.place, found.place % partitions))
    place, other = found.place[order], found.other[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(place) != 0) | (np.diff(other) != 0)][: len(place)])
    stops = np.r_[starts[1:], len(place)][: len(starts)]
    runs = {"place": place[starts], "other": other[starts], "start": starts, "stop": stops}
    replace_whole(work.path(f"{name}.npy"), lambda file: np.save(file, found.ns[order]))
    work.save(name, runs)


@dataclass(frozen=True)
class _Runs:
    """The runs of one partition, of all units; int64 columns."""

    work: Work
    stored: Stored
    unit: Int64
    place: Int64
    other: Int64
    start: Int64
    stop: Int64

    @staticmethod
    def of(work: Work, stored: Stored, partition: int) -> _Runs:
        columns: dict[str, list[Int64]] = {name: [] for name in ("unit", "place", "other", "start", "stop")}
        for code, unit in enumerate(stored.units):
            with work.open(f"{stored.folder}/{unit}") as table:
                place = table["place"]
                mine = np.flatnonzero(place % stored.partitions == partition)
                if len(mine):
                    columns["unit"].append(np.full(len(mine), code, np.int64))
                    for name in ("place", "other", "start", "stop"):
                        columns[name].append(table[name][mine])
        whole = {name: np.concatenate([np.zeros(0, np.int64), *parts]) for name, parts in columns.items()}
        return _Runs(work, stored, **whole)

    @property
    def size(self) -> Int64:
        return self.stop - self.start

    def take(self, rows: Int64) -> _Runs:
        return _Runs(
            self.work,
            self.stored,
            *(column[rows] for column in (self.unit, self.place, self.other, self.start, self.stop)),
        )

    def read(self) -> Iterator[tuple[Int64, Int64]]:
        """The differences of each unit, with which run each belongs to."""
        for code in np.unique(self.unit).tolist():
            rows = np.flatnonzero(self.unit == code)
            unit = self.stored.units[code]
            column = np.load(self.work.path(f"{self.stored.folder}/{unit}.npy"), mmap_mode="r")
            yield (
                np.repeat(rows, self.size[rows]),
                np.concatenate([column[self.start[row] : self.stop[row]] for row in rows.tolist()]),
            )

    def differences(self) -> Differences:
        """All of them, in memory."""
        parts = [*self.read()]
        run = np.concatenate([np.zeros(0, np.int64), *(run for run, _ in parts)])
        ns = np.concatenate([np.zeros(0, np.int64), *(ns for _, ns in parts)])
        return Differences(self.place[run], self.other[run], ns)

    def pieces(self, key: Int64, most: int) -> Iterator[_Runs]:
        """The runs cut between different keys, each piece of at most so many differences unless one key has
        more."""
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.r_[True, np.diff(key[order]) != 0][: len(order)])
        sizes = np.add.reduceat(self.size[order], first) if len(first) else first
        begin = taken = 0
        stops = np.r_[first[1:], len(order)]
        for k, size in enumerate(sizes.tolist()):
            if taken and taken + size > most:
                yield self.take(order[begin : first[k]])
                begin, taken = int(first[k]), 0
            taken += size
            if k == len(sizes) - 1:
                yield self.take(order[begin : stops[k]])


def links_of(work: Work, stored: Stored, partition: int, most: int) -> list[Link]:
    """The links of one partition (`analysis.hosts.links`), ordered by (place, other)."""
    runs = _Runs.of(work, stored, partition)
    found: list[Link] = []
    pair = runs.place * (int(runs.other.max(initial=0)) + 1) + runs.other
    for piece in runs.pieces(pair, most):
        samples = int(piece.size.sum())
        if samples > most:

            def chunks(piece: _Runs = piece) -> Iterator[Int64]:
                return (ns for _, ns in piece.read())

            offset = middle_of(chunks, samples)
            away = middle_of(_moved(chunks, offset), samples)
            one = (int(piece.place[0]), int(piece.other[0]))
            found.append(Link(*one, offset, round(1.4826 * away), samples))
            continue
        found += links(piece.differences())
    return sorted(found, key=lambda link: (link.place, link.other))


def _moved(chunks: Chunks, by: int) -> Chunks:
    return lambda: (np.abs(ns - by) for ns in chunks())


def residuals_of(
    work: Work, stored: Stored, partition: int, moved: Sequence[int], most: int
) -> dict[int, int]:
    """By place of the partition the median of what ends still disagree by, once `moved` is subtracted: to
    other places, or inside where there are no others."""
    runs = _Runs.of(work, stored, partition)
    outside = np.unique(runs.place[runs.place != runs.other])
    runs = runs.take(np.flatnonzero((runs.place != runs.other) | ~np.isin(runs.place, outside)))
    found: dict[int, int] = {}
    for piece in runs.pieces(runs.place, most):
        samples = int(piece.size.sum())
        if samples > most:

            def chunks(piece: _Runs = piece) -> Iterator[Int64]:
                return (
                    left_of(Differences(piece.place[run], piece.other[run], ns), moved)
                    for run, ns in piece.read()
                )

            found[int(piece.place[0])] = middle_of(chunks, samples)
            continue
        differences = piece.differences()
        left = left_of(differences, moved)
        for place in np.unique(differences.place).tolist():
            found[place] = middle(left[differences.place == place])
    return found


def middle_of(chunks: Chunks, count: int) -> int:
    """`analysis.hosts.middle` of a column that is too long to be sorted at once."""
    low, high = nth_of(chunks, (count - 1) // 2), nth_of(chunks, count // 2)
    return low + (high - low) // 2


def nth_of(chunks: Chunks, place: int) -> int:
    """The value that would be at this place of the sorted column: found digit by digit, 16 bits in a pass."""
    sign = np.uint64(1 << 63)  # as unsigned numbers in the same order
    prefix = 0
    for shift in (48, 32, 16, 0):
        counts = np.zeros(1 << 16, np.int64)
        for ns in chunks():
            bits = ns.view(np.uint64) ^ sign
            if shift < 48:
                bits = bits[bits >> np.uint64(shift + 16) == np.uint64(prefix)]
            digits = (bits >> np.uint64(shift)) & np.uint64(0xFFFF)
            counts += np.bincount(digits.astype(np.int64), minlength=1 << 16)
        upto = np.cumsum(counts)
        digit = int(np.searchsorted(upto, place, side="right"))
        place -= int(upto[digit - 1]) if digit else 0
        prefix = prefix << 16 | digit
    return prefix - (1 << 63)
