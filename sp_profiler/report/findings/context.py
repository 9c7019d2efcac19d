"""What context parallelism says: uneven work, hops too long for their block, hops that wait for nothing.

Verdicts on bandwidth are of devices only; of CPU runs the findings speak of structure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sp_profiler.report.context import Family, copy_sums, exposure, families, larger, middle
from sp_profiler.report.findings import context_work
from sp_profiler.report.findings.context_work import OF_EXPOSED, OF_TIME, ON_CPU, is_worth, where
from sp_profiler.report.findings.facts import EXAMPLES, Facts, finding
from sp_profiler.report.format import duration, listed, percent
from sp_profiler.report.model import Finding

HOPS = ("kv", "dkv")
"""Purposes of the collectives that are hops of a ring."""


def findings(facts: Facts) -> list[Finding]:
    """Of each kind of scheme what its rules find. None where no context parallelism was found."""
    kinds = families(facts.context_parallel)
    return [one for family in kinds for rule in RULES if (one := rule(facts, family)) is not None]


def _hops_too_long(facts: Facts, family: Family) -> Finding | None:
    """Hops that outlast the block they run under: how many tokens a rank would need."""
    if facts.is_cpu or not family.is_ring:
        return None
    found = [one for phase in ("forward", "backward") if (one := _too_long(facts, family, phase)) is not None]
    if not found:
        return None
    phase, told = max(found, key=lambda one: one[1]["communication_ns"])
    transfer, attention = told["transfer_ns"], told["attention_ns"]
    text = (
        f"Hops outlast the attention they run under: a {phase} hop takes {duration(transfer)}, the block "
        f"beside it {duration(attention)}; {facts.mean(told['communication_ns'])} stay exposed for it."
    )
    more = f"{transfer / attention:.2f} times as many tokens per rank"
    if "tokens_per_rank_to_hide" in told:
        more += f" ({told['tokens_per_rank_to_hide']:,} instead of {told['tokens_per_rank']:,})".replace(
            ",", "\u202f"
        )
    fewer = ["a longer sequence or fewer ranks in the ring"]
    if family.first.scheme != "usp":
        fewer.append("Ulysses inside the node with the ring across nodes")
    if _keeps_every_head(facts):
        fewer.append("fewer key/value heads")
    advice = f"They hide from {more} on, with all else equal: {', or '.join(fewer)}."
    return finding("ring-hops-outlast-attention", "advice", text, where(family) | told, advice)


def _too_long(facts: Facts, family: Family, phase: str) -> tuple[str, dict[str, Any]] | None:
    sums = [s for s in family.hop_sums if (s.way, s.phase) == ("hop", phase) and s.larger is not None]
    outlast = [s for s in sums if s.larger == "transfer" and s.attention_ns]
    whole = exposure(hop for s in sums for hop in s.hops)
    transfer, attention = middle(s.transfer_ns for s in sums), middle(s.attention_ns for s in sums)
    runs_under = any(hop.hidden_ns for s in sums for hop in s.hops)  # else being synchronous is the reason
    if len(outlast) * 2 <= len(sums) or not attention or not transfer or not runs_under:
        return None
    if larger(transfer, attention) != "transfer" or not is_worth(facts, whole.communication_ns, whole):
        return None
    told: dict[str, Any] = {
        "phase": phase,
        "transfer_ns": transfer,
        "attention_ns": attention,
        "communication_ns": whole.communication_ns,
        "hops_that_outlast": len(outlast),
        "hops": len(sums),
    }
    size = middle(s.bytes for s in sums)
    told |= {"hop_bytes": size} if size is not None else {}
    return phase, told | _tokens(facts, family, transfer / attention)


def _tokens(facts: Facts, family: Family, times: float) -> dict[str, int]:
    """Tokens per rank now and from which on hops hide, where run.json tells the sequence's length.

    Attention of a block grows with the square of its tokens, a hop with them: `theory.ring.tokens_to_hide`
    of the rates that were measured is the tokens of now times transfer / attention.
    """
    length, ranks = (facts.workload or {}).get("seq_len"), len(family.first.ranks)
    if not isinstance(length, int) or not ranks or length % ranks:
        return {}
    tokens = length // ranks
    return {"tokens_per_rank": tokens, "tokens_per_rank_to_hide": math.ceil(tokens * times)}


def _keeps_every_head(facts: Facts) -> bool:
    """Whether every head is known to have keys and values of its own."""
    workload = facts.workload or {}
    heads = workload.get("heads")
    return isinstance(heads, int) and workload.get("kv_heads") == heads


def waits_are_divided(facts: Facts) -> bool:
    """Whether of a ring's hops it is known what their waits are: imbalance or lateness from outside."""
    hops = [hop for family in families(facts.context_parallel) for hop in family.by_way.get("hop", ())]
    return any(hop.skew_ns is not None for hop in hops)


def hops_outlast(facts: Facts) -> bool:
    """Whether `_hops_too_long` tells of a ring's hops."""
    return any(_hops_too_long(facts, family) for family in families(facts.context_parallel))


def hops_in_turn(facts: Facts) -> bool:
    """Whether `_synchronous` tells of a ring's hops, so that no other rule needs to."""
    return any(_hideable_in_turn(facts, family) for family in families(facts.context_parallel))


def _hideable_in_turn(facts: Facts, family: Family) -> int:
    """What could be hidden of synchronous hops of which nothing is; 0 where that is not what they are.

    Of each hop the shorter of it and its partner where that is known, else by the medians of its passes.
    """
    hops = family.by_way.get("hop", ())
    if not hops or any(hop.hidden_ns for hop in hops):
        return 0
    mine = facts.kinds.where(lambda kind: kind.purpose in HOPS)
    if mine.count(lambda kind: kind.is_async is True):
        return 0  # launched asynchronously: something else keeps them apart, and other findings tell
    groups = frozenset(hop.group for hop in hops)
    if exact := mine.where(lambda kind: kind.group in groups).total("hideable_ns"):
        return exact
    known = [(hop, hop.transfer_ns or hop.dur_ns, hop.attention_ns or 0) for hop in hops]
    return sum(min(hop_ns, block_ns) * hop.passes for hop, hop_ns, block_ns in known)


def _synchronous(facts: Facts, family: Family) -> Finding | None:
    """Hops of which nothing is hidden although a block could run meanwhile."""
    hideable = _hideable_in_turn(facts, family)
    if not hideable:
        return None
    hops = family.by_way["hop"]
    is_told = (facts.workload or {}).get("comm") == "sync"
    evidence = {
        "hops": sum(hop.passes for hop in hops),
        "hidden_ns": 0,
        "hideable_ns": hideable,
        "exposed_ns": exposure(hops).exposed_ns,
    }
    evidence |= {"workload_comm": "sync"} if is_told else {}
    option = " (--comm async)" if is_told else ""
    return finding(
        "ring-synchronous",
        "advice",
        "Nothing of the ring's hops is hidden: each is waited for before the next block is computed, "
        f"although {facts.mean(hideable)} could run under attention.",
        where(family) | evidence,
        f"Launch each hop before the block in hand is computed and wait after it{option}."
        + (ON_CPU if facts.is_cpu else ""),
    )


def _waits(facts: Facts, family: Family) -> Finding | None:
    """Ranks that wait in hops for peers that came late, though not for their attention's sake."""
    hops = family.by_way.get("hop", ())
    whole = exposure(hops)
    if facts.is_cpu or not is_worth(facts, whole.skew_ns, whole):
        return None
    by_source: dict[int, int] = {}
    for hop in hops:
        if hop.source is not None and hop.skew_ns:
            by_source[hop.source] = by_source.get(hop.source, 0) + hop.skew_ns
    if not by_source:
        return None
    rank, most = max(by_source.items(), key=lambda pair: (pair[1], -pair[0]))
    evidence = {
        "skew_ns": whole.skew_ns,
        "of_exposed": round(whole.skew_ns / whole.exposed_ns, 4),
        "waited_for": {str(one): ns for one, ns in sorted(by_source.items(), key=lambda p: -p[1])[:EXAMPLES]},
        "waited_most_for_rank": rank,
    }
    share = percent(whole.skew_ns / whole.exposed_ns)
    return finding(
        "ring-late-from-outside",
        "advice",
        f"{facts.mean(whole.skew_ns)} ({share} of the exposed time of hops) wait for a rank that comes "
        f"late into the ring, not for its share of attention; {facts.mean(most)} of it for rank {rank}.",
        where(family) | evidence,
        f"Look at what rank {rank} does before attention: uneven work outside of it, the host, a slower "
        "device. Another layout of the sequence cannot cure it.",
    )


def _gathered(facts: Facts, family: Family) -> Finding | None:
    """Keys and values that are gathered before attention begins."""
    whole = family.exposure("forward")
    moved_ns = whole.communication_ns + whole.unknown_ns  # a wait for a peer no other way would shorten
    if facts.is_cpu or family.first.scheme != "all-gather" or not moved_ns:
        return None
    if facts.share_of_time(moved_ns) < OF_TIME * 5:
        return None
    evidence = {
        "exposed_without_waits_ns": moved_ns,
        "exposed_ns": whole.exposed_ns,
        "hidden_ns": whole.hidden_ns,
    }
    hidden = f"{percent(whole.hidden_ratio) if whole.hidden_ns else 'nothing'} of it is hidden"
    return finding(
        "gathered-keys-exposed",
        "info",
        f"Keys and values are gathered before attention needs them: {facts.mean(moved_ns)} stay exposed in "
        f"forward, waits not counted; {hidden}.",
        where(family) | evidence,
        "Gather by slices of heads while the slice before computes, or send blocks around a ring under "
        "attention; with grouped key/value heads the gather is short, and a few ranks are cheapest as they "
        "are.",
    )


def _copies(facts: Facts, family: Family) -> Finding | None:
    """Layout copies that take a good part of what the all-to-alls take."""
    sums = copy_sums(family)
    copy_ns, comm_ns = sum(one.copy_ns for one in sums), sum(one.comm_ns for one in sums)
    if facts.is_cpu or not comm_ns or copy_ns < OF_EXPOSED * comm_ns or facts.share_of_time(copy_ns) < 0.01:
        return None
    evidence = {
        "copies": sum(one.copies for one in sums),
        "copy_ns": copy_ns,
        "all_to_alls": sum(one.all_to_alls for one in sums),
        "comm_ns": comm_ns,
        "phases": listed([one.phase for one in sums]),
    }
    return finding(
        "layout-copies",
        "info",
        f"Copies that bring heads and tokens into the order of the all-to-alls take {facts.mean(copy_ns)}, "
        f"{percent(copy_ns / comm_ns)} of what the all-to-alls take.",
        where(family) | evidence,
        "Let the projections write in the order that is sent (head groups outermost), and exchange q, k "
        "and v in one buffer: fewer, larger copies.",
    )


RULES: tuple[Callable[[Facts, Family], Finding | None], ...] = (
    *context_work.RULES,
    _hops_too_long,
    _synchronous,
    _waits,
    _gathered,
    _copies,
)
