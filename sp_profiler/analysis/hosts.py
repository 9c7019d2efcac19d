"""Differences of end times between clocks, and what they tell of how far one clock is ahead of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sp_profiler.trace.tables import Bool, Int64

if TYPE_CHECKING:
    from sp_profiler.analysis.matching import Ends

SAME_CLOCK_NS = 50_000
"""Ranks that nobody names a host of share a clock when their ends agree better than this."""


@dataclass(frozen=True)
class Differences:
    """end(place) - end(other) for ends of instances that end together; a row each, int64."""

    place: Int64
    other: Int64
    ns: Int64


@dataclass(frozen=True)
class Link:
    """Place `place` against `other`: the median difference of ends, its spread and its samples.

    `spread_ns` is 1.4826 times the median absolute deviation: the standard deviation where the noise is
    normal, undisturbed by single collectives that end apart.
    """

    place: int
    other: int
    offset_ns: int
    spread_ns: int
    samples: int


def differences(instance: Int64, usable: Bool, place: Int64, member: Int64, end_ns: Int64) -> Differences:
    """Each end against the first of its instance (in order of member), and against the first of its place.

    The first serves as the hub of the instance: as many differences as ends, where pairs would be squares.
    `usable` chooses the ends. A place is a host, or a member where hosts are not known yet.
    """
    rows = np.flatnonzero(usable & (instance >= 0))
    rows = rows[np.lexsort((member[rows], instance[rows]))]
    hub = _first_of(instance[rows])
    between = place[rows] != place[rows][hub]
    by_place = rows[np.lexsort((member[rows], place[rows], instance[rows]))]
    hub_of_place = _first_of(instance[by_place], place[by_place])
    inside = hub_of_place != np.arange(len(by_place))
    one = np.r_[rows[between], by_place[inside]]
    other = np.r_[rows[hub][between], by_place[hub_of_place][inside]]
    return Differences(place[one], place[other], end_ns[one] - end_ns[other])


def _first_of(*columns: Int64) -> Int64:
    """For each row the first row of its run of equal values."""
    count = len(columns[0])
    is_new = np.zeros(count, np.bool_)
    is_new[:1] = True
    for column in columns:
        is_new[1:] |= np.diff(column) != 0
    return np.maximum.accumulate(np.where(is_new, np.arange(count), 0))


def links(found: Differences) -> list[Link]:
    """One link for each pair of places that share instances (a place with itself: its inner spread)."""
    if not len(found.ns):
        return []
    order = np.lexsort((found.ns, found.other, found.place))
    place, other, ns = found.place[order], found.other[order], found.ns[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(place) != 0) | (np.diff(other) != 0)])
    stops = np.r_[starts[1:], len(ns)]
    return [
        Link(int(place[a]), int(other[a]), middle(ns[a:b]), spread(ns[a:b]), int(b - a))
        for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
    ]


def left_of(found: Differences, moved: Sequence[int]) -> Int64:
    """How far ends disagree once `moved`, by place, is subtracted; int64, a row for each difference."""
    shift = np.array(moved, np.int64)
    return np.abs(found.ns - (shift[found.place] - shift[found.other])) if len(found.ns) else found.ns


def middle(ns: Int64) -> int:
    """The median as an integer, without passing through a float: clocks may be years apart."""
    ordered = np.sort(ns)
    low, high = int(ordered[(len(ordered) - 1) // 2]), int(ordered[len(ordered) // 2])
    return low + (high - low) // 2


def spread(ns: Int64) -> int:
    return round(1.4826 * middle(np.abs(ns - middle(ns))))


class Potentials:
    """How far members' clocks are apart, as far as it is known: a forest with an offset on each edge.

    It serves matching alone; what a report says of clocks is solved anew over all instances (`clocks.py`).
    """

    def __init__(self, hosts: Sequence[str | None]) -> None:
        self._parent = list(range(len(hosts)))
        self._ahead = [0] * len(hosts)  # of the parent's clock
        first: dict[str, int] = {}
        for member, host in enumerate(hosts):
            if host is not None:
                self.join(member, first.setdefault(host, member), 0)

    @staticmethod
    def of(component: Sequence[int], ahead: Sequence[int]) -> Potentials:
        """From what `state` gave, or a part of its rows."""
        made = Potentials([None] * len(component))
        first: dict[int, int] = {}
        for member, one in enumerate(component):
            base = first.setdefault(one, member)
            if base != member:
                made.join(member, base, ahead[member] - ahead[base])
        return made

    def state(self) -> tuple[list[int], list[int]]:
        """By member: which members it is connected with (equal numbers), and how far its clock is ahead of
        what these have in common."""
        found = [self._root(member) for member in range(len(self._parent))]
        return [root for root, _ in found], [ahead for _, ahead in found]

    def _root(self, member: int) -> tuple[int, int]:
        path: list[int] = []
        at = member
        while self._parent[at] != at:
            path.append(at)
            at = self._parent[at]
        ahead = 0
        for one in reversed(path):  # straight to the root from now on
            ahead += self._ahead[one]
            self._parent[one], self._ahead[one] = at, ahead
        return at, ahead

    def between(self, member: int, other: int) -> int | None:
        """How far the clock of `member` is ahead of `other`'s, None when nothing connects them."""
        (root, ahead), (root_of_other, ahead_of_other) = self._root(member), self._root(other)
        return ahead - ahead_of_other if root == root_of_other else None

    def join(self, member: int, other: int, ahead_ns: int) -> None:
        """Enter that `member` is ahead of `other`, unless that is known already."""
        (root, ahead), (root_of_other, ahead_of_other) = self._root(member), self._root(other)
        if root != root_of_other:
            self._parent[root] = root_of_other
            self._ahead[root] = ahead_ns + ahead_of_other - ahead

    def learn_from(self, instance: Int64, ends: Ends) -> None:
        usable = ends.together & ends.is_measured
        self.learn(links(differences(instance, usable, ends.member, ends.member, ends.end_ns)))

    def learn(self, found: Sequence[Link]) -> None:
        """Enter the links between members, the surest first."""
        for link in sorted(found, key=lambda one: (-one.samples, one.spread_ns)):
            if link.place != link.other:
                self.join(link.place, link.other, link.offset_ns)
