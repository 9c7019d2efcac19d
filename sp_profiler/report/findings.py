"""Findings: sentences about a run that its own numbers prove, with what to change.

Each rule is a function from `Facts` to a finding or None. A finding carries evidence (numbers, and
where to look) and never advises a setting that is already set; both are tested for every rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sp_profiler.analysis.results import CollectiveFigures, Figures
from sp_profiler.report.format import counted, duration, percent, rank_list
from sp_profiler.report.model import Finding
from sp_profiler.report.sentences import op_name

_BLACKWELL = 10  # major compute capability from which copies and kernels need no single queue
_EXAMPLES = 5  # collectives named in the evidence


@dataclass(frozen=True)
class Facts:
    """What the rules look at. `environment` is run.json's; None when the run was recorded elsewhere.

    `compute_capability` is the lowest major number among the devices, None when nothing tells it.
    """

    totals: Figures
    collectives: Sequence[CollectiveFigures]
    windows: int
    is_cpu: bool
    workload: dict[str, Any] | None
    environment: dict[str, Any] | None
    compute_capability: int | None


def findings(facts: Facts) -> list[Finding]:
    """All findings, warnings first, otherwise in the order of the rules."""
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    order = ("warning", "advice", "info")
    return sorted(found, key=lambda finding: order.index(finding.severity))


def _finding(
    code: str,
    severity: Literal["info", "advice", "warning"],
    text: str,
    evidence: dict[str, Any],
    advice: str,
) -> Finding:
    if not evidence or any(value is None for value in evidence.values()):
        raise ValueError(f"finding '{code}' lacks evidence")
    return Finding(code, severity, text, evidence, advice)


def _synchronous_with_partner(facts: Facts) -> Finding | None:
    """Synchronous collectives whose partner is known: what launching them asynchronously would hide."""
    which = [
        c
        for c in facts.collectives
        if c.is_async is False and c.hideable_ns and c.hideable_ns > (c.hidden_ns or 0)
    ]
    if not which:
        return None
    gain_ns = sum((c.hideable_ns or 0) - (c.hidden_ns or 0) for c in which)
    per_step = duration(gain_ns / max(facts.windows, 1))
    ops = sorted({op_name(c.op) for c in which})
    partners = sorted({c.partner.what for c in which if c.partner})
    evidence = {
        "collectives": len(which),
        "hideable_ns": sum(c.hideable_ns or 0 for c in which),
        "hidden_ns": sum(c.hidden_ns or 0 for c in which),
        "ops": ops,
        "groups": sorted({c.group for c in which if c.group}),
        "ranks": sorted({c.rank for c in which if c.rank is not None}),
        "longest_collective_ids": [c.id for c in sorted(which, key=lambda c: (-c.dur_ns, c.id))[:_EXAMPLES]],
    }
    subject = counted(len(which), "synchronous collective")
    under = " and ".join(partners) or "their partner GEMMs"
    could = f"up to {per_step} per step of communication could run under {under}"
    text = f"{subject} ({', '.join(ops)}, ranks {rank_list(evidence['ranks'])}) wait although {could}."
    if len(which) == 1:
        text = text.replace(" wait although", " waits although")
    advice = "Launch them asynchronously before the partner GEMM and wait after it"
    advice += " (--comm async)." if (facts.workload or {}).get("comm") == "sync" else "."
    if facts.is_cpu:
        advice += " On a CPU run this changes the structure, not the speed."
    return _finding("synchronous-with-partner", "advice", text, evidence, advice)


def _async_without_overlap(facts: Facts) -> Finding | None:
    """The workload was told to be asynchronous, and nothing runs under anything."""
    asked = (facts.workload or {}).get("comm") == "async"
    if not asked or facts.totals.overlapped_ns != 0 or not facts.totals.comm_ns:
        return None
    launched = sum(c.is_async is True for c in facts.collectives)
    evidence = {
        "workload_comm": "async",
        "asynchronous_collectives": launched,
        "collectives": len(facts.collectives),
        "comm_ns": facts.totals.comm_ns,
        "overlapped_ns": 0,
    }
    text = (
        f"The workload ran with comm=async, yet none of its {counted(len(facts.collectives), 'collective')} "
        f"overlaps computation ({launched} launched asynchronously)."
    )
    return _finding(
        "async-without-overlap",
        "warning",
        text,
        evidence,
        "Look where each handle is waited for: a wait right after the launch makes a collective synchronous.",
    )


def _one_hardware_queue(facts: Facts) -> Finding | None:
    """Before Blackwell, TP/SP overlap needs CUDA_DEVICE_MAX_CONNECTIONS=1 (launch order = run order)."""
    value = _variable(facts, "CUDA_DEVICE_MAX_CONNECTIONS")
    workload = facts.workload or {}
    to_win = (facts.totals.partner_hideable_ns or 0) - (facts.totals.partner_hidden_ns or 0)
    applies = not facts.is_cpu and workload.get("mode") in ("tp", "sp") and workload.get("comm") == "async"
    if not applies or value is _UNTOLD or value == "1" or to_win <= 0 or not _before_blackwell(facts):
        return None
    evidence = {
        "CUDA_DEVICE_MAX_CONNECTIONS": value if value is not None else "not set",
        "mode": workload["mode"],
        "compute_capability_major": facts.compute_capability,
        "hideable_not_hidden_ns": to_win,
    }
    share = percent(facts.totals.hidden_of_hideable)
    now = evidence["CUDA_DEVICE_MAX_CONNECTIONS"]
    text = (
        f"CUDA_DEVICE_MAX_CONNECTIONS is {now} in a {workload['mode']} run on "
        f"devices before Blackwell, and {share} of what could be hidden is hidden."
    )
    return _finding(
        "cuda-device-max-connections",
        "warning",
        text,
        evidence,
        "Set CUDA_DEVICE_MAX_CONNECTIONS=1 before the ranks start, so that a collective launched before "
        "the partner GEMM also starts before it.",
    )


def _one_queue_hurts_data_parallel(facts: Facts) -> Finding | None:
    """The same setting keeps DDP's gradient all-reduce from running under backward."""
    value = _variable(facts, "CUDA_DEVICE_MAX_CONNECTIONS")
    is_ddp = not facts.is_cpu and (facts.workload or {}).get("mode") == "ddp"
    exposed = facts.totals.exposed_by_purpose_ns.get("param-grad", 0)
    if not is_ddp or value is _UNTOLD or value != "1" or not exposed:
        return None
    evidence = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "mode": "ddp", "exposed_param_grad_ns": exposed}
    text = (
        "CUDA_DEVICE_MAX_CONNECTIONS is 1 in a data-parallel run, "
        f"and {duration(exposed / max(facts.windows, 1))} per step of gradient communication stay exposed."
    )
    return _finding(
        "cuda-device-max-connections-data-parallel",
        "warning",
        text,
        evidence,
        "Leave CUDA_DEVICE_MAX_CONNECTIONS unset for DDP and FSDP: one queue serialises their collectives "
        "with backward.",
    )


def _timing_events(facts: Facts) -> Finding | None:
    """NCCL timing events together with a single queue destroy overlap."""
    timing = _variable(facts, "TORCH_NCCL_ENABLE_TIMING")
    queues = _variable(facts, "CUDA_DEVICE_MAX_CONNECTIONS")
    if facts.is_cpu or queues != "1" or not _is_on(timing) or not facts.totals.comm_ns:
        return None
    evidence = {
        "TORCH_NCCL_ENABLE_TIMING": str(timing),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "overlapped_ns": facts.totals.overlapped_ns or 0,
        "comm_ns": facts.totals.comm_ns,
    }
    text = (
        "TORCH_NCCL_ENABLE_TIMING is on together with CUDA_DEVICE_MAX_CONNECTIONS=1: the timing events order "
        "communication and computation one after the other in the single queue."
    )
    return _finding(
        "nccl-timing-with-one-queue",
        "warning",
        text,
        evidence,
        "Unset TORCH_NCCL_ENABLE_TIMING for this run.",
    )


RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    _async_without_overlap,
    _one_hardware_queue,
    _one_queue_hurts_data_parallel,
    _timing_events,
    _synchronous_with_partner,
)

_UNTOLD: Any = object()


def _variable(facts: Facts, name: str) -> Any:
    """The variable's text, None when it was not set, `_UNTOLD` when nothing tells."""
    return _UNTOLD if facts.environment is None else facts.environment.get(name, _UNTOLD)


def _is_on(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() in ("1", "true", "y", "yes", "on")


def _before_blackwell(facts: Facts) -> bool:
    return facts.compute_capability is not None and facts.compute_capability < _BLACKWELL
