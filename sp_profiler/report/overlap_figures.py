"""Plotly figures of how much of communication is hidden, layer by layer, for the dashboard."""

from __future__ import annotations

import plotly.graph_objects as go

from sp_profiler.analysis.kind_figures import together
from sp_profiler.report.figures import label, styled, value_axis
from sp_profiler.report.format import counted, duration
from sp_profiler.report.model import Report, by_step, kinds_of, windows_of
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
    kinds = [one for one in kinds_of(report) if purpose is None or one.purpose == purpose]
    layers = [one for one in together(kinds, ("layer",)) if one.layer is not None]
    if not layers:
        return None
    layers.sort(key=lambda one: one.layer or 0)
    sums = {
        "hidden": [one.hidden_ns for one in layers],
        "hideable": [one.hideable_ns - one.hidden_ns for one in layers],
        "beyond": [one.dur_ns - one.partner_unknown_ns - one.hideable_ns for one in layers],
        "unknown": [one.partner_unknown_ns for one in layers],
    }
    calls = [one.collectives for one in layers]
    return _by_layer([one.layer or 0 for one in layers], sums, calls, windows_of(report), by_step(report))


def _by_layer(
    layers: list[int], sums: dict[str, list[int]], calls: list[int], count: int, per_step: bool
) -> go.Figure:
    names = [str(layer) for layer in layers[:MOST_LAYERS]]
    figure = go.Figure()
    for key, look in HIDING.items():
        values = sums[key][:MOST_LAYERS]
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
