"""Blocks of attention and their merge, on one process: exact, no overflow, and right for masked rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from workloads.context.blocks import (
    FlashKernel,
    PlainKernel,
    Rows,
    attend_block,
    attend_block_backward,
    kernel_for,
    merge,
    no_block_yet,
    row_sums,
)
from workloads.context.layouts import block_tiles

BATCH, HEADS, KV_HEADS, HEAD_DIM = 2, 4, 2, 8


def tensors(queries: int, keys: int, scale: float = 1.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    shapes = [(HEADS, queries), (KV_HEADS, keys), (KV_HEADS, keys), (HEADS, queries)]
    q, k, v, dout = (
        torch.randn(BATCH, *shape, HEAD_DIM, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return q * scale, k, v, dout


def dense(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, visible: Tensor) -> tuple[Tensor, ...]:
    """out, lse, dq, dk and dv; rows without a visible key give 0 and -inf."""
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~visible, float("-inf"))
    seen = visible.any(-1)
    weights = torch.zeros_like(scores)
    weights[:, :, seen] = scores[:, :, seen].softmax(-1)
    out = weights @ v.repeat_interleave(group, 1)
    out.backward(dout)
    assert q.grad is not None
    assert k.grad is not None
    assert v.grad is not None
    return out.detach(), scores.logsumexp(-1).detach(), q.grad, k.grad, v.grad


def in_blocks(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, q_positions: Tensor, blocks: list[Tensor]
) -> tuple[Tensor, ...]:
    """The same by blocks of keys: `blocks` are their positions, in the order in which k and v hold them."""
    out, lse = no_block_yet(q)
    ends = torch.tensor([0, *(len(block) for block in blocks)]).cumsum(0).tolist()
    parts = [
        (slice(first, end), block_tiles(q_positions, block, causal=True))
        for first, end, block in zip(ends, ends[1:], blocks, strict=False)
    ]
    for at, tiles in parts:
        attend_block(q, k[:, :, at], v[:, :, at], tiles, out, lse)
    rows = row_sums(dout, out, lse)
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for at, tiles in parts:
        attend_block_backward(dout, q, k[:, :, at], v[:, :, at], rows, tiles, dq, dk[:, :, at], dv[:, :, at])
    return out, lse, dq, dk, dv


@pytest.mark.parametrize(
    ("q_positions", "blocks"),
    [
        # the first three queries see nothing at all; the second block nothing but the last two
        ([0, 1, 2, 5, 6, 20, 21], [[4, 6, 7, 9], [8, 10, 11, 20], [30, 31]]),
        ([3, 4, 5, 6], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        # the first block to be met is one of which the first query sees nothing
        ([2, 4, 6, 8], [[3, 5, 7, 9], [0, 2, 4, 6]]),
        ([0, 1], [[5, 6], [7]]),
    ],
)
def test_blocks_equal_dense_attention(q_positions: list[int], blocks: list[list[int]]) -> None:
    queries, parts = torch.tensor(q_positions), [torch.tensor(block) for block in blocks]
    keys = torch.cat(parts)
    given = tensors(len(queries), len(keys))
    exact = dense(*given, keys[None, :] <= queries[:, None])
    for ours, reference in zip(in_blocks(*given, queries, parts), exact, strict=True):
        assert not ours.isnan().any()
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-13)


def test_rows_that_see_nothing_are_exactly_zero() -> None:
    given = tensors(4, 3)
    out, lse, dq, dk, dv = in_blocks(*given, torch.arange(4), [torch.tensor([2, 3, 4])])
    assert lse[:, :, :2].eq(float("-inf")).all()
    assert lse[:, :, 2:].isfinite().all()
    assert not out[:, :, :2].any()
    assert not dq[:, :, :2].any()
    assert not dk[:, :, 2].any()  # nobody sees position 4
    assert not dv[:, :, 2].any()


def test_scores_beyond_any_exponential_merge() -> None:
    """e^1000 is infinite in fp64: only differences of lse may be exponentiated."""
    given = tensors(6, 8, scale=2000.0)
    blocks = [torch.arange(4), torch.arange(4, 8)]
    queries = torch.arange(6, 12)
    exact = dense(*given, torch.ones(6, 8, dtype=torch.bool))
    assert exact[1].abs().max() > 1000
    for ours, reference in zip(in_blocks(*given, torch.arange(8, 14), blocks), exact, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)
    assert len(queries) == 6


def test_merge_of_what_saw_nothing_with_what_did() -> None:
    minus = float("-inf")
    out = torch.tensor([[0.0], [0.0], [3.0], [3.0]])
    lse = torch.tensor([minus, minus, 1.0, 1.0])
    block_out = torch.tensor([[7.0], [0.0], [7.0], [0.0]])
    block_lse = torch.tensor([2.0, minus, 1.0, minus])
    merge(out, lse, block_out, block_lse)
    assert out.flatten().tolist() == [7.0, 0.0, 5.0, 3.0]
    torch.testing.assert_close(lse, torch.tensor([2.0, minus, 1.0 + torch.tensor(2.0).log(), 1.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_of_low_precision_are_kept_in_fp32(dtype: torch.dtype) -> None:
    q, k, v, dout = (x.to(dtype) for x in tensors(5, 5))
    out, lse = no_block_yet(q)
    attend_block(q, k, v, block_tiles(torch.arange(5), torch.arange(5), causal=True), out, lse)
    assert out.dtype == lse.dtype == torch.float32
    exact = dense(*(x.double() for x in (q, k, v, dout)), torch.ones(5, 5, dtype=torch.bool).tril())
    torch.testing.assert_close(out.double(), exact[0], rtol=1e-5, atol=1e-6)
    parts = PlainKernel().backward(dout, q, k, v, row_sums(dout, out, lse), True)
    for ours, reference in zip(parts, exact[2:], strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), reference, rtol=1e-4, atol=1e-5)


def test_the_cpu_takes_the_plain_kernel() -> None:
    q, k, v, _ = tensors(4, 4)
    assert isinstance(kernel_for(q.bfloat16(), k.bfloat16(), v.bfloat16()), PlainKernel)


def test_the_flash_kernel_calls_the_operators_of_this_torch() -> None:
    """Without a GPU only arguments and shapes can be checked, on tensors without data."""
    shape = (BATCH, HEADS, 16, HEAD_DIM)
    q, k, v, dout = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(4))
    out, lse = FlashKernel().forward(q, k, v, True)
    assert (out.shape, lse.shape) == (q.shape, q.shape[:3])
    assert lse.dtype == torch.float32
    parts = FlashKernel().backward(dout, q, k, v, Rows(out, lse, lse), True)
    assert [part.shape for part in parts] == [q.shape, k.shape, v.shape]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_flash_kernel_equals_the_plain_one(is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v, dout = (
        torch.randn(2, heads, 128, 64, generator=generator).to("cuda", torch.bfloat16)
        for heads in (8, 2, 2, 8)
    )
    assert isinstance(kernel_for(q, k, v), FlashKernel)
    out, lse = PlainKernel().forward(q, k, v, is_causal)
    ours = FlashKernel().forward(q, k, v, is_causal)
    torch.testing.assert_close(ours[0].float(), out, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(ours[1], lse, rtol=1e-3, atol=1e-3)
    # As in a ring: the block is one of two, and the other has the larger part of every row.
    rows = Rows(torch.zeros_like(q), lse + 2, torch.zeros_like(lse))
    for mine, reference in zip(
        FlashKernel().backward(dout, q, k, v, rows, is_causal),
        PlainKernel().backward(dout, q, k, v, rows, is_causal),
        strict=True,
    ):
        torch.testing.assert_close(mine.float(), reference, rtol=3e-2, atol=3e-2)
