"""What stages across ranks return adds up in any order, and medians of what lies on disk are exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.analysis.across_notes import NoteCounts
from sp_profiler.analysis.hosts import Differences, left_of, links, middle
from sp_profiler.analysis.results import Straggler, Unmatched
from sp_profiler.fleet.differences import (
    Stored,
    links_of,
    middle_of,
    nth_of,
    residuals_of,
    save_differences,
)
from sp_profiler.fleet.filled import OpSums, RankAcross
from sp_profiler.fleet.waits import Apart, Listing, Lost, Noted, NoTrace, Waits
from sp_profiler.fleet.work import Work, from_text, to_text

EXTREME = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(st.lists(st.lists(EXTREME, max_size=6), max_size=5).filter(lambda parts: any(parts)))
def test_the_nth_of_many_parts(parts: list[list[int]]) -> None:
    whole = sorted(value for part in parts for value in part)
    chunks = [np.array(part, np.int64) for part in parts]
    assert [nth_of(lambda: chunks, k) for k in range(len(whole))] == whole
    near = [np.array(part, np.int64) // 4 for part in parts]  # whose differences are int64 again
    assert middle_of(lambda: near, len(whole)) == middle(np.concatenate(near))


ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(-(10**10), 10**10)), max_size=20)


@settings(deadline=None, max_examples=30)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(1, 3), st.sampled_from([1, 3, 100]))
def test_links_and_residuals_from_disk(
    tmp_path_factory: pytest.TempPathFactory,
    units: list[list[tuple[int, int, int]]],
    partitions: int,
    most: int,
) -> None:
    work = Work(str(tmp_path_factory.mktemp("work")))
    for k, rows in enumerate(units):
        save_differences(work, f"ends/{k}", _differences(rows), partitions)
    stored = Stored("ends", tuple(str(k) for k in range(len(units))), partitions)
    whole = _differences([row for rows in units for row in rows])
    found = [link for k in range(partitions) for link in links_of(work, stored, k, most)]
    assert sorted(found, key=lambda link: (link.place, link.other)) == links(whole)
    moved = [0, 5, -3, 10**9, 7]
    left = left_of(whole, moved)
    expected = {}
    for place in np.unique(whole.place).tolist():
        outside = (whole.place == place) & (whole.other != place)
        expected[place] = middle(left[outside if outside.any() else whole.place == place])
    residuals: dict[int, int] = {}
    for k in range(partitions):
        residuals |= residuals_of(work, stored, k, moved, most)
    assert residuals == expected


def _differences(rows: list[tuple[int, int, int]]) -> Differences:
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    return Differences(*(np.ascontiguousarray(column) for column in columns))


NAMES = st.sampled_from(["tp[0,1]", "dp[0,2]", "unknown"])
RANKS = st.lists(st.integers(0, 9), max_size=3, unique=True).map(sorted)
SMALL = st.integers(0, 9)


@st.composite
def several_waits(draw: st.DrawFn) -> list[Waits]:
    """Of different units: no two have an entry at one place."""
    return [draw(_waits(number)) for number in range(draw(st.integers(3, 5)))]


@st.composite
def _waits(draw: st.DrawFn, number: int) -> Waits:
    lacking = sorted(
        ((start, number, k), Unmatched("tp[0,1]", "all_reduce", None, present, [9]))
        for k, (start, present) in enumerate(draw(st.lists(st.tuples(SMALL, RANKS), max_size=4)))
    )
    no_trace = draw(st.lists(st.tuples(st.integers(0, 1), NAMES, RANKS, st.integers(1, 3)), max_size=3))
    late = draw(st.dictionaries(SMALL, st.dictionaries(NAMES, st.integers(1, 99), min_size=1), max_size=3))
    spans = draw(st.lists(st.integers(1, 99), max_size=7))
    wrong = draw(st.lists(st.tuples(NAMES, st.integers(1, 9)), max_size=40))
    one = Waits(
        waited_ns=draw(SMALL),
        tied_ns=draw(SMALL),
        is_matched=draw(st.booleans()),
        lost=Lost.of([Straggler(rank, sum(by.values()), 3, by) for rank, by in late.items()]),
        lacking=Listing(tuple(lacking)),
        no_trace=NoTrace(
            tuple((c, Unmatched(g, "x", None, r, [9], "no-trace", n)) for c, g, r, n in no_trace)
        ),
        apart=Apart(
            len(spans), ("tp[0,1]",), (), tuple(draw(RANKS)),
            tuple(((-span, number, k), ((number, k),)) for k, span in enumerate(spans)),
        ),
        noted=Noted(
            NoteCounts(ordered=draw(SMALL), apart=len(spans)),
            tuple(((number, k), name, rows) for k, (name, rows) in enumerate(wrong)),
        ),
        assumed_size=draw(st.none() | SMALL),
    )  # fmt: skip
    return Waits.merged([one], *LIMITS)


LIMITS = (5, 14)


@settings(deadline=None, max_examples=40)
@given(several_waits(), st.randoms())
def test_waits_add_up_in_any_order(parts: list[Waits], random: object) -> None:
    whole = Waits.merged(parts, *LIMITS)
    left = parts[0]
    for part in parts[1:]:
        left = Waits.merged([left, part], *LIMITS)
    right = parts[-1]
    for part in reversed(parts[:-1]):
        right = Waits.merged([part, right], *LIMITS)
    shuffled = list(parts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for other in (left, right, Waits.merged(shuffled, *LIMITS), Waits.merged([Waits(), whole], *LIMITS)):
        assert _plain(other) == _plain(whole)
    assert from_text(to_text(whole), Waits) == whole  # as a mark keeps it


def _plain(waits: Waits) -> tuple[object, ...]:
    """All of it; of what was lost to ranks the result, for it is kept in the order of arrival."""
    return (
        waits.waited_ns, waits.tied_ns, waits.is_matched, waits.lost.stragglers(), waits.lacking,
        waits.no_trace, waits.apart, waits.noted, waits.assumed_size,
    )  # fmt: skip


def test_a_listing_that_is_cut_stays_cut() -> None:
    """An entry that was left out is not overtaken by one that comes after it."""
    heavy = Unmatched("g", "x", None, list(range(9)), [])
    light = Unmatched("g", "x", None, [1], [])
    one = Listing.merged([Listing((((1,), light), ((2,), heavy)))], 9, 5)
    assert (one.entries, one.left_out, one.cut) == ((((1,), light),), 1, (2,))
    both = Listing.merged([one, Listing((((3,), light),))], 9, 5)
    assert both == Listing((((1,), light),), 2, (2,))


SUMS = st.builds(
    OpSums,
    group=NAMES,
    op=st.sampled_from(["all_reduce", "all_gather"]),
    collectives=SMALL,
    bytes=SMALL,
    transfer_ns=st.integers(1, 9),
    bounds=SMALL,
    place=st.just(0),
    factor=st.sampled_from([1.0, 1.75, None]),
)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.dictionaries(NAMES, SMALL), st.lists(SUMS, max_size=4), SMALL, SMALL),
        min_size=3,
        max_size=5,
    )
)
def test_ranks_add_up_in_any_order(told: list[tuple[dict[str, int], list[OpSums], int, int]]) -> None:
    parts = [
        RankAcross(waits, tuple({(s.group, s.op): _at(s, place) for s in sums}.values()), missing, other)
        for place, (waits, sums, missing, other) in enumerate(told)
    ]
    whole = RankAcross.merged(parts)
    left = RankAcross.merged([RankAcross.merged(parts[:2]), *parts[2:]])
    right = RankAcross.merged([RankAcross.merged(list(reversed(parts[1:]))), parts[0]])
    for other in (left, right):
        assert other.groups() == whole.groups()
        assert other.ledger() == whole.ledger()


def _at(sums: OpSums, place: int) -> OpSums:
    return replace(sums, place=place)
