"""What every output shows of a plan of long context: sentences, steps and tables, from the same fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sp_profiler.planning.long_context.model import (
    ContextScheme,
    LayerTime,
    LinkRates,
    LongContextPlan,
    RingFigures,
)
from sp_profiler.planning.machines import GIVEN
from sp_profiler.report.format import counted, duration, listed, percent, sent, size
from sp_profiler.report.planned.shown import Shown, ShownStep
from sp_profiler.report.view_ranks import Listing

Column = tuple[str, str, str]
_MOST_NAMED = 4


def shown(plan: LongContextPlan) -> Shown:
    """Everything that is shown of a plan but its charts."""
    machine = plan.machine
    return Shown(
        title="Plan of long context",
        chips=[
            counted(plan.sizes.seq_len, "token"),
            counted(len(plan.schemes), "scheme"),
            *([] if machine is None else [machine.name]),
        ],
        settings=settings(plan),
        sentences=sentences(plan),
        listings=listings(plan),
        assumptions=plan.assumptions,
        machine=_machine(plan),
        sources=[] if machine is None else machine.sources,
        data_quality=plan.data_quality,
        tool=f"{plan.tool.name} {plan.tool.version}",
        steps=[ShownStep(step.title, step.reason, step.is_taken) for step in plan.recommendation],
        not_on_screen=frozenset({"context-transfers", "context-constraints"}),
        lines=_constraint_lines(plan),
    )


def _constraint_lines(plan: LongContextPlan) -> list[str]:
    """A heading, and a line for each scheme that cannot be built."""
    failed = [one for one in plan.schemes if not one.is_possible]
    if not failed:
        return []
    told = ("; ".join(failure.text for failure in one.failures) for one in failed)
    return [
        "What cannot be built",
        *(f"{one.label}: {text}." for one, text in zip(failed, told, strict=True)),
    ]


def settings(plan: LongContextPlan) -> str:
    """The sizes, in one line."""
    s = plan.sizes
    mask = "causal" if s.causal else "no mask"
    parts = [
        f"{s.seq_len} tokens", f"hidden {s.hidden}", counted(s.heads, "head"), counted(s.kv_heads, "KV head"),
        f"FFN {s.ffn}", counted(s.layers, "layer"), counted(s.micro_batch, "sequence"), s.dtype, mask,
        f"context parallelism over {s.cp}", f"TP over {s.tp}", f"{counted(s.ranks_per_node, 'rank')} a node",
    ]  # fmt: skip
    return ", ".join(parts)


def _machine(plan: LongContextPlan) -> str | None:
    one = plan.machine
    if one is None:
        return None
    links = f"between nodes {_link(one.across)}; inside a node {_link(one.inside)}"
    if one.across == one.inside:
        links = _link(one.across)
    return f"{one.name}: {one.tflops:g} TFLOP/s × {one.efficiency:g}; {links}"


def _link(rates: LinkRates) -> str:
    peer = ""
    if rates.peer_bandwidth_gb_per_s != rates.bandwidth_gb_per_s:
        peer = f" ({rates.peer_bandwidth_gb_per_s:g} to one rank)"
    launch = f"{rates.launch_latency_us:g} µs a launch and " if rates.launch_latency_us else ""
    return f"{rates.bandwidth_gb_per_s:g} GB/s{peer}, {launch}{rates.step_latency_us:g} µs a step"


def sentences(plan: LongContextPlan) -> list[str]:
    """What a person wants to know first: what to do, whether hops hide, what cannot be."""
    return [_what_to_do(plan), *_of_ring(plan), *_of_impossible(plan), *_of_rates(plan)]


def _what_to_do(plan: LongContextPlan) -> str:
    if plan.recommended is None:
        return "No scheme of these can be recommended."
    one = plan.schemes[plan.recommended]
    kept, whole = size(one.saved_bytes_per_layer), size(plan.single_device_bytes_per_layer)
    told = f"{one.label} over {counted(one.ranks, 'rank')} keeps {kept} of a layer on each"
    return f"{told[0].upper()}{told[1:]}, where one device would keep {whole}."


def plain_ring(plan: LongContextPlan) -> ContextScheme | None:
    """The ring over all context ranks without TP that the mask asks for: zigzag where it is causal."""
    layout = "zigzag" if plan.sizes.causal else "contiguous"
    rings = [one for one in plan.schemes if one.scheme == "ring" and one.is_possible and one.tp == 1]
    return next((one for one in rings if one.layout == layout), rings[0] if rings else None)


def _of_ring(plan: LongContextPlan) -> list[str]:
    one = plain_ring(plan)
    ring = None if one is None else one.ring
    if one is None or ring is None:
        return []
    told = (
        f"A {ring.layout} ring of {ring.ranks} ranks without TP sends {sent(ring.hop_bytes)} of K and V a "
        f"hop, {sent(one.forward_wire_bytes)} a layer in the {counted(ring.hops, 'hop')} of forward"
    )
    if ring.hop_ns is None:
        return [f"{told}."]
    told += f": {duration(ring.hop_transfer_ns)} a hop, {duration(ring.hop_ns)} with latency."
    return [told, _whether_hidden(plan, ring)]


def _whether_hidden(plan: LongContextPlan, ring: RingFigures) -> str:
    told = f"Attention of a whole block of {ring.block_tokens} tokens takes {duration(ring.block_ns)}"
    if ring.hop_ns is not None and ring.block_ns:
        told += f", a hop {percent(ring.hop_ns / ring.block_ns)} of it"
    without = "hidden" if ring.is_hidden_unmasked else "not hidden"
    if not plan.sizes.causal:
        return f"{told}: the hops are {without}.{_from_tokens(ring)}"
    masked = "hidden" if ring.is_hidden else "not hidden"
    return (
        f"{told}; of causal {ring.layout} {duration(ring.later_block_ns)}: the hops are {without} without a "
        f"mask, {masked} with it.{_from_tokens(ring)}"
    )


def _from_tokens(ring: RingFigures) -> str:
    hide = ring.to_hide
    if hide is None:
        return ""
    least = math.ceil(hide.with_latency_tokens)
    return f" Hops of forward hide from blocks of {least} tokens on, sequences of {hide.seq_len}."


def _of_impossible(plan: LongContextPlan) -> list[str]:
    failed = [one.label for one in plan.schemes if not one.is_possible]
    if not failed:
        return []
    more = len(failed) - _MOST_NAMED
    names = listed([*failed[:_MOST_NAMED], f"{more} more"] if more > 0 else failed)
    return [f"{names} cannot be built at these sizes."]


def _of_rates(plan: LongContextPlan) -> list[str]:
    if plan.machine is not None:
        return []
    return ["Without rates there are no times: give --hardware, or --flops, --bandwidth and --latency."]


def listings(plan: LongContextPlan) -> list[Listing]:
    """Memory, sent, ring steps, smallest blocks, time, constraints, transfers; those that hold anything."""
    made = (
        memory(plan), wire(plan), ring_steps(plan), smallest(plan), times(plan), constraints(plan),
        transfers(plan),
    )  # fmt: skip
    return [replace(one, first_dropped=()) for one in made if one.rows]


def _rows(schemes: Sequence[ContextScheme], *columns: Callable[[ContextScheme], Any]) -> list[list[Any]]:
    return [[one.label, *(column(one) for column in columns)] for one in schemes]


def memory(plan: LongContextPlan) -> Listing:
    """Saved for backward; of what cannot be built nothing."""
    head: list[Column] = [
        ("Scheme", "text", ""),
        ("Ranks", "int", ""),
        ("Tokens", "int", "a rank"),
        ("Layer", "bytes", "saved"),
        ("All layers", "bytes", "saved"),
        ("Decoder", "bytes", "a block"),
    ]
    rows = _rows(
        plan.schemes,
        lambda one: one.ranks,
        lambda one: one.tokens,
        lambda one: one.saved_bytes_per_layer,
        lambda one: one.saved_bytes,
        lambda one: one.decoder_saved_bytes_per_layer,
    )
    note = (
        "Layer: Korthikanti's GPT layer with dropout; scores kept in TP and TP + SP. Decoder: the shipped "
        "block with flash attention."
    )
    return Listing("context-memory", "Activations kept on one rank for backward", head, rows, note)


def _mega(count: int | None) -> float | None:
    return None if count is None else count / 1e6


def _ring(one: ContextScheme, name: str) -> Any:
    return None if one.ring is None else getattr(one.ring, name)


def wire(plan: LongContextPlan) -> Listing:
    """Bytes of one rank and layer, in each direction; hops of rings."""
    head: list[Column] = [
        ("Scheme", "text", ""),
        ("Forward", "number", "MB"),
        ("Backward", "number", "MB"),
        ("Hop", "number", "MB"),
        ("Hops", "int", "forward"),
        ("dK,dV hop", "number", "MB"),
        ("Hop", "ms", "ms"),
        ("Collective", "ms", "ms, longest"),
        ("Link", "text", ""),
    ]
    rows = _rows(
        plan.schemes,
        lambda one: _mega(one.forward_wire_bytes),
        lambda one: _mega(one.backward_wire_bytes),
        lambda one: _mega(_ring(one, "hop_bytes")),
        lambda one: _ring(one, "hops"),
        lambda one: _mega(_ring(one, "gradient_hop_bytes")),
        lambda one: _ring(one, "hop_ns"),
        _longest_collective,
        _link_of,
    )
    note = (
        "MB are 1e6 bytes, as in the rates of links. Link: inside a node or across nodes, of context "
        "parallelism, else of TP."
    )
    if plan.machine is None:
        head, rows = [*head[:-3], head[-1]], [[*row[:-3], row[-1]] for row in rows]
    return Listing("context-wire", "Sent by one rank in one layer", head, rows, note)


def _longest_collective(one: ContextScheme) -> int | None:
    times = [each.ns for each in one.transfers or () if each.op != "send_recv" and each.ns is not None]
    return max(times, default=None)


def _link_of(one: ContextScheme) -> str | None:
    if not one.transfers:
        return None
    sending = [each for each in one.transfers if each.op in ("send_recv", "all_to_all")] or one.transfers
    return ", ".join(dict.fromkeys(each.link for each in sending))


def ring_steps(plan: LongContextPlan) -> Listing:
    """A hop beside the attention of a block, on the slowest rank."""
    head: list[Column] = [
        ("Scheme", "text", ""),
        ("Block", "int", "tokens"),
        ("Transfer", "ms", "ms a hop"),
        ("Hop", "ms", "ms"),
        ("Attention", "ms", "no mask"),
        ("Own", "ms", "block"),
        ("Later", "ms", "block"),
        ("Hidden", "text", "hops"),
        ("Exposed", "ms", "forward"),
        ("Exposed", "ms", "backward"),
        ("Balance", "ratio", "%"),
    ]
    rings = [one for one in plan.schemes if one.ring is not None and one.ring.hop_ns is not None]
    rows = _rows(
        rings,
        *(
            lambda one, name=name: _ring(one, name)
            for name in (
                "block_tokens", "hop_transfer_ns", "hop_ns", "block_ns", "own_block_ns", "later_block_ns",
            )
        ),
        lambda one: f"{_ring(one, 'hidden_hops')} of {_ring(one, 'hops')}",
        lambda one: _ring(one, "exposed_ns"),
        lambda one: _ring(one, "backward_exposed_ns"),
        lambda one: _ring(one, "balance_ratio"),
    )  # fmt: skip
    note = (
        "Attention of one block, the maximum over ranks: without a mask, of the own block, of every later "
        "one. Balance: ideal time over that of the slowest ranks."
    )
    return Listing("context-ring-steps", "Ring steps: hop beside attention", head, rows, note)


def smallest(plan: LongContextPlan) -> Listing:
    """From which block and sequence on hops hide."""
    head: list[Column] = [
        ("Scheme", "text", ""),
        ("Block", "int", "no mask"),
        ("Block", "int", "this mask"),
        ("Block", "int", "and latency"),
        ("Sequence", "int", "forward"),
        ("Block", "int", "backward"),
        ("Sequence", "int", "backward"),
    ]
    rings = [one for one in plan.schemes if one.ring is not None and one.ring.to_hide is not None]
    tokens = ("unmasked_tokens", "tokens", "with_latency_tokens")
    rows = _rows(
        rings,
        *(lambda one, name=name: _least(one, name) for name in tokens),
        lambda one: _least(one, "seq_len"),
        lambda one: _least(one, "backward_with_latency_tokens"),
        lambda one: _least(one, "backward_seq_len"),
    )
    note = (
        "Tokens. The first two are Φe/(2β)·k/a and twice that with a causal mask (Liu et al. 2023), then "
        "with the link's latency, and the sequence these blocks make."
    )
    return Listing("context-smallest", "Smallest block and sequence that hide every hop", head, rows, note)


def _least(one: ContextScheme, name: str) -> int:
    """Whole tokens, up."""
    assert one.ring is not None
    return math.ceil(getattr(one.ring.to_hide, name))


def times(plan: LongContextPlan) -> Listing:
    """One layer, forward and backward together."""
    head: list[Column] = [
        ("Scheme", "text", ""),
        *((label, "ms", "ms") for label in ("Layer", "Forward", "GEMMs", "Attention", "Sending", "Hidden")),
        ("Exposed", "ms", "context"),
        ("Exposed", "ms", "TP, SP"),
    ]
    rows = [
        [
            one.label,
            one.forward.layer_ns + one.backward.layer_ns,
            one.forward.layer_ns,
            *(_both(one, name) for name in ("gemm_ns", "attention_ns", "comm_ns", "hidden_ns")),
            _both(one, "exposed_context_ns"),
            _both(one, "exposed_ns") - _both(one, "exposed_context_ns"),
        ]
        for one in plan.schemes
        if one.forward is not None and one.backward is not None
    ]
    name = ""
    if plan.machine is not None:
        name = " at the given rates" if plan.machine.name == GIVEN else f" on {plan.machine.name}"
    note = "Forward and backward of the slowest rank. Layer = GEMMs + attention + exposed."
    return Listing("context-times", f"Estimated time of one layer{name}", head, rows, note)


def _both(one: ContextScheme, name: str) -> int:
    passes: list[LayerTime] = [time for time in (one.forward, one.backward) if time is not None]
    return sum(getattr(time, name) for time in passes)


def constraints(plan: LongContextPlan) -> Listing:
    """Why schemes cannot be built."""
    rows = [[one.label, failure.text] for one in plan.schemes for failure in one.failures]
    head: list[Column] = [("Scheme", "text", ""), ("Constraint that fails", "text", "")]
    return Listing("context-constraints", "What cannot be built", head, rows, "")


def transfers(plan: LongContextPlan) -> Listing:
    """Every hop and collective."""
    head: list[Column] = [
        ("Scheme", "text", ""),
        ("Direction", "text", ""),
        ("What", "text", ""),
        ("Of", "text", ""),
        ("Ranks", "int", ""),
        ("Link", "text", ""),
        ("Count", "int", ""),
        ("Size", "number", "MB"),
        ("Sent", "number", "MB"),
        ("Each", "ms", "ms"),
        ("Hides under", "text", ""),
    ]
    rows = [
        [
            one.label, each.direction, each.op.replace("_", "-"), each.payload, each.ranks, each.link,
            each.count,
            each.bytes / 1e6, each.wire_bytes / 1e6, each.ns, each.hides_under or "nothing",
        ]
        for one in plan.schemes
        for each in one.transfers or ()
    ]  # fmt: skip
    return Listing("context-transfers", "Hops and collectives of one layer", head, rows, "MB are 1e6 bytes.")
