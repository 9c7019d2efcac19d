"""Sends of two ranks to each other, matched without a sequence number: in order, and running together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sp_profiler.analysis.line import Line
from sp_profiler.analysis.pairs import in_order, meet
from sp_profiler.trace.tables import NONE


def lines(count: int, seed: int, linger: int = 900, sizes: int = 1) -> tuple[Line, Line]:
    """Two ranks' kernels of the same messages. Each kernel may wait for another neighbour before or after."""
    draw = random.Random(seed)
    free = [0, 0]
    times: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    tokens = [draw.randrange(sizes) for _ in range(count)]
    for _ in range(count):
        starts = [at + draw.randrange(300) for at in free]
        over = max(starts) + 100
        for side in (0, 1):
            end = over + draw.randrange(linger)
            times[side].append((starts[side], end))
            free[side] = end
    made = [
        Line(
            np.array([start for start, _ in side], np.int64),
            np.array([end for _, end in side], np.int64),
            np.zeros(count, np.int64),
            np.array(tokens, np.int64),
            np.zeros(count, np.bool_),
        )
        for side in times
    ]
    return made[0], made[1]


@pytest.mark.parametrize("seed", range(20))
def test_the_same_messages_on_both_sides(seed: int) -> None:
    one, two = lines(30, seed)
    assert in_order(one, two).tolist() == list(range(30))
    assert meet(one, two) == (30, 30)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("first", "last"), [(3, 30), (0, 27), (1, 30), (5, 28)])
def test_windows_that_differ(seed: int, first: int, last: int) -> None:
    """One window begins later or ends earlier: of equal messages the times tell by how many."""
    one, two = lines(30, seed)
    kept = np.arange(first, last)
    assert in_order(one, two.take(kept)).tolist() == kept.tolist()
    assert in_order(one.take(kept), two).tolist() == [
        row - first if first <= row < last else NONE for row in range(30)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_message_lost_in_between(seed: int) -> None:
    """Sizes differ, as of K, V and their gradients: what does not fit is left alone."""
    one, two = lines(24, seed, linger=50, sizes=3)
    lost = 11
    kept = np.delete(np.arange(24), lost)
    found = in_order(one, two.take(kept))
    assert (found == kept).mean() > 0.9
    assert all(one.token[at] == two.token[row] for row, at in zip(kept, found, strict=True) if at >= 0)


def test_nothing_to_match() -> None:
    one, two = lines(3, 0)
    nobody = one.take(np.empty(0, np.int64))
    assert in_order(nobody, two).tolist() == [NONE] * 3
    assert in_order(one, nobody).tolist() == []
    assert meet(one, nobody) == (0, 0)
