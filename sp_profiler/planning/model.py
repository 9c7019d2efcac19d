"""What a plan contains: the machine-readable contract, and nothing about how it is made or shown.

Names and units are stable: fields are added freely, never renamed. Sizes are bytes and of one rank, times
int ns of one step. None means that nobody asked, or that there is no such figure; `data_quality` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sp_profiler.ledger import LedgerEntry

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "sp-profile/plan"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PlanTool:
    name: str
    version: str
    torch: str


@dataclass(frozen=True)
class PlanMachine:
    """What times were made with."""

    name: str
    tflops: float  # dense peak at the plan's dtype
    efficiency: float  # share of it that GEMMs and attention reach
    bandwidth_gb_per_s: float  # 1e9 bytes, one direction
    step_latency_us: float
    launch_latency_us: float
    memory_gb_per_s: float | None
    sources: list[str]


@dataclass(frozen=True)
class TheoryTime:
    """The closed form's times. None where it has none (what hides in ddp depends on the buckets)."""

    gemm_ns: int
    attention_ns: int
    comm_ns: int
    hideable_ns: int | None
    hidden_ns: int | None
    exposed_ns: int | None


@dataclass(frozen=True)
class SchemeTheory:
    """The closed form's values beside the executed ones (`sp_profiler.theory`)."""

    saved_bytes: int
    saved_by_term: dict[str, int]
    saved_bytes_per_layer: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    peak_bytes_at_least: int  # parameters, optimizer state, and the larger of saved bytes and gradients
    comm_bytes_per_step: int
    time: TheoryTime | None


@dataclass(frozen=True)
class SchemeTime:
    """The executed schedule on the machine. compute + exposed = step; hidden + exposed = comm."""

    step_ns: int
    compute_ns: int
    gemm_ns: int
    attention_ns: int
    memory_op_ns: int  # operators that only read and write; 0 without a memory bandwidth
    comm_ns: int
    hidden_ns: int
    exposed_ns: int
    exposed_by_purpose_ns: dict[str, int]
    compute_by_role_ns: dict[str, int]


@dataclass(frozen=True)
class Scheme:
    """One scheme at one size. Figures are those of the executed schedule, or extrapolated from it."""

    label: str
    mode: str
    save: str | None
    comm: str | None
    projections: str
    norm: str
    recompute: str
    layers: int
    seq_len: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    micro_batch: int
    num_microbatches: int
    dtype: str
    tp: int
    dp: int
    ranks: int
    saved_bytes: int  # what one micro-batch keeps for backward
    saved_by_term: dict[str, int]
    saved_bytes_per_layer: int
    hidden_bytes: int  # kept for backward past autograd, in no saved tensor
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    peak_bytes_estimate: int  # the most that tensors hold at once in a step, all of these included
    peak_in: str  # where in the step that is
    comm_bytes_per_step: int  # what a rank sends with ring algorithms
    comm_bytes_by_purpose: dict[str, int]
    collectives_per_step: int
    extrapolated_from: list[int] | None  # numbers of layers that were executed; None: `layers` itself
    theory: SchemeTheory
    time: SchemeTime | None


@dataclass(frozen=True)
class Difference:
    """The first scheme's figure less the second's, at equal sizes. `first` and `second` are places in
    `Plan.schemes`."""

    first: int
    second: int
    label: str
    layers: int
    micro_batch: int
    tp: int
    saved_bytes: int
    saved_by_term: dict[str, int]  # only the terms that differ
    peak_bytes_estimate: int
    comm_bytes_per_step: int
    theory_saved_bytes: int
    theory_comm_bytes_per_step: int
    step_ns: int | None


@dataclass(frozen=True)
class Plan:
    tool: PlanTool
    machine: PlanMachine | None
    assumptions: list[str]
    schemes: list[Scheme]
    differences: list[Difference]
    data_quality: list[LedgerEntry]
    schema: Literal["sp-profile/plan"] = field(default=SCHEMA, init=False)
    schema_version: Literal[1] = field(default=SCHEMA_VERSION, init=False)

    def to_json(self) -> str:
        """As `sp-profile plan --format json` writes it."""
        from sp_profiler.report.planned import json

        return json.render(self)

    def to_polars(self, table: str = "schemes") -> pl.DataFrame:
        """A table of the plan: schemes, terms or differences. Raises UsageError for another."""
        from sp_profiler.report.planned.tables import to_polars

        return to_polars(self, table)


def is_usual(scheme: Scheme) -> bool:
    """Whether it communicates as people mean it by its name: TP sync, SP basic, SP recompute; or is DDP."""
    usual = (("tp", None, "sync"), ("sp", "full", "sync"), ("sp", "shard", "async"), ("ddp", None, None))
    return (scheme.mode, scheme.save, scheme.comm) in usual


def as_ns(seconds: float) -> int:
    return round(seconds * 1e9)


def plain_machine(machine: Any) -> PlanMachine:
    """`theory.machine.Machine` in the units people use."""
    memory = machine.memory_bytes_per_s
    return PlanMachine(
        name=machine.name,
        tflops=machine.flops_per_s / 1e12,
        efficiency=machine.efficiency,
        bandwidth_gb_per_s=machine.bytes_per_s / 1e9,
        step_latency_us=machine.step_latency_s * 1e6,
        launch_latency_us=machine.launch_latency_s * 1e6,
        memory_gb_per_s=None if memory is None else memory / 1e9,
        sources=list(machine.sources),
    )
