"""The timeline of any stretch of time, at any width: what `analysis.lanes.view` answers, as a plotly figure.

Lanes with few activities show each of them; the others show, bin by bin, the share of the time that each role
or kind takes, stacked: a lane zoomed out is a density, not noise. The figure is plain JSON with typed arrays
(base64), which a browser draws as fast as it arrives; plotly's own classes would check every number.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sp_profiler.analysis.lanes import LOOKS, PHASES, Lanes, LaneView, View
from sp_profiler.report.figures import label, styled
from sp_profiler.report.format import duration
from sp_profiler.report.palette import KIND, ROLE, THEMES, TIME, Look, fill_pattern, marker, theme_patch
from sp_profiler.trace.tables import NONE

HIGH = 100  # of a lane; shares are whole percents of it
_PITCH = 128  # from lane to lane
_MOST_STEPS = 40
_EXPOSED = "exposed"
_NAME = 54

_LOOK: tuple[Look, ...] = tuple({**ROLE, **KIND}[name] for name in LOOKS)


@dataclass(frozen=True, eq=False)
class DrawnRank:
    """The lanes of one rank in view. `name` is put before the lanes' own when several ranks are drawn.

    `shift_ns` is how far the rank's clock is ahead of the axis; `collective` gives a collective's id in the
    report for its place among those of the rank.
    """

    lanes: Lanes
    view: View
    name: str = ""
    shift_ns: int = 0
    collective: Callable[[int], int] = int


@dataclass(frozen=True)
class Mark:
    """A stretch to be framed, in ns on the axis of the trace: the picked collective, its partner."""

    start_ns: int
    end_ns: int
    text: str
    is_main: bool = True


def lane_figure(
    ranks: Sequence[DrawnRank],
    zero_ns: int,
    start_ns: int,
    end_ns: int,
    theme: str,
    marks: Sequence[Mark] = (),
) -> dict[str, Any]:
    """The figure as plain JSON; x is ms since `zero_ns`, in view from `start_ns` to `end_ns`."""
    rows = [(rank, lane) for rank in ranks for lane in _lanes_of(rank)]
    place = {key: (len(rows) - at) * _PITCH for at, key in enumerate(_keys(rows))}
    data: list[dict[str, Any]] = []
    bars: dict[str, dict[str, list[Any]]] = {}
    for rank in ranks:
        zero = zero_ns + rank.shift_ns
        for device in _exposed_devices(rank):
            _exposed(data, bars, rank, device, place[id(rank), ("exposed", device)], zero)
        for one in rank.view.lanes:
            base = place[id(rank), ("lane", one.lane)]
            if one.rows is None:
                data += _density(rank, one, base, zero)
            else:
                _collect(bars, rank, one, base, zero)
    data += [_bar_trace(name, columns) for name, columns in bars.items()]
    layout = _layout(ranks, rows, place, zero_ns, (start_ns, end_ns), theme, marks)
    return {"data": data, "layout": layout}


def is_binned(ranks: Sequence[DrawnRank]) -> bool:
    """Whether anything in view is drawn as shares."""
    return any(one.rows is None for rank in ranks for one in rank.view.lanes)


Key = tuple[str, int]


def _exposed_devices(rank: DrawnRank) -> list[int]:
    return sorted({*rank.view.exposed, *rank.view.exposed_bins})


def _lanes_of(rank: DrawnRank) -> list[Key]:
    return [
        *(("exposed", device) for device in _exposed_devices(rank)),
        *(("lane", one.lane) for one in rank.view.lanes),
    ]


def _keys(rows: Sequence[tuple[DrawnRank, Key]]) -> list[tuple[int, Key]]:
    return [(id(rank), key) for rank, key in rows]


def _ms(ns: float) -> float:
    return round(ns / 1e6, 6)


def _packed(values: np.ndarray) -> dict[str, Any]:
    """A typed array as plotly.js reads it."""
    kinds = {"uint8": "u1", "uint16": "u2", "int32": "i4", "float64": "f8"}
    packed = {"dtype": kinds[values.dtype.name], "bdata": base64.b64encode(values.tobytes()).decode()}
    return packed | ({"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {})


def _shares(bins: dict[int, np.ndarray], edges: np.ndarray) -> dict[int, np.ndarray]:
    """Whole percents of each bin; rounded so that what is there is seen and a sum never exceeds the lane."""
    width = np.maximum(np.diff(edges), 1)
    before = np.zeros(len(width), np.int64)
    drawn = np.zeros(len(width), np.int64)
    shares = {}
    for look in sorted(bins):
        before = before + bins[look]
        top = (before * HIGH + width // 2) // width
        shares[look] = (top - drawn).astype(np.uint8)
        drawn = top
    return shares


def _density(rank: DrawnRank, one: LaneView, base: int, zero: int) -> list[dict[str, Any]]:
    """Stacked areas, one for each look, and an unseen trace that says the shares on hover."""
    edges = rank.view.edges
    shares = _shares(one.bins, edges)
    looks = {_LOOK[look]: values for look, values in shares.items()}
    name = _lane_name(rank, rank.lanes.names[one.lane])
    return _areas(looks, edges, base, zero, name)


def _areas(
    looks: dict[Look, np.ndarray], edges: np.ndarray, base: int, zero: int, name: str
) -> list[dict[str, Any]]:
    count = len(edges)
    step = (int(edges[-1]) - int(edges[0])) / max(count - 1, 1)
    common = {"type": "scatter", "mode": "lines", "x0": _ms(int(edges[0]) - zero), "dx": step / 1e6}
    hidden = {"hoverinfo": "skip", "showlegend": False, "stackgroup": str(base)}
    ground = _packed(np.full(count, base - HIGH // 2, np.uint16))
    traces: list[dict[str, Any]] = [
        common | hidden | {"y": ground, "line": {"width": 0, "shape": "hv"}, "fill": "none"}
    ]
    for look, values in looks.items():
        traces.append(
            common
            | hidden
            | {
                "y": _packed(np.append(values, values[-1:])),
                "line": {"width": 0, "shape": "hv", "color": look.color},
                "fillcolor": look.color,
                "fillpattern": fill_pattern(look),
                "marker": {"color": look.color},
                "name": look.label,
            }
        )
    told = "<br>".join(
        f"{look.label}: %{{customdata[{place}]}} %" for place, look in enumerate(looks) if looks[look].any()
    )
    middle = common | {
        "x0": _ms(int(edges[0]) - zero + step / 2),
        "y": _packed(np.full(count - 1, base, np.uint16)),
        "customdata": _packed(np.stack(list(looks.values()), axis=1)) if looks else None,
        "hovertemplate": f"{name}: {duration(step)} at %{{x:.3f}} ms<br>{told}<extra></extra>",
        "line": {"width": 0, "color": "rgba(0,0,0,0)"},
        "showlegend": False,
    }
    return [*traces, middle] if looks else []


def _exposed(
    data: list[dict[str, Any]],
    bars: dict[str, dict[str, list[Any]]],
    rank: DrawnRank,
    device: int,
    base: int,
    zero: int,
) -> None:
    look = TIME["exposed"]
    binned = rank.view.exposed_bins.get(device)
    if binned is not None:
        edges = rank.view.edges
        shares = _shares({0: binned}, edges)[0]
        data += _areas({look: shares}, edges, base, zero, _lane_name(rank, _EXPOSED))
        return
    found = rank.view.exposed[device]
    for start, end in zip(found.start.tolist(), found.end.tolist(), strict=True):
        text = f"exposed: {duration(end - start)} at {duration(start - zero)}"
        _add(bars, look, base, start - zero, end - start, text, NONE)


def _collect(
    bars: dict[str, dict[str, list[Any]]], rank: DrawnRank, one: LaneView, base: int, zero: int
) -> None:
    lanes = rank.lanes
    assert one.rows is not None
    for row in one.rows.tolist():
        start, end = int(lanes.start_ns[row]), int(lanes.end_ns[row])
        place = int(lanes.collective[row])
        number = NONE if place == NONE else rank.collective(place)
        look = _LOOK[int(lanes.look[row])]
        _add(bars, look, base, start - zero, end - start, _told(lanes, row, look, start - zero), number)


def _told(lanes: Lanes, row: int, look: Look, since_ns: int) -> str:
    length = int(lanes.end_ns[row] - lanes.start_ns[row])
    module, layer, phase = (
        lanes.text(int(lanes.module[row])),
        int(lanes.layer[row]),
        PHASES[int(lanes.phase[row])],
    )
    where = [label(module, _NAME)] if module else []
    where += [f"layer {layer}"] if layer != NONE and not module else []
    where += [phase] if phase != "unknown" else []
    name = label(lanes.text(int(lanes.name[row])) or "unnamed", _NAME)
    lines = [f"{look.label}: {duration(length)} at {duration(since_ns)}", name, " · ".join(where)]
    return "<br>".join(line for line in lines if line)


def _add(
    bars: dict[str, dict[str, list[Any]]],
    look: Look,
    base: int,
    start_ns: int,
    length_ns: int,
    text: str,
    collective: int,
) -> None:
    columns = bars.setdefault(
        look.label, {"look": [look], "y": [], "base": [], "x": [], "text": [], "id": []}
    )
    columns["y"].append(base)
    columns["base"].append(start_ns / 1e6)
    columns["x"].append(length_ns / 1e6)
    columns["text"].append(text)
    columns["id"].append(collective)


def _bar_trace(name: str, columns: dict[str, list[Any]]) -> dict[str, Any]:
    look: Look = columns["look"][0]
    drawn = marker(look)
    drawn["line"] = {"width": 0.7, "color": look.color}  # else the shortest are thinner than can be seen
    return {
        "type": "bar",
        "orientation": "h",
        "y": _packed(np.array(columns["y"], np.uint16)),
        "base": _packed(np.array(columns["base"])),
        "x": _packed(np.array(columns["x"])),
        "width": HIGH,
        "name": name,
        "marker": drawn,
        "hovertext": columns["text"],
        "hoverinfo": "text",
        "customdata": [[one] for one in columns["id"]],
    }


def _lane_name(rank: DrawnRank, name: str) -> str:
    return label(f"{rank.name} · {name}" if rank.name else name, 34)


def _layout(
    ranks: Sequence[DrawnRank],
    rows: Sequence[tuple[DrawnRank, Key]],
    place: dict[tuple[int, Key], int],
    zero_ns: int,
    window: tuple[int, int],
    theme: str,
    marks: Sequence[Mark],
) -> dict[str, Any]:
    names = []
    for rank, (kind, number) in rows:
        several = len(_exposed_devices(rank)) > 1
        told = f"{_EXPOSED} (device {number})" if several else _EXPOSED
        names.append(_lane_name(rank, told if kind == "exposed" else rank.lanes.names[number]))
    ticks = [place[key] for key in _keys(rows)]
    top, bottom = (max(ticks, default=0) + _PITCH * 0.62, min(ticks, default=0) - _PITCH * 0.5)
    layout = copy.deepcopy(_plain_layout())
    layout["height"] = 96 + 34 * max(len(rows), 1)
    layout["xaxis"] |= {
        "range": [_ms(window[0] - zero_ns), _ms(window[1] - zero_ns)],
        "rangemode": "normal",
        "tickformat": ",.6~f",
    }
    layout["yaxis"] = layout["yaxis"] | {
        "type": "linear", "tickvals": ticks, "ticktext": names, "range": [bottom, top], "autorange": False,
        "fixedrange": True,
    }  # fmt: skip
    layout |= {
        "barmode": "overlay",
        "separators": ".\u202f",
        "dragmode": "pan",
        "hovermode": "closest",
        "hoverdistance": 40,
        "showlegend": False,
        "margin": {"l": 8, "r": 16, "t": 46, "b": 8},
        "uirevision": f"{window}",
    }
    _merge(layout, theme_patch(theme, ["xaxis", "yaxis"]))
    shapes, notes = _steps(ranks[0], zero_ns, window, theme) if ranks else ([], [])
    for mark in marks:
        shapes.append(_frame(mark, zero_ns, theme))
    layout["shapes"], layout["annotations"] = shapes, notes
    return layout


@cache
def _plain_layout() -> dict[str, Any]:
    """The common look of our figures; made once, because plotly takes longer for it than all else takes."""
    import plotly.graph_objects as go

    return styled(go.Figure(), height=100, x_title="ms since the first activity").to_plotly_json()["layout"]


def _merge(layout: dict[str, Any], patch: dict[str, Any]) -> None:
    for path, value in patch.items():
        *parents, leaf = path.split(".")
        node = layout
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value


def _steps(
    rank: DrawnRank, zero_ns: int, window: tuple[int, int], theme: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line where each step begins, with its number where there is room."""
    look = THEMES[theme]
    steps = (
        rank.lanes.steps[rank.lanes.steps[:, 1] == rank.lanes.steps[0, 1]] if len(rank.lanes.steps) else []
    )
    shift = rank.shift_ns
    seen = [one for one in steps if one[3] - shift > window[0] and one[2] - shift < window[1]][:_MOST_STEPS]
    ink = {"size": 11, "color": look["muted"]}
    beside = {
        "y": 1,
        "yref": "paper",
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "xshift": 2,
    }
    line = {"width": 1, "color": look["muted"], "dash": "dot"}
    upright = {"type": "line", "y0": 0, "y1": 1, "yref": "paper", "layer": "below", "line": line}
    begins = [_ms(start - shift - zero_ns) for _, _, start, _ in seen]
    shapes = [upright | {"x0": begin, "x1": begin} for begin in begins]
    left = _ms(window[0] - zero_ns)
    notes = [
        beside | {"x": max(begin, left), "text": f"step {one[0]}", "font": ink}
        for begin, one in zip(begins, seen, strict=True)
    ]
    notes = notes if len(notes) <= 16 else notes[:1]
    return shapes, notes


def _frame(mark: Mark, zero_ns: int, theme: str) -> dict[str, Any]:
    ink = THEMES[theme]["ink"]
    fill = "rgba(120,130,150,0.18)" if mark.is_main else "rgba(0,158,115,0.14)"
    line = {"width": 1.6 if mark.is_main else 1, "color": ink, "dash": "solid" if mark.is_main else "dash"}
    start, end = _ms(mark.start_ns - zero_ns), _ms(mark.end_ns - zero_ns)
    place = {"type": "rect", "x0": start, "x1": end, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
    return place | {"line": line, "fillcolor": fill}
