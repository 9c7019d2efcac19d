"""What the rules look at, and the one way to make a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from sp_profiler.analysis.context_parallel.results import ContextParallel
from sp_profiler.analysis.kinds import EXAMPLES, CollectiveKinds
from sp_profiler.analysis.memory.results import Memory
from sp_profiler.analysis.results import CollectiveFigures, ContentionFigures, Figures, Straggler
from sp_profiler.report.format import duration
from sp_profiler.report.model import Finding

__all__ = [
    "EXAMPLES", "EndsDisagree", "Facts", "finding", "is_on", "is_told", "place_of", "variable",
]  # fmt: skip


@dataclass(frozen=True)
class EndsDisagree:
    """Collectives whose ranks' ends disagree on aligned clocks; `ids` of the largest."""

    collectives: int
    largest_ns: int
    groups: Sequence[str]
    ranks: Sequence[int]
    ids: Sequence[int]


@dataclass(frozen=True)
class Facts:
    """What the rules look at. `environment` is run.json's; None when the run was recorded elsewhere.

    `compute_capability` is the lowest major number among the devices, None when nothing tells it. `windows`
    is what a mean is taken over: steps of all ranks and devices where `by_step`, else ranks and devices.
    """

    totals: Figures
    collectives: Sequence[CollectiveFigures] | CollectiveKinds
    windows: int
    is_cpu: bool
    workload: dict[str, Any] | None
    environment: dict[str, Any] | None
    compute_capability: int | None
    by_step: bool = True
    command: Sequence[str] | None = None
    contention: Sequence[ContentionFigures] | None = None
    stragglers: Sequence[Straggler] | None = None
    ends_disagree: EndsDisagree | None = None
    memory: Memory | None = None
    context_parallel: ContextParallel | None = None

    @cached_property
    def kinds(self) -> CollectiveKinds:
        """The collectives by kind."""
        return CollectiveKinds.of(self.collectives)

    @cached_property
    def between_ranks(self) -> CollectiveKinds:
        """All collectives but those of groups of one rank, which move nothing."""
        return self.kinds.where(lambda kind: not kind.is_alone)

    def mean(self, ns: float) -> str:
        """A sum as the report speaks of it: "1.2 ms per step"."""
        return f"{self.mean_of(ns)} {self.per}"

    def mean_of(self, ns: float) -> str:
        """The same without "per step"."""
        return duration(ns / max(self.windows, 1))

    @property
    def per(self) -> str:
        return "per step" if self.by_step else "per rank"

    def share_of_time(self, ns: int) -> float:
        """Its part of all windows; 0 where there are none."""
        return ns / self.totals.window_ns if self.totals.window_ns else 0.0


def finding(
    code: str,
    severity: Literal["info", "advice", "warning"],
    text: str,
    evidence: dict[str, Any],
    advice: str,
) -> Finding:
    """A finding. Raises ValueError when it lacks evidence: such a finding is a defect."""
    if not evidence or any(value is None or value == [] for value in evidence.values()):
        raise ValueError(f"finding '{code}' lacks evidence")
    return Finding(code, severity, text, evidence, advice)


def place_of(one: CollectiveFigures, **more: Any) -> dict[str, Any]:
    """Where a collective is in the trace, with what else is known of it."""
    told = {"id": one.id, "rank": one.rank, "step": one.step, "op": one.op, "group": one.group}
    told |= {"module": one.module, "start_ns": one.start_ns, "dur_ns": one.dur_ns} | more
    return {key: value for key, value in told.items() if value is not None}


_UNTOLD: Any = object()


def is_told(value: Any) -> bool:
    """Whether anything tells a variable (see `variable`)."""
    return value is not _UNTOLD


def variable(facts: Facts, name: str) -> Any:
    """The variable's text, None when it was not set; `is_told` is false when nothing tells."""
    return _UNTOLD if facts.environment is None else facts.environment.get(name, _UNTOLD)


def is_on(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() in ("1", "true", "y", "yes", "on")
