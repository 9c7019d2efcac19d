"""Hops, what their exposure is made of, and balance, of rings drawn by hand: times in ns beside each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from across_helpers import group_of
from analysis_helpers import WHOLE, Drawn, comm, compute, draw, gemm, step

from sp_profiler.analysis.across import across_ranks
from sp_profiler.analysis.context_parallel.across import context_parallel
from sp_profiler.analysis.context_parallel.results import ContextParallel, Hop
from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify.tables import Group, Phase, Role


def attention(start: int, end: int, launch: int, **more: Any) -> Drawn:
    return compute(start, end, Role.ATTENTION, launch, **({"phase": Phase.FORWARD} | more))


def hop(start: int, end: int, launch: int, *, of: Group, rank: int, **more: Any) -> Drawn:
    """A shift to the next rank of the group."""
    place, size = of.ranks.index(rank), len(of.ranks)
    source, target = of.ranks[place - 1], of.ranks[(place + 1) % size]
    facts = {"op": "send_recv", "group": of, "purpose": "kv", "source": source, "target": target}
    facts |= {"peers": tuple(sorted({source, target})), "phase": Phase.FORWARD, "bytes": 1000}
    return comm(start, end, launch, **(facts | more))


def found_in(ranks: Sequence[Sequence[Drawn]], run_json: dict[str, Any] | None = None) -> ContextParallel:
    """What ranks 0, 1, ... show together."""
    results = [analyze_rank(*draw(*rows, rank=rank), WHOLE) for rank, rows in enumerate(ranks)]
    across = across_ranks(results)
    found, notes = context_parallel(across.results, across.joined, run_json)
    assert found is not None
    assert not notes
    backwards, _ = context_parallel(across.results, across.joined, run_json)
    assert backwards == found
    return found


def of_rank(found: ContextParallel, rank: int) -> list[Hop]:
    return [one for one in found.hops if one.rank == rank]


def parts(one: Hop) -> tuple[int | None, ...]:
    return one.exposed_ns, one.communication_ns, one.imbalance_ns, one.skew_ns


CP4 = group_of(0, 1, 2, 3, description="cp")


def contiguous(rank: int) -> list[Drawn]:
    """A causal ring of four, each with a stretch of the sequence: blocks of 100 where the keys come before,
    hops of 20 once all are there, nothing else.

    rank 0  | own 0-100 |                 hop 2 from 120, waits for ranks 1 and 3 until 200
    rank 1  | own 0-100 | block 1 100-200 |
    rank 2  | own 0-100 | block 1 100-200 | block 2 200-300 |
    rank 3  | own 0-100 | block 1 100-200 | block 2 200-300 | block 3 300-400 |
    """
    at: dict[str, Any] = {"of": CP4, "rank": rank}
    rows = [hop(0, 20, 0, **at), attention(0, 100, 1), hop(100, 120, 2, **at)]
    rows += [attention(100, 200, 3)] if rank >= 1 else []
    rows += [hop(120 if rank == 0 else 200, 220, 4, **at)]
    rows += [attention(200, 300, 5)] if rank >= 2 else []
    rows += [attention(300, 400, 6)] if rank == 3 else []
    return rows


def test_a_ring_of_four_by_hand() -> None:
    found = found_in([contiguous(rank) for rank in range(4)])
    (scheme,) = found.schemes
    assert (scheme.scheme, scheme.ranks, scheme.groups) == ("ring", [0, 1, 2, 3], ["cp[0,1,2,3]"])
    assert (scheme.forward_passes, scheme.backward_passes, scheme.incomplete_passes) == (1, 0, 0)
    assert (scheme.layout, scheme.layout_rule, scheme.causal) == ("contiguous", "measured-work", True)
    first, second, third = of_rank(found, 0)
    assert [one.hop for one in (first, second, third)] == [0, 1, 2]
    assert (first.source, first.target, first.bytes, first.payload) == (3, 1, 1000, "kv")
    assert (first.dur_ns, first.transfer_ns, first.attention_ns, first.larger) == (20, 20, 100, "attention")
    assert (first.hidden_ns, parts(first)) == (20, (0, 0, 0, 0))
    # Nothing is left to compute beside it: exposed, though every peer was there.
    assert (second.attention_ns, second.larger, parts(second)) == (0, "transfer", (20, 20, 0, 0))
    # 80 of its 100 it waits for ranks that have a block to compute.
    assert (third.dur_ns, third.transfer_ns, parts(third)) == (100, 20, (100, 20, 80, 0))
    assert parts(of_rank(found, 1)[2]) == (20, 20, 0, 0)
    assert parts(of_rank(found, 3)[2]) == (0, 0, 0, 0)


def test_its_balance() -> None:
    (balance,) = found_in([contiguous(rank) for rank in range(4)]).balance
    assert balance.work_ns == [[100, 0, 0, 0], [100, 100, 0, 0], [100, 100, 100, 0], [100, 100, 100, 100]]
    assert balance.measured_ratio == 1000 / (4 * 400)
    assert balance.lost_ns == [300, 200, 100, 0]
    assert balance.imbalance_ns == [80, 0, 0, 0]
    assert balance.communication_ns == [40, 20, 0, 0]
    assert balance.skew_ns == [0, 0, 0, 0]
    assert balance.limit_ratio == 4 / 7
    assert balance.scores is None  # nobody tells how long the sequence is


def test_scores_are_counted_for_the_layout_of_the_workload() -> None:
    workload = {"mode": "ring", "layout": "contiguous", "causal": True, "seq_len": 8}
    (balance,) = found_in([contiguous(rank) for rank in range(4)], {"workload": workload}).balance
    assert balance.scores == [[3, 0, 0, 0], [3, 4, 0, 0], [3, 4, 4, 0], [3, 4, 4, 4]]
    assert balance.ideal_ratio == 36 / (4 * 15)


def test_a_late_host_is_skew() -> None:
    """Ring of two: rank 1 launches its hop 50 late, with nothing more to compute than rank 0."""
    pair = group_of(0, 1, description="cp")
    ranks = [
        [attention(0, 100, 0), hop(100, 170, 1, of=pair, rank=0), attention(170, 270, 2)],
        [attention(0, 100, 0), hop(150, 170, 1, of=pair, rank=1), attention(170, 270, 2)],
    ]
    found = found_in(ranks)
    assert parts(of_rank(found, 0)[0]) == (70, 20, 0, 50)
    assert parts(of_rank(found, 1)[0]) == (20, 20, 0, 0)


def test_more_attention_explains_only_as_much_of_a_wait() -> None:
    """Rank 1 has 30 more to compute and comes 50 late: 30 imbalance, 20 skew."""
    pair = group_of(0, 1, description="cp")
    ranks = [
        [attention(0, 100, 0), hop(100, 170, 1, of=pair, rank=0), attention(170, 270, 2)],
        [attention(0, 130, 0), hop(150, 170, 1, of=pair, rank=1), attention(170, 270, 2)],
    ]
    assert parts(of_rank(found_in(ranks), 0)[0]) == (70, 20, 30, 20)


def test_waits_that_were_paid_for_explain_nothing_more() -> None:
    """Rank 1 has more attention in the first ring step; at the second hop it is late for another reason."""
    pair = group_of(0, 1, description="cp")
    one = [
        attention(0, 100, 0), hop(100, 150, 1, of=pair, rank=0), attention(150, 250, 2),
        gemm(250, 260, Role.FWD, 3, phase=Phase.FORWARD),
        attention(260, 360, 4), hop(360, 430, 5, of=pair, rank=0), attention(430, 530, 6),
    ]  # fmt: skip
    two = [
        attention(0, 130, 0), hop(130, 150, 1, of=pair, rank=1), attention(150, 250, 2),
        gemm(250, 260, Role.FWD, 3, phase=Phase.FORWARD),
        attention(260, 360, 4), hop(410, 430, 5, of=pair, rank=1), attention(430, 530, 6),
    ]  # fmt: skip
    found = found_in([one, two])
    (waited,) = of_rank(found, 0)
    assert waited.passes == 2
    assert parts(waited) == (50 + 70, 20 + 20, 30, 50)


def test_the_last_blocks_of_a_layer_explain_waits_of_the_next() -> None:
    """Nothing waits after a ring's last block; what a rank has more there, others lose in the next layer."""
    pair = group_of(0, 1, description="cp")
    short = [
        hop(0, 20, 0, of=pair, rank=0), attention(0, 100, 1),
        gemm(100, 110, Role.FWD, 2, phase=Phase.FORWARD),
        hop(110, 230, 3, of=pair, rank=0), attention(110, 130, 4),
    ]  # fmt: skip
    long = [
        hop(0, 20, 0, of=pair, rank=1), attention(0, 100, 1), attention(100, 200, 2),
        gemm(200, 210, Role.FWD, 3, phase=Phase.FORWARD),
        hop(210, 230, 4, of=pair, rank=1), attention(210, 230, 5), attention(230, 330, 6),
    ]  # fmt: skip
    (waited,) = of_rank(found_in([short, long]), 0)
    # In the second layer 120 long, 20 of them hidden; the wait ends at 210.
    assert parts(waited) == (100, 20, 80, 0)


def exchange(start: int, **more: Any) -> Drawn:
    """An all-to-all of 10, launched where it starts."""
    pair = group_of(0, 1, description="cp")
    return comm(start, start + 10, start, op="all_to_all", group=pair, purpose="layout", bytes=500, **more)


def copied(start: int, **more: Any) -> Drawn:
    return compute(start, start + 5, Role.OTHER, start, name="direct_copy_kernel_cuda", **more)


def test_all_to_alls_around_attention() -> None:
    """Forward of one layer, then backward, which repeats q, k, v and attention but not what follows it."""
    forward, backward = {"phase": Phase.FORWARD}, {"phase": Phase.BACKWARD}
    again = {**backward, "recomputed": True}
    rows = [
        copied(0, **forward), exchange(5, **forward), exchange(20, **forward), exchange(40, **forward),
        attention(60, 160, 60), exchange(170, **forward), copied(180, **forward),
        gemm(200, 250, Role.FWD, 200, **forward),
        exchange(300, **backward),
        exchange(320, **again), exchange(340, **again), exchange(360, **again),
        attention(380, 480, 380, **again),
        attention(480, 680, 480, **backward),
        exchange(700, **backward), exchange(720, **backward), exchange(740, **backward),
        copied(750, **backward),
    ]  # fmt: skip
    found = found_in([rows, rows])
    (scheme,) = found.schemes
    assert (scheme.scheme, scheme.ring_ranks) == ("ulysses", None)
    assert (scheme.forward_passes, scheme.recompute_passes, scheme.backward_passes) == (1, 1, 1)
    names = [(one.phase, one.payload, one.hop) for one in of_rank(found, 0)]
    assert names == [
        ("forward", "q", 0), ("forward", "k", 1), ("forward", "v", 2), ("forward", "out", 3),
        ("backward", "dout", 0), ("backward", "dqkv", 1), ("backward", "dqkv", 2), ("backward", "dqkv", 3),
        ("recompute", "q", 0), ("recompute", "k", 1), ("recompute", "v", 2),
    ]  # fmt: skip
    told = [(one.phase, one.all_to_alls, one.comm_ns, one.copies, one.copy_ns) for one in found.layout_copies]
    assert told[:3] == [("forward", 4, 40, 2, 10), ("backward", 4, 40, 1, 5), ("recompute", 3, 30, 0, 0)]
    assert found.balance == []


def test_hops_of_ranks_without_a_trace_are_not_divided() -> None:
    results = [analyze_rank(*draw(*contiguous(rank), rank=rank), WHOLE) for rank in (0, 1)]
    across = across_ranks(results)
    found, notes = context_parallel(across.results, across.joined, None)
    assert found is not None
    assert {parts(one)[1:] for one in found.hops} == {(None, None, None)}
    assert {note.code for note in notes} == {"context-hop-unmatched"}
    (balance,) = found.balance
    assert balance.work_ns[2:] == [[None] * 4] * 2
    assert (balance.measured_ratio, balance.lost_ns, balance.skew_ns) == (None, None, None)


def test_a_pass_that_lacks_a_hop_is_in_no_figure() -> None:
    rows = [contiguous(rank) for rank in range(4)]
    second = [
        [replace(one, start=one.start + 500, end=one.end + 500, launch=one.launch + 500) for one in many]
        for many in rows
    ]
    border = gemm(450, 460, Role.FWD, 450, phase=Phase.FORWARD)
    cut = [[*one, border, *two[:2]] for one, two in zip(rows, second, strict=True)]
    results = [analyze_rank(*draw(*many, rank=rank), WHOLE) for rank, many in enumerate(cut)]
    across = across_ranks(results)
    found, notes = context_parallel(across.results, across.joined, None)
    assert found is not None
    assert (found.schemes[0].forward_passes, found.schemes[0].incomplete_passes) == (1, 1)
    assert {one.passes for one in found.hops} == {1}
    assert [(note.code, note.count) for note in notes] == [("context-pass-incomplete", 4)]


def test_k_and_v_each_sent_and_received_by_a_kernel_of_its_own() -> None:
    """Four kernels of 1000 bytes a hop: 2000 travel. K takes 20, V 20 after it, both ways at once."""
    pair = group_of(0, 1, description="cp")

    def both_ways(start: int, end: int, launch: int, rank: int) -> list[Drawn]:
        send = {"of": pair, "rank": rank, "source": None, "peers": (1 - rank,)}
        receive = {"of": pair, "rank": rank, "target": None, "peers": (1 - rank,), "stream": 21}
        order = (send, receive) if rank == 0 else (receive, send)
        return [hop(start, end, launch + n, **one) for n, one in enumerate(order)]

    ranks = [
        [
            *both_ways(0, 20, 0, rank),
            *both_ways(20, 40, 2, rank),
            attention(0, 100, 4),
            attention(100, 200, 5),
        ]
        for rank in (0, 1)
    ]
    for rank in (0, 1):
        (one,) = of_rank(found_in(ranks), rank)
        assert (one.bytes, one.dur_ns, one.transfer_ns, one.hidden_ns) == (2000, 40, 40, 80)


def test_a_send_and_a_receive_that_meet_at_different_times() -> None:
    """Each takes 20 once both of its ranks are there; what one waits for is not the transfer's time."""
    three = group_of(0, 1, 2, description="cp")

    def shift(rank: int, begins: int, sent: int, received: int, launch: int = 0) -> list[Drawn]:
        after, before = (rank + 1) % 3, (rank - 1) % 3
        sends = {"of": three, "rank": rank, "source": None, "peers": (after,)}
        receives = {"of": three, "rank": rank, "target": None, "peers": (before,), "stream": 21}
        return [hop(begins, sent, launch, **sends), hop(begins, received, launch + 1, **receives)]

    # Ranks 0, 1, 2 come at 0, 100, 0: 0 -> 1 and 1 -> 2 run from 100, 2 -> 0 from 0.
    firsts = [shift(0, 0, 120, 20), shift(1, 100, 120, 120), shift(2, 0, 20, 120)]
    ranks = [
        [*first, attention(0, 200, 2), *shift(rank, 200, 220, 220, 3), attention(200, 400, 5)]
        for rank, first in enumerate(firsts)
    ]
    results = [analyze_rank(*draw(*rows, rank=rank), WHOLE) for rank, rows in enumerate(ranks)]
    across = across_ranks(results)
    context, _ = context_parallel(across.results, across.joined, None)
    assert context is not None
    assert [(one.bytes, one.dur_ns, one.transfer_ns) for one in context.hops if one.hop == 0] == [
        (1000, 120, 20),
        (1000, 20, 20),
        (1000, 120, 20),
    ]


def both_ways(rank: int, *, last_one_way: bool = False) -> list[Drawn]:
    """A ring of four that halves K, V: of each hop 1000 bytes go to the next rank, 1000 to the one before."""
    rows: list[Drawn] = []
    for k in range(3):
        at: dict[str, Any] = {"of": CP4, "rank": rank}
        onwards, back = (rank + 1) % 4, (rank - 1) % 4
        turned: dict[str, Any] = at | {"source": onwards, "target": back, "stream": 21}
        rows += [hop(100 * k, 100 * k + 20, 10 * k, **at)]
        rows += [hop(100 * k, 100 * k + 20, 10 * k + 1, **(at if last_one_way and k == 2 else turned))]
        rows += [attention(100 * k, 100 * k + 100, 10 * k + 2)]
    return [*rows, attention(300, 400, 33)]


def test_a_ring_that_goes_both_ways() -> None:
    found = found_in([both_ways(rank) for rank in range(4)])
    (scheme,) = found.schemes
    assert (scheme.scheme, scheme.forward_passes, scheme.ring_ranks) == ("ring", 1, 4)
    assert "On rank 0 send/recv go both ways, to ranks 1 and 3, of 4 ranks: 6 of kv" in scheme.evidence
    mine = of_rank(found, 0)
    assert [(one.hop, one.bytes, one.transfer_ns, one.attention_ns) for one in mine] == [
        (0, 2000, 20, 100), (1, 2000, 20, 100), (2, 2000, 20, 100)
    ]  # fmt: skip
    assert {(one.source, one.target) for one in mine} == {(None, None)}


def test_sends_to_more_than_one_rank_that_are_no_ring() -> None:
    results = [analyze_rank(*draw(*both_ways(r, last_one_way=True), rank=r), WHOLE) for r in range(4)]
    found, notes = context_parallel(results, None, None)
    assert found is not None
    (scheme,) = found.schemes
    assert scheme.scheme == "unknown"
    assert "neither all from one rank and to one rank" in scheme.evidence
    assert "context-scheme-unknown" in {note.code for note in notes}


def test_the_evidence_says_what_the_rank_shows() -> None:
    """Of a causal ring the rank that has a block in every step; alone, the first one has but its own."""
    every = found_in([contiguous(rank) for rank in range(4)])
    assert every.schemes[0].evidence == (
        "On rank 3 every send/recv is from rank 2 and to rank 0 of 4 ranks: 3 of kv in each forward, "
        "with attention between one and the next"
    )
    alone, _ = context_parallel([analyze_rank(*draw(*contiguous(0), rank=0), WHOLE)], None, None)
    assert alone is not None
    assert alone.schemes[0].evidence.endswith("3 of kv in each forward, with attention in 1 of 4 ring steps")


def test_a_merge_that_is_called_a_softmax_is_no_block() -> None:
    """Ring of four that merges beside the block in hand: the steps before the last have two kernels each, of
    which one is attention."""

    def merge(start: int, launch: int) -> Drawn:
        name = "fused_softmax_lse_correction_kernel"
        return compute(start, start + 5, Role.OTHER, launch, name=name, stream=33, phase=Phase.FORWARD)

    ranks = [
        [
            hop(0, 20, 0, of=CP4, rank=rank), attention(0, 100, 1),
            hop(100, 120, 2, of=CP4, rank=rank), attention(100, 200, 3), merge(100, 4),
            hop(200, 220, 5, of=CP4, rank=rank), attention(200, 300, 6), merge(200, 7),
            attention(300, 390, 8), merge(300, 9),
        ]
        for rank in range(4)
    ]  # fmt: skip
    (balance,) = found_in(ranks).balance
    assert balance.work_ns == [[100, 100, 100, 90]] * 4


def test_passes_of_other_steps_are_not_incomplete() -> None:
    """Of two steps one is asked for: what the other holds is neither counted nor cut."""

    def later(one: Drawn) -> Drawn:
        return replace(one, start=one.start + 500, end=one.end + 500, launch=one.launch + 500)

    def passes(rule: WindowRule) -> tuple[int, int]:
        rows = contiguous(3)
        drawn = draw(*rows, *map(later, rows), rank=3, steps=(step(0, 0, 450), step(1, 450, 950)))
        found, _ = context_parallel([analyze_rank(*drawn, rule)], None, None)
        assert found is not None
        return found.schemes[0].forward_passes, found.schemes[0].incomplete_passes

    assert passes(WindowRule("step")) == (2, 0)
    assert passes(WindowRule("step", (1, 2))) == (1, 0)


def test_a_pass_that_runs_after_the_window_of_its_step_is_incomplete() -> None:
    """Step 0 launches both passes; its window ends when step 1 begins, of which no kernel is in the trace."""
    rows = contiguous(3)
    behind = [replace(one, start=one.start + 500, end=one.end + 500, launch=one.launch + 10) for one in rows]
    border = gemm(440, 445, Role.FWD, 8, phase=Phase.FORWARD)
    drawn = draw(*rows, border, *behind, rank=3, steps=(step(0, 0, 450), step(1, 450, 460)))
    found, _ = context_parallel([analyze_rank(*drawn, WindowRule("step"))], None, None)
    assert found is not None
    assert (found.schemes[0].forward_passes, found.schemes[0].incomplete_passes) == (1, 1)


def test_a_ring_with_another_number_of_hops_than_it_has_ranks_for() -> None:
    """Two of four ranks have a trace; each pass has five hops, all to one neighbour, each beside a block."""
    ranks = [
        [
            one
            for k in range(5)
            for one in (
                hop(100 * k, 100 * k + 20, 100 * k, of=CP4, rank=rank),
                attention(100 * k, 100 * k + 90, 100 * k + 1),
            )
        ]
        for rank in (0, 1)
    ]
    results = [analyze_rank(*draw(*rows, rank=rank), WHOLE) for rank, rows in enumerate(ranks)]
    found, _ = context_parallel(results, None, None)
    assert found is not None
    (scheme,) = found.schemes
    assert (scheme.scheme, scheme.ranks, scheme.forward_passes) == ("ring", [0, 1, 2, 3], 1)
    mine = of_rank(found, 0)
    assert [one.hop for one in mine] == [0, 1, 2, 3, 4]
    assert {(one.hidden_ns, one.exposed_ns, one.attention_ns) for one in mine} == {(20, 0, 90)}


@pytest.mark.parametrize("purpose", ["pipeline", "other", "expert"])
def test_other_communication_is_never_taken_for_a_ring(purpose: str) -> None:
    pair = group_of(0, 1, description="pp")
    rows = [attention(0, 100, 0), hop(100, 120, 1, of=pair, rank=0, purpose=purpose), attention(120, 220, 2)]
    result = analyze_rank(*draw(*rows, rank=0), WHOLE)
    assert result.context == ()
    assert context_parallel([result], None, None) == (None, ())


def test_the_order_of_ranks_does_not_matter() -> None:
    results = [analyze_rank(*draw(*contiguous(rank), rank=rank), WHOLE) for rank in range(4)]
    straight, turned = across_ranks(results), across_ranks(results[::-1])
    assert context_parallel(straight.results, straight.joined, None) == context_parallel(
        turned.results, turned.joined, None
    )
