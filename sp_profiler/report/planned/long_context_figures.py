"""Plotly figures of a plan of long context: what is kept, hop beside attention, where a layer's time goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from sp_profiler.planning.long_context.model import ContextScheme, LayerTime, LongContextPlan, RingFigures
from sp_profiler.report.figures import label, stacked_bars, styled, value_axis
from sp_profiler.report.format import counted, duration, percent, size
from sp_profiler.report.page_parts import QUIET, ZOOMABLE
from sp_profiler.report.palette import KIND, MEMORY, ROLE, TIME, Look, marker
from sp_profiler.report.planned.figures import MOST_BARS, Panel
from sp_profiler.report.planned.long_context_view import plain_ring

_GIB = 2**30
_POINTS = 61


def panels(plan: LongContextPlan) -> list[Panel]:
    """The charts of the page."""
    return [
        Panel("context-saved", "Kept for backward", "one layer, one rank; logarithmic", saved(plan), QUIET),
        Panel("context-hops", "Ring step", "a hop beside the attention of a block", hops(plan), QUIET),
        Panel("context-layer", "One layer", "estimated; forward and backward", layer(plan), QUIET),
        Panel("context-lengths", "Where hops hide", _of_lengths(plan), lengths(plan), ZOOMABLE),
    ]


def saved(plan: LongContextPlan) -> go.Figure:
    """One bar per scheme that can be built, on a logarithmic axis: scores are thousands of the rest."""
    drawn = [one for one in plan.schemes if one.saved_bytes_per_layer][:MOST_BARS]
    look = MEMORY["activation"]
    whole = plan.single_device_bytes_per_layer
    figure = go.Figure()
    figure.add_bar(
        y=[label(one.label) for one in drawn],
        x=[(one.saved_bytes_per_layer or 0) / _GIB for one in drawn],
        orientation="h",
        name="kept for backward",
        marker=marker(look),
        text=[size(one.saved_bytes_per_layer) for one in drawn],
        textposition="auto",
        hovertext=[
            f"{label(one.label)}<br>{size(one.saved_bytes_per_layer)}, "
            f"{percent((one.saved_bytes_per_layer or 0) / whole)} of one device's"
            for one in drawn
        ],
        hoverinfo="text",
    )
    figure = styled(figure, height=64 + 30 * max(len(drawn), 1), x_title="GiB a layer, logarithmic")
    figure.update_xaxes(type="log", showgrid=True)
    return figure


def hops(plan: LongContextPlan) -> go.Figure | None:
    """Per scheme with a ring: hop, attention of a later block, and of a block without a mask. None without
    times."""
    drawn = [(one, one.ring) for one in plan.schemes if one.ring is not None and one.ring.hop_ns is not None]
    if not drawn:
        return None
    parts: list[tuple[Look, Callable[[RingFigures], int | None]]] = [
        (Look("a hop of K and V", KIND["communication"].color, "\\"), lambda ring: ring.hop_ns),
        (Look("attention of a block", ROLE["attention"].color), lambda ring: ring.later_block_ns),
        (Look("of a block without a mask", ROLE["other"].color, "."), lambda ring: ring.block_ns),
    ]
    if not plan.sizes.causal:
        parts.pop()
    figure = go.Figure()
    names = [label(one.label) for one, _ in drawn[:MOST_BARS]]
    for look, part in parts:
        values = [part(ring) or 0 for _, ring in drawn[:MOST_BARS]]
        figure.add_bar(
            y=names,
            x=[value / 1e6 for value in values],
            orientation="h",
            name=look.label,
            marker=marker(look),
            hovertext=[
                f"{name}<br>{look.label}: {duration(value)}"
                for name, value in zip(names, values, strict=True)
            ],
            hoverinfo="text",
        )
    figure = styled(figure, height=64 + 20 * len(parts) * len(names), x_title="")
    figure.update_layout(barmode="group")
    value_axis(figure, "x", "ms")
    return figure


def _of_lengths(plan: LongContextPlan) -> str:
    one = plain_ring(plan)
    return "" if one is None else f"{one.label} of {one.ring_ranks} ranks, by length of the sequence"


def lengths(plan: LongContextPlan) -> go.Figure | None:
    """A hop, which grows with the sequence, and attention of a block, which grows with its square: hops hide
    where its line is the higher one. Both axes logarithmic. None without times or a ring."""
    one = plain_ring(plan)
    ring = None if one is None else one.ring
    if ring is None or ring.hop_ns is None or ring.hop_transfer_ns is None or ring.to_hide is None:
        return None
    latency, transfer = ring.hop_ns - ring.hop_transfer_ns, ring.hop_transfer_ns
    longest = max(4.0, 2 * ring.to_hide.seq_len / plan.sizes.seq_len)
    times = [0.125 * (longest / 0.125) ** (place / (_POINTS - 1)) for place in range(_POINTS)]
    lines = [
        (Look("a hop of K and V", KIND["communication"].color), [latency + transfer * x for x in times]),
        (Look("attention of a block", ROLE["attention"].color), _squares(ring.later_block_ns, times)),
    ]
    if plan.sizes.causal:
        look = Look("of a block without a mask", ROLE["other"].color)
        lines.append((look, _squares(ring.block_ns, times)))
    figure = go.Figure()
    tokens = [round(plan.sizes.seq_len * x) for x in times]
    for look, values in lines:
        figure.add_scatter(
            x=tokens,
            y=[value / 1e6 for value in values],
            mode="lines",
            name=look.label,
            marker={"color": look.color},
            line={"color": look.color, "width": 2},
            hovertext=[
                f"{look.label}: {duration(value)}<br>{counted(length, 'token')}"
                for length, value in zip(tokens, values, strict=True)
            ],
            hoverinfo="text",
        )
    figure = styled(figure, height=330, x_title="tokens of the sequence")
    figure.update_xaxes(type="log", rangemode="normal", showgrid=True)
    value_axis(figure, "y", "ms")
    figure.update_yaxes(type="log", rangemode="normal")
    figure.add_vline(x=plan.sizes.seq_len, line={"width": 1, "dash": "dot", "color": KIND["memory"].color})
    return figure


def _squares(at_plan: int | None, times: Sequence[float]) -> list[float]:
    return [(at_plan or 0) * x * x for x in times]


def layer(plan: LongContextPlan) -> go.Figure | None:
    """One bar per scheme: GEMMs, attention, and what is exposed of each kind of communication. None without
    times."""
    drawn = [one for one in plan.schemes if one.forward is not None][:MOST_BARS]
    if not drawn:
        return None
    parts: list[tuple[Look, Callable[[LayerTime], int]]] = [
        (Look("GEMMs", ROLE["fwd"].color), lambda t: t.gemm_ns),
        (ROLE["attention"], lambda t: t.attention_ns),
        (Look("exposed, context parallelism", TIME["exposed"].color, "x"), lambda t: t.exposed_context_ns),
        (Look("exposed, TP and SP", KIND["communication"].color, "\\"), _exposed_tensor),
    ]
    shown = [(look, _sums(drawn, part)) for look, part in parts]
    wholes = _sums(drawn, lambda t: t.layer_ns)
    names = [label(one.label) for one in drawn]
    return stacked_bars(names, shown, wholes, unit=1e6, text=duration, x_title="ms a layer")


def _exposed_tensor(time: LayerTime) -> int:
    return time.exposed_ns - time.exposed_context_ns


def _sums(schemes: Sequence[ContextScheme], part: Callable[[LayerTime], int]) -> list[int]:
    """Of forward and backward together."""
    return [sum(part(time) for time in (one.forward, one.backward) if time is not None) for one in schemes]
