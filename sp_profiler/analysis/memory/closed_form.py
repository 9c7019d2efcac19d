"""The closed form of what a run's own workload keeps for backward: run.json's options -> `theory.memory`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp_profiler.classify.dtypes import dtype_bytes, dtype_name
from sp_profiler.theory.memory import Shape, block_terms, outer_terms

Terms = dict[tuple[str, int | None], int]
"""Bytes by (term, layer); layer None is the sum over all blocks and what lies outside of them."""

_SIZES = ("seq_len", "micro_batch", "hidden", "heads", "kv_heads", "ffn", "vocab")


def shape_of(workload: Mapping[str, Any] | None) -> Shape | None:
    """The shape of a shipped workload; None where run.json tells of none, or of one without a closed form."""
    told: Any = workload or {}
    element = dtype_bytes(dtype_name(str(told.get("dtype"))))
    if element is None or not all(_is_count(told.get(name)) for name in (*_SIZES, "layers", "ranks")):
        return None
    try:
        return Shape(
            mode=str(told.get("mode")),
            ranks=told["ranks"],
            element_bytes=element,
            save=told.get("save"),
            projections=told.get("projections") or "separate",
            norm=told.get("norm") or "eager",
            recompute=told.get("recompute") or "none",
            num_microbatches=told.get("num_microbatches") or 1,
            **{name: told[name] for name in _SIZES},
        )
    except ValueError:  # an option of a later version
        return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def terms_of(shape: Shape, layers: int) -> Terms:
    """Bytes by term, of every block by itself (`layer`) and of the whole model (`None`)."""
    block, outer = block_terms(shape), outer_terms(shape)
    out: Terms = {}
    for term in {**block, **outer}:
        out[term, None] = layers * block.get(term, 0) + outer.get(term, 0)
        out |= {(term, layer): block[term] for layer in range(layers) if term in block}
    return out


def whole(terms: Terms) -> int:
    """All of them, each once."""
    return sum(count for (_, layer), count in terms.items() if layer is None)
