"""Forward, backward or optimizer: read from the ancestors of the launching operator."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.annotations import OPTIMIZER, RECOMPUTE, WHATS, Annotations
from sp_profiler.classify.nesting import Nest
from sp_profiler.classify.tables import Phase
from sp_profiler.trace.tables import NONE, Bool, Category, Int8, Int64, Trace

EVALUATE = "autograd::engine::evaluate_function: "
_NODE = re.compile(r"^autograd::|^torch::autograd::|Backward")
# A redistribution inside the backward of one is a function of its own; nothing is computed again.
_NOT_AGAIN = re.compile(r"^NestedRedistribute|^_?c10d|^record_param_comms|^nccl:|^gloo:")
_OPTIMIZER_OP = re.compile(r"^Optimizer\.step#|^aten::_fused_(?:adamw?|sgd|adagrad)_$")
_STEP = re.compile(r"^ProfilerStep#(\d+)$")


def is_autograd_node(name: str) -> bool:
    """Whether an operator's name is one of autograd's: `autograd::...`, `MmBackward0`, `AccumulateGrad`."""
    return bool(_NODE.search(name))


def is_optimizer_op(name: str) -> bool:
    """Whether an operator or range is the optimizer's step (`zero_grad` is not)."""
    return bool(_OPTIMIZER_OP.search(name))


def step_number(name: str) -> int | None:
    """The k of `ProfilerStep#k`, else None."""
    match = _STEP.match(name)
    return int(match.group(1)) if match else None


@dataclass(frozen=True)
class Phases:
    """Per position of the nest (and one more for NONE): what its ancestors say."""

    phase: Int8  # of whatever is launched at this position
    node: Int64  # position of the autograd node around it, NONE in forward
    optimizer: Int64  # position of the optimizer's step around it, NONE outside
    inner_node: Int64  # the innermost name of that node: of `evaluate_function: X` and `X` the latter
    owner: Int64  # nearest operator with a sequence number of its own: the forward operator or the node
    recompute: Bool  # forward work inside backward: activation recomputation


def find_phases(trace: Trace, nest: Nest, annotations: Annotations) -> Phases:
    """Phase and autograd node of every position.

    A node is an operator named like one, or one with a forward thread (`Fwd thread id` > 0; a sequence
    number with `Fwd thread id` 0 belongs to a forward operator). Of nested names for one node the
    engine's (`evaluate_function: X`) stands for all. A forward operator (with a sequence number of its own)
    inside a node does forward work again. Of node and optimizer the inner one decides: an
    optimizer may run inside a backward hook, a closure's backward inside the optimizer.
    """
    events, strings = trace.events, trace.strings
    name = events.name[nest.row]
    is_op = events.category[nest.row] != int(Category.RUNTIME)
    cpu_op = events.category[nest.row] == int(Category.CPU_OP)
    evaluate = cpu_op & strings.match(name, lambda text: text.startswith(EVALUATE))
    forward_id = (events.sequence[nest.row] >= 0) & (events.fwd_thread[nest.row] == 0)
    named = strings.match(name, is_autograd_node) & ~forward_id  # FSDP's RegisterPostBackwardFunction
    node = cpu_op & (named | (events.fwd_thread[nest.row] > 0))
    optimizer = (is_op & strings.match(name, is_optimizer_op)) | (annotations.what == OPTIMIZER)
    backward_range = np.isin(annotations.what, (RECOMPUTE, WHATS.index("dgrad"), WHATS.index("wgrad")))
    nearest_node = nest.nearest(node)
    nearest_evaluate = nest.nearest(evaluate)
    nearest_optimizer = nest.nearest(optimizer)
    nearest_backward = np.maximum(nearest_node, nest.nearest(backward_range))
    forward = cpu_op & ~node & (events.sequence[nest.row] >= 0)
    forward &= ~strings.match(name, lambda text: bool(_NOT_AGAIN.search(text)))
    owner = nest.nearest(forward | (node & (events.sequence[nest.row] >= 0)))
    nearest_forward = nest.nearest(forward)
    # Positions grow from the outside in, so the greater position is the inner ancestor.
    in_optimizer = (nearest_optimizer != NONE) & (nearest_optimizer >= nearest_backward)
    phase = np.where(
        in_optimizer,
        np.int8(Phase.OPTIMIZER),
        np.where(nearest_backward != NONE, np.int8(Phase.BACKWARD), np.int8(Phase.FORWARD)),
    )
    has_op = nest.nearest(is_op & (cpu_op | (annotations.what >= 0))) != NONE
    phase = np.where(has_op | in_optimizer | (nearest_backward != NONE), phase, np.int8(Phase.UNKNOWN))
    phase[-1] = Phase.UNKNOWN
    return Phases(
        phase.astype(np.int8),
        np.where(nearest_evaluate != NONE, nearest_evaluate, nearest_node),
        np.where(in_optimizer, nearest_optimizer, NONE),
        nearest_node,
        owner,
        (phase == Phase.BACKWARD) & (nearest_forward > nearest_node) & (nearest_node != NONE),
    )


def is_step_event(trace: Trace) -> Bool:
    """Rows that are `ProfilerStep#k` ranges on the CPU (files of 2021 file them under operators)."""
    events = trace.events
    named = trace.strings.match(events.name, lambda text: step_number(text) is not None)
    ranges = named & (events.category == int(Category.CPU_ANNOTATION))
    return ranges if bool(ranges.any()) else named & (events.category == int(Category.CPU_OP))
