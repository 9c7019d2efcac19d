"""What a report contains: the machine-readable contract, and nothing about how it is shown.

Names and units are stable: fields are added freely, never renamed. The JSON Schema beside this file
(`schema.json`) is generated from these classes; a test holds the two together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.analysis.kind_figures import KindFigures, kind_figures
from sp_profiler.analysis.memory.results import Memory
from sp_profiler.analysis.results import (
    Clock,
    CollectiveFigures,
    ContentionFigures,
    CriticalPath,
    Figures,
    GemmFigures,
    GroupFigures,
    RankFigures,
    Segment,
    StepFigures,
    Straggler,
    Unmatched,
)
from sp_profiler.ledger import LedgerEntry

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "sp-profile/report"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Tool:
    name: str
    version: str


@dataclass(frozen=True)
class Run:
    name: str
    path: str
    world_size: int | None
    ranks: list[int | None]
    ranks_missing: list[int]
    backend: str | None
    workload: dict[str, Any] | None  # run.json's workload configuration
    device_type: str | None  # cuda | cpu


@dataclass(frozen=True)
class Window:
    rule: Literal["step", "trace"]
    steps: list[int]


@dataclass(frozen=True)
class Coverage:
    """Shares in [0, 1] of what was known; None where there was nothing to know."""

    gemm_role_known_ratio: float | None
    purpose_known_ratio: float | None
    comm_metadata_ratio: float | None


@dataclass(frozen=True)
class Finding:
    """A sentence about the run, with its evidence and what to do."""

    code: str
    severity: Literal["info", "advice", "warning"]
    text: str
    evidence: dict[str, Any]
    advice: str | None = None


@dataclass(frozen=True)
class Timeline:
    """One step of one rank, to be drawn."""

    rank: int | None
    device: int
    step: int | None
    start_ns: int
    end_ns: int
    segments: list[Segment]
    exposed: list[list[int]] = field(
        default_factory=list
    )  # [start_ns, end_ns): communication, no computation


@dataclass(frozen=True)
class StepAcross:
    """One profiled step over all ranks and devices: sums, and where it took longest."""

    step: int | None
    windows: int  # ranks and devices that have it
    window_ns: int
    comm_ns: int
    compute_ns: int
    overlapped_ns: int
    exposed_ns: int
    idle_ns: int
    longest_ns: int
    longest_rank: int | None
    most_exposed_ns: int
    most_exposed_rank: int | None


@dataclass(frozen=True)
class Fleet:
    """What a report of a run too large for one process holds instead of all collectives and steps.

    `collectives` and `steps` of the report are then the most exposed ones; sums over all of them are here.
    """

    windows: int  # (rank, device, step) in all: what means are taken over
    rank_windows: list[int]  # of each of the report's `ranks`
    collectives: int  # in all
    collectives_at: str  # the folder that holds them, a Parquet file for each trace
    kinds: list[KindFigures]
    steps: list[StepAcross]


@dataclass(frozen=True)
class Report:
    tool: Tool
    environment: dict[str, Any]
    run: Run
    window: Window
    totals: Figures
    ranks: list[RankFigures]
    steps: list[StepFigures]
    collectives: Sequence[CollectiveFigures]  # a list, or analysis.collective_table.Collectives: columns
    groups: list[GroupFigures]
    gemms: list[GemmFigures]
    coverage: Coverage
    summary: list[str]  # the main sentences, most important first
    findings: list[Finding]
    data_quality: list[LedgerEntry]
    timeline: Timeline | None = None
    contention: list[ContentionFigures] | None = None
    clocks: list[Clock] | None = None  # None: one rank alone
    unmatched: list[Unmatched] | None = None
    stragglers: list[Straggler] | None = None
    memory: Memory | None = None
    critical_path: CriticalPath | None = None
    context_parallel: ContextParallel | None = None  # None: no attention over a shared sequence was found
    fleet: Fleet | None = None  # only in reports of runs too large for one process
    schema: Literal["sp-profile/report"] = SCHEMA
    schema_version: Literal[1] = field(default=SCHEMA_VERSION)

    def to_polars(self, table: str = "collectives") -> pl.DataFrame:
        """One table of the report; `sp_profiler.report.tables.TABLES` names them all."""
        from sp_profiler.report import tables

        return tables.to_polars(self, table)


def windows_of(report: Report, of: RankFigures | None = None) -> int:
    """How many windows a mean is taken over: of the totals, or of one rank and device. At least 1.

    Where the window is the whole trace it is the only one of its rank and device.
    """
    if of is None:
        return (len(report.steps) if report.fleet is None else report.fleet.windows) or 1
    return windows_by_rank(report).get((of.rank, of.device), 1)


def windows_by_rank(report: Report) -> dict[tuple[int | None, int], int]:
    """By rank and device how many windows it has, where it has any."""
    if report.fleet is None:
        return Counter((step.rank, step.device) for step in report.steps)
    keys = ((rank.rank, rank.device) for rank in report.ranks)
    return {key: n for key, n in zip(keys, report.fleet.rank_windows, strict=True) if n}


def collectives_of(report: Report) -> int:
    """How many collectives the run has; the report may hold only the most exposed ones."""
    return len(report.collectives) if report.fleet is None else report.fleet.collectives


def kinds_of(report: Report) -> list[KindFigures]:
    """All collectives by kind."""
    return kind_figures(Collectives.of(report.collectives)) if report.fleet is None else report.fleet.kinds


def by_step(report: Report) -> bool:
    """Whether means are per step (else per rank, over the whole trace)."""
    return report.window.rule == "step"
