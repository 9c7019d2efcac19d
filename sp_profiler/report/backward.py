"""One layer's backward of several runs, one above the other on the same time scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sp_profiler.analysis.results import Segment
from sp_profiler.report.figures import add_lanes, label, lane_order, styled
from sp_profiler.report.format import duration
from sp_profiler.report.model import Report, Timeline


@dataclass(frozen=True)
class Span:
    """`[start_ns, end_ns)` of one layer's backward in the drawn step."""

    start_ns: int
    end_ns: int


def backward_span(timeline: Timeline, layer: int) -> Span | None:
    """Where the backward of a layer runs; with several micro-batches the first time.

    None when no stretch of the drawn step is known to belong to it.
    """
    stretches = [s for s in timeline.segments if s.phase == "backward" and s.layer is not None]
    stretches.sort(key=lambda s: (s.start_ns, s.end_ns))
    first = next((place for place, s in enumerate(stretches) if s.layer == layer), None)
    if first is None:
        return None
    start_ns, end_ns = stretches[first].start_ns, stretches[first].end_ns
    for stretch in stretches[first:]:
        if stretch.layer == layer:
            end_ns = max(end_ns, stretch.end_ns)
        elif stretch.start_ns >= end_ns:  # another layer has its turn
            break
    return Span(start_ns, end_ns)


def common_layer(reports: Sequence[Report]) -> int | None:
    """The layer that is shown: in every report, as near the middle as can be (ends are special)."""
    sets = [
        {s.layer for s in r.timeline.segments if s.phase == "backward" and s.layer is not None}
        for r in reports
        if r.timeline is not None
    ]
    shared = sorted(set.intersection(*sets)) if sets else []
    return shared[len(shared) // 2] if shared else None


def layer_backward(reports: Sequence[Report], names: Sequence[str]) -> go.Figure | None:
    """The backward of one layer of each report, aligned at its start, x axes equal. None when unknown."""
    layer = common_layer(reports)
    found = [
        (name, r.timeline, span)
        for name, r in zip(names, reports, strict=True)
        if r.timeline is not None and layer is not None
        if (span := backward_span(r.timeline, layer)) is not None
    ]
    if not found:
        return None
    parts = [_part(timeline, span) for _, timeline, span in found]
    figure = make_subplots(
        rows=len(found),
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.36 / len(found) if len(found) > 1 else 0.1,
        row_heights=[len(lanes) + 1.0 for lanes, _, _ in parts],
        subplot_titles=[
            f"<b>{label(name)}</b>  backward of layer {layer}: {duration(span.end_ns - span.start_ns)}"
            for name, _, span in found
        ],
    )
    in_legend: set[str] = set()
    for row, ((_, _, span), (lanes, segments, exposed)) in enumerate(zip(found, parts, strict=True), 1):
        add_lanes(figure, segments, exposed, span.start_ns, lanes, in_legend, row=row, col=1)
    _finish(
        figure, [lanes for lanes, _, _ in parts], max(span.end_ns - span.start_ns for _, _, span in found)
    )
    return figure


Part = tuple[list[str], list[Segment], list[list[int]]]


def _part(timeline: Timeline, span: Span) -> Part:
    """What of a step is inside the span: lanes, stretches, exposed stretches."""
    inside = [s for s in timeline.segments if s.start_ns < span.end_ns and s.end_ns > span.start_ns]
    exposed = [pair for pair in timeline.exposed if pair[0] < span.end_ns and pair[1] > span.start_ns]
    return lane_order(inside), inside, exposed


def _finish(figure: go.Figure, lanes: Sequence[Sequence[str]], longest_ns: int) -> None:
    styled(figure, height=70 + sum(44 * (len(names) + 1) + 40 for names in lanes), x_title="")
    figure.update_layout(barmode="overlay", margin={"t": 40}, dragmode="zoom")
    figure.update_xaxes(range=[0, longest_ns / 1e6 * 1.01], showticklabels=True)
    figure.update_xaxes(
        title={"text": "ms since the start of the layer's backward", "font": {"size": 12}},
        row=len(lanes),
        col=1,
    )
    for row, names in enumerate(lanes, 1):
        ticks = [*(label(lane, 30) for lane in names), "exposed"]
        figure.update_yaxes(
            type="linear",
            tickvals=list(range(len(ticks))),
            ticktext=ticks,
            range=[len(ticks) - 0.5, -0.5],
            autorange=False,
            fixedrange=True,
            row=row,
            col=1,
        )
    figure.update_annotations(x=0, xanchor="left", font={"size": 13})
