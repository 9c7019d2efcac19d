"""Whose time is exposed: shares per collective and by group, op, purpose, phase, module and layer."""

from __future__ import annotations

from analysis_helpers import DP, TP, analyze, assert_identity, comm, gemm, only_rank, step
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.classify.tables import Phase


def shares(result) -> list[int]:
    return [one.exposed_share_ns for one in result.collectives]


def test_two_collectives_share_what_is_exposed_while_both_run() -> None:
    #  0    10   20   30
    #  aaaaaaaaaa           a [0,20)
    #       bbbbbbbbbb      b [10,30)
    #  KKK                  K [0,5)
    result = analyze(comm(0, 20), comm(10, 30, group=DP), gemm(0, 5))
    a, b = result.collectives
    assert (a.overlapped_ns, a.exposed_ns, a.exposed_share_ns) == (5, 15, 10)  # [5,10) alone, half of [10,20)
    assert (b.overlapped_ns, b.exposed_ns, b.exposed_share_ns) == (0, 20, 15)
    one = only_rank(result)
    assert one.exposed_by_group_ns == {"tp[0,1]": 10, "dp[0,2]": 15}  # sums to 25 exposed
    assert one.exposed_union_by_group_ns == {"tp[0,1]": 15, "dp[0,2]": 20}  # how long each was exposed
    assert_identity(one)


def test_spare_nanoseconds_go_to_the_first_by_start_then_id() -> None:
    # 7 ns shared by three that start together: 2 each, the spare one to the lowest id.
    assert shares(analyze(comm(0, 7), comm(0, 7), comm(0, 7))) == [3, 2, 2]
    #  a [0,4) b [1,4): [0,1) a alone; [1,4) 3 ns by two: 1 each, the spare one to a, which began first.
    assert shares(analyze(comm(1, 4), comm(0, 4))) == [3, 1]


def test_every_key_sums_to_exposed_and_missing_ones_are_unknown() -> None:
    one = only_rank(
        analyze(
            comm(0, 10, module="layers.0.mlp", layer=0, purpose="dgrad", phase=Phase.BACKWARD),
            comm(20, 25, op=None, group=None),
        )
    )
    assert one.exposed_by_module_ns == {"layers.0.mlp": 10, "unknown": 5}
    assert one.exposed_by_layer_ns == {"0": 10, "unknown": 5}
    assert one.exposed_by_purpose_ns == {"dgrad": 10, "unknown": 5}
    assert one.exposed_by_phase_ns == {"backward": 10, "unknown": 5}
    assert one.exposed_by_op_ns == {"all_reduce": 10, "unknown": 5}
    assert one.exposed_by_group_ns == {"tp[0,1]": 10, "unknown": 5}
    assert one.exposed_by_cause_ns == {"unknown": 15}


def test_a_wholly_hidden_group_is_listed_with_zero() -> None:
    one = only_rank(analyze(comm(0, 10), gemm(0, 10)))
    assert one.exposed_by_group_ns == {"tp[0,1]": 0}
    assert one.exposed_union_by_group_ns == {"tp[0,1]": 0}


def test_a_collective_across_the_border_of_two_windows_has_a_share_in_each() -> None:
    #       t_0          t_1
    #  0     10    20    30    40    50
    #        KK          KK               first kernels of the steps
    #             CCCCCCCCCCCCCCCC        C [20,45) launched in step 0
    steps = (step(0, 0, 9), step(1, 9, 40))
    result = analyze(gemm(10, 12, launch=1), comm(20, 45, launch=2), gemm(30, 32, launch=10), steps=steps)
    first, second = result.steps
    assert (first.start_ns, first.end_ns, second.start_ns, second.end_ns) == (10, 30, 30, 40)
    assert first.exposed_by_group_ns == {"tp[0,1]": 10}  # [20,30)
    assert second.exposed_by_group_ns == {"tp[0,1]": 8}  # [32,40): the last window ends with step 1
    one = result.collectives[0]
    assert one.step == 0
    assert (one.start_ns, one.dur_ns) == (20, 25)
    assert (one.overlapped_ns, one.exposed_ns, one.exposed_share_ns) == (2, 18, 18)
    assert one.note == "only 20 of 25 ns lie inside the chosen windows"
    assert [(out.reason, out.kind, out.events, out.ns) for out in only_rank(result).left_out] == [
        ("after-last-window", "communication", 1, 5)
    ]


def test_shares_are_rounded_window_by_window_so_that_steps_sum_to_the_rank() -> None:
    # Two collectives [0,10) across a border at 5: 5 ns by two in each window, a spare one in each.
    steps = (step(0, 0, 4), step(1, 4, 10))
    result = analyze(
        comm(0, 10, launch=0), comm(0, 10, launch=1, group=DP), gemm(5, 5, launch=4), steps=steps
    )
    assert [one.exposed_by_group_ns for one in result.steps] == [{"tp[0,1]": 3, "dp[0,2]": 2}] * 2
    assert shares(result) == [6, 4]


def test_groups_over_the_run() -> None:
    result = analyze(
        comm(0, 20, bytes=100), comm(10, 30, bytes=50), comm(40, 50, group=DP, bytes=None), gemm(0, 5)
    )
    tp, dp = result.groups
    assert (tp.group, tp.ranks, tp.size, tp.backend) == ("tp[0,1]", [0, 1], 2, "nccl")
    assert (tp.collectives, tp.bytes) == (2, 150)
    assert (tp.comm_ns, tp.overlapped_ns, tp.exposed_share_ns) == (30, 5, 25)  # unions, and the sum of shares
    assert (dp.collectives, dp.bytes) == (1, None)  # one size is not known: no sum is


def test_coverage_is_weighted_by_time() -> None:
    result = analyze(
        comm(0, 30, purpose="dgrad"), comm(40, 50, bytes=None), gemm(60, 64), gemm(64, 80, role=3)
    )
    assert result.purpose_known_ratio == 30 / 40
    assert result.comm_metadata_ratio == 30 / 40
    assert result.gemm_role_known_ratio == 16 / 20
    nothing = analyze(gemm(0, 1, is_gemm=False))
    assert nothing.gemm_role_known_ratio is None
    assert nothing.purpose_known_ratio is None


row = st.tuples(st.booleans(), st.integers(0, 25), st.integers(0, 9), st.integers(0, 19))


@given(
    st.lists(row, min_size=1, max_size=9),
    st.sampled_from([(), (step(0, 0, 6), step(1, 6, 14), step(2, 14, 20))]),
)
@settings(max_examples=150, deadline=None)
def test_shares_sum_to_exposed_in_every_window_and_over_collectives(rows: list, steps: tuple) -> None:
    result = analyze(
        *(
            (comm if is_comm else gemm)(start, start + length, launch=launch)
            for is_comm, start, length, launch in rows
        ),
        steps=steps,
    )
    one = only_rank(result)
    assert_identity(one)
    for figures in result.steps:
        assert_identity(figures)
    assert sum(shares(result)) == one.exposed_ns
    assert sum(c.overlapped_ns + c.exposed_ns for c in result.collectives) <= sum(
        c.dur_ns for c in result.collectives
    )
    for name in ("window_ns", "comm_ns", "exposed_ns", "overlapped_ns", "idle_ns", "memory_op_only_ns"):
        assert sum(getattr(figures, name) for figures in result.steps) == getattr(one, name)
    # Windows and what is left out make up all communication.
    left = sum(out.ns for out in one.left_out if out.kind == "communication")
    covered = {t for is_comm, start, length, _ in rows if is_comm for t in range(start, start + length)}
    assert one.comm_ns + left == len(covered)
    assert all(figures.window_ns >= 0 for figures in result.steps)
    assert all(a.end_ns == b.start_ns for a, b in zip(result.steps, result.steps[1:], strict=False))


def test_one_group_key_per_collective() -> None:
    result = analyze(comm(0, 1, seq=5, is_async=True, bytes=64), comm(2, 3, group=None))
    first, second = result.collectives
    assert (first.group, first.ranks, first.op, first.bytes, first.dtype) == (
        TP.key, [0, 1], "all_reduce", 64, "bfloat16",
    )  # fmt: skip
    assert (first.seq, first.is_async, first.kernel) == (5, True, "nccl")
    assert (second.group, second.ranks) == (None, [])
    assert first.busbw_gbps is None
    assert first.skew_wait_ns is None
    assert first.cause == "unknown"
