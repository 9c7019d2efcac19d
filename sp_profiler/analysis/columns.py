"""Columns of values that may be None: what a run's collectives are kept in, a million rows at little cost.

Each kind answers the same: `len`, `tolist`, `take(rows)`, and `joined` columns of its kind. `column_of` makes
the right kind for a field of a dataclass.
"""

from __future__ import annotations

import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sp_profiler.trace.tables import NONE, Bool, Int32, Int64

T = TypeVar("T")
_LARGEST = 2**62


class Column(ABC, Generic[T]):
    """Values of one kind, some perhaps None."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def tolist(self) -> list[T | None]:
        """The values as Python has them."""

    @abstractmethod
    def take(self, rows: Any) -> Column[T]:
        """The rows at these places (int64 array or slice), in their order."""


@dataclass(frozen=True, eq=False)
class Numbers(Column[Any]):
    """Numbers, int64 or float64. `known` is None where all are."""

    values: NDArray[Any]
    known: Bool | None = None

    def __len__(self) -> int:
        return len(self.values)

    def tolist(self) -> list[Any]:
        if self.known is None:
            return self.values.tolist()
        pairs = zip(self.values.tolist(), self.known.tolist(), strict=True)
        return [value if is_known else None for value, is_known in pairs]

    def take(self, rows: Any) -> Numbers:
        return Numbers(self.values[rows], None if self.known is None else self.known[rows])

    @property
    def is_known(self) -> Bool:
        return np.ones(len(self), np.bool_) if self.known is None else self.known

    def or_zero(self) -> NDArray[Any]:
        """The values, 0 where not known."""
        return self.values if self.known is None else np.where(self.known, self.values, 0)

    @staticmethod
    def but(values: NDArray[Any], missing: int = NONE) -> Numbers:
        """Numbers of which one value stands for None."""
        known = values != missing
        return Numbers(values, None if known.all() else known)


@dataclass(frozen=True, eq=False)
class Words(Column[Any]):
    """Few distinct values (text, truth, lists): `table[codes[i]]`, None for code -1."""

    codes: Int32
    table: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def tolist(self) -> list[Any]:
        of_code = (*self.table, None)  # the last place answers for NONE
        return [of_code[code] for code in self.codes.tolist()]

    def take(self, rows: Any) -> Words:
        return Words(self.codes[rows], self.table)

    def where(self, predicate: typing.Callable[[Any], bool]) -> Bool:
        """Which rows hold a value for which it is true; it is asked once for each word."""
        verdicts = np.array([bool(predicate(word)) for word in (*self.table, None)], np.bool_)
        return verdicts[self.codes]

    def distinct(self) -> list[Any]:
        """The values that are there, without None, in order of the table."""
        used = np.zeros(len(self.table) + 1, np.bool_)
        used[self.codes] = True
        return [word for word, is_used in zip(self.table, used.tolist(), strict=False) if is_used]

    @staticmethod
    def of(values: Sequence[Any]) -> Words:
        kinds = set(map(type, values)) - {type(None)}
        if len(kinds) == 1 and list not in kinds:  # equal ones may stand for each other as they are
            words = dict.fromkeys(values)
            words.pop(None, None)
            place = {**{word: code for code, word in enumerate(words)}, None: NONE}
            return Words(np.array([place[value] for value in values], np.int32), tuple(words))
        return Words._of_several_kinds(values)

    @staticmethod
    def _of_several_kinds(values: Sequence[Any]) -> Words:
        """Also of lists, which are no keys of a dictionary as they are."""
        table: dict[Any, int] = {}
        words: list[Any] = []
        codes = np.empty(len(values), np.int32)
        for place, value in enumerate(values):
            if value is None:
                codes[place] = NONE
                continue
            key = _key(value)
            code = table.get(key)
            if code is None:
                code = table[key] = len(words)
                words.append(value)
            codes[place] = code
        return Words(codes, tuple(words))


@dataclass(frozen=True, eq=False)
class Parts(Column[dict[str, int]]):
    """A whole divided among names: one dictionary a row, without those that have no part.

    `amount` is int64, shape (rows, names).
    """

    names: tuple[str, ...]
    amount: Int64
    known: Bool | None = None

    def __len__(self) -> int:
        return len(self.amount)

    def tolist(self) -> list[dict[str, int] | None]:
        rows: list[Any] = [{} for _ in range(len(self))]
        row, name = np.nonzero(self.amount)
        for i, n, ns in zip(row.tolist(), name.tolist(), self.amount[row, name].tolist(), strict=True):
            rows[i][self.names[n]] = ns
        if self.known is not None:
            for i in np.flatnonzero(~self.known).tolist():
                rows[i] = None
        return rows

    def take(self, rows: Any) -> Parts:
        return Parts(self.names, self.amount[rows], None if self.known is None else self.known[rows])


@dataclass(frozen=True, eq=False)
class Records(Column[Any]):
    """Instances of a dataclass, a column for each of its fields."""

    cls: type
    columns: tuple[Column[Any], ...]
    known: Bool | None = None

    def __len__(self) -> int:
        return len(self.columns[0])

    def tolist(self) -> list[Any]:
        cls, rows = self.cls, zip(*(column.tolist() for column in self.columns), strict=True)
        if self.known is None:
            return [cls(*row) for row in rows]
        return [
            cls(*row) if is_known else None for row, is_known in zip(rows, self.known.tolist(), strict=True)
        ]

    def take(self, rows: Any) -> Records:
        known = None if self.known is None else self.known[rows]
        return Records(self.cls, tuple(column.take(rows) for column in self.columns), known)

    def field(self, name: str) -> Column[Any]:
        """The column of one field; what it holds where the record is None means nothing."""
        return self.columns[[field.name for field in fields(self.cls)].index(name)]

    @property
    def is_known(self) -> Bool:
        return np.ones(len(self), np.bool_) if self.known is None else self.known


@dataclass(frozen=True, eq=False)
class Objects(Column[Any]):
    """Whatever fits no other kind: numbers beyond 64 bits."""

    values: list[Any]

    def __len__(self) -> int:
        return len(self.values)

    def tolist(self) -> list[Any]:
        return list(self.values)

    def take(self, rows: Any) -> Objects:
        if isinstance(rows, slice):
            return Objects(self.values[rows])
        places = np.arange(len(self.values))[rows]
        return Objects([self.values[place] for place in places.tolist()])


def _key(value: Any) -> Any:
    """Equal for values that may stand for each other: `True` may not for 1."""
    return (list, *value) if isinstance(value, list) else (type(value), value)


def joined(columns: Sequence[Column[Any]]) -> Column[Any]:
    """The rows of all columns, one after the other. Needs at least one, all made for the same field."""
    first = columns[0]
    if len(columns) == 1:
        return first
    if any(type(column) is not type(first) for column in columns):
        return Objects([value for column in columns for value in column.tolist()])
    return _JOIN[type(first)](columns)


def _joined_known(columns: Sequence[Any]) -> Bool | None:
    if all(column.known is None for column in columns):
        return None
    parts = (np.ones(len(c), np.bool_) if c.known is None else c.known for c in columns)
    return np.concatenate(list(parts))


def _joined_numbers(columns: Sequence[Any]) -> Column[Any]:
    return Numbers(np.concatenate([column.values for column in columns]), _joined_known(columns))


def _joined_words(columns: Sequence[Any]) -> Column[Any]:
    table: dict[Any, int] = {}
    words: list[Any] = []
    codes: list[Int32] = []
    for column in columns:
        new = np.empty(len(column.table) + 1, np.int32)
        new[-1] = NONE
        for place, word in enumerate(column.table):
            code = table.setdefault(_key(word), len(words))
            if code == len(words):
                words.append(word)
            new[place] = code
        codes.append(new[column.codes])
    return Words(np.concatenate(codes), tuple(words))


def _joined_parts(columns: Sequence[Any]) -> Column[Any]:
    if any(column.names != columns[0].names for column in columns):
        return Objects([value for column in columns for value in column.tolist()])
    return Parts(
        columns[0].names, np.concatenate([column.amount for column in columns]), _joined_known(columns)
    )


def _joined_records(columns: Sequence[Any]) -> Column[Any]:
    parts = zip(*(column.columns for column in columns), strict=True)
    return Records(columns[0].cls, tuple(joined(part) for part in parts), _joined_known(columns))


def _joined_objects(columns: Sequence[Any]) -> Column[Any]:
    return Objects([value for column in columns for value in column.values])


_JOIN: dict[type, typing.Callable[[Sequence[Any]], Column[Any]]] = {
    Numbers: _joined_numbers,
    Words: _joined_words,
    Parts: _joined_parts,
    Records: _joined_records,
    Objects: _joined_objects,
}


@cache
def _kinds(cls: type) -> dict[str, Any]:
    """By field the type that it has when it is not None."""
    kinds: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(cls).items():
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        (kind,) = (option for option in options if option is not type(None))
        kinds[name] = typing.get_origin(kind) or kind
    return kinds


def column_of(cls: type, name: str, values: Sequence[Any]) -> Column[Any]:
    """The column for a field of a dataclass, from its values."""
    kind = _kinds(cls)[name]
    if kind is int or kind is float:
        return _numbers(values, kind)
    if is_dataclass(kind):
        return _records(typing.cast(type, kind), values)
    return Objects(list(values)) if kind is dict else Words.of(values)


def _numbers(values: Sequence[Any], kind: type) -> Column[Any]:
    told = [value for value in values if value is not None]
    try:
        numbers = np.array(told, kind)
    except OverflowError:
        return Objects(list(values))
    if not ((numbers >= -_LARGEST) & (numbers <= _LARGEST)).all():
        return Objects(list(values))
    if len(told) == len(values):
        return Numbers(numbers)
    known = np.array([value is not None for value in values], np.bool_)
    filled = np.zeros(len(values), numbers.dtype)
    filled[known] = numbers
    return Numbers(filled, known)


def _records(cls: type, values: Sequence[Any]) -> Column[Any]:
    known = np.array([value is not None for value in values], np.bool_)
    columns = tuple(
        column_of(
            cls, field.name, [None if value is None else getattr(value, field.name) for value in values]
        )
        for field in fields(cls)
    )
    return Records(cls, columns, None if known.all() else known)
