"""Settings that keep communication from being hidden, by run.json's environment and command."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sp_profiler.report.findings.facts import Facts, finding, is_on, is_told, variable
from sp_profiler.report.format import listed, percent, visible
from sp_profiler.report.model import Finding
from sp_profiler.report.sentences import collectives_on_ranks

_BLACKWELL = 10  # major compute capability from which copies and kernels need no single queue
_TENSOR_PARALLEL = ("dgrad", "input-regather")
_DATA_PARALLEL = ("param-grad", "param-gather")


def _is_async_tensor_parallel(facts: Facts) -> bool:
    """Our workloads say so; of another program its asynchronous collectives for activations' gradients do."""
    workload = facts.workload or {}
    if "mode" in workload:
        return workload["mode"] in ("tp", "sp") and workload.get("comm") == "async"
    return bool(facts.kinds.where(lambda kind: kind.purpose in _TENSOR_PARALLEL and kind.is_async is True))


def _is_data_parallel_only(facts: Facts) -> bool:
    workload = facts.workload or {}
    if "mode" in workload:
        return workload["mode"] == "ddp"
    purposes = set(facts.kinds.distinct("purpose"))
    return bool(purposes & set(_DATA_PARALLEL)) and not purposes & set(_TENSOR_PARALLEL)


def _async_without_overlap(facts: Facts) -> Finding | None:
    """The workload was told to be asynchronous, and nothing runs under anything."""
    asked = (facts.workload or {}).get("comm") == "async"
    between = facts.between_ranks
    if not asked or facts.totals.overlapped_ns != 0 or not facts.totals.comm_ns or not between:
        return None
    launched = between.count(lambda kind: kind.is_async is True)
    evidence = {
        "workload_comm": "async",
        "asynchronous_collectives": launched,
        "collectives": len(between),
        "comm_ns": facts.totals.comm_ns,
        "overlapped_ns": 0,
    }
    text = (
        f"The workload ran with comm=async, yet none of its {collectives_on_ranks(between)} "
        f"overlaps computation ({launched or 'none'} launched asynchronously)."
    )
    return finding(
        "async-without-overlap",
        "warning",
        text,
        evidence,
        "Look where each handle is waited for: a wait right after the launch makes a collective synchronous.",
    )


def _one_hardware_queue(facts: Facts) -> Finding | None:
    """Before Blackwell, TP/SP overlap needs CUDA_DEVICE_MAX_CONNECTIONS=1 (launch order = run order)."""
    value = variable(facts, "CUDA_DEVICE_MAX_CONNECTIONS")
    workload = facts.workload or {}
    to_win = (facts.totals.partner_hideable_ns or 0) - (facts.totals.partner_hidden_ns or 0)
    applies = not facts.is_cpu and _is_async_tensor_parallel(facts)
    if not applies or not is_told(value) or value == "1" or to_win <= 0 or not _before_blackwell(facts):
        return None
    evidence = {
        "CUDA_DEVICE_MAX_CONNECTIONS": value if value is not None else "not set",
        "mode": workload.get("mode") or "tensor parallel, by the purposes of its collectives",
        "compute_capability_major": facts.compute_capability,
        "hideable_not_hidden_ns": to_win,
    }
    share = percent(facts.totals.hidden_of_hideable)
    now = evidence["CUDA_DEVICE_MAX_CONNECTIONS"]
    text = (
        f"CUDA_DEVICE_MAX_CONNECTIONS is {now} in a {workload.get('mode', 'tensor-parallel')} run on "
        f"devices before Blackwell, and {share} of what could be hidden is hidden."
    )
    return finding(
        "cuda-device-max-connections",
        "warning",
        text,
        evidence,
        "Set CUDA_DEVICE_MAX_CONNECTIONS=1 before the ranks start, so that a collective launched before "
        "the partner GEMM also starts before it.",
    )


def _one_queue_hurts_data_parallel(facts: Facts) -> Finding | None:
    """The same setting keeps DDP's gradient all-reduce from running under backward."""
    value = variable(facts, "CUDA_DEVICE_MAX_CONNECTIONS")
    is_ddp = not facts.is_cpu and _is_data_parallel_only(facts)
    by_purpose = facts.totals.exposed_by_purpose_ns
    exposed = by_purpose.get("param-grad", 0) + by_purpose.get("param-gather", 0)
    if not is_ddp or not is_told(value) or value != "1" or not exposed:
        return None
    evidence = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "mode": "data parallel", "exposed_param_grad_ns": exposed}
    text = (
        "CUDA_DEVICE_MAX_CONNECTIONS is 1 in a data-parallel run, "
        f"and {facts.mean_of(exposed)} of gradient and parameter communication {facts.per} stay exposed."
    )
    return finding(
        "cuda-device-max-connections-data-parallel",
        "warning",
        text,
        evidence,
        "Leave CUDA_DEVICE_MAX_CONNECTIONS unset for DDP and FSDP: one queue serialises their collectives "
        "with backward.",
    )


def _timing_events(facts: Facts) -> Finding | None:
    """NCCL timing events together with a single queue destroy overlap."""
    timing = variable(facts, "TORCH_NCCL_ENABLE_TIMING")
    queues = variable(facts, "CUDA_DEVICE_MAX_CONNECTIONS")
    if facts.is_cpu or queues != "1" or not is_on(timing) or not facts.totals.comm_ns:
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
    return finding(
        "nccl-timing-with-one-queue",
        "warning",
        text,
        evidence,
        "Unset TORCH_NCCL_ENABLE_TIMING for this run.",
    )


# --- a feature that was switched on and did nothing ------------------------------------------------


@dataclass(frozen=True)
class _Feature:
    """A feature that leaves kernels of its own in a trace.

    `command` is looked for in the words of the command, `variables` hold patterns for values; `kernels` are
    those of which at least one must be there.
    """

    name: str
    kernels: str
    command: str | None = None
    variables: tuple[tuple[str, str], ...] = ()


_SYMMETRIC = r"multimem|one_shot|two_shot|symm_?mem|ncclSymk|Memcpy PtoP|stream_write"
_FEATURES = (
    _Feature(
        "asynchronous tensor parallelism (symmetric memory)",
        _SYMMETRIC,
        command=r"enable[_-]async[_-]tensor[_-]parallel(?!=(?:false|0))",
    ),
    _Feature(
        "Transformer Engine's userbuffers", r"userbuffers|ubuf|Memcpy PtoP", command=r"^--tp-comm-overlap$"
    ),
    _Feature("DeepEP", r"deep_?ep|internode|intranode|low_latency", command=r"^--moe-enable-deepep$"),
    _Feature("NVLink SHARP", r"NVLS", variables=(("NCCL_NVLS_ENABLE", r"1"), ("NCCL_ALGO", r".*\bNVLS.*"))),
    _Feature(
        "symmetric-memory all-reduce", _SYMMETRIC, variables=(("VLLM_ALLREDUCE_USE_SYMM_MEM", r"1|true"),)
    ),
)


def _feature_without_kernels(facts: Facts) -> Finding | None:
    """A feature was asked for by command or environment, and no kernel of its kind is in the trace."""
    kernels = sorted(kernel for kernel in facts.kinds.distinct("kernel") if kernel)
    if facts.is_cpu or not kernels:
        return None
    absent = {
        feature.name: asked
        for feature in _FEATURES
        if (asked := _asked_for(facts, feature))
        and not any(re.search(feature.kernels, kernel, re.IGNORECASE) for kernel in kernels)
    }
    if not absent:
        return None
    evidence = {
        "switched_on_by": [f"{name}: {visible(asked)}" for name, asked in absent.items()],
        "communication_kernels": [visible(kernel) for kernel in kernels[:8]],
        "communication_kernels_in_all": len(kernels),
    }
    return finding(
        "feature-without-kernels",
        "warning",
        f"Switched on, but no kernel of it is in the trace: {listed(list(absent))}.",
        evidence,
        "Look in the log why it was not used (shapes, dtype, topology or version not supported), or whether "
        "the setting reached all ranks.",
    )


def _asked_for(facts: Facts, feature: _Feature) -> str | None:
    """The word or variable that switched it on; None where nothing did."""
    for word in facts.command or ():
        if feature.command and re.search(feature.command, word, re.IGNORECASE):
            return word
    for name, pattern in feature.variables:
        value = variable(facts, name)
        if isinstance(value, str) and re.fullmatch(pattern, value, re.IGNORECASE):
            return f"{name}={value}"
    return None


def _before_blackwell(facts: Facts) -> bool:
    return facts.compute_capability is not None and facts.compute_capability < _BLACKWELL


RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    _async_without_overlap,
    _one_hardware_queue,
    _one_queue_hurts_data_parallel,
    _timing_events,
    _feature_without_kernels,
)
