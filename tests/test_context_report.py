"""Sums and sentences about context parallelism, from rings whose every hop follows by arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from context_report_helpers import (
    RINGS,
    Ring,
    draw,
    said,
    scores,
    ulysses,
    usp,
)
from report_helpers import make_report

from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.report.context import balances, families
from sp_profiler.theory.ring import causal_balance


@pytest.mark.parametrize("name", RINGS)
def test_what_is_exposed_is_the_sum_of_its_parts(name: str) -> None:
    (family,) = families(draw(RINGS[name]))
    for phase in ("forward", "backward", None):
        whole = family.exposure(phase)
        assert sum(whole.parts.values()) == whole.exposed_ns
        hops = [hop for hop in family.hops if phase in (None, hop.phase)]
        assert whole.hidden_ns + whole.exposed_ns == sum(hop.dur_ns * hop.passes for hop in hops)
    assert (family.exposure().unknown_ns > 0) == (name == "unmatched")


@pytest.mark.parametrize(("layout", "p"), [(x, p) for x in ("contiguous", "striped") for p in (2, 4, 8)])
def test_counting_one_by_one_gives_the_closed_forms(layout: str, p: int) -> None:
    """The drawn rings rest on it, and so does every ratio of these tests."""
    counted = scores(layout, p, 64)
    slowest = sum(max(step) for step in zip(*counted, strict=True))
    assert sum(map(sum, counted)) / (p * slowest) == pytest.approx(
        float(causal_balance(layout, ranks=p, tokens=64))
    )


def test_several_sets_of_ranks_of_one_kind_are_one_family() -> None:
    found = draw(
        *(Ring(first_rank=4 * place) for place in range(8)), Ring(layout="contiguous", first_rank=32)
    )
    even, other = families(found)
    assert even.name == "Ring attention (zigzag, causal, 8 × 4 ranks)"
    assert other.name == "Ring attention (contiguous, causal, 4 ranks)"
    assert [one.hop for one in even.hop_sums] == [0, 1, 2, 0, 1, 2]
    assert {len(one.hops) for one in even.hop_sums} == {32}
    (forward, _) = balances(even)
    assert len(forward.balances) == 8


def test_keys_and_values_stand_before_the_gradients_of_the_same_hop() -> None:
    found = draw(Ring())
    both = [*found.hops, *(replace(h, payload="kv") for h in found.hops if h.phase == "backward")]
    (family,) = families(replace(found, hops=both))
    sent = [(one.hop, one.payload) for one in family.hop_sums if one.phase == "backward"]
    assert sent == [(hop, payload) for hop in (0, 1, 2) for payload in ("kv", "dkv")]


def test_the_ring_and_the_all_to_alls_of_usp_are_told_apart() -> None:
    (family,) = families(usp())
    assert {way: len(hops) for way, hops in family.by_way.items()} == {"hop": 8, "all-to-all": 32}
    assert family.exposure(way="all-to-all").hidden_ns == 0
    assert family.exposure(way="hop").exposed_ns == 0


# --- sentences --------------------------------------------------------------------------------------------


def test_a_ring_that_hides_its_hops() -> None:
    assert said(draw(RINGS["even"])) == [
        "Ring attention (zigzag, causal, 4 ranks): computation hides all of its hops' time, nothing stays "
        "exposed.",
        "A forward hop takes 400.0 µs and the block it can run under 1.28 ms, a backward hop 800.0 µs and "
        "2.56 ms (medians): both can be hidden whole.",
        "Its ranks' work is 100 % even (counting gives 100 % for zigzag).",
    ]


def test_a_contiguous_ring_names_imbalance_and_what_it_costs() -> None:
    first, _, balance = said(draw(RINGS["contiguous"]))
    # Forward, of 6 passes: rank 0 waits in hop 2 for rank 3 (2.16 ms); each step's maximum is 2.56 ms.
    assert first == (
        "Ring attention (contiguous, causal, 4 ranks): computation hides 52 % of its forward hops' time "
        "and 52 % of backward's; 5.04 ms of it per step stay exposed, of which 3.24 ms wait for a peer "
        "that had more attention to compute and 1.80 ms are communication with every peer there."
    )
    assert balance == (
        "Its ranks' work is 58 % even (counting gives 58 % for contiguous): where every ring step lasts as "
        "long as on its slowest rank, a rank loses 3.84 ms of a forward pass and 7.68 ms of a backward pass."
    )


def test_a_synchronous_ring_hides_nothing() -> None:
    assert said(draw(RINGS["sync"]))[0] == (
        "Ring attention (zigzag, causal, 4 ranks): computation hides nothing of its hops' time; 7.20 ms of "
        "it per step stay exposed, all of it communication with every peer there."
    )


def test_a_late_rank_is_skew_and_no_imbalance() -> None:
    first = said(draw(RINGS["late"]))[0]
    assert "wait for a peer that came late for another reason" in first
    assert "more attention" not in first


def test_what_is_not_known_is_said_to_be_so() -> None:
    first, *others = said(draw(RINGS["unmatched"]))
    assert first.endswith("all of it of a cause that is not known, because its ranks were not matched.")
    assert not any("medians" in sentence for sentence in others)  # no transfer is known
    found = draw(RINGS["even"])
    (first,) = said(replace(found, hops=[], balance=[], models=[]))
    assert first == (
        "Ring attention (zigzag, causal, 4 ranks) was found, but none of its transfers could be measured: "
        "the data-quality ledger says why."
    )
    scheme = replace(found.schemes[0], scheme="unknown", layout=None, evidence="SendRecv in no order.")
    assert said(ContextParallel([scheme], [], [], [], [])) == [
        "Context parallelism of an unknown scheme (causal, 4 ranks): SendRecv in no order."
    ]
    assert said(None) == []


def test_cpu_runs_get_no_verdict_on_sizes() -> None:
    on_device, on_cpu = said(draw(RINGS["even"])), said(draw(RINGS["even"]), is_cpu=True)
    assert on_cpu == [
        on_device[0],
        "Its ranks' work was 100 % even where ranks share the cores; counting gives 100 % for zigzag.",
    ]


def test_layout_copies_are_neither_attention_nor_communication() -> None:
    first, copies = said(ulysses())
    # 8 all-to-alls of 200 us, 30 of them waiting, and 4 copies of 50 us in each of 6 passes and 3 steps
    assert first == (
        "Ulysses (causal, 4 ranks): computation hides nothing of its all-to-alls' time; 3.20 ms of it per "
        "step stay exposed, of which 2.72 ms are communication with every peer there and 480.0 µs wait "
        "for a peer that came late for another reason."
    )
    assert copies == (
        "96 copies that bring heads and tokens into the order of the all-to-alls take 400.0 µs per step: "
        "they are neither attention nor communication."
    )


def test_more_kinds_than_sentences_are_counted() -> None:
    kinds = [Ring(ranks=2 * (place + 1), first_rank=20 * place) for place in range(5)]
    assert said(draw(*kinds))[-1] == (
        "The tables tell of 2 more schemes: Ring attention (zigzag, causal, 8 ranks) and Ring attention "
        "(zigzag, causal, 10 ranks)."
    )


def test_the_sentences_stand_right_below_the_first_one() -> None:
    from test_report_build import assembled

    plain, with_ring = (
        assembled(make_report()),
        assembled(make_report(), context_parallel=draw(RINGS["even"])),
    )
    assert with_ring.summary[0] == plain.summary[0]
    assert with_ring.summary[1].startswith("Ring attention (zigzag")
    assert [*with_ring.summary[:1], *with_ring.summary[4:]] == plain.summary
