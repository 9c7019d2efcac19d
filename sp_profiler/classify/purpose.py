"""The purpose of a collective (DESIGN: Purpose of a collective), with the rule that decided.

Rules, the first that decides. What none decides is `unknown`, which never counts as dgrad:

annotation        our range says it
kernel-name       a kernel of an expert-parallel library (DeepEP, ...)
operator-name     a function or range known by name around the launch: FSDP, ZeRO, mixture of experts,
                  synchronised batch norm, embedding exchange (TorchRec)
router            an all-to-all in forward after a router's top-k: expert
forward-peer      an all-to-all in backward does what the forward function of its node did
accumulate-grad   launched from a hook on a gradient's accumulation (DDP's reducer, FSDP, ZeRO): param-grad
optimizer         inside the optimizer's step: reduces gradients, gathers parameters
attention         inside attention, or launched next to it (but not what a pipeline's group sends): kv, dkv,
                  layout
point-to-point    send/recv outside attention: pipeline
autograd-node     inside a node of backward: what reduces makes a dgrad, what gathers feeds one, or, in the
                  node of a linear that also reduces, fetches its input again
autograd-function inside a differentiable function of forward: activation
after-backward    between backward and the optimizer's step: param-grad
after-optimizer   a gather between the optimizer's step and forward: param-gather
scalar            a few numbers outside any of these in training (loss, gradient norm, flags): other
size              as large as what the GEMM beside it gives or takes: activation, dgrad
group-name        the group's description: tp, dp, pp, ep, cp and the names that frameworks use
group             what else the group carries: with activations it is TP/CP, with parameters or only in
                  backward it is DP
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from sp_profiler.classify.collectives import SEND_RECV
from sp_profiler.classify.context import Context
from sp_profiler.classify.dtypes import dtype_bytes
from sp_profiler.classify.kernels import is_expert_kernel
from sp_profiler.classify.launches import Launches, launches_of
from sp_profiler.classify.tables import Activities, Collective, Phase
from sp_profiler.record.annotate import PURPOSES, Range
from sp_profiler.trace.tables import NONE, Int64

UNKNOWN_PURPOSE = "unknown"
_NO_PARAMETERS = ("tensor", "pipeline", "context")
Decision = tuple[str, str]

_REDUCES = ("all_reduce", "reduce_scatter", "reduce")
_TENSOR = ("activation", "dgrad", "input-regather")
_PARAMETER = ("param-grad", "param-gather")
_SCALARS = 16
"""Collectives of at most so many elements outside of a function or node carry flags, losses or norms."""

_GROUP_NAMES = tuple(
    (kind, re.compile(rf"(?:^|[^a-z])(?:{words})(?:[^a-z]|$)", re.IGNORECASE))
    for kind, words in (
        ("expert", r"ep|expert\w*|moe"),
        ("pipeline", r"pp|pipe\w*"),
        ("context", r"cp|context\w*|ulysses|ring"),
        ("data", r"dp|ddp|fsdp|hsdp|data_?parallel\w*|data|dp_shard|dp_replicate|zero"),
        ("tensor", r"tp|tensor\w*|mp|model_?parallel\w*"),
    )
)
_OF_A_MODEL = re.compile(r"(pipeline|expert|tensor|context)_model_parallel", re.IGNORECASE)


def decide_purpose(annotation: Range | None) -> Decision:
    """What the annotation says: purpose and rule (`annotation`, else `none`)."""
    stated = annotation.fields.get("purpose") if annotation is not None else None
    if stated in PURPOSES and stated != UNKNOWN_PURPOSE:
        return stated, "annotation"
    return UNKNOWN_PURPOSE, "none"


def purposes_of(
    context: Context,
    activities: Activities,
    rows: Int64,
    collectives: Sequence[Collective],
    through: Callable[[Int64], Int64],
) -> list[Decision]:
    """The purpose of each collective, and the rule that decided: an annotation's is what `collectives` hold.

    `rows`: their rows in `activities`; what the collectives say of their places is not read. `through`
    gathers answers of `Nest.nearest` at the launch of each activity.

    Two phases are corrected in `activities`: of a reduction between backward and the optimizer's step, which
    stands outside both, and of what lies beside attention that is backward by its kernel's name alone.
    """
    decided = [(one.purpose, one.purpose_rule) for one in collectives]
    open_ = _open(decided)
    if not open_:
        return decided
    launches = launches_of(context, activities, rows, collectives, through)
    activities.phase[rows[launches.by_attention]] = Phase.BACKWARD
    known: dict[tuple[object, ...], Decision | None] = {}
    for i, code in zip(open_, activities.name[rows[open_]].tolist(), strict=True):
        one = collectives[i]
        by_itself = i if launches.in_node[i] and one.op == "all_gather" else NONE  # see `gathered_in_node`
        alike = (code, *_size(one), one.group and one.group.description, by_itself, launches.situation[i])
        if alike not in known:
            known[alike] = _decide(_Asked(i, one, context.trace.strings[code] or ""), launches)
        found = known[alike]
        if found is not None:
            decided[i] = found
            if found[1] == "after-backward":
                activities.phase[rows[i]] = Phase.OPTIMIZER
    _by_peers(decided, collectives, launches)
    phases = activities.phase[rows]
    _decide_open(decided, collectives, phases, "group-name", _by_group_name)
    if _open(decided):
        by_use = partial(_by_group_use, use=_GroupUse(decided, collectives, phases))
        _decide_open(decided, collectives, phases, "group", by_use)
    return decided


def _open(decided: Sequence[Decision]) -> list[int]:
    return [i for i, (purpose, _) in enumerate(decided) if purpose == UNKNOWN_PURPOSE]


@dataclass(frozen=True)
class _Asked:
    index: int
    collective: Collective
    kernel: str

    @property
    def op(self) -> str | None:
        return self.collective.op

    @property
    def reduces(self) -> bool:
        return self.op in _REDUCES

    @property
    def gathers(self) -> bool:
        return self.op == "all_gather"


def _elements(collective: Collective) -> int | None:
    """Elements of the full tensor."""
    width = dtype_bytes(collective.dtype)
    return None if width is None or collective.bytes is None else collective.bytes // width


def _decide(asked: _Asked, launches: Launches) -> Decision | None:
    if is_expert_kernel(asked.kernel):
        return "expert", "kernel-name"
    if not launches.linked[asked.index]:
        return None
    return next((found for rule in _RULES if (found := rule(asked, launches)) is not None), None)


# --- one collective at a time -------------------------------------------------------------------------


def _by_name(asked: _Asked, at: Launches) -> Decision | None:
    kind = at.named(asked.index)
    rule = "operator-name"
    if kind == "sharding":
        return _of_parameters(asked, rule)
    if kind == "other":
        return "other", rule
    if asked.op == "all_to_all" and (kind == "expert" or at.with_experts[asked.index]):
        return "expert", rule
    if kind == "buffers" and asked.op == "broadcast":
        return "other", rule
    if kind == "serving" and (asked.reduces or asked.gathers) and not at.in_backward[asked.index]:
        return _scalar(asked) or ("activation", rule)
    return None


def _of_parameters(asked: _Asked, rule: str) -> Decision | None:
    if asked.reduces:
        return "param-grad", rule
    return ("param-gather", rule) if asked.op in ("all_gather", "broadcast") else None


def _by_accumulation(asked: _Asked, at: Launches) -> Decision | None:
    return _of_parameters(asked, "accumulate-grad") if at.in_accumulation[asked.index] else None


def _by_optimizer(asked: _Asked, at: Launches) -> Decision | None:
    if not at.in_optimizer[asked.index]:
        return None
    return _scalar(asked) or _of_parameters(asked, "optimizer")


def _scalar(asked: _Asked) -> Decision | None:
    elements = _elements(asked.collective)
    if asked.op == "barrier" or (elements is not None and elements <= _SCALARS):
        return "other", "scalar"
    return None


def _by_attention(asked: _Asked, at: Launches) -> Decision | None:
    i, rule = asked.index, "attention"
    inside = bool(at.in_attention[i])
    if asked.op == "all_to_all":
        return ("layout", rule) if inside or at.attention_before[i] or at.attention_after[i] else None
    if not inside and at.with_gemms[i]:
        return None  # the node or function of a linear
    if not inside and asked.op == SEND_RECV and _named_kind(asked.collective) == "pipeline":
        return None  # a stage that begins or ends with attention
    backward = bool(at.in_backward[i])
    if asked.op == SEND_RECV and (inside or at.attention_before[i] or at.attention_after[i]):
        carried = at.rotated[i] if backward else "kv"
        return None if carried is None else (carried, rule)
    if asked.gathers and (inside or at.attention_after[i]):
        return "kv", rule
    if asked.op == "reduce_scatter" and backward and (inside or at.attention_before[i]):
        return "dkv", rule
    return None


def _by_router(asked: _Asked, at: Launches) -> Decision | None:
    routed = asked.op == "all_to_all" and at.after_router[asked.index] and not at.in_backward[asked.index]
    return ("expert", "router") if routed else None


def _by_point_to_point(asked: _Asked, at: Launches) -> Decision | None:
    if asked.op != SEND_RECV or at.in_attention[asked.index]:
        return None
    i = asked.index
    if at.attention_before[i] or at.attention_after[i] or _named_kind(asked.collective) == "context":
        return None  # a ring of which nobody knows what it carries
    if at.at_edge[i]:
        return None  # what the window cut off may have been attention
    return "pipeline", "point-to-point"


def _by_node(asked: _Asked, at: Launches) -> Decision | None:
    i = asked.index
    if not at.in_node[i]:
        return None
    if asked.reduces:
        return "dgrad", "autograd-node"
    if asked.gathers:
        return at.gathered_in_node(i, asked.collective), "autograd-node"
    return None


def _by_function(asked: _Asked, at: Launches) -> Decision | None:
    if at.in_function[asked.index] and (asked.reduces or asked.gathers):
        return "activation", "autograd-function"
    return None


def _by_place(asked: _Asked, at: Launches) -> Decision | None:
    i = asked.index
    before, after = at.before[i], at.after[i]
    if (before or after) and (found := _scalar(asked)):
        return found
    if asked.reduces and before == "backward" and after == "optimizer":
        return "param-grad", "after-backward"
    gathers = asked.op in ("all_gather", "broadcast") and _named_kind(asked.collective) not in _NO_PARAMETERS
    if gathers and before == "optimizer" and after in ("forward", None):
        return "param-gather", "after-optimizer"
    return None


def _by_size(asked: _Asked, at: Launches) -> Decision | None:
    elements = _elements(asked.collective)
    if elements is None or not (asked.reduces or asked.gathers):
        return None
    if at.beside_product(asked.index, elements, gathers=asked.gathers):
        return ("dgrad" if at.in_backward[asked.index] else "activation"), "size"
    return None


_RULES: tuple[Callable[[_Asked, Launches], Decision | None], ...] = (
    _by_name,
    _by_accumulation,
    _by_optimizer,
    _by_attention,
    _by_router,
    _by_point_to_point,
    _by_node,
    _by_function,
    _by_place,
    _by_size,
)


def _by_peers(decided: list[Decision], collectives: Sequence[Collective], at: Launches) -> None:
    """All-to-alls in backward: what the function of forward with the same sequence number is for."""
    purposes: dict[int, set[str]] = defaultdict(set)
    exchanges = [i for i, one in enumerate(collectives) if one.op == "all_to_all"]
    for i in exchanges:
        if not at.in_backward[i] and at.sequence[i] >= 0:
            purposes[int(at.sequence[i])].add(decided[i][0])
    for i in exchanges:
        if decided[i][0] == UNKNOWN_PURPOSE and at.in_backward[i]:
            found = purposes.get(int(at.sequence[i]), set()) - {UNKNOWN_PURPOSE}
            if len(found) == 1:
                decided[i] = found.pop(), "forward-peer"


# --- by what the group is --------------------------------------------------------------------------------


def _decide_open(
    decided: list[Decision],
    collectives: Sequence[Collective],
    phases: np.ndarray,
    rule: str,
    by: Callable[[Collective, Phase], str | None],
) -> None:
    """Ask a rule about what has a group and is not decided, once for all collectives alike."""
    open_ = [i for i in _open(decided) if collectives[i].group is not None]
    known: dict[tuple[object, ...], str | None] = {}
    for i, phase in zip(open_, phases[open_].tolist(), strict=True):
        one = collectives[i]
        alike = (one.group and one.group.key, *_size(one), phase)
        if alike not in known:
            known[alike] = by(one, Phase(phase))
        purpose = known[alike]
        if purpose is not None:
            decided[i] = purpose, rule


class _GroupUse:
    """What each group carries as far as it is known."""

    def __init__(
        self, decided: Sequence[Decision], collectives: Sequence[Collective], phases: np.ndarray
    ) -> None:
        self.purposes: dict[str, Counter[str]] = defaultdict(Counter)
        self.by_op: dict[tuple[str, str | None], set[str]] = defaultdict(set)
        self.by_size: dict[tuple[str, str | None, str | None, int | None], set[str]] = defaultdict(set)
        self.in_forward: set[str] = set()
        behind = (int(Phase.BACKWARD), int(Phase.OPTIMIZER))
        carried = Counter(
            (one.group.key, purpose, _size(one), phase)
            for one, (purpose, _), phase in zip(collectives, decided, phases.tolist(), strict=True)
            if one.group is not None
        )
        for (key, purpose, size, phase), times in carried.items():
            self.purposes[key][purpose] += times
            if purpose != UNKNOWN_PURPOSE:
                self.by_op[key, size[0]].add(purpose)
                self.by_size[key, *size].add(purpose)
            if phase not in behind and purpose != "other":
                self.in_forward.add(key)

    def carries(self, key: str, purposes: tuple[str, ...]) -> bool:
        return any(self.purposes[key][purpose] for purpose in purposes)


def _size(collective: Collective) -> tuple[str | None, str | None, int | None]:
    return collective.op, collective.dtype, collective.bytes


def _named_kind(collective: Collective) -> str | None:
    """The kind of parallelism that the group's name says; None for nothing, or two things (`dp_cp`)."""
    return None if collective.group is None else _kind_of(collective.group.description)


@lru_cache(maxsize=4096)
def _kind_of(description: str) -> str | None:
    # Megatron's PIPELINE_MODEL_PARALLEL_GROUP says one thing, not two.
    description = _OF_A_MODEL.sub(r"\1_parallel", description)
    kinds = [kind for kind, words in _GROUP_NAMES if words.search(description)]
    return kinds[0] if len(kinds) == 1 else None


def _by_group_name(collective: Collective, phase: Phase) -> str | None:
    kind, op = _named_kind(collective), collective.op
    if kind is None:
        return None
    if kind == "expert":
        return "expert" if op == "all_to_all" else None
    if kind == "pipeline":
        return "pipeline" if op == SEND_RECV else None
    if kind == "data":
        return _parameters(collective)
    if kind == "tensor":
        return _activations(collective, phase)
    if phase == Phase.FORWARD:
        return {"all_to_all": "layout", SEND_RECV: "kv", "all_gather": "kv"}.get(op or "")
    return "layout" if op == "all_to_all" else None


def _parameters(collective: Collective) -> str | None:
    elements = _elements(collective)
    if elements is not None and elements <= _SCALARS:
        return None
    if collective.op in _REDUCES:
        return "param-grad"
    return "param-gather" if collective.op == "all_gather" else None


def _activations(collective: Collective, phase: Phase) -> str | None:
    if phase == Phase.FORWARD and collective.op in (*_REDUCES, "all_gather"):
        return "activation"
    return "dgrad" if phase == Phase.BACKWARD and collective.op in _REDUCES else None


def _by_group_use(collective: Collective, phase: Phase, use: _GroupUse) -> str | None:
    assert collective.group is not None
    key = collective.group.key
    elements = _elements(collective)
    same = use.by_op[key, collective.op]
    alike = use.by_size[key, *_size(collective)] if collective.op == SEND_RECV else same
    handed_over = collective.op == SEND_RECV and same == {"pipeline"}
    if handed_over or (
        len(alike) == 1 and phase == Phase.UNKNOWN and elements is not None and elements > _SCALARS
    ):
        return next(iter(alike))  # launched before the window: as all others of its kind
    if collective.op == "all_to_all":
        return next(iter(same)) if len(same) == 1 else None
    if use.carries(key, _TENSOR):
        return None if use.carries(key, _PARAMETER) else _activations(collective, phase)
    if use.carries(key, _PARAMETER):
        return None if phase == Phase.UNKNOWN else _parameters(collective)
    only_backward = key not in use.in_forward and phase in (Phase.BACKWARD, Phase.OPTIMIZER)
    return _parameters(collective) if only_backward and collective.op in _REDUCES else None
