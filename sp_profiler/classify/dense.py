"""Attention that is written as batched products: `softmax(Q K^T) V` with `aten::bmm`, no fused core.

A batched product is part of attention when on its thread the products next to a softmax are batched on both
sides of it, in forward and in backward alike, or when its forward peer is. (A router's softmax has a plain
linear in front of it.)
"""

from __future__ import annotations

import re

import numpy as np

from sp_profiler.classify.gemm import is_gemm_op
from sp_profiler.classify.nesting import Nest
from sp_profiler.classify.peers import forward_peers
from sp_profiler.classify.phases import Phases
from sp_profiler.classify.tables import Phase
from sp_profiler.trace.tables import NONE, Bool, Category, Int64, Trace

_BATCHED = re.compile(r"^aten::(?:bmm|baddbmm_?|addbmm)$")
_SOFTMAX = re.compile(r"(?<!log_)softmax(?!_cross|_with)", re.IGNORECASE)


def is_batched(name: str) -> bool:
    """Whether an operator multiplies batches of matrices."""
    return bool(_BATCHED.match(name))


def gemm_operators(trace: Trace, nest: Nest) -> Bool:
    """Which positions are operators that multiply matrices."""
    events = trace.events
    operators = events.category[nest.row] == int(Category.CPU_OP)
    return operators & trace.strings.match(events.name[nest.row], is_gemm_op)


def attention_products(trace: Trace, nest: Nest, phases: Phases) -> Bool:
    """Which positions are batched products of attention; one value more for NONE."""
    events, strings = trace.events, trace.strings
    found = np.zeros(len(nest.row) + 1, dtype=np.bool_)
    name = events.name[nest.row]
    product = gemm_operators(trace, nest)
    batched = product & strings.match(name, is_batched)
    softmax = (events.category[nest.row] == int(Category.CPU_OP)) & strings.match(
        name, lambda text: bool(_SOFTMAX.search(text))
    )
    if not batched.any() or not softmax.any():
        return found
    outermost = product & (nest.nearest(product)[nest.parent] == NONE)
    marks = np.flatnonzero(outermost | softmax)
    kind = np.where(softmax[marks], 1, np.where(batched[marks], 0, 2))
    # The two products of one node stand for one; so do the names that nest around one softmax.
    backward = (phases.phase[marks] == Phase.BACKWARD) & ~phases.recompute[marks]
    unit = np.where(backward, phases.node[marks], np.where(kind == 1, -2, marks))
    thread = nest.thread[marks]
    table = np.stack((kind, unit, thread))
    first = np.concatenate(([True], (np.diff(table, axis=1) != 0).any(axis=0)))
    run = np.cumsum(first) - 1
    kinds, threads = kind[first], thread[first]
    centre = np.flatnonzero((kinds[1:-1] == 1) & (kinds[:-2] == 0) & (kinds[2:] == 0)) + 1
    centre = centre[(threads[centre - 1] == threads[centre]) & (threads[centre + 1] == threads[centre])]
    chosen = np.zeros(len(kinds), dtype=np.bool_)
    chosen[centre - 1] = chosen[centre + 1] = True
    found[marks[chosen[run]]] = True
    _add_peers(trace, nest, phases, np.flatnonzero(batched), found)
    # What nests inside a product of attention belongs to it.
    found[:-1] |= batched & (nest.nearest(found[:-1])[:-1] != NONE)
    return found


def _add_peers(trace: Trace, nest: Nest, phases: Phases, batched: Int64, found: Bool) -> None:
    backward = batched[(phases.phase[batched] == Phase.BACKWARD) & ~phases.recompute[batched]]
    forward = batched[(phases.phase[batched] == Phase.FORWARD) & found[batched]]
    found[backward[forward_peers(trace, nest, phases, backward, forward).backward]] = True
