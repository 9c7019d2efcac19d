"""Pairing of allocations and frees: vectorised against an allocator that keeps a table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import Instant, events_of, memory_events

from sp_profiler.analysis.memory.blocks import BEFORE
from sp_profiler.analysis.memory.order import check_totals, device_events, device_keys
from sp_profiler.analysis.memory.pairing import Pairs, live_bytes, pair, unpaired

Block = tuple[int, int, int, int, bool]  # address, bytes, birth, death, free missing


def by_hand(instants: list[Instant]) -> tuple[set[Block], list[int], list[int]]:
    """Blocks, frees of what was free already, and events without an address: one event after the other."""
    taken: dict[int, tuple[int, int]] = {}  # address -> place of the allocation, bytes
    seen: set[int] = set()
    blocks: set[Block] = set()
    twice, nowhere = [], []
    for place, one in enumerate(instants):
        if one.address == 0:
            nowhere.append(place)
        elif one.bytes > 0:
            if one.address in taken:
                birth, size = taken[one.address]
                blocks.add((one.address, size, birth, place, True))
            taken[one.address] = (place, one.bytes)
        elif one.address in taken:
            birth, size = taken.pop(one.address)
            blocks.add((one.address, size, birth, place, False))
        elif one.address in seen:
            twice.append(place)
        else:
            blocks.add((one.address, -one.bytes, BEFORE, place, False))
        seen.add(one.address)
    for address, (birth, size) in taken.items():
        blocks.add((address, size, birth, len(instants), False))
    return blocks, twice, nowhere


def found(pairs: Pairs) -> set[Block]:
    columns = (pairs.address, pairs.bytes, pairs.birth, pairs.death, pairs.free_missing)
    return set(zip(*(column.tolist() for column in columns), strict=True))


INSTANTS = st.lists(
    st.builds(
        Instant,
        ts=st.integers(0, 40),
        bytes=st.integers(-3, 3).filter(bool).map(lambda n: 512 * n),
        address=st.one_of(st.integers(0, 5), st.integers(2**64 - 2, 2**64 - 1)),
        device=st.sampled_from([(0, -1), (1, 0), (1, 1)]),
    ),
    max_size=60,
)


@given(INSTANTS)
@settings(max_examples=400)
def test_pairs_are_those_of_a_table(instants: list[Instant]) -> None:
    memory = memory_events(instants)
    for device in device_keys(memory):
        events = device_events(memory, device)
        mine = sorted((one for one in instants if one.device == device), key=lambda one: one.ts)
        pairs = pair(events)
        blocks, twice, nowhere = by_hand(mine)
        assert found(pairs) == blocks
        assert len(pairs) == len(blocks)
        assert pairs.freed_twice.tolist() == twice
        assert pairs.without_address.tolist() == nowhere
        count, listed = unpaired(events, pairs, 1000)
        lone = sum(birth == BEFORE or death == len(mine) or missing for _, _, birth, death, missing in blocks)
        assert count == len(listed) == lone + len(twice) + len(nowhere)


@given(INSTANTS)
@settings(max_examples=200)
def test_bytes_are_conserved(instants: list[Instant]) -> None:
    memory = memory_events(instants)
    for device in device_keys(memory):
        events = device_events(memory, device)
        pairs = pair(events)
        start, live = live_bytes(events, pairs)
        # Each event changes the live bytes by its own, but for frees that belong to no block, frees that tell
        # other bytes than their allocation, and allocations that end a block.
        corrected = int(
            events.bytes.sum() - events.bytes[pairs.freed_twice].sum() - pairs.bytes[pairs.free_missing].sum()
        )
        freed = (pairs.death < len(events)) & ~pairs.free_missing & (pairs.birth != BEFORE)
        corrected -= int((pairs.bytes[freed] + events.bytes[pairs.death[freed]]).sum())
        alive = pairs.bytes[pairs.death == len(events)].sum()
        nowhere = events.bytes[pairs.without_address].sum()
        assert start + corrected == live[-1] == alive + nowhere


@st.composite
def allocators(draw: st.DrawFn) -> tuple[int, list[Instant]]:
    """What an allocator without faults does: bytes before the first event, and its events with totals."""
    start = draw(st.integers(0, 5)) * 1024
    old = {1000 + number: 1024 for number in range(start // 1024)}
    taken, total, instants = dict(old), start, []
    for ts in range(draw(st.integers(1, 40))):
        address = draw(st.sampled_from([*taken, *(a for a in range(1, 6) if a not in taken)]))
        size = -taken.pop(address) if address in taken else draw(st.integers(1, 4)) * 256
        if size > 0:
            taken[address] = size
        total += size
        instants.append(Instant(ts, size, address, total))
    return start, instants


@given(allocators())
def test_totals_of_a_sound_allocator_agree_at_every_event(drawn: tuple[int, list[Instant]]) -> None:
    start, instants = drawn
    events = events_of(instants)
    checked = check_totals(events)
    assert checked is not None
    assert (checked.checked, checked.disagree, checked.start_bytes) == (len(instants), 0, start)
    assert checked.total.tolist() == [one.total for one in instants]
    pairs = pair(events)
    before, live = live_bytes(events, pairs)
    never_freed = start - before  # nothing but the first total tells of it
    assert (live + never_freed).tolist() == checked.total.tolist()
    assert start + sum(one.bytes for one in instants) == checked.total[-1]


def test_an_address_is_used_again() -> None:
    events = events_of([Instant(0, 8, 1), Instant(1, -8, 1), Instant(2, 16, 1), Instant(3, -16, 1)])
    assert found(pair(events)) == {(1, 8, 0, 1, False), (1, 16, 2, 3, False)}


def test_events_without_their_other_half_are_listed_by_kind() -> None:
    instants = [
        Instant(0, -8, 1),  # allocated before the recording
        Instant(1, -16, 1),  # free already
        Instant(2, 32, 2),
        Instant(3, 64, 2),  # still taken
        Instant(4, 128, 3),
        Instant(5, 256, 0),
    ]
    count, listed = unpaired(events_of(instants), pair(events_of(instants)), 10)
    assert [(one.kind, one.bytes, one.address, one.time_ns) for one in listed] == [
        ("freed-twice", 16, 1, 1),
        ("allocated-twice", 32, 2, 2),
        ("freed-without-allocation", 8, 1, 0),
        ("alive-at-end", 128, 3, 4),
        ("alive-at-end", 64, 2, 3),
        ("without-address", 256, None, 5),
    ]
    assert count == 6
    assert unpaired(events_of(instants), pair(events_of(instants)), 2) == (6, listed[:2])


def test_sizes_that_differ_are_counted() -> None:
    pairs = pair(events_of([Instant(0, 8, 1), Instant(1, -16, 1)]))
    assert (pairs.sizes_differ, pairs.bytes.tolist()) == (1, [8])


def test_devices_and_addresses_beyond_int64_stay_apart() -> None:
    high = 2**64 - 1
    memory = memory_events(
        [Instant(0, 8, high, device=(1, 0)), Instant(1, 8, high, device=(1, 1)), Instant(2, -8, high)]
    )
    assert device_keys(memory) == [(1, 0), (1, 1)]
    assert found(pair(device_events(memory, (1, 0)))) == {(high, 8, 0, 1, False)}
    assert found(pair(device_events(memory, (1, 1)))) == {(high, 8, 0, 1, False)}


class TestOrder:
    def test_the_order_is_that_of_time_not_of_the_file(self) -> None:
        events = events_of([Instant(5, -8, 1, tid=1), Instant(1, 8, 1, tid=0)])
        assert events.row.tolist() == [1, 0]

    def test_equal_times_stay_in_file_order(self) -> None:
        events = events_of([Instant(5, 8, 1), Instant(5, -8, 1), Instant(5, 16, 1)])
        assert events.bytes.tolist() == [8, -8, 16]

    def test_totals_put_events_of_two_threads_into_their_order(self) -> None:
        # The second thread lost the processor between counting and stamping.
        before = [Instant(ts, 8, ts + 1, 8 * ts + 8) for ts in range(10)]
        late = [Instant(10, 8, 11, 88), Instant(16, 4, 12, 92, tid=1), Instant(15, -8, 1, 84)]
        events = events_of([*before, *late])
        assert (events.total.tolist()[-3:], events.moved) == ([88, 92, 84], 2)
        checked = check_totals(events)
        assert checked is not None
        assert (checked.disagree, checked.start_bytes) == (0, 0)

    def test_the_order_within_a_thread_stays(self) -> None:
        before = [Instant(ts, 8, ts + 1, 8 * ts + 8) for ts in range(10)]
        late = [Instant(10, 8, 11, 88), Instant(16, 4, 12, 92), Instant(15, -8, 1, 84)]
        events = events_of([*before, *late])
        assert (events.total.tolist()[-3:], events.moved) == ([88, 84, 92], 0)

    def test_many_threads_come_back_into_order(self) -> None:
        rng = np.random.default_rng(0)
        count = 4000
        sizes = rng.integers(1, 10**6, count)
        totals = 10**9 + np.cumsum(sizes)
        thread = rng.integers(0, 4, count)
        stamped = np.arange(count) * 1000 + np.where(
            rng.random(count) < 0.05, rng.integers(0, 5000, count), 0
        )
        for number in range(4):
            here = thread == number
            stamped[here] = np.maximum.accumulate(stamped[here])
        rows = zip(stamped.tolist(), sizes.tolist(), totals.tolist(), thread.tolist(), strict=True)
        given = [Instant(ts, size, 1 + i, total, tid) for i, (ts, size, total, tid) in enumerate(rows)]
        memory = memory_events(given)
        by_time = memory.total_allocated[np.argsort(memory.ts_ns, kind="stable")]
        wrong = int((by_time != totals).sum())
        left = int((device_events(memory, (1, 0)).total != totals).sum())
        assert wrong > 200
        assert left < wrong / 50

    def test_events_of_no_bytes_are_left_out_and_counted(self) -> None:
        events = events_of([Instant(0, 0, 1), Instant(1, 8, 1)])
        assert (len(events), events.empty) == (1, 1)


class TestTotals:
    def test_a_missing_event_counts_once_and_the_file_is_followed(self) -> None:
        checked = check_totals(events_of([Instant(0, 8, 1, 8), Instant(1, 8, 2, 24), Instant(2, 8, 3, 32)]))
        assert checked is not None
        assert (checked.checked, checked.disagree, checked.first) == (3, 1, 1)
        assert checked.total.tolist() == [8, 24, 32]

    def test_totals_on_some_events_are_carried_over_the_others(self) -> None:
        checked = check_totals(events_of([Instant(0, 8, 1), Instant(1, 8, 2, 116), Instant(2, -8, 2)]))
        assert checked is not None
        assert (checked.checked, checked.start_bytes, checked.total.tolist()) == (1, 100, [108, 116, 108])

    def test_no_totals_no_check(self) -> None:
        assert check_totals(events_of([Instant(0, 8, 1)])) is None

    @pytest.mark.parametrize("constant", [0, 7])
    def test_a_constant_is_not_trusted(self, constant: int) -> None:
        checked = check_totals(events_of([Instant(i, 8, i + 1, constant) for i in range(5)]))
        assert checked is not None
        assert not checked.trusted

    def test_negative_totals_are_totals(self) -> None:
        checked = check_totals(events_of([Instant(0, -8, 1, -8), Instant(1, -8, 2, -16)]))
        assert checked is not None
        assert (checked.disagree, checked.start_bytes) == (0, 0)
