"""The attention core where a rank holds the whole sequence, marked in forward and backward.

S tokens, B sequences, a heads and k key/value heads of this rank, d head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sp_profiler.record.annotate import annotate
from workloads.communication import Site

Attend = Callable[[Tensor, Tensor, Tensor, Site], Tensor]
"""From q [S, B, a, d] and k, v [S, B, k, d] to [S, B, a, d], S being the tokens of this rank."""


def attention_core(q: Tensor, k: Tensor, v: Tensor, site: Site) -> Tensor:
    """Causal attention of q [S, B, a, d] and k, v [S, B, k, d], marked in forward and backward."""
    return _attention(q, k, v, site, causal=True)


def full_attention_core(q: Tensor, k: Tensor, v: Tensor, site: Site) -> Tensor:
    """The same without a mask."""
    return _attention(q, k, v, site, causal=False)


def _attention(q: Tensor, k: Tensor, v: Tensor, site: Site, *, causal: bool) -> Tensor:
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))  # (B, heads, S, d)
    with annotate("attention", module=site.module, layer=site.layer):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    mark_backward("attention", out, (q, k, v), site)
    return out.permute(2, 0, 1, 3)


def mark_backward(what: str, out: Tensor, inputs: Sequence[Tensor], site: Site) -> None:
    """Put a range around each backward node that lies between `out` and `inputs`.

    The ranges nest inside the nodes' own profiler events, so the trace stays a tree.
    """
    ends = {x.grad_fn for x in inputs}
    waiting: list[Any] = [out.grad_fn]
    seen = set()
    while waiting:
        node = waiting.pop()
        # A node without `next_functions` to follow is a leaf's accumulator: not part of the work.
        if node is None or node in ends or node in seen or not node.next_functions:
            continue
        seen.add(node)
        _mark_node(node, what, site)
        waiting.extend(following for following, _ in node.next_functions)


def _mark_node(node: Any, what: str, site: Site) -> None:
    ranges: list[Any] = []

    def begin(_: Any) -> None:
        ranges.append(annotate(what, module=site.module, layer=site.layer))
        ranges[-1].__enter__()

    def end(_inputs: Any, _outputs: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    node.register_prehook(begin)
    node.register_hook(end)
