"""A plotly figure of many ranks: a point for each, the middle as a band, those unlike the others named.

A bar for each of a thousand ranks is no picture. Points keep the order of ranks, so that what belongs to a
host, a group or a stage of a pipeline shows as a pattern.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import plotly.graph_objects as go

from sp_profiler.analysis.results import RankFigures
from sp_profiler.report.figures import MOST_BARS, rank_name, styled, value_axis
from sp_profiler.report.format import duration
from sp_profiler.report.many_ranks import device_name, spreads, unlike
from sp_profiler.report.model import Report, by_step, windows_by_rank
from sp_profiler.report.palette import TIME

MOST_POINTS = 4096
"""Ranks with a point of their own; of more neighbours share one, the one that is most exposed."""
_NAMED = 8


def rank_spread(report: Report) -> go.Figure | None:
    """Exposed communication of every rank and device, in their order. None where bars show all of them."""
    ranks = [rank for rank in report.ranks if rank.exposed_ns is not None]
    (spread,) = [one for one in spreads(report) if one.name == "exposed_ns"] or [None]
    if len(report.ranks) <= MOST_BARS or spread is None:
        return None
    ranks.sort(key=lambda r: (r.rank if r.rank is not None else -1, r.device))
    counts = windows_by_rank(report)
    values = np.array([(r.exposed_ns or 0) / counts.get((r.rank, r.device), 1) for r in ranks])
    places = _shown(values)
    figure = go.Figure()
    color = TIME["exposed"].color
    figure.add_hrect(y0=spread.low / 1e6, y1=spread.high / 1e6, fillcolor=color, opacity=0.16, line_width=0)
    figure.add_hline(y=spread.median / 1e6, line={"color": color, "width": 1, "dash": "dot"})
    several = len({rank.device for rank in report.ranks}) > 1
    numbers = [place if several or ranks[place].rank is None else ranks[place].rank for place in places]
    figure.add_scatter(
        x=numbers,
        y=(values[places] / 1e6).round(6).tolist(),
        mode="markers",
        name=TIME["exposed"].label,
        marker={"color": color, "size": 5 if len(places) > 200 else 7, "opacity": 0.75},
        hovertext=[
            f"{_name(report, ranks[place])}: {duration(float(values[place]))} exposed" for place in places
        ],
        hoverinfo="text",
    )
    figure = styled(
        figure, height=300, x_title="rank" if not several else "ranks and devices, in their order"
    )
    value_axis(figure, "y", f"exposed, ms{' per step' if by_step(report) else ''}")
    figure.update_xaxes(rangemode="normal", showgrid=False)
    number_of = dict(zip(places, numbers, strict=True))
    place_of = {(rank.rank, rank.device): place for place, rank in enumerate(ranks)}
    far = [one for one in unlike(report) if one.name == "exposed_ns"][:_NAMED]
    for one in far:
        place = place_of[one.rank.rank, one.rank.device]
        figure.add_annotation(
            x=number_of.get(place, place),
            y=one.ns / 1e6,
            text=f"{_name(report, one.rank)} · {duration(one.ns)}",
            showarrow=True,
            arrowhead=0,
            arrowwidth=1,
            ax=22,
            ay=-16,
            font={"size": 11},
        )
    return figure


def _name(report: Report, rank: RankFigures) -> str:
    return rank_name(rank.rank) if rank.rank is None else f"rank {device_name(report, rank)}"


def _shown(values: np.ndarray) -> list[int]:
    """The places that get a point: all, or of equal stretches of neighbours the most exposed one."""
    if len(values) <= MOST_POINTS:
        return list(range(len(values)))
    edges = np.linspace(0, len(values), MOST_POINTS + 1).astype(np.int64)
    return [low + int(values[low:high].argmax()) for low, high in pairwise(edges.tolist())]


def caption(report: Report) -> str:
    """How to read it."""
    told = "a point for each rank, in their order; the band holds nine of ten, the dotted line is the median"
    return (
        told
        if len(report.ranks) <= MOST_POINTS
        else f"{told}; neighbours share a point, the most exposed one"
    )
