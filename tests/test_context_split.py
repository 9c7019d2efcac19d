"""The split of exposed time against a replay written transfer by transfer, on random rings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sp_profiler.analysis.context_parallel.families import BOTH
from sp_profiler.analysis.context_parallel.split import split
from sp_profiler.analysis.context_parallel.tables import Rows

NONE = -1


@st.composite
def rings(draw: st.DrawFn) -> Rows:
    """Some passes of a ring of 2 to 5 ranks, with anything as times; some rows unmatched."""
    ranks = draw(st.integers(2, 5))
    hops, passes = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    each = hops * passes
    count = ranks * each

    def numbers(low: int, high: int) -> Any:
        return np.array(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)), np.int64)

    place = np.tile(np.arange(each), ranks)
    shown = np.repeat(np.arange(ranks), each)
    start = np.cumsum(numbers(0, 50))
    exposed, waited = numbers(0, 60), numbers(-1, 60)
    back = np.minimum(numbers(1, 3), place)
    needs_back = np.minimum(numbers(0, 3), place)
    row = np.arange(count)
    right = ((shown + 1) % ranks) * each + place
    pairs = np.stack((np.minimum(shown, shown[right]), np.maximum(shown, shown[right])))
    meeting = (pairs[0] * ranks + pairs[1]) * each + place  # of two ranks both ends are one meeting
    meets = np.concatenate((row, right))
    meetings, first = np.unique(
        np.stack((np.concatenate((meeting, meeting)), meets)), axis=1, return_index=True
    )
    assert len(first) == meetings.shape[1]
    return Rows(
        shown=shown,
        of_pass=shown * passes + place // hops,
        payload=np.zeros(count, np.int64),
        hop=place % hops,
        beside=place % hops,
        order=place % hops,
        before_ns=numbers(0, 100),
        needs=np.where(needs_back > 0, row - needs_back, NONE),
        follows=np.where(back > 0, row - back, NONE),
        start_ns=start,
        end_ns=start + 10,
        bytes=np.full(count, 1000),
        way=np.full(count, BOTH),
        is_whole=np.ones(count, np.bool_),
        hidden_ns=np.zeros(count, np.int64),
        exposed_ns=exposed,
        transfer_ns=np.where(waited >= 0, numbers(0, 30), NONE),
        waited_ns=waited,
        exposed_wait_ns=np.where(waited >= 0, np.minimum(waited, exposed), NONE),
        meeting=meetings[0],
        meets=meetings[1],
        payloads=("kv",),
        first_pass=np.arange(ranks + 1) * passes,
    )


def replayed(rows: Rows, took: list[int]) -> list[int]:
    """Waits of all rows: the rule of the module, one transfer after the other."""
    count, each = len(rows.shown), int((rows.shown == 0).sum())
    ended: dict[int, int] = {NONE: 0}
    clock: dict[int, int] = {}
    waits = [0] * count
    who: dict[int, list[int]] = {}
    for meeting, row in zip(rows.meeting.tolist(), rows.meets.tolist(), strict=True):
        who.setdefault(meeting, []).append(row)
    for k in range(each):
        now = [row for row in range(count) if row % each == k]
        arrival: dict[int, int] = {}
        for row in now:
            rank = int(rows.shown[row])
            ready = max(clock.get(rank, 0), ended[int(rows.needs[row])]) + int(rows.before_ns[row])
            clock[rank] = ready
            arrival[row] = max(ready, ended[int(rows.follows[row])])
        for row in now:
            met = max(arrival[other] for mates in who.values() if row in mates for other in mates)
            waits[row] = met - arrival[row]
            ended[row] = met + took[row]
    return waits


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rings())
def test_the_split_is_that_of_a_replay_transfer_by_transfer(rows: Rows) -> None:
    known = sorted(int(t) for t in rows.transfer_ns if t >= 0)
    usual = 10  # a row's own time, where no transfer is known
    if known:
        low, high = known[(len(known) - 1) // 2], known[len(known) // 2]
        usual = min(low + (high - low) // 2, usual)
    took = [int(t) if t >= 0 else usual for t in rows.transfer_ns]
    waits = replayed(rows, took)
    found = split(rows)
    for row, wait in enumerate(waits):
        parts = (found.communication_ns[row], found.imbalance_ns[row], found.skew_ns[row])
        if rows.waited_ns[row] < 0:
            assert parts == (NONE, NONE, NONE)
            continue
        imbalance = min(wait, int(rows.exposed_wait_ns[row]))
        assert parts[1] == imbalance
        assert sum(parts) == rows.exposed_ns[row]
        assert min(parts) >= 0


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_begin_later_meet_at_the_same_transfers(seed: int) -> None:
    """One rank's window lacks the first transfers: what remains is split as if nobody had them."""
    chance = np.random.default_rng(seed)
    each, lacking = 6, 2
    place = np.concatenate((np.arange(each), np.arange(lacking, each)))
    shown = np.repeat([0, 1], [each, each - lacking])
    count = len(shown)
    first = np.array([0, each])[shown]
    row = np.arange(count)
    before = np.where(shown == 0, 50, 80)
    start = np.cumsum(chance.integers(0, 50, count))
    rows = Rows(
        shown=shown,
        of_pass=shown,
        payload=np.zeros(count, np.int64),
        hop=place,
        beside=place,
        order=row - first,
        before_ns=before,
        needs=np.where(row > first, row - 1, NONE),
        follows=np.where(row > first, row - 1, NONE),
        start_ns=start,
        end_ns=start + 10,
        bytes=np.full(count, 1000),
        way=np.full(count, BOTH),
        is_whole=np.ones(count, np.bool_),
        hidden_ns=np.zeros(count, np.int64),
        exposed_ns=np.full(count, 40),
        transfer_ns=np.full(count, 10),
        waited_ns=np.where(place >= lacking, 30, NONE),
        exposed_wait_ns=np.where(place >= lacking, 30, NONE),
        meeting=place,
        meets=row,
        payloads=("kv",),
        first_pass=np.array([0, 1, 2]),
    )
    found = split(rows)
    # From the second common transfer on rank 0 waits 30 for rank 1's longer blocks, rank 1 never.
    assert found.imbalance_ns[lacking + 1 : each].tolist() == [30] * (each - lacking - 1)
    assert found.imbalance_ns[each + 1 :].tolist() == [0] * (each - lacking - 1)
