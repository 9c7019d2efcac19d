"""What is known of autograd nodes and fused operators by their names: the order of the GEMMs inside them.

Launch order in general says nothing (a linear without bias runs wgrad first, one with bias dgrad first).
In a node whose code is known, and that holds exactly as many GEMMs as that code launches, it does.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sp_profiler.classify.phases import EVALUATE
from sp_profiler.classify.tables import Role

_D, _W = Role.DGRAD, Role.WGRAD

# Fused nodes whose GEMMs are launched without an operator of their own that records shapes.
# TransformerEngine (pytorch/module/linear.py, layernorm_linear.py, layernorm_mlp.py): FC2 before FC1.
_FUSED: dict[str, tuple[Role, ...]] = {
    "_LinearBackward": (_D, _W),
    "_LayerNormLinearBackward": (_D, _W),
    "_LayerNormMLPBackward": (_D, _W, _D, _W),
    "LinearWithGradAccumulationAndAsyncCommunicationBackward": (_D, _W),
}
# As many GEMMs of the one role, then as many of the other: one for each expert.
_GROUPED = frozenset(("_GroupedLinearBackward",))
# torch's own: the code generator sorts by argument, `mat1, mat2` of addmm and `mat2, self` of mm.
_BUILT_IN: dict[str, tuple[Role, ...]] = {"AddmmBackward": (_D, _W), "MmBackward": (_W, _D)}

MEGATRON_LINEAR = "LinearWithGradAccumulationAndAsyncCommunicationBackward"
_BUILT_IN_NODE = re.compile(r"^(?!.*(?:Function|Fn|Func)Backward\d*$)[A-Z]\w*Backward\d+$")
_COMPILED = re.compile(r"Compiled(?:Function|FxGraph)|^AOT")


@lru_cache(maxsize=65536)
def node_name(name: str) -> str:
    """A node's name without the engine's prefix and the overload's number: `AddmmBackward`."""
    return re.sub(r"(?<=Backward)\d+$", "", name.removeprefix(EVALUATE).rsplit("::", 1)[-1])


def fused_roles(name: str, count: int) -> tuple[Role, ...] | None:
    """Roles, in order of launch, of the `count` GEMMs of a fused node; None where nobody knows."""
    if name in _GROUPED and count % 2 == 0:
        return (_D,) * (count // 2) + (_W,) * (count // 2)
    roles = _FUSED.get(name)
    return roles if roles is not None and len(roles) == count else None


def built_in_roles(name: str, count: int) -> tuple[Role, ...] | None:
    """The same for torch's own linear nodes."""
    roles = _BUILT_IN.get(name)
    return roles if roles is not None and len(roles) == count else None


def is_compiled_node(name: str) -> bool:
    """Whether a node or function is a graph that torch.compile made from several operators."""
    return bool(_COMPILED.search(name))


def is_built_in_node(name: str) -> bool:
    """Whether a node is torch's own (`MmBackward0`): it launches no collective itself."""
    return bool(_BUILT_IN_NODE.match(name.removeprefix(EVALUATE)))
