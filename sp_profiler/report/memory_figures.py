"""Plotly figures of memory, for the HTML pages and the dashboard alike.

Sizes are shown in the binary unit that fits the largest, times in ms since the first event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from sp_profiler.analysis.memory.kept import top_border
from sp_profiler.analysis.memory.results import (
    BorderFigures,
    Memory,
    MemoryBlock,
    MemoryCurve,
    MemoryFigures,
    SavedTensors,
)
from sp_profiler.report.figures import label, stacked_bars, styled, value_axis
from sp_profiler.report.format import duration, size
from sp_profiler.report.memory_sentences import TERM_NAMES, device_name, several_devices
from sp_profiler.report.memory_view import chosen
from sp_profiler.report.palette import MEMORY, PHASE_TINTS, Look, fill_pattern, marker

MOST_POINTS = 1200
"""Points of a drawn curve: more than a screen has pixels to tell apart."""
MOST_BLOCKS = 160
"""Bars of one chart of lifetimes."""
MOST_LAYERS = 96

_LINE = "#7b8797"  # seen on white and on the dark paper
_MARGIN = {"l": 8, "r": 16, "t": 40, "b": 8}  # above the plot: names of phases, and the mode bar over them
_VISIBLE = 0.0005  # of the span: half a pixel
_MOST_BANDS = 400
_NARROWEST = 0.05  # of the span: a narrower band gets no name


def unit_of(most: float) -> tuple[int, str]:
    """The binary unit for an axis whose largest value is `most` bytes, and its size in bytes."""
    power = next((n for n in (3, 2, 1) if most >= 1024**n), 0)
    return 1024**power, ("B", "KiB", "MiB", "GiB")[power]


def live_bytes(one: MemoryFigures) -> go.Figure | None:
    """Live bytes over time by category, with steps, phases and the peak marked. None without a curve."""
    curve = one.curve
    if curve is None or len(curve.time_ns) < 2:
        return None
    kept = thinned(curve)
    zero = curve.time_ns[0]
    times = [round((curve.time_ns[place] - zero) / 1e6, 4) for place in kept]
    unit, name = unit_of(max(curve.allocated_bytes))
    figure = go.Figure()
    for category, look in MEMORY.items():
        values = curve.by_category.get(category)
        if values and any(values):
            figure.add_scatter(
                x=times,
                y=[round(values[place] / unit, 4) for place in kept],
                stackgroup="categories",
                mode="lines",
                line={"shape": "hv", "width": 0},
                fillcolor=look.color,
                fillpattern=fill_pattern(look),
                marker={"color": look.color},
                name=look.label,
                hovertemplate=f"{look.label}: %{{y:.2f}} {name}<extra></extra>",
            )
    figure.add_scatter(
        x=times,
        y=[round(curve.allocated_bytes[place] / unit, 4) for place in kept],
        mode="lines",
        line={"shape": "hv", "width": 1.2, "color": _LINE},
        marker={"color": _LINE},
        name="allocated",
        hovertemplate=f"allocated: %{{y:.2f}} {name}<extra></extra>",
    )
    figure = styled(figure, height=330, x_title="ms since the first event")
    value_axis(figure, "y", f"{name}{' above the start' if one.is_relative else ''}")
    figure.update_xaxes(range=[0, times[-1]], unifiedhovertitle={"text": "%{x:.3f} ms"})
    figure.update_layout(hovermode="x unified", margin=_MARGIN, dragmode="zoom")
    _mark_phases(figure, one, zero)
    _mark_peak(figure, one, zero, unit)
    return figure


def thinned(curve: MemoryCurve) -> list[int]:
    """Places of the points drawn: the last, lowest and highest of each of equal stretches of time."""
    times = np.array(curve.time_ns)
    if len(times) <= MOST_POINTS:
        return list(range(len(times)))
    totals = np.array(curve.allocated_bytes)
    edges = np.linspace(times[0], times[-1], MOST_POINTS // 3 + 1)
    borders = np.unique([0, *np.searchsorted(times, edges[1:-1]), len(times)])
    kept = {0, len(times) - 1}
    for begin, end in pairwise(borders.tolist()):
        piece = totals[begin:end]
        kept |= {begin + int(piece.argmax()), begin + int(piece.argmin()), end - 1}
    return sorted(kept)


def _mark_phases(figure: go.Figure, one: MemoryFigures, zero_ns: int) -> None:
    """Bands behind the curve: which phase of which step."""
    span = (one.curve.time_ns[-1] - zero_ns) if one.curve else 0
    seen = [] if one.curve is None else one.curve.phases
    stretches = [s for s in seen if s.end_ns - s.start_ns >= span * _VISIBLE][:_MOST_BANDS]
    steps = {stretch.step for stretch in stretches}
    bands: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    for stretch in stretches:
        begin, end = (stretch.start_ns - zero_ns) / 1e6, (stretch.end_ns - zero_ns) / 1e6
        bands.append(
            {"type": "rect", "x0": begin, "x1": end, "y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
            | {"line": {"width": 0}, "fillcolor": PHASE_TINTS.get(stretch.phase, "rgba(0,0,0,0)")}
        )
        wide = span and (stretch.end_ns - stretch.start_ns) / span
        if wide >= _NARROWEST:
            step = f" {stretch.step}" if stretch.step is not None and len(steps) > 1 else ""
            names.append(_note(begin, 1, f"{stretch.phase}{step if wide > 2 * _NARROWEST else ''}", "bottom"))
    # All at once: plotly copies what is there for each that is added.
    layout: Any = figure["layout"]
    figure.update_layout(shapes=[*layout.shapes, *bands], annotations=[*layout.annotations, *names])


def _note(x: float, y: float, text: str, anchor: str, **more: Any) -> dict[str, Any]:
    place = {"yref": "paper", "xanchor": "left", "borderpad": 0, "xshift": 2} | more
    return {"x": x, "y": y, "text": text, "showarrow": False, "yanchor": anchor, "font": {"size": 11}} | place


def _mark_peak(figure: go.Figure, one: MemoryFigures, zero_ns: int, unit: int) -> None:
    if one.peak_ns is None or one.peak_bytes is None:
        return
    x, y = (one.peak_ns - zero_ns) / 1e6, one.peak_bytes / unit
    span = one.curve.time_ns[-1] - zero_ns if one.curve else 0
    is_late = one.peak_ns - zero_ns > 0.6 * span  # to the right of it there may be no room
    figure.add_annotation(
        x=x, y=y, text=f"peak {size(one.peak_bytes)}", arrowhead=0, arrowcolor=_LINE, arrowwidth=1,
        ax=-28 if is_late else 28, ay=-2, xanchor="right" if is_late else "left", font={"size": 11},
        borderpad=1,
    )  # fmt: skip


def peak_composition(memory: Memory) -> go.Figure | None:
    """One bar per rank: what its peak is made of."""
    ranks = [one for one in chosen(memory) if one.peak_by_category]
    if not ranks:
        return None
    several = several_devices(memory)
    names = [device_name(one, several) for one in ranks]
    whole = [sum((one.peak_by_category or {}).values()) for one in ranks]
    parts = {
        category: [(one.peak_by_category or {}).get(category, 0) for one in ranks] for category in MEMORY
    }
    return _stacked(names, parts, whole, "at the rank's own peak")


def _stacked(
    names: Sequence[str], parts: Mapping[str, Sequence[int]], whole: Sequence[int], what: str
) -> go.Figure:
    """Horizontal bars, one per name, stacked by category of memory."""
    unit, unit_name = unit_of(max(whole, default=0))
    drawn = [(look, parts[category]) for category, look in MEMORY.items() if category in parts]
    title = f"{unit_name} {what}".strip()
    return stacked_bars(names, drawn, whole, unit=unit, text=size, x_title=title, inside=_size_inside)


def _size_inside(value: float, share: float) -> str:
    return size(value) if share >= 0.12 else ""


def border_by_layer(one: MemoryFigures, height: int = 240) -> go.Figure | None:
    """What crosses the forward -> backward border, a bar per layer, stacked by category where it is known."""
    border = top_border(one)
    if border is None or not border.by_layer:
        return None
    layers = list(border.by_layer)[:MOST_LAYERS]
    unit, name = unit_of(max(border.by_layer.values()))
    shown = [label("outside" if layer == "none" else layer, 20) for layer in layers]
    figure = go.Figure()
    for category, look in MEMORY.items():
        values = [_of_layer(border, layer, category) for layer in layers]
        if any(values):
            figure.add_bar(
                x=shown,
                y=[value / unit for value in values],
                name=look.label,
                marker=marker(look),
                hovertext=[
                    f"{'layer ' if layer.isdecimal() else ''}{layer}<br>{look.label}: {size(value)} "
                    f"of {size(border.by_layer[key])}"
                    for layer, key, value in zip(shown, layers, values, strict=True)
                ],
                hoverinfo="text",
            )
    figure = styled(figure, height=height, x_title="layer")
    value_axis(figure, "y", name)
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_layout(bargap=0.35 if len(layers) > 3 else 0.6)
    return figure


def _of_layer(border: BorderFigures, layer: str, category: str) -> int:
    """Bytes of a category in a layer; where only sums by layer are known all of them are activations."""
    if border.by_layer_category:
        return border.by_layer_category.get(layer, {}).get(category, 0)
    return border.by_layer[layer] if category == "activation" else 0


def drawn_blocks(one: MemoryFigures) -> list[MemoryBlock]:
    """The largest blocks of one step, in the order of their birth: those of the border that keeps most."""
    border = top_border(one)
    known = [block for block in one.blocks or () if block.birth_ns is not None]
    of_step = [block for block in known if border is not None and block.step == border.step] or known
    largest = sorted(of_step, key=lambda block: (-block.bytes, block.birth_ns or 0))[:MOST_BLOCKS]
    return sorted(largest, key=lambda block: (block.birth_ns or 0, block.death_ns or 0))


def lifetimes(one: MemoryFigures) -> go.Figure | None:
    """A bar from birth to free for each of the largest blocks of one step, the oldest on top."""
    blocks = drawn_blocks(one)
    if not blocks:
        return None
    zero = min(block.birth_ns or 0 for block in blocks)
    ends = [block.death_ns for block in blocks if block.death_ns is not None]
    last = max(ends, default=max(block.birth_ns or 0 for block in blocks))
    figure = go.Figure()
    for category, look in MEMORY.items():
        rows = [(place, block) for place, block in enumerate(blocks) if block.category == category]
        if not rows:
            continue
        figure.add_bar(
            y=[place for place, _ in rows],
            base=[round(((block.birth_ns or 0) - zero) / 1e6, 4) for _, block in rows],
            x=[round(((block.death_ns or last) - (block.birth_ns or 0)) / 1e6, 4) for _, block in rows],
            width=0.8,
            orientation="h",
            name=look.label,
            marker=marker(look),
            hovertext=[_hover(block, zero) for _, block in rows],
            hoverinfo="text",
        )
    height = 70 + (14 if len(blocks) <= 24 else 8 if len(blocks) <= 60 else 4) * len(blocks)
    figure = styled(figure, height=height, x_title="ms since the first of them was allocated")
    figure.update_yaxes(type="linear", showticklabels=False, fixedrange=True, automargin=False)
    figure.update_yaxes(range=[len(blocks) - 0.5, -0.5], autorange=False)
    figure.update_xaxes(range=[0, max((last - zero) / 1e6, 1e-6)])
    figure.update_layout(barmode="overlay", dragmode="zoom", margin=_MARGIN)
    for border in one.borders:
        if zero <= border.border_ns <= last:
            x = (border.border_ns - zero) / 1e6
            line = {"width": 1, "dash": "dot", "color": _LINE}
            figure.add_shape(type="line", x0=x, x1=x, y0=0, y1=1, yref="paper", line=line)
            figure.add_annotation(_note(x, 1, "backward begins", "bottom"))
    return figure


def _hover(block: MemoryBlock, zero_ns: int) -> str:
    lived = (
        "its free was not recorded" if block.lifetime_ns is None else f"lives {duration(block.lifetime_ns)}"
    )
    lines = [f"{size(block.bytes)} · {MEMORY.get(block.category, MEMORY['unknown']).label}"]
    lines.append(f"born at {duration((block.birth_ns or 0) - zero_ns)}, {lived}")
    lines += [label(block.made_by or block.operator, 60)] if block.made_by or block.operator else []
    lines += [label(block.module, 60)] if block.module else []
    lines += [f"freed by {label(block.freed_by, 60)}"] if block.freed_by else []
    return "<br>".join(lines)


def saved_beside_theory(saved: SavedTensors) -> go.Figure | None:
    """Bytes saved for backward by term: measured as bars, the closed form as marks."""
    terms = sorted((one for one in saved.terms if one.layer is None), key=lambda one: -one.bytes)
    if not terms:
        return None
    unit, name = unit_of(max(max(one.bytes, one.theory_bytes or 0) for one in terms))
    names = [one.term for one in terms]
    told = [TERM_NAMES.get(one.term, label(one.term)) for one in terms]
    figure = go.Figure()
    figure.add_bar(
        y=names,
        x=[one.bytes / unit for one in terms],
        orientation="h",
        name="measured by hooks",
        marker=marker(Look("", "#0072B2")),
        hovertext=[
            f"{what}<br>measured {size(one.bytes)} in {one.tensors} tensors"
            f"<br>theory {size(one.theory_bytes)}"
            for what, one in zip(told, terms, strict=True)
        ],
        hoverinfo="text",
    )
    known = [one for one in terms if one.theory_bytes is not None]
    if known:
        figure.add_scatter(
            y=[one.term for one in known],
            x=[(one.theory_bytes or 0) / unit for one in known],
            mode="markers",
            name="closed form",
            marker={
                "symbol": "line-ns",
                "size": 17,
                "color": "#D55E00",
                "line": {"width": 3, "color": "#D55E00"},
            },
            hovertext=[f"{one.term}: theory {size(one.theory_bytes)}" for one in known],
            hoverinfo="text",
        )
    figure = styled(figure, height=64 + 26 * len(terms), x_title=name)
    figure.update_xaxes(rangemode="tozero")
    return figure


def kept_by_run(names: Sequence[str], borders: Sequence[BorderFigures]) -> go.Figure:
    """Runs beside each other: what each keeps for backward, by category."""
    categories: Iterable[str] = MEMORY
    parts = {key: [border.by_category.get(key, 0) for border in borders] for key in categories}
    return _stacked(
        list(names), parts, [border.bytes for border in borders], "alive from forward to backward"
    )
