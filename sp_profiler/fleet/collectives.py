"""All collectives of one rank as a Parquet file: what a fleet's report has no room for.

The columns are those of the report's table `collectives`, the same in every file, so that the files of a run
can be read as one (`polars.scan_parquet("collectives/*.parquet")`); the rank lists of groups are left out:
each row of a group of all ranks would repeat them.
"""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sp_profiler.analysis.causes import CAUSES
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Column, Numbers, Parts, Records, Words, column_of
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.fleet.work import replace_whole
from sp_profiler.trace.tables import Bool

_LEFT_OUT = ("ranks",)
_KINDS: dict[type, Any] = {int: pl.Int64, float: pl.Float64, bool: pl.Boolean, str: pl.String}


def write_parquet(place: Path, collectives: Collectives) -> None:
    """Write the collectives of a rank, whole or not at all. Raises OSError."""
    frame = to_frame(collectives)
    replace_whole(place, lambda file: frame.write_parquet(file, compression="zstd"))


def to_frame(collectives: Collectives) -> pl.DataFrame:
    """A column for each field of `CollectiveFigures`; of records and parts one for each of theirs."""
    series: list[pl.Series] = []
    for field in fields(CollectiveFigures):
        if field.name in _LEFT_OUT:
            continue
        kind = _kind(CollectiveFigures, field.name)
        if kind is dict:
            series.extend(_parts(collectives, field.name))
        elif is_dataclass(kind):
            series.extend(_record(collectives.records(field.name), field.name))
        elif kind in (int, float):
            series.append(_numbers(collectives.numbers(field.name), field.name, kind))
        else:
            series.append(_words(collectives.words(field.name), field.name, kind))
    return pl.DataFrame(series)


@cache  # reading hints takes longer than writing a small file
def _kind(cls: type, name: str) -> Any:
    """The type of a field when it is not None."""
    hint = typing.get_type_hints(cls)[name]
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    (kind,) = (option for option in options if option is not type(None))
    return typing.get_origin(kind) or kind


def _parts(collectives: Collectives, name: str) -> list[pl.Series]:
    """What each cause has of the exposed time; null where nothing is known of causes."""
    unknown = pl.Series(~_known(collectives.column(name)))
    found = (pl.Series(f"{name}.{cause}", collectives.exposed_by_cause(cause), pl.Int64) for cause in CAUSES)
    return [one.set(unknown, None) for one in found]


def _known(column: Column[Any]) -> Bool:
    if isinstance(column, Parts):
        return np.ones(len(column), np.bool_) if column.known is None else column.known
    return np.array([value is not None for value in column.tolist()], np.bool_)


def _record(records: Records, name: str) -> list[pl.Series]:
    unknown = pl.Series(~records.is_known)
    found: list[pl.Series] = []
    for field in fields(records.cls):
        kind, column = _kind(records.cls, field.name), records.field(field.name)
        title = f"{name}.{field.name}"
        if isinstance(column, Numbers):
            one = _numbers(column, title, kind)
        elif isinstance(column, Words):
            one = _words(column, title, kind)
        else:  # numbers that no trace can rightly hold
            cut = [None if v is None else max(-(2**62), min(v, 2**62)) for v in column.tolist()]
            one = _numbers(typing.cast(Numbers, column_of(records.cls, field.name, cut)), title, kind)
        found.append(one.set(unknown, None))
    return found


def _numbers(column: Numbers, name: str, kind: type) -> pl.Series:
    series = pl.Series(name, column.values, _KINDS[kind])
    return series if column.known is None else series.set(pl.Series(~column.known), None)


def _words(column: Words, name: str, kind: type) -> pl.Series:
    table = [value if isinstance(value, bool) else _storable(value) for value in column.table]
    words = pl.Series(name, [*table, None], _KINDS[kind])
    places = np.where(column.codes < 0, len(table), column.codes)
    return words.gather(pl.Series(places, dtype=pl.UInt32))


def _storable(value: Any) -> str:
    """Text that UTF-8 can hold: a lone surrogate is written out."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
