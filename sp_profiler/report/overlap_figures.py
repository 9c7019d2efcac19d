"""Plotly figures of how much of communication is hidden, layer by layer, for the dashboard."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.intervals import sum_by
from sp_profiler.report.figures import label, styled, value_axis
from sp_profiler.report.format import counted, duration
from sp_profiler.report.model import Report, by_step, windows_of
from sp_profiler.report.palette import Look, marker

MOST_LAYERS = 96

HIDING = {
    "hidden": Look("hidden under its partner", "#009E73", "/"),
    "hideable": Look("could be hidden, is not", "#D55E00", "x"),
    "beyond": Look("longer than its partner", "#E0A458", "|"),
    "unknown": Look("no partner known", "#B9C0CA", "."),
}


def hiding_by_layer(report: Report, purpose: str | None = None) -> go.Figure | None:
    """One bar per layer: the time of its collectives, by whether their partner hides it.

    Means per window. `purpose`: only collectives of this purpose. None where there is none with a layer.
    """
    table = Collectives.of(report.collectives)
    if purpose is not None:
        table = table.take(table.words("purpose").where(lambda one: one == purpose))
    layer = table.numbers("layer")
    table = table.take(layer.is_known)
    if len(table) == 0:
        return None
    layers, place = np.unique(table.numbers("layer").values, return_inverse=True)
    hideable, hidden = table.numbers("hideable_ns"), table.numbers("hidden_ns")
    dur = table.numbers("dur_ns").values
    known = hideable.is_known & hidden.is_known
    # Neither can exceed the collective's own length: what lies beyond would be in no bar.
    could = np.where(known, np.minimum(hideable.or_zero(), dur), 0)
    did = np.where(known, np.minimum(hidden.or_zero(), could), 0)
    parts = {
        "hidden": did,
        "hideable": could - did,
        "beyond": np.where(known, dur - could, 0),
        "unknown": np.where(known, 0, dur),
    }
    count = windows_of(report)
    sums = {name: sum_by(place, values, len(layers)) for name, values in parts.items()}
    return _by_layer(layers.tolist(), sums, np.bincount(place).tolist(), count, by_step(report))


def _by_layer(
    layers: list[int], sums: dict[str, np.ndarray], calls: list[int], count: int, per_step: bool
) -> go.Figure:
    names = [str(layer) for layer in layers[:MOST_LAYERS]]
    figure = go.Figure()
    for key, look in HIDING.items():
        values = sums[key][:MOST_LAYERS].tolist()
        if not any(values):
            continue
        figure.add_bar(
            x=names,
            y=[value / count / 1e6 for value in values],
            name=look.label,
            marker=marker(look),
            hovertext=[
                f"layer {name}<br>{label(look.label)}: {duration(value / count)}<br>"
                f"{counted(number, 'collective')} in all"
                for name, value, number in zip(names, values, calls, strict=False)
            ],
            hoverinfo="text",
        )
    figure = styled(figure, height=260, x_title="layer")
    value_axis(figure, "y", f"ms per {'step and ' if per_step else ''}rank")
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_layout(bargap=0.35 if len(names) > 3 else 0.6)
    return figure
