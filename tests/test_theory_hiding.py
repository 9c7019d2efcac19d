"""The smallest blocks that hide, against rings whose steps are timed one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.theory.hiding import Pass, least_tokens, least_tokens_with_latency, step_kinds
from sp_profiler.theory.ring import (
    LAYOUTS,
    RingSizes,
    exposed_backward_ring_seconds,
    exposed_ring_seconds,
    gradient_hop_bytes,
    hop_bytes,
    hop_seconds,
    score_flops,
    slowest_scores,
    tokens_to_hide,
)

SIZES = RingSizes(seq_len=4, ranks=4, micro_batch=1, heads=32, kv_heads=32, head_dim=128)
RATES: dict[str, Any] = {"flops_per_s": 400e12, "bytes_per_s": 50e9}


def exposed_seconds(
    sizes: RingSizes, layout: str, causal: bool, direction: Pass, rates: dict[str, Any], latency_s: float
) -> float:
    """Of the hops that can hide, step by step on the slowest rank."""
    scores = slowest_scores(layout, ranks=sizes.ranks, tokens=sizes.tokens, causal=causal)
    blocks = [score_flops(sizes, count) / rates["flops_per_s"] for count in scores]
    hop, gradient_hop = (
        hop_seconds(size, bytes_per_s=rates["bytes_per_s"], latency_s=latency_s)
        for size in (hop_bytes(sizes), gradient_hop_bytes(sizes))
    )
    if direction == "forward":
        return exposed_ring_seconds(blocks, hop)
    backward = [2.5 * block for block in blocks]
    return exposed_backward_ring_seconds(backward, hop, gradient_hop) - gradient_hop


@settings(max_examples=300, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    causal=st.booleans(),
    direction=st.sampled_from(["forward", "backward"]),
    ranks=st.sampled_from([2, 3, 4, 16]),
    tflops=st.integers(10, 2500),
    gbps=st.integers(5, 900),
    latency_us=st.sampled_from([0, 1, 10, 100]),
    shape=st.sampled_from([(1, 32, 32), (2, 32, 8), (4, 16, 1)]),
    element_bytes=st.sampled_from([2, 4, 8]),
)
def test_from_the_smallest_block_on_hops_hide(
    layout: str,
    causal: bool,
    direction: Pass,
    ranks: int,
    tflops: int,
    gbps: int,
    latency_us: int,
    shape: tuple[int, int, int],
    element_bytes: int,
) -> None:
    """The next longer block whose tokens are even hides all of them, the one before does not."""
    batch, heads, kv_heads = shape
    rates = {"flops_per_s": tflops * 1e12, "bytes_per_s": gbps * 1e9}
    latency_s = latency_us * 1e-6
    sizes = RingSizes(ranks, ranks, batch, heads, kv_heads, 128, element_bytes)
    asked: dict[str, Any] = {"causal": causal, "direction": direction, **rates}
    least = least_tokens_with_latency(sizes, layout, latency_s=latency_s, **asked)
    enough = 2 * math.ceil(least / 2 * (1 + 1e-9))
    for tokens, is_hidden in ((enough, True), (2 * math.ceil(least / 2 * (1 - 1e-9)) - 2, False)):
        if tokens < 1:
            continue
        of_block = replace(sizes, seq_len=tokens * ranks)
        exposed = exposed_seconds(of_block, layout, causal, direction, rates, latency_s)
        assert (exposed <= 1e-15) == is_hidden


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_is_the_condition_of_liu_et_al(layout: str, causal: bool) -> None:
    """Of contiguous it is the first step, in which the last rank, too, has half a block alone."""
    sizes = replace(SIZES, kv_heads=8)
    least = least_tokens(sizes, layout, causal=causal, direction="forward", **RATES)
    assert least == pytest.approx(tokens_to_hide(heads=32, kv_heads=8, causal_zigzag=causal, **RATES))


@pytest.mark.parametrize(
    ("layout", "causal", "ranks", "least"),
    [
        # K and V with dK and dV, 6 bytes a number, under 5/2 of the work: 6/5 of forward's 8000 tokens
        ("contiguous", False, 4, 9600),
        ("zigzag", True, 4, 19200),
        ("striped", True, 4, 19200),
        # whole blocks of the last rank; half a block beside K and V alone in the first step: 6400
        ("contiguous", True, 4, 9600),
        # of two ranks dK and dV travel when K and V are there: 4 bytes in place of 6
        ("contiguous", False, 2, 6400),
        ("zigzag", True, 2, 12800),
        ("contiguous", True, 2, 6400),
    ],
)
def test_backward_by_hand(layout: str, causal: bool, ranks: int, least: float) -> None:
    sizes = replace(SIZES, seq_len=ranks, ranks=ranks)
    found = least_tokens(sizes, layout, causal=causal, direction="backward", **RATES)
    assert found == pytest.approx(least)


def test_no_block_is_smaller_than_a_token() -> None:
    rates: dict[str, Any] = {"flops_per_s": 1e9, "bytes_per_s": 1e12, "latency_s": 0.0}
    for layout in LAYOUTS:
        assert least_tokens_with_latency(SIZES, layout, causal=True, direction="forward", **rates) == 1


def test_unknown_layouts_are_refused() -> None:
    with pytest.raises(ValueError, match="no layout 'spiral'"):
        step_kinds("spiral", ranks=4, causal=True, direction="forward")
