"""The stages across ranks of a run too large for one process: matching, clocks, waits.

The same functions as `analysis.across.across_ranks` calls, community by community, as tasks; between the
stages only what is bounded by ranks, hosts and groups comes to the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from sp_profiler.analysis.anomalies import EndsApart
from sp_profiler.analysis.filled import GroupAcross
from sp_profiler.analysis.results import Clock, RankResult, Straggler, Unmatched
from sp_profiler.fleet.communities import RankIn
from sp_profiler.fleet.engines import Done, Failed
from sp_profiler.fleet.work import Work
from sp_profiler.ledger import LedgerEntry

Task = TypeVar("Task", bound="Named")
Value = TypeVar("Value")


class Named(Protocol):
    """A task: a frozen dataclass that holds the work folder; `name` is unique in the run and a path."""

    @property
    def name(self) -> str: ...


class Stage(Protocol):
    """Runs the tasks of one stage, in any order, as `Engine.run` does.

    `kind` is the type of the values, dataclasses of plain fields: whoever resumes a run keeps the value of a
    task under its `name` and gives it back. A task that is given up comes as `Failed`.
    """

    def __call__(
        self, function: Callable[[Task], Value], tasks: Iterable[Task], kind: type[Value]
    ) -> Iterator[Done[Task, Value] | Failed[Task]]: ...


@dataclass(frozen=True)
class Bounds:
    """What one task and one report may hold."""

    rows: int = 4_000_000  # a larger community whose collectives all carry `Seq` is cut into slices
    unmatched: int = 2_000  # the earliest are listed, the others counted
    differences: int = 32_000_000  # of end times that are sorted in memory; more are counted in passes


@dataclass(frozen=True)
class AcrossFleet:
    """What was found between the ranks; the fields of `analysis.across.AcrossRanks` without its rows.

    `ends_apart.figures` name a rank by its `RankIn.number`. Group sums and the notes on bandwidth come with
    the ranks (`RankAcross`).
    """

    clocks: list[Clock] | None
    unmatched: list[Unmatched]
    unmatched_left_out: int
    stragglers: list[Straggler] | None
    skew_wait_ns: int | None  # None: nothing was matched, and causes are not settled anew
    tied_ns: int
    ends_apart: EndsApart | None
    ledger: tuple[LedgerEntry, ...]


def across_fleet(
    work: Work,
    ranks: Sequence[RankIn],
    stage: Stage,
    *,
    run_json: Mapping[str, Any] | None = None,
    world_size: int | None = None,
    bounds: Bounds = Bounds(),
) -> AcrossFleet:
    """Match, align and measure. `ranks` in the order of `analyze_files`: by rank. Raises OSError.

    What `fill_of` needs lies in the work folder afterwards. A community whose task is given up stays
    unmatched, with a `loss` in the ledger.
    """
    raise NotImplementedError


@dataclass(frozen=True)
class RankAcross:
    """What the filled collectives of a rank add to the run's figures; adds up in any order (`merged`)."""

    waits: dict[str, int] = field(default_factory=dict)  # skew wait by group
    sums: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # group, op: count, bytes, ns, bounds
    factors: dict[str, dict[str, float | None]] = field(default_factory=dict)  # busbw / algbw
    bandwidth_unknown: int = 0
    busbw_unknown: int = 0

    @staticmethod
    def merged(parts: Sequence[RankAcross]) -> RankAcross:
        raise NotImplementedError

    def groups(self) -> dict[str, GroupAcross]:
        """By group, as `AcrossRanks.groups`."""
        raise NotImplementedError

    def ledger(self) -> tuple[LedgerEntry, ...]:
        """Notes on bandwidths that are null; they follow those of `AcrossFleet`."""
        raise NotImplementedError


@dataclass(frozen=True)
class FilledRank:
    """A rank's result with waits, transfers and bandwidths in its collectives, and what it adds to the run."""

    result: RankResult
    across: RankAcross


def fill_of(work: Work, number: int, result: RankResult) -> FilledRank:
    """Fill what the other ranks tell into the collectives of rank `number`. Causes are not settled here:
    call `analysis.causes.settle` where `AcrossFleet.skew_wait_ns` is not None. Raises one of `work.BROKEN`."""
    raise NotImplementedError
