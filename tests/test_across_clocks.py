"""Clocks of hosts: recovered exactly, applied only when sure, never read as lateness."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from across_helpers import PAIR, Instance, across, codes, costs, group_of, of_rank, ranks_of, waits
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.analysis.clocks import hosts_of
from sp_profiler.analysis.hosts import middle, spread
from sp_profiler.analysis.results import Clock

US, MS = 1_000, 1_000_000


def run_of(
    ranks: tuple[int, ...],
    count: int = 20,
    seed: int = 3,
    late: int | None = None,
    jitter: int = 0,
    start: int = 0,
    **more: Any,
) -> list[Instance]:
    """All-reduces of these ranks; `late` arrives 200 µs after the others; ends and arrivals jitter."""
    rng = random.Random(seed)
    now, found = start, []
    for k in range(count):
        now += rng.randint(1, 4) * MS
        arrivals = {r: now + (200 * US if r == late else 0) + rng.randint(0, jitter) for r in ranks}
        shifts = {r: rng.randint(-jitter, jitter) for r in ranks}
        group = more.get("group", group_of(*ranks))
        found.append(Instance(arrivals, 500 * US, group, seq=k, end_shift=shifts))
    return found


def by_host(clocks: list[Clock] | None) -> dict[str | None, Clock]:
    assert clocks is not None
    return {one.host: one for one in clocks}


@pytest.mark.parametrize("ahead", [70 * MS, -70 * MS, 3_600_000 * MS])
def test_two_hosts(ahead: int) -> None:
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    clocks = {2: ahead, 3: ahead}
    found = across(ranks_of(run_of((0, 1, 2, 3), late=2), clocks, hosts))
    told = by_host(found.clocks)
    assert (told["a"].offset_ns, told["a"].applied, told["a"].ranks) == (0, False, [0, 1])
    assert (told["b"].offset_ns, told["b"].applied, told["b"].ranks) == (ahead, True, [2, 3])
    assert (told["b"].spread_ns, told["b"].residual_ns) == (0, 0)
    assert costs(found) == {2: 20 * 3 * 200 * US}
    assert waits(found, 0) == [200 * US] * 20
    assert "clock-offset-applied" in codes(found)


def test_three_hosts_in_a_chain() -> None:
    """a and b share collectives, b and c do, a and c do not."""
    hosts = {0: "a", 1: "b", 2: "c"}
    clocks = {1: -5 * MS, 2: 11 * MS}
    instances = [*run_of((0, 1)), *run_of((1, 2), seed=4, start=100 * MS)]
    found = across(ranks_of(instances, clocks, hosts))
    told = by_host(found.clocks)
    assert (told["b"].offset_ns, told["c"].offset_ns) == (-5 * MS, 11 * MS)
    assert told["c"].applied
    assert found.stragglers == []


def test_an_unconnected_host_has_no_offset() -> None:
    hosts = {0: "a", 1: "b", 2: "c", 3: "d"}
    instances = [*run_of((0, 1)), *run_of((2, 3), seed=5)]
    found = across(ranks_of(instances, {1: 9 * MS, 2: MS, 3: 4 * MS}, hosts))
    told = by_host(found.clocks)
    assert told["b"].offset_ns == 9 * MS
    assert (told["c"].offset_ns, told["d"].offset_ns) == (None, None)
    assert found.stragglers == []  # c and d are aligned with each other all the same
    assert set(waits(found, 2)) == {0}
    assert "clock-unconnected" in codes(found)


def test_sends_between_unconnected_clocks_wait_for_nobody() -> None:
    """Send/recv align no clocks: without any, nobody knows who was late."""
    group = group_of(0, 1)
    one = Instance({0: 0, 1: 300 * US}, 100 * US, group, "send_recv", peers={0: (1,), 1: (0,)})
    found = across(ranks_of([one], {1: 7 * MS}, {0: "a", 1: "b"}))
    assert waits(found, 0) == [None]
    assert of_rank(found, 0)[0].transfer_is_bound
    assert found.stragglers == []


def test_an_offset_within_its_spread_is_not_applied() -> None:
    hosts = {0: "a", 1: "b"}
    found = across(ranks_of(run_of((0, 1), 60, jitter=30 * US), {1: 20 * US}, hosts))
    told = by_host(found.clocks)["b"]
    assert told.offset_ns is not None
    assert abs(told.offset_ns - 20 * US) < 15 * US
    assert not told.applied
    assert found.stragglers == []


def test_a_constant_is_a_clock_where_nothing_names_a_host() -> None:
    found = across(ranks_of(run_of((0, 1), jitter=US), {1: 30 * MS}))
    assert found.clocks is not None
    assert [(one.host, one.ranks, one.applied) for one in found.clocks] == [
        (None, [0], False),
        (None, [1], True),
    ]
    assert found.clocks[1].offset_ns == pytest.approx(30 * MS, abs=2 * US)
    assert found.stragglers == []


def test_ranks_that_nothing_names_share_a_clock_when_their_ends_agree() -> None:
    found = across(ranks_of(run_of((0, 1, 2), jitter=US, late=1)))
    assert found.clocks is not None
    assert [(one.ranks, one.offset_ns, one.applied) for one in found.clocks] == [([0, 1, 2], 0, False)]
    assert list(costs(found)) == [1]
    assert "one-host-assumed" in codes(found)


def test_other_base_times_are_other_clocks_that_agree() -> None:
    found = across(ranks_of(run_of((0, 1), jitter=US), bases={0: 0, 1: 10**18}))
    assert found.clocks is not None
    assert [one.applied for one in found.clocks] == [False, False]
    assert found.stragglers == []


def test_ranks_of_a_named_host_are_never_corrected() -> None:
    """Ends that always disagree on one host are an anomaly of the collectives, and no clock."""
    instances = [
        Instance(one.arrivals, one.transfer, PAIR, seq=one.seq, end_shift={1: 150 * US})
        for one in run_of((0, 1), 6)
    ]
    found = across(ranks_of(instances, hosts={0: "a", 1: "a"}))
    told = by_host(found.clocks)["a"]
    assert (told.offset_ns, told.applied, told.residual_ns) == (0, False, 150 * US)
    assert found.stragglers == []


def test_one_collective_whose_ends_disagree_is_an_anomaly_and_not_skew() -> None:
    instances = run_of((0, 1, 2), 9)
    odd = instances[4]
    instances[4] = Instance(odd.arrivals, odd.transfer, odd.group, seq=4, end_shift={2: 400 * US})
    found = across(ranks_of(instances, hosts=dict.fromkeys(range(3), "a")))
    assert waits(found, 2) == [0] * 9
    assert found.stragglers == []
    apart = found.ends_apart
    assert apart is not None
    assert (apart.collectives, apart.largest_ns, apart.ranks) == (1, 400 * US, [2])
    assert apart.figures == [(0, 4), (1, 4), (2, 4)]
    assert "400000 ns apart" in (of_rank(found, 0)[4].note or "")
    assert of_rank(found, 0)[3].note is None
    assert "ends-disagree" in codes(found)


def test_leaving_before_the_last_arrives_is_impossible_and_null() -> None:
    instances = run_of((0, 1), 5)
    odd = instances[2]
    instances[2] = Instance(
        {0: odd.last - 900 * US, 1: odd.last}, 500 * US, odd.group, seq=2, end_shift={0: -800 * US}
    )
    found = across(ranks_of(instances, hosts={0: "a", 1: "a"}))
    assert waits(found, 0) == [0, 0, None, 0, 0]
    assert "skew-impossible" in codes(found)


def test_the_root_of_a_broadcast_waits_for_nobody() -> None:
    one = Instance({0: 0, 1: 900 * US}, 50 * US, PAIR, "broadcast", seq=1, end_shift={0: -850 * US})
    found = across(ranks_of([one], hosts={0: "a", 1: "a"}))
    assert waits(found, 0) == [None]  # it left at 100 µs
    assert waits(found, 1) == [0]
    assert found.stragglers == []


def test_a_wait_is_part_of_its_collective() -> None:
    """The root leaves 400 ns before the last arrives, less than clocks can tell: it waited all the time."""
    one = Instance({0: 0, 1: 10_000}, 5_000, PAIR, "broadcast", seq=1, end_shift={0: -5_400})
    found = across(ranks_of([one], hosts={0: "a", 1: "a"}))
    (root,) = of_rank(found, 0)
    assert (root.dur_ns, root.skew_wait_ns, root.transfer_ns) == (9_600, 9_600, 0)
    assert waits(found, 1) == [0]


def test_ties_are_nobodys_lateness() -> None:
    """0 waits 100 µs for 1 and 2, which arrive 400 ns apart; then all three tie."""
    instances = [
        Instance({0: 0, 1: 100_000, 2: 100_400}, 50_000, group_of(0, 1, 2), seq=0),
        Instance({0: MS, 1: MS, 2: MS + 300}, 50_000, group_of(0, 1, 2), seq=1),
    ]
    found = across(ranks_of(instances, hosts=dict.fromkeys(range(3), "a")))
    assert waits(found, 0) == [100_400, 300]
    assert found.stragglers == []
    assert found.tied_ns == 100_400 + 400 + 300 + 300


def test_stragglers_are_ranked_by_what_the_others_lost() -> None:
    """Rank 1 is often a little late, rank 2 once and much."""
    group = group_of(0, 1, 2)
    often = [Instance({0: k * MS, 1: k * MS + 20_000, 2: k * MS}, 50_000, group, seq=k) for k in range(5)]
    once = Instance({0: 9 * MS, 1: 9 * MS, 2: 9 * MS + 300_000}, 50_000, group, seq=9)
    found = across(ranks_of([*often, once], hosts=dict.fromkeys(range(3), "a")))
    assert found.stragglers is not None
    told = [(one.rank, one.cost_ns, one.collectives) for one in found.stragglers]
    assert told == [(2, 600_000, 1), (1, 200_000, 5)]
    assert found.stragglers[0].cost_by_group_ns == {"dp[0,1,2]": 600_000}
    assert sum(one.cost_ns for one in found.stragglers) == found.skew_wait_ns


def test_cpu_runs_have_skew_and_no_bandwidth() -> None:
    found = across(ranks_of([Instance({0: 0, 1: 300}, 700, PAIR)], hosts={0: "a", 1: "a"}, cpu=True))
    one = of_rank(found, 0)[0]
    assert (one.skew_wait_ns, one.transfer_ns, one.algbw_gbps, one.busbw_gbps) == (300, 700, None, None)


def test_what_is_no_transfer_gets_none() -> None:
    """gloo's send/recv run from post to wait."""
    group = group_of(0, 1)
    one = Instance({0: 0, 1: 300}, 700, group, "send_recv", peers={0: (1,), 1: (0,)}, known=False)
    first = of_rank(across(ranks_of([one], hosts={0: "a", 1: "a"})), 0)[0]
    assert (first.skew_wait_ns, first.transfer_ns, first.transfer_is_bound) == (None, None, None)


def test_hosts_are_those_of_run_json_first() -> None:
    run_json = {"hosts": [{"host": "n1", "ranks": [0, 1]}, {"host": "n2", "ranks": [2]}, "odd", {"ranks": 3}]}
    assert hosts_of(run_json, [0, 2, 3], ["x", None, "y"]) == ["n1", "n2", "y"]
    assert hosts_of(None, [None], ["x"]) == ["x"]
    assert hosts_of(None, [0, 1], ["localhost", "localhost.localdomain"]) == [None, None]


def test_the_middle_of_large_numbers_is_exact() -> None:
    assert middle(np.array([2**62 + 1, 2**62 + 3])) == 2**62 + 2
    assert spread(np.array([0, 0, 0, 10**9])) == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_known_offsets_and_stragglers_are_recovered(data: st.DataObject) -> None:
    """Random hosts and offsets of any sign, jitter below the spread: offsets and stragglers come back."""
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    hosts_count = data.draw(st.integers(1, 3))
    ranks = tuple(range(data.draw(st.integers(max(2, hosts_count), 6))))
    hosts = {rank: f"host{rank % hosts_count}" for rank in ranks}
    ahead = {f"host{h}": 0 if h == 0 else rng.choice([-1, 1]) * rng.randint(MS, 900 * MS) for h in range(3)}
    jitter = data.draw(st.sampled_from([0, 200, 3_000]))
    late = data.draw(st.sampled_from(ranks))
    numbered = data.draw(st.booleans())
    instances = run_of(ranks, 25, rng.randint(0, 10**6), late, jitter)
    if not numbered:
        instances = [Instance(i.arrivals, i.transfer, i.group, end_shift=i.end_shift) for i in instances]
    clocks = {rank: ahead[hosts[rank]] for rank in ranks}
    found = across(ranks_of(instances, clocks, hosts))
    told = by_host(found.clocks)
    for host in set(hosts.values()) - {"host0"}:
        assert told[host].applied
        assert told[host].offset_ns == pytest.approx(ahead[host], abs=2 * jitter)
    assert [one.rank for one in found.stragglers or []] == [late]
    lost = 25 * (len(ranks) - 1) * 200 * US
    assert costs(found)[late] == pytest.approx(lost, abs=25 * len(ranks) * 4 * jitter)
    assert found.unmatched == []
