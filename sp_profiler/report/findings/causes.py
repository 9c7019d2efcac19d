"""Why communication stays exposed, one rule for each cause that is worth naming, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.report.findings.facts import EXAMPLES, Facts, finding, is_on, is_told, place_of, variable
from sp_profiler.report.format import listed, percent, rank_list
from sp_profiler.report.model import Finding
from sp_profiler.report.sentences import collectives_on_ranks, op_name

_OF_EXPOSED = 0.05  # a cause is worth naming from this part of the exposed time on ...
_OF_TIME = 0.002  # ... and of all time


def _of_cause(facts: Facts, cause: str) -> list[tuple[int, CollectiveFigures]]:
    """The collectives with a part of this cause, largest part first; none where the cause is not worth it."""
    parts = [(ns, c) for c in facts.between_ranks if (ns := (c.exposed_by_cause_ns or {}).get(cause, 0))]
    whole = sum(ns for ns, _ in parts)
    exposed = facts.totals.exposed_ns or 0
    if not whole or whole < _OF_EXPOSED * exposed or facts.share_of_time(whole) < _OF_TIME:
        return []
    return sorted(parts, key=lambda part: (-part[0], part[1].id))


def _evidence(facts: Facts, parts: Sequence[tuple[int, CollectiveFigures]], **more: Any) -> dict[str, Any]:
    """Numbers, and the collectives in which to look for them."""
    whole = sum(ns for ns, _ in parts)
    told: dict[str, Any] = {
        "exposed_ns": whole,
        "of_exposed": round(whole / facts.totals.exposed_ns, 4) if facts.totals.exposed_ns else 1.0,
        "collectives": len(parts),
        "ops": sorted({op_name(c.op) for _, c in parts}),
    }
    told |= {"ranks": ranks} if (ranks := sorted({c.rank for _, c in parts if c.rank is not None})) else {}
    told |= {"groups": groups} if (groups := sorted({c.group for _, c in parts if c.group})) else {}
    return told | more | {"examples": [place_of(c, exposed_ns=ns, **_times(c)) for ns, c in parts[:EXAMPLES]]}


def _times(c: CollectiveFigures) -> dict[str, Any]:
    """The instants that decided, as far as they are known."""
    told: dict[str, Any] = {"launch_ns": c.launch_ns, "skew_wait_ns": c.skew_wait_ns or None}
    if c.cause_evidence is not None:
        names = (
            "rule",
            "queued_behind",
            "wait_start_ns",
            "partner_launch_ns",
            "partner_start_ns",
            "partner_end_ns",
        )
        told |= {name: getattr(c.cause_evidence, name) for name in names}
    return told


def _subject(facts: Facts, parts: Sequence[tuple[int, CollectiveFigures]]) -> str:
    """ "3.1 ms per step (40 % of the exposed communication, 12 collectives)"."""
    whole = sum(ns for ns, _ in parts)
    share = percent(whole / facts.totals.exposed_ns) if facts.totals.exposed_ns else "all"
    told = collectives_on_ranks([c for _, c in parts])
    return f"{facts.mean(whole)} ({share} of the exposed communication, {told})"


def _peer_skew(facts: Facts) -> Finding | None:
    parts = _of_cause(facts, "peer-skew")
    if not parts:
        return None
    late = [one for one in facts.stragglers or () if one.cost_ns > 0]
    named, more, advice = "", {}, "Look at what the rank that arrives last does before these collectives"
    if late:
        worst = max(late, key=lambda one: one.cost_ns)
        named = f"; the others lost most to rank {worst.rank}"
        more = {"late_rank": worst.rank, "cost_of_late_rank_ns": worst.cost_ns}
        advice = f"Look at what rank {worst.rank} does before these collectives"
    return finding(
        "peer-skew",
        "advice",
        f"{_subject(facts, parts)} wait for a rank that arrives late{named}.",
        _evidence(facts, parts, **more),
        f"{advice}: uneven work, data loading, garbage collection, a slower device. Overlap cannot cure it.",
    )


_BUCKETS = (
    "Gradients are reduced in buckets: smaller ones (bucket_cap_mb) begin earlier and leave less for the end "
    "of backward; larger ones need fewer launches. Or wait later: reduce them once for several micro-batches "
    "(no_sync)."
)


_PREFETCH = (
    "Parameters are gathered layer by layer: gather the next layer's earlier (FSDP2 "
    "set_modules_to_forward_prefetch, FSDP1 forward_prefetch and limit_all_gathers, ZeRO "
    "stage3_prefetch_bucket_size), keep them after forward (reshard_after_forward=False), or shard within a "
    "host only."
)


def _with_buckets(parts: Sequence[tuple[int, CollectiveFigures]], usual: str) -> str:
    """The usual advice, and what helps where data parallelism reduces gradients or gathers parameters."""
    gradients = [c.purpose == "param-grad" and c.is_async is not False for _, c in parts]
    gathers = [c.purpose == "param-gather" and c.is_async is not False for _, c in parts]
    data_parallel = [a or b for a, b in zip(gradients, gathers, strict=True)]
    told = [] if all(data_parallel) else [usual]
    told += [_BUCKETS] if any(gradients) else []
    return " ".join(told + ([_PREFETCH] if any(gathers) else []))


_SYNCHRONOUS_RULES = ("declared-synchronous", "on-compute-stream", "waited-at-once", "thread-idle")


def _is_synchronous(c: CollectiveFigures) -> bool:
    """Whether the trace says it, or what decided its cause."""
    by_rule = c.cause_evidence is not None and c.cause_evidence.rule in _SYNCHRONOUS_RULES
    return c.is_async is False or (c.is_async is None and by_rule)


def _synchronous_with_partner(facts: Facts) -> Finding | None:
    """Synchronous collectives whose partner is known: what launching them asynchronously would hide."""
    which = [
        c
        for c in facts.between_ranks
        if _is_synchronous(c) and c.hideable_ns and c.hideable_ns > (c.hidden_ns or 0)
    ]
    if not which:
        return None
    gain_ns = sum((c.hideable_ns or 0) - (c.hidden_ns or 0) for c in which)
    ops = sorted({op_name(c.op) for c in which})
    partners = sorted({c.partner.what for c in which if c.partner})
    evidence = {
        "collectives": len(which),
        "hideable_ns": sum(c.hideable_ns or 0 for c in which),
        "hidden_ns": sum(c.hidden_ns or 0 for c in which),
        "ops": ops,
        "groups": sorted({c.group for c in which if c.group}),
        "ranks": sorted({c.rank for c in which if c.rank is not None}),
        "longest_collective_ids": [c.id for c in sorted(which, key=lambda c: (-c.dur_ns, c.id))[:EXAMPLES]],
    }
    subject = collectives_on_ranks(which, "synchronous")
    under = " and ".join(partners) or "their partner GEMMs"
    could = f"up to {facts.mean_of(gain_ns)} of communication {facts.per} could run under {under}"
    ranks = evidence["ranks"]
    where = f", rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}" if ranks else ""
    text = f"{subject} ({', '.join(ops)}{where}) wait although {could}."
    if len(which) == 1:
        text = text.replace(" wait although", " waits although")
    advice = "Launch them asynchronously before the partner GEMM and wait after it"
    advice += " (--comm async)." if (facts.workload or {}).get("comm") == "sync" else "."
    if facts.is_cpu:
        advice += " On a CPU run this changes the structure, not the speed."
    return finding("synchronous-with-partner", "advice", text, evidence, advice)


def _synchronous_without_partner(facts: Facts) -> Finding | None:
    """Synchronous, and nothing in its own linear could hide it: only another schedule can."""
    parts = [(ns, c) for ns, c in _of_cause(facts, "synchronous") if c.partner is None]
    if sum(ns for ns, _ in parts) < _OF_EXPOSED * (facts.totals.exposed_ns or 0) or not parts:
        return None
    told, change = "are synchronous", "Launching them asynchronously"
    if all(c.is_async for _, c in parts):
        told, change = "are waited for as soon as they are launched", "Waiting later"
    return finding(
        "synchronous-without-partner",
        "info",
        f"{_subject(facts, parts)} {told}, and no GEMM of the same linear could hide them.",
        _evidence(facts, parts),
        _with_buckets(
            parts,
            f"{change} alone wins nothing: they need independent work, such as another micro-batch "
            "or a GEMM that is cut into chunks (asynchronous tensor parallelism, userbuffers).",
        ),
    )


def _launched_after(c: CollectiveFigures) -> bool:
    """Whether its partner had been launched, and had ended, before it began."""
    told = c.cause_evidence
    return (
        told is not None
        and told.partner_end_ns is not None
        and told.partner_launch_ns is not None
        and c.launch_ns is not None
        and told.partner_end_ns <= c.start_ns
        and told.partner_launch_ns < c.launch_ns
    )


def _launched_after_partner(facts: Facts) -> Finding | None:
    parts = [part for part in _of_cause(facts, "partner-too-short") if _launched_after(part[1])]
    parts += [part for part in _of_cause(facts, "no-partner") if _launched_after(part[1])]
    if not parts:
        return None
    return finding(
        "launched-after-partner",
        "advice",
        f"{_subject(facts, parts)} are launched only after the GEMMs that could hide them.",
        _evidence(facts, parts),
        "Launch the collective before its partner: in a custom autograd function compute dgrad first, "
        "launch, then compute wgrad. torch's own linear may run wgrad first.",
    )


def _partner_too_short(facts: Facts) -> Finding | None:
    parts = [part for part in _of_cause(facts, "partner-too-short") if not _launched_after(part[1])]
    if not parts:
        return None
    partners = [c.partner for _, c in parts if c.partner is not None]
    more = {
        "collectives_ns": sum(c.dur_ns for _, c in parts),
        "partners_ns": sum(partner.dur_ns for partner in partners),
    }
    under = listed(sorted({partner.what for partner in partners})) or "partner"
    return finding(
        "partner-too-short",
        "info",
        f"{_subject(facts, parts)} outlast the {under} they run under.",
        _evidence(facts, parts, **more),
        _with_buckets(
            parts,
            "More tokens per rank (micro-batch, sequence length), a smaller group, fewer bytes (dtype, fused "
            "projections) or faster links; the schedule alone cannot hide these.",
        ),
    )


def _late_partner(facts: Facts) -> Finding | None:
    parts = _of_cause(facts, "late-partner")
    if not parts:
        return None
    by_host = [
        c
        for _, c in parts
        if c.cause_evidence is not None and (c.cause_evidence.partner_launch_ns or 0) > c.start_ns
    ]
    why = (
        f"; in {len(by_host)} of these collectives the host had not launched it yet"
        if by_host
        else "; it had been launched, but waited on the device"
    )
    advice = (
        "Launch the partner right behind the collective and keep the host ahead of the device: CUDA graphs, "
        "torch.compile, fewer small kernels and synchronisations."
        if by_host
        else "Look what runs on the partner's stream, or which event it waits for, between the start of the "
        "collective and its own."
    )
    return finding(
        "late-partner",
        "advice",
        f"{_subject(facts, parts)} pass before the partner starts{why}.",
        _evidence(facts, parts, launched_late_by_host=len(by_host)),
        advice,
    )


def _queued(facts: Facts) -> Finding | None:
    parts = _of_cause(facts, "queued")
    if not parts:
        return None
    behind = [c.cause_evidence.queued_behind for _, c in parts if c.cause_evidence is not None]
    group, device = behind.count("same-group"), behind.count("full-device")
    where, advice = [], []
    if group:
        where.append(f"an earlier collective of their group ({group})")
        advice.append(
            "Give them a process group of their own, or join small collectives into fewer large ones."
        )
    if device:
        where.append(f"a device full of kernels ({device})")
        priority = variable(facts, "TORCH_NCCL_HIGH_PRIORITY")
        knob = " (TORCH_NCCL_HIGH_PRIORITY=1)" if is_told(priority) and not is_on(priority) else ""
        advice.append(
            "Launch them earlier"
            if is_on(priority)
            else f"Give communication a stream of high priority{knob}"
        )
        advice[-1] += ", so that they start beside the kernels that fill the device."
    return finding(
        "queued",
        "advice",
        f"{_subject(facts, parts)} were launched in time, but queued behind {listed(where) or 'others'}.",
        _evidence(facts, parts, behind_same_group=group, behind_full_device=device),
        " ".join(advice) or "Look what runs between their launch and their start.",
    )


def _no_partner(facts: Facts) -> Finding | None:
    parts = [part for part in _of_cause(facts, "no-partner") if not _launched_after(part[1])]
    if not parts:
        return None
    return finding(
        "no-partner",
        "advice",
        f"{_subject(facts, parts)} are asynchronous, but nothing is launched before their wait.",
        _evidence(facts, parts),
        _with_buckets(parts, "Move the wait behind the next computation that does not need the result."),
    )


def _unknown_cause(facts: Facts) -> Finding | None:
    parts = _of_cause(facts, "unknown")
    if not parts:
        return None
    lacks = {
        what: [c for _, c in parts if c.cause_evidence and c.cause_evidence.rule == f"{what}-not-in-trace"]
        for what in ("launch", "wait")
    }
    return finding(
        "exposed-for-unknown-cause",
        "info",
        f"{_subject(facts, parts)} are exposed for unknown reasons{_missing(lacks)}.",
        _evidence(facts, parts, without_launch=len(lacks["launch"]), without_wait=len(lacks["wait"])),
        "Record whole steps with CPU activities; torch 2.13 and newer record whether a collective is "
        "asynchronous, and ranges of sp_profiler.annotate say it for any version.",
    )


def _missing(lacks: Mapping[str, Sequence[CollectiveFigures]]) -> str:
    """What of how many collectives the trace lacks."""
    told = [
        f"for {collectives_on_ranks(which)} the {what} is not in the trace"
        for what, which in lacks.items()
        if which
    ]
    return f": {listed(told)}" if told else ""


RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    _peer_skew,
    _synchronous_with_partner,
    _launched_after_partner,
    _no_partner,
    _queued,
    _late_partner,
    _partner_too_short,
    _synchronous_without_partner,
    _unknown_cause,
)
