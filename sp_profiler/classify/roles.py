"""The role of every computation of a file, whether its activities are kernels or stretches of operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.backward import Work, decide_backward, layout_letters
from sp_profiler.classify.context import Context
from sp_profiler.classify.gemm import RULE, Evidence, decide_roles
from sp_profiler.classify.rules import BACKWARD_RULES
from sp_profiler.classify.tables import Phase, Role
from sp_profiler.trace.tables import NONE, Bool, Int8, Int32, Int64

Through = Callable[[Int64], Int64]
"""Gathers an answer of `Nest.nearest` at the place from which each activity was launched."""

_OF_BACKWARD = np.array([*(RULE[name] for name in BACKWARD_RULES), RULE["none"]], dtype=np.int32)


@dataclass(frozen=True)
class Computations:
    """What is known of the computations of a file; columns of one length."""

    name: Int32  # string code
    launch_ns: Int64
    phase: Int8
    is_gemm: Bool
    is_gemm_part: Bool
    is_attention: Bool
    is_optimizer: Bool
    is_compiled: Bool


def roles_of(context: Context, work: Computations, through: Through) -> tuple[Int8, Int32]:
    """Role and deciding rule (index into gemm.RULES) of each computation."""
    phases = context.phases
    operator = through(context.gemm)
    here = through(np.append(np.arange(len(context.nest.row)), NONE))
    recompute = phases.recompute[here]
    evidence = Evidence(
        through(context.annotations.innermost_compute),
        through(context.annotations.inside_recompute),
        through(phases.optimizer),
        through(context.attention),
        context.batched_attention[operator],
        through(context.convolution),
        recompute,
        work.phase,
        work.is_gemm,
        work.is_gemm_part,
        work.is_attention,
        work.is_optimizer,
        work.is_compiled,
    )
    role, rule = decide_roles(evidence, context.annotations)
    node, inner = through(phases.node), through(phases.inner_node)
    open_ = (role == Role.UNKNOWN) & (work.is_gemm | work.is_gemm_part) & ~work.is_compiled
    chosen = np.flatnonzero(open_ & (work.phase == Phase.BACKWARD) & (node != NONE))
    if not len(chosen):
        return role, rule
    strings, names = context.trace.strings, work.name[chosen]
    decided = decide_backward(
        context.trace,
        context.nest,
        phases,
        Work(
            np.where(operator > inner, operator, NONE)[chosen],
            node[chosen],
            inner[chosen],
            work.launch_ns[chosen],
            work.is_gemm_part[chosen],
            lambda i: layout_letters(strings[int(names[i])] or ""),
        ),
    )
    role[chosen] = np.where(decided.role >= 0, decided.role, np.int8(Role.UNKNOWN))
    rule[chosen] = _OF_BACKWARD[decided.rule]
    return role, rule
