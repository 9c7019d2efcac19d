"""Words for the keys of a comparison's figures."""

from __future__ import annotations

from sp_profiler.report.format import visible
from sp_profiler.report.memory_sentences import CATEGORY_NAMES

CAUSE_WORDS = {
    "peer-skew": "spent waiting for a late peer",
    "synchronous": "in synchronous collectives",
    "partner-too-short": "outlasting the computation it runs under",
    "late-partner": "before the computation it runs under starts",
    "queued": "queued behind other collectives",
    "no-partner": "without a partner to run under",
    "unknown": "for an unknown cause",
}
_ROLES = {
    "fwd": "forward GEMMs", "recompute": "recompute", "dgrad": "dgrad", "wgrad": "wgrad",
    "attention": "attention", "optimizer": "the optimizer", "other": "other computation",
    "unknown": "computation of unknown role",
}  # fmt: skip
FIGURES = {
    "window_ns": "Step", "compute_ns": "Computation", "comm_ns": "Communication",
    "overlapped_ns": "Overlapped", "exposed_ns": "Exposed", "memory_op_ns": "Copies",
    "memory_op_only_ns": "Copies only", "busy_ns": "Busy", "idle_ns": "Idle",
    "dgrad_comm_ns": "Dgrad communication", "wgrad_overlapped_ns": "Of it under wgrad",
    "partner_hidden_ns": "Hidden under partners", "partner_hideable_ns": "Hideable under partners",
    "host_bound_ns": "Idle, not yet launched", "slowdown_ns": "Slowdown of overlapped GEMMs",
    "net_gain_ns": "Net gain of overlap", "fused_ns": "Fused kernels",
    "step_ns_if_all_hidden": "Step if all were hidden", "overlap_ratio": "Overlapped of communication",
    "wgrad_overlap_ratio": "Under wgrad, of dgrad communication",
    "hidden_of_hideable": "Hidden of hideable", "partner_unknown": "Collectives without known partner",
    "gemm_role_known_ratio": "GEMM time of known role",
    "purpose_known_ratio": "Communication of known purpose",
    "comm_metadata_ratio": "Communication of known group and size",
}  # fmt: skip
STEP_PARTS = {
    "compute_only": "Computation only", "overlapped": "Communication overlapped",
    "memory_op_only": "Copies only", "idle": "Idle", "exposed": "Communication exposed",
}  # fmt: skip
DIMENSIONS = {
    "role": "Hidden, by the role it runs under", "cause": "Exposed, by cause",
    "purpose": "Exposed, by purpose",
    "op": "Exposed, by operation", "group": "Exposed, by group", "phase": "Exposed, by phase",
    "layer": "Exposed, by layer", "module": "Exposed, by module",
}  # fmt: skip
REASONS = {
    "came": "New collectives", "gone": "Collectives that are gone", "count": "How many there are",
    "bytes": "How large they are", "rate": "Time per byte", "transfer": "Time of transfers",
    "skew-wait": "Waiting for the last rank", "duration": "How long they take",
    "concurrency": "Exposed beside other collectives",
}  # fmt: skip
VERDICTS = {
    "equal": "equal", "changed": "changed", "within-noise": "within noise", "noise-unknown": "noise unknown",
    "came": "came: none in the base", "went": "went: none in this run",
    "only-base": "only in the base", "only-here": "only in this run", "unknown": "not known",
}  # fmt: skip


def role_name(role: str | None) -> str:
    return "computation" if role is None else _ROLES.get(role, visible(role))


def category_name(category: str) -> str:
    """Of memory: `gathered inputs and buffers` for what was born in collectives."""
    if category == "communication":
        return "what collectives gathered"
    if category == "unknown":
        return "unknown kind"
    return CATEGORY_NAMES.get(category, visible(category))


def reason_name(reason: str, under: str | None) -> str:
    if reason == "overlap":
        where = "other computation" if under in (None, "other") else role_name(under)
        return f"Hidden under {where}"
    return REASONS.get(reason, reason)


def figure_name(figure: str) -> str:
    """`exposed_ns` -> `Exposed`."""
    last = figure.split(".")[-1]
    return FIGURES.get(last) or last.removesuffix("_ns").removesuffix("_bytes").replace("_", " ").capitalize()
