"""What the page shows, as its URL says it: the one place that reads and writes query strings.

Every view, zoom and filter has a URL of its own. A URL may come from anywhere: what cannot be meant is
passed over, never an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

VIEWS = ("overview", "timeline", "overlap", "across", "memory", "ring", "compare")

_MOST_TEXT = 200
_LARGEST = 1 << 62


@dataclass(frozen=True)
class State:
    """`run` and `base` are ids of runs, `t` the zoom in ns since the rank's first activity, `pick` the id of
    a collective in the report. The others filter the table of collectives; empty means all."""

    view: str = "overview"
    run: str | None = None
    rank: int | None = None
    theme: str | None = None
    t: tuple[int, int] | None = None
    ranks: tuple[int, ...] = ()  # further ranks whose lanes are drawn
    pick: int | None = None
    base: str | None = None
    q: str = ""
    op: str = ""
    group: str = ""
    purpose: str = ""
    phase: str = ""
    cause: str = ""
    step: int | None = None
    of: int | None = None  # the rank whose collectives are listed; None: all


FILTERS = ("q", "op", "group", "purpose", "phase", "cause", "step", "of")


def parse(search: str | None) -> State:
    """The state that a query string (`?run=...`) names."""
    given = dict(
        parse_qsl((search or "").lstrip("?"), keep_blank_values=False, max_num_fields=None, errors="replace")
    )
    read: dict[str, Any] = {}
    for field in fields(State):
        text = given.get(field.name)
        if text is None:
            continue
        value = _READ.get(field.name, _text)(text)
        if value is not None:
            read[field.name] = value
    return State(**read)


def state_of(search: str | None, scheme: str | None) -> State:
    """The same in the theme that the page has now, which the query string need not name."""
    return replace(parse(search), theme="dark" if scheme == "dark" else "light")


def search(state: State) -> str:
    """The query string of a state; what has its default is left out."""
    said: dict[str, str] = {}
    for field in fields(State):
        value = getattr(state, field.name)
        if value == field.default:
            continue
        if field.name == "t":
            said["t"] = f"{value[0]}-{value[1]}"
        elif isinstance(value, tuple):
            said[field.name] = ".".join(map(str, value))
        else:
            said[field.name] = str(value)
    return f"?{urlencode(said)}" if said else ""


def link(state: State, **changes: Any) -> str:
    """A relative URL to the state with these changes."""
    return f"/{search(replace(state, **changes))}"


def _text(text: str) -> str:
    return text[:_MOST_TEXT]


def _number(text: str) -> int | None:
    if not re.fullmatch(r"[0-9]{1,19}", text):
        return None
    return int(text) if int(text) < _LARGEST else None


def _window(text: str) -> tuple[int, int] | None:
    first, _, last = text.partition("-")
    start, end = _number(first), _number(last)
    return None if start is None or end is None or start >= end else (start, end)


def _numbers(text: str) -> tuple[int, ...] | None:
    found = [_number(part) for part in text.split(".")[:64]]
    return tuple(dict.fromkeys(one for one in found if one is not None)) or None


def _run(text: str) -> str | None:
    return text if re.fullmatch(r"[A-Za-z0-9-]{1,64}", text) else None


def _of(*allowed: str) -> Any:
    return lambda text: text if text in allowed else None


_READ: dict[str, Any] = {
    "view": _of(*VIEWS),
    "theme": _of("light", "dark"),
    "run": _run,
    "base": _run,
    "t": _window,
    "ranks": _numbers,
} | dict.fromkeys(("rank", "pick", "step", "of"), _number)
