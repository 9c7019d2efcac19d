"""What memory says: allocations that failed, what could be freed for what, what no closed form explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from sp_profiler.analysis.memory.results import Memory, Opportunity
from sp_profiler.report.findings.facts import EXAMPLES, Facts, finding
from sp_profiler.report.format import counted, duration, listed, percent, size, visible
from sp_profiler.report.memory_sentences import OPPORTUNITY_NAMES, device_name
from sp_profiler.report.model import Finding
from sp_profiler.report.out_of_memory import failed, oom_sentences

_WORTH = 0.01  # of all that is kept for backward: an opportunity that frees less is in the table alone


def findings(facts: Facts) -> list[Finding]:
    """One for each opportunity, and what the other rules find. None without a memory section."""
    memory = facts.memory
    if memory is None:
        return []
    kept = max(memory.saved_bytes or 0, memory.across_border_bytes or 0)
    worth = [one for one in memory.opportunities if one.freed_bytes >= _WORTH * kept]
    found = [_opportunity(facts, one) for one in worth]
    return [*found, *(one for rule in RULES if (one := rule(facts, memory)) is not None)]


def _opportunity(facts: Facts, one: Opportunity) -> Finding:
    """What giving a kind of buffer up would free, what it would send, and whether that could be hidden."""
    name = OPPORTUNITY_NAMES.get(one.kind, visible(one.kind))
    layers = counted(one.layers, "layer")
    text = f"{name} ({layers}) hold {size(one.bytes)} from forward to backward"
    share = f" ({percent(one.freed_bytes / one.bytes)})" if one.bytes else ""
    text += f"; {size(one.freed_bytes)} of it{share} could be freed. {_cost(facts, one)}"
    told: dict[str, Any] = {
        "kind": one.kind,
        "bytes": one.bytes,
        "layers": one.layers,
        "freed_bytes": one.freed_bytes,
        "added_comm_bytes": one.added_comm_bytes,
        "added_comm_ns": one.added_comm_ns,
        "hideable_ns": one.hideable_ns,
        "would_be_exposed_ns": one.would_be_exposed_ns,
    }
    evidence = {key: value for key, value in told.items() if value is not None}
    advice = f"If memory is short: {one.how}."
    return finding(f"memory-{one.kind}", "info", text, evidence, advice)


def _cost(facts: Facts, one: Opportunity) -> str:
    """The communication that it adds, in bytes and where it was measured in time."""
    if one.added_comm_bytes is None:
        return "What it would send more is not known."
    if not one.added_comm_bytes:
        return "It would send nothing more."
    text = f"It would send {size(one.added_comm_bytes)} more per step and rank"
    if one.added_comm_ns is None:
        why = "CPU runs tell nothing of speed" if facts.is_cpu else "this run has no collective of that size"
        return f"{text}; what that takes is not known: {why}."
    text += f", {duration(one.added_comm_ns)} at this run's own speed"
    if one.would_be_exposed_ns is None:
        return f"{text}; how much of it could be hidden is not known."
    if not one.would_be_exposed_ns:
        return f"{text}, all of which fits under the dgrad GEMMs."
    if not one.hideable_ns:
        return f"{text}, all of it exposed."
    hidden, left = duration(one.hideable_ns), duration(one.would_be_exposed_ns)
    return f"{text}: {hidden} fit under the dgrad GEMMs, {left} would be exposed."


def _beside_theory(facts: Facts, memory: Memory) -> Finding | None:
    """Terms in which the hooks counted other bytes than the closed form says."""
    for saved in memory.saved:
        differ = [
            term
            for term in saved.terms
            if term.layer is None and term.theory_bytes is not None and term.bytes != term.theory_bytes
        ]
        if not differ or saved.theory_bytes is None:
            continue
        evidence = {
            "rank": saved.rank if saved.rank is not None else "unknown",
            "saved_bytes": saved.saved_bytes,
            "theory_bytes": saved.theory_bytes,
            "terms": [
                {"term": term.term, "bytes": term.bytes, "theory_bytes": term.theory_bytes} for term in differ
            ],
        }
        named = listed([visible(term.term) for term in differ[:EXAMPLES]])
        return finding(
            "saved-differs-from-theory",
            "warning",
            f"What the workload saves for backward is {size(abs(saved.saved_bytes - saved.theory_bytes))} "
            f"off its closed form: other bytes in {named}.",
            evidence,
            "Look at these modules' saved tensors in the table by module and operator: the schedule that ran "
            "is not the one that the closed form is of.",
        )
    return None


def _hidden(facts: Facts, memory: Memory) -> Finding | None:
    """What lives at the end of forward although nothing saved it: kept on ctx by hand, or by a reference."""
    with_hidden = [saved for saved in memory.saved if saved.hidden_bytes]
    if not with_hidden:
        return None
    most = max(with_hidden, key=lambda saved: saved.hidden_bytes or 0)
    blocks = sorted(most.hidden, key=lambda block: -block.bytes)
    evidence = {
        "rank": most.rank if most.rank is not None else "unknown",
        "hidden_bytes": most.hidden_bytes,
        "tensors": [
            {
                key: value
                for key, value in (("bytes", b.bytes), ("module", b.module), ("operator", b.operator))
                if value is not None
            }
            for b in blocks[:EXAMPLES]
        ]
        or "not named",
    }
    return finding(
        "kept-past-the-hooks",
        "warning",
        f"{size(most.hidden_bytes)} live at the end of forward although no operator saved them"
        f"{_where(blocks[0].module) if blocks else ''}.",
        evidence,
        "Use ctx.save_for_backward instead of attributes of ctx, and drop references to what is not needed.",
    )


def _where(module: str | None) -> str:
    return f", most in {visible(module)}" if module else ""


def _grows(facts: Facts, memory: Memory) -> Finding | None:
    """More is kept from every step to the next: graphs that nobody lets go."""
    for one in memory.ranks:
        borders = [border for border in one.borders if border.step is not None]
        if not _rises([border.bytes for border in borders]):
            continue
        return finding(
            "kept-grows",
            "warning",
            f"What {device_name(one)} keeps from forward to backward grows from step to step: "
            f"{size(borders[0].bytes)} to {size(borders[-1].bytes)} over {len(borders)} steps.",
            {"borders": [{"step": border.step, "bytes": border.bytes} for border in borders]},
            "Look for graphs that are kept alive: losses added up without .detach(), hooks, caches.",
        )
    return None


def _rises(sizes: Sequence[int]) -> bool:
    """Whether at least three sizes, each larger than the one before by more than a thousandth."""
    return len(sizes) > 2 and all(two > one * 1.001 for one, two in pairwise(sizes))


def _out_of_memory(facts: Facts, memory: Memory) -> Finding | None:
    """An allocation that failed: who held the memory, and why the request did not fit."""
    devices = failed(memory)
    if not devices:
        return None
    one, oom = devices[0]
    first, *more = oom_sentences(memory)
    told = {
        "rank": one.rank,
        "device": one.device,
        "time_ns": oom.time_ns,
        "asked_bytes": oom.asked_bytes,
        "device_free_bytes": oom.device_free_bytes,
        "allocated_bytes": oom.allocated_bytes,
        "reserved_unused_bytes": oom.reserved_unused_bytes,
        "failed_on_devices": len(devices),
    }
    evidence = {key: value for key, value in told.items() if value is not None}
    advice = " ".join(more) or "Look at what was alive then, in the blocks at the peak."
    return finding("out-of-memory", "warning", first, evidence, advice)


RULES: tuple[Callable[[Facts, Memory], Finding | None], ...] = (
    _out_of_memory,
    _beside_theory,
    _hidden,
    _grows,
)
