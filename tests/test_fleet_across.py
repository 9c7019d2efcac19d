"""The stages across ranks of a fleet give what `across_ranks` gives: the same figures, whatever the number of
tasks that they are cut into."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from across_helpers import PAIR, Instance, group_of, ranks_of
from fleet_across_helpers import assert_same, fleet_across, stages_of
from hypothesis import given, settings
from hypothesis import strategies as st

import sp_profiler
import sp_profiler.engine
from sp_profiler.analysis.across import AcrossRanks, across_ranks
from sp_profiler.analysis.hosts import Potentials
from sp_profiler.analysis.results import RankResult
from sp_profiler.classify.tables import Group
from sp_profiler.fleet.across import across_fleet
from sp_profiler.fleet.communities import RankIn, communities, split_arrivals
from sp_profiler.fleet.matched import Bounds
from sp_profiler.fleet.work import Work

TINY = Bounds(rows=8, differences=5)
"""Communities of more than 8 collectives are cut, medians of more than 5 differences counted in passes."""


def same(folder: Path, results: Sequence[RankResult], **options: object) -> AcrossRanks:
    """Both ways, cut and whole, are equal; returns it."""
    one = across_ranks(results, **options)  # type: ignore[arg-type]
    for name, bounds in (("whole", None), ("cut", TINY)):
        two = fleet_across(folder / name, results, bounds=bounds, **options)  # type: ignore[arg-type]
        assert_same(one, two)
    return one


def world(count: int, ranks: int = 8, seq: bool = True, late: int = 300) -> list[Instance]:
    """Collectives of all ranks, at each of which another arrives late."""
    group = group_of(*range(ranks), description="world")
    return [
        Instance(
            {rank: 100_000 * k + 7 * rank + (late if rank == k % ranks else 0) for rank in range(ranks)},
            group=group,
            seq=k if seq else None,
        )
        for k in range(count)
    ]


# --- runs that are told ------------------------------------------------------------------------------


def test_ranks_of_several_groups(tmp_path: Path) -> None:
    pairs = [
        Instance({2 * p: 1_000 + 100_000 * k, 2 * p + 1: 5_000 * p + 2_000 + 100_000 * k}, group=group, seq=k)
        for p in range(4)
        for group in (group_of(2 * p, 2 * p + 1, description="tp"),)
        for k in range(5)
    ]
    shifted = [replace(one, arrivals={r: t + 50_000 for r, t in one.arrivals.items()}) for one in world(5)]
    hosts = {rank: f"node{rank // 4}" for rank in range(8)}
    found = same(
        tmp_path, ranks_of([*pairs, *shifted], clocks=dict.fromkeys(range(4, 8), 40_000_000), hosts=hosts)
    )
    assert [clock.offset_ns for clock in found.clocks or []] == [0, 40_000_000]
    assert found.stragglers


def test_what_is_matched_by_order_serves_clocks_of_what_follows(tmp_path: Path) -> None:
    """Nothing names a host or a number: the longest sequence finds the clocks, and the pairs use them."""
    pairs = [
        Instance({2 * p: 20_000 + 100_000 * k, 2 * p + 1: 24_000 + 100_000 * k}, group=group)
        for p in range(4)
        for group in (group_of(2 * p, 2 * p + 1, description="tp"),)
        for k in range(6)
    ]
    clocks = {rank: 3_000_000 * (rank // 2) for rank in range(8)}
    bases = {rank: rank // 2 for rank in range(8)}
    results = ranks_of([*world(6, seq=False), *pairs], clocks=clocks, bases=bases, drop=[(5, 1), (2, 4)])
    found = same(tmp_path, results)
    assert len(found.clocks or []) == 4
    assert any(one.reason == "not-in-trace" for one in found.unmatched)


def test_a_seq_that_is_off_is_found_in_a_community_that_is_cut(tmp_path: Path) -> None:
    results = ranks_of(world(9), seqs={3: 1}, drop=[(3, 0)])
    found = same(tmp_path, results)
    assert "seq-inconsistent" in {entry.code for entry in found.ledger}


def test_a_seq_that_only_one_slice_contradicts(tmp_path: Path) -> None:
    told = world(9)
    told[7] = replace(told[7], op="all_gather")
    wrong = ranks_of(told)
    arrivals = wrong[5].arrivals
    assert arrivals is not None
    op = arrivals.op.copy()
    op[7] = arrivals.op[0]  # rank 5 calls the eighth collective what the others do not
    wrong[5] = replace(wrong[5], arrivals=replace(arrivals, op=op))
    found = same(tmp_path, wrong)
    assert "seq-inconsistent" in {entry.code for entry in found.ledger}


def test_windows_that_differ(tmp_path: Path) -> None:
    results = ranks_of(world(12), drop=[(0, 0), (0, 1), (3, 11), (6, 5)])
    found = same(tmp_path, results)
    assert sum(one.reason == "not-in-trace" for one in found.unmatched) == 4


def test_groups_under_several_descriptions(tmp_path: Path) -> None:
    """Two ranks call their group by different names; a third group has the same ranks for both."""
    named = [group_of(0, 1, description=f"pp{rank}") for rank in range(2)]
    instances = [Instance(dict.fromkeys((0, 1), 1000 * k + 100000 * k), group=PAIR, seq=k) for k in range(4)]
    results = ranks_of(instances)
    for rank, group in enumerate(named):
        arrivals = results[rank].arrivals
        assert arrivals is not None
        results[rank] = replace(results[rank], arrivals=replace(arrivals, groups=(group,)))
    found = same(tmp_path, results)
    assert found.unmatched == []
    assert found.skew_wait_ns == 0


def test_sends_to_several_peers(tmp_path: Path) -> None:
    ring = group_of(0, 1, 2, 3, description="cp")
    peers = {rank: ((rank - 1) % 4, (rank + 1) % 4) for rank in range(4)}
    instances = [
        Instance(
            {rank: 100_000 * k + 900 * rank for rank in range(4)},
            group=ring,
            op="send_recv",
            peers=peers,
            seq=k,
        )
        for k in range(5)
    ]
    found = same(tmp_path, ranks_of(instances, drop=[(2, 0)]))
    assert found.skew_wait_ns


def test_ranks_that_are_missing(tmp_path: Path) -> None:
    results = ranks_of(world(9))
    found = same(tmp_path, [results[0], results[3], results[6]], world_size=8)
    assert {one.reason for one in found.unmatched} == {"no-trace"}
    assert {one.collectives for one in found.unmatched} == {9}


def test_collectives_of_no_group(tmp_path: Path) -> None:
    instances = [replace(one, group=None) for one in world(9, ranks=4, seq=False)]
    found = same(tmp_path, ranks_of(instances), world_size=4)
    assert "group-assumed" in {entry.code for entry in found.ledger}


def test_one_rank_alone_and_ranks_without_communication(tmp_path: Path) -> None:
    results = ranks_of(world(3, ranks=2))
    assert same(tmp_path / "one", results[:1], world_size=2).clocks is None
    silent = [replace(one, arrivals=None) for one in results]
    assert same(tmp_path / "silent", silent).skew_wait_ns is None
    assert same(tmp_path / "mixed", [silent[0], results[1]]).unmatched


# --- what one community tells another ----------------------------------------------------------------

IRREGULAR = (0, 130_000, 310_000, 420_000, 660_000, 790_000)
"""Starts of collectives whose ends fit on one offset of clocks alone."""


def irregular(group: Group, seq: bool) -> list[Instance]:
    return [
        Instance(dict.fromkeys(group.ranks, start), group=group, seq=k if seq else None)
        for k, start in enumerate(IRREGULAR)
    ]


@pytest.mark.parametrize("numbered", [True, False])
def test_a_group_finds_the_clocks_of_another(tmp_path: Path, numbered: bool) -> None:
    """The second host's clock is ahead by just one period of the pair, whose windows differ by as much: its
    own ends fit one collective off. What Seq matches of the others tells better, or the longer sequence."""
    whole = irregular(group_of(0, 1, 2, description="world"), numbered)
    pair = [
        Instance({0: 20_000 + 100_000 * k, 1: 20_000 + 100_000 * k}, group=group_of(0, 1, description="tp"))
        for k in range(5)
    ]
    drop = [(0, len(whole)), (1, len(whole) + 4)]
    results = ranks_of([*whole, *pair], clocks={1: 100_000}, hosts={0: "a", 1: "b", 2: "a"}, drop=drop)
    found = same(tmp_path, results)
    assert [clock.offset_ns for clock in found.clocks or []] == [0, 100_000]
    assert [one.ranks_missing for one in found.unmatched] in ([[0], [1]], [[1], [0]])
    assert found.skew_wait_ns == 0
    drop = [(0, 0), (1, 4)]
    alone = across_ranks(ranks_of(pair, clocks={1: 100_000}, hosts={0: "a", 1: "b"}, drop=drop))
    assert [clock.offset_ns for clock in alone.clocks or []] == [0, 0]  # which the pair alone cannot tell


def test_ends_of_a_group_refute_the_seq_of_another(tmp_path: Path) -> None:
    """Two collectives of a pair whose counter is off would pass for a clock that is: others know better."""
    whole = irregular(group_of(0, 1, 2, description="world"), True)
    pair = [
        Instance({0: 30_000, 1: 30_000}, group=PAIR, seq=0),
        Instance({0: 240_000, 1: 240_000}, group=PAIR, seq=1),
    ]
    found = same(tmp_path, ranks_of([*whole, *pair], seqs={1: 1}))
    (note, other) = [entry for entry in found.ledger if entry.code == "seq-inconsistent"]
    assert {"tp[0,1]" in note.text, "tp[0,1]" in other.text} == {True, False}
    assert found.unmatched == []


def test_a_seq_is_doubted_when_clocks_are_known(tmp_path: Path) -> None:
    """Of the small group alone nobody could tell that a counter is off by more than it has collectives."""
    small = group_of(0, 1, description="tp")
    whole = irregular(group_of(0, 1, 2, 3, description="world"), True)
    pair = [Instance({0: 520_000, 1: 560_000}, 30_000, small, seq=k) for k in range(1)]
    results = ranks_of([*whole, *pair])
    off = ranks_of([*whole, replace(pair[0], seq=5)])
    found = same(tmp_path, [results[0], off[1], *results[2:]])
    assert found.unmatched == []
    assert found.skew_wait_ns == 40_000


def test_what_only_a_slice_can_see(tmp_path: Path) -> None:
    """Two ranks disagree on a collective that the longest of all lacks: no pair with the longest shows it."""
    told = world(9, ranks=4)
    lost = [(0, 7), (1, 0), (1, 1), (2, 2), (2, 3), (3, 4), (3, 5)]
    results = ranks_of(told, drop=lost)
    other = ranks_of([*told[:7], replace(told[7], op="all_gather"), told[8]], drop=lost)
    found = same(tmp_path, [results[0], results[1], other[2], results[3]])
    assert "seq-inconsistent" in {entry.code for entry in found.ledger}


# --- runs that are made up ---------------------------------------------------------------------------


def made_up(random: Random) -> tuple[list[RankResult], int | None]:
    """Ranks of several hosts in groups of all kinds, with what goes wrong; and a world size."""
    ranks = random.choice([2, 4, 6, 8])
    kinds: list[list[Group | None]] = [
        [group_of(*range(ranks), description="world")],
        [group_of(r, r + 1, description="tp") for r in range(0, ranks, 2)],
        [group_of(*range(first, ranks, 2), description="dp") for first in range(2)] if ranks > 2 else [None],
        [None],
    ]
    numbered = random.choices(["all", "all", "none", "some"], k=4)
    jitter = random.choice([0, 3_000, 40_000])
    counts = [0, 0, 0, 0]
    instances: list[Instance] = []
    for k, kind in enumerate(random.choices([0, 0, 1, 1, 1, 2, 3], k=random.randint(1, 14))):
        op = random.choice(["all_reduce", "all_reduce", "all_gather", "broadcast", "send_recv"])
        seq = counts[kind] if numbered[kind] == "all" or (numbered[kind] == "some" and k % 3) else None
        counts[kind] += 1
        for group in kinds[kind]:
            members = list(range(ranks)) if group is None else list(group.ranks)
            peers = {r: (members[(i + 1) % len(members)], members[i - 1]) for i, r in enumerate(members)}
            one = Instance(
                {rank: 100_000 * k + random.randint(0, jitter) for rank in members},
                group=group,
                op=op,
                seq=seq,
                bytes=random.choice([1024, 1024, 2048, None]),
                peers=peers if op == "send_recv" else {},
                end_shift={random.choice(members): random.choice([0, 0, 500, 90_000])},
            )
            instances.append(one)
    names = random.choice(["named", "nameless", "mixed"])
    told = [r for r in range(ranks) if names == "named" or (names == "mixed" and r % 4 < 2)]
    ahead = random.choices([0, 0, 40_000, 3_000_000, -(10**10)], k=4)
    results = ranks_of(
        instances,
        clocks={rank: ahead[rank // 2] for rank in range(ranks)},
        hosts={rank: f"node{rank // 2}" for rank in told},
        bases={rank: random.choice([0, 0, 5]) for rank in range(ranks)} if random.random() < 0.5 else {},
        seqs={random.randrange(ranks): random.choice([0, 0, 1, 3])},
        drop=[
            (random.randrange(ranks), random.randrange(len(instances))) for _ in range(random.randint(0, 4))
        ],
    )
    missing = {random.randrange(len(results)) for _ in range(random.randint(0, 2))}
    return [r for k, r in enumerate(results) if k not in missing] or results, random.choice([None, 8])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32))
def test_made_up_fleets(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    results, world_size = made_up(Random(seed))
    same(tmp_path_factory.mktemp("fleet"), results, world_size=world_size)


# --- real traces -------------------------------------------------------------------------------------


def _also_as_fleet(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[int]:
    """From now on every report is also made by way of a work folder; the numbers of ranks that were."""
    seen: list[int] = []

    def both(results: Sequence[RankResult], run_json: object, world_size: int | None) -> AcrossRanks:
        place = folder / str(len(seen))
        seen.append(len(results))
        return same(place, results, run_json=run_json, world_size=world_size)

    monkeypatch.setattr(sp_profiler.engine, "across_ranks", both)
    return seen


@pytest.mark.shared
def test_the_cases_and_the_corpus(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _also_as_fleet(monkeypatch, tmp_path)
    cases = [
        path for path in sorted((shared / "cases").iterdir()) if path.is_dir() and path.name != "malformed"
    ]
    corpus = [shared / "corpus" / name for name in ("alltoall_2_of_128", "dlrm_v100_8ranks", "toy_mi250")]
    for path in (*cases, *corpus):
        sp_profiler.analyze(path)
    assert seen == [4, 2, 1, 2, 2, 2, 2, 2, 2, 8, 1]


@pytest.mark.parametrize("run", ["sp-basic", "sp-recompute", "tp-async", "tp-sync"])
def test_the_demo(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _also_as_fleet(monkeypatch, tmp_path)
    sp_profiler.analyze(Path(__file__).parent.parent / "traces" / "demo" / run)
    assert seen == [2]


# --- the pipeline itself -----------------------------------------------------------------------------


def ranks_in(work: Work, results: Sequence[RankResult]) -> list[RankIn]:
    return [
        RankIn(k, one.ranks[0].rank, None, 0, split_arrivals(work, k, one.arrivals))
        for k, one in enumerate(results)
    ]


def test_slices_hold_no_more_than_they_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sp_profiler.fleet.units as units

    sizes: list[int] = []
    gather = units.gather

    def counted(*args: object, **options: object) -> units.Rows:
        rows = gather(*args, **options)  # type: ignore[arg-type]
        sizes.append(len(rows.ends))
        return rows

    for module in ("matching", "aligning", "waits"):
        monkeypatch.setattr(f"sp_profiler.fleet.{module}.gather", counted)
    work = Work(str(tmp_path))
    ranks = ranks_in(work, ranks_of(world(40, ranks=4)))
    bounds = Bounds(rows=80)
    across_fleet(work, ranks, stages_of(work), bounds=bounds)
    assert sum(sizes) > 160
    assert max(sizes) <= 80


def test_a_run_that_is_resumed_gives_the_same(tmp_path: Path) -> None:
    """The second time every value comes from a mark."""
    work = Work(str(tmp_path))
    results = ranks_of(world(6), clocks={7: 9_000_000}, bases={7: 1}, seqs={2: 1}, drop=[(1, 3)])
    ranks = ranks_in(work, results)
    first = across_fleet(work, ranks, stages_of(work), bounds=TINY)
    assert across_fleet(work, ranks, stages_of(work), bounds=TINY) == first
    assert first.unmatched


def test_lists_of_unmatched_collectives_are_bounded(tmp_path: Path) -> None:
    results = ranks_of(world(30), drop=[(3, k) for k in range(5, 25)])
    whole = across_ranks(results)
    cut = fleet_across(tmp_path, results, bounds=Bounds(rows=16, unmatched=7))
    assert cut.unmatched == whole.unmatched[:7]
    (note,) = [entry for entry in cut.ledger if entry.code == "unmatched-not-listed"]
    assert note.count == 13
    kept = [entry for entry in cut.ledger if entry.code != "unmatched-not-listed"]
    assert tuple(kept) == whole.ledger
    short = fleet_across(tmp_path / "ranks", results, bounds=Bounds(unmatched_ranks=8 * 3 + 7))
    assert short.unmatched == whole.unmatched[:3]


def test_what_travels_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    work = Work(str(tmp_path))
    few, many = (len(repr(split_arrivals(work, 0, ranks_of(world(n))[0].arrivals))) for n in (10, 99))
    assert many <= few + 4  # a digit or two


def test_communities_are_numbered_by_the_first_rank_that_shows_them(tmp_path: Path) -> None:
    work = Work(str(tmp_path))
    instances = [
        Instance({0: 0, 1: 5}, group=group_of(0, 1)),
        Instance({2: 0, 3: 5}, group=group_of(2, 3)),
        Instance({0: 90_000, 1: 90_000, 2: 90_000, 3: 90_000}, group=None),
    ]
    found = communities(ranks_in(work, ranks_of(instances)))
    assert [(one.order, one.places) for one in found] == [(0, (0, 1, 2, 3)), (1, (0, 1)), (2, (2, 3))]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(-(10**12), 10**12)), max_size=12))
def test_potentials_survive_their_state(joins: list[tuple[int, int, int]]) -> None:
    known = Potentials([None] * 8)
    for one, other, ahead in joins:
        known.join(one, other, ahead)
    again = Potentials.of(*known.state())
    for one, other in itertools.product(range(8), repeat=2):
        assert again.between(one, other) == known.between(one, other)
    members = np.array([6, 1, 3])
    component, ahead = (np.array(part)[members].tolist() for part in known.state())
    some = Potentials.of(component, ahead)
    for (i, one), (j, other) in itertools.product(enumerate(members.tolist()), repeat=2):
        assert some.between(i, j) == known.between(one, other)
