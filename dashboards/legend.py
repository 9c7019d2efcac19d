"""Names and looks of what a figure draws, as elements of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

_SHAPES = {
    "/": "slash",
    "\\": "backslash",
    "x": "cross",
    "-": "across",
    "|": "upright",
    "+": "plus",
    ".": "dots",
}


def legend(data: Sequence[Mapping[str, Any]]) -> html.Ul | None:
    """Names and looks of the traces that have any; it wraps, and no mode bar covers it."""
    seen: dict[str, html.Li] = {}
    for trace in data:
        marker, name = trace.get("marker") or {}, trace.get("name")
        color = marker.get("color") or trace.get("fillcolor")
        if not name or name in seen or not isinstance(color, str):
            continue
        pattern = (marker.get("pattern") or trace.get("fillpattern") or {}).get("shape") or ""
        seen[name] = html.Li([swatch(color, pattern), name])
    return html.Ul(list(seen.values()), className="legend") if seen else None


def swatch(color: str, pattern: str) -> html.I:
    return html.I(className=swatch_class(pattern), style={"backgroundColor": color})


def swatch_class(pattern: str) -> str:
    """The class that draws a pattern of plotly's over a colour."""
    return f"swatch {_SHAPES.get(pattern, '')}".strip()
