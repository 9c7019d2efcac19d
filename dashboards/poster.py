"""Bars as plain elements, shown until plotly has drawn the same figure over them.

plotly takes a second to load and to draw, on a busy machine two: the bars of a first view do not
wait for it. They stand where plotly puts its own, which then cover them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any

from dash import html

from dashboards.legend import swatch_class

_BEYOND = 1 / 0.95
"""plotly's axis ends this much after the longest bar."""

_TICKS = 8  # at most, about as plotly chooses them


def bars(data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> html.Div | None:
    """The figure's bars; None for one that is not of stacked horizontal bars alone, from the top down."""
    if not data or not all(one.get("type") == "bar" and one.get("orientation") == "h" for one in data):
        return None
    rows = list(dict.fromkeys(y for one in data for y in one["y"]))
    axis, value_axis = layout.get("yaxis", {}), layout.get("xaxis", {})
    is_named = (
        "ticktext" in axis and list(axis["tickvals"]) == sorted(rows) and axis["range"][0] > axis["range"][1]
    )
    is_listed = axis.get("type") == "category" and axis.get("autorange") == "reversed"
    if layout.get("barmode") != "stack" or not (is_named or is_listed):
        return None
    names = dict(zip(axis["tickvals"], axis["ticktext"], strict=True)) if is_named else {y: y for y in rows}
    lines = {y: _segments(data, y) for y in (axis["tickvals"] if is_named else rows)}
    longest = max((sum(value for value, *_ in line) for line in lines.values()), default=0)
    if not longest or any(value < 0 for line in lines.values() for value, *_ in line):
        return None
    inside: list[Any] = [_axis(longest * _BEYOND, (value_axis.get("title") or {}).get("text", ""), len(rows))]
    for place, (y, line) in enumerate(lines.items(), 1):
        row = {"gridRow": str(place)}
        name = html.Span(unescape(str(names[y])), className="name", style=row)
        inside += [name, html.Div(_line(line, longest * _BEYOND), className="track", style=row)]
    return html.Div(inside, className="poster", **{"aria-hidden": "true"})  # type: ignore[arg-type]


Segment = tuple[float, str, str, str, str]
"""Length, colour, pattern, what is written inside, and its colour."""


def _segments(data: Sequence[Mapping[str, Any]], y: Any) -> list[Segment]:
    found: list[Segment] = []
    for one in data:
        marker, text = one.get("marker") or {}, one.get("text")
        pattern = (marker.get("pattern") or {}).get("shape") or ""
        ink = (one.get("insidetextfont") or {}).get("color", "")
        for place, at in enumerate(one["y"]):
            if at == y and one["x"][place]:
                written = text[place] if text is not None else ""
                found.append((one["x"][place], marker.get("color", ""), pattern, written, ink))
    return found


def _line(line: Sequence[Segment], whole: float) -> list[html.I]:
    return [
        html.I(
            unescape(text),
            className=swatch_class(pattern),
            style={"width": f"{value / whole * 100:.3f}%", "backgroundColor": color, "color": ink},
        )
        for value, color, pattern, text, ink in line
    ]


def _axis(whole: float, title: str, rows: int) -> html.Div:
    """Lines and numbers of the axis, behind all rows."""
    step = _nice(whole / _TICKS)
    count = int(whole / step)
    marks = [
        html.Span(html.B(f"{number * step:g}"), style={"left": f"{number * step / whole * 100:.3f}%"})
        for number in range(count + 1)
    ]
    return html.Div(
        [*marks, html.Small(unescape(title))], className="axis", style={"gridRow": f"1 / span {rows}"}
    )


def _nice(rough: float) -> float:
    """The next of 1, 2, 5, 10... that is not below."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
