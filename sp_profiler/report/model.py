"""What a report contains: the machine-readable contract, and nothing about how it is shown.

Names and units are stable: fields are added freely, never renamed. The JSON Schema beside this file
(`schema.json`) is generated from these classes; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sp_profiler.analysis.context_parallel.results import ContextParallel
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
        return len(report.steps) or 1
    return sum((step.rank, step.device) == (of.rank, of.device) for step in report.steps) or 1


def by_step(report: Report) -> bool:
    """Whether means are per step (else per rank, over the whole trace)."""
    return report.window.rule == "step"
