"""Collectives that nobody waited for yet: the first that a wait can be for, without asking every one."""

from __future__ import annotations

import math
from collections.abc import Sequence

_WHATEVER = 2**63 - 1  # no end in a trace is later


class Unwaited:
    """Collectives in order of launch. They arrive one by one, and any that arrived can be taken.

    `first` and `take` need O(log n) steps: a binary tree holds the earliest end of what is there below each
    of its nodes (node k is above 2k and 2k + 1), so that the way down leads to the first end that fits. Most
    collectives of a trace may never be taken; a walk over them for every wait would be quadratic.
    """

    def __init__(self, ends: Sequence[int]) -> None:
        self._ends = ends
        self._arrived = 0
        self._width = 1 << max(len(ends) - 1, 0).bit_length()
        self._earliest: list[float] = [math.inf] * (2 * self._width)

    def arrive(self) -> None:
        """The next one was launched."""
        self._set(self._arrived, self._ends[self._arrived])
        self._arrived += 1

    def first(self, latest: int | None) -> int | None:
        """Place of the first one there that ended at `latest` or before (None: at whatever time)."""
        latest = _WHATEVER if latest is None else latest
        if self._earliest[1] > latest:
            return None
        node = 1
        while node < self._width:
            node = 2 * node if self._earliest[2 * node] <= latest else 2 * node + 1
        return node - self._width

    def take(self, place: int) -> None:
        """Somebody waited for this one."""
        self._set(place, math.inf)

    def _set(self, place: int, end: float) -> None:
        node = place + self._width
        self._earliest[node] = end
        while node > 1:
            node //= 2
            earliest = min(self._earliest[2 * node], self._earliest[2 * node + 1])
            if self._earliest[node] == earliest:
                return
            self._earliest[node] = earliest
