"""Any field of a report by its dotted path: `totals.exposed_ns`, `ranks[*].idle_ns`.

A part is the name of a field or a key; keys that hold dots or brackets stand in quotes, as in TOML:
`totals.exposed_by_module_ns."layers.0.mlp.up"`. Of a list `[3]` chooses one (from 0), `[rank=3]` or
`[group="tp[0,1]"]` those whose field has the value, `[*]` all. A path is checked against the classes of the
report before any file is read.
"""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Union

from sp_profiler.checking.quantities import Unit
from sp_profiler.errors import UsageError

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PART = re.compile(
    rf"(?P<name>{_QUOTED}|[^.\[\]\"\s]+)(?P<choice>\[(?:\*|\d+|[A-Za-z_]+=(?:{_QUOTED}|[^\[\]\"]*))\])?(?:\.|\Z)"
)
_BYTES_BY = ("peak_by_", "across_border_by_")
_MAY_EXCEED_ONE = ("slowdown_ratio", "residual_ratio")


@dataclass(frozen=True)
class Part:
    """One part of a path. `choice`: None (no list), "*", a place, or a field's name and its value as text."""

    name: str
    choice: str | int | tuple[str, str] | None = None


@dataclass(frozen=True)
class Path:
    name: str  # the path as it was written
    parts: tuple[Part, ...]

    @property
    def unit(self) -> Unit:
        """What the field's name says; `count` for numbers of any other kind."""
        named = next((p.name for p in reversed(self.parts) if _unit_of(p.name) != "count"), "")
        return _unit_of(named)


def _unit_of(name: str) -> Unit:
    if name in _MAY_EXCEED_ONE:
        return "count"
    if name.endswith("_ratio") or name in ("hidden_of_hideable", "share_of_peak"):
        return "ratio"
    if name.startswith(_BYTES_BY):
        return "bytes"
    ending: dict[str, Unit] = {"ns": "ns", "bytes": "bytes", "gbps": "gbps"}
    return ending.get(name.rpartition("_")[2], "count")


def parse_path(text: str) -> Path:
    """The path. Raises UsageError where it is none, or names a field that no report has."""
    parts: list[Part] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            break
        parts.append(Part(_unquoted(found["name"]), _choice(found["choice"])))
        at = found.end()
    if at < len(text) or not parts or text.endswith("."):
        raise UsageError(
            f"'{text}' is no path of a report, expected one such as totals.exposed_ns or ranks[*].idle_ns"
        )
    path = Path(text, tuple(parts))
    _refuse_unknown(path)
    return path


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def _choice(text: str | None) -> str | int | tuple[str, str] | None:
    if text is None:
        return None
    inner = text[1:-1]
    if inner == "*" or inner.isdecimal():
        return inner if inner == "*" else int(inner)
    name, _, value = inner.partition("=")
    return name, _unquoted(value)


def _refuse_unknown(path: Path) -> None:
    """Walk the classes along the path."""
    from sp_profiler.report.model import Report

    kind: Any = Report
    for part in path.parts:
        kind = _without_none(kind)
        if is_dataclass(kind):
            hints = hints_of(typing.cast(type, kind))
            if part.name not in hints:
                close = difflib.get_close_matches(part.name, hints, 1, 0.5)
                meant = f": did you mean {close[0]}?" if close else f" (it has {', '.join(sorted(hints))})"
                raise UsageError(f"'{path.name}': a report has no '{part.name}' there{meant}")
            kind = hints[part.name]
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        elif kind is not Any:
            raise UsageError(f"'{path.name}': there is nothing below the part before '{part.name}'")
        kind = _chosen_kind(path, part, _without_none(kind))
    if is_dataclass(kind) or typing.get_origin(kind) in (dict, list, Sequence):
        raise UsageError(f"'{path.name}' is no single figure: name a field of it")


def _chosen_kind(path: Path, part: Part, kind: Any) -> Any:
    is_list = typing.get_origin(kind) in (list, tuple, Sequence)
    if is_list and part.choice is None:
        raise UsageError(f"'{path.name}': '{part.name}' is a list, write {part.name}[*] for each of them")
    if part.choice is None:
        return kind
    if not is_list and kind is not Any:
        raise UsageError(f"'{path.name}': '{part.name}' is no list")
    item = typing.get_args(kind)[0] if is_list else Any
    if isinstance(part.choice, tuple) and is_dataclass(item):
        known = hints_of(typing.cast(type, item))
        if part.choice[0] not in known:
            raise UsageError(f"'{path.name}': the entries of '{part.name}' have no '{part.choice[0]}'")
    return item


@cache
def hints_of(cls: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (Union, types.UnionType):
        rest = [one for one in typing.get_args(kind) if one is not type(None)]
        return rest[0] if len(rest) == 1 else Any
    return kind


@dataclass(frozen=True)
class Found:
    """A value at a path, and what chose it where the path leaves a choice: the entry of a list."""

    value: Any
    entry: Any = None
    missing: str | None = None  # why there is none, where nothing is there at all


def follow(path: Path, report: Any) -> list[Found]:
    """What lies at the path: several where it says `[*]`; empty where a list has no such entry."""
    return list(_follow(path.parts, report, None))


def _follow(parts: Sequence[Part], value: Any, entry: Any) -> Iterator[Found]:
    if not parts:
        yield Found(value, entry)
        return
    part, rest = parts[0], parts[1:]
    if value is None:
        yield Found(None, entry)
        return
    if isinstance(value, Mapping):
        if part.name not in value:
            yield Found(None, entry, _no_key(part.name, value))
            return
        below = value[part.name]
    elif is_dataclass(value):
        below = getattr(value, part.name)
    else:
        yield Found(None, entry, f"there is nothing below '{part.name}'")
        return
    if part.choice is None:
        yield from _follow(rest, below, entry)
    elif below is None:
        yield Found(None, entry)
    else:
        yield from _each(part, rest, below)


def _each(part: Part, rest: Sequence[Part], entries: Any) -> Iterator[Found]:
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        yield Found(None, None, f"'{part.name}' is no list here")
        return
    if isinstance(part.choice, int):
        chosen: Sequence[Any] = entries[part.choice : part.choice + 1]
    elif isinstance(part.choice, tuple):
        field, wanted = part.choice
        chosen = [one for one in entries if _as_text(_field(one, field)) == wanted]
    else:
        chosen = entries
    for one in chosen:
        yield from _follow(rest, one, one)


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, Mapping) else getattr(entry, name, None)


def _as_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def _no_key(name: str, there: Mapping[str, Any]) -> str:
    shown = ", ".join(list(there)[:6])
    more = f" and {len(there) - 6} more" if len(there) > 6 else ""
    return f"there is no '{name}'" + (f" (there is {shown}{more})" if there else "")
