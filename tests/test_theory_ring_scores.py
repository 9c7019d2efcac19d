"""Scores of a ring by counting: equal to the tiles that the workloads compute, and to FACTS' balance."""

from __future__ import annotations

import pytest

from sp_profiler.theory.ring import causal_balance, limit_balance, ring_scores, score_balance
from workloads.context.layouts import balance, ring_work, token_positions

LAYOUTS = ("contiguous", "zigzag", "striped")
PUBLISHED = {
    "contiguous": {2: 0.6684, 4: 0.5724, 8: 0.5338, 16: 0.5164},
    "striped": {2: 0.9923, 4: 0.9885, 8: 0.9865, 16: 0.9856},
    "zigzag": dict.fromkeys((2, 4, 8, 16), 1.0),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("ranks", "tokens"), [(2, 2), (3, 4), (4, 6), (8, 8)])
def test_scores_are_those_of_the_tiles(layout: str, causal: bool, ranks: int, tokens: int) -> None:
    positions = [token_positions(layout, ranks * tokens, ranks, rank) for rank in range(ranks)]
    work = ring_work(positions, causal=causal)
    scores = ring_scores(layout, ranks=ranks, tokens=tokens, causal=causal)
    assert scores == work
    assert score_balance(scores) == balance(work)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_balance_by_counting_is_as_published(layout: str, ranks: int) -> None:
    found = score_balance(ring_scores(layout, ranks=ranks, tokens=64, causal=True))
    assert found == causal_balance(layout, ranks=ranks, tokens=64)
    assert float(found) == pytest.approx(PUBLISHED[layout][ranks], abs=5e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_sequences_approach_the_limit(layout: str) -> None:
    limit = limit_balance(layout, ranks=4, causal=True)
    long = causal_balance(layout, ranks=4, tokens=10**9)
    assert float(long) == pytest.approx(float(limit), abs=1e-8)
    assert limit_balance(layout, ranks=4, causal=False) == 1


def test_what_cannot_be_counted() -> None:
    with pytest.raises(ValueError, match="no layout 'spiral'"):
        ring_scores("spiral", ranks=2, tokens=2, causal=True)
    with pytest.raises(ValueError, match="no two chunks"):
        ring_scores("zigzag", ranks=2, tokens=3, causal=True)
