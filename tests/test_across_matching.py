"""Which collectives of different ranks are one: by Seq, by order, by peers, and what is left unmatched."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from across_helpers import PAIR, Instance, across, codes, costs, group_of, of_rank, ranks_of, waits
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.classify.tables import Group

US = 1_000
UNLISTED = Group("ep[2 ranks]", "ep", (), 2)
UNSIZED = Group("ep[?]", "ep", (), None)


def irregular(count: int, ranks: tuple[int, ...] = (0, 1), seed: int = 1, **more: Any) -> list[Instance]:
    """Equal all-reduces at irregular times; the last arrival is random, up to 300 µs late."""
    rng = random.Random(seed)
    now, found = 0, []
    group = more.pop("group", group_of(*ranks))
    numbered = more.pop("numbered", False)
    for k in range(count):
        now += rng.randint(500, 4000) * US
        arrivals = {rank: now + rng.randint(0, 300) * US for rank in ranks}
        found.append(Instance(arrivals, 400 * US, group, seq=k if numbered else None, **more))
        now = found[-1].last + 400 * US
    return found


def truth(instances: list[Instance], rank: int) -> list[int]:
    return [one.last - one.arrivals[rank] for one in instances if rank in one.arrivals]


def test_by_seq() -> None:
    instances = irregular(5, numbered=True)
    found = across(ranks_of(instances))
    assert waits(found, 0) == truth(instances, 0)
    assert waits(found, 1) == truth(instances, 1)
    assert found.unmatched == []
    assert "matched-by-order" not in codes(found)


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("lost", [0, 3, 7])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_window_that_misses_one_shifts_nothing(numbered: bool, lost: int, rank: int) -> None:
    """First, middle or last; equal operation and size throughout, so order alone would shift."""
    instances = irregular(8, numbered=numbered)
    found = across(ranks_of(instances, drop=[(rank, lost)]))
    assert waits(found, rank) == [w for k, w in enumerate(truth(instances, rank)) if k != lost]
    other = waits(found, 1 - rank)
    assert other == [w if k != lost else None for k, w in enumerate(truth(instances, 1 - rank))]
    (missing,) = found.unmatched
    assert (missing.ranks_present, missing.ranks_missing, missing.reason) == (
        [1 - rank],
        [rank],
        "not-in-trace",
    )
    assert missing.seq == (lost if numbered else None)
    alone = of_rank(found, 1 - rank)[lost]
    assert (alone.transfer_ns, alone.transfer_is_bound) == (alone.dur_ns, True)


def test_windows_that_miss_the_first_on_one_rank_and_the_last_on_the_other() -> None:
    """As many on both sides: counting would match each with its successor."""
    instances = irregular(8)
    found = across(ranks_of(instances, drop=[(0, 0), (1, 7)]))
    assert waits(found, 0) == [*truth(instances, 0)[1:7], None]
    assert waits(found, 1) == [None, *truth(instances, 1)[1:7]]
    assert [(one.ranks_present, one.ranks_missing) for one in found.unmatched] == [([1], [0]), ([0], [1])]


@pytest.mark.parametrize("drop", [[], [(1, 0)], [(0, 4)]])
def test_order_with_clocks_that_are_off(drop: list[tuple[int, int]]) -> None:
    """Nothing numbers the collectives, nothing names hosts, and the clocks are 40 ms apart."""
    instances = irregular(12)
    found = across(ranks_of(instances, clocks={1: 40_000 * US}, drop=drop))
    lost = {k for _, k in drop}
    for rank in (0, 1):
        kept = [w if k not in lost else None for k, w in enumerate(truth(instances, rank))]
        assert waits(found, rank) == [w for k, w in enumerate(kept) if (rank, k) not in drop]
    assert found.clocks is not None
    assert [one.offset_ns for one in found.clocks] == [0, 40_000 * US]


@pytest.mark.parametrize("shift", [1, -2, 100])
def test_a_seq_that_counts_from_elsewhere_falls_back_to_order(shift: int) -> None:
    instances = irregular(9, numbered=True)
    found = across(ranks_of(instances, seqs={1: shift}))
    assert waits(found, 0) == truth(instances, 0)
    assert found.unmatched == []
    assert "seq-inconsistent" in codes(found)


@pytest.mark.parametrize("shift", [1, -1, 3])
@pytest.mark.parametrize("ahead", [137 * US, 40_000 * US])
def test_a_seq_that_counts_from_elsewhere_between_clocks_that_are_off(shift: int, ahead: int) -> None:
    """What `Seq` takes for one collective ends together on no clock at all; the order does on one."""
    instances = irregular(12, numbered=True)
    found = across(ranks_of(instances, seqs={1: shift}, clocks={1: ahead}, hosts={0: "a", 1: "b"}))
    assert waits(found, 0) == truth(instances, 0)
    assert waits(found, 1) == truth(instances, 1)
    assert found.clocks is not None
    assert [one.offset_ns for one in found.clocks] == [0, ahead]
    assert "seq-inconsistent" in codes(found)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("hosts", [None, dict.fromkeys(range(4), "a")])
def test_a_few_numbers_that_are_off_in_a_small_group(count: int, hosts: dict[int, str] | None) -> None:
    """Of a small group alone nobody could tell; the clocks are known by the large one."""
    small = group_of(2, 3, description="tp")
    instances = irregular(9, ranks=(0, 1, 2, 3), numbered=True)
    for k in range(count):
        before = instances[4 + k]
        start = before.last + before.transfer + 10 * US
        instances.append(Instance({2: start, 3: start + 80 * US}, 60 * US, small, seq=k))
    instances.sort(key=lambda one: one.last)
    results = ranks_of(instances, hosts=hosts)
    shifted = ranks_of(
        [replace(one, seq=one.seq if one.group != small else (one.seq or 0) + 5) for one in instances],
        hosts=hosts,
    )
    found = across([*results[:3], shifted[3]])
    assert found.unmatched == []
    for rank in range(4):
        assert waits(found, rank) == truth(instances, rank)


@pytest.mark.parametrize("seed", range(5))
def test_windows_that_differ_do_not_make_seq_doubtful(seed: int) -> None:
    """Many collectives missing on either side, on one clock: their numbers say which."""
    rng = random.Random(seed)
    instances = irregular(30, numbered=True, seed=seed)
    drop = [(rng.randrange(2), k) for k in rng.sample(range(30), 12)]
    found = across(ranks_of(instances, drop=drop))
    assert "seq-inconsistent" not in codes(found)
    lost = {k for _, k in drop}
    for rank in (0, 1):
        kept = [w if k not in lost else None for k, w in enumerate(truth(instances, rank))]
        assert waits(found, rank) == [w for k, w in enumerate(kept) if (rank, k) not in drop]


def test_a_seq_with_other_operations_falls_back_to_order() -> None:
    instances = irregular(6, numbered=True)
    instances = [
        Instance(i.arrivals, i.transfer, PAIR, op=("all_gather" if k % 2 else "all_reduce"), seq=k)
        for k, i in enumerate(instances)
    ]
    found = across(ranks_of(instances, seqs={1: 1}))
    assert waits(found, 1) == truth(instances, 1)
    assert "seq-inconsistent" in codes(found)


def test_a_seq_that_is_always_zero_falls_back_to_order() -> None:
    instances = [Instance(i.arrivals, i.transfer, PAIR, seq=0) for i in irregular(6)]
    found = across(ranks_of(instances, drop=[(1, 2)]))
    assert waits(found, 1) == [w for k, w in enumerate(truth(instances, 1)) if k != 2]
    assert "seq-inconsistent" in codes(found)


def test_collectives_without_seq_beside_those_with() -> None:
    """List forms carry no Seq: they are a sequence of their own."""
    instances = irregular(8)
    instances = [
        Instance(i.arrivals, i.transfer, PAIR, seq=None if k % 3 == 0 else k) for k, i in enumerate(instances)
    ]
    found = across(ranks_of(instances, drop=[(1, 3)]))
    assert waits(found, 0) == [w if k != 3 else None for k, w in enumerate(truth(instances, 0))]


def test_sizes_check_the_order() -> None:
    """A middle collective of another size, on one rank only, takes nobody's place."""
    instances = irregular(4)
    alone = Instance({0: instances[1].last + 401 * US}, 5 * US, PAIR, bytes=64)
    found = across(ranks_of([*instances, alone]))
    assert waits(found, 0) == [*truth(instances, 0)[:2], None, *truth(instances, 0)[2:]]
    assert [(one.ranks_present, one.ranks_missing) for one in found.unmatched] == [([0], [1])]


def test_groups_that_share_a_description_are_two() -> None:
    one, two = group_of(0, 1, description="1"), group_of(2, 3, description="1")
    instances = [*irregular(3, (0, 1), group=one), *irregular(3, (2, 3), seed=7, group=two)]
    found = across(ranks_of(instances))
    assert waits(found, 2) == truth(instances, 2)
    assert {c.group for c in of_rank(found, 0)} == {"1[0,1]"}


def test_a_group_that_its_ranks_describe_differently_is_one() -> None:
    group = group_of(0, 1, description="mesh_tp")
    results = [
        *ranks_of([Instance({0: 0}, 1_000, group, seq=1)]),
        *ranks_of([Instance({1: 300}, 700, group_of(0, 1, description="tp"), seq=1)]),
    ]
    found = across(results)
    assert waits(found, 0) == [300]


def test_sends_are_matched_with_their_peers() -> None:
    """A pipeline of three: rank 0 sends to 1, 1 to 2; each waits for its own peer only."""
    group = group_of(0, 1, 2, description="pp")
    first = Instance({0: 0, 1: 50_000}, 10_000, group, "send_recv", peers={0: (1,), 1: (0,)})
    second = Instance({1: 70_000, 2: 20_000}, 10_000, group, "send_recv", peers={1: (2,), 2: (1,)})
    found = across(ranks_of([first, second], hosts=dict.fromkeys(range(3), "a")))
    assert waits(found, 0) == [50_000]
    assert waits(found, 1) == [0, 0]
    assert waits(found, 2) == [50_000]
    assert costs(found) == {1: 100_000}
    assert found.unmatched == []


def test_a_ring_waits_for_its_neighbours_only() -> None:
    """Four ranks shift; rank 2 is 90 µs late. Its neighbours 1 and 3 wait for it, rank 0 does not."""
    group = group_of(0, 1, 2, 3, description="cp")
    peers = {rank: ((rank - 1) % 4, (rank + 1) % 4) for rank in range(4)}
    late = Instance(
        {0: 0, 1: 0, 2: 90_000, 3: 0}, 10_000, group, "send_recv", peers=peers, end_shift={0: -90_000}
    )
    found = across(ranks_of([late], hosts=dict.fromkeys(range(4), "a")))
    assert [waits(found, rank) for rank in range(4)] == [[0], [90_000], [0], [90_000]]
    assert of_rank(found, 0)[0].transfer_ns == 10_000
    assert costs(found) == {2: 180_000}


def test_peers_that_are_numbered_within_the_group() -> None:
    group = group_of(4, 6, description="pp")
    one = Instance({4: 0, 6: 500_000}, 1_000, group, "send_recv", peers={4: (1,), 6: (0,)})
    found = across(ranks_of([one]))
    assert waits(found, 4) == [500_000]


def test_without_peers_nobody_knows_who_waits_for_whom() -> None:
    group = group_of(0, 1, 2)
    found = across(ranks_of([Instance({0: 0, 1: 50_000, 2: 0}, 1_000, group, "send_recv")]))
    assert waits(found, 0) == [None]
    one = of_rank(found, 0)[0]
    assert (one.transfer_ns, one.transfer_is_bound) == (51_000, True)
    assert "p2p-peers-unknown" in codes(found)


def test_a_group_without_a_name_is_taken_for_all_ranks() -> None:
    instances = irregular(5, (0, 1, 2), group=None)
    found = across(ranks_of(instances, drop=[(2, 1)]))
    assert waits(found, 2) == [w for k, w in enumerate(truth(instances, 2)) if k != 1]
    assert "group-assumed" in codes(found)
    assert [(one.ranks_present, one.ranks_missing) for one in found.unmatched] == [([0, 1], [2])]


def test_missing_ranks_make_bounds() -> None:
    group = group_of(0, 1, 2, 3)
    instances = [Instance({0: 0, 1: 300}, 700, group, seq=k + 1) for k in range(1)]
    found = across(ranks_of(instances))
    one = of_rank(found, 0)[0]
    assert (one.skew_wait_ns, one.transfer_ns, one.transfer_is_bound) == (300, 700, True)
    assert one.busbw_gbps == pytest.approx(1024 / 700 * 1.5)
    (missing,) = found.unmatched
    assert (missing.ranks_missing, missing.reason, missing.seq) == ([2, 3], "no-trace", 1)


def test_one_rank_alone() -> None:
    found = across(ranks_of([Instance({0: 0}, 1_000, PAIR, seq=k) for k in (1, 2)]))
    one = of_rank(found, 0)[0]
    assert (one.skew_wait_ns, one.transfer_ns, one.transfer_is_bound) == (None, 1_000, True)
    assert one.busbw_gbps == pytest.approx(1.024)
    assert found.clocks is None
    assert found.stragglers is None
    assert "skew-needs-ranks" in codes(found)
    assert [(m.collectives, m.ranks_missing) for m in found.unmatched] == [(2, [1])]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_loss_is_found(data: st.DataObject) -> None:
    """Equal collectives at irregular times, any of them lost on any rank, on one host: the rest is exact."""
    ranks = tuple(range(data.draw(st.integers(2, 4))))
    count = data.draw(st.integers(3, 12))
    instances = irregular(count, ranks, seed=data.draw(st.integers(0, 10_000)))
    pairs = [(rank, k) for rank in ranks for k in range(count)]
    drop = data.draw(st.lists(st.sampled_from(pairs), max_size=count // 2, unique=True))
    found = across(ranks_of(instances, hosts=dict.fromkeys(ranks, "a"), drop=drop))
    for rank in ranks:
        expected = []
        for k, one in enumerate(instances):
            present = {r: t for r, t in one.arrivals.items() if (r, k) not in drop}
            if rank in present:
                expected.append(max(present.values()) - present[rank] if len(present) > 1 else None)
        assert waits(found, rank) == expected
    lacking = {k for _, k in drop if any((r, k) not in drop for r in ranks)}
    assert len(found.unmatched) == len(lacking)


_ANY = st.builds(
    Instance,
    arrivals=st.dictionaries(st.integers(0, 3), st.integers(0, 60) | st.integers(0, 10**15), min_size=1),
    transfer=st.integers(0, 50),
    group=st.sampled_from([None, PAIR, group_of(0, 1, 2, 3), group_of(1, 3), UNLISTED, UNSIZED]),
    op=st.sampled_from(["all_reduce", "all_to_all", "broadcast", "send_recv", "barrier", "odd"]),
    bytes=st.sampled_from([None, 0, 8, 2**70]),
    seq=st.sampled_from([None, 0, 1, 2, 2**70]),
    peers=st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
    known=st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(
    instances=st.lists(_ANY, min_size=1, max_size=8),
    clocks=st.dictionaries(st.integers(0, 3), st.integers(0, 10**15)),
    hosts=st.dictionaries(st.integers(0, 3), st.sampled_from(["a", "b"])),
)
def test_nonsense_is_survived_and_stays_consistent(
    instances: list[Instance], clocks: dict[int, int], hosts: dict[int, str]
) -> None:
    found = across(ranks_of(instances, clocks, hosts))
    waited = 0
    for result in found.results:
        for one in result.collectives:
            if one.skew_wait_ns is None:
                assert one.transfer_ns in (None, one.dur_ns)
                assert one.transfer_is_bound in (None, True)
                continue
            waited += one.skew_wait_ns
            assert one.skew_wait_ns >= 0
            assert one.transfer_ns is not None
            assert 0 <= one.transfer_ns <= one.dur_ns
            if one.transfer_ns:
                assert one.skew_wait_ns + one.transfer_ns == one.dur_ns
    assert (found.skew_wait_ns or 0) == waited
    assert sum(one.cost_ns for one in found.stragglers or []) + found.tied_ns <= waited
