"""Verdicts on the whole run: bound by communication, by the host, and what overlap costs."""

from __future__ import annotations

from collections.abc import Callable

from sp_profiler.report.findings.facts import EXAMPLES, Facts, finding, variable
from sp_profiler.report.format import counted, duration, listed, percent, rank_list, visible
from sp_profiler.report.model import Finding

_BOUND = 0.1  # of the time
_SLOWER = 1.1  # a slowdown worth naming ...
_LOST = 0.005  # ... and its part of the time


def _communication_bound(facts: Facts) -> Finding | None:
    """Communication that no schedule of these collectives and partners could hide. Not on CPU runs.

    Waiting for a late rank is no communication: fewer bytes would not shorten it.
    """
    totals = facts.totals
    hideable, hidden = totals.partner_hideable_ns, totals.partner_hidden_ns
    if facts.is_cpu or hideable is None or hidden is None or not totals.exposed_ns:
        return None
    rest = totals.exposed_ns - min(totals.exposed_ns, hideable - hidden)
    skew_ns = (totals.exposed_by_cause_ns or {}).get("peer-skew", 0)
    if facts.share_of_time(rest - skew_ns) < _BOUND:
        return None
    evidence = {
        "exposed_ns": totals.exposed_ns,
        "peer_skew_ns": skew_ns,
        "hideable_not_hidden_ns": hideable - hidden,
        "exposed_if_all_hidden_ns": rest,
        "window_ns": totals.window_ns,
        "of_time": round(facts.share_of_time(rest), 4),
    }
    return finding(
        "communication-bound",
        "info",
        f"Communication-bound: if everything hideable were hidden, {facts.mean(rest)} "
        f"({percent(facts.share_of_time(rest))} of the time) would stay exposed.",
        evidence,
        _fewer_bytes(facts),
    )


_TENSOR_PARALLEL = (
    "Move fewer bytes (fused projections, sequence parallelism, a smaller dtype), use a smaller "
    "tensor-parallel group inside one node, or give each rank more tokens."
)
_DATA_PARALLEL = (
    "Reduce gradients less often (more tokens or micro-batches per step) or in a smaller dtype, and shard "
    "parameters within a host only where memory allows."
)
_RING = (
    "Give each rank of the ring a longer part of the sequence: its attention grows faster than its K and V."
)
_FEWER_BYTES = {
    "param-grad": _DATA_PARALLEL,
    "param-gather": _DATA_PARALLEL,
    "kv": _RING,
    "dkv": _RING,
    "layout": "Keep the group of Ulysses inside one node.",
    "expert": "Dispatch tokens to fewer experts or nodes, or in a smaller dtype (FP8).",
    "pipeline": "More micro-batches, or fewer pipeline stages.",
}
_OF_REST = 0.2  # what has this part of the exposed time is advised on


def _fewer_bytes(facts: Facts) -> str:
    """What would shorten the communication that is exposed most."""
    by_purpose = sorted((facts.totals.exposed_by_purpose_ns or {}).items(), key=lambda item: -item[1])
    most = [p for p, ns in by_purpose if ns >= _OF_REST * (facts.totals.exposed_ns or 0)]
    told = [_FEWER_BYTES.get(purpose, _TENSOR_PARALLEL) for purpose in most]
    return " ".join(dict.fromkeys(told)) or _TENSOR_PARALLEL


def _host_bound(facts: Facts) -> Finding | None:
    """The device idles because the host has not launched what runs next."""
    lost = facts.totals.host_bound_ns
    if not lost or facts.share_of_time(lost) < _BOUND:
        return None
    evidence = {
        "host_bound_ns": lost,
        "idle_ns": facts.totals.idle_ns,
        "window_ns": facts.totals.window_ns,
        "of_time": round(facts.share_of_time(lost), 4),
    }
    return finding(
        "host-bound",
        "advice",
        f"The device waits for the host: {facts.mean(lost)} ({percent(facts.share_of_time(lost))} of the "
        "time) it is idle because the next kernel has not been launched.",
        evidence,
        "Keep the host ahead: CUDA graphs or torch.compile, fewer small kernels, no .item() or "
        "synchronisation inside the step, data loading in other processes.",
    )


def _contention(facts: Facts) -> Finding | None:
    """GEMMs that lose time to the communication beside them; a warning where they lose more than it hides."""
    slow = [one for one in facts.contention or () if one.slowdown_ns and (one.slowdown_ratio or 0) >= _SLOWER]
    lost, gain = facts.totals.slowdown_ns, facts.totals.net_gain_ns
    if not slow or not lost or gain is None or facts.share_of_time(lost) < _LOST:
        return None
    slow.sort(key=lambda one: -(one.slowdown_ns or 0))
    evidence = {
        "slowdown_ns": lost,
        "overlapped_ns": facts.totals.overlapped_ns,
        "net_gain_ns": gain,
        "gemm_kinds": len(slow),
        "gemms": [
            {
                "shape": one.shape,
                "role": one.role,
                "slowdown_ratio": round(one.slowdown_ratio or 0, 3),
                "overlapped": one.overlapped_count,
                "median_overlapped_ns": one.median_overlapped_ns,
                "median_alone_ns": one.median_alone_ns,
            }
            for one in slow[:EXAMPLES]
        ],
    }
    worst = slow[0]
    ratio = f"{(worst.slowdown_ratio or 0):.2f}"
    text = (
        f"Overlap slows GEMMs down: {worst.role} {visible(worst.shape)} takes {ratio} times as long while "
        f"communication runs beside it. {facts.mean(lost)} are lost to it, "
    )
    text += f"{facts.mean(gain)} are won." if gain > 0 else "more than overlap hides."
    channels = variable(facts, "NCCL_MAX_CTAS")
    now = f" below the {visible(channels)} it has" if isinstance(channels, str) else ""
    return finding(
        "overlap-slows-gemms",
        "warning" if gain <= 0 else "advice",
        text,
        evidence,
        f"Let NCCL use fewer SMs: try a lower NCCL_MAX_CTAS{now} and compare; or move the transfer to copy "
        "engines.",
    )


def _ends_disagree(facts: Facts) -> Finding | None:
    """Collectives that end at different times on different ranks, on aligned clocks."""
    found = facts.ends_disagree
    if found is None or not found.ids or facts.is_cpu:  # on the CPU ends wait for a core
        return None
    evidence = {
        "collectives": found.collectives,
        "largest_ns": found.largest_ns,
        "largest_ids": list(found.ids),
    }
    evidence |= {"groups": list(found.groups)} if found.groups else {}
    evidence |= {"ranks": list(found.ranks)} if found.ranks else {}
    where = f" (ranks {rank_list(list(found.ranks))})" if found.ranks else ""
    groups = listed([visible(group) for group in found.groups]) or "a group"
    return finding(
        "ends-disagree",
        "warning",
        f"In {counted(found.collectives, 'collective')} of {groups} ranks end up to "
        f"{duration(found.largest_ns)} apart{where}, although their clocks are aligned.",
        evidence,
        "Do not read this as skew: look at these ranks' links and devices, and whether their traces are "
        "whole.",
    )


RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    _contention,
    _host_bound,
    _ends_disagree,
    _communication_bound,
)
