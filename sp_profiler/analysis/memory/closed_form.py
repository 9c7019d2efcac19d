"""The closed form of what a run's own workload keeps for backward: run.json's options -> `theory.memory`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sp_profiler.classify.dtypes import dtype_bytes, dtype_name
from sp_profiler.theory.context_memory import (
    SCHEMES,
    ContextShape,
    context_block_terms,
    context_outer_terms,
)
from sp_profiler.theory.memory import Shape, block_terms, outer_terms

Terms = dict[tuple[str, int | None], int]
"""Bytes by (term, layer); layer None is the sum over all blocks and what lies outside of them."""

_SIZES = ("seq_len", "micro_batch", "hidden", "heads", "kv_heads", "ffn", "vocab")


def shape_of(workload: Mapping[str, Any] | None) -> Shape | None:
    """The shape of a shipped workload; None where run.json tells of none, or of one without a closed form
    (of context parallelism: see `context_shape_of`)."""
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


def context_shape_of(workload: Mapping[str, Any] | None) -> ContextShape | None:
    """The same of a workload with context parallelism."""
    told: Any = workload or {}
    if told.get("mode") not in SCHEMES or not all(_is_count(told.get(name)) for name in ("cp", "tp")):
        return None
    alone = bool(told.get("attention_only"))
    inside = (told.get("inside") or "tp") if told["tp"] > 1 else "ddp"
    local = {"mode": inside, "ranks": told["tp"], "seq_len": _part(told.get("seq_len"), told["cp"])}
    unused = dict.fromkeys(("ffn", "vocab"), 1) if alone else {}  # attention alone has none
    shape = shape_of({**told, **local, **unused})
    if shape is None:
        return None
    return ContextShape(told["mode"], told["seq_len"], shape, told.get("ulysses") or 1, alone)


def _part(count: Any, parts: int) -> int | None:
    return count // parts if _is_count(count) and count % parts == 0 else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def terms_of(shape: Shape | ContextShape, layers: int) -> Terms:
    """Bytes by term, of every block by itself (`layer`) and of the whole model (`None`)."""
    if isinstance(shape, ContextShape):
        block, outer = context_block_terms(shape), context_outer_terms(shape)
    else:
        block, outer = block_terms(shape), outer_terms(shape)
    out: Terms = {}
    for term in {**block, **outer}:
        out[term, None] = layers * block.get(term, 0) + outer.get(term, 0)
        out |= {(term, layer): block[term] for layer in range(layers) if term in block}
    return out


def whole(terms: Terms) -> int:
    """All of them, each once."""
    return sum(count for (_, layer), count in terms.items() if layer is None)
