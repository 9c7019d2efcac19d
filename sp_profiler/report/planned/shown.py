"""What every output shows of a plan of whatever kind: the same texts and tables on screen, page and paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sp_profiler.ledger import LedgerEntry
from sp_profiler.planning.long_context.model import LongContextPlan
from sp_profiler.planning.model import Plan
from sp_profiler.report.view_ranks import Listing

AnyPlan = Plan | LongContextPlan


@dataclass(frozen=True)
class ShownStep:
    """One step of a recommendation."""

    title: str
    reason: str
    is_taken: bool


@dataclass(frozen=True)
class Shown:
    """`listings` are all tables, `not_on_screen` the ids of those that a terminal has no room for;
    `lines` are shown there in their place."""

    title: str
    chips: list[str]
    settings: str
    sentences: list[str]
    listings: list[Listing]
    assumptions: list[str]
    machine: str | None
    sources: list[str]
    data_quality: Sequence[LedgerEntry]
    tool: str
    steps: list[ShownStep] = field(default_factory=list)
    not_on_screen: frozenset[str] = frozenset()
    lines: list[str] = field(default_factory=list)


def shown(plan: AnyPlan) -> Shown:
    """The texts and tables of a plan."""
    from sp_profiler.report.planned import long_context_view, view

    return long_context_view.shown(plan) if isinstance(plan, LongContextPlan) else view.shown(plan)


def table_files(plan: AnyPlan, form: str) -> dict[str, str] | dict[str, bytes]:
    """The tables of a plan as csv or parquet, by name."""
    from sp_profiler.report.planned import long_context_tables, tables

    if isinstance(plan, LongContextPlan):
        made = long_context_tables
        return made.csv_tables(plan) if form == "csv" else made.parquet_tables(plan)
    return tables.csv_tables(plan) if form == "csv" else tables.parquet_tables(plan)
