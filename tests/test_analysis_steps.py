"""Windows: where each step begins and ends on a device, and what lies outside."""

from __future__ import annotations

import pytest
from analysis_helpers import (
    WHOLE,
    analyze,
    assert_identity,
    codes,
    comm,
    compute,
    gemm,
    memory,
    only_rank,
    step,
    windows_of,
)

from sp_profiler.analysis.steps import WindowRule
from sp_profiler.errors import UsageError


def outside(result) -> list[tuple[str, str, int, int]]:
    return [(out.reason, out.kind, out.events, out.ns) for out in only_rank(result).left_out]


def test_windows_begin_at_the_first_kernel_and_tile() -> None:
    #  CPU   [step 0 ][step 1 ]
    #        0        10       20
    #  GPU       KKKK     CCCCCCCC KKKK       the device runs behind the CPU
    #            4  8     14    22 24 30
    steps = (step(0, 0, 10), step(1, 10, 20))
    result = analyze(gemm(4, 8, launch=1), comm(14, 22, launch=3), gemm(24, 30, launch=12), steps=steps)
    #  step 0: [4, 24) holds the collective that runs late; step 1: to the end of what it launched.
    assert windows_of(result) == [(0, 4, 24), (1, 24, 30)]
    assert [one.comm_ns for one in result.steps] == [8, 0]
    assert only_rank(result).window_ns == 26
    assert outside(result) == []


def test_the_last_window_ends_with_its_cpu_range_when_that_is_later() -> None:
    assert windows_of(analyze(gemm(4, 8, launch=1), steps=(step(3, 0, 10),))) == [(3, 4, 10)]


def test_a_copy_does_not_begin_a_window_but_ends_the_last_one() -> None:
    #  memory [2,5) launched by step 0 comes before its first kernel: left out, and listed
    result = analyze(
        memory(2, 5, launch=0), gemm(6, 8, launch=1), memory(20, 25, launch=2), steps=(step(0, 0, 10),)
    )
    assert windows_of(result) == [(0, 6, 25)]
    assert outside(result) == [("before-first-window", "memory", 1, 3)]


def test_a_step_that_launched_nothing_begins_with_its_cpu_range() -> None:
    steps = (step(0, 0, 10), step(1, 10, 20), step(2, 20, 30))
    result = analyze(gemm(4, 8, launch=1), gemm(22, 26, launch=21), steps=steps)
    assert windows_of(result) == [(0, 4, 10), (1, 10, 22), (2, 22, 30)]
    assert [one.busy_ns for one in result.steps] == [4, 0, 4]


def test_a_step_that_launched_nothing_while_the_device_is_behind_comes_after_what_was_launched() -> None:
    #  CPU  [0 ][1 ]          [2 ]
    #  GPU            KKKKKKKKKK    KKK     step 0's kernels [12,24), step 2's [40,44); step 1's range is
    #                                       [4,8): the definition would make it begin before step 0
    steps = (step(0, 0, 4), step(1, 4, 8), step(2, 30, 38))
    result = analyze(gemm(12, 24, launch=1), gemm(40, 44, launch=31), steps=steps)
    assert windows_of(result) == [(0, 12, 24), (1, 24, 40), (2, 40, 44)]
    assert "window-start-moved" in codes(result)


def test_a_kernel_that_ran_before_the_step_before_cannot_begin_a_window() -> None:
    #  step 1 prefetches on its own stream at [5,7), before step 0's first kernel [10,20)
    steps = (step(0, 0, 4), step(1, 4, 8))
    result = analyze(compute(5, 7, launch=5), gemm(10, 20, launch=1), gemm(22, 30, launch=6), steps=steps)
    assert windows_of(result) == [(0, 10, 22), (1, 22, 30)]
    assert outside(result) == [("before-first-window", "computation", 1, 2)]
    assert "window-start-moved" in codes(result)


def test_steps_without_any_known_launch_fall_back_to_cpu_ranges() -> None:
    result = analyze(gemm(2, 6), comm(8, 18), steps=(step(0, 0, 10), step(1, 10, 20)))
    assert windows_of(result) == [(0, 0, 10), (1, 10, 20)]
    assert [one.comm_ns for one in result.steps] == [2, 8]
    assert [entry.count for entry in result.ledger if entry.code == "launch-not-in-trace"] == [2]


def test_what_no_step_launched_counts_where_it_runs_with_a_note() -> None:
    steps = (step(0, 10, 20),)
    result = analyze(gemm(12, 16, launch=11), comm(14, 18, launch=5), steps=steps)
    assert only_rank(result).comm_ns == 4
    assert [(e.code, e.severity, e.count) for e in result.ledger if "launched" in e.code] == [
        ("launched-outside-steps", "note", 1)
    ]
    assert result.collectives[0].step is None


def test_what_lies_before_and_after_the_windows_is_left_out_by_kind() -> None:
    #  step 0's window is [20, 40); C [0,8) and [4,12) before (12 together), one [18,24) half inside; K after
    result = analyze(
        comm(0, 8), comm(4, 12), comm(18, 24), gemm(20, 30, launch=2), gemm(38, 45), memory(50, 52),
        steps=(step(0, 0, 40),),
    )  # fmt: skip
    assert windows_of(result) == [(0, 20, 40)]
    assert outside(result) == [
        ("before-first-window", "communication", 3, 14),  # [0,12) and [18,20)
        ("after-last-window", "computation", 1, 5),
        ("after-last-window", "memory", 1, 2),
    ]
    assert [(c.start_ns, c.overlapped_ns, c.exposed_ns) for c in result.collectives] == [(18, 4, 0)]
    assert only_rank(result).comm_ns == 4


def test_what_takes_no_time_is_left_out_by_count() -> None:
    #  empty kernels at 5 (before), 20 (where the next window would begin: inside) and 40 (after)
    result = analyze(
        comm(5, 5),
        gemm(10, 12, launch=1),
        compute(20, 20),
        gemm(30, 30),
        memory(40, 40),
        steps=(step(0, 0, 20),),
    )
    assert windows_of(result) == [(0, 10, 20)]
    assert outside(result) == [
        ("before-first-window", "communication", 1, 0),
        ("after-last-window", "computation", 1, 0),
        ("after-last-window", "memory", 1, 0),
    ]


def test_each_device_has_windows_of_its_own() -> None:
    steps = (step(0, 0, 10), step(1, 10, 20))
    result = analyze(
        gemm(3, 5, launch=1), gemm(13, 15, launch=11), gemm(6, 8, launch=2, device=1), steps=steps
    )
    assert [(s.device, s.step, s.start_ns, s.end_ns) for s in result.steps] == [
        (0, 0, 3, 13), (0, 1, 13, 20), (1, 0, 6, 10), (1, 1, 10, 20),
    ]  # fmt: skip


def test_cpu_only_files_use_the_cpu_ranges() -> None:
    steps = (step(0, 0, 10), step(1, 10, 20))
    result = analyze(compute(4, 8, launch=4), comm(12, 26, launch=11), steps=steps, cpu=True)
    assert windows_of(result) == [(0, 0, 10), (1, 10, 26)]
    assert only_rank(result).device_type == "cpu"


def test_whole_trace_by_rule_or_for_want_of_steps() -> None:
    drawn = (gemm(4, 8, launch=1), comm(6, 20, launch=2))
    by_rule = analyze(*drawn, steps=(step(0, 0, 10),), rule=WHOLE)
    assert windows_of(by_rule) == [(None, 4, 20)]
    assert "no-step-ranges" not in codes(by_rule)
    assert by_rule.collectives[0].step == 0
    without = analyze(*drawn)
    assert windows_of(without) == [(None, 4, 20)]
    assert "no-step-ranges" in codes(without)


STEPS = tuple(step(n, 10 * n, 10 * n + 10) for n in (3, 4, 5, 8))
KERNELS = tuple(gemm(10 * n + 2, 10 * n + 6, launch=10 * n + 1) for n in (3, 4, 5, 8))


def test_chosen_steps_and_what_is_left_out_around_them() -> None:
    result = analyze(*KERNELS, steps=STEPS, rule=WindowRule("step", (4, 6)))
    assert windows_of(result) == [(4, 42, 52), (5, 52, 82)]
    assert outside(result) == [
        ("before-first-window", "computation", 1, 4), ("after-last-window", "computation", 1, 4),
    ]  # fmt: skip
    # A gap in the numbers is no gap in time.
    assert windows_of(analyze(*KERNELS, steps=STEPS, rule=WindowRule("step", (5, 99)))) == [
        (5, 52, 82), (8, 82, 90),
    ]  # fmt: skip


def test_choosing_steps_that_are_not_there_is_the_users_error() -> None:
    with pytest.raises(UsageError, match=r"none of the steps 6:8 is in rank-00000.json: it holds 3, 4, 5, 8"):
        analyze(*KERNELS, steps=STEPS, rule=WindowRule("step", (6, 8)))
    with pytest.raises(UsageError, match="no ProfilerStep range"):
        analyze(*KERNELS, rule=WindowRule("step", (0, 1)))
    with pytest.raises(UsageError, match="only with the window rule 'step'"):
        analyze(*KERNELS, steps=STEPS, rule=WindowRule("trace", (3, 4)))


def test_numbers_that_come_again_are_steps_of_their_own() -> None:
    #  two profiling sessions, each with a step 0 and a step 1
    steps = tuple(step(n % 2, 10 * n, 10 * n + 10) for n in range(4))
    kernels = [gemm(10 * n + 3, 10 * n + 9, launch=10 * n + 1) for n in range(4)]
    assert windows_of(analyze(*kernels, steps=steps)) == [
        (0, 3, 13), (1, 13, 23), (0, 23, 33), (1, 33, 40),
    ]  # fmt: skip
    only_zero = analyze(*kernels, steps=steps, rule=WindowRule("step", (0, 1)))
    assert windows_of(only_zero) == [(0, 3, 13), (0, 23, 33)]
    assert outside(only_zero) == [
        ("after-last-window", "computation", 1, 6), ("between-windows", "computation", 1, 6),
    ]  # fmt: skip
    assert_identity(only_rank(only_zero))


def test_copies_of_one_range_are_one_step() -> None:
    steps = (step(7, 0, 10), step(7, 1, 9), step(8, 10, 20))
    assert windows_of(analyze(gemm(2, 5, launch=1), gemm(12, 15, launch=11), steps=steps)) == [
        (7, 2, 12), (8, 12, 20),
    ]  # fmt: skip


def test_no_activity_on_a_device_is_null_and_a_loss() -> None:
    result = analyze(steps=(step(0, 0, 10),))
    one = only_rank(result)
    for name in (
        "comm_ns",
        "compute_ns",
        "overlapped_ns",
        "exposed_ns",
        "overlap_ratio",
        "idle_ns",
        "window_ns",
    ):
        assert getattr(one, name) is None
    assert [(e.code, e.severity) for e in result.ledger] == [("no-device-activity", "loss")]
    assert (result.steps, result.collectives, one.exposed_by_group_ns) == ((), (), {})


def test_a_cpu_only_file_with_nothing_lost_nothing() -> None:
    result = analyze(cpu=True)
    assert only_rank(result).comm_ns is None
    assert [(e.code, e.severity) for e in result.ledger] == [("no-cpu-activity", "note")]


def test_what_is_not_analysed_is_null_and_says_so() -> None:
    assert "cpu-run-no-speed" in codes(analyze(comm(0, 1), cpu=True))
    assert "cpu-run-no-speed" not in codes(analyze(comm(0, 1)))


def test_a_trace_of_instants_only_still_has_a_window() -> None:
    assert windows_of(analyze(compute(5, 5), compute(9, 9), rule=WHOLE)) == [(None, 5, 9)]
