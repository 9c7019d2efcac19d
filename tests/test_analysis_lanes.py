"""What can be drawn of a rank, and what of it a screen shows: against painting nanosecond by nanosecond."""

from __future__ import annotations

import numpy as np
from analysis_helpers import comm, compute, draw, fused, gemm, memory, step
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.analysis.lanes import LOOKS, Budget, Lanes, lanes_of_rank, view
from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify.tables import Role
from sp_profiler.report.palette import KIND, ROLE


def lanes(*drawn, **more) -> Lanes:
    trace, classified = draw(*drawn, **more)
    return lanes_of_rank(trace, classified, analyze_rank(trace, classified, WindowRule()))


def look(name: str) -> int:
    return LOOKS.index(name)


def test_looks_are_those_of_the_palette() -> None:
    assert (*ROLE, *KIND) == LOOKS


def test_rows_lie_lane_by_lane_with_names_modules_and_collectives() -> None:
    found = lanes(
        comm(5, 15, layer=2), gemm(0, 10, Role.WGRAD, module="mlp.up"), memory(12, 13), comm(20, 30),
        gemm(4, 6, device=1), steps=(step(3, 0, 40),),
    )  # fmt: skip
    assert found.names == (
        "device 0: compute", "device 0: communication", "device 0: memory", "device 1: compute",
    )  # fmt: skip
    assert found.device.tolist() == [0, 0, 0, 1]
    assert found.first.tolist() == [0, 1, 3, 4, 5]
    assert found.start_ns.tolist() == [0, 5, 20, 12, 4]
    assert [LOOKS[one] for one in found.look] == [
        "wgrad",
        "communication",
        "communication",
        "memory",
        "unknown",
    ]
    assert [found.text(code) for code in found.name] == [
        "kernel", "all_reduce tp[0,1]", "all_reduce tp[0,1]", "kernel", "kernel",
    ]  # fmt: skip
    assert [found.text(code) for code in found.module] == ["mlp.up", None, None, None, None]
    assert found.collective.tolist() == [-1, 0, 1, -1, -1]
    assert found.exposed.tolist() == [[0, 10, 15], [0, 20, 30]]
    assert found.span == (0, 30)
    assert len(found.steps) == 2  # a window for each device


def test_few_activities_are_exact_and_many_become_bins() -> None:
    found = lanes(comm(0, 100), *(compute(i, i + 1) for i in range(0, 100, 2)))
    seen = view(found, 0, 100, 10, Budget(rows=20))
    dense, exact = seen.lanes
    assert exact.rows is not None
    assert found.end_ns[exact.rows].tolist() == [100]
    assert dense.rows is None
    assert dense.activities == 50
    assert list(dense.bins) == [look("other")]
    assert dense.bins[look("other")].sum() == 50
    close = view(found, 10, 20, 10, Budget(rows=20))
    assert close.lanes[0].rows is not None
    assert found.start_ns[close.lanes[0].rows].tolist() == [10, 12, 14, 16, 18]


def test_a_long_activity_that_began_long_ago_is_in_view() -> None:
    found = lanes(gemm(0, 1000), gemm(5, 6), gemm(10, 20))
    (lane,) = view(found, 500, 600, 100).lanes
    assert lane.rows is not None
    assert lane.rows.tolist() == [0]


def test_an_instant_of_two_kernels_on_one_stream_is_counted_once() -> None:
    found = lanes(gemm(0, 10, Role.WGRAD), gemm(6, 14, Role.DGRAD), gemm(2, 4, Role.FWD))
    (lane,) = view(found, 0, 20, 4, Budget(rows=0)).lanes
    edges = np.arange(0, 21, 5).tolist()
    assert view(found, 0, 20, 4, Budget(rows=0)).edges.tolist() == list(range(21))  # never below 1 ns a bin
    assert {LOOKS[one]: ns.sum() for one, ns in lane.bins.items()} == {"wgrad": 10, "dgrad": 4}
    assert found.busy_ns(0, edges[1], edges[2]) == 5


def test_exposed_stretches_are_exact_when_few_and_bins_when_many() -> None:
    found = lanes(*(comm(i, i + 5) for i in range(0, 1000, 10)), gemm(0, 3))
    few = view(found, 0, 20, 100)
    assert (few.exposed[0].start.tolist(), few.exposed[0].end.tolist()) == ([3, 10], [5, 15])
    many = view(found, 0, 1000, 100, Budget(rows=30))
    assert many.exposed_bins[0].sum() == 500 - 3


def test_of_more_lanes_than_the_budget_allows_the_busiest_are_drawn() -> None:
    found = lanes(*(gemm(0, 10 + stream, stream=stream) for stream in range(8)))
    seen = view(found, 0, 100, 100, Budget(lanes=3))
    assert [found.names[one.lane] for one in seen.lanes] == [f"compute (stream {n})" for n in (5, 6, 7)]
    assert seen.lanes_left_out == 5
    chosen = np.array([name.endswith("2)") for name in found.names])
    assert [one.lane for one in view(found, 0, 100, 100, Budget(lanes=3), chosen).lanes] == [2]


def test_no_answer_holds_more_than_its_budget() -> None:
    streams = [
        gemm(i, i + 2, role, stream=s) for s in range(20) for i in range(0, 300, 3) for role in (Role.FWD,)
    ]
    found = lanes(*streams, comm(0, 300))
    budget = Budget(rows=150, cells=2000, lanes=12)
    seen = view(found, 0, 300, 4000, budget)
    assert sum(len(one.rows) for one in seen.lanes if one.rows is not None) <= 150
    assert sum(len(ns) for one in seen.lanes for ns in one.bins.values()) <= 2000
    assert len(seen.lanes) == 12


def test_nothing_ran() -> None:
    found = lanes()
    seen = view(found, *found.span, 100)
    assert (seen.lanes, seen.exposed, seen.exposed_bins) == ((), {}, {})


activity = st.tuples(
    st.integers(0, 60),
    st.integers(0, 12),
    st.integers(7, 8),
    st.sampled_from(["fwd", "wgrad", "copy", "comm", "fused"]),
)


def _drawn(start: int, length: int, stream: int, what: str):
    if what == "copy":
        return memory(start, start + length, stream=stream)
    if what == "comm":
        return comm(start, start + length, stream=stream)
    if what == "fused":
        return fused(start, start + length, stream=stream)
    return gemm(start, start + length, Role[what.upper()], stream=stream)


@settings(max_examples=150, deadline=None)
@given(st.lists(activity, max_size=25), st.integers(0, 60), st.integers(1, 40), st.integers(1, 9))
def test_bins_are_what_painting_gives(
    drawn: list[tuple[int, int, int, str]], low: int, span: int, bins: int
) -> None:
    found = lanes(*(_drawn(*one) for one in drawn))
    for lane in range(len(found.names)):
        painted: dict[int, int] = {}
        for row in range(int(found.first[lane]), int(found.first[lane + 1])):
            for tick in range(int(found.start_ns[row]), int(found.end_ns[row])):
                painted.setdefault(tick, int(found.look[row]))
        edges = np.unique(low + span * np.arange(bins + 1) // bins)
        binned = found.binned(lane, edges)
        for begin, end, place in zip(
            edges[:-1].tolist(), edges[1:].tolist(), range(len(edges)), strict=False
        ):
            inside = [painted[tick] for tick in range(begin, end) if tick in painted]
            expected = {one: inside.count(one) for one in set(inside)}
            assert {one: int(ns[place]) for one, ns in binned.items() if ns[place]} == expected
        assert sum(int(ns.sum()) for ns in binned.values()) == found.busy_ns(lane, low, low + span)
        begin, stop = found.rows_within(lane, low, low + span)
        running = {row for row in range(begin, stop) if found.end_ns[row] > low}
        assert running == {
            row
            for row in range(int(found.first[lane]), int(found.first[lane + 1]))
            if found.start_ns[row] < low + span and found.end_ns[row] > low
        }


def test_exposed_time_is_that_of_the_report() -> None:
    trace, classified = draw(comm(0, 50), gemm(10, 30), comm(60, 70, stream=21), fused(65, 80, stream=7))
    result = analyze_rank(trace, classified, WindowRule("trace"))
    found = lanes_of_rank(trace, classified, result)
    assert int((found.exposed[:, 2] - found.exposed[:, 1]).sum()) == result.ranks[0].exposed_ns == 35
