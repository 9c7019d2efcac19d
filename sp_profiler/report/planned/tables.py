"""A plan as flat tables: CSV and Parquet.

| table         | one row per                                                        |
|---------------|--------------------------------------------------------------------|
| `schemes`     | scheme and size; the closed form's columns begin with `theory.`     |
| `terms`       | scheme, size and term of what is saved, executed and by the formula |
| `differences` | pair of schemes at one size                                        |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from sp_profiler.errors import UsageError
from sp_profiler.planning.model import Plan
from sp_profiler.report.json import to_plain
from sp_profiler.report.tables import csv_text, parquet_bytes

TABLES = ("schemes", "terms", "differences")
_SIZES = ("label", "layers", "seq_len", "micro_batch", "tp", "ranks")


def to_polars(plan: Plan, table: str = "schemes") -> pl.DataFrame:
    """One table of the plan, int64 bytes and ns. Raises UsageError for a table that does not exist."""
    if table not in TABLES:
        raise UsageError(f"there is no table '{table}' in a plan, only {', '.join(TABLES)}")
    rows = {"schemes": _schemes, "terms": _terms, "differences": _differences}[table](plan)
    return pl.DataFrame([dict(row) for row in rows], infer_schema_length=None)


def csv_tables(plan: Plan) -> dict[str, str]:
    """Every table as CSV text (RFC 4180, header line, null empty)."""
    return {table: csv_text(to_polars(plan, table)) for table in TABLES}


def parquet_tables(plan: Plan) -> dict[str, bytes]:
    """Every table as a Parquet file's bytes."""
    return {table: parquet_bytes(to_polars(plan, table)) for table in TABLES}


def _schemes(plan: Plan) -> Iterator[dict[str, Any]]:
    for scheme in plan.schemes:
        plain = to_plain(scheme)
        plain["extrapolated_from"] = _joined(plain["extrapolated_from"])
        yield dict(_flat(plain))


def _terms(plan: Plan) -> Iterator[dict[str, Any]]:
    for scheme in plan.schemes:
        sizes = {name: getattr(scheme, name) for name in _SIZES}
        for term, size in scheme.saved_by_term.items():
            yield sizes | {
                "term": term,
                "saved_bytes": size,
                "theory_saved_bytes": scheme.theory.saved_by_term[term],
            }


def _differences(plan: Plan) -> Iterator[dict[str, Any]]:
    terms = plan.schemes[0].saved_by_term
    for one in plan.differences:
        plain = to_plain(one)
        plain["saved_by_term"] = {term: one.saved_by_term.get(term, 0) for term in terms}
        yield dict(_flat(plain))


def _joined(numbers: list[int] | None) -> str | None:
    return None if numbers is None else " ".join(map(str, numbers))


def _flat(tree: dict[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """A map's entries as columns of their own: `theory.saved_bytes`."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{start}{key}.")
        else:
            yield f"{start}{key}", value
