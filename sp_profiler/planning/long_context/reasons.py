"""The recommendation's sentences: every figure in them is a field of the plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sp_profiler.planning.long_context.figures import blocks_that_hide
from sp_profiler.planning.long_context.links import Group, collective_time
from sp_profiler.planning.long_context.model import ContextScheme, ContextSizes, RingFigures
from sp_profiler.planning.long_context.request import ELEMENT_BYTES
from sp_profiler.planning.long_context.schemes import Candidate, failures
from sp_profiler.planning.machines import Machines
from sp_profiler.report.format import counted, duration, listed, percent, sent, size
from sp_profiler.theory.ring import RingSizes


def of_tensor(
    schemes: Sequence[ContextScheme],
    sizes: ContextSizes,
    machines: Machines | None,
    tensor: int | None,
    both: int | None,
    single_bytes: int,
) -> str:
    """Why TP + SP comes first, or why it cannot."""
    if both is None:
        return _without_tensor(schemes, sizes)
    one = schemes[both]
    assert one.saved_bytes_per_layer is not None
    kept = one.saved_bytes_per_layer
    told = [f"A layer keeps {size(kept)} instead of {size(single_bytes)} on one device"]
    if tensor is not None and schemes[tensor].saved_bytes_per_layer:
        alone = schemes[tensor].saved_bytes_per_layer or 0
        told[0] += (
            f" and {size(alone)} with TP alone ({percent(1 - kept / alone)} less): SP divides the norms, "
        )
        told[0] += "dropouts and inputs that TP leaves whole"
        more = _sent(one) / _sent(schemes[tensor]) - 1
        told.append(
            "It sends in forward what TP sends, an all-reduce being a reduce-scatter and an all-gather, and "
            f"{percent(more)} more in all for inputs that backward gathers again"
        )
    told += _tensor_times(one, machines)
    return _sentences(told)


def _without_tensor(schemes: Sequence[ContextScheme], sizes: ContextSizes) -> str:
    failed = [one for one in schemes if one.scheme == "sp" and one.failures]
    if failed:
        return _sentences([failure.text for failure in failed[0].failures])
    why = (
        "--tp 1 divides nothing inside a node"
        if sizes.is_tp_given
        else (
            f"No number of ranks in a node of {sizes.ranks_per_node} divides "
            f"{counted(sizes.heads, 'head')} and {counted(sizes.kv_heads, 'key/value head')}"
        )
    )
    return f"{why}."


def _sent(one: ContextScheme) -> int:
    return (one.forward_wire_bytes or 0) + (one.backward_wire_bytes or 0)


def _tensor_times(one: ContextScheme, machines: Machines | None) -> Iterator[str]:
    if machines is None or one.transfers is None:
        return
    comm, exposed = sums(one, "comm_ns"), sums(one, "exposed_ns")
    inside = all(each.link == "inside" for each in one.transfers)
    where = "inside the node" if inside else "between nodes, which is not free"
    told = f"Its collectives take {duration(comm)} a layer {where}, {duration(exposed)} of it exposed"
    if inside and machines.inside != machines.across:
        told += f"; over the link between nodes they would take {duration(_across_ns(one, machines))}"
    yield told


def _across_ns(one: ContextScheme, machines: Machines) -> int:
    """The same collectives, were the ranks of TP in different nodes."""
    group = Group(one.tp, 1, one.tp)
    seconds = sum(
        each.count * collective_time(each.op, each.bytes, group, 1, machines).seconds
        for each in one.transfers or ()
    )
    return round(seconds * 1e9)


def sums(one: ContextScheme, name: str) -> int:
    """Of forward and backward."""
    return sum(getattr(time, name) for time in (one.forward, one.backward) if time is not None)


def of_recompute(sizes: ContextSizes, before: int, after: int, one: ContextScheme | None) -> str:
    """What recomputing the attention core gives up and costs."""
    # Softmax and its dropout in the plan's dtype, and a mask of one byte.
    of_score = 2 * ELEMENT_BYTES[sizes.dtype] + 1
    scores = f"{of_score * sizes.heads * sizes.seq_len / sizes.hidden:g}"
    told = [
        f"Scores, softmax and dropout of attention, {of_score}as/h = {scores} times sbh on one device, are "
        f"{percent(1 - after / before)} of what is kept. Made again in backward, a layer keeps {size(after)} "
        f"instead of {size(before)}"
    ]
    if one is not None and one.forward is not None:
        again, layer = one.forward.attention_ns, sums(one, "layer_ns")
        told.append(f"It costs one more forward of attention, {duration(again)} of {duration(layer)} a layer")
    told.append(
        "A flash kernel keeps no scores in the first place and makes them again inside backward: with one, "
        "there is nothing to switch on"
    )
    return _sentences(told)


def of_no_context(schemes: Sequence[ContextScheme]) -> str:
    """Why no scheme of context parallelism can be built."""
    texts = dict.fromkeys(failure.text for one in schemes if one.cp > 1 for failure in one.failures)
    return _sentences(list(texts)[:4])


def of_context(
    schemes: Sequence[ContextScheme], sizes: ContextSizes, chosen: int, others: Sequence[int]
) -> str:
    """Why this scheme of context parallelism, and what the others lose."""
    one = schemes[chosen]
    kept = size(one.saved_bytes_per_layer)
    told = [f"Each rank has {one.tokens} of {sizes.seq_len} tokens and keeps {kept} a layer"]
    told += _of_chosen(one, sizes)
    if one.forward is not None:
        told += _beside(one, [schemes[place] for place in others])
    told += _failed(schemes, one)
    return _sentences(told)


def _of_chosen(one: ContextScheme, sizes: ContextSizes) -> Iterator[str]:
    if one.ulysses_ranks > 1:
        exchanged = next(each for each in one.transfers or () if each.op == "all_to_all")
        where = {"inside": " of a node", "across": ", across nodes"}[exchanged.link]
        yield f"Ulysses exchanges heads for tokens over {one.ulysses_ranks} ranks{where}"
    if one.ring is not None:
        yield _ring_sentence(one.ring, sizes)
    if one.forward is None and sizes.causal and one.layout == "zigzag":
        yield "Without rates it is chosen for its even division of a causal mask"
    elif one.forward is None and one.ring is not None:
        yield "Without rates it is chosen because what a ring sends can hide under attention"


def _ring_sentence(ring: RingFigures, sizes: ContextSizes) -> str:
    told = f"Each of {counted(ring.hops, 'hop')} of the ring brings {sent(ring.hop_bytes)}"
    if ring.hop_ns is None:
        return told
    told += f" in {duration(ring.hop_ns)}, beside {duration(ring.later_block_ns)} of attention"
    if sizes.causal:
        told += f" (without a mask {duration(ring.block_ns)})"
    if ring.is_hidden:
        return told + (
            ": hidden" if ring.is_backward_hidden else ": hidden in forward, not wholly in backward"
        )
    told += f": not hidden, {duration(ring.exposed_ns)} of forward exposed"
    return told + ("; without a mask it would be hidden" if sizes.causal and ring.is_hidden_unmasked else "")


def _beside(one: ContextScheme, others: Sequence[ContextScheme]) -> Iterator[str]:
    layer, exposed = sums(one, "layer_ns"), sums(one, "exposed_context_ns")
    told = f"A layer takes {duration(layer)}, {duration(exposed)} of it exposed for context parallelism"
    if others:
        next_best = [f"{other.label} {duration(sums(other, 'layer_ns'))}" for other in others[:3]]
        told += f"; next come {listed(next_best)}"
    yield told
    rings = (other.ring for other in others if other.scheme == "ring" and other.layout == "contiguous")
    uneven = next(rings, None)
    if uneven is not None and uneven.balance_ratio < 1:
        yield (
            "A contiguous ring waits for its last rank, which has a block in every step: "
            f"{percent(uneven.balance_ratio)} of the ranks' time is work"
        )


def _failed(schemes: Sequence[ContextScheme], one: ContextScheme) -> Iterator[str]:
    failed = [other for other in schemes if other.cp > 1 and other.tp == one.tp and other.failures]
    if failed:
        yield f"Not possible: {listed([other.label for other in failed])}"


def of_hops(one: ContextScheme, sizes: ContextSizes, machines: Machines | None) -> str:
    """What would hide them; without rates, at which rates they do."""
    ring = one.ring
    assert ring is not None
    hide = ring.to_hide
    if hide is None:
        return _sentences([_rates_that_hide(ring, sizes)])
    forward, backward = math.ceil(hide.with_latency_tokens), math.ceil(hide.backward_with_latency_tokens)
    sequence = max(hide.seq_len, hide.backward_seq_len)
    told = [
        f"A block of {one.label} has {ring.block_tokens} tokens. Every hop of forward hides from {forward} "
        f"on, of backward from {backward} on: a sequence of {sequence} tokens over {one.cp} ranks"
    ]
    if machines is not None:
        told += _fewer_ranks(one, ring, sizes, machines)
        told += _fewer_heads(one, ring, sizes, machines)
    return _sentences(told)


def _rates_that_hide(ring: RingFigures, sizes: ContextSizes) -> str:
    """Liu et al.'s condition the other way round: Phi/beta <= 2c/e a/k, with a causal mask half of it."""
    flops_per_byte = ring.block_flops / ring.hop_bytes / (2 if sizes.causal else 1)
    return (
        f"Hops of forward hide where the device's FLOP/s over the link's bytes/s is at most "
        f"{flops_per_byte:.0f}: give --hardware, or --flops, --bandwidth and --latency, to know"
    )


def _fewer_ranks(
    one: ContextScheme, ring: RingFigures, sizes: ContextSizes, machines: Machines
) -> Iterator[str]:
    """The most ranks that can divide this sequence into blocks whose hops hide, over the same link."""
    for ranks in range(ring.ranks - 1, 1, -1):
        fewer = Candidate(
            one.scheme,
            one.tp,
            one.sequence_parallel,
            layout=ring.layout,
            ulysses=one.ulysses_ranks,
            ring=ranks,
        )
        if failures(fewer, sizes):
            continue
        if _smallest_block(one, ring, sizes, machines, ranks, sizes.kv_heads) <= sizes.seq_len / ranks:
            yield f"This sequence hides them with rings of at most {ranks} ranks instead of {ring.ranks}"
            return


def _fewer_heads(
    one: ContextScheme, ring: RingFigures, sizes: ContextSizes, machines: Machines
) -> Iterator[str]:
    """Grouped keys and values send less, attention computes the same; TP and Ulysses must share them too."""
    shared = one.tp * one.ulysses_ranks
    fewer = [k for k in range(sizes.kv_heads - 1, 0, -1) if sizes.heads % k == 0 and k % shared == 0]
    for kv_heads in fewer:
        if _smallest_block(one, ring, sizes, machines, ring.ranks, kv_heads) <= ring.block_tokens:
            yield f"With {kv_heads} key/value heads instead of {sizes.kv_heads} they hide as it is"
            return


def _smallest_block(
    one: ContextScheme, ring: RingFigures, sizes: ContextSizes, machines: Machines, ranks: int, kv_heads: int
) -> float:
    """Tokens from which on all hops of both passes hide, with so many ring ranks and key/value heads."""
    shared = one.tp * one.ulysses_ranks
    of_ring = RingSizes(
        seq_len=ranks,  # any that they divide: it is blocks that are asked for
        ranks=ranks,
        micro_batch=sizes.micro_batch,
        heads=sizes.heads // shared,
        kv_heads=kv_heads // shared,
        head_dim=sizes.head_dim,
        element_bytes=ELEMENT_BYTES[sizes.dtype],
    )
    link = Group(ring.ranks, shared, one.ranks).where(sizes.ranks_per_node)
    machine = machines.inside if link == "inside" else machines.across
    return max(blocks_that_hide(of_ring, ring.layout, causal=sizes.causal, machine=machine))


def _sentences(parts: Sequence[str]) -> str:
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts)
