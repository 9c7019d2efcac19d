"""What is drawn of one window."""

from __future__ import annotations

from analysis_helpers import comm, compute, draw, fused, gemm, memory

from sp_profiler.analysis.timeline import timeline_segments
from sp_profiler.classify.tables import Role


def lanes(segments) -> list[tuple[str, int, int]]:
    return [(one.lane, one.start_ns, one.end_ns) for one in segments]


def test_one_lane_for_each_thing_that_runs_clipped_to_the_window() -> None:
    drawn = draw(
        gemm(0, 10, Role.WGRAD, module="mlp.up", layer=3),
        comm(5, 15),
        memory(12, 13),
        gemm(20, 30),
        gemm(5, 6, device=1),
    )
    segments = timeline_segments(*drawn, 0, 4, 20)
    assert lanes(segments) == [("compute", 4, 10), ("communication", 5, 15), ("memory", 12, 13)]
    wgrad, collective, _ = segments
    assert (wgrad.kind, wgrad.role, wgrad.module, wgrad.layer) == ("computation", "wgrad", "mlp.up", 3)
    assert (collective.name, collective.kind, collective.layer) == (
        "all_reduce tp[0,1]",
        "communication",
        None,
    )


def test_streams_that_do_the_same_are_lanes_of_their_own() -> None:
    drawn = draw(gemm(0, 10, stream=7), gemm(5, 15, stream=9), fused(16, 18, stream=9), comm(0, 5))
    assert lanes(timeline_segments(*drawn, 0, 0, 20)) == [
        ("communication", 0, 5), ("compute (stream 7)", 0, 10), ("compute (stream 9)", 5, 15),
        ("compute (stream 9)", 16, 18),
    ]  # fmt: skip
    threads = draw(gemm(0, 10, stream=0), gemm(0, 10, stream=1), cpu=True)
    assert {one.lane for one in timeline_segments(*threads, 0, 0, 10)} == {
        "compute (thread 0)",
        "compute (thread 1)",
    }


def test_nothing_to_draw() -> None:
    assert timeline_segments(*draw(gemm(0, 10), comm(12, 12)), 0, 11, 20) == []


def test_too_many_alike_neighbours_are_joined_and_say_how_many_they_are() -> None:
    #  0 1 2 3 ... touching other kernels, then a wgrad, then others again with gaps of one
    drawn = draw(
        *(compute(i, i + 1, name="add") for i in range(100)), gemm(100, 150, Role.WGRAD),
        *(compute(i, i + 1, name="mul") for i in range(150, 200, 2)),
    )  # fmt: skip
    exact = timeline_segments(*drawn, 0, 0, 200)
    assert len(exact) == 126
    touching = timeline_segments(*drawn, 0, 0, 200, most=30)
    assert lanes(touching)[:2] == [("compute", 0, 100), ("compute", 100, 150)]
    assert touching[0].name == "100 activities, first add"
    assert len(touching) == 27  # joining what touches is enough
    coarse = timeline_segments(*drawn, 0, 0, 200, most=5)
    assert lanes(coarse) == [("compute", 0, 100), ("compute", 100, 150), ("compute", 150, 199)]
    assert [one.role for one in coarse] == ["other", "wgrad", "other"]
