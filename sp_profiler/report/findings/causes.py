"""Why communication stays exposed, one rule for each cause that is worth naming, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Numbers
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.report.findings.context import HOPS, hops_in_turn, hops_outlast, waits_are_divided
from sp_profiler.report.findings.facts import EXAMPLES, Facts, finding, is_on, is_told, place_of, variable
from sp_profiler.report.findings.share import (
    Share,
    groups_of,
    has_evidence,
    launched_after_partner,
    ops_of,
    ranks_of,
    share_of,
)
from sp_profiler.report.format import listed, percent, rank_list
from sp_profiler.report.model import Finding
from sp_profiler.report.sentences import collectives_on_ranks
from sp_profiler.trace.tables import Bool

_OF_EXPOSED = 0.05  # a cause is worth naming from this part of the exposed time on ...
_OF_TIME = 0.002  # ... and of all time


def _of_cause(facts: Facts, cause: str) -> Share:
    """The collectives with a part of this cause, largest part first; none where the cause is not worth it."""
    parts = share_of(facts.between_ranks, cause)
    whole, exposed = parts.whole, facts.totals.exposed_ns or 0
    if not whole or whole < _OF_EXPOSED * exposed or facts.share_of_time(whole) < _OF_TIME:
        return parts.where(np.zeros(len(parts), np.bool_))
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
    examples = [place_of(c, exposed_ns=ns, **_times(c)) for ns, c in parts.first(EXAMPLES)]
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
    rest = parts.where(parts.collectives.words("purpose").where(lambda purpose: purpose not in HOPS))
    is_worth = rest.whole >= _OF_EXPOSED * (facts.totals.exposed_ns or 0)
    return rest if is_worth else rest.where(np.zeros(len(rest), np.bool_))


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
    purpose = parts.collectives.words("purpose")
    may_be_async = parts.collectives.words("is_async").where(lambda is_async: is_async is not False)
    gradients = purpose.where(lambda word: word == "param-grad") & may_be_async
    gathers = purpose.where(lambda word: word == "param-gather") & may_be_async
    told = [] if (gradients | gathers).all() else [usual]
    told += [_BUCKETS] if gradients.any() else []
    return " ".join(told + ([_PREFETCH] if gathers.any() else []))


_SYNCHRONOUS_RULES = ("declared-synchronous", "on-compute-stream", "waited-at-once", "thread-idle")


def _is_synchronous(collectives: Collectives) -> Bool:
    """Of which the trace says it, or what decided their cause."""
    is_async = collectives.words("is_async")
    by_rule = has_evidence(collectives, "rule", *_SYNCHRONOUS_RULES)
    return is_async.where(lambda told: told is False) | (is_async.where(lambda told: told is None) & by_rule)


def _synchronous_with_partner(facts: Facts) -> Finding | None:
    """Synchronous collectives whose partner is known: what launching them asynchronously would hide."""
    every = facts.between_ranks
    if hops_in_turn(facts):  # a finding of its own tells of them
        every = every.take(every.words("purpose").where(lambda purpose: purpose not in HOPS))
    gain = every.numbers("hideable_ns").or_zero() - every.numbers("hidden_ns").or_zero()
    which = every.take(_is_synchronous(every) & (gain > 0))
    if not which:
        return None
    hideable_ns, hidden_ns = which.total("hideable_ns"), which.total("hidden_ns")
    gain_ns = hideable_ns - hidden_ns
    ops = ops_of(which)
    partners = sorted(_partners_of(which))
    longest = np.lexsort((which.numbers("id").values, -which.numbers("dur_ns").values))[:EXAMPLES]
    evidence = {
        "collectives": len(which),
        "hideable_ns": hideable_ns,
        "hidden_ns": hidden_ns,
        "ops": ops,
        "groups": groups_of(which),
        "ranks": ranks_of(which),
        "longest_collective_ids": [c.id for c in which.take(longest)],
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


def _partners_of(collectives: Collectives) -> set[str]:
    """What their partners are: wgrad, dgrad, ..."""
    partner = collectives.records("partner")
    return {str(what) for what in partner.take(partner.is_known).field("what").tolist()}


def _synchronous_without_partner(facts: Facts) -> Finding | None:
    """Synchronous, and nothing in its own linear could hide it: only another schedule can."""
    parts = _of_cause(facts, "synchronous")
    parts = parts.where(~parts.collectives.records("partner").is_known)
    if parts.whole < _OF_EXPOSED * (facts.totals.exposed_ns or 0) or not parts:
        return None
    told, change = "are synchronous", "Launching them asynchronously"
    if parts.collectives.words("is_async").where(bool).all():
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
    too_short, without = (parts.where(launched_after_partner(parts.collectives)) for parts in both)
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
    parts = parts.where(~launched_after_partner(parts.collectives))
    if hops_outlast(facts):
        parts = _without_hops(facts, parts)
    if not parts:
        return None
    partners = parts.collectives.records("partner")
    more = {
        "collectives_ns": parts.collectives.total("dur_ns"),
        "partners_ns": sum(ns or 0 for ns in partners.take(partners.is_known).field("dur_ns").tolist()),
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
    told = parts.collectives.records("cause_evidence")
    launch = told.field("partner_launch_ns")
    assert isinstance(launch, Numbers)
    late = told.is_known & (launch.or_zero() > parts.collectives.numbers("start_ns").values)
    by_host = int(late.sum())
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
    group, device = (int(has_evidence(parts.collectives, "queued_behind", word).sum()) for word in words)
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
    parts = parts.where(~launched_after_partner(parts.collectives))
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
        what: parts.collectives.take(has_evidence(parts.collectives, "rule", f"{what}-not-in-trace"))
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


def _missing(lacks: Mapping[str, Collectives]) -> str:
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
