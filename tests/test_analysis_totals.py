"""Sums over steps, devices and ranks."""

from __future__ import annotations

from dataclasses import replace

from analysis_helpers import analyze, assert_identity, comm, gemm, only_rank, step

from sp_profiler.analysis.results import Coverage, Figures, Hiding, Known
from sp_profiler.analysis.totals import total, total_coverage
from sp_profiler.classify.tables import Role

PAIR = {"launch": 1, "wait_start_ns": 9, "is_async": True, "purpose": "dgrad"}


def ranks() -> tuple:
    """Rank 0: 4 of 10 hidden; rank 1: twice as long, 10 of 20 hidden."""
    return (
        only_rank(analyze(comm(0, 10, **PAIR), gemm(6, 20, Role.WGRAD, launch=2))),
        only_rank(analyze(comm(0, 20, **PAIR), gemm(10, 40, Role.WGRAD, launch=2))),
    )


def test_sums_with_ratios_from_the_sums() -> None:
    one, two = ranks()
    both = total((one, two))
    assert (both.window_ns, both.comm_ns, both.overlapped_ns, both.exposed_ns) == (60, 30, 14, 16)
    assert both.overlap_ratio == 14 / 30
    assert both.overlapped_by_role_ns["wgrad"] == 14
    assert both.exposed_by_group_ns == {"tp[0,1]": 16}
    assert (both.partner_hidden_ns, both.partner_hideable_ns, both.hidden_of_hideable) == (14, 30, 14 / 30)
    assert both.hiding_by_purpose == {"dgrad": Hiding(14, 30, 14 / 30)}
    assert both.wgrad_overlap_ratio == 14 / 30
    assert_identity(both)  # type: ignore[arg-type]
    assert total((two, one)) == both


def test_the_slowest_rank_decides_the_step_if_all_were_hidden() -> None:
    one, two = ranks()
    assert (one.step_ns_if_all_hidden, two.step_ns_if_all_hidden) == (14, 30)
    assert total((one, two)).step_ns_if_all_hidden == 30
    # A rank that does not know its own might be the slowest.
    assert total((one, replace(two, step_ns_if_all_hidden=None))).step_ns_if_all_hidden is None


def test_a_rank_without_activity_adds_nothing_and_hides_nothing() -> None:
    one, _ = ranks()
    nothing = only_rank(analyze())
    assert total((one, nothing)) == Figures(**{k: getattr(one, k) for k in Figures.__dataclass_fields__})
    alone = total((nothing,))
    assert (alone.comm_ns, alone.overlap_ratio, alone.step_ns_if_all_hidden) == (None, None, None)
    assert alone.exposed_by_group_ns == {}
    assert alone.exposed_by_cause_ns is None


def test_a_ratio_counts_only_those_whose_both_terms_are_known() -> None:
    one, two = ranks()
    both = total((one, replace(two, wgrad_overlapped_ns=None, wgrad_overlap_ratio=None)))
    assert (both.dgrad_comm_ns, both.wgrad_overlapped_ns) == (30, 4)
    assert both.wgrad_overlap_ratio == 4 / 10


def test_a_device_is_the_sum_of_its_steps() -> None:
    steps = (step(0, 0, 30), step(1, 30, 60))
    result = analyze(
        gemm(2, 4, launch=1), comm(4, 14, launch=2, wait_start_ns=9, is_async=True),
        gemm(8, 14, Role.WGRAD, launch=3),
        gemm(32, 34, launch=31), comm(34, 44, launch=32, is_async=False), gemm(50, 52, launch=33),
        steps=steps,
    )  # fmt: skip
    one, (first, second) = only_rank(result), result.steps
    assert (first.window_ns, second.window_ns, one.window_ns) == (30, 28, 58)
    assert (first.partner_hideable_ns, second.partner_hideable_ns, one.partner_hideable_ns) == (6, None, 6)
    assert one.partner_unknown == 1
    assert second.step_ns_if_all_hidden is None  # its only collective has no known partner
    assert one.step_ns_if_all_hidden == 58 - min(14, 0)
    assert_identity(one)


def test_coverage_adds_times() -> None:
    parts = [Coverage(gemm_role=Known(1, 2)), Coverage(gemm_role=Known(8, 8), purpose=Known(0, 3))]
    assert total_coverage(parts) == Coverage(Known(9, 10), Known(0, 3), Known())
    assert total_coverage(parts).gemm_role.ratio == 0.9
    assert total_coverage([]).purpose.ratio is None
