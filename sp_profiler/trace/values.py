"""From JSON values to what columns hold: codes of interned strings, integers, collective metadata."""

from __future__ import annotations

import json
import types
from array import array
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sp_profiler.errors import InputError
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.schema import COLLECTIVE_FIELDS, Args, category_of
from sp_profiler.trace.tables import NONE, CollectiveArgs, Int32, Strings

_INT64 = range(-(1 << 63), 1 << 63)


class Interner(dict[Any, int]):
    """Codes of values by their text. Equal texts share a code; codes number texts as they are met."""

    def __init__(self, pool: StringPool, text_of: Callable[[Any], str | None]) -> None:
        super().__init__()
        self._pool = pool
        self._text_of = text_of

    def __missing__(self, value: Any) -> int:
        text = self._text_of(value)
        code = self[value] = NONE if text is None else self._pool.code(text)
        return code

    def codes(self, values: Sequence[Any]) -> Int32:
        try:
            return np.fromiter(map(self.__getitem__, values), np.int32, len(values))
        except TypeError:  # an unhashable value: a list where a word should be
            words = [v if isinstance(v, (str, int)) or v is None else _json_text(v) for v in values]
            return np.fromiter(map(self.__getitem__, words), np.int32, len(values))


class StringPool:
    """All distinct strings of a file, within the limits."""

    def __init__(self, path: str, limits: Limits) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}
        self._path = path
        self._limits = limits
        self._bytes = 0

    def code(self, text: str) -> int:
        known = self._codes.get(text)
        if known is not None:
            return known
        self._bytes += len(text)
        if len(text) > self._limits.string_bytes:
            raise string_too_long(self._path, self._limits)
        if self._bytes > self._limits.distinct_string_bytes:
            raise InputError(
                f"{self._path} holds more than {self._limits.distinct_string_bytes} bytes of distinct"
                " strings, the limit for one trace."
            )
        self.texts.append(text)
        self._codes[text] = code = len(self.texts) - 1
        return code

    def sorted(self) -> tuple[Strings, Int32]:
        """The pool in alphabetical order, and the new code of every old one (the last: of "none").

        The order in which strings are met depends on how the file was cut into chunks; this does not.
        """
        order = sorted(range(len(self.texts)), key=self.texts.__getitem__)
        new_code = np.full(len(order) + 1, NONE, dtype=np.int32)
        new_code[np.array(order, dtype=np.int64)] = np.arange(len(order), dtype=np.int32)
        return Strings([self.texts[old] for old in order]), new_code


class Judged:
    """What a predicate says of the texts of a pool; it is asked once for each text."""

    def __init__(self, pool: StringPool, predicate: Callable[[str], bool]) -> None:
        self._pool = pool
        self._predicate = predicate
        self._verdicts = np.zeros(0, dtype=np.bool_)

    def of(self, codes: Int32) -> NDArray[np.bool_]:
        """The verdict for each code; False for NONE."""
        new = [self._predicate(text) for text in self._pool.texts[len(self._verdicts) :]]
        self._verdicts = np.append(self._verdicts, np.array(new, dtype=np.bool_))
        return np.append(self._verdicts, False)[codes]


def string_too_long(path: str, limits: Limits) -> InputError:
    return InputError(
        f"{path} holds a string of more than {limits.string_bytes} bytes, the limit for one string."
    )


class CategoryCodes(dict[Any, int]):
    """Categories by the `cat` of an event."""

    def __missing__(self, cat: Any) -> int:
        self[cat] = code = int(category_of(cat))
        return code

    def codes(self, cats: Sequence[Any]) -> NDArray[np.int8]:
        try:
            return np.fromiter(map(self.__getitem__, cats), np.int8, len(cats))
        except TypeError:  # unhashable, so no name of a category
            return np.fromiter((category_of(cat) for cat in cats), np.int8, len(cats))


def int_column(values: Sequence[Any], dtype: Any = np.int64) -> NDArray[Any]:
    """Integers as a column; what is no integer of that size becomes NONE."""
    try:
        column = np.frombuffer(array("q", values), dtype=np.int64)
    except (TypeError, OverflowError):
        clean = (number if (number := to_int(value)) is not None else NONE for value in values)
        column = np.fromiter(clean, np.int64, len(values))
    if dtype is np.int64:
        return column
    bounds = np.iinfo(dtype)
    return np.where((column < bounds.min) | (column > bounds.max), NONE, column).astype(dtype)


def to_int(value: Any) -> int | None:
    """The int64 that a JSON value stands for: a number without fraction, or digits in quotes."""
    if isinstance(value, str):
        digits = value.strip()
        value = int(digits) if len(digits) < 20 and digits.removeprefix("-").isdecimal() else None
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    return value if isinstance(value, int) and value in _INT64 else None


def compact_json(text: bytes) -> str | None:
    """JSON text without white space outside strings; None for no text."""
    if not text or text == b"null":
        return None
    if b'"' not in text:
        return b"".join(text.split()).decode()
    try:
        return _json_text(json.loads(text.decode(errors="replace"), strict=False))
    except (ValueError, RecursionError):
        return text.decode(errors="replace")


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def word_text(value: Any) -> str | None:
    """The text of a name, pid or tid. Equal values (1, 1.0, true) have one text: they are one key."""
    if isinstance(value, (bool, float)) and value == int(value):
        value = int(value)
    return None if value is None else str(value)


_TEXT_FIELDS = frozenset(
    ("name", "dtype", "group_name", "group_description", "group_ranks", "in_split", "out_split", "comms_id")
)
_FIELDS = tuple(field.name for field in fields(CollectiveArgs))
_WRITTEN = attrgetter(*COLLECTIVE_FIELDS)
_PLAIN = tuple(
    (str, types.NoneType) if name in _TEXT_FIELDS - {"comms_id"} else (str, int, types.NoneType)
    for name in _FIELDS
)
"""What each is in a file as torch writes it; 1, 1.0 and true, which are equal, mean one thing then."""


class CollectiveRows:
    """Numbers equal NCCL metadata alike: a kernel and its `record_param_comms` repeat each other's."""

    def __init__(self) -> None:
        self._rows: dict[CollectiveArgs, int] = {}
        self._as_written: dict[tuple[Any, ...], int] = {}

    def row(self, args: Args) -> int:
        """The number of the metadata in the arguments of an event."""
        written = _WRITTEN(args)
        try:
            return self._as_written[written]
        except (KeyError, TypeError):  # not met yet, or a list where text belongs
            row = self._rows.setdefault(collective_args(written), len(self._rows))
        if all(map(isinstance, written, _PLAIN)):
            self._as_written[written] = row
        return row

    def all(self) -> tuple[CollectiveArgs, ...]:
        """The metadata by their numbers."""
        return tuple(self._rows)


def collective_args(written: Sequence[Any]) -> CollectiveArgs:
    """NCCL metadata as the file writes them, in the order of `CollectiveArgs`, made what they should be."""
    values: list[Any] = [made(value) for made, value in zip(_MADE, written, strict=True)]
    return CollectiveArgs(*values)


def _metadata_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _to_bool(value: Any) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    return bool(value) if isinstance(value, (bool, int)) else None


_MADE = tuple(
    _metadata_text if name in _TEXT_FIELDS else _to_bool if name == "is_async" else to_int for name in _FIELDS
)
