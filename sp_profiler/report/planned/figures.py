"""Plotly figures of a plan: what is kept by term, how it grows with layers, where a step's time goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from sp_profiler.planning.model import Plan, Scheme, SchemeTime
from sp_profiler.report.figures import label, stacked_bars, styled, value_axis
from sp_profiler.report.format import counted, duration, size
from sp_profiler.report.page_parts import QUIET, ZOOMABLE
from sp_profiler.report.palette import ROLE, TIME, Look
from sp_profiler.report.planned.view import distinct, largest

MOST_BARS = 24
"""Schemes in one chart; the tables have all."""

TERMS = {
    "norm": Look("norms", "#0072B2"),
    "column-input": Look("inputs of column linears", "#E69F00", "\\"),
    "row-input": Look("inputs of row linears", "#8B5E3C"),
    "attention": Look("attention", "#CC79A7"),
    "mlp": Look("MLP", "#009E73", "/"),
    "recompute-input": Look("inputs of what is run again", "#4C5FB0", "-"),
    "logits": Look("logits and loss", "#56B4E9"),
    "rotary": Look("rotary embedding", "#A6761D", "+"),
    "embedding": Look("tokens", "#8A94A3"),
    "other": Look("other", "#B9C0CA", "."),
}
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#8B5E3C")
_GIB = 2**30

Part = tuple[Look, Callable[[Scheme], int]]


@dataclass(frozen=True)
class Panel:
    """A chart of the page; `figure` None: there is nothing to draw."""

    id: str
    title: str
    text: str
    figure: go.Figure | None
    config: dict[str, Any]


def panels(plan: Plan) -> list[Panel]:
    """Memory by term and by layers, time of a step, communication."""
    what = f"{counted(largest(plan)[0].layers, 'layer')}, one rank"
    return [
        Panel("plan-saved", "Kept for backward", f"by term; {what}", saved(plan), QUIET),
        Panel("plan-layers", "Peak by layers", "estimated, of one rank", by_layers(plan), ZOOMABLE),
        Panel("plan-step", "One step", f"estimated; {what}", step(plan), QUIET),
        Panel("plan-comm", "Communication", f"estimated; {what}", communication(plan), QUIET),
    ]


def saved(plan: Plan) -> go.Figure:
    """One bar per scheme of the largest size: what a rank keeps for backward, by term."""
    schemes = distinct(largest(plan))
    parts: list[Part] = [(look, _of_term(term)) for term, look in TERMS.items()]
    return _stacked(schemes, parts, lambda s: s.saved_bytes, size, _GIB, "GiB kept for backward")


def _of_term(term: str) -> Callable[[Scheme], int]:
    return lambda scheme: scheme.saved_by_term.get(term, 0)


def step(plan: Plan) -> go.Figure | None:
    """One bar per scheme: computation and exposed communication. None without times."""
    parts: list[tuple[Look, Callable[[SchemeTime], int]]] = [
        (Look("GEMMs", ROLE["fwd"].color), lambda t: t.gemm_ns),
        (ROLE["attention"], lambda t: t.attention_ns),
        (Look("reads and writes", TIME["memory"].color, "-"), lambda t: t.memory_op_ns),
        (TIME["exposed"], lambda t: t.exposed_ns),
    ]
    return _timed(plan, parts, lambda t: t.step_ns, "ms per step")


def communication(plan: Plan) -> go.Figure | None:
    """One bar per scheme: communication hidden and exposed. None without times."""
    parts: list[tuple[Look, Callable[[SchemeTime], int]]] = [
        (TIME["overlapped"], lambda t: t.hidden_ns),
        (TIME["exposed"], lambda t: t.exposed_ns),
    ]
    return _timed(plan, parts, lambda t: t.comm_ns, "ms of communication per step")


def _timed(
    plan: Plan,
    parts: Sequence[tuple[Look, Callable[[SchemeTime], int]]],
    whole: Callable[[SchemeTime], int],
    title: str,
) -> go.Figure | None:
    schemes = [scheme for scheme in largest(plan) if scheme.time is not None][:MOST_BARS]
    if not schemes:
        return None

    def of(part: Callable[[SchemeTime], int]) -> Callable[[Scheme], int]:
        return lambda scheme: 0 if scheme.time is None else part(scheme.time)

    return _stacked(schemes, [(look, of(part)) for look, part in parts], of(whole), duration, 1e6, title)


def by_layers(plan: Plan) -> go.Figure | None:
    """Estimated peak over the number of layers, a line for each scheme. None for one number of layers."""
    shown = distinct(largest(plan))
    top = shown[0]
    lines: dict[str, list[Scheme]] = {scheme.label: [] for scheme in shown}
    for scheme in plan.schemes:
        sizes = (scheme.ranks, scheme.seq_len, scheme.micro_batch)
        if sizes == (top.ranks, top.seq_len, top.micro_batch) and scheme.label in lines:
            lines[scheme.label].append(scheme)
    if all(len(line) < 2 for line in lines.values()):
        return None
    figure = go.Figure()
    for place, (name, line) in enumerate(list(lines.items())[: len(_LINES)]):
        ordered = sorted(line, key=lambda scheme: scheme.layers)
        figure.add_scatter(
            x=[scheme.layers for scheme in ordered],
            y=[scheme.peak_bytes_estimate / _GIB for scheme in ordered],
            mode="lines+markers",
            name=label(name),
            marker={"color": _LINES[place], "size": 7, "symbol": place},
            line={"color": _LINES[place], "width": 2},
            hovertext=[
                f"{label(name)}, {s.layers} layers<br>peak {size(s.peak_bytes_estimate)}"
                f"<br>kept for backward {size(s.saved_bytes)}"
                for s in ordered
            ],
            hoverinfo="text",
        )
    figure = styled(figure, height=320, x_title="layers")
    value_axis(figure, "y", "GiB, estimated peak")
    return figure


def _stacked(
    schemes: Sequence[Scheme],
    parts: Sequence[Part],
    whole: Callable[[Scheme], int],
    text: Callable[[float], str],
    unit: float,
    title: str,
) -> go.Figure:
    names = [label(scheme.label) for scheme in schemes]
    drawn = [(look, [part(scheme) for scheme in schemes]) for look, part in parts]
    wholes = [whole(scheme) for scheme in schemes]
    return stacked_bars(names, drawn, wholes, unit=unit, text=text, x_title=title)
