"""C, K and M of one window, by role, and per device."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from analysis_helpers import (
    DP,
    TP,
    WHOLE,
    analyze,
    assert_identity,
    codes,
    comm,
    compute,
    draw,
    fused,
    gemm,
    memory,
    only_rank,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.classify.tables import Kind, Role


def roles(result) -> dict[str, int]:
    return {role: ns for role, ns in only_rank(result).overlapped_by_role_ns.items() if ns}


def test_the_figures_of_one_window() -> None:
    #  0   10   20   30   40   50   60
    #  KKKKKKKK           .    KKKKK        K [0,16) and [50,60)
    #       CCCCCCCCC     .    .            C [10,28)
    #       .       MMMMMMM    .            M [25,40)
    one = only_rank(analyze(gemm(0, 16), comm(10, 28), memory(25, 40), gemm(50, 60)))
    assert one.window_ns == 60
    assert one.comm_ns == 18
    assert one.compute_ns == 26
    assert one.overlapped_ns == 6  # [10,16)
    assert one.exposed_ns == 12  # [16,28)
    assert one.memory_op_ns == 15
    assert one.memory_op_only_ns == 12  # [28,40): the rest runs under C
    assert one.busy_ns == 50
    assert one.idle_ns == 10  # [40,50)
    assert one.overlap_ratio == 6 / 18
    assert_identity(one)


def test_two_ranks_basic_of_the_known_answers() -> None:
    #  GEMM 1000-2000, all-gather 1500-2500, all-reduce 3000-4000, GEMM 5000-7000 over reduce-scatter
    #  5200-6000, all-reduce 8000-8600: C 3400, K 3000, 1300 overlapped, 2100 exposed
    one = only_rank(
        analyze(
            gemm(1000, 2000), comm(1500, 2500), comm(3000, 4000), gemm(5000, 7000), comm(5200, 6000),
            comm(8000, 8600),
        )
    )  # fmt: skip
    assert (one.comm_ns, one.compute_ns, one.overlapped_ns, one.exposed_ns) == (3400, 3000, 1300, 2100)


def test_no_communication_gives_null_ratio_and_a_note() -> None:
    result = analyze(gemm(0, 10))
    assert only_rank(result).comm_ns == 0
    assert only_rank(result).overlap_ratio is None
    assert "no-communication" in codes(result)


def test_computation_on_device_1_hides_nothing_on_device_0() -> None:
    #  device 0:  CCCCCCCCCC      C [0,10)
    #  device 1:  KKKKKKKKKK      K [0,10)
    result = analyze(comm(0, 10), gemm(0, 10, device=1))
    zero, one = result.ranks
    assert (zero.device, zero.comm_ns, zero.overlapped_ns, zero.exposed_ns) == (0, 10, 0, 10)
    assert (one.device, one.comm_ns, one.compute_ns) == (1, 0, 10)


def test_memory_operations_hide_nothing() -> None:
    assert only_rank(analyze(comm(0, 10), memory(0, 10))).exposed_ns == 10


def test_each_instant_is_shared_between_the_distinct_roles() -> None:
    #  0        10        20        30
    #  CCCCCCCCCCCCCCCCCCCCCCCCCCCCCC
    #  wwwwwwwwwwwwwwwwwwww               wgrad [0,20)
    #            dddddddddd               dgrad [10,20): twice, but one role
    #            dddddddddd
    result = analyze(
        comm(0, 30), gemm(0, 20, Role.WGRAD), gemm(10, 20, Role.DGRAD), gemm(10, 20, Role.DGRAD, stream=8)
    )
    assert roles(result) == {"dgrad": 5, "wgrad": 15}


def test_rounding_by_largest_remainder_with_ties_in_the_order_of_roles() -> None:
    # 1 ns shared by two roles: 420 shares each, a tie; fwd comes before wgrad.
    assert roles(analyze(comm(0, 1), gemm(0, 1, Role.WGRAD), gemm(0, 1, Role.FWD))) == {"fwd": 1}
    # 5 ns by three: 1 2/3 each, two spare nanoseconds for the first two in order.
    three = [gemm(0, 5, role) for role in (Role.OTHER, Role.ATTENTION, Role.DGRAD)]
    assert roles(analyze(comm(0, 5), *three)) == {"dgrad": 2, "attention": 2, "other": 1}
    # wgrad has 1 + 1/2 = 1.5, dgrad 1/2 + 1/3 and unknown 1/3 of what is below: by remainder, not by order.
    #  0 1 2 3      [0,1) wgrad, [1,2) wgrad+dgrad, [2,3) dgrad+unknown+wgrad
    mixed = [gemm(0, 3, Role.WGRAD), gemm(1, 3, Role.DGRAD), gemm(2, 3, Role.UNKNOWN)]
    # shares: wgrad 1 + 1/2 + 1/3 = 1.833, dgrad 0.833, unknown 0.333: wgrad (same remainder as dgrad) 1,
    # two spare nanoseconds go to the remainders .833 of dgrad and of wgrad.
    assert roles(analyze(comm(0, 3), *mixed)) == {"dgrad": 1, "wgrad": 2}


def test_all_roles_are_listed_even_with_nothing() -> None:
    listed = only_rank(analyze(comm(0, 1))).overlapped_by_role_ns
    assert list(listed) == [
        "fwd",
        "recompute",
        "dgrad",
        "wgrad",
        "attention",
        "optimizer",
        "other",
        "unknown",
    ]
    assert set(listed.values()) == {0}


def test_a_fused_kernel_is_in_both_counts_as_overlapped_and_is_listed_apart() -> None:
    #  0    10   20   30
    #  FFFFFFFFFF           fused [0,20)
    #       CCCCCCCCCC      C [10,30)
    result = analyze(fused(0, 20, Role.DGRAD), comm(10, 30))
    one = only_rank(result)
    assert (one.comm_ns, one.compute_ns, one.overlapped_ns, one.exposed_ns) == (30, 20, 20, 10)
    assert one.fused_ns == 20
    assert roles(result) == {"dgrad": 20}
    first = result.collectives[0]
    assert (first.exposed_ns, first.exposed_share_ns, first.partner) == (0, 0, None)
    assert first.note is not None
    assert "one kernel" in first.note


def test_zero_length_activities_count_for_nothing_and_are_listed() -> None:
    result = analyze(gemm(0, 10), comm(5, 5), comm(10, 12))
    assert only_rank(result).comm_ns == 2
    assert [(c.start_ns, c.dur_ns, c.exposed_ns) for c in result.collectives] == [(5, 0, 0), (10, 2, 2)]


def test_a_communication_that_is_no_collective_is_a_defect_not_a_wrong_sum() -> None:
    trace, classified = draw(comm(0, 10))
    broken = type(classified)(**(vars(classified) | {"collectives": ()}))
    with pytest.raises(AssertionError, match="is no collective"):
        analyze_rank(trace, broken, WHOLE)


activity = st.tuples(
    st.sampled_from([Kind.COMMUNICATION, Kind.COMPUTATION, Kind.FUSED, Kind.MEMORY]),
    st.integers(0, 20),
    st.integers(0, 9),
    st.sampled_from(list(Role)),
    st.sampled_from([TP, DP, None]),
)


def drawn_of(kind: Kind, start: int, length: int, role: Role, group) -> object:
    end = start + length
    if kind == Kind.COMMUNICATION:
        return comm(start, end, group=group)
    if kind == Kind.FUSED:
        return fused(start, end, role, group=group)
    return memory(start, end) if kind == Kind.MEMORY else compute(start, end, role)


@given(st.lists(activity, min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_everything_equals_counting_ticks(rows: list) -> None:
    result = analyze(*(drawn_of(*row) for row in rows))
    one = only_rank(result)
    assert_identity(one)

    def running(tick: int, *kinds: Kind) -> list:
        return [row for row in rows if row[0] in kinds and row[1] <= tick < row[1] + row[2]]

    low = min(row[1] for row in rows)
    ticks = range(low, max(row[1] + row[2] for row in rows))
    in_c = {t for t in ticks if running(t, Kind.COMMUNICATION, Kind.FUSED)}
    in_k = {t for t in ticks if running(t, Kind.COMPUTATION, Kind.FUSED)}
    in_m = {t for t in ticks if running(t, Kind.MEMORY)}
    assert (one.comm_ns, one.compute_ns, one.memory_op_ns) == (len(in_c), len(in_k), len(in_m))
    assert (one.overlapped_ns, one.exposed_ns) == (len(in_c & in_k), len(in_c - in_k))
    assert one.memory_op_only_ns == len(in_m - in_c - in_k)
    assert one.window_ns == len(ticks)
    assert one.fused_ns == len({t for t in ticks if running(t, Kind.FUSED)})

    exact = dict.fromkeys(Role, Fraction(0))
    for tick in in_c & in_k:
        there = {row[3] for row in running(tick, Kind.COMPUTATION, Kind.FUSED)}
        for role in there:
            exact[role] += Fraction(1, len(there))
    for role, share in exact.items():
        assert abs(one.overlapped_by_role_ns[role.name.lower()] - share) < 1

    by_group = {}
    for group in (TP, DP, None):
        key = group.key if group else "unknown"
        mine = {
            t for t in ticks for row in running(t, Kind.COMMUNICATION, Kind.FUSED) if row[4] == group
        }  # fmt: skip
        if mine:
            by_group[key] = len(mine - in_k)
    assert one.exposed_union_by_group_ns == by_group


def test_figures_are_plain_python_numbers() -> None:
    one = only_rank(analyze(comm(0, 3), gemm(0, 2, Role.WGRAD)))
    for value in (
        *vars(one).values(),
        *one.overlapped_by_role_ns.values(),
        *one.exposed_by_group_ns.values(),
    ):
        assert not isinstance(value, np.generic)
