"""Plotly figures of ranks beside each other: who waits in which collective, bandwidth by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.report.figures import label, rank_name, stacked_bars, styled, value_axis
from sp_profiler.report.format import duration, short_group, size
from sp_profiler.report.model import Report
from sp_profiler.report.palette import Look
from sp_profiler.report.sentences import op_name
from sp_profiler.trace.tables import Int64

MOST_CALLS = 90
MOST_RANKS = 64
MOST_POINTS = 2500

# From nearly nothing to full colour: more waiting stands out more, on white and on the dark paper.
_WAITS = [[0.0, "rgba(213,94,0,0.05)"], [0.5, "rgba(213,94,0,0.55)"], [1.0, "rgb(213,94,0)"]]
_OPS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#A6761D", "#56B4E9", "#8C6BB1", "#8A94A3")
_SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "x", "star", "hexagon")


@dataclass(frozen=True)
class Waits:
    """What the ranks waited in the calls with most waiting. `ns` is (ranks, calls), -1 where it is not known.

    Of more than `MOST_RANKS` ranks those that wait most in these calls. `left_out`: calls that are not shown.

    `ids` are the collectives' in the report, -1 where a rank holds none. Calls are in order of time.
    """

    ranks: list[int]
    calls: list[str]
    ns: Int64
    ids: Int64
    left_out: int
    ranks_left_out: int = 0


def waits(report: Report) -> Waits | None:
    """None where no collective could be compared across ranks."""
    table = Collectives.of(report.collectives)
    known = table.numbers("skew_wait_ns").is_known & table.numbers("rank").is_known
    if not known.any():
        return None
    rows = np.flatnonzero(known)
    table = table.take(rows)
    kinds, kind = table.kinds("group", "op")
    rank, start = table.numbers("rank").values, table.numbers("start_ns").values
    call = _calls(table, kind, rank, start)
    wait = table.numbers("skew_wait_ns").values
    calls, place = np.unique(call, return_inverse=True)
    total = np.bincount(place, weights=wait)  # a float is enough to choose
    chosen = np.argsort(-total, kind="stable")[:MOST_CALLS]
    first = np.full(len(calls), np.iinfo(np.int64).max)
    np.minimum.at(first, place, start)
    chosen = chosen[np.argsort(first[chosen], kind="stable")]
    column = np.full(len(calls), -1)
    column[chosen] = np.arange(len(chosen))
    every, of_rank = np.unique(rank, return_inverse=True)
    waited = np.bincount(of_rank, weights=np.where(column[place] >= 0, wait, 0))
    ranks = np.sort(every[np.argsort(-waited, kind="stable")[:MOST_RANKS]])
    inside = (column[place] >= 0) & np.isin(rank, ranks)
    where = np.searchsorted(ranks, rank[inside]), column[place[inside]]
    ns = np.full((len(ranks), len(chosen)), -1, np.int64)
    ids = np.full_like(ns, -1)
    ns[where], ids[where] = wait[inside], table.numbers("id").values[inside]
    of_call = np.zeros(len(calls), np.int64)
    of_call[place] = kind
    names = [_call_name(*kinds[of_call[one]]) for one in chosen.tolist()]
    return Waits(ranks.tolist(), names, ns, ids, len(calls) - len(chosen), len(every) - len(ranks))


def _calls(table: Collectives, kind: Int64, rank: Int64, start: Int64) -> Int64:
    """The same number for the same call: by group, operation and `Seq`, else by order within the rank."""
    seq = table.numbers("seq")
    order = np.lexsort((start, rank, kind))
    group = np.concatenate(([True], (np.diff(kind[order]) != 0) | (np.diff(rank[order]) != 0)))
    begins = np.flatnonzero(group)
    lengths = np.diff(np.append(begins, len(order)))
    within = np.arange(len(order)) - np.repeat(begins, lengths)
    number = np.empty(len(order), np.int64)
    number[order] = within
    number = np.where(seq.is_known, seq.or_zero(), number)
    return np.unique(np.stack((kind, seq.is_known, number)), axis=1, return_inverse=True)[1].ravel()


def _call_name(group: str | None, op: str | None) -> str:
    return f"{op_name(op)} {'unknown group' if group is None else short_group(group)}"


def wait_map(found: Waits) -> go.Figure:
    """Ranks down, calls in order of time across, colour: how long the rank waited for the last one."""
    unit, ns_each = ("ms", 1e6) if found.ns.max() >= 10_000_000 else ("µs", 1e3)
    shown = np.where(found.ns < 0, np.nan, found.ns / ns_each)
    text = [
        [
            f"{rank_name(rank)}<br>{label(name, 60)}<br>"
            + (f"waited {duration(int(ns))}" if ns >= 0 else "not known")
            for name, ns in zip(found.calls, row, strict=True)
        ]
        for rank, row in zip(found.ranks, found.ns.tolist(), strict=True)
    ]
    figure = go.Figure()
    figure.add_heatmap(
        z=shown.tolist(),
        x=list(range(1, len(found.calls) + 1)),
        y=[str(rank) for rank in found.ranks],
        customdata=found.ids[..., None].tolist(),
        text=text,
        hoverinfo="text",
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
    )
    height = 96 + max(14, min(30, 900 // max(len(found.ranks), 1))) * len(found.ranks)
    figure = styled(figure, height=height, x_title="calls with most waiting, in order of time")
    bar = {"title": {"text": unit, "side": "right"}, "thickness": 12, "len": 1}
    figure.update_layout(coloraxis={"colorscale": _WAITS, "cmin": 0, "colorbar": bar}, showlegend=False)
    figure.update_yaxes(title={"text": "rank", "font": {"size": 12}}, type="category", autorange="reversed")
    figure.update_xaxes(showgrid=False, rangemode="normal", range=[0.5, len(found.calls) + 0.5])
    return figure


def lost_to(report: Report) -> go.Figure | None:
    """One bar per rank: what the others waited for it. None where nobody is known to have been last."""
    told = sorted(report.stragglers or (), key=lambda one: -one.cost_ns)[:MOST_RANKS]
    if not told:
        return None
    names = [rank_name(one.rank) for one in told]
    values = [one.cost_ns for one in told]
    look = Look("others waited for it", "#D55E00", "x")
    whole = [sum(values)] * len(values)
    return stacked_bars(
        names, [(look, values)], whole, unit=1e6, text=duration, x_title="ms, all steps and ranks"
    )


def bandwidth_by_size(report: Report) -> go.Figure | None:
    """A point per collective: busbw against message size, both logarithmic. None where none is known."""
    table = Collectives.of(report.collectives)
    rate, bytes_ = table.numbers("busbw_gbps"), table.numbers("bytes")
    known = rate.is_known & bytes_.is_known & (rate.or_zero() > 0) & (bytes_.or_zero() > 0)
    rows = np.flatnonzero(known)
    if len(rows) == 0:
        return None
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_POINTS)).astype(np.int64)]
    table = table.take(rows)
    kinds, kind = table.kinds("op", "group")
    order = _most_first(kind, len(kinds))[: len(_OPS)]
    figure = go.Figure()
    x, y = table.numbers("bytes").values, table.numbers("busbw_gbps").values
    ids, bound = table.numbers("id").values, table.column("transfer_is_bound").tolist()
    for place, one in enumerate(order):
        mine = np.flatnonzero(kind == one)
        op, group = kinds[one]
        name = label(_call_name(group, op), 40)
        told = [
            f"{name}<br>{size(int(x[row]))}: busbw {'at least ' if bound[row] else ''}{y[row]:.2f} GB/s"
            for row in mine.tolist()
        ]
        symbol = {"color": _OPS[place], "symbol": _SYMBOLS[place], "size": 7, "opacity": 0.7}
        figure.add_scatter(
            x=x[mine].tolist(),
            y=y[mine].tolist(),
            mode="markers",
            name=name,
            hovertext=told,
            hoverinfo="text",
            customdata=ids[mine][:, None].tolist(),
            marker=symbol | {"line": {"width": 0}},
        )
    figure = styled(figure, height=330, x_title="message size")
    value_axis(figure, "y", "busbw, GB/s")
    ticks = _sizes(int(x.min()), int(x.max()))
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[size(one).replace(".00", "") for one in ticks])
    figure.update_xaxes(rangemode="normal", showgrid=True)
    figure.update_yaxes(type="log", rangemode="normal", tickformat="~g", dtick=1)
    return figure


def _most_first(kind: Int64, count: int) -> list[int]:
    return np.argsort(-np.bincount(kind, minlength=count), kind="stable").tolist()


def _sizes(low: int, high: int) -> Sequence[int]:
    """Powers of four (or more) from below the least to above the most, at most about eight."""
    first, last = max(low, 1).bit_length() - 1, max(high, 1).bit_length()
    step = max(2, -(-(last - first) // 8))
    return [1 << power for power in range(first, last + step, step)]
