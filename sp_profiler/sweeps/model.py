"""What a sweep contains: the machine-readable contract of sweep.json, and of each cell's cell.json.

Names and units are stable: fields are added freely, never renamed. Times are int ns, sizes bytes. None means
that it could not be measured, or that there is none; `notes`, `reason` or `data_quality` say why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sp_profiler.ledger import LedgerEntry

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "sp-profile/sweep"
CELL_SCHEMA = "sp-profile/sweep-cell"
SCHEMA_VERSION = 1
LARGE_OVERHEAD = 1.2
"""Profiled over unprofiled step time from which a sweep says that its overlap is that of slowed steps."""

Status = Literal["pending", "ok", "oom", "crashed", "timeout", "failed"]
"""pending: not run yet. oom: a device, an allocator or the kernel had no more memory. crashed: a rank died or
ended with an error. timeout: no rank made progress for too long. failed: the ranks ended well, but what they
recorded could not be analysed."""


@dataclass(frozen=True)
class SweepTool:
    name: str
    version: str
    torch: str | None


@dataclass(frozen=True)
class Settings:
    """How every cell was measured."""

    repeats: int
    steps_per_repeat: int  # a repeat is the mean of so many steps
    profiled_steps: int
    warmup: int
    batch_policy: Literal["fixed-per-rank", "fixed-global"]
    backend: str
    seed: int


@dataclass(frozen=True)
class Spread:
    """Step time without the profiler. Each repeat starts at a barrier and is the slowest rank's mean of
    `Settings.steps_per_repeat` steps; quartiles are linear between repeats."""

    repeats_ns: list[int]
    median_ns: int
    q1_ns: int
    q3_ns: int
    min_ns: int
    max_ns: int


@dataclass(frozen=True)
class CellMemory:
    """The largest of the ranks. `peak_bytes` is the figure that `peak_source` names."""

    peak_bytes: int | None
    # allocator: torch.cuda's peak over the timed steps. tensors: the most that storages held in one step.
    peak_source: Literal["allocator", "tensors"]
    reserved_bytes: int | None  # what the CUDA caching allocator had reserved at most; None on the CPU
    tensors_peak_bytes: int | None  # live tensor storages in one step, on any device
    rss_peak_bytes: int | None  # resident memory of a process in the timed steps, torch itself included
    rss_before_bytes: int | None  # the same before the model was built
    saved_bytes: int | None  # what one micro-batch keeps for backward
    parameter_bytes: int | None
    gradient_bytes: int | None
    optimizer_bytes: int | None


@dataclass(frozen=True)
class CellProfile:
    """The profiled pass; means per step and rank of the report in the cell's folder."""

    step_ns: int | None  # mean of the profiled steps, of the slowest rank, as `Spread` has it
    # profiled over unprofiled step time: what the profiler does to what it measures
    overhead_factor: float | None
    window_ns: int | None
    compute_ns: int | None
    comm_ns: int | None
    overlapped_ns: int | None
    exposed_ns: int | None
    exposed_share: float | None  # of the window
    overlap_ratio: float | None
    dgrad_comm_ns: int | None
    wgrad_overlapped_ns: int | None
    wgrad_overlap_ratio: float | None  # of the time of dgrad collectives
    # Of what the wgrad GEMMs could hide of the dgrad collectives, how much they hid.
    wgrad_hidden_of_hideable: float | None
    partner_hidden_ns: int | None
    partner_hideable_ns: int | None
    hidden_of_hideable: float | None  # over all collectives with a known partner
    comm_bytes: int | None  # what one rank sent in a step with ring algorithms


@dataclass(frozen=True)
class CellTheory:
    """Closed forms for the same workload, of one rank (`sp_profiler.theory`)."""

    saved_bytes: int | None
    comm_bytes: int | None  # per step
    peak_bytes_at_least: int | None  # parameters, optimizer, and the larger of saved bytes and gradients
    step_ns_at_least: int | None  # on the hardware named: GEMMs, attention, communication that cannot hide


@dataclass(frozen=True)
class Relative:
    """A cell over the baseline's cell at the same sizes: 1.0 is the same."""

    step: float | None
    step_q1: float | None
    step_q3: float | None
    # Whether the quartile boxes of both step times meet: then the difference is no more than the spread.
    step_within_spread: bool | None
    memory: float | None
    tokens_per_s: float | None
    work: float  # tokens per step: step times of unequal work say nothing


@dataclass(frozen=True)
class Cell:
    """One workload at one size."""

    name: str  # of its folder, below cells/
    scheme: str  # tp-sync, sp-shard-async, ...: one line of a chart
    label: str  # the same in the words people use
    sizes: dict[str, int | str | None]  # as asked for: cells of equal sizes are compared
    workload: dict[str, Any]
    tokens_per_step: int  # of all ranks together
    theory: CellTheory
    status: Status = "pending"
    reason: str | None = None
    log: str | None = None  # relative to the sweep's folder
    failed_in: Literal["starting", "timing", "memory", "profile", "analysis"] | None = None
    step: Spread | None = None
    tokens_per_s: float | None = None
    memory: CellMemory | None = None
    profile: CellProfile | None = None
    relative: Relative | None = None
    notes: list[str] = field(default_factory=list)
    device_type: str | None = None
    hardware: list[str] = field(default_factory=list)
    started: str | None = None

    @property
    def is_failed(self) -> bool:
        """Whether it was run and not measured in full."""
        return self.status not in ("ok", "pending")

    @property
    def at_sizes(self) -> tuple[tuple[str, int | str | None], ...]:
        """Equal in cells that are compared with each other."""
        return tuple(sorted(self.sizes.items()))


@dataclass(frozen=True)
class CellFile:
    """What lies in the folder of a cell that has been run."""

    settings: Settings
    cell: Cell
    schema: Literal["sp-profile/sweep-cell"] = CELL_SCHEMA
    schema_version: Literal[1] = field(default=SCHEMA_VERSION)


@dataclass(frozen=True)
class Skipped:
    """Combinations that are no workload, or the same as others. `combinations` counts them; `workloads` names
    those that are none, each once."""

    what: str
    reason: str
    combinations: int
    workloads: list[str]


@dataclass(frozen=True)
class Sweep:
    tool: SweepTool
    created: str
    command: list[str]
    settings: Settings
    baseline: str | None  # scheme
    hardware: str | None  # that `theory.step_ns_at_least` is of
    sentences: list[str]
    cells: list[Cell]
    skipped: list[Skipped]
    data_quality: list[LedgerEntry]
    schema: Literal["sp-profile/sweep"] = SCHEMA
    schema_version: Literal[1] = field(default=SCHEMA_VERSION)

    @property
    def failed(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.is_failed]

    def to_json(self) -> str:
        """As sweep.json has it."""
        from sp_profiler.sweeps import json

        return json.render(self)

    def to_polars(self) -> pl.DataFrame:
        """One row per cell, as sweep.csv and sweep.parquet have it."""
        from sp_profiler.sweeps.tables import to_polars

        return to_polars(self)
