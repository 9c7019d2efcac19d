"""Partners: under which GEMMs a collective should hide, and how much of that it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from analysis_helpers import analyze, codes, comm, compute, fused, gemm, only_rank, step
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.analysis import partners
from sp_profiler.analysis.results import Hiding
from sp_profiler.classify.tables import Role


def dgrad_comm(start: int, end: int, **more: Any) -> Any:
    """An all-reduce of a linear's input gradient, asynchronous unless told, with its annotation."""
    facts = {"purpose": "dgrad", "is_async": True, "partner_what": "wgrad", "module": "mlp.up", "layer": 0}
    return comm(start, end, **(facts | more))


def ranged(start: int, end: int, role: Role, launch: int, range_start: int, **more: Any) -> Any:
    return gemm(start, end, role, launch=launch, range_start_ns=range_start, module="mlp.up", layer=0, **more)


def partner_of(result, which: int = 0) -> tuple[str, str, int, int | None, int | None] | None:
    one = result.collectives[which]
    if one.partner is None:
        return None
    return (one.partner.what, one.partner.rule, one.partner.dur_ns, one.hidden_ns, one.hideable_ns)


def hidden(result) -> tuple[int | None, int | None, int | None]:
    one = only_rank(result)
    return one.partner_hidden_ns, one.partner_hideable_ns, one.partner_unknown


def test_asynchronous_tensor_parallel_linear() -> None:
    #  launches:  dgrad 1, all-reduce 2, wgrad range from 3
    #  0    10   20   30   40
    #  dddddddd                 dgrad [0,16)
    #          CCCCCCCCCCC      all-reduce [16,38)
    #           wwwwwwwww       wgrad [18,36), 18 long
    result = analyze(
        ranged(0, 16, Role.DGRAD, 1, 0),
        dgrad_comm(16, 38, launch=2, wait_start_ns=5),
        ranged(18, 36, Role.WGRAD, 4, 3),
    )
    assert partner_of(result) == ("wgrad", "annotation", 18, 18, 18)  # min(22, 18), all of it hidden
    one = only_rank(result)
    assert one.hidden_of_hideable == 1.0
    assert one.hiding_by_purpose == {"dgrad": Hiding(18, 18, 1.0)}
    assert (one.dgrad_comm_ns, one.wgrad_overlapped_ns, one.wgrad_overlap_ratio) == (22, 18, 18 / 22)
    assert one.exposed_ns == 4  # [36,38) and [16,18)
    assert one.step_ns_if_all_hidden == 38  # nothing hideable is left: communication-bound
    assert result.collectives[0].partner is not None
    assert result.collectives[0].partner.module == "mlp.up"


def test_a_synchronous_collective_keeps_its_partner_and_hides_nothing() -> None:
    #  dgrad [0,10), wgrad [10,30), all-reduce [30,45): the partner came before
    result = analyze(
        ranged(0, 10, Role.DGRAD, 1, 0),
        ranged(10, 30, Role.WGRAD, 4, 3),
        dgrad_comm(30, 45, launch=6, is_async=False),
    )
    assert partner_of(result) == ("wgrad", "annotation", 20, 0, 15)  # what async would win
    one = only_rank(result)
    assert one.hidden_of_hideable == 0.0
    assert one.wgrad_overlapped_ns == 0
    assert one.step_ns_if_all_hidden == 45 - 15


def test_the_nearest_range_is_meant_not_the_next_microbatch() -> None:
    #  wgrad ranges of two microbatches at launches 10-12 and 110-112. A synchronous all-reduce at 13 belongs
    #  to the first one, an asynchronous one at 105 to the second.
    first, second = (
        ranged(200, 220, Role.WGRAD, 12, 10),
        ranged(300, 330, Role.WGRAD, 112, 110),
    )
    sync = analyze(first, second, dgrad_comm(220, 240, launch=13, is_async=False))
    assert partner_of(sync) == ("wgrad", "annotation", 20, 0, 20)
    ahead = analyze(first, second, dgrad_comm(290, 310, launch=105, wait_start_ns=120))
    assert partner_of(ahead) == ("wgrad", "annotation", 30, 10, 20)


def test_a_hop_of_a_ring_hides_under_the_attention_that_follows_its_launch() -> None:
    #  launches: attention 10, hop 12, attention 20, wait 25: the closest in time is not it
    result = analyze(
        compute(100, 150, Role.ATTENTION, launch=11, range_start_ns=10, module="attn", layer=0),
        compute(150, 200, Role.ATTENTION, launch=21, range_start_ns=20, module="attn", layer=0),
        comm(
            150, 190, launch=12, wait_start_ns=25, is_async=True, purpose="kv", partner_what="attention",
            module="attn", layer=0,
        ),
    )  # fmt: skip
    assert partner_of(result) == ("attention", "annotation", 50, 40, 40)


def test_a_range_around_the_launch_is_the_partner() -> None:
    #  the collective is launched at 12, inside the range that launches at 11 and 14
    result = analyze(
        ranged(100, 110, Role.WGRAD, 11, 10),
        ranged(112, 120, Role.WGRAD, 14, 10),
        ranged(300, 400, Role.WGRAD, 14, 13),
        dgrad_comm(105, 118, launch=12),
    )
    assert partner_of(result) == ("wgrad", "annotation", 18, 11, 13)  # [105,110) and [112,118)


def test_the_same_autograd_node_beats_the_distance() -> None:
    #  wgrad of node 7 ran first; a wgrad of the same module but node 9 follows closely
    result = analyze(
        ranged(0, 20, Role.WGRAD, 2, 1, node=7),
        dgrad_comm(20, 30, launch=10, node=7),
        ranged(30, 60, Role.WGRAD, 12, 11, node=9),
    )
    assert partner_of(result) == ("wgrad", "annotation", 20, 0, 10)


def test_another_microbatch_does_not_stand_in_for_a_partner_that_is_not_there() -> None:
    #  node 7's own wgrad lost its launch: node 9's, launched after the wait, is not what it hides under
    lost = (
        gemm(10, 30, Role.WGRAD, module="mlp.down", layer=0),
        dgrad_comm(12, 22, launch=10, wait_start_ns=13, node=7),
        ranged(40, 60, Role.WGRAD, 32, 31, node=9),
    )
    result = analyze(*lost)
    assert partner_of(result) is None
    assert only_rank(result).partner_unknown == 1


def test_a_partner_that_took_no_time_is_still_the_partner() -> None:
    #  node 7's wgrad is an empty kernel: nothing to hide under, and node 9's wgrad is not asked
    result = analyze(
        dgrad_comm(12, 22, launch=10, wait_start_ns=13, node=7),
        ranged(22, 22, Role.WGRAD, 12, 11, node=7),
        ranged(40, 60, Role.WGRAD, 32, 31, node=9),
    )
    assert partner_of(result) == ("wgrad", "annotation", 0, 0, 0)


def test_other_modules_layers_and_devices_are_no_partners() -> None:
    others = (
        gemm(0, 50, Role.WGRAD, launch=5, range_start_ns=4, module="mlp.down", layer=0),
        gemm(0, 50, Role.WGRAD, launch=5, range_start_ns=4, module="mlp.up", layer=1),
        ranged(0, 50, Role.DGRAD, 5, 4),
        ranged(0, 50, Role.WGRAD, 5, 4, device=1),
    )
    result = analyze(*others, dgrad_comm(10, 20, launch=2, is_async=False))
    assert partner_of(result) is None
    assert only_rank_of_device_0(result) == (None, None, 1)


def only_rank_of_device_0(result) -> tuple[int | None, int | None, int | None]:
    one = result.ranks[0]
    return one.partner_hidden_ns, one.partner_hideable_ns, one.partner_unknown


@pytest.mark.parametrize(
    ("purpose", "is_async", "expected"),
    [
        ("dgrad", True, ("wgrad", "same-linear", 12, 8, 12)),  # w [20,32)
        ("dgrad", False, ("wgrad", "same-linear", 12, 8, 12)),  # a linear names the partner, async or not
        ("input-regather", True, ("dgrad", "same-linear", 10, 2, 10)),  # d [6,16)
        ("activation", True, ("wgrad", "same-linear", 12, 8, 12)),  # what the node launched after it
        ("activation", False, None),
    ],
)
def test_same_linear_without_annotation(purpose: str, is_async: bool, expected: tuple | None) -> None:
    #  node 5 launches dgrad 1, collective 2, wgrad 3; node 6's GEMM is another linear's
    #  dddddddddd [6,16)   CCCCCCCCCCCCCC [14,28)   wwwwwwwwwwww [20,32)
    result = analyze(
        gemm(6, 16, Role.DGRAD, launch=1, node=5),
        comm(14, 28, launch=2, node=5, purpose=purpose, is_async=is_async),
        gemm(20, 32, Role.WGRAD, launch=3, node=5),
        gemm(0, 40, Role.WGRAD, launch=4, node=6, stream=8),
    )
    assert partner_of(result) == expected


def test_what_feeds_the_gemms_of_its_node_cannot_hide_under_them() -> None:
    #  row-parallel backward of sequence parallelism: the gradient is gathered, then both GEMMs use it
    gemms = (gemm(10, 20, Role.DGRAD, launch=3, node=5), gemm(20, 30, Role.WGRAD, launch=4, node=5))
    gathered = {"launch": 1, "node": 5, "purpose": "dgrad", "op": "all_gather"}
    assert partner_of(analyze(comm(0, 10, is_async=False, **gathered), *gemms)) is None
    #  launched long before its wait, with the dgrad GEMM in between (another linear's would do): that one
    ahead = analyze(comm(0, 10, is_async=True, wait_start_ns=4, **gathered), *gemms)
    assert partner_of(ahead) == ("dgrad", "same-linear", 10, 0, 10)


def test_launched_between_launch_and_wait() -> None:
    #  launches: K 1, collective 2..3, K 4, K 6, wait 7, K 8
    #  0    10   20   30   40   50
    #  KKKKK                          launched before
    #       CCCCCCCCCCCCCCCC          [10,42)
    #       .    FFFFF                fwd GEMM [20,30)
    #       .         oooooooo        other [30,46)
    #       .                 KKKK    launched after the wait
    result = analyze(
        gemm(0, 10, launch=1),
        comm(10, 42, launch=2, launch_end_ns=3, wait_start_ns=7, wait_end_ns=9, is_async=True),
        gemm(20, 30, Role.FWD, launch=4),
        compute(30, 46, Role.OTHER, launch=6),
        gemm(46, 54, launch=8),
    )
    assert partner_of(result) == ("other", "between-launch-and-wait", 26, 22, 26)
    assert result.collectives[0].partner is not None
    assert result.collectives[0].partner.activities == 2


@pytest.mark.parametrize(
    "facts",
    [
        {"is_async": True, "launch": 2},  # no wait in the trace
        {"is_async": True, "wait_start_ns": 9},  # no launch in the trace
        {"is_async": False, "launch": 2, "wait_start_ns": 9},  # synchronous
        {"is_async": True, "launch": 2, "wait_start_ns": 3},  # nothing launched before the wait
    ],
)
def test_without_a_known_partner_the_term_is_left_out_and_counted(facts: dict) -> None:
    result = analyze(comm(0, 10, **facts), gemm(5, 15, launch=4))
    assert partner_of(result) is None
    assert hidden(result) == (None, None, 1)
    one = only_rank(result)
    assert one.hidden_of_hideable is None
    assert one.step_ns_if_all_hidden is None
    assert one.hiding_by_purpose == {"unknown": Hiding(None, None, None)}
    assert "partner-unknown" in codes(result)


def test_terms_add_up_and_the_ratio_comes_from_the_sums() -> None:
    result = analyze(
        comm(0, 10, launch=1, wait_start_ns=3, is_async=True), gemm(4, 24, launch=2),  # 6 of 10
        comm(30, 60, launch=11, wait_start_ns=13, is_async=True), gemm(50, 55, launch=12),  # 5 of 5
        comm(70, 80),  # unknown
    )  # fmt: skip
    assert hidden(result) == (11, 15, 1)
    assert only_rank(result).hidden_of_hideable == 11 / 15
    # window 80, exposed 4 + 25 + 10 = 39, hideable - hidden = 4
    assert only_rank(result).step_ns_if_all_hidden == 76


def test_no_more_is_saved_than_is_exposed() -> None:
    #  two collectives run together and share a partner: hideable counts it twice, exposed does not
    facts = {"launch": 1, "wait_start_ns": 9, "is_async": True}
    result = analyze(
        comm(0, 10, **facts), comm(0, 10, **facts), gemm(20, 40, launch=2), gemm(0, 5, launch=20)
    )
    assert hidden(result) == (0, 20, 0)
    one = only_rank(result)
    assert one.exposed_ns == 5
    assert one.step_ns_if_all_hidden == one.window_ns - 5 == 35


def test_with_nothing_exposed_the_step_stays_what_it_is() -> None:
    assert only_rank(analyze(comm(0, 10), gemm(0, 10))).step_ns_if_all_hidden == 10
    assert only_rank(analyze(gemm(0, 10))).step_ns_if_all_hidden == 10


def test_fused_kernels_are_neither_hidden_nor_hiding() -> None:
    #  a fused kernel with purpose dgrad and role wgrad next to a real pair
    result = analyze(
        dgrad_comm(0, 10, launch=1, wait_start_ns=9),
        ranged(6, 10, Role.WGRAD, 3, 2),
        fused(0, 10, Role.WGRAD, purpose="dgrad", launch=1, wait_start_ns=9, is_async=True),
    )
    one = only_rank(result)
    assert hidden(result) == (4, 4, 0)
    assert (one.dgrad_comm_ns, one.wgrad_overlapped_ns) == (10, 4)
    assert one.overlapped_ns == 10


def test_dgrad_communication_is_a_union_and_other_purposes_are_not_in_it() -> None:
    result = analyze(
        comm(0, 10, purpose="dgrad"), comm(5, 15, purpose="dgrad"), comm(20, 30, purpose="param-grad"),
        gemm(8, 25, Role.WGRAD), gemm(0, 4, Role.DGRAD),
    )  # fmt: skip
    one = only_rank(result)
    assert (one.dgrad_comm_ns, one.wgrad_overlapped_ns, one.wgrad_overlap_ratio) == (15, 7, 7 / 15)


def test_wgrad_under_unknown_roles_is_null_not_zero() -> None:
    result = analyze(comm(0, 10, purpose="dgrad"), gemm(0, 10, Role.UNKNOWN))
    one = only_rank(result)
    assert (one.dgrad_comm_ns, one.wgrad_overlapped_ns, one.wgrad_overlap_ratio) == (10, None, None)
    assert "wgrad-unknown" in codes(result)
    # Without dgrad communication there is nothing to be unknown.
    assert only_rank(analyze(comm(0, 10), gemm(0, 10))).wgrad_overlapped_ns == 0
    assert only_rank(analyze(comm(0, 10), gemm(0, 10))).wgrad_overlap_ratio is None


def test_a_term_is_counted_whole_in_the_window_in_which_it_begins() -> None:
    steps = (step(0, 0, 9), step(1, 9, 60))
    result = analyze(
        gemm(10, 12, launch=1),
        comm(20, 40, launch=2, wait_start_ns=8, is_async=True),
        gemm(25, 35, launch=3),  # its partner, running across the border too
        gemm(30, 31, launch=10, stream=8),  # begins step 1
        steps=steps,
    )
    assert [(s.partner_hidden_ns, s.partner_hideable_ns) for s in result.steps] == [(10, 10), (None, None)]
    assert hidden(result) == (10, 10, 0)
    assert [s.partner_unknown for s in result.steps] == [0, 0]


def test_only_what_is_inside_the_windows_is_hidden() -> None:
    #  collective [0,20), window [10,40), partner [5,15): 5 of its 10 count, |c| inside is 10
    result = analyze(
        comm(0, 20, launch=1, wait_start_ns=4, is_async=True),
        gemm(5, 15, launch=2),
        gemm(10, 11, launch=30, stream=8),
        steps=(step(0, 29, 40),),
    )
    assert partner_of(result) == ("unknown", "between-launch-and-wait", 10, 5, 10)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 20)), min_size=1, max_size=9),
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 9), st.integers(0, 20), st.integers(0, 12)),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=200, deadline=None)
def test_between_launch_and_wait_equals_counting_ticks(kernels: list, collectives: list) -> None:
    """Whatever the order in which kernels run, on whatever streams."""
    result = analyze(
        *(gemm(start, start + length, launch=launch) for start, length, launch in kernels),
        *(
            comm(start, start + length, launch=launch, wait_start_ns=launch + held, is_async=True, seq=i)
            for i, (start, length, launch, held) in enumerate(collectives)
        ),
    )  # fmt: skip
    for one in result.collectives:
        start, length, launch, held = collectives[one.seq]
        mine = [(s, s + n) for s, n, at in kernels if n and launch <= at < launch + held]
        ticks = {t for s, e in mine for t in range(s, e)}
        if not mine:
            assert one.partner is None
            continue
        assert one.partner is not None
        assert one.partner.dur_ns == len(ticks)
        assert one.partner.activities == len(mine)
        assert one.hidden_ns == len(ticks & set(range(start, start + length)))
        assert one.hideable_ns == min(length, len(ticks))


def test_partners_do_not_depend_on_chunks(monkeypatch) -> None:
    rng = np.random.default_rng(3)
    drawn = []
    for i in range(60):
        start = int(rng.integers(0, 500))
        drawn.append(gemm(start, start + int(rng.integers(1, 40)), launch=i, node=i % 7, role=Role.WGRAD))
        facts = {"launch": i, "wait_start_ns": i + int(rng.integers(1, 20)), "is_async": True}
        drawn.append(comm(start, start + 30, purpose="dgrad" if i % 2 else "other", node=i % 9, **facts))
    at_once = analyze(*drawn)
    monkeypatch.setattr(partners, "_PAIRS_AT_ONCE", 5)
    assert analyze(*drawn) == at_once
    assert {one.partner.rule for one in at_once.collectives if one.partner} == {
        "same-linear", "between-launch-and-wait",
    }  # fmt: skip
