"""A table of a page: columns with their kinds, rows, and what rows that are left out add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sp_profiler.report.format import counted, visible
from sp_profiler.report.view_ranks import Listing

MOST_ROWS = 2000
"""Rows of a table on the page: the first ones, what counts most; the rest is in the data files."""


@dataclass(frozen=True)
class Column:
    """`kind`: text, int, ms (from ns), us (from ns), ratio, bytes, mib (from bytes), number. `unit` stands in
    the header."""

    key: str
    label: str
    kind: str
    unit: str = ""


@dataclass(frozen=True)
class Table:
    id: str
    title: str
    columns: list[Column]
    rows: list[list[Any]]
    total: int
    note: str = ""
    sums: dict[int, Any] = field(default_factory=dict)
    """Place of a column -> its sum over all `total` rows, of columns whose values add up."""
    all_at: str = ""
    """Where all rows are, if the report itself does not hold them (`note` says so)."""


def table_of(
    name: str,
    title: str,
    columns: Sequence[Column],
    items: Iterable[Any],
    get: Callable[[Any, str], Any] = getattr,
    note: str = "",
    adds: Sequence[str] = (),
) -> Table:
    """`adds`: keys of the columns whose values add up."""
    chosen = list(items)
    rows = [[get(item, column.key) for column in columns] for item in chosen[:MOST_ROWS]]
    sums = {
        place: _added(get(item, column.key) for item in chosen)
        for place, column in enumerate(columns)
        if column.key in adds
    }
    return _cut(Table(name, title, list(columns), rows, len(chosen), note, sums))


def listing_table(one: Listing) -> Table:
    """A listing as a table of a page."""
    columns = [Column(str(place), *column) for place, column in enumerate(one.columns)]
    note = f"{one.note} {one.basis.capitalize()}.".strip() if one.basis else one.note
    sums = {place: _added(row[place] for row in one.rows) for place in one.adds}
    return _cut(Table(one.id, one.title, columns, one.rows[:MOST_ROWS], len(one.rows), note, sums))


def _cut(table: Table) -> Table:
    """The table, with a sentence where it holds not all of its rows."""
    if len(table.rows) == table.total:
        return table
    return replace(
        table,
        note=f"{table.note} The first {len(table.rows)} of {table.total}; all are in report.json.".strip(),
    )


def plain_table(table: Table) -> dict[str, Any]:
    """For the page's script. Text is made visible here, so the script only ever sets text."""

    def inert(row: list[Any]) -> list[Any]:
        return [visible(cell) if isinstance(cell, str) else cell for cell in row]

    rest = rest_row(table, len(table.rows))
    plain = {"id": table.id, "title": table.title, "total": table.total, "note": table.note}
    return plain | {
        "columns": [asdict(column) for column in table.columns],
        "rows": [inert(row) for row in table.rows],
        "rest": None if rest is None else inert(rest),
    }


def rest_row(table: Table, shown: int) -> list[Any] | None:
    """The row that stands for all but the first `shown` ones: how many they are, and what they add up to.

    None where nothing is left out. Cells of columns that do not add up are empty text.
    """
    more = table.total - shown
    if more <= 0:
        return None
    row: list[Any] = [""] * len(table.columns)
    for place, whole in table.sums.items():
        part = _added(one[place] for one in table.rows[:shown])
        row[place] = None if whole is None or part is None else whole - part
    words = (place for place, column in enumerate(table.columns) if column.kind == "text")
    row[next(words, 0)] = f"… and {counted(more, 'more row')}"
    return row


def _added(values: Iterable[Any]) -> Any:
    """The sum; None where a value is not known."""
    known = list(values)
    return None if None in known else sum(known)
