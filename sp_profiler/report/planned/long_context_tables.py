"""A plan of long context as flat tables: CSV and Parquet.

| table            | one row per                                                                  |
|------------------|------------------------------------------------------------------------------|
| `schemes`        | scheme; its ring's columns begin with `ring.`, times with `forward.` and `backward.` |
| `transfers`      | scheme, direction and kind of what it sends                                  |
| `recommendation` | step of the recommendation                                                   |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_type_hints

import polars as pl

from sp_profiler.errors import UsageError
from sp_profiler.planning.long_context.model import (
    ContextScheme,
    LayerTime,
    LongContextPlan,
    RecommendedStep,
    RingFigures,
    ToHide,
    Transfer,
)
from sp_profiler.report.json import to_plain
from sp_profiler.report.tables import csv_text, parquet_bytes

TABLES = ("schemes", "transfers", "recommendation")
_APART = ("failures", "transfers", "saved_by_term")
"""Of a scheme: lists and maps, which are text here or a table of their own."""
_NESTED = {"ring": RingFigures, "forward": LayerTime, "backward": LayerTime, "to_hide": ToHide}
_TYPES = {"int": pl.Int64, "float": pl.Float64, "bool": pl.Boolean}


def to_polars(plan: LongContextPlan, table: str = "schemes") -> pl.DataFrame:
    """One table of the plan, int64 bytes and ns. Raises UsageError for a table that does not exist."""
    if table not in TABLES:
        raise UsageError(f"there is no table '{table}' in a plan of long context, only {', '.join(TABLES)}")
    rows = {"schemes": _schemes, "transfers": _transfers, "recommendation": _recommendation}[table](plan)
    columns = {
        "schemes": {**dict(_columns(ContextScheme)), "failures": pl.String},
        "transfers": {"label": pl.String, "tp": pl.Int64, "cp": pl.Int64, **dict(_columns(Transfer))},
        "recommendation": dict(_columns(RecommendedStep)),
    }[table]
    return pl.DataFrame([dict(row) for row in rows], schema=columns)


def csv_tables(plan: LongContextPlan) -> dict[str, str]:
    """Every table as CSV text (RFC 4180, header line, null empty)."""
    return {table: csv_text(to_polars(plan, table)) for table in TABLES}


def parquet_tables(plan: LongContextPlan) -> dict[str, bytes]:
    """Every table as a Parquet file's bytes."""
    return {table: parquet_bytes(to_polars(plan, table)) for table in TABLES}


def _columns(cls: type, start: str = "") -> Iterator[tuple[str, Any]]:
    """Names and types of a class's columns, those of nested ones by path: the same whatever is null."""
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.name in _APART:
            continue
        if field.name in _NESTED:
            yield from _columns(_NESTED[field.name], f"{start}{field.name}.")
        else:
            kinds = [kind for kind in _TYPES if kind in _words(hints[field.name])]
            yield f"{start}{field.name}", _TYPES[kinds[0]] if kinds else pl.String


def _words(hint: Any) -> list[str]:
    return getattr(hint, "__name__", str(hint)).replace("|", " ").split()


def _schemes(plan: LongContextPlan) -> Iterator[dict[str, Any]]:
    for scheme in plan.schemes:
        row = dict(_flat(ContextScheme, scheme))
        yield row | {"failures": "; ".join(failure.text for failure in scheme.failures) or None}


def _flat(cls: type, value: Any, start: str = "") -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(cls):
        inner = None if value is None else getattr(value, field.name)
        if field.name in _APART:
            continue
        if field.name in _NESTED:
            yield from _flat(_NESTED[field.name], inner, f"{start}{field.name}.")
        else:
            yield f"{start}{field.name}", inner


def _transfers(plan: LongContextPlan) -> Iterator[dict[str, Any]]:
    for scheme in plan.schemes:
        for each in scheme.transfers or ():
            yield {"label": scheme.label, "tp": scheme.tp, "cp": scheme.cp, **to_plain(each)}


def _recommendation(plan: LongContextPlan) -> Iterator[dict[str, Any]]:
    return (to_plain(step) for step in plan.recommendation)
