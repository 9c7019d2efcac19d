"""Bars as plain elements, shown until plotly has drawn the same figure over them.

plotly takes a second to load and to draw, on a busy machine two: the bars of a first view do not
wait for it. They stand where plotly puts its own, which then cover them. The page's script makes
the elements (`assets/poster.js`): as components of Dash they would cost half of what they save.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    longest = max((sum(one.value for one in line) for line in lines.values()), default=0)
    if not longest or any(one.value < 0 for line in lines.values() for one in line):
        return None
    whole = longest * _BEYOND
    told = {
        "title": unescape((value_axis.get("title") or {}).get("text", "")),
        "ticks": _ticks(whole),
        "rows": [[unescape(str(names[y])), [one.told(whole) for one in line]] for y, line in lines.items()],
    }
    given = {"data-bars": json.dumps(told), "aria-hidden": "true"}
    return html.Div(className="poster", **given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Segment:
    """A part of a bar; `text` is written inside it in the colour `ink`."""

    value: float
    color: str
    pattern: str
    text: str
    ink: str

    def told(self, whole: float) -> list[Any]:
        """Percent of the axis, class, colours and text, as the page's script reads them."""
        share = round(self.value / whole * 100, 3)
        return [share, swatch_class(self.pattern), self.color, self.ink, unescape(self.text)]


def _segments(data: Sequence[Mapping[str, Any]], y: Any) -> list[_Segment]:
    found: list[_Segment] = []
    for one in data:
        marker, text = one.get("marker") or {}, one.get("text")
        pattern = (marker.get("pattern") or {}).get("shape") or ""
        ink = (one.get("insidetextfont") or {}).get("color", "")
        for place, at in enumerate(one["y"]):
            if at == y and one["x"][place]:
                written = text[place] if text is not None else ""
                found.append(_Segment(one["x"][place], marker.get("color", ""), pattern, written, ink))
    return found


def _ticks(whole: float) -> list[list[Any]]:
    """Numbers on the axis, and where they stand in percent of it."""
    step = _nice(whole / _TICKS)
    return [[f"{n * step:g}", round(n * step / whole * 100, 3)] for n in range(int(whole / step) + 1)]


def _nice(rough: float) -> float:
    """The next of 1, 2, 5, 10... that is not below."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
