"""Plotly figures of a sweep: step time and memory over a size, absolute and relative, theory beside.

A line per scheme; error bars are the quartiles of the repeats; hollow markers on dotted lines are theory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from sp_profiler.report.figures import label, stacked_bars, styled, value_axis
from sp_profiler.report.format import duration, size
from sp_profiler.report.palette import TIME, Look
from sp_profiler.sweeps.model import Cell, Sweep
from sp_profiler.sweeps.tables import baseline_label

MOST_LINES = 12
"""Schemes in one chart; the tables have all."""
MOST_CHARTS = 4
"""Combinations of the other sizes that get charts of their own."""
_AXES = ("layers", "seq_len", "ranks", "micro_batch", "hidden", "num_microbatches", "heads", "ffn", "vocab")
_NAMES = {
    "seq_len": "tokens per sequence",
    "micro_batch": "sequences per micro-batch",
    "hidden": "hidden size",
}
_LOOKS = (
    Look("", "#0072B2"), Look("", "#D55E00"), Look("", "#009E73"), Look("", "#CC79A7"), Look("", "#E69F00"),
    Look("", "#56B4E9"), Look("", "#8C6BB1"), Look("", "#8B5E3C"), Look("", "#4C5FB0"), Look("", "#A6761D"),
    Look("", "#8A94A3"), Look("", "#5b6675"),
)  # fmt: skip
_MIB = 2**20


@dataclass(frozen=True)
class Chart:
    """A chart of the page; `figure` None: there is nothing to draw."""

    id: str
    title: str
    text: str
    figure: go.Figure | None


@dataclass(frozen=True)
class Value:
    """One point: its height, how far its error bar reaches up and down, and what the hover says."""

    y: float
    up: float = 0.0
    down: float = 0.0
    text: str = ""


Measure = Callable[[Cell], Value | None]


def charts(sweep: Sweep) -> list[Chart]:
    """For each combination of the sizes that are no axis: time and memory, absolute and relative."""
    axis = axis_of(sweep.cells)
    made: list[Chart] = []
    places = _places(sweep.cells, axis)
    for number, (told, cells) in enumerate(list(places.items())[:MOST_CHARTS]):
        tail = f"-{number}" if number else ""
        made += [
            Chart(f"{name}{tail}", title, f"{text}{told}", drawn(cells, axis, y_title, measure, theory))
            for name, title, text, y_title, measure, theory in _kinds(sweep)
        ]
    return [*made, Chart("exposed", "Communication", "profiled, mean of a step and rank", exposed(sweep))]


def _kinds(sweep: Sweep) -> list[tuple[str, str, str, str, Measure, Measure | None]]:
    base = baseline_label(sweep)
    return [
        ("time", "Step time", "median and quartiles, no profiler", "ms per step", step, theory_step),
        ("relative-time", f"Step time, × {base}", "median and quartiles", f"× {base}", relative_step, None),
        (
            "memory",
            "Peak memory",
            "of a rank, measured; dotted: theory, at least",
            "MiB",
            memory,
            theory_memory,
        ),
        ("relative-memory", f"Peak memory, × {base}", "of a rank", f"× {base}", relative_memory, None),
        ("saved", "Kept for backward", "of a rank, measured; dotted: theory", "MiB", saved, theory_saved),
        ("rate", "Throughput", "tokens per second of all ranks", "tokens/s", rate, None),
    ]


def axis_of(cells: Sequence[Cell]) -> str:
    """The size along which lines are drawn: layers, or the first that differs where layers do not."""
    for name in _AXES:
        if len({cell.sizes.get(name) for cell in cells}) > 1:
            return name
    return "layers"


def _places(cells: Sequence[Cell], axis: str) -> dict[str, list[Cell]]:
    """Cells that share a chart, by the words that tell it from the others; empty where there is one."""
    differ = [name for name in cells[0].sizes if name != axis] if cells else []
    differ = [name for name in differ if len({cell.sizes.get(name) for cell in cells}) > 1]
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        words = "".join(f"; {name.replace('_', '-')} {cell.sizes[name]}" for name in differ)
        found.setdefault(words, []).append(cell)
    return found


def drawn(
    cells: Sequence[Cell], axis: str, y_title: str, measure: Measure, theory: Measure | None
) -> go.Figure | None:
    """A line for each scheme. None where nothing was measured."""
    schemes = list(dict.fromkeys(cell.scheme for cell in cells))[:MOST_LINES]
    figure = go.Figure()
    for place, scheme in enumerate(schemes):
        mine = sorted((c for c in cells if c.scheme == scheme), key=lambda c: _x(c, axis))
        known = [(_x(cell, axis), value) for cell in mine if (value := measure(cell)) is not None]
        if not known:
            continue
        look, name = _LOOKS[place % len(_LOOKS)], label(mine[0].label)
        _line(figure, name, look, place, known)
        if theory is not None:
            formula = [(_x(cell, axis), value) for cell in mine if (value := theory(cell)) is not None]
            _dotted(figure, name, look, place, formula)
    if not figure.to_plotly_json()["data"]:
        return None
    figure = styled(figure, height=340, x_title=_NAMES.get(axis, axis.replace("_", " ")))
    figure.update_layout(margin={"t": 16})
    figure.update_xaxes(tickvals=sorted({_x(cell, axis) for cell in cells}), rangemode="normal")
    value_axis(figure, "y", y_title)
    if y_title.startswith("×"):  # what matters is how far from 1
        figure.update_yaxes(rangemode="normal")
    return figure


def _x(cell: Cell, axis: str) -> int:
    return int(cell.sizes[axis] or 0)


def _line(figure: go.Figure, name: str, look: Look, place: int, known: Sequence[tuple[int, Value]]) -> None:
    values = [value for _, value in known]
    errors: dict[str, Any] = {}
    if any(value.up or value.down for value in values):
        bars = {"array": [v.up for v in values], "arrayminus": [v.down for v in values], "symmetric": False}
        errors["error_y"] = {"type": "data", "thickness": 1.2, "width": 4, "color": look.color, **bars}
    figure.add_scatter(
        x=[x for x, _ in known],
        y=[value.y for value in values],
        mode="lines+markers",
        name=name,
        marker={"color": look.color, "size": 8, "symbol": place},
        line={"color": look.color, "width": 2},
        hovertext=[f"{name}<br>{value.text}" for value in values],
        hoverinfo="text",
        **errors,
    )


def _dotted(figure: go.Figure, name: str, look: Look, place: int, known: Sequence[tuple[int, Value]]) -> None:
    if not known:
        return
    figure.add_scatter(
        x=[x for x, _ in known],
        y=[value.y for _, value in known],
        mode="lines+markers",
        name=name,  # one button of the legend hides both
        marker={"color": look.color, "size": 9, "symbol": 100 + place},
        line={"color": look.color, "width": 1, "dash": "dot"},
        hovertext=[f"{name}, theory<br>{value.text}" for _, value in known],
        hoverinfo="text",
    )


def step(cell: Cell) -> Value | None:
    """ms, from quartile to quartile."""
    one = cell.step
    if one is None:
        return None
    up, down = (one.q3_ns - one.median_ns) / 1e6, (one.median_ns - one.q1_ns) / 1e6
    text = f"{duration(one.median_ns)} a step, quartiles {duration(one.q1_ns)} to {duration(one.q3_ns)}"
    return Value(one.median_ns / 1e6, up, down, f"{text}<br>{cell.tokens_per_step} tokens a step")


def theory_step(cell: Cell) -> Value | None:
    least = cell.theory.step_ns_at_least
    return None if least is None else Value(least / 1e6, text=f"at least {duration(least)}")


def relative_step(cell: Cell) -> Value | None:
    """Over the baseline's median; the error bar is that of this cell."""
    one = cell.relative
    if one is None or one.step is None or one.step_q1 is None or one.step_q3 is None:
        return None
    work = "" if one.work == 1 else f"<br>{one.work:g} times the tokens"
    return Value(one.step, one.step_q3 - one.step, one.step - one.step_q1, f"{one.step:.3f} times{work}")


def memory(cell: Cell) -> Value | None:
    return _bytes(cell.memory.peak_bytes if cell.memory is not None else None)


def theory_memory(cell: Cell) -> Value | None:
    return _bytes(cell.theory.peak_bytes_at_least)


def relative_memory(cell: Cell) -> Value | None:
    one = cell.relative
    return None if one is None or one.memory is None else Value(one.memory, text=f"{one.memory:.3f} times")


def saved(cell: Cell) -> Value | None:
    return _bytes(cell.memory.saved_bytes if cell.memory is not None else None)


def theory_saved(cell: Cell) -> Value | None:
    return _bytes(cell.theory.saved_bytes)


def rate(cell: Cell) -> Value | None:
    """Tokens per second; the error bar from the quartiles of the step."""
    one = cell.step
    if one is None or cell.tokens_per_s is None:
        return None
    most, least = (cell.tokens_per_step / (ns / 1e9) for ns in (one.q1_ns, one.q3_ns))
    middle = cell.tokens_per_s
    return Value(middle, most - middle, middle - least, f"{middle:.0f} tokens/s")


def _bytes(count: int | None) -> Value | None:
    return None if count is None else Value(count / _MIB, text=size(count))


def exposed(sweep: Sweep) -> go.Figure | None:
    """One bar per cell at the largest sizes: communication overlapped and exposed, of profiled steps."""
    axis = axis_of(sweep.cells)
    known = [cell for cell in sweep.cells if cell.profile is not None and cell.profile.comm_ns is not None]
    most = max((_x(cell, axis) for cell in known), default=None)
    known = [cell for cell in known if _x(cell, axis) == most][:24]
    if not known:
        return None

    def of(field: str) -> list[int]:
        return [getattr(cell.profile, field) or 0 for cell in known]

    several = len({cell.label for cell in known}) < len(known)
    names = [label(cell.name if several else cell.label, 46) for cell in known]
    parts = [(TIME["overlapped"], of("overlapped_ns")), (TIME["exposed"], of("exposed_ns"))]
    x_title = f"ms of communication per step and rank, {most} {_NAMES.get(axis, axis.replace('_', ' '))}"
    return stacked_bars(names, parts, of("comm_ns"), unit=1e6, text=duration, x_title=x_title)
