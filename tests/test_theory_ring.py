"""Closed forms of ring attention against counting, published figures and each other."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.theory.ring import (
    ATTENTION_BACKWARD,
    LAYOUTS,
    RING_SELF_ATTENTION_WIRE,
    RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER,
    TABLE_2,
    RingSizes,
    all_to_all_bytes,
    backward_ring_seconds,
    backward_wire_bytes,
    block_flops,
    causal_balance,
    exposed_backward_ring_seconds,
    exposed_ring_seconds,
    forward_wire_bytes,
    gradient_hop_bytes,
    hop_bytes,
    hop_seconds,
    rank_scores,
    ring_saved_bytes,
    ring_seconds,
    ring_self_attention_score_bytes,
    slowest_scores,
    tokens_to_hide,
    ulysses_wire_bytes,
)

# S=131072, H=4096, 16 ranks, bf16 (FACTS, section 3)
EXAMPLE = RingSizes(seq_len=131072, ranks=16, micro_batch=1, heads=32, kv_heads=32, head_dim=128)
GROUPED = RingSizes(seq_len=131072, ranks=16, micro_batch=1, heads=32, kv_heads=8, head_dim=128)


def test_the_example_at_50_gb_per_s() -> None:
    hop = hop_bytes(EXAMPLE)
    assert hop == 134_217_728  # 134 MB
    assert forward_wire_bytes(EXAMPLE) == 15 * hop == 2_013_265_920  # 2.01 GB per layer
    hop_s = hop_seconds(hop, bytes_per_s=50e9)
    assert hop_s == pytest.approx(2.68e-3, rel=2e-3)
    assert float(block_flops(EXAMPLE)) == pytest.approx(1.10e12, rel=2e-3)
    block_s = float(block_flops(EXAMPLE)) / 400e12
    assert block_s == pytest.approx(2.75e-3, rel=2e-3)
    assert exposed_ring_seconds([block_s] * 16, hop_s) == 0, "hidden without a causal mask"
    half = float(block_flops(EXAMPLE, share=Fraction(1, 2))) / 400e12
    assert exposed_ring_seconds([half] * 16, hop_s) == pytest.approx(15 * (hop_s - half))


def test_grouped_queries_send_a_quarter() -> None:
    assert hop_bytes(GROUPED) == hop_bytes(EXAMPLE) // 4 == 33_554_432
    hop_s = hop_seconds(hop_bytes(GROUPED), bytes_per_s=50e9)
    assert hop_s == pytest.approx(0.67e-3, rel=2e-3)
    half = float(block_flops(GROUPED, share=Fraction(1, 2))) / 400e12
    assert exposed_ring_seconds([half] * 16, hop_s) == 0, "hidden with causal zigzag too"


@pytest.mark.parametrize("name", TABLE_2)
def test_table_2_of_liu_et_al(name: str) -> None:
    """Phi/beta; the table's figures are rounded to 0.1 and, of InfiniBand, 2 % below the formula."""
    tflops, gbps, thousand = TABLE_2[name]
    tokens = tokens_to_hide(flops_per_s=tflops * 1e12, bytes_per_s=gbps * 1e9)
    assert tokens / 1000 == pytest.approx(thousand, abs=0.06 if thousand < 2 else 0.5)


def test_table_2_by_formula() -> None:
    found = [tokens_to_hide(flops_per_s=t * 1e12, bytes_per_s=g * 1e9) / 1000 for t, g, _ in TABLE_2.values()]
    assert [round(x, 2) for x in found] == [1.04, 24.96, 1.10, 1.03, 1.05]


@pytest.mark.parametrize("kv_heads", [1, 8, 32])
@pytest.mark.parametrize("share", [Fraction(1), Fraction(1, 2)])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_the_condition_is_where_hop_and_block_take_equally_long(
    kv_heads: int, share: Fraction, element_bytes: int
) -> None:
    flops_per_s, bytes_per_s = 400e12, 50e9
    tokens = tokens_to_hide(
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        element_bytes=element_bytes,
        heads=32,
        kv_heads=kv_heads,
        causal_zigzag=share != 1,
    )
    whole = round(tokens)
    assert whole == tokens
    sizes = RingSizes(4 * whole, 4, 2, 32, kv_heads, 128, element_bytes)
    block_s = float(block_flops(sizes, share=share)) / flops_per_s
    assert hop_seconds(hop_bytes(sizes), bytes_per_s=bytes_per_s) == pytest.approx(block_s)


def test_a_rings_time_is_the_first_block_and_the_slower_of_hop_and_block_for_the_others() -> None:
    assert ring_seconds([2.0] * 4, 3.0) == 2 + 3 * 3
    assert ring_seconds([4.0] * 4, 3.0) == 4 + 3 * 4
    assert ring_seconds([5.0], 3.0) == 5, "one rank has no hop"
    # p=3, blocks of 4, 1 and 2 s, hops of 3 s: 4 (hidden), 3 (2 s of it exposed), 2
    assert ring_seconds([4.0, 1.0, 2.0], 3.0) == 9
    assert exposed_ring_seconds([4.0, 1.0, 2.0], 3.0) == 2


def test_backward_sends_the_gradients_in_fp32() -> None:
    sizes = RingSizes(seq_len=64, ranks=4, micro_batch=1, heads=4, kv_heads=2, head_dim=8)
    kv = 2 * 2 * 16 * 2 * 8  # K and V, 2 bytes, 16 tokens, 2 heads of 8
    assert hop_bytes(sizes) == kv
    assert gradient_hop_bytes(sizes) == 2 * kv
    assert backward_wire_bytes(sizes) == 3 * kv + 4 * 2 * kv
    double = RingSizes(seq_len=64, ranks=4, micro_batch=1, heads=4, kv_heads=2, head_dim=8, element_bytes=8)
    assert gradient_hop_bytes(double) == hop_bytes(double), "nothing is summed in less than it is"
    alone = RingSizes(seq_len=64, ranks=1, micro_batch=1, heads=4, kv_heads=2, head_dim=8)
    assert backward_wire_bytes(alone) == 0


def _work(owner: list[int], ranks: int) -> list[list[int]]:
    """Scores on or below the diagonal, counted: [rank][ring step], with the block of rank - step."""
    positions = [[i for i, rank in enumerate(owner) if rank == r] for r in range(ranks)]
    return [
        [sum(k <= q for q in positions[r] for k in positions[(r - s) % ranks]) for s in range(ranks)]
        for r in range(ranks)
    ]


def _counted(owner: list[int], ranks: int) -> Fraction:
    """All scores over p times the sum of each step's maximum."""
    work = _work(owner, ranks)
    return Fraction(sum(map(sum, work)), ranks * sum(map(max, zip(*work, strict=True))))


def _owners(layout: str, ranks: int, tokens: int) -> list[int]:
    if layout == "contiguous":
        return [rank for rank in range(ranks) for _ in range(tokens)]
    if layout == "striped":
        return list(range(ranks)) * tokens
    half = tokens // 2
    return [min(chunk, 2 * ranks - 1 - chunk) for chunk in range(2 * ranks) for _ in range(half)]


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize(("ranks", "tokens"), [(2, 2), (2, 8), (3, 4), (4, 6), (8, 4)])
def test_causal_balance_by_counting(layout: str, ranks: int, tokens: int) -> None:
    counted = _counted(_owners(layout, ranks, tokens), ranks)
    assert causal_balance(layout, ranks=ranks, tokens=tokens) == counted


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("ranks", "tokens"), [(2, 2), (2, 8), (3, 4), (4, 6), (8, 4)])
def test_scores_of_every_rank_and_step_by_counting(layout: str, ranks: int, tokens: int) -> None:
    work = _work(_owners(layout, ranks, tokens), ranks)
    for rank in range(ranks):
        for step in range(ranks):
            found = rank_scores(layout, ranks=ranks, tokens=tokens, rank=rank, step=step)
            assert found == work[rank][step], (rank, step)
    slowest = slowest_scores(layout, ranks=ranks, tokens=tokens)
    assert slowest == tuple(map(max, zip(*work, strict=True))), "the last rank's are the most in every step"
    total = ranks * tokens * (ranks * tokens + 1) // 2
    assert causal_balance(layout, ranks=ranks, tokens=tokens) == Fraction(total, ranks * sum(slowest))
    assert slowest_scores(layout, ranks=ranks, tokens=tokens, causal=False) == (tokens**2,) * ranks


# --- closed forms of time against rings that are played out, rank by rank -------------------------------

Program = list[tuple[str, int, float]]
"""launch (number, seconds), compute (0, seconds) and wait (number, 0): what one rank does, in order."""


def played(programs: list[Program]) -> float:
    """When the last rank is done. Transfer k from each rank to the next begins when both have launched it and
    the transfers before it on that link are done; who waits for k waits for what it sends and receives."""
    ranks = len(programs)
    now = [0.0] * ranks
    place = [0] * ranks
    launched: list[dict[int, float]] = [{} for _ in range(ranks)]
    seconds: dict[int, float] = {}
    ends: list[dict[int, float]] = [{} for _ in range(ranks)]  # of what rank r sends to r + 1
    order: list[int] = [number for what, number, _ in programs[0] if what == "launch"]
    while any(place[r] < len(programs[r]) for r in range(ranks)):
        before = (tuple(place), sum(map(len, ends)))
        for r in range(ranks):
            while place[r] < len(programs[r]):
                what, number, length = programs[r][place[r]]
                if what == "compute":
                    now[r] += length
                elif what == "launch":
                    launched[r][number], seconds[number] = now[r], length
                elif number in ends[r] and number in ends[r - 1]:
                    now[r] = max(now[r], ends[r][number], ends[r - 1][number])
                else:
                    break
                place[r] += 1
        for r in range(ranks):
            for at, number in enumerate(order):
                after = launched[(r + 1) % ranks]
                free = 0.0 if at == 0 else ends[r].get(order[at - 1])
                if number not in ends[r] and number in launched[r] and number in after and free is not None:
                    ends[r][number] = max(launched[r][number], after[number], free) + seconds[number]
        assert before != (tuple(place), sum(map(len, ends))), "nobody can go on"
    return max(now)


def forward_program(work: list[int], hop: float) -> Program:
    """Shift K,V; attention over the block in hand; wait."""
    out: Program = []
    for step, scores in enumerate(work):
        is_last = step == len(work) - 1
        out += [] if is_last else [("launch", step, hop)]
        out.append(("compute", 0, float(scores)))
        out += [] if is_last else [("wait", step, 0.0)]
    return out


def backward_program(work: list[int], hop: float, gradient_hop: float) -> Program:
    """Shift K,V; attention; wait for dK,dV of the step before, shift those of this one; wait for K,V."""
    out: Program = []
    for step, scores in enumerate(work):
        is_last = step == len(work) - 1
        out += [] if is_last else [("launch", 2 * step, hop)]
        out.append(("compute", 0, float(ATTENTION_BACKWARD) * scores))
        out += [("wait", 2 * step - 1, 0.0)] if step else []
        out.append(("launch", 2 * step + 1, gradient_hop))
        out += [] if is_last else [("wait", 2 * step, 0.0)]
    return [*out, ("wait", 2 * len(work) - 1, 0.0)]


RINGS = {
    "layout": st.sampled_from(LAYOUTS),
    "causal": st.booleans(),
    "ranks": st.integers(2, 6),
    "half": st.integers(1, 5),
    "hop": st.integers(0, 120),
    "gradient_hop": st.integers(0, 120),
}


@given(**RINGS)
def test_a_ring_that_is_played_out_takes_what_the_closed_form_says(
    layout: str, causal: bool, ranks: int, half: int, hop: int, gradient_hop: int
) -> None:
    """Every rank computes its own, counted scores, a second each; no step waits for all ranks."""
    n = 2 * half
    counted = _work(_owners(layout, ranks, n), ranks) if causal else [[n * n] * ranks] * ranks
    slowest = [float(scores) for scores in slowest_scores(layout, ranks=ranks, tokens=n, causal=causal)]
    forward = played([forward_program(work, hop) for work in counted])
    assert forward == ring_seconds(slowest, hop)
    assert exposed_ring_seconds(slowest, hop) == forward - sum(slowest)
    backward = played([backward_program(work, hop, gradient_hop) for work in counted])
    steps = [float(ATTENTION_BACKWARD) * seconds for seconds in slowest]
    assert backward == backward_ring_seconds(steps, hop, gradient_hop)
    assert exposed_backward_ring_seconds(steps, hop, gradient_hop) == backward - sum(steps)


def test_a_backward_by_hand() -> None:
    # p=3, blocks of 4, 1 and 2 s, K,V 3 s, dK,dV 2 s: 4; 3+2 beside 1; 2 beside 2; the last 2
    assert backward_ring_seconds([4.0, 1.0, 2.0], 3.0, 2.0) == 4 + 5 + 2 + 2
    assert exposed_backward_ring_seconds([4.0, 1.0, 2.0], 3.0, 2.0) == 4 + 2
    assert backward_ring_seconds([5.0], 3.0, 2.0) == 5, "one rank has no hop"


def test_causal_balance_published_figures_and_limits() -> None:
    contiguous = [float(causal_balance("contiguous", ranks=p, tokens=64)) for p in (2, 4, 8, 16)]
    striped = [float(causal_balance("striped", ranks=p, tokens=64)) for p in (2, 4, 8, 16)]
    assert [round(x, 4) for x in contiguous] == [0.6684, 0.5724, 0.5338, 0.5164]
    assert [round(x, 4) for x in striped] == [0.9923, 0.9885, 0.9865, 0.9856]
    assert float(causal_balance("contiguous", ranks=4, tokens=10**6)) == pytest.approx(4 / 7, rel=1e-5)
    assert float(causal_balance("striped", ranks=10**6, tokens=64)) == pytest.approx(64 / 65, rel=1e-5)
    with pytest.raises(ValueError, match="spiral"):
        causal_balance("spiral", ranks=2, tokens=2)


def test_relatives_of_the_ring() -> None:
    sizes = RingSizes(seq_len=64, ranks=4, micro_batch=2, heads=4, kv_heads=2, head_dim=8)
    # q and out 16x2x4x8, k and v 16x2x2x8 elements of 2 bytes, three quarters of it to others
    assert all_to_all_bytes(sizes) == {"q": 2048, "k": 1024, "v": 1024, "out": 2048}
    assert ulysses_wire_bytes(sizes) == Fraction(3, 4) * 2 * (2 * 16 * 2 * 4 * 8 + 2 * 16 * 2 * 2 * 8)
    assert ring_self_attention_score_bytes(sizes) == 2 * 2 * 4 * 16 * 64
    assert RING_SELF_ATTENTION_WIRE - RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER == 2
    assert ring_saved_bytes(sizes) == 2 * (2 * 16 * 2 * 4 * 8 + 2 * 16 * 2 * 2 * 8) + 4 * 16 * 2 * 4


def test_ranks_must_divide_the_sequence() -> None:
    with pytest.raises(ValueError, match="65 tokens cannot be divided among 4 ranks"):
        RingSizes(seq_len=65, ranks=4, micro_batch=1, heads=4, kv_heads=4, head_dim=8)
