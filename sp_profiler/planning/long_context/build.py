"""From a request to a plan of long context: every scheme's figures, and the recommendation."""

from __future__ import annotations

import dataclasses
from typing import Any

from sp_profiler import __version__
from sp_profiler.errors import UsageError
from sp_profiler.ledger import Ledger
from sp_profiler.planning.long_context.figures import (
    Division,
    decoder_bytes,
    layer_sizes,
    layer_times,
    ring_figures,
    saved_by_term,
)
from sp_profiler.planning.long_context.links import transfers, wire_sum
from sp_profiler.planning.long_context.model import (
    ContextMachine,
    ContextScheme,
    ContextSizes,
    ContextTool,
    LinkRates,
    LongContextPlan,
)
from sp_profiler.planning.long_context.recommend import recommend
from sp_profiler.planning.long_context.request import LongContextRequest, settled, splits
from sp_profiler.planning.long_context.schemes import Candidate, candidates, failures
from sp_profiler.planning.machines import Machines
from sp_profiler.theory.korthikanti import saved_terms
from sp_profiler.theory.machine import Machine

MOST = 2**63 - 1
"""What a column of integers holds."""

_ABOUT_MEMORY = [
    "A layer's saved bytes are those of Korthikanti et al.'s GPT layer (arXiv 2205.05198) with dropout. "
    "Scores are kept in TP and TP + SP, made again with selective recompute, and never kept in context "
    "parallelism, whose attention is a flash kernel. Keys and values of grouped heads count as they are.",
    "Beside it stands the shipped decoder's block (RMSNorm in fp32, SwiGLU, flash attention): what "
    "`sp-profile run` keeps. Parameters, gradients, optimizer state, embedding and head come on top.",
    "TP + SP is Megatron's: a rank keeps its own part of the inputs and gathers it again in backward.",
]
_ABOUT_SENDING = [
    "Sent is what one rank sends in one layer, one micro-batch. Collectives are rings: (T-1)/T of a tensor. "
    "K and V of a ring go p-1 hops in each direction, dK and dV p hops in backward, in fp32.",
    "Gradients of parameters are summed over the ranks of context parallelism as in data parallelism, once a "
    "step: they are not counted.",
]
_ABOUT_TIME = [
    "GEMMs and attention take their FLOPs / (peak x efficiency), whatever their shape. Attention's backward "
    "takes 5/2 of its forward in a flash kernel, twice where scores were kept, three times where they are "
    "made again.",
    "A ring step takes as long as on the slowest of its ranks, or as its hop where that is longer: ranks "
    "keep step.",
    "A hop takes m/bandwidth + latency, a collective launch + steps x (latency + tensor / (T x bandwidth)); "
    "an all-to-all between nodes sends inside the node and between nodes at the same time.",
    "Hops hide under the attention of the block in hand, backward's collectives of TP and SP under a GEMM of "
    "their linear. Ulysses' all-to-alls and forward's collectives of TP and SP hide under nothing.",
    "Neighbouring ranks fill a node: TP first, then Ulysses, then the ring. Each rank has a port of its own "
    "out of the node. Communication slows no computation. Norms, dropout and copies take no time.",
]


_ABOUT_ORDER = (
    "The recommendation takes first what costs least: the fast link inside a node, then a forward of "
    "attention, then ranks on other nodes. Of the schemes of context parallelism it takes {choice}. How much "
    "memory a rank has it does not know: who has enough after a step can stop there."
)
_CHOICES = {
    True: "the one whose layer is shortest, forward and backward, at these rates",
    False: "the ring that divides the work of the mask most evenly, as no rates tell more",
}


def build_long_context(request: LongContextRequest) -> LongContextPlan:
    """Raises UsageError for what cannot be planned, or not by any scheme."""
    sizes, machines = settled(request)
    tried = candidates(sizes, splits(request))
    schemes = [_scheme(one, sizes, request.element_bytes, machines) for one in tried]
    if not any(one.is_possible for one in schemes):
        raise UsageError(f"no scheme can be built: {_all_failures(schemes)}")
    steps, recommended = recommend(schemes, sizes, machines)
    plan = LongContextPlan(
        tool=ContextTool("sp-profiler", __version__),
        sizes=sizes,
        machine=None if machines is None else plain_machines(machines),
        assumptions=_assumptions(machines),
        single_device_bytes_per_layer=_single_device(request, sizes),
        schemes=schemes,
        recommendation=steps,
        recommended=recommended,
        data_quality=list(_remarks(schemes, sizes, machines).entries),
    )
    _refuse_overflow(plan)
    return plan


def _assumptions(machines: Machines | None) -> list[str]:
    order = _ABOUT_ORDER.format(choice=_CHOICES[machines is not None])
    return [*_ABOUT_MEMORY, *_ABOUT_SENDING, *([] if machines is None else _ABOUT_TIME), order]


def _single_device(request: LongContextRequest, sizes: ContextSizes) -> int:
    """A layer on one device, scores kept: what everything else divides."""
    terms = saved_terms(layer_sizes(sizes, 1), scheme="none", element_bytes=request.element_bytes)
    return round(sum(terms.values()))


def _all_failures(schemes: list[ContextScheme]) -> str:
    texts = dict.fromkeys(failure.text for one in schemes for failure in one.failures)
    shown = list(texts)[:3]
    return "; ".join(shown) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")


def _scheme(
    one: Candidate, sizes: ContextSizes, element_bytes: int, machines: Machines | None
) -> ContextScheme:
    failed = failures(one, sizes)
    figures = _no_figures() if failed else _figures(Division(one, sizes, element_bytes), machines)
    return ContextScheme(
        label=one.label,
        scheme=one.kind,
        layout=one.layout,
        recompute=one.recompute,
        attention=one.attention,
        tp=one.tp,
        sequence_parallel=one.sequence_parallel,
        cp=one.cp,
        ulysses_ranks=one.ulysses,
        ring_ranks=one.ring,
        ranks=one.ranks,
        failures=failed,
        **figures,
    )


_FIGURES = (
    "tokens", "saved_bytes_per_layer", "saved_bytes", "saved_by_term", "decoder_saved_bytes_per_layer",
    "forward_wire_bytes", "backward_wire_bytes", "transfers", "ring", "forward", "backward",
)  # fmt: skip


def _no_figures() -> dict[str, Any]:
    """Of a scheme that cannot be built nothing is known."""
    return dict.fromkeys(_FIGURES)


def _figures(division: Division, machines: Machines | None) -> dict[str, Any]:
    sizes = division.sizes
    terms = saved_by_term(division)
    per_layer = sum(terms.values())
    sent = list(transfers(division.one, sizes, division.context, division.element_bytes, machines))
    times = None if machines is None else layer_times(division, machines)
    values = (
        sizes.seq_len // division.one.cp,
        per_layer,
        sizes.layers * per_layer,
        terms,
        decoder_bytes(division),
        wire_sum(sent, "forward"),
        wire_sum(sent, "backward"),
        sent,
        ring_figures(division, machines),
        None if times is None else times["forward"],
        None if times is None else times["backward"],
    )
    return dict(zip(_FIGURES, values, strict=True))


def plain_machines(machines: Machines) -> ContextMachine:
    """In the units people use."""
    across = machines.across
    return ContextMachine(
        name=across.name,
        tflops=across.flops_per_s / 1e12,
        efficiency=across.efficiency,
        across=_rates(across),
        inside=_rates(machines.inside),
        sources=[text for text in machines.sources if not text.startswith("memory bandwidth")],
    )


def _rates(machine: Machine) -> LinkRates:
    return LinkRates(
        bandwidth_gb_per_s=machine.bytes_per_s / 1e9,
        peer_bandwidth_gb_per_s=machine.bytes_per_s_among(2) / 1e9,
        step_latency_us=machine.step_latency_s * 1e6,
        launch_latency_us=machine.launch_latency_s * 1e6,
    )


def _remarks(schemes: list[ContextScheme], sizes: ContextSizes, machines: Machines | None) -> Ledger:
    ledger = Ledger()
    node = sizes.ranks_per_node
    if machines is None:
        text = "without --hardware, or --flops, --bandwidth and --latency, there are no times: they are null"
        ledger.add("no-rates", "note", text)
    elif machines.inside == machines.across and (most := max(one.ranks for one in schemes)) > node:
        ledger.add("one-link", "assumption", _one_link(machines, most, node))
    _about_tensor_ranks(ledger, sizes)
    failed = [one for one in schemes if not one.is_possible]
    if failed:
        text = "a scheme cannot be built at these sizes: its figures are null, its failures say why"
        ledger.add("scheme-not-possible", "note", text, count=len(failed))
    return ledger


def _about_tensor_ranks(ledger: Ledger, sizes: ContextSizes) -> None:
    node = sizes.ranks_per_node
    if not sizes.is_tp_given and sizes.tp > 1:
        text = f"without --tp, TP is over {sizes.tp} ranks: the most of a node of {node} that share the heads"
        ledger.add("tp-chosen", "assumption", text)
    if not sizes.is_tp_given and sizes.tp == 1:
        ledger.add(
            "no-tp", "note", f"no TP is planned: no part of a node of {node} ranks can share the heads"
        )
    if sizes.tp > node:
        text = f"TP over {sizes.tp} ranks is wider than a node of {node}: its collectives cross the network"
        ledger.add("tp-across-nodes", "note", text)


def _one_link(machines: Machines, most: int, node: int) -> str:
    hardware = machines.hardware
    if hardware is None or hardware.link is None:
        return (
            f"one bandwidth counts between all {most} ranks, also inside a node of {node}: --intra-bandwidth "
            "tells its own"
        )
    return (
        f"{hardware.name} puts all {most} ranks within reach of {hardware.link.kind}, but a node has {node}: "
        "with a network between nodes take a profile such as h100-ib, or give --bandwidth and --latency"
    )


def _refuse_overflow(plan: LongContextPlan) -> None:
    """Raises UsageError where a figure is beyond what tables and other readers hold."""
    if _largest(dataclasses.asdict(plan)) > MOST:
        raise UsageError(
            f"--seq-len {plan.sizes.seq_len} with these sizes makes figures beyond 2^63: plan a shorter one"
        )


def _largest(value: Any) -> int:
    if isinstance(value, dict):
        return max(map(_largest, value.values()), default=0)
    if isinstance(value, list):
        return max(map(_largest, value), default=0)
    return abs(value) if isinstance(value, int) else 0
