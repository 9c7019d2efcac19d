"""Host-bound gaps: idle because the next launch had not happened. Drawn, with expected ns."""

from __future__ import annotations

from analysis_helpers import analyze, comm, compute, memory, only_rank, step


def test_idle_before_the_launch_of_what_runs_next() -> None:
    #  [0,10) runs, the next kernel is launched at 40 and begins at 45: 30 host-bound, 5 launch latency
    one = only_rank(analyze(compute(0, 10, launch=0), compute(45, 60, launch=40)))
    assert (one.idle_ns, one.host_bound_ns) == (35, 30)


def test_a_kernel_launched_ahead_waits_for_something_else() -> None:
    assert only_rank(analyze(compute(0, 10, launch=0), compute(45, 60, launch=5))).host_bound_ns == 0


def test_of_several_that_start_together_the_first_launched_counts() -> None:
    one = only_rank(analyze(compute(0, 10, launch=0), compute(45, 60, launch=40), comm(45, 50, launch=20)))
    assert one.host_bound_ns == 10


def test_copies_count_as_next() -> None:
    assert only_rank(analyze(compute(0, 10, launch=0), memory(30, 40, launch=25))).host_bound_ns == 15


def test_an_unknown_launch_says_nothing() -> None:
    one = only_rank(analyze(compute(0, 10, launch=0), compute(45, 60), compute(70, 80, launch=68)))
    assert one.host_bound_ns == 8  # [60,68) only
    assert only_rank(analyze(compute(0, 10), compute(45, 60))).host_bound_ns is None


def test_steps_sum_to_the_rank() -> None:
    #  idle [10,40), launched at 38; the border of the steps is at 40. Idle [60,90), launched at 85
    result = analyze(
        compute(0, 10, launch=0),
        compute(40, 60, launch=38),
        compute(90, 95, launch=85),
        steps=(step(0, 0, 30), step(1, 30, 100)),
    )
    assert [one.host_bound_ns for one in result.steps] == [28, 25]
    assert only_rank(result).host_bound_ns == 53


def test_cpu_runs_have_none() -> None:
    assert only_rank(analyze(compute(0, 10), compute(45, 60), cpu=True)).host_bound_ns is None
