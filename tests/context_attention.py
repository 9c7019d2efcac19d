"""Attention alone, on the ranks of one world, against dense attention written without the workloads' code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from context_groups import Groups, everywhere
from torch import Tensor
from workloads_ranks import _digest
from workloads_reference import DenseRun

from workloads.communication import Call, Pending, Site
from workloads.context.parallel import ContextGroups, ContextScheme, context_attention
from workloads.train import TORCH_DTYPES

SEQ_LEN, BATCH, HEAD_DIM = 48, 2, 8
SITE = Site("core", 0)


@dataclass(frozen=True)
class AttentionCase:
    """`sabotage`: "no wait" forgets to wait; "positions" masks as if the ranks held other tokens."""

    scheme: ContextScheme
    heads: int
    kv_heads: int
    dtype: str = "f64"
    delayed: bool = False
    sabotage: str | None = None


@dataclass(frozen=True)
class AttentionOutcome:
    errors: dict[str, float]
    """Relative L2 distance from the dense fp64 reference of out, dq, dk and dv over all ranks."""
    dense_errors: dict[str, float]
    """Of dense attention in the same dtype."""
    bits: str
    calls: tuple[list[Call], ...]
    saved_bytes: int


def attention_cases(world: int) -> list[AttentionCase]:
    heads, grouped = (6, 3) if world == 3 else (8, 8 if world == 8 else 4)
    kinds: list[tuple[dict[str, Any], int]] = [  # scheme, and its key/value heads
        *(
            ({"scheme": "ring", "layout": layout}, heads // 2)
            for layout in ("contiguous", "zigzag", "striped")
        ),
        ({"scheme": "ring", "layout": "zigzag", "causal": False}, heads),
        ({"scheme": "rsa"}, heads // 2),
        ({"scheme": "rsa", "layout": "striped"}, heads),
        ({"scheme": "rsa", "causal": False}, heads // 2),
        ({"scheme": "ulysses"}, grouped),
        ({"scheme": "ulysses", "causal": False}, heads if heads % world == 0 else grouped),
    ]
    for ulysses in {4: [2], 8: [2, 4]}.get(world, []):
        layouts = ("contiguous", "zigzag", "striped")
        kinds += [({"scheme": "usp", "ulysses": ulysses, "layout": layout}, 4) for layout in layouts]
        kinds.append(({"scheme": "usp", "ulysses": ulysses, "causal": False}, 8))
    cases = []
    for options, kv_heads in kinds:
        sync, overlapped = (
            AttentionCase(ContextScheme(ranks=world, comm=comm, **options), heads, kv_heads)
            for comm in ("sync", "async")
        )
        cases += [sync, overlapped]
        if options.get("causal", True):
            cases += [dataclasses.replace(overlapped, dtype=dtype) for dtype in ("f32", "bf16")]
        if world in (2, 4):
            cases.append(dataclasses.replace(overlapped, delayed=True))
    return cases


def broken_cases() -> list[AttentionCase]:
    """One mistake each, at four ranks; what is not waited for has not arrived."""
    kinds: list[dict[str, Any]] = [
        {"scheme": "ring", "layout": "zigzag"},
        {"scheme": "rsa"},
        {"scheme": "ulysses"},
        {"scheme": "usp", "ulysses": 2, "layout": "striped"},
    ]
    forgetful = [ContextScheme(ranks=4, comm="async", **options) for options in kinds]
    cases = [AttentionCase(scheme, 8, 4, delayed=True, sabotage="no wait") for scheme in forgetful]
    rings = [scheme for scheme in forgetful if scheme.scheme != "ulysses"]
    return cases + [AttentionCase(scheme, 8, 4, sabotage="positions") for scheme in rings]


def dense_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """[S, B, a, d] of k, v [S, B, k, d], written out."""
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("sbad,tbad->bast", q, k) / q.shape[-1] ** 0.5
    if causal:
        positions = torch.arange(len(q))
        scores = scores.masked_fill(positions[None, :] > positions[:, None], float("-inf"))
    return torch.einsum("bast,tbad->sbad", scores.softmax(-1), v)


def torch_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return out.permute(2, 0, 1, 3)


@cache
def inputs(heads: int, kv_heads: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """q, k, v and the gradient of the result, [S, B, heads, d], of the whole sequence."""
    generator = torch.Generator().manual_seed(heads * 100 + kv_heads)
    counts = (heads, kv_heads, kv_heads, heads)
    made = [
        torch.randn(SEQ_LEN, BATCH, n, HEAD_DIM, generator=generator, dtype=torch.float64) for n in counts
    ]
    return tuple(x.to(dtype) for x in made)


@cache
def dense_results(
    heads: int, kv_heads: int, dtype: torch.dtype, causal: bool, attention: Any
) -> dict[str, Tensor]:
    """`attention` on the inputs of `dtype`: the reference in fp64, torch's own in that dtype."""
    high = torch.float64 if attention is dense_attention else dtype
    q, k, v, dout = (x.to(high) for x in inputs(heads, kv_heads, dtype))
    return gradients(lambda *x: attention(*x, causal=causal), q, k, v, dout)


def gradients(
    attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, dout: Tensor
) -> dict[str, Tensor]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    # As in a model, attention does not see the leaves themselves; rotary embedding comes in between.
    out = attention(*(x * 1 for x in leaves))
    out.backward(dout)
    return {"out": out.detach(), **{f"d{n}": x.grad for n, x in zip("qkv", leaves, strict=True)}}  # type: ignore[dict-item]


class Attention:
    """The work of one rank on attention alone."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def run(self, case: AttentionCase) -> AttentionOutcome:
        scheme, dtype = case.scheme, TORCH_DTYPES[case.dtype]
        groups = self._groups.of(scheme, 1, delayed=case.delayed)
        assumed = scheme
        if case.sabotage == "positions":
            other = "contiguous" if scheme.layout != "contiguous" else "zigzag"
            assumed = dataclasses.replace(scheme, layout=other)
        attention = context_attention(assumed, groups, SEQ_LEN)
        own = scheme.positions(SEQ_LEN)[groups.rank]
        q, k, v, dout = (x[own] for x in inputs(case.heads, case.kv_heads, dtype))
        saved = Saved()
        with sabotaged(case.sabotage), saved:
            measured = gradients(lambda *x: attention(*x, SITE), q, k, v, dout)
        about = (case.heads, case.kv_heads, dtype, scheme.causal)
        exact = dense_results(*about, dense_attention)
        plain = dense_results(*about, torch_attention)
        return AttentionOutcome(
            _over_ranks({n: _squares(x, exact[n][own]) for n, x in measured.items()}),
            {n: _ratio(*_squares(plain[n], x)) for n, x in exact.items()},
            "".join(everywhere(_bits(measured.values()))),
            tuple(everywhere(_calls(groups))),
            saved.bytes,
        )


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """Bytes of the distinct storages that operators keep for backward, besides multiplication by one."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        super().__init__(self._keep, lambda x: x)

    def _keep(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        self._storages[storage._cdata] = storage
        return x

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._storages.values())


def sabotaged(name: str | None) -> Any:
    if name == "no wait":
        return mock.patch.object(Pending, "wait", lambda self: self._output)
    return nullcontext()


def _squares(measured: Tensor, exact: Tensor) -> tuple[float, float]:
    exact = exact.double()
    return (measured.double() - exact).square().sum().item(), exact.square().sum().item()


def _ratio(wrong: float, whole: float) -> float:
    return (wrong / whole) ** 0.5


def _over_ranks(parts: dict[str, tuple[float, float]]) -> dict[str, float]:
    sums = torch.tensor(list(parts.values()), dtype=torch.float64)
    dist.all_reduce(sums)
    return {name: _ratio(*pair) for name, pair in zip(parts, sums.tolist(), strict=True)}


def _bits(tensors: Any) -> str:
    run = DenseRun([], dict(enumerate(tensors)), [], {})  # type: ignore[arg-type]
    return _digest(run)


def _calls(groups: ContextGroups) -> list[Call]:
    found = [one.calls for one in (groups.ring, groups.ulysses) if one is not None]
    return [call for calls in found for call in calls]
