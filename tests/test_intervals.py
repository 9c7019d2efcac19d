"""Interval algebra, drawn by hand and against brute force over integer ticks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.analysis import intervals as iv
from sp_profiler.analysis.intervals import TimeSet

TICKS = 24


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start, end = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(start, np.int64), np.array(end, np.int64)


def make(*pairs: tuple[int, int]) -> TimeSet:
    return iv.union(*columns(list(pairs)))


def pairs_of(time_set: TimeSet) -> list[tuple[int, int]]:
    return list(zip(time_set.start.tolist(), time_set.end.tolist(), strict=True))


def ticks(time_set: TimeSet) -> set[int]:
    return {tick for start, end in pairs_of(time_set) for tick in range(start, end)}


def assert_normal(time_set: TimeSet) -> None:
    assert time_set.start.dtype == time_set.end.dtype == np.int64
    assert (time_set.end > time_set.start).all()
    assert (time_set.start[1:] > time_set.end[:-1]).all(), "touching or overlapping"


interval = st.tuples(st.integers(0, TICKS), st.integers(0, 8)).map(lambda x: (x[0], min(x[0] + x[1], TICKS)))
interval_lists = st.lists(interval, max_size=9)
time_sets = interval_lists.map(lambda pairs: make(*pairs))


def test_union_merges_overlapping_and_touching_and_drops_empty() -> None:
    #  0    5    10   15   20
    #  aaaaaa    .    cccc        a [0,6) b [3,8) touch: [8,9); empty [12,12); c [14,18)
    #     bbbbbd
    assert pairs_of(make((14, 18), (3, 8), (0, 6), (8, 9), (12, 12))) == [(0, 9), (14, 18)]
    assert pairs_of(make()) == []
    assert make((4, 4)).measure == 0


def test_zero_length_event_inside_a_gap_does_not_bridge_it() -> None:
    assert pairs_of(make((0, 5), (5, 5), (6, 9))) == [(0, 5), (6, 9)]


def test_exact_at_epoch_nanoseconds() -> None:
    epoch = 1_778_655_624_745_710_731
    one = iv.union(np.array([epoch, epoch + 1]), np.array([epoch + 1, epoch + 3]))
    assert one.measure == 3
    assert one.overlap(np.array([epoch + 2]), np.array([epoch + 9])).tolist() == [1]


@given(interval_lists)
def test_union_is_the_set_of_covered_ticks(pairs: list[tuple[int, int]]) -> None:
    merged = make(*pairs)
    assert_normal(merged)
    covered = {tick for start, end in pairs for tick in range(start, end)}
    assert ticks(merged) == covered
    assert merged.measure == len(covered)


@given(time_sets, time_sets, st.integers(-2, TICKS + 2), st.integers(0, TICKS))
def test_algebra_against_ticks(a: TimeSet, b: TimeSet, low: int, width: int) -> None:
    high = low + width
    for result, expected in (
        (iv.intersect(a, b), ticks(a) & ticks(b)),
        (iv.subtract(a, b), ticks(a) - ticks(b)),
        (iv.unite(a, b), ticks(a) | ticks(b)),
        (iv.clip(a, low, high), ticks(a) & set(range(low, high))),
        (iv.complement(a, low, high), set(range(low, high)) - ticks(a)),
    ):
        assert_normal(result)
        assert ticks(result) == expected


@given(time_sets, interval_lists, st.integers(-3, TICKS + 3))
def test_overlap_and_covered_before_against_ticks(
    a: TimeSet, queries: list[tuple[int, int]], instant: int
) -> None:
    start, end = columns(queries)
    assert a.overlap(start, end).tolist() == [len(ticks(a) & set(range(s, e))) for s, e in queries]
    assert a.covered_before(np.array([instant])).tolist() == [sum(tick < instant for tick in ticks(a))]


borders = st.lists(st.integers(0, TICKS), min_size=2, max_size=6).map(sorted)


@given(interval_lists, borders, st.booleans())
def test_cut_at_windows_against_ticks(pairs: list[tuple[int, int]], edges: list[int], gaps: bool) -> None:
    window_start, window_end = np.array(edges[:-1]), np.array(edges[1:])
    if gaps:
        window_start, window_end = window_start[::2], window_end[::2]
    pieces = iv.cut_at_windows(*columns(pairs), window_start, window_end)
    columns_of_pieces = (pieces.owner, pieces.window, pieces.start, pieces.end)
    found = {
        (owner, window, tick)
        for owner, window, start, end in np.stack(columns_of_pieces, axis=1).tolist()
        for tick in range(start, end)
    }
    expected = {
        (owner, window, tick)
        for owner, (start, end) in enumerate(pairs)
        for window in range(len(window_start))
        for tick in range(start, end)
        if window_start[window] <= tick < window_end[window]
    }
    assert found == expected
    assert pieces.length.sum() == len(expected)


@given(st.lists(st.tuples(st.integers(0, 3), interval), max_size=12))
def test_union_by_key_is_the_union_of_each_key(rows: list[tuple[int, tuple[int, int]]]) -> None:
    start, end = columns([pair for _, pair in rows])
    key, merged = iv.union_by_key(np.array([k for k, _ in rows], np.int64), start, end)
    for one in range(4):
        mine = key == one
        part = iv.time_set(merged.start[mine], merged.end[mine])
        assert_normal(part)
        assert pairs_of(part) == pairs_of(make(*[pair for k, pair in rows if k == one]))


def test_union_by_key_survives_axes_too_long_for_one_pass() -> None:
    # Spans of 2**60 leave room for four keys at once in int64; nine keys need three passes.
    far = 2**60
    key = np.repeat(np.arange(9), 2)
    start = np.tile(np.array([0, far - 10]), 9)
    found, merged = iv.union_by_key(key, start, start + 5)
    assert found.tolist() == key.tolist()
    assert merged.start.tolist() == start.tolist()


def brute_shares(pairs: list[tuple[int, int]], within: TimeSet) -> list[int]:
    """The definition, stretch by stretch: floor(L/n) each, spare nanoseconds to the first ones."""
    share = [0] * len(pairs)
    stretches: list[tuple[tuple[int, ...], int]] = []
    previous: tuple[int, ...] | None = None
    for tick in range(TICKS + 1):
        inside = tick in ticks(within)
        now = tuple(i for i, (s, e) in enumerate(pairs) if s <= tick < e) if inside else ()
        if now != previous:
            stretches.append((now, 0))
        stretches[-1] = (now, stretches[-1][1] + 1)
        previous = now
    for now, length in stretches:
        for place, i in enumerate(now):
            share[i] += length // len(now) + (place < length % len(now))
    return share


@given(interval_lists, time_sets)
@settings(max_examples=300)
def test_divide_equally_is_the_definition_and_sums_exactly(
    pairs: list[tuple[int, int]], within: TimeSet
) -> None:
    share = iv.divide_equally(*columns(pairs), within)
    assert share.tolist() == brute_shares(pairs, within)
    assert share.sum() == iv.intersect(make(*pairs), within).measure


def test_divide_equally_by_hand() -> None:
    # a [0,10) b [0,10) c [0,10), all exposed: 10 = 3 + 3 + 3 and one spare nanosecond for a.
    three = columns([(0, 10)] * 3)
    assert iv.divide_equally(*three, make((0, 10))).tolist() == [4, 3, 3]
    # The same ten nanoseconds in two exposed segments of five: each gives 1 and two spare ones.
    assert iv.divide_equally(*three, make((0, 5), (6, 11))).tolist() == [4, 3, 2]
    # An empty interval in the middle is nobody, and cuts nothing.
    assert iv.divide_equally(*columns([(0, 10), (5, 5), (0, 10), (0, 10)]), make((0, 10))).tolist() == [
        4,
        0,
        3,
        3,
    ]


def test_spare_nanoseconds_do_not_depend_on_chunks(monkeypatch) -> None:
    rng = np.random.default_rng(5)
    start = np.sort(rng.integers(0, 2000, 300))
    end = start + rng.integers(1, 200, 300)
    within = make((0, 700), (900, 3000))
    at_once = iv.divide_equally(start, end, within)
    monkeypatch.setattr(iv, "_PAIRS_AT_ONCE", 37)
    assert iv.divide_equally(start, end, within).tolist() == at_once.tolist()


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 20))
def test_chunks_cover_everything_once(counts: list[int], limit: int) -> None:
    chunks = list(iv.chunks_of(np.array(counts, np.int64), limit))
    assert [i for c in chunks for i in range(c.start, c.stop)] == list(range(len(counts)))
    assert all(sum(counts[c]) <= limit or c.stop - c.start == 1 for c in chunks)


@given(interval_lists.map(sorted), time_sets)
def test_divided_stretches_sum_to_the_equal_division(pairs: list[tuple[int, int]], within: TimeSet) -> None:
    start, end = columns(pairs)
    shares = iv.divided_stretches(start, end, within)
    sums = iv.sum_by(shares.owner, shares.ns, len(pairs))
    assert sums.tolist() == iv.divide_equally(start, end, within).tolist()
    assert (within.overlap(shares.start, shares.end) == shares.end - shares.start).all()
    assert (shares.start >= start[shares.owner]).all()
    assert (shares.end <= end[shares.owner]).all()
