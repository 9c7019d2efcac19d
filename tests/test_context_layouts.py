"""Who holds which tokens, what a causal mask leaves of each block, and the balance by counting."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.errors import UsageError
from sp_profiler.theory.ring import causal_balance
from workloads.context.layouts import (
    LAYOUTS,
    Tile,
    balance,
    block_tiles,
    ring_work,
    token_positions,
)
from workloads.context.scheme import SCHEMES, ContextScheme


def positions(layout: str, seq_len: int, ranks: int) -> list[list[int]]:
    return [token_positions(layout, seq_len, ranks, rank).tolist() for rank in range(ranks)]


def test_layouts_as_their_papers_draw_them() -> None:
    assert positions("contiguous", 8, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert positions("zigzag", 8, 2) == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert positions("striped", 8, 2) == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_every_token_has_one_rank(layout: str, ranks: int) -> None:
    held = positions(layout, 48, ranks)
    assert sorted(token for rank in held for token in rank) == list(range(48))
    assert all(rank == sorted(rank) for rank in held)


@pytest.mark.parametrize(
    ("options", "seq_len"),
    [
        ({"scheme": "usp", "ulysses": 2, "layout": layout}, 48) for layout in LAYOUTS
    ] + [({"scheme": scheme}, 48) for scheme in SCHEMES if scheme != "usp"],
)  # fmt: skip
def test_schemes_divide_all_tokens_in_ascending_order(options: dict, seq_len: int) -> None:
    held = [part.tolist() for part in ContextScheme(ranks=8, **options).positions(seq_len)]
    assert sorted(token for rank in held for token in rank) == list(range(seq_len))
    assert all(rank == sorted(rank) for rank in held)


def mask_of(tiles: tuple[Tile, ...], queries: int, keys: int) -> list[list[int]]:
    """How often each score is in a tile."""
    times = torch.zeros(queries, keys, dtype=torch.int64)
    for tile in tiles:
        shape = times[tile.queries, tile.keys].shape
        part = torch.ones(shape, dtype=torch.int64)
        if tile.is_causal:
            assert shape[0] == shape[1], "kernels disagree where the mask of other shapes begins"
            part = part.tril()
        times[tile.queries, tile.keys] += part
    return times.tolist()


ascending = st.sets(st.integers(0, 40), min_size=1, max_size=12).map(sorted)


@given(ascending, ascending)
def test_tiles_are_exactly_what_the_positions_leave_visible(queries: list[int], keys: list[int]) -> None:
    tiles = block_tiles(torch.tensor(queries), torch.tensor(keys), causal=True)
    visible = [[int(key <= query) for key in keys] for query in queries]
    assert mask_of(tiles, len(queries), len(keys)) == visible
    assert sum(tile.scores for tile in tiles) == sum(map(sum, visible))


def test_without_a_mask_a_block_is_one_tile() -> None:
    (tile,) = block_tiles(torch.arange(3), torch.arange(9, 14), causal=False)
    assert (tile.queries, tile.keys, tile.is_causal, tile.scores) == (slice(0, 3), slice(0, 5), False, 15)


@pytest.mark.parametrize(
    ("layout", "counts"),
    [
        # blocks of the own rank, of ranks before and of ranks behind
        ("contiguous", {"own": 1, "before": 1, "behind": 0}),
        ("zigzag", {"own": 1, "before": 1, "behind": 1}),
        ("striped", {"own": 1, "before": 1, "behind": 1}),
    ],
)
def test_the_layouts_need_one_kernel_call_a_block(layout: str, counts: dict[str, int]) -> None:
    held = [token_positions(layout, 64, 4, rank) for rank in range(4)]
    for i in range(4):
        for j in range(4):
            kind = "own" if i == j else "before" if j < i else "behind"
            assert len(block_tiles(held[i], held[j], causal=True)) == counts[kind]


def test_positions_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(ValueError, match="ascend"):
        block_tiles(torch.tensor([1, 0]), torch.tensor([0, 1]), causal=True)


@pytest.mark.parametrize(
    ("layout", "figures"),
    [
        ("contiguous", (0.6684, 0.5724, 0.5338, 0.5164)),
        ("zigzag", (1.0, 1.0, 1.0, 1.0)),
        ("striped", (0.9923, 0.9885, 0.9865, 0.9856)),
    ],
)
def test_balance_by_counting(layout: str, figures: tuple[float, ...]) -> None:
    """64 tokens a rank: counted in tiles, in the closed form, and as published figures are rounded."""
    for ranks, figure in zip((2, 4, 8, 16), figures, strict=True):
        held = [token_positions(layout, 64 * ranks, ranks, rank) for rank in range(ranks)]
        counted = balance(ring_work(held, causal=True))
        assert counted == causal_balance(layout, ranks=ranks, tokens=64)
        assert round(float(counted), 4) == figure


def test_work_of_every_rank_and_step() -> None:
    """Two ranks with two tokens: rows of the causal mask, cut by who holds the keys."""
    held = [token_positions("contiguous", 4, 2, rank) for rank in range(2)]
    assert ring_work(held, causal=True) == ((3, 0), (3, 4))
    assert balance(ring_work(held, causal=True)) == Fraction(10, 2 * 7)
    zigzag = [token_positions("zigzag", 4, 2, rank) for rank in range(2)]  # 0 and 3, 1 and 2
    assert ring_work(zigzag, causal=True) == ((3, 2), (3, 2))
    assert ring_work(held, causal=False) == ((4, 4), (4, 4))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: token_positions("contiguous", 10, 4, 0), "--seq-len 10 cannot be divided among 4 ranks"),
        (
            lambda: token_positions("zigzag", 12, 4, 0),
            "--seq-len 12 cannot be divided among 4 ranks in 8 chunks, two for each",
        ),
        (lambda: token_positions("spiral", 12, 4, 0), "--layout is 'spiral', expected one of contiguous"),
        (lambda: ContextScheme("ring", 1), "ring divides the sequence among at least 2 ranks, not 1"),
        (lambda: ContextScheme("star", 2), "'star' is no scheme of context parallelism"),
        (lambda: ContextScheme("ulysses", 2, layout="zigzag"), "--layout zigzag is for a ring"),
        (lambda: ContextScheme("ring", 4, ulysses=2), "--ulysses is for usp"),
        (lambda: ContextScheme("usp", 4), "usp needs --ulysses"),
        (lambda: ContextScheme("usp", 4, ulysses=3), "4 ranks cannot be divided into rings by --ulysses 3"),
        (
            lambda: ContextScheme("usp", 4, ulysses=2).positions(10),
            "--seq-len 10 cannot be divided among 4 ranks",
        ),
        (
            lambda: ContextScheme("ulysses", 4).check_heads(8, 2),
            "--kv-heads 2 of a rank cannot be divided among the 4 ranks of ulysses",
        ),
        (
            lambda: ContextScheme("ulysses", 3).check_heads(8, 3),
            "--heads 8 of a rank cannot be divided among the 3 ranks of ulysses",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(make, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        make()
    assert str(raised.value).startswith(sentence)
    assert "\n" not in str(raised.value)


def test_rings_take_any_number_of_heads() -> None:
    ContextScheme("ring", 8).check_heads(3, 1)
    ContextScheme("rsa", 8).check_heads(3, 1)
