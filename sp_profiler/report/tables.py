"""The report as flat tables: CSV for people and spreadsheets, Parquet and polars for programs.

| table         | one row per                                                                  |
|---------------|------------------------------------------------------------------------------|
| `ranks`       | rank and device                                                              |
| `steps`       | rank, device and step                                                        |
| `collectives` | collective of one rank                                                       |
| `groups`      | process group                                                                |
| `gemms`       | GEMM name, shape, dtype and role                                             |
| `contention`  | GEMM shape, dtype and role: while communication overlaps it, and while not   |
| `bandwidth`   | group and operation                                                          |
| `clocks`      | host                                                                         |
| `stragglers`  | rank that the others waited for                                              |
| `unmatched`   | collective that some of its ranks lack                                       |
| `memory_peaks`| rank and device: the peak, what crosses the border, what was there           |
| `memory_borders` | rank, device, forward -> backward border, `by` and `key`: what is kept, long |
| `memory_blocks` | block of memory of one device: the largest                                 |
| `saved_tensors` | rank, term and layer (null: all layers): by hooks, beside the closed form  |
| `context_schemes` | set of ranks that share a sequence                                       |
| `context_hops` | hop of one rank, by phase and by what it sends                              |
| `context_balance` | rank, phase and ring step (null: all of them): attention, what is lost   |
| `context_models` | group and phase: the step model beside the measurement                    |
| `context_layout_copies` | rank and phase: all-to-alls and the copies around them             |
| `exposed`     | rank, device, step (null: all), `by` and `key`: every exposed_by_* map, long |
| `left_out`    | rank, device, reason and kind                                                |
| `data_quality`| ledger entry                                                                 |

A map becomes one column per key (`overlapped_by_role_ns.wgrad`); where a row's map lacks a key, its
part is 0, where there is no map, null. Maps by module and layer, which may have hundreds of keys,
are found in `exposed` only.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import polars as pl

from sp_profiler.analysis.results import Figures
from sp_profiler.errors import UsageError
from sp_profiler.report import context_tables, memory_tables
from sp_profiler.report.format import visible
from sp_profiler.report.json import to_plain
from sp_profiler.report.model import Report

TABLES = (
    "ranks",
    "steps",
    "collectives",
    "groups",
    "gemms",
    "bandwidth",
    "contention",
    "clocks",
    "stragglers",
    "unmatched",
    "memory_peaks",
    "memory_borders",
    "memory_blocks",
    "saved_tensors",
    *context_tables.COLUMNS,
    "exposed",
    "left_out",
    "data_quality",
)

_LONG_ONLY = ("exposed_by_module_ns", "exposed_by_layer_ns", "left_out", "bandwidth")
_EXPOSED_MAPS = tuple(f.name for f in fields(Figures) if f.name.startswith("exposed_") and "_by_" in f.name)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_LIST_COLUMNS = dict.fromkeys(("ranks", "ranks_present", "ranks_missing"), pl.List(pl.Int64)) | {
    "groups": pl.List(pl.String)
}

_KINDS: dict[type, Any] = {int: pl.Int64, float: pl.Float64, bool: pl.Boolean, str: pl.String}
_NO_KINDS: Mapping[str, type] = {}

Row = dict[str, Any]


def to_polars(report: Report, table: str = "collectives") -> pl.DataFrame:
    """One table of the report, exact: names as in the trace, int64 ns and bytes.

    Raises UsageError for a table that does not exist.
    """
    if table not in TABLES:
        raise UsageError(f"there is no table '{table}' in a report, only {', '.join(TABLES)}")
    kinds = context_tables.kinds(table) if table in context_tables.COLUMNS else {}
    return _frame(list(_rows(report, table)), _columns_without_rows(table), kinds)


def csv_tables(report: Report) -> dict[str, str]:
    """Every table as CSV text (RFC 4180, UTF-8, header line, null empty).

    Text that a spreadsheet would run as a formula gets a leading apostrophe, and characters that
    act on a screen are written out; Parquet keeps the names as they are.
    """
    return {table: csv_text(to_polars(report, table)) for table in TABLES}


def parquet_tables(report: Report) -> dict[str, bytes]:
    """Every table as the bytes of a Parquet file (zstd)."""
    return {table: parquet_bytes(to_polars(report, table)) for table in TABLES}


def file_of(rows: Sequence[Row], columns: Sequence[str], output: str) -> str | bytes:
    """Rows as a file's content, as `csv_tables` ("csv") and `parquet_tables` ("parquet") write theirs."""
    frame = _frame(rows, columns)
    return csv_text(frame) if output == "csv" else parquet_bytes(frame)


def _rows(report: Report, table: str) -> Iterator[Row]:
    if table == "exposed":
        yield from _exposed_rows(report)
    elif table == "bandwidth":
        for group in report.groups:
            for entry in group.bandwidth or ():
                yield {"group": group.group} | to_plain(entry)
    elif table in memory_tables.COLUMNS:
        yield from memory_tables.rows(report.memory, table)
    elif table in context_tables.COLUMNS:
        yield from context_tables.rows(report.context_parallel, table)
    elif table == "left_out":
        for figures in report.ranks:
            for entry in figures.left_out:
                yield {"rank": figures.rank, "device": figures.device} | to_plain(entry)
    else:
        for item in getattr(report, table) or ():
            plain = to_plain(item)
            yield {key: value for key, value in plain.items() if key not in _LONG_ONLY}


def _exposed_rows(report: Report) -> Iterator[Row]:
    for figures in (*report.ranks, *report.steps):
        step = getattr(figures, "step", None)
        for name in _EXPOSED_MAPS:
            by = name.removeprefix("exposed_").removeprefix("by_").removesuffix("_ns").replace("_", "-")
            for key, ns in (getattr(figures, name) or {}).items():
                yield {
                    "rank": figures.rank,
                    "device": figures.device,
                    "step": step,
                    "by": by,
                    "key": str(key),
                    "ns": int(ns),
                }


def _columns_without_rows(table: str) -> list[str]:
    """Names of the columns of a table that may be empty, so that an empty table has a header."""
    from sp_profiler.analysis.results import (
        Bandwidth,
        Clock,
        CollectiveFigures,
        ContentionFigures,
        GemmFigures,
        GroupFigures,
        LeftOut,
        RankFigures,
        StepFigures,
        Straggler,
        Unmatched,
    )
    from sp_profiler.ledger import LedgerEntry

    classes = {
        "ranks": RankFigures,
        "steps": StepFigures,
        "collectives": CollectiveFigures,
        "groups": GroupFigures,
        "gemms": GemmFigures,
        "contention": ContentionFigures,
        "clocks": Clock,
        "stragglers": Straggler,
        "unmatched": Unmatched,
        "data_quality": LedgerEntry,
    }
    if table == "exposed":
        return ["rank", "device", "step", "by", "key", "ns"]
    if table in memory_tables.COLUMNS:
        return memory_tables.COLUMNS[table]
    if table in context_tables.COLUMNS:
        return context_tables.COLUMNS[table]
    if table == "bandwidth":
        return ["group", *(f.name for f in fields(Bandwidth))]
    if table == "left_out":
        return ["rank", "device", *(f.name for f in fields(LeftOut))]
    return [f.name for f in fields(classes[table]) if f.name not in _LONG_ONLY]


def _frame(
    rows: Sequence[Row], columns: Sequence[str], kinds: Mapping[str, type] = _NO_KINDS
) -> pl.DataFrame:
    """`kinds`: types of columns, for those that hold no value; else their names tell."""
    keys = _map_keys(rows)
    flat: dict[str, list[Any]] = {}
    for column in columns:
        if column in keys:
            for path in keys[column]:
                flat[".".join((column, *path))] = [_at(row[column], path) for row in rows]
        elif rows:
            flat[column] = [row[column] for row in rows]
        else:
            flat[column] = []
    return pl.DataFrame([_series(name, values, kinds.get(name)) for name, values in flat.items()])


def _map_keys(rows: Sequence[Row]) -> dict[str, list[tuple[str, ...]]]:
    """Of each column that holds maps, the paths to their leaves, in the order first met."""
    found: dict[str, dict[tuple[str, ...], None]] = {}
    for row in rows:
        for column, value in row.items():
            if isinstance(value, dict):
                found.setdefault(column, {}).update(dict.fromkeys(_paths(value)))
    return {column: list(paths) for column, paths in found.items()}


def _paths(tree: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from ((key, *path) for path in _paths(value))
        else:
            yield (key,)


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if tree is None:
            return None
        if key not in tree:  # the parts of a map sum to the whole: what it does not name has no part
            return 0 if len(path) == 1 else None
        tree = tree[key]
    return tree


def _series(name: str, values: list[Any], told: type | None = None) -> pl.Series:
    present = [value for value in values if value is not None]
    kind: Any
    if name in _LIST_COLUMNS and all(isinstance(value, list) for value in present):
        kind = _LIST_COLUMNS[name]
    elif present and all(isinstance(value, bool) for value in present):
        kind = pl.Boolean
    elif present and all(isinstance(value, int) for value in present):
        kind = pl.Int64
    elif present and all(isinstance(value, (int, float)) for value in present):
        kind = pl.Float64
    elif not present:
        kind = _kind_by_name(name) if told is None else _KINDS[told]
    else:
        kind = pl.String
        values = [None if value is None else _storable(value) for value in values]
    return pl.Series(_storable(name), values, dtype=kind)


def _kind_by_name(name: str) -> Any:
    """The type of a column without any value, so that files of two runs can be concatenated."""
    if name.endswith(("_ns", "_bytes", "_count", "_step", "_passes")) or name in (
        "rank",
        "device",
        "step",
        "ns",
        "bytes",
        "count",
        "seq",
        "layer",
        "events",
        "tensors",
        "totals_checked",
        "totals_disagree",
    ):
        return pl.Int64
    if name.endswith(("_ratio", "_gbps")) or name in ("hidden_of_hideable", "tflops"):
        return pl.Float64
    is_flag = name.startswith("is_") or name in ("transfer_is_bound", "crosses_border")
    return pl.Boolean if is_flag else pl.String


def _storable(value: Any) -> str:
    """Text that UTF-8 can hold: a lone surrogate is written out."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def csv_text(frame: pl.DataFrame) -> str:
    """A table as CSV text, with nothing in it that acts on a screen or in a spreadsheet."""
    columns: list[pl.Series] = []
    for series in frame:
        name = _inert(series.name)
        if isinstance(series.dtype, pl.List):
            between = "; " if series.dtype == pl.List(pl.String) else " "
            lists = [None if value is None else between.join(map(str, value)) for value in series.to_list()]
            texts = [None if value is None else _inert(value) for value in lists]
            columns.append(pl.Series(name, texts, dtype=pl.String))
        elif series.dtype == pl.String:
            texts = [None if value is None else _inert(value) for value in series.to_list()]
            columns.append(pl.Series(name, texts, dtype=pl.String))
        else:
            columns.append(series.alias(name))
    return pl.DataFrame(_told_apart(columns)).write_csv()


def _inert(text: str) -> str:
    shown = visible(text)
    return f"'{shown}" if text.lstrip(" ").startswith(_FORMULA_STARTS) else shown


def parquet_bytes(frame: pl.DataFrame) -> bytes:
    """A table as the bytes of a Parquet file (zstd)."""
    sink = io.BytesIO()
    frame.write_parquet(sink, compression="zstd")
    return sink.getvalue()


def _told_apart(columns: list[pl.Series]) -> list[pl.Series]:
    """Columns whose names became equal when they were written out get a number."""
    seen: dict[str, int] = {}
    out: list[pl.Series] = []
    for series in columns:
        count = seen[series.name] = seen.get(series.name, 0) + 1
        out.append(series if count == 1 else series.alias(f"{series.name} ({count})"))
    return out
