"""The collectives of a rank or of a run: a list of `CollectiveFigures` to whoever asks for one, else columns.

A run of 64 ranks has a million collectives. Each as an object takes 1 KB and is made anew for every field
that is filled in; in columns they take a quarter, and what is asked of all is one operation on arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from operator import attrgetter
from typing import Any, overload

import numpy as np

from sp_profiler.analysis.columns import Column, Numbers, Objects, Parts, Records, Words, column_of, joined
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.trace.tables import Bool, Int64

FIELDS = tuple(field.name for field in fields(CollectiveFigures))
_DEFAULTS = {field.name: field.default for field in fields(CollectiveFigures) if field.default is not MISSING}
_AT_ONCE = 1 << 14  # objects made together while a table is walked


class Collectives(Sequence[CollectiveFigures]):
    """Equal to a list or tuple of the same collectives. Immutable; `changed` gives another table.

    Fields of which no column is given are None, their default.
    """

    __slots__ = ("_columns", "_length")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, columns: Mapping[str, Column[Any]], length: int) -> None:
        self._length = length
        self._columns = dict(columns)

    @staticmethod
    def of(rows: Iterable[CollectiveFigures]) -> Collectives:
        """The table of these collectives; itself when they are one."""
        if isinstance(rows, Collectives):
            return rows
        found = list(rows)
        names = [name for name in FIELDS if found or name not in _DEFAULTS]
        columns = {name: list(map(attrgetter(name), found)) for name in names}
        return Collectives(
            {name: column_of(CollectiveFigures, name, values) for name, values in columns.items()}, len(found)
        )

    @staticmethod
    def joined(tables: Iterable[Iterable[CollectiveFigures]]) -> Collectives:
        """The collectives of all tables, one after the other."""
        every = [Collectives.of(one) for one in tables]
        found = [one for one in every if len(one)] or every[:1] or [Collectives.of(())]
        names = dict.fromkeys(name for one in found for name in one._columns)
        columns = {name: joined([one.column(name) for one in found]) for name in names}
        return Collectives(columns, sum(map(len, found)))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[CollectiveFigures]:
        for low in range(0, self._length, _AT_ONCE):
            yield from self._objects(slice(low, low + _AT_ONCE))

    @overload
    def __getitem__(self, place: int) -> CollectiveFigures: ...
    @overload
    def __getitem__(self, place: slice) -> Collectives: ...
    def __getitem__(self, place: int | slice) -> CollectiveFigures | Collectives:
        if isinstance(place, slice):
            return self.take(place)
        at = range(self._length)[place]
        (one,) = self._objects(slice(at, at + 1))
        return one

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Collectives, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"Collectives({list(self)!r})" if len(self) < 10 else f"<{len(self)} collectives>"

    def _objects(self, rows: slice) -> list[CollectiveFigures]:
        count = len(range(self._length)[rows])
        columns = [
            self._columns[name].take(rows).tolist() if name in self._columns else [_DEFAULTS[name]] * count
            for name in FIELDS
        ]
        return [CollectiveFigures(*row) for row in zip(*columns, strict=True)]

    # --- columns ---------------------------------------------------------------------------------------

    def column(self, name: str) -> Column[Any]:
        """The column of a field, which is of the kind that `column_of` gives it."""
        found = self._columns.get(name)
        return found if found is not None else self._missing(name)

    def _missing(self, name: str) -> Column[Any]:
        if self._length == 0:
            return column_of(CollectiveFigures, name, ())
        empty = column_of(CollectiveFigures, name, (None,))
        return empty.take(np.zeros(self._length, np.int64))

    def numbers(self, name: str) -> Numbers:
        """The column of a field of numbers. What exceeds 62 bits, in a trace that cannot be right, is cut."""
        column = self.column(name)
        if isinstance(column, Objects):
            column = column_of(CollectiveFigures, name, [_cut(value) for value in column.values])
        assert isinstance(column, Numbers), name
        return column

    def words(self, name: str) -> Words:
        """The column of a field of text, truth values or lists."""
        column = self.column(name)
        assert isinstance(column, Words), name
        return column

    def records(self, name: str) -> Records:
        """The column of `partner` or `cause_evidence`."""
        column = self.column(name)
        assert isinstance(column, Records), name
        return column

    def exposed_by_cause(self, cause: str) -> Int64:
        """The exposed ns of each that a cause has; 0 where it has none, or nothing is known of causes."""
        column = self.column("exposed_by_cause_ns")
        if isinstance(column, Parts):
            if cause not in column.names:
                return np.zeros(self._length, np.int64)
            amount = column.amount[:, column.names.index(cause)]
            return amount if column.known is None else np.where(column.known, amount, 0)
        return np.array([(parts or {}).get(cause, 0) for parts in column.tolist()], np.int64)

    def total(self, name: str) -> int:
        """The exact sum of a field of numbers over the collectives that know it."""
        column = self.column(name)
        if isinstance(column, Numbers):
            return exact_sum(column.or_zero())
        return sum(value for value in column.tolist() if value is not None)

    def counts(self, name: str) -> dict[Any, int]:
        """How often each value of a field occurs, in the order in which it first does; None among them."""
        column = self.column(name)
        codes = _codes(column)
        if codes is None:
            return dict(Counter(column.tolist()))
        _, first, count = np.unique(codes, return_index=True, return_counts=True)
        order = np.argsort(first)
        values = column.take(first[order]).tolist()
        return {_hashable(value): n for value, n in zip(values, count[order].tolist(), strict=True)}

    def codes(self, name: str) -> Int64:
        """A small number for each row, equal where a field's values are; -1 for None."""
        codes = _codes(self.column(name))
        return Words.of(self.column(name).tolist()).codes.astype(np.int64) if codes is None else codes

    def kinds(self, *names: str) -> tuple[list[tuple[Any, ...]], Int64]:
        """The distinct combinations of fields in order of first appearance, and which one each row has."""
        first, kind = kinds_of([self.codes(name) for name in names], self._length)
        values = zip(*(self.column(name).take(first).tolist() for name in names), strict=True)
        return list(values), kind

    # --- other tables ----------------------------------------------------------------------------------

    def take(self, rows: Int64 | Bool | slice) -> Collectives:
        """The collectives at these places, in their order (or where a mask is true)."""
        if not isinstance(rows, slice) and rows.dtype == np.bool_:
            if rows.all():
                return self
            rows = np.flatnonzero(rows)
        count = len(range(self._length)[rows]) if isinstance(rows, slice) else len(rows)
        return Collectives({name: column.take(rows) for name, column in self._columns.items()}, count)

    def changed(self, **columns: Column[Any]) -> Collectives:
        """The table with these columns in place of what it had."""
        return Collectives(self._columns | columns, self._length)


def kinds_of(columns: Sequence[Int64], length: int) -> tuple[Int64, Int64]:
    """(the first row of each distinct combination, which one each row has), in order of first appearance.

    `columns` hold numbers from -1 on, a row each.
    """
    codes, size = np.zeros(length, np.int64), 1
    for column in columns:
        width = int(column.max(initial=-1)) + 2
        if size * width >= 2**62:
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
            size = int(codes.max(initial=0)) + 1
        codes, size = codes * width + column + 1, size * width
    _, first, place = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[place]


def exact_sum(values: Int64) -> int:
    """The sum as Python has it, whatever its size."""
    if len(values) and len(values) * max(abs(int(values.min())), abs(int(values.max()))) >= 2**63:
        return sum(values.tolist())
    return int(values.sum())


def _cut(value: int | None) -> int | None:
    return None if value is None else max(-(2**62), min(value, 2**62))


def _codes(column: Column[Any]) -> Int64 | None:
    """Equal numbers for equal values; None where the column has none to give."""
    if isinstance(column, Words):
        return column.codes.astype(np.int64)
    if isinstance(column, Numbers):
        codes = np.unique(column.values, return_inverse=True)[1]
        return codes if column.known is None else np.where(column.known, codes, -1)
    return None


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
