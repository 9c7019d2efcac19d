"""dgrad or wgrad: the role of a GEMM in backward that no range names (DESIGN: GEMM role of a kernel).

A linear's forward multiplies (M,K) @ (K,N): M tokens, K inputs, N outputs. dgrad sums over the outputs N,
wgrad over the tokens M; which operand comes first, and which is transposed, is the implementation's choice.
Rules, each recorded under its name, the first that decides:

operator-name  the operator says it (`aten::mkldnn_linear_backward_weights`)
shapes         against the forward peer: a sum over N that gives M x K is dgrad, over M giving K x N wgrad,
               where none fits also with a part or a multiple of M
strides        where shapes do not tell (M == N) or the peer is not in the trace: a transposed first operand
               (transposed against the gradient that came in, where that was recorded) is wgrad
               Batched products have these two only where a parameter of their second operand's shape gets a
               gradient (`AccumulateGrad`): of activations both gradients are of activations
node-table     a fused node whose code is known and that holds as many GEMMs as that code launches
node-order     torch's own linear nodes, both of whose GEMMs are there
other-of-node  the second of a node's two GEMMs, when the first is known
kernel-layout  the letters of the operands' layouts in the kernel's name: `_nn_` dgrad, `_nt_` wgrad. Weak
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sp_profiler.classify.dense import gemm_operators, is_batched
from sp_profiler.classify.nesting import Nest
from sp_profiler.classify.nodes import (
    MEGATRON_LINEAR,
    built_in_roles,
    fused_roles,
    is_compiled_node,
    node_name,
)
from sp_profiler.classify.peers import forward_peers
from sp_profiler.classify.phases import Phases
from sp_profiler.classify.products import products_at
from sp_profiler.classify.rules import BACKWARD_RULES
from sp_profiler.classify.shapes import Product, first_input
from sp_profiler.classify.tables import Phase, Role
from sp_profiler.trace.tables import NONE, Bool, Int8, Int64, Trace

_UNDECIDED = -1
_ROLE_OF_LETTERS = {"nn": Role.DGRAD, "nt": Role.WGRAD}
_LETTERS = re.compile(r"(?<![a-z0-9])([nt]{2})(?![a-z0-9])")
_NVJET = re.compile(r"nvjet_(?P<types>[a-z]+)_.*_(?P<letters>[NT]{2})[NT]?(?:_|$)")
_TENSILE = re.compile(r"Cijk_(A(?:ilk|lik))_(B(?:ljk|jlk))")
_TENSILE_LETTERS = {"Ailk": "n", "Alik": "t", "Bljk": "n", "Bjlk": "t"}
_FP8 = re.compile(r"e4m3|e5m2|fp8|f8f8|_b8|_f8", re.IGNORECASE)


@lru_cache(maxsize=65536)
def layout_letters(kernel: str) -> str | None:
    """`nn`, `nt`, `tn` or `tt` as a kernel's name spells the layouts of its operands, None without.

    In cuBLAS's terms (columns first): a forward linear is `tn`, its dgrad `nn`, its wgrad `nt`. FP8 GEMMs
    exist as `tn` only, so there the letters say nothing.
    """
    if _FP8.search(kernel):
        return None
    if found := _NVJET.search(kernel):
        return None if "q" in found["types"] else found["letters"].lower()
    if found := _TENSILE.search(kernel):
        return _TENSILE_LETTERS[found[1]] + _TENSILE_LETTERS[found[2]]
    words = _LETTERS.findall(kernel.lower())
    return words[0] if words else None


@lru_cache(maxsize=4096)
def role_by_operator(name: str) -> Role | None:
    """The role that an operator's own name states."""
    if re.search(r"linear_backward_(?:input|weights?)", name):
        return Role.DGRAD if name.endswith("input") else Role.WGRAD
    return None


@dataclass(frozen=True)
class Work:
    """The GEMM activities in backward that are still open; columns of one length."""

    operator: Int64  # position of the operator that multiplies, NONE: the node launched the kernel itself
    node: Int64  # position of the autograd node (the engine's name for it)
    inner_node: Int64  # its innermost name
    order: Int64  # time of launch
    is_part: Bool  # a split-K reduction or epilogue: goes with the GEMM launched before it
    letters: Callable[[int], str | None]  # of the i-th one's kernel


@dataclass(frozen=True)
class Decided:
    """Role and index into BACKWARD_RULES of each, -1 where nothing decided."""

    role: Int8
    rule: Int8


def decide_backward(trace: Trace, nest: Nest, phases: Phases, work: Work) -> Decided:
    """dgrad, wgrad (or, in compiled graphs, recompute) for each piece of work."""
    count = len(work.operator)
    found = Decided(np.full(count, _UNDECIDED, np.int8), np.full(count, _UNDECIDED, np.int8))
    by_operator = _by_operator(trace, nest, phases, np.unique(work.operator[work.operator != NONE]))
    for i, position in enumerate(work.operator.tolist()):
        if position in by_operator:
            found.role[i], found.rule[i] = by_operator[position]
    _by_node(trace, nest, work, found)
    rule = BACKWARD_RULES.index("kernel-layout")
    for i in np.flatnonzero(found.role == _UNDECIDED).tolist():
        role = _ROLE_OF_LETTERS.get(work.letters(i) or "")
        if role is not None and not _is_batched_product(trace, nest, int(work.operator[i])):
            found.role[i], found.rule[i] = role, rule
    return found


# --- operators with shapes ---------------------------------------------------------------------------


def _by_operator(trace: Trace, nest: Nest, phases: Phases, operators: Int64) -> dict[int, tuple[Role, int]]:
    """Role and rule of each operator that can be decided by itself and its forward peers.

    Decided once for all operators whose inputs, nodes' inputs and peers' inputs are the same.
    """
    forward = np.flatnonzero(gemm_operators(trace, nest))
    forward = forward[(phases.phase[forward] == Phase.FORWARD) | phases.recompute[forward]]
    peers = forward_peers(trace, nest, phases, operators, forward)
    first = np.searchsorted(peers.backward, np.arange(len(operators) + 1)).tolist()
    rows = np.append(nest.row, NONE)
    row, node = rows[operators], rows[phases.inner_node[operators]]
    products = products_at(trace, np.concatenate((row, node, rows[peers.forward])))
    mine, nodes, theirs = np.split(products.code, (len(row), 2 * len(row)))
    of_peers = theirs.tolist()
    parameters = _parameter_shapes(trace, nest)
    known: dict[tuple[int, int, frozenset[int]], tuple[Role, str] | None] = {}
    decided: dict[int, tuple[Role, int]] = {}
    for i, (own, around) in enumerate(zip(mine.tolist(), nodes.tolist(), strict=True)):
        alike = own, around, frozenset(of_peers[first[i] : first[i + 1]])
        if alike not in known:
            met = {products.distinct[code] for code in alike[2]}
            known[alike] = _decide_operator(trace, int(row[i]), int(node[i]), products.of(i), met, parameters)
        answer = known[alike]
        if answer is not None:
            decided[int(operators[i])] = answer[0], BACKWARD_RULES.index(answer[1])
    return decided


def _decide_operator(
    trace: Trace,
    row: int,
    node: int,
    product: Product | None,
    peers: set[Product | None],
    parameters: set[tuple[int, ...]],
) -> tuple[Role, str] | None:
    """Role and rule of the operator at an event row, in the innermost node at another (or NONE)."""
    stated = role_by_operator(trace.strings[int(trace.events.name[row])] or "")
    if stated is not None:
        return stated, "operator-name"
    if product is None:
        return None
    known = {peer for peer in peers if peer is not None}
    if product.batch > 1 and not any(_has_weight(peer, parameters) for peer in known):
        return None
    return _decide_product(product, known, *_gradient(trace, node))


def _parameter_shapes(trace: Trace, nest: Nest) -> set[tuple[int, ...]]:
    """The shapes of the gradients that backward accumulates into leaves."""
    events, strings = trace.events, trace.strings
    leaves = strings.match(events.name[nest.row], lambda text: text.endswith("AccumulateGrad"))
    given = (first_input(strings[int(code)], None) for code in np.unique(events.dims[nest.row[leaves]]))
    return {sizes for sizes, _ in filter(None, given)}


def _has_weight(peer: Product, parameters: set[tuple[int, ...]]) -> bool:
    """Whether the second operand of a batched forward product can be a parameter, perhaps transposed."""
    return bool({(peer.batch, peer.k, peer.n), (peer.batch, peer.n, peer.k)} & parameters)


def _gradient(trace: Trace, node: int) -> tuple[bool | None, bool]:
    """Whether the gradient that came into a node is stored transposed; whether the node is compiled.

    Only for torch's own nodes, which multiply it as it is: a custom function may copy it first.
    """
    if node == NONE:
        return None, False
    events, strings = trace.events, trace.strings
    name = node_name(strings[int(events.name[node])] or "")
    if name in ("MmBackward", "AddmmBackward"):
        given = first_input(strings[int(events.dims[node])], strings[int(events.strides[node])])
        return (given[1] if given is not None else None), False
    return None, is_compiled_node(name)


@lru_cache(maxsize=65536)
def _fits_in_pieces(product: Product, peer: Product) -> tuple[bool, bool]:
    """Whether a product can be the dgrad, the wgrad of a linear whose tokens one of the two takes in pieces.

    Asynchronous tensor parallelism multiplies the tokens of each rank as they arrive, all of them for wgrad.
    """
    if product.batch != 1 or peer.batch != 1:
        return False, False

    def of_tokens(size: int) -> bool:
        return size % peer.m == 0 or peer.m % size == 0

    rows = {product.m, product.n}
    dgrad = product.k == peer.n and any(
        inputs == peer.k and of_tokens(tokens)
        for inputs, tokens in ((product.m, product.n), (product.n, product.m))
    )
    wgrad = rows == {peer.k, peer.n} and of_tokens(product.k) and product.first_transposed is not False
    return dgrad, wgrad


@lru_cache(maxsize=65536)
def _fits(product: Product, peer: Product) -> tuple[bool, bool, bool]:
    """Whether a product can be the dgrad, the wgrad, the recomputation of a forward product."""
    sizes = sorted((product.m, product.n))
    dgrad = product.k == peer.n and sizes == sorted((peer.m, peer.k))
    wgrad = product.k == peer.m and sizes == sorted((peer.k, peer.n))
    again = (product.m, product.k, product.n) == (peer.m, peer.k, peer.n)
    again &= product.second_transposed == peer.second_transposed
    return dgrad, wgrad, again


def _decide_product(
    product: Product, peers: set[Product], gradient_transposed: bool | None, compiled: bool
) -> tuple[Role, str] | None:
    fits = [_fits(product, peer) for peer in peers]
    dgrad, wgrad, again = (any(fit[i] for fit in fits) for i in range(3))
    told = product.second_transposed is not None or not (dgrad or wgrad)
    if compiled and again and told and not (wgrad and product.first_transposed):
        # A graph may compute forward products again: with the second operand laid out as in forward, which is
        # what tells them from a dgrad, where the weight is square.
        return Role.RECOMPUTE, "strides" if dgrad or wgrad else "shapes"
    if not (dgrad or wgrad or again):
        pieces = [_fits_in_pieces(product, peer) for peer in peers]
        dgrad, wgrad = (any(fit[i] for fit in pieces) for i in range(2))
    if dgrad != wgrad:
        return (Role.DGRAD if dgrad else Role.WGRAD), "shapes"
    if peers and not dgrad:
        return (Role.RECOMPUTE, "shapes") if again else None
    transposed = product.first_transposed
    if transposed is None:
        return None
    return (Role.WGRAD if transposed != bool(gradient_transposed) else Role.DGRAD), "strides"


# --- nodes -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """One GEMM of a node: its activities (several kernels where the operator split it)."""

    members: list[int]
    under_operator: bool


def _units(work: Work, members: list[int]) -> list[_Unit]:
    """The GEMMs of one node in order of launch."""
    units: dict[tuple[str, int], list[int]] = {}
    for i in sorted(members, key=lambda i: (int(work.order[i]), i)):
        operator = int(work.operator[i])
        key = ("kernel", i) if operator == NONE else ("operator", operator)
        if work.is_part[i] and operator == NONE:
            if not units:
                continue
            key = next(reversed(units))
        units.setdefault(key, []).append(i)
    return [_Unit(found, key[0] == "operator") for key, found in units.items()]


def _by_node(trace: Trace, nest: Nest, work: Work, found: Decided) -> None:
    """Tables of fused nodes, order in torch's own, and the other one of two."""
    open_nodes = np.unique(work.node[(found.role == _UNDECIDED) & (work.node != NONE)])
    if not len(open_nodes):
        return
    mine = np.flatnonzero(np.isin(work.node, open_nodes))
    mine = mine[np.argsort(work.node[mine], kind="stable")]
    first = np.searchsorted(work.node[mine], open_nodes)
    for low, high in zip(first.tolist(), [*first[1:].tolist(), len(mine)], strict=True):
        members = mine[low:high].tolist()
        inner = int(work.inner_node[members[0]])
        name = node_name(trace.strings[int(trace.events.name[nest.row[inner]])] or "")
        _decide_node(name, _units(work, members), found, _batched_members(trace, nest, work, members))


def _batched_members(trace: Trace, nest: Nest, work: Work, members: list[int]) -> bool:
    return any(_is_batched_product(trace, nest, int(work.operator[i])) for i in members)


def _is_batched_product(trace: Trace, nest: Nest, operator: int) -> bool:
    return operator != NONE and is_batched(trace.strings[int(trace.events.name[nest.row[operator]])] or "")


def _decide_node(name: str, units: list[_Unit], found: Decided, batched: bool) -> None:
    def enter(unit: _Unit, role: Role, rule: str) -> None:
        for i in unit.members:
            if found.role[i] == _UNDECIDED:
                found.role[i], found.rule[i] = role, BACKWARD_RULES.index(rule)

    if name == MEGATRON_LINEAR and len({unit.under_operator for unit in units}) == 2:
        # With gradient-accumulation fusion the wgrad is an extension's kernel, straight under the node.
        for unit in units:
            enter(unit, Role.DGRAD if unit.under_operator else Role.WGRAD, "node-table")
        return
    for roles, rule in (
        (fused_roles(name, len(units)), "node-table"),
        (built_in_roles(name, len(units)), "node-order"),
    ):
        for unit, role in zip(units, roles or (), strict=False):
            enter(unit, role, rule)
    if len(units) == 2 and not batched and not is_compiled_node(name):
        _enter_other(units, found, enter)


def _enter_other(units: list[_Unit], found: Decided, enter: Callable[[_Unit, Role, str], None]) -> None:
    roles = [int(found.role[unit.members[0]]) for unit in units]
    other = {int(Role.DGRAD): Role.WGRAD, int(Role.WGRAD): Role.DGRAD}
    for mine, its, unit in ((0, 1, units[0]), (1, 0, units[1])):
        if roles[mine] == _UNDECIDED and roles[its] in other:
            enter(unit, other[roles[its]], "other-of-node")
