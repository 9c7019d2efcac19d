"""What is left of a trace after its analysis, as tables of the work folder.

Everything of a `RankOutcome` but its arrivals (which are stored by community), its timeline and lanes, its
memory, and what the rank shows of a shared sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Records
from sp_profiler.analysis.results import (
    CollectiveFigures,
    Coverage,
    ExposedStretches,
    GemmFigures,
    GemmSamples,
    GroupFigures,
    RankFigures,
    RankResult,
    StepFigures,
)
from sp_profiler.engine import RankOutcome
from sp_profiler.fleet.work import Table, Work
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.build import TraceFacts
from sp_profiler.report.kept import packed, unpacked

Key = tuple[str, str | None, str]
_STRETCH_COLUMNS = tuple(field.name for field in fields(ExposedStretches) if field.name != "evidence")
_SAMPLE_COLUMNS = tuple(field.name for field in fields(GemmSamples) if field.name != "keys")
_COLLECTIVE_FIELDS = tuple(field.name for field in fields(CollectiveFigures))


@dataclass(frozen=True)
class _Facts:
    """What is no array of an outcome. The lists of `evidence` and `sample_keys` are device by device."""

    facts: TraceFacts
    ranks: tuple[RankFigures, ...]
    steps: tuple[StepFigures, ...]
    groups: tuple[GroupFigures, ...]
    gemms: tuple[GemmFigures, ...]
    ratios: tuple[float | None, float | None, float | None]
    coverage: Coverage
    ledger: tuple[LedgerEntry, ...]
    length: int
    columns: dict[str, Any]
    evidence: list[dict[str, Any]]
    sample_keys: list[list[Key] | None]


def table_of(number: int) -> str:
    """The name of the table of the `number`-th file."""
    return f"ranks/{number:05d}"


def save_outcome(work: Work, number: int, outcome: RankOutcome) -> None:
    """Write the outcome of the `number`-th file. Raises OSError."""
    result = outcome.result
    collectives = Collectives.of(result.collectives)
    arrays: dict[str, np.ndarray] = {}
    columns = {
        name: packed(collectives.column(name), f"collectives.{name}", arrays) for name in _COLLECTIVE_FIELDS
    }
    evidence: list[dict[str, Any]] = []
    for place, stretches in enumerate(result.stretches):
        evidence.append(packed(stretches.evidence, f"stretches.{place}.evidence", arrays))
        for name in _STRETCH_COLUMNS:
            arrays[f"stretches.{place}.{name}"] = getattr(stretches, name)
    for place, samples in enumerate(result.gemm_samples):
        if samples is not None:
            for name in _SAMPLE_COLUMNS:
                arrays[f"samples.{place}.{name}"] = getattr(samples, name)
    facts = _Facts(
        facts=outcome.facts,
        ranks=result.ranks,
        steps=result.steps,
        groups=result.groups,
        gemms=result.gemms,
        ratios=(result.gemm_role_known_ratio, result.purpose_known_ratio, result.comm_metadata_ratio),
        coverage=result.coverage,
        ledger=result.ledger,
        length=len(collectives),
        columns=columns,
        evidence=evidence,
        sample_keys=[None if one is None else list(one.keys) for one in result.gemm_samples],
    )
    work.save(table_of(number), arrays, facts)


def load_outcome(work: Work, number: int) -> RankOutcome:
    """What `save_outcome` wrote, without arrivals. Raises one of `work.BROKEN`."""
    with work.open(table_of(number)) as table:
        told = table.facts(_Facts)
        columns = {
            name: unpacked(about, f"collectives.{name}", table) for name, about in told.columns.items()
        }
        result = RankResult(
            ranks=told.ranks,
            steps=told.steps,
            collectives=Collectives(columns, told.length),
            groups=told.groups,
            gemms=told.gemms,
            gemm_role_known_ratio=told.ratios[0],
            purpose_known_ratio=told.ratios[1],
            comm_metadata_ratio=told.ratios[2],
            ledger=told.ledger,
            coverage=told.coverage,
            stretches=tuple(_stretches(table, place, one) for place, one in enumerate(told.evidence)),
            gemm_samples=_samples(table, told),
        )
    return RankOutcome(told.facts, result, None)


def load_samples(work: Work, number: int) -> tuple[GemmSamples | None, ...]:
    """The GEMM samples of a file alone, device by device. Raises one of `work.BROKEN`."""
    with work.open(table_of(number)) as table:
        return _samples(table, table.facts(_Facts))


def _stretches(table: Table, place: int, evidence: dict[str, Any]) -> ExposedStretches:
    columns = {name: table[f"stretches.{place}.{name}"] for name in _STRETCH_COLUMNS}
    records = unpacked(evidence, f"stretches.{place}.evidence", table)
    assert isinstance(records, Records)
    return ExposedStretches(**columns, evidence=records)


def _samples(table: Table, told: _Facts) -> tuple[GemmSamples | None, ...]:
    return tuple(
        None
        if keys is None
        else GemmSamples(tuple(keys), *(table[f"samples.{place}.{name}"] for name in _SAMPLE_COLUMNS))
        for place, keys in enumerate(told.sample_keys)
    )
