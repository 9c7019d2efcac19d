"""From where collectives were launched: in which function, node or range, and beside which computation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from sp_profiler.classify.collectives import SEND_RECV
from sp_profiler.classify.context import Context
from sp_profiler.classify.nodes import is_built_in_node, node_name
from sp_profiler.classify.products import Products, products_at
from sp_profiler.classify.rings import Pass, carried
from sp_profiler.classify.tables import Activities, Collective, Kind, Phase, Role
from sp_profiler.record.annotate import PREFIX
from sp_profiler.trace.tables import NONE, Bool, Category, Int64

_KINDS = tuple(
    (kind, re.compile(words))
    for kind, words in (
        ("sharding", r"^FSDP::|^fsdp::|^FullyShardedDataParallel\.(?:_|rate_limiter)"),
        (
            "sharding",
            r"RegisterPostBackward|^(?:Pre|Post)BackwardFunction|DeepSpeedZero|partition_parameters",
        ),
        ("other", r"SyncBatchNorm|sync_batch_norm|All2All_(?:Pooled|Seq)|\bkjt\b|KJT|sparse_data_dist"),
        (
            "expert",
            r"(?i:moe|mixture|expert|token_?dispatch|token_?permut|deep_?ep)|(?:^|_)(?:dispatch|combine)(?:_|$)",
        ),
        ("buffers", r"^DistributedDataParallel\.forward$"),
        (
            "serving",
            r"^(?:vllm|sglang|sgl_kernel|aiter|_C_custom_ar|trtllm)::(?:\w*_)?(?:all_?reduce|all_?gather|reduce_?scatter)",
        ),
    )
)
_ACCUMULATION = re.compile(r"AccumulateGrad$|^torch::distributed::reducer|^torch\.distributed\.ddp\.reducer")
_CONTEXT = re.compile(
    r"(?i:attention|flash_?attn|attn_?func|ring_?attn|ulysses|seq_?all_?to_?all|context_?parallel)"
)
# Functions that wrap a user's whole forward: what is launched straight from them stands outside.
_WRAPPERS = re.compile(r"^Checkpoint|Checkpoint(?:Function|WithoutOutput)|^RegisterPostBackward|^torch::jit")
_PLUMBING = re.compile(r"^_?c10d|^record_param_comms|^(?:nccl|gloo):|^_dtensor")


@lru_cache(maxsize=65536)
def name_kind(name: str) -> str | None:
    """What kind of work a known function or range is (see `_KINDS`)."""
    return next((kind for kind, words in _KINDS if words.search(name)), None)


@dataclass(frozen=True)
class Launches:
    """One value per collective."""

    linked: Bool  # the launch is in the trace
    in_accumulation: Bool
    in_optimizer: Bool
    in_attention: Bool
    in_node: Bool  # in backward, launched by a custom node (or a distributed tensor's operator)
    in_function: Bool  # in a differentiable function of forward, also when that is computed again
    in_backward: Bool
    by_attention: Bool  # in backward because attention beside it is, by its kernel's name alone
    with_gemms: Bool  # its node or function multiplies matrices too
    attention_before: Bool  # the computation launched before it is attention
    attention_after: Bool
    at_edge: Bool  # no matrix product or attention was launched before it: the window begins there
    before: Sequence[str | None]  # forward | backward | optimizer: what was launched last before it
    after: Sequence[str | None]
    _kinds: Sequence[str | None]
    _node: Int64
    sequence: Int64  # the number that a function shares with its node; NONE outside of both
    with_experts: Bool  # inside something named after experts
    after_router: Bool  # a top-k ran since the last attention
    _collectives: Sequence[Collective]
    rotated: Sequence[str | None]  # of a ring's hop in backward: kv or dkv, where that is certain
    _in_node: dict[int, list[int]]  # collectives of each node, in order of launch
    _node_names: Sequence[str]
    _product_before: Products
    _product_after: Products

    @cached_property
    def situation(self) -> list[int]:
        """A number for all that can be asked about a launch, equal where no answer differs.

        But for `gathered_in_node`, which looks at the others in the node.
        """
        flags = (
            self.linked,
            self.in_accumulation,
            self.in_optimizer,
            self.in_attention,
            self.in_node,
            self.in_function,
            self.in_backward,
            self.with_gemms,
            self.attention_before,
            self.attention_after,
            self.at_edge,
            self.with_experts,
            self.after_router,
        )
        bits = sum(flag.astype(np.int64) << place for place, flag in enumerate(flags))
        products = self._product_before.code.tolist(), self._product_after.code.tolist()
        known: dict[tuple[object, ...], int] = {}
        told = zip(
            np.asarray(bits).tolist(),
            self.before,
            self.after,
            self._kinds,
            self.rotated,
            *products,
            strict=True,
        )
        return [known.setdefault(answers, len(known)) for answers in told]

    def named(self, i: int) -> str | None:
        """The kind of the innermost function or range that is known by name."""
        return self._kinds[i]

    def gathered_in_node(self, i: int, collective: Collective) -> str:
        """What an all-gather in a node of backward fetches.

        Beside a reduction in the node of a linear it is the linear's input: a column linear that kept only
        its part. Alone it is the gradient of a row linear's output. A fused block of two linears
        (TransformerEngine's LayerNormMLP) does both, the gradient first.
        """
        mates = [j for j in self._in_node[int(self._node[i])] if self._same_group(j, collective)]
        gathers = [j for j in mates if self._collectives[j].op == "all_gather"]
        reduces = any(self._collectives[j].op in ("all_reduce", "reduce_scatter") for j in mates)
        if not reduces or not self.with_gemms[i]:
            return "dgrad"
        if self._node_names[i] == "_LayerNormMLPBackward" and gathers[0] == i and len(gathers) > 1:
            return "dgrad"
        return "input-regather"

    def _same_group(self, j: int, collective: Collective) -> bool:
        other = self._collectives[j].group
        return other is None or collective.group is None or other.key == collective.group.key

    def beside_product(self, i: int, elements: int, *, gathers: bool) -> bool:
        """Whether the GEMM before it gives so many elements; of a gather: the one after takes them."""
        if gathers:
            after = self._product_after.of(i)
            return after is not None and after.batch * after.m * after.k == elements
        before = self._product_before.of(i)
        return before is not None and before.batch * before.m * before.n == elements


def launches_of(
    context: Context,
    activities: Activities,
    rows: Int64,
    collectives: Sequence[Collective],
    through: Callable[[Int64], Int64],
) -> Launches:
    """Gather where each collective was launched. Arguments are as for `purposes_of`."""
    nest, phases, events = context.nest, context.phases, context.trace.events
    name = events.name[nest.row]
    match = context.trace.strings.match
    calls = events.category[nest.row] != int(Category.RUNTIME)
    calls &= ~match(name, lambda text: text.startswith(PREFIX))  # ours have been read, or are not to be
    operators = calls & (events.category[nest.row] == int(Category.CPU_OP))

    def nearest(pattern: Callable[[str], bool], among: Bool = calls) -> Int64:
        return through(nest.nearest(among & match(name, pattern)))[rows]

    here = through(np.append(np.arange(len(nest.row)), NONE))
    known = nearest(lambda text: name_kind(text) is not None)
    node, inner = through(phases.node)[rows], through(phases.inner_node)[rows]
    function = through(nest.nearest(_functions(context, calls)))[rows]
    operator = nearest(lambda text: text.startswith("aten::"))
    again = phases.recompute[here[rows]]
    inner_name = np.append(name, NONE)[inner]
    custom = match(inner_name, lambda text: bool(text) and not is_built_in_node(text)) | (operator > inner)
    wrapped = match(inner_name, lambda text: bool(_WRAPPERS.search(node_name(text))))
    beside = _Beside(context, activities, through)
    launch_ns = activities.launch_ns[rows]
    by_attention = (inner == NONE) & beside.backward(launch_ns)
    backward = ((inner != NONE) & ~again) | by_attention
    sequence = np.append(events.sequence[nest.row], NONE)[np.maximum(function, inner)]
    within = np.where(backward, node, NONE)
    optimizer = through(phases.optimizer)[rows]
    with_gemms = _with_gemms(activities, within, rows, beside)
    experts = nearest(lambda t: name_kind(t) == "expert") != NONE
    accumulation = nearest(lambda t: bool(_ACCUMULATION.search(t)))
    return Launches(
        linked=here[rows] != NONE,
        in_accumulation=(accumulation != NONE) & (accumulation > function),
        in_optimizer=optimizer != NONE,
        in_attention=(through(context.attention)[rows] != NONE)
        # Operators only: a user's range "attention" holds the projections too.
        | (nearest(lambda t: bool(_CONTEXT.search(t)), operators) != NONE),
        in_node=(inner != NONE) & ~again & custom & ~wrapped,
        in_function=(function != NONE) & (function > inner),
        in_backward=backward,
        by_attention=by_attention,
        with_gemms=with_gemms,
        attention_before=beside.attention(launch_ns, before=True),
        attention_after=beside.attention(launch_ns, before=False),
        at_edge=beside.at_edge(launch_ns),
        before=beside.stage(launch_ns, before=True),
        after=beside.stage(launch_ns, before=False),
        _kinds=[
            name_kind(_name_at(context, p)) if p != NONE and p >= f and (p >= n or a) else None
            for p, f, n, a in zip(
                known.tolist(), function.tolist(), inner.tolist(), again.tolist(), strict=True
            )
        ],
        _node=within,
        sequence=sequence,
        with_experts=experts,
        after_router=beside.after_router(launch_ns),
        _collectives=collectives,
        rotated=_rotated(collectives, backward, activities.node[rows], sequence, launch_ns, beside),
        _in_node=_grouped(within, launch_ns),
        _node_names=[node_name(context.trace.strings[code] or "") for code in inner_name.tolist()],
        _product_before=beside.products(launch_ns, before=True),
        _product_after=beside.products(launch_ns, before=False),
    )


def _name_at(context: Context, position: int) -> str:
    if position == NONE:
        return ""
    return context.trace.strings[int(context.trace.events.name[context.nest.row[position]])] or ""


def _functions(context: Context, calls: Bool) -> Bool:
    """Which positions are differentiable functions of forward: operators that made an autograd node."""
    events, nest = context.trace.events, context.nest
    name = events.name[nest.row]
    owner = context.phases.owner[:-1] == np.arange(len(nest.row))
    forward = owner & calls & (context.phases.inner_node[:-1] != np.arange(len(nest.row)))
    return forward & ~context.trace.strings.match(
        name, lambda text: bool(_WRAPPERS.search(text) or _PLUMBING.search(text))
    )


def _rotated(
    collectives: Sequence[Collective],
    backward: Bool,
    node: Int64,
    sequence: Int64,
    launch_ns: Int64,
    beside: _Beside,
) -> list[str | None]:
    """What each send and receive of backward carries, were it a ring's (see `rings`)."""
    order = np.argsort(launch_ns, kind="stable").tolist()
    sends = [i for i in order if collectives[i].op == SEND_RECV and launch_ns[i] != NONE]
    sizes: dict[tuple[str | None, bool], set[tuple[str | None, int | None]]] = defaultdict(set)
    passes: dict[tuple[str | None, int], list[int]] = defaultdict(list)
    forward: dict[tuple[str | None, int], list[int]] = defaultdict(list)

    def place(i: int) -> tuple[str | None, int]:
        group = collectives[i].group
        return group.key if group is not None else None, int((node if backward[i] else sequence)[i])

    gathers = {place(i) for i, one in enumerate(collectives) if one.op == "all_gather"}
    for i in sends:
        (key, at), is_backward = place(i), bool(backward[i])
        sizes[key, is_backward].add((collectives[i].dtype, collectives[i].bytes))
        (passes if is_backward else forward)[key, at].append(i)
    found: list[str | None] = [None] * len(collectives)

    def size_of(i: int) -> tuple[str | None, int | None]:
        return collectives[i].dtype, collectives[i].bytes

    for (key, at), mine in passes.items():
        number = int(sequence[mine[0]])
        first = beside.first_attention(at)
        one = Pass(
            [size_of(i) for i in mine],
            sum(int(launch_ns[i]) < first for i in mine) if first != NONE else 0,
            [size_of(i) for i in forward.get((key, number), [])] if number != NONE else [],
            (at != NONE and (key, at) in gathers) or (number != NONE and (key, number) in gathers),
        )
        for i, purpose in zip(mine, carried(one, sizes[key, False], sizes[key, True]), strict=True):
            found[i] = purpose
    return found


def _grouped(node: Int64, launch_ns: Int64) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for i in np.argsort(launch_ns, kind="stable").tolist():
        found[int(node[i])].append(i)
    return found


def _with_gemms(activities: Activities, node: Int64, rows: Int64, beside: _Beside) -> Bool:
    """Whether the node around each collective launched GEMMs as well."""
    owners = np.unique(activities.node[activities.is_gemm & (activities.node != NONE)])
    return (node != NONE) & np.isin(activities.node[rows], owners)


class _Beside:
    """What was launched just before and after a moment: computations, and the stages of a step."""

    def __init__(self, context: Context, activities: Activities, through: Callable[[Int64], Int64]) -> None:
        self._context = context
        phases, nest, events = context.phases, context.nest, context.trace.events
        dense = activities.is_gemm | (activities.role == Role.ATTENTION)
        dense &= (activities.kind == Kind.COMPUTATION) & (activities.launch_ns != NONE)
        order = np.flatnonzero(dense)
        order = order[np.argsort(activities.launch_ns[order], kind="stable")]
        self._launch = activities.launch_ns[order]
        self._attention = activities.role[order] == Role.ATTENTION
        self._operator = through(context.gemm)[order]
        named = context.trace.strings.match(events.name[nest.row], lambda text: text == "aten::topk")
        self._routers = np.sort(events.start_ns[nest.row[named]])
        self._attention_ns = self._launch[self._attention]
        # Backward by the kernel's name alone: the file holds no node around it.
        self._backward = self._attention & (activities.phase[order] == Phase.BACKWARD)
        self._backward &= activities.node[order] == NONE
        inside = order[self._attention & (activities.node[order] != NONE)]
        nodes, first = np.unique(activities.node[inside], return_index=True)  # in order of launch
        self._first = dict(zip(nodes.tolist(), activities.launch_ns[inside[first]].tolist(), strict=True))
        forward = order[(activities.phase[order] == Phase.FORWARD)]
        starts = np.unique(phases.node[phases.node != NONE])
        optimizers = np.unique(phases.optimizer[phases.optimizer != NONE])
        start = events.start_ns[nest.row]
        times = [
            (activities.launch_ns[forward], "forward"),
            (start[starts], "backward"),
            (start[optimizers], "optimizer"),
        ]
        stages = sorted((ns, stage) for column, stage in times for ns in np.unique(column).tolist())
        self._stage_ns = np.array([ns for ns, _ in stages], np.int64)
        self._stages = [stage for _, stage in stages]

    def attention(self, launch_ns: Int64, *, before: bool) -> Bool:
        return self._next_to(self._attention, launch_ns, before=before)

    def backward(self, launch_ns: Int64) -> Bool:
        """Whether attention beside it is backward by its name alone."""
        return self._next_to(self._backward, launch_ns, before=True) | self._next_to(
            self._backward, launch_ns, before=False
        )

    def at_edge(self, launch_ns: Int64) -> Bool:
        return np.searchsorted(self._launch, launch_ns, side="left") == 0

    def first_attention(self, node: int) -> int:
        """When the first attention in the node with this event row was launched; NONE without any."""
        return self._first.get(node, NONE)

    def _next_to(self, what: Bool, launch_ns: Int64, *, before: bool) -> Bool:
        at = np.searchsorted(self._launch, launch_ns, side="left") - before
        inside = (at >= 0) & (at < len(self._launch)) & (launch_ns != NONE)
        found = np.zeros(len(launch_ns), dtype=np.bool_)
        found[inside] = what[at[inside]]
        return found

    def after_router(self, launch_ns: Int64) -> Bool:
        """Whether a top-k ran since the last attention: tokens are on their way to experts, or back."""
        router = np.searchsorted(self._routers, launch_ns, side="left") - 1
        attention = np.searchsorted(self._attention_ns, launch_ns, side="left") - 1
        routed = np.append(self._routers, NONE)[router]
        attended = np.append(self._attention_ns, NONE)[attention]
        return (launch_ns != NONE) & (routed > attended)

    def stage(self, launch_ns: Int64, *, before: bool) -> list[str | None]:
        at = np.searchsorted(self._stage_ns, launch_ns, side="left") - before
        inside = (at >= 0) & (at < len(self._stages)) & (launch_ns != NONE)
        of_place = (*self._stages, None)  # the last place answers for NONE
        return [of_place[place] for place in np.where(inside, at, NONE).tolist()]

    def products(self, launch_ns: Int64, *, before: bool) -> Products:
        """The product of the GEMM or attention beside each moment."""
        at = np.searchsorted(self._launch, launch_ns, side="left") - before
        inside = (at >= 0) & (at < len(self._launch)) & (launch_ns != NONE)
        operator = np.append(self._operator, NONE)[np.where(inside, at, NONE)]
        return products_at(self._context.trace, self._context.row_at(operator))
