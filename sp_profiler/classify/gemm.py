"""The role of a computation (DESIGN: GEMM role of a kernel), with the rule that decided.

Rules, the first that decides: our annotation; the optimizer; the name or operator of attention, batched
products around a softmax; convolution (no linear: `other`); forward work inside backward (recomputation);
a GEMM whose launching operator is in forward; in backward those of `backward.py`. What none of them decides
is `unknown` when it is a GEMM and `other` when it is not one. Kernels that a compiler fused or a CUDA graph
replayed have no operator of their own: unless their name says it their role stays `unknown`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.annotations import FWD, WHATS, Annotations
from sp_profiler.classify.rules import BACKWARD_RULES
from sp_profiler.classify.tables import Phase, Role
from sp_profiler.trace.tables import NONE, Bool, Int8, Int32, Int64

RULES = (
    "none",
    "annotation",
    "kernel-name",
    "launching-op",
    "not-a-gemm",
    "recomputation",
    "batched-attention",
    *BACKWARD_RULES,
)
RULE = {name: index for index, name in enumerate(RULES)}

_ROLE_OF_WHAT = {
    "fwd": Role.FWD,
    "recompute": Role.RECOMPUTE,
    "dgrad": Role.DGRAD,
    "wgrad": Role.WGRAD,
    "attention": Role.ATTENTION,
    "optimizer": Role.OPTIMIZER,
}
_ROLES = np.array([_ROLE_OF_WHAT.get(what, Role.UNKNOWN) for what in (*WHATS, "")], dtype=np.int8)

_ATTENTION_OP = re.compile(
    r"scaled_dot_product|ScaledDotProduct|_flash_attention|_efficient_attention|flash_attn|FlashAttn|FusedAttn"
    r"|_cudnn_attention|flex_attention"
)
_GEMM_OP = re.compile(
    r"^(?:aten::(?:mm|addmm|bmm|baddbmm|addbmm|_scaled_mm|_scaled_grouped_mm|_grouped_mm|_int_mm"
    r"|_addmm_activation|mkldnn_linear|mkldnn_linear_backward\w*|mv|addmv)"
    r"|mkldnn::_linear_pointwise|quantized::linear\w*|onednn::qlinear\w*)$"
)


_CONVOLUTION = re.compile(
    r"^aten::(?:_?conv|cudnn_conv|miopen_conv|mkldnn_conv|slow_conv|thnn_conv)|(?:Convolution|Conv\dd)\w*Backward"
    r"|^(?:cudnn|miopen|mkldnn|onednn)\w*::\w*conv"
)


def is_convolution_op(name: str) -> bool:
    """Whether an operator or autograd node convolves: GEMM kernels in it are no linear's."""
    return bool(_CONVOLUTION.search(name))


def is_attention_op(name: str) -> bool:
    """Whether an operator or autograd node is the attention core, forward or backward."""
    return bool(_ATTENTION_OP.search(name))


def is_gemm_op(name: str) -> bool:
    """Whether an operator multiplies matrices itself (in CPU runs operators are the activities).

    `aten::matmul` and `aten::linear` call one that does; their own time is dispatch.
    """
    return bool(_GEMM_OP.match(name))


@dataclass(frozen=True)
class Evidence:
    """What is known of each computation; columns of one length, positions are those of the nest."""

    compute_range: Int64  # position of the innermost compute range of ours around the launch
    recompute_range: Int64  # position of a surrounding sp::recompute
    optimizer: Int64  # position of the optimizer's step
    attention_op: Int64  # position of an attention operator
    batched_attention: Bool  # a batched product around a softmax
    convolution: Int64  # position of a convolution
    recompute: Bool
    phase: Int8
    is_gemm: Bool
    is_gemm_part: Bool
    is_attention: Bool  # by kernel name
    is_optimizer: Bool  # by kernel name
    is_compiled: Bool  # compiler-fused or replayed from a graph: the operator says nothing of the role


def decide_roles(known: Evidence, annotations: Annotations) -> tuple[Int8, Int32]:
    """Role and index of the deciding rule (into RULES) of each computation.

    An annotated forward that runs inside an autograd node or inside `sp::recompute` is recomputation.
    """
    count = len(known.phase)
    role = np.full(count, Role.UNKNOWN, dtype=np.int8)
    rule = np.full(count, RULE["none"], dtype=np.int32)
    undecided = np.ones(count, dtype=np.bool_)

    def decide(where: Bool, new: Role | Int8, name: str) -> None:
        chosen = undecided & where
        role[chosen] = new[chosen] if isinstance(new, np.ndarray) else np.int8(new)
        rule[chosen] = RULE[name]
        undecided[chosen] = False

    ranged = known.compute_range != NONE
    what = np.append(annotations.what, -1)[known.compute_range]
    again = (what == FWD) & ((known.phase == Phase.BACKWARD) | (known.recompute_range != NONE))
    decide(ranged, np.where(again, np.int8(Role.RECOMPUTE), _ROLES[what]), "annotation")
    decide(known.optimizer != NONE, Role.OPTIMIZER, "launching-op")
    decide(known.is_optimizer, Role.OPTIMIZER, "kernel-name")
    decide(known.is_attention, Role.ATTENTION, "kernel-name")
    decide((known.attention_op != NONE) & ~known.is_compiled, Role.ATTENTION, "launching-op")
    gemm = known.is_gemm | known.is_gemm_part
    plain = ~known.is_compiled
    decide(gemm & known.batched_attention & plain, Role.ATTENTION, "batched-attention")
    decide((known.convolution != NONE) & plain, Role.OTHER, "launching-op")
    decide(known.recompute & plain, Role.RECOMPUTE, "recomputation")
    decide(gemm & (known.phase == Phase.FORWARD) & plain, Role.FWD, "launching-op")
    decide(~gemm & plain, Role.OTHER, "not-a-gemm")
    return role, rule
