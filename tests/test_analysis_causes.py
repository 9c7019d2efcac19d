"""Causes: why a collective was exposed. Each trace is drawn, the expected nanoseconds beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analysis_helpers import TP, WHOLE, analyze, comm, compute, gemm, memory, only_rank, step
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.analysis.causes import CAUSES, settle
from sp_profiler.analysis.results import RankResult
from sp_profiler.classify.tables import Group, Role


def causes(result: RankResult, which: int = 0) -> dict[str, int]:
    parts = result.collectives[which].exposed_by_cause_ns
    assert parts is not None
    assert sum(parts.values()) == result.collectives[which].exposed_share_ns
    return parts


def rule(result: RankResult, which: int = 0) -> str:
    evidence = result.collectives[which].cause_evidence
    assert evidence is not None
    return evidence.rule


def with_skew(result: RankResult, **skew_wait_ns: int) -> RankResult:
    """The result once the ranks were matched: `c0=5` says that collective 0 waited 5 ns for its peers."""
    matched = [replace(one, skew_wait_ns=skew_wait_ns.get(f"c{one.id}")) for one in result.collectives]
    return settle(replace(result, collectives=tuple(matched)))


def dgrad_comm(start: int, end: int, **more: Any) -> Any:
    """An asynchronous all-reduce of a dgrad, launched at 10 and waited for at 90."""
    facts = {"is_async": True, "purpose": "dgrad", "partner_what": "wgrad", "module": "up", "layer": 0}
    return comm(start, end, **({"launch": 10, "wait_start_ns": 90} | facts | more))


def wgrad(start: int, end: int, launch: int = 12, **more: Any) -> Any:
    return gemm(start, end, Role.WGRAD, launch, module="up", layer=0, **({"range_start_ns": 11} | more))


def test_nothing_exposed_has_no_cause() -> None:
    result = analyze(dgrad_comm(100, 110), wgrad(95, 120))
    assert result.collectives[0].cause is None
    assert causes(result) == {}
    assert only_rank(result).exposed_by_cause_ns == {}


# --- synchronous -----------------------------------------------------------------------------------


def test_declared_synchronous() -> None:
    result = analyze(gemm(0, 10), comm(10, 30, is_async=False, launch=2))
    assert (causes(result), rule(result)) == ({"synchronous": 20}, "declared-synchronous")
    assert result.collectives[0].queue_delay_ns == 8


def test_on_the_compute_stream() -> None:
    #  stream 7 computes 40 ns, stream 8 only 5: the collective on 7 is synchronous, the one on 8 is not known
    result = analyze(gemm(0, 40), compute(0, 5, stream=8), comm(40, 60, stream=7), comm(60, 70, stream=8))
    assert (causes(result), rule(result)) == ({"synchronous": 20}, "on-compute-stream")
    assert (causes(result, 1), rule(result, 1)) == ({"unknown": 10}, "launch-not-in-trace")


def test_waited_at_once() -> None:
    #  launch [10,12), wait from 13 on, the next GEMM launched at 50
    facts = {"launch": 10, "launch_end_ns": 12, "wait_start_ns": 13, "wait_end_ns": 40, "is_async": True}
    result = analyze(gemm(0, 20, launch=1), comm(20, 40, **facts), gemm(51, 60, launch=50))
    assert (causes(result), rule(result)) == ({"synchronous": 20}, "waited-at-once")
    evidence = result.collectives[0].cause_evidence
    assert evidence is not None
    assert (evidence.wait_start_ns, evidence.wait_end_ns, evidence.launched_before_wait) == (13, 40, 0)


def test_an_asynchronous_collective_on_the_compute_stream_is_asynchronous() -> None:
    facts = {"launch": 10, "launch_end_ns": 11, "wait_start_ns": 10**7, "is_async": True, "stream": 7}
    assert causes(analyze(gemm(0, 20, launch=1), comm(20, 40, **facts))) == {"no-partner": 20}


def test_cpu_thread_idle() -> None:
    #  CPU file without annotation: no operator begins between the launch at 12 and the end at 40
    result = analyze(compute(0, 10), comm(13, 40, launch=11, launch_end_ns=12), compute(41, 50), cpu=True)
    assert (causes(result), rule(result)) == ({"synchronous": 27}, "thread-idle")
    #  here one does
    result = analyze(compute(0, 10), comm(13, 40, launch=11, launch_end_ns=12), compute(20, 25), cpu=True)
    assert (causes(result), rule(result)) == ({"unknown": 22}, "wait-not-in-trace")


def test_an_idle_thread_beside_one_that_computes() -> None:
    #  another thread computes: the launching one sat idle until the end all the same
    for is_async, partner in ((None, None), (True, None)):
        facts = {"launch": 11, "launch_end_ns": 12, "is_async": is_async, "partner_what": partner}
        idle = comm(13, 40, thread_sat_idle=True, **facts)
        result = analyze(compute(0, 10), idle, compute(20, 25), cpu=True)
        assert (causes(result), rule(result)) == ({"synchronous": 22}, "thread-idle")
        assert result.collectives[0].is_async is is_async


@pytest.mark.parametrize("wait", [13, None])
def test_gradients_that_are_waited_for_at_once_lack_a_partner(wait: int | None) -> None:
    #  DDP's last bucket: backward is over, nothing runs until its end
    facts = {"launch": 11, "launch_end_ns": 12, "wait_start_ns": wait, "is_async": True}
    last = comm(13, 40, purpose="param-grad", **facts)
    result = analyze(compute(0, 10), last, compute(41, 50), cpu=True)
    how = "thread-idle" if wait is None else "waited-at-once"
    assert (causes(result), rule(result)) == ({"no-partner": 27}, how)
    other = analyze(compute(0, 10), comm(13, 40, **facts), compute(41, 50), cpu=True)
    assert (causes(other), rule(other)) == ({"synchronous": 27}, how)
    declared = analyze(compute(0, 10), comm(13, 40, purpose="param-grad", is_async=False), cpu=True)
    assert (causes(declared), rule(declared)) == ({"synchronous": 27}, "declared-synchronous")


def test_an_asynchronous_collective_that_ended_before_its_partner_began() -> None:
    #  c [13,40) is over before the thread begins w [50,90): the partner came late, the call did not block
    facts = {"is_async": True, "partner_what": "wgrad", "module": "up", "layer": 0, "purpose": "dgrad"}
    early = comm(13, 40, launch=11, launch_end_ns=12, thread_sat_idle=True, **facts)
    result = analyze(compute(0, 10), early, wgrad(50, 90, launch=50, range_start_ns=49), cpu=True)
    assert (causes(result), rule(result)) == ({"late-partner": 27}, "partner")


# --- with a partner --------------------------------------------------------------------------------


def test_partner_too_short_after_the_partner() -> None:
    #  c [100,140), w [100,125): 15 more than the partner could hide, all after it
    result = analyze(dgrad_comm(100, 140), wgrad(100, 125))
    assert causes(result) == {"partner-too-short": 15}
    evidence = result.collectives[0].cause_evidence
    assert evidence is not None
    assert (evidence.partner_launch_ns, evidence.partner_start_ns, evidence.partner_end_ns) == (12, 100, 125)


def test_late_partner() -> None:
    #  c [100,140), w [110,160): begun in time the partner would have hidden all of it
    result = analyze(dgrad_comm(100, 140), wgrad(110, 160, launch=105, range_start_ns=104))
    assert causes(result) == {"late-partner": 10}
    assert result.collectives[0].cause == "late-partner"


def test_late_and_too_short() -> None:
    #  c [100,140), w [130,160): |c| = 40, |w| = 30. Exposed [100,130): its last 10 exceed the partner
    result = analyze(dgrad_comm(100, 140), wgrad(130, 160))
    assert causes(result) == {"partner-too-short": 10, "late-partner": 20}
    assert result.collectives[0].cause == "late-partner"


def test_a_gap_in_the_partner_is_a_late_part_of_it() -> None:
    #  c [100,140), w [100,110) and [120,150): exposed [110,120), before the partner's second kernel
    result = analyze(dgrad_comm(100, 140), wgrad(100, 110), wgrad(120, 150, launch=13))
    assert causes(result) == {"late-partner": 10}


def test_after_the_partner_although_as_long() -> None:
    #  c [110,140), w [100,135), launched in time and not queued: what comes after the partner is beyond it
    assert causes(analyze(dgrad_comm(110, 140), wgrad(100, 135))) == {"partner-too-short": 5}


def test_queued_behind_the_same_group() -> None:
    #  c1 [100,130) and c2 [130,160), both launched at 98 and 99; w [100,150).
    #  c2 begins 31 after its launch (the median is 2), c1 runs 30 of them; exposed [150,160), all hideable
    c1 = dgrad_comm(100, 130, launch=98, module="x", partner_what=None)
    c2 = dgrad_comm(130, 160, launch=99, wait_start_ns=200)
    result = analyze(c1, c2, wgrad(100, 150, launch=101, range_start_ns=100))
    assert causes(result, 1) == {"queued": 10}
    evidence = result.collectives[1].cause_evidence
    assert evidence is not None
    assert evidence.queued_behind == "same-group"
    assert result.collectives[1].queue_delay_ns == 31
    # another group's collective does not hold it up, and the device is not full from 99 to 130
    other = Group("dp[0,2]", "dp", (0, 2), 2)
    result = analyze(replace_group(c1, other), c2, wgrad(115, 150, launch=101, range_start_ns=100))
    assert causes(result, 1) == {"queued": 10}  # full: the other collective and the GEMM run all the time
    result = analyze(c2, wgrad(115, 150, launch=101, range_start_ns=100), dgrad_comm(60, 61, launch=59))
    assert causes(result, 1) == {"partner-too-short": 10}  # nothing runs from 99 to 115


def replace_group(drawn: Any, group: Group) -> Any:
    return replace(drawn, facts=drawn.facts | {"group": group})


def test_queued_keeps_what_the_partner_could_never_hide() -> None:
    #  c2 [130,180) is 50 long, w [100,140) 40: of the exposed [140,180) the last 10 exceed the partner
    c1 = dgrad_comm(100, 130, launch=98, module="x", partner_what=None)
    c2 = dgrad_comm(130, 180, launch=99, wait_start_ns=200)
    result = analyze(c1, c2, wgrad(100, 140, launch=101, range_start_ns=100))
    assert causes(result, 1) == {"partner-too-short": 10, "queued": 30}
    assert result.collectives[1].cause == "queued"


def test_queued_behind_a_full_device() -> None:
    #  c is launched at 99 and begins at 150, all the while GEMMs run; others begin 1 after their launch
    short = [dgrad_comm(i, i + 1, launch=i - 1, module="x", partner_what=None) for i in (20, 30)]
    late = dgrad_comm(150, 180, launch=99, wait_start_ns=200)
    result = analyze(*short, gemm(95, 130), wgrad(130, 160, launch=101, range_start_ns=100), late)
    assert causes(result, 2) == {"queued": 20}
    evidence = result.collectives[2].cause_evidence
    assert evidence is not None
    assert evidence.queued_behind == "full-device"


def test_overlap_with_the_partner_says_that_it_is_asynchronous() -> None:
    #  no wait is in the trace and nothing says that it is asynchronous, but it ran under its linear's GEMM
    facts = {"is_async": None, "wait_start_ns": None, "partner_what": None, "node": 5}
    result = analyze(dgrad_comm(100, 140, **facts), wgrad(100, 125, node=5))
    assert causes(result) == {"partner-too-short": 15}
    result = analyze(dgrad_comm(100, 140, **facts), wgrad(150, 175, node=5))
    assert (causes(result), rule(result)) == ({"unknown": 40}, "wait-not-in-trace")


# --- no partner, unknown ---------------------------------------------------------------------------


def test_no_partner() -> None:
    #  launched at 10, waited for at 1,000,000: in between the host launched nothing
    result = analyze(gemm(0, 5, launch=1), dgrad_comm(20, 50, partner_what=None, wait_start_ns=10**6))
    assert (causes(result), rule(result)) == ({"no-partner": 30}, "nothing-launched-before-wait")


def test_a_partner_launched_after_the_wait_is_none() -> None:
    #  the wgrad that the annotation names is launched after the wait: it could never have hidden it
    late = wgrad(10**6 + 10, 10**6 + 50, launch=10**6 + 5, range_start_ns=10**6 + 4)
    result = analyze(dgrad_comm(20, 50, wait_start_ns=10**6), late)
    assert causes(result) == {"no-partner": 30}


def test_unknown() -> None:
    result = analyze(comm(0, 10, is_async=True), comm(20, 30, launch=15, is_async=True))
    assert (causes(result), rule(result)) == ({"unknown": 10}, "launch-not-in-trace")
    assert (causes(result, 1), rule(result, 1)) == ({"unknown": 10}, "wait-not-in-trace")
    assert result.collectives[0].queue_delay_ns is None


def test_a_start_before_its_launch_has_no_delay() -> None:
    result = analyze(comm(10, 20, launch=15, is_async=False))
    assert result.collectives[0].queue_delay_ns is None


# --- peer skew -------------------------------------------------------------------------------------


def test_peer_skew_comes_first() -> None:
    result = analyze(gemm(0, 10), comm(10, 30, is_async=False, launch=2))
    assert causes(with_skew(result, c0=12)) == {"peer-skew": 12, "synchronous": 8}
    assert causes(with_skew(result, c0=0)) == {"synchronous": 20}
    assert causes(with_skew(result, c0=500)) == {"peer-skew": 20}  # never more than is exposed
    again = with_skew(with_skew(result, c0=12))
    assert causes(again) == {"synchronous": 20}  # settled anew, not on top


def test_peer_skew_counts_only_while_exposed() -> None:
    #  c [100,140), w [105,125), the last peer arrived at 110: exposed [100,105) before, [125,140) after
    result = analyze(dgrad_comm(100, 140), wgrad(105, 125))
    assert causes(with_skew(result, c0=10)) == {"peer-skew": 5, "partner-too-short": 15}


# --- shares ----------------------------------------------------------------------------------------


def test_a_share_that_is_cut_is_divided_in_proportion() -> None:
    #  two collectives [0,11): shares 6 and 5. The first one's peer arrived at 4: floor(6 * 4 / 11) = 2
    result = analyze(comm(0, 11, is_async=False), comm(0, 11, is_async=False))
    skewed = with_skew(result, c0=4)
    assert causes(skewed) == {"peer-skew": 2, "synchronous": 4}
    assert causes(skewed, 1) == {"synchronous": 5}
    assert only_rank(skewed).exposed_by_cause_ns == {"peer-skew": 2, "synchronous": 9}


def test_a_collective_whose_share_is_nothing_still_has_a_cause() -> None:
    result = analyze(comm(0, 1, is_async=False), comm(0, 1, is_async=False))
    assert causes(result, 1) == {}
    assert result.collectives[1].cause == "synchronous"


def test_steps_sum_to_the_rank() -> None:
    #  the collective crosses the border at 100: 20 ns in the first step, 30 in the second
    result = analyze(
        gemm(50, 60, launch=10),
        comm(80, 130, is_async=False, launch=20),
        compute(100, 100, launch=95),
        gemm(140, 150, launch=96),
        steps=(step(0, 0, 90), step(1, 90, 200)),
    )
    per_step = [one.exposed_by_cause_ns for one in result.steps]
    assert per_step == [{"synchronous": 20}, {"synchronous": 30}]
    assert only_rank(result).exposed_by_cause_ns == {"synchronous": 50}


@pytest.mark.parametrize("cpu", [False, True])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_parts_always_sum(cpu: bool, data: st.DataObject) -> None:
    """Whatever runs and is known: parts sum to shares, to steps, to ranks, and are never negative."""
    drawn = []
    for _ in range(data.draw(st.integers(1, 6))):
        start, launch = data.draw(st.integers(30, 90)), data.draw(st.sampled_from([-1, 3, 10, 25, 60]))
        facts = {
            "is_async": data.draw(st.sampled_from([None, True, False])),
            "wait_start_ns": data.draw(st.sampled_from([None, 30, 70])),
            "node": data.draw(st.sampled_from([-1, 5])),
            "purpose": data.draw(st.sampled_from(["dgrad", "other"])),
            "stream": data.draw(st.sampled_from([7, 20])),
            "group": data.draw(st.sampled_from([TP, None])),
        }
        drawn.append(comm(start, start + data.draw(st.integers(0, 20)), launch=launch, **facts))
    for _ in range(data.draw(st.integers(0, 5))):
        start, launch = data.draw(st.integers(30, 100)), data.draw(st.sampled_from([-1, 5, 20, 65]))
        more = {"node": data.draw(st.sampled_from([-1, 5])), "role": data.draw(st.sampled_from(list(Role)))}
        drawn.append(gemm(start, start + data.draw(st.integers(0, 15)), launch=launch, **more))
    drawn.append(memory(40, 45))
    many = (step(0, 0, 28), step(1, 28, 120))
    result = analyze(*drawn, cpu=cpu, steps=many if data.draw(st.booleans()) else (), rule=None)
    skew = {f"c{one.id}": data.draw(st.integers(0, 25)) for one in result.collectives}
    for settled in (result, with_skew(result, **skew)):
        for i, one in enumerate(settled.collectives):
            parts = causes(settled, i)
            assert all(ns > 0 for ns in parts.values())
            assert set(parts) <= set(CAUSES)
            assert (one.cause is None) == (one.exposed_ns == 0)
        per_step = [sum((one.exposed_by_cause_ns or {}).values()) for one in settled.steps]
        assert per_step == [one.exposed_ns for one in settled.steps]
        assert sum((only_rank(settled).exposed_by_cause_ns or {}).values()) == only_rank(settled).exposed_ns


def test_several_devices_each_by_itself() -> None:
    result = analyze(
        gemm(0, 10, device=0), comm(0, 20, device=0, is_async=False), comm(5, 9, device=1), rule=WHOLE
    )
    assert [rank.exposed_by_cause_ns for rank in result.ranks] == [{"synchronous": 10}, {"unknown": 4}]


def test_many_at_once_are_what_they_are_one_by_one() -> None:
    """No collective's cause depends on the others' positions in the arrays."""
    rng = np.random.default_rng(1)
    alone = []
    for i in range(30):
        base, length, width = 1000 * i, int(rng.integers(5, 40)), int(rng.integers(1, 40))
        launch, late = base + 100, int(rng.integers(0, 30))
        alone.append(
            (
                dgrad_comm(
                    launch + 5, launch + 5 + length, launch=launch, wait_start_ns=launch + 90, layer=i
                ),
                replace(
                    wgrad(
                        launch + 5 + late,
                        launch + 5 + late + width,
                        launch=launch + 2,
                        range_start_ns=launch + 1,
                    ),
                    columns=wgrad(0, 1).columns | {"layer": i, "range_start_ns": launch + 1},
                ),
            )
        )
    together = analyze(*(one for pair in alone for one in pair))
    for i, pair in enumerate(alone):
        assert causes(together, i) == causes(analyze(*pair))
