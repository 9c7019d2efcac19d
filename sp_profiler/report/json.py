"""The machine-readable report: JSON by the contract, and the JSON Schema that goes with it.

`python -m sp_profiler.report.json > sp_profiler/report/schema.json` writes the schema anew.

The text is ASCII (names of kernels may hold anything, also what acts on a terminal), integers stay
integers, what is not known is null; a number that is not finite (JSON has none) is null too.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Column, Numbers, Records, Words
from sp_profiler.analysis.results import CollectiveFigures
from sp_profiler.errors import InputError
from sp_profiler.report.model import SCHEMA, SCHEMA_VERSION, Report
from sp_profiler.trace.tables import NONE, Bool

SCHEMA_PATH = Path(__file__).with_name("schema.json")
Document = TypeVar("Document")
_FIRST = ("schema", "schema_version")
_ONLY_IF_THERE = ("fleet",)
"""Members that are left out instead of being null."""
_LINES_AT_ONCE = 1 << 13
COMPACT = (",", ":")
"""Separators of members and of keys without a blank."""


@cache
def _names(cls: type) -> tuple[str, ...]:
    names = tuple(f.name for f in fields(cls))
    return tuple(sorted(names, key=lambda name: name not in _FIRST))  # stable: only those two move


def to_plain(value: Any) -> Any:
    """Dataclasses to dicts (in field order), tuples to lists, numpy scalars to Python's, NaN to None."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, Collectives)):
        return [to_plain(item) for item in value]
    if is_dataclass(value):
        return {name: to_plain(getattr(value, name)) for name in _names(type(value))}
    if hasattr(value, "item"):  # a numpy scalar
        return to_plain(value.item())
    raise TypeError(f"a report cannot hold a {type(value).__name__}")


def render(report: Report) -> str:
    """The report as JSON text, one line per top-level member and per element of its lists."""
    return "".join(parts(report))


def parts(report: Report) -> Iterator[str]:
    """The text of `render`, part by part: a run's collectives may take a gigabyte."""
    start = "{\n"
    for name in _names(type(report)):
        if name in _ONLY_IF_THERE and getattr(report, name) is None:
            continue
        yield f"{start}{json.dumps(name)}: "
        start = ",\n"
        value = getattr(report, name)
        if isinstance(value, Collectives) and len(value):
            yield from _collectives(value)
        else:
            yield _member(to_plain(value))
    yield "\n}\n"


def _collectives(table: Collectives) -> Iterator[str]:
    """The list of collectives from their columns, some thousand lines at a time."""
    names = _names(CollectiveFigures)
    line = "{" + ",".join(f'"{name}":%s' for name in names) + "}"
    start = "[\n  "
    for low in range(0, len(table), _LINES_AT_ONCE):
        some = table[low : low + _LINES_AT_ONCE]
        columns = [_texts(some.column(name)) for name in names]
        yield start + ",\n  ".join([line % row for row in zip(*columns, strict=True)])
        start = ",\n  "
    yield "\n]"


def _texts(column: Column[Any]) -> list[str]:
    """Each value of a column as JSON."""
    if isinstance(column, Words):
        codes = column.codes.tolist()
        # Only the words of these rows: those of a whole run would be written again for every part of it.
        texts = {code: _dumps(to_plain(column.table[code])) for code in set(codes) if code != NONE}
        return [texts.get(code, "null") for code in codes]
    if isinstance(column, Numbers) and column.values.dtype.kind == "i":
        return _or_null(list(map(str, column.values.tolist())), column.known)
    if isinstance(column, Records):
        line = "{" + ",".join(f'"{name}":%s' for name in _names(column.cls)) + "}"
        values = zip(*(_texts(column.field(name)) for name in _names(column.cls)), strict=True)
        return _or_null([line % row for row in values], column.known)
    return [_dumps(to_plain(value)) for value in column.tolist()]


def _or_null(texts: list[str], known: Bool | None) -> list[str]:
    if known is not None:
        for place in np.flatnonzero(~known).tolist():
            texts[place] = "null"
    return texts


def render_document(document: Any, separators: tuple[str, str] = (", ", ": ")) -> str:
    """Another document of ours, a dataclass, laid out as a report is. ASCII, integers exact, no NaN."""
    plain = to_plain(document)
    lines = [f"{json.dumps(name)}: {_member(value, separators)}" for name, value in plain.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _member(value: Any, separators: tuple[str, str] = COMPACT) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(_dumps(item, separators) for item in value) + "\n]"
    return _dumps(value, separators)


def _dumps(value: Any, separators: tuple[str, str] = COMPACT) -> str:
    return _encoder(separators).encode(value)


@cache
def _encoder(separators: tuple[str, str]) -> json.JSONEncoder:
    """What `json.dumps` would make anew for every value."""
    return json.JSONEncoder(allow_nan=False, separators=separators)


def read_report(text: str | bytes, where: str = "report.json") -> Report:
    """The Report that `render` wrote. Raises InputError, naming `where`, when it is none of ours."""
    return read_document(text, where, Report, SCHEMA, SCHEMA_VERSION, "report")


def read_document(
    text: str | bytes, where: str, kind: type[Document], schema: str, version: int, what: str
) -> Document:
    """A document of ours, which is a `kind` by its contract. `what`: its name in a sentence.

    Raises InputError, naming `where`, when it is none, or one of another version.
    """
    import msgspec

    try:
        plain = json.loads(text)
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{where} is nested too deeply to be a {what}") from None
    if not isinstance(plain, dict) or plain.get("schema") != schema:
        raise InputError(f"{where} is not a {what} of sp-profiler: its schema is not '{schema}'")
    if plain.get("schema_version") != version:
        raise InputError(
            f"{where} has schema version {plain.get('schema_version')}, this version reads {version}"
        )
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{where} does not follow the {what} contract: {error}") from None


def schema() -> dict[str, Any]:
    """The JSON Schema (Draft 2020-12) of a report, from the classes."""
    description = "Times are integer ns, sizes bytes. null: could not look; data_quality says why."
    return schema_of(Report, SCHEMA, SCHEMA_VERSION, "Report of sp-profiler", description)


def schema_of(root: type, name: str, version: int, title: str, description: str) -> dict[str, Any]:
    """The JSON Schema of a dataclass and those it holds.

    Every field is required but `_ONLY_IF_THERE`; more are allowed, because fields are added freely.
    """
    definitions: dict[str, Any] = {}
    described = _object(root, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{name.replace('/', ':')}:{version}",
        "title": title,
        "description": description,
        **described,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    properties = {name: _typed(hints[name], definitions) | _limits(name) for name in _names(cls)}
    required = [name for name in properties if name not in _ONLY_IF_THERE]
    return {"type": "object", "properties": properties, "required": required}


_NO_SHARES = ("slowdown_ratio", "residual_ratio")  # they may exceed 1


def _limits(name: str) -> dict[str, Any]:
    if name in _NO_SHARES:
        return {"minimum": 0}
    if name.endswith("_ratio") or name == "hidden_of_hideable":
        return {"minimum": 0, "maximum": 1}
    return {}


def _typed(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(hint), list(typing.get_args(hint))
    if hint is Any:
        return {}
    if origin is Literal:
        return {"enum": args} if len(args) > 1 else {"const": args[0]}
    if origin in (Union, types.UnionType):
        return _union([_typed(arg, definitions) for arg in args])
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _typed(args[0], definitions)}
    if origin is dict:
        values = _typed(args[1], definitions)
        return {"type": "object"} | ({"additionalProperties": values} if values else {})
    if is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        if name not in definitions:
            definitions[name] = {}  # holds the place while its own fields are looked at
            definitions[name] = _object(typing.cast(type, hint), definitions)
        return {"$ref": f"#/$defs/{name}"}
    simple = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
    return {"type": simple[hint]}


def _union(options: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(option) == {"type"} and isinstance(option["type"], str) for option in options):
        return {"type": [option["type"] for option in options]}
    return {"anyOf": options}


def render_schema() -> str:
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    print(render_schema(), end="")
