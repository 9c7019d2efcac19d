"""Why communication stays exposed, one rule for each cause that is worth naming, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sp_profiler.analysis.kinds import CollectiveKinds, Kind
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.report.findings.context import HOPS, hops_in_turn, hops_outlast, waits_are_divided
from sp_profiler.report.findings.facts import Facts, finding, is_on, is_told, place_of, variable
from sp_profiler.report.findings.share import Share, groups_of, ops_of, ranks_of, share_of
from sp_profiler.report.format import listed, percent, rank_list
from sp_profiler.report.model import Finding
from sp_profiler.report.sentences import collectives_on_ranks

_OF_EXPOSED = 0.05  # a cause is worth naming from this part of the exposed time on ...
_OF_TIME = 0.002  # ... and of all time


def _of_cause(facts: Facts, cause: str) -> Share:
    """The collectives with a part of this cause, largest part first; none where the cause is not worth it."""
    parts = share_of(facts.between_ranks, cause)
    whole, exposed = parts.whole, facts.totals.exposed_ns or 0
    if not whole or whole < _OF_EXPOSED * exposed or facts.share_of_time(whole) < _OF_TIME:
        return parts.none()
    return parts


def _evidence(facts: Facts, parts: Share, **more: Any) -> dict[str, Any]:
    """Numbers, and the collectives in which to look for them."""
    whole, collectives = parts.whole, parts.collectives
    told: dict[str, Any] = {
        "exposed_ns": whole,
        "of_exposed": round(whole / facts.totals.exposed_ns, 4) if facts.totals.exposed_ns else 1.0,
        "collectives": len(parts),
        "ops": ops_of(collectives),
    }
    told |= {"ranks": ranks} if (ranks := ranks_of(collectives)) else {}
    told |= {"groups": groups} if (groups := groups_of(collectives)) else {}
    examples = [place_of(c, exposed_ns=ns, **_times(c)) for ns, c in parts.examples()]
    return told | more | {"examples": examples}


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


def _subject(facts: Facts, parts: Share) -> str:
    """ "3.1 ms per step (40 % of the exposed communication, 12 collectives)"."""
    whole = parts.whole
    share = percent(whole / facts.totals.exposed_ns) if facts.totals.exposed_ns else "all"
    told = collectives_on_ranks(parts.collectives)
    return f"{facts.mean(whole)} ({share} of the exposed communication, {told})"


def _without_hops(facts: Facts, parts: Share) -> Share:
    """Without a ring's hops, of which findings of their own tell; none where the rest is not worth it."""
    rest = parts.where(lambda kind: kind.purpose not in HOPS)
    return rest if rest.whole >= _OF_EXPOSED * (facts.totals.exposed_ns or 0) else rest.none()


def _peer_skew(facts: Facts) -> Finding | None:
    parts = _of_cause(facts, "peer-skew")
    by_context = waits_are_divided(facts)
    if by_context:
        parts = _without_hops(facts, parts)
    if not parts:
        return None
    late = [one for one in facts.stragglers or () if one.cost_ns > 0 and not by_context]
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


def _with_buckets(parts: Share, usual: str) -> str:
    """The usual advice, and what helps where data parallelism reduces gradients or gathers parameters."""
    gradients, gathers = (
        parts.where(lambda kind, purpose=purpose: kind.purpose == purpose and kind.is_async is not False)
        for purpose in ("param-grad", "param-gather")
    )
    told = [] if len(gradients) + len(gathers) == len(parts) else [usual]
    told += [_BUCKETS] if gradients else []
    return " ".join(told + ([_PREFETCH] if gathers else []))


_SYNCHRONOUS_RULES = ("declared-synchronous", "on-compute-stream", "waited-at-once", "thread-idle")


def _is_synchronous(kind: Kind) -> bool:
    """Whether the trace says it, or what decided the cause."""
    return kind.is_async is False or (kind.is_async is None and kind.rule in _SYNCHRONOUS_RULES)


def _synchronous_with_partner(facts: Facts) -> Finding | None:
    """Synchronous collectives whose partner is known: what launching them asynchronously would hide."""
    every = facts.between_ranks
    if hops_in_turn(facts):  # a finding of its own tells of them
        every = every.where(lambda kind: kind.purpose not in HOPS)
    which = every.where(lambda kind: kind.has_gain and _is_synchronous(kind))
    if not which:
        return None
    hideable_ns, hidden_ns = which.total("hideable_ns"), which.total("hidden_ns")
    gain_ns = hideable_ns - hidden_ns
    ops = ops_of(which)
    partners = sorted(_partners_of(which))
    longest = which.largest(lambda table: table.numbers("dur_ns").values)
    ranks, groups = ranks_of(which), groups_of(which)
    evidence = {
        "collectives": len(which),
        "hideable_ns": hideable_ns,
        "hidden_ns": hidden_ns,
        "ops": ops,
    }
    evidence |= ({"groups": groups} if groups else {}) | ({"ranks": ranks} if ranks else {})
    evidence["longest_collective_ids"] = [c.id for _, c in longest]
    subject = collectives_on_ranks(which, "synchronous")
    under = " and ".join(partners) or "their partner GEMMs"
    could = f"up to {facts.mean_of(gain_ns)} of communication {facts.per} could run under {under}"
    where = f", rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}" if ranks else ""
    text = f"{subject} ({', '.join(ops)}{where}) wait although {could}."
    if len(which) == 1:
        text = text.replace(" wait although", " waits although")
    advice = "Launch them asynchronously before the partner GEMM and wait after it"
    advice += " (--comm async)." if (facts.workload or {}).get("comm") == "sync" else "."
    if facts.is_cpu:
        advice += " On a CPU run this changes the structure, not the speed."
    return finding("synchronous-with-partner", "advice", text, evidence, advice)


def _partners_of(collectives: CollectiveKinds) -> set[str]:
    """What their partners are: wgrad, dgrad, ..."""
    return set(collectives.distinct("partner"))


def _synchronous_without_partner(facts: Facts) -> Finding | None:
    """Synchronous, and nothing in its own linear could hide it: only another schedule can."""
    parts = _of_cause(facts, "synchronous")
    parts = parts.where(lambda kind: kind.partner is None)
    if parts.whole < _OF_EXPOSED * (facts.totals.exposed_ns or 0) or not parts:
        return None
    told, change = "are synchronous", "Launching them asynchronously"
    if parts.collectives.count(lambda kind: kind.is_async is True) == len(parts):
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


def _launched_after_partner(facts: Facts) -> Finding | None:
    both = (_of_cause(facts, cause) for cause in ("partner-too-short", "no-partner"))
    too_short, without = (parts.where(lambda kind: kind.is_after_partner) for parts in both)
    parts = too_short + without
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
    parts = _of_cause(facts, "partner-too-short")
    parts = parts.where(lambda kind: not kind.is_after_partner)
    if hops_outlast(facts):
        parts = _without_hops(facts, parts)
    if not parts:
        return None
    more = {
        "collectives_ns": parts.collectives.total("dur_ns"),
        "partners_ns": parts.collectives.total("partner_ns"),
    }
    under = listed(sorted(_partners_of(parts.collectives))) or "partner"
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
    by_host = parts.collectives.count(lambda kind: kind.is_late_by_host)
    why = (
        f"; in {by_host} of these collectives the host had not launched it yet"
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
        _evidence(facts, parts, launched_late_by_host=by_host),
        advice,
    )


def _queued(facts: Facts) -> Finding | None:
    parts = _of_cause(facts, "queued")
    if not parts:
        return None
    words = ("same-group", "full-device")
    group, device = (
        parts.collectives.count(lambda kind, word=word: kind.queued_behind == word) for word in words
    )
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
    parts = _of_cause(facts, "no-partner")
    parts = parts.where(lambda kind: not kind.is_after_partner)
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
        what: parts.collectives.where(lambda kind, what=what: kind.rule == f"{what}-not-in-trace")
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


def _missing(lacks: Mapping[str, CollectiveKinds]) -> str:
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
