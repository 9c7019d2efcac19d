"""Contention: what overlapped GEMMs lose to the communication beside them. Drawn, with expected ns."""

from __future__ import annotations

from typing import Any

import pytest
from analysis_helpers import WHOLE, analyze, comm, gemm, only_rank, step

from sp_profiler.analysis.contention import Side, baseline_of, contention, with_contention
from sp_profiler.analysis.results import ContentionFigures, GemmSamples, RankResult
from sp_profiler.classify.tables import Role

MM = ("aten::mm", "[[512,256],[256,128]]", '["c10::BFloat16","c10::BFloat16"]')
SHAPE = "M=512 N=128 K=256"
KEY = (SHAPE, "bfloat16", "wgrad")


def wgrad(start: int, dur: int, **more: Any) -> Any:
    return gemm(start, start + dur, Role.WGRAD, **({"op": MM} | more))


def run(overlapped: list[int], alone: list[int], **more: Any) -> RankResult:
    """GEMMs of these durations, every 100 ns: first those under a collective, then those without."""
    drawn = []
    for i, dur in enumerate([*overlapped, *alone]):
        drawn.append(wgrad(100 * i, dur))
        if i < len(overlapped):
            drawn.append(comm(100 * i, 100 * i + dur, is_async=True))
    return analyze(*drawn, **({"rule": WHOLE} | more))


def compared(result: RankResult, baseline: Any = None) -> ContentionFigures:
    _, found, _ = with_contention([result], baseline)
    assert found is not None
    (only,) = found
    return only


def test_slowdown_is_the_ratio_of_medians() -> None:
    #  overlapped 20 22 24 26 60: median 24; alone 10 16 18 20 22 24: median (18 + 20) / 2 = 19
    result = run([20, 22, 24, 26, 60], [10, 16, 18, 20, 22, 24])
    one = compared(result)
    assert (one.shape, one.dtype, one.role) == KEY
    assert (one.overlapped_count, one.alone_count) == (5, 6)
    assert (one.median_overlapped_ns, one.median_alone_ns) == (24, 19)
    assert one.slowdown_ratio == 24 / 19
    assert one.slowdown_ns == 5 * (24 - 19)
    assert one.overlapped_gemm_ns == 152
    (filled,), _, ledger = with_contention([result])
    assert only_rank(filled).slowdown_ns == 25
    assert only_rank(filled).net_gain_ns == 152 - 25  # overlapped - Σ slowdown
    assert filled.steps[0].net_gain_ns == 127
    assert ledger == []


def test_half_overlapped_counts_as_overlapped() -> None:
    #  [0,20) with communication over [10,20): exactly half; [100,121) with 10 of 21: less
    result = analyze(wgrad(0, 20), comm(10, 20), wgrad(100, 21), comm(100, 110), rule=WHOLE)
    one = compared(result)
    assert (one.overlapped_count, one.alone_count) == (1, 1)


def test_fewer_than_five_say_nothing() -> None:
    result = run([20] * 4, [10] * 5)
    one = compared(result)
    assert (one.median_overlapped_ns, one.median_alone_ns) == (None, 10)
    assert (one.slowdown_ratio, one.slowdown_ns) == (None, None)
    (filled,), _, ledger = with_contention([result])
    assert (only_rank(filled).slowdown_ns, only_rank(filled).net_gain_ns) == (None, None)
    assert [(entry.code, entry.count) for entry in ledger] == [("contention-few-samples", 4)]


def test_a_baseline_lends_the_missing_side() -> None:
    #  an asynchronous run: every GEMM is overlapped; the synchronous run knows them alone
    asynchronous, synchronous = run([30] * 6, []), run([], [24] * 7)
    lent = baseline_of([compared(synchronous)])
    assert lent == {KEY: (Side(0, None), Side(7, 24))}
    one = compared(asynchronous, lent)
    assert (one.median_overlapped_ns, one.median_alone_ns, one.from_baseline) == (30, 24, "alone")
    assert one.slowdown_ns == 6 * 6
    # what was borrowed is not lent on, and a side of its own is not replaced
    assert baseline_of([one])[KEY] == (Side(6, 30), Side(0, None))
    own = run([30] * 6, [20] * 5)
    assert compared(own, lent).median_alone_ns == 20
    # with nothing of its own a run says nothing about contention
    assert compared(run([30], [20]), {KEY: (Side(9, 50), Side(9, 40))}).slowdown_ns is None


def test_a_gemm_is_not_sped_up_by_being_overlapped() -> None:
    one = compared(run([10] * 5, [12] * 5))
    assert one.slowdown_ratio == 10 / 12
    assert one.slowdown_ns == 0


def test_roles_shapes_and_dtypes_are_apart() -> None:
    other = ("aten::mm", "[[512,256],[256,64]]", '["float","float"]')
    result = analyze(
        wgrad(0, 10),
        gemm(20, 30, Role.DGRAD, op=MM),
        wgrad(40, 10, op=other),
        gemm(60, 70, Role.WGRAD),
        rule=WHOLE,
    )
    _, found, _ = with_contention([result])
    assert found is not None
    assert {(one.shape, one.dtype, one.role) for one in found} == {
        KEY,
        (SHAPE, "bfloat16", "dgrad"),
        ("M=512 N=64 K=256", "float32", "wgrad"),
    }


def test_kernels_of_one_operator_are_one_sample() -> None:
    #  a split-K GEMM: two kernels of the same launch (External id) count as one of 30 ns
    one = analyze(wgrad(0, 20), gemm(20, 30, Role.WGRAD), rule=WHOLE)
    assert one.gemm_samples[0] is not None
    assert one.gemm_samples[0].dur_ns.tolist() == [20]  # the second has no operator, so no shape


def test_ranks_are_compared_together_and_filled_each() -> None:
    (first, second), found, _ = with_contention([run([20] * 3, [10] * 3), run([20] * 2, [10] * 2)])
    assert found is not None
    assert (found[0].overlapped_count, found[0].alone_count, found[0].slowdown_ns) == (5, 5, 50)
    assert (only_rank(first).slowdown_ns, only_rank(second).slowdown_ns) == (30, 20)


def test_steps_sum_to_the_rank() -> None:
    drawn = []
    for i in range(10):
        drawn += [wgrad(100 * i, 20 if i % 2 else 10, launch=100 * i)]
        drawn += [comm(100 * i, 100 * i + 20, launch=100 * i)] if i % 2 else []
    result = analyze(*drawn, steps=(step(0, 0, 500), step(1, 500, 1000)))
    (filled,), _, _ = with_contention([result])
    assert [one.slowdown_ns for one in filled.steps] == [20, 30]
    assert only_rank(filled).slowdown_ns == 50


def test_cpu_runs_have_none() -> None:
    result = analyze(wgrad(0, 10), cpu=True)
    assert result.gemm_samples == (None,)
    assert with_contention([result]) == ([result], None, [])


def test_without_shapes_there_is_a_reason() -> None:
    results, found, ledger = with_contention([analyze(gemm(0, 10, Role.WGRAD))])
    assert found is None
    assert [entry.code for entry in ledger] == ["contention-no-shapes"]
    assert only_rank(results[0]).net_gain_ns is None


@pytest.mark.parametrize("samples", [[], [GemmSamples((), *([__import__("numpy").zeros(0, int)] * 4))]])
def test_nothing_to_compare(samples: list[GemmSamples]) -> None:
    assert contention(samples) == []
