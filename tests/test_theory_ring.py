"""Closed forms of ring attention against counting, published figures and each other."""

from __future__ import annotations

from fractions import Fraction

import pytest

from sp_profiler.theory.ring import (
    RING_SELF_ATTENTION_WIRE,
    RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER,
    TABLE_2,
    RingSizes,
    backward_wire_bytes,
    block_flops,
    causal_balance,
    exposed_ring_seconds,
    forward_wire_bytes,
    hop_bytes,
    hop_seconds,
    ring_saved_bytes,
    ring_seconds,
    ring_self_attention_score_bytes,
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
    assert backward_wire_bytes(sizes) == 3 * kv + 4 * 2 * kv


def _counted(owner: list[int], ranks: int) -> Fraction:
    """Scores below the diagonal by (rank, block), over p times the sum of each step's maximum."""
    positions = [[i for i, rank in enumerate(owner) if rank == r] for r in range(ranks)]
    work = [
        [sum(k <= q for q in positions[r] for k in positions[b]) for b in range(ranks)] for r in range(ranks)
    ]
    # in step j rank r works on the block of rank r - j
    steps = [max(work[r][(r - j) % ranks] for r in range(ranks)) for j in range(ranks)]
    return Fraction(sum(map(sum, work)), ranks * sum(steps))


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
    assert ulysses_wire_bytes(sizes) == Fraction(3, 4) * 2 * (2 * 16 * 2 * 4 * 8 + 2 * 16 * 2 * 2 * 8)
    assert ring_self_attention_score_bytes(sizes) == 2 * 2 * 4 * 16 * 64
    assert RING_SELF_ATTENTION_WIRE - RING_SELF_ATTENTION_WIRE_WITH_REDUCE_SCATTER == 2
    assert ring_saved_bytes(sizes) == 2 * (2 * 16 * 2 * 4 * 8 + 2 * 16 * 2 * 2 * 8) + 4 * 16 * 2 * 4


def test_ranks_must_divide_the_sequence() -> None:
    with pytest.raises(ValueError, match="65 tokens cannot be divided among 4 ranks"):
        RingSizes(seq_len=65, ranks=4, micro_batch=1, heads=4, kv_heads=4, head_dim=8)
