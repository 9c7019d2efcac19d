"""Plotly figures of context parallelism, for the HTML pages and the dashboard alike. Times are in ms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from sp_profiler.report.context import (
    Exposure,
    Family,
    HopSum,
    PhaseBalance,
    exposure,
    payload_name,
    phase_place,
)
from sp_profiler.report.context_balance_view import even_share
from sp_profiler.report.figures import MOST_BARS, label, rank_name, stacked_bars, styled, value_axis
from sp_profiler.report.format import duration, percent, size
from sp_profiler.report.palette import EXPOSED, KIND, ROLE, TIME, Look, marker

MOST_CELLS = 128
"""Ranks or ring steps of a map; of more neighbours share a cell."""
MOST_NAMED = 12
"""Ranks or ring steps up to which a cell of a map has its value written in it."""

_TRANSFERS = (
    KIND["communication"],
    Look("", "#D55E00", "x"),
    Look("", "#56B4E9", "/"),
    Look("", "#8C6BB1", "|"),
)
_LINE = "#7b8797"  # seen on white and on the dark paper
_MANY = 16  # ranks from which on their bars are thin
_BESIDE = 24  # hops up to which phases stand beside each other
_ROW = 190  # pixels of a phase


def hops(sums: Sequence[HopSum]) -> go.Figure | None:
    """Hop by hop, transfer beside the attention that runs meanwhile: medians over ranks, lines from the
    least to the most. Phases stand beside each other; of many hops one above the other."""
    drawn = [one for one in sums if one.transfer_ns is not None or one.attention_ns is not None]
    phases = sorted({one.phase for one in drawn}, key=phase_place)
    if not phases:
        return None
    beside = max(one.hop for one in drawn) < _BESIDE  # else one phase above the other
    rows, columns = (1, len(phases)) if beside else (len(phases), 1)
    figure = make_subplots(rows=rows, cols=columns, vertical_spacing=0.2, horizontal_spacing=0.07)
    payloads = list(dict.fromkeys(one.payload for one in drawn))
    numbered = _by_number(drawn)
    for place, phase in enumerate(phases, 1):
        cell = {"row": 1, "col": place} if beside else {"row": place, "col": 1}
        of_phase = [one for one in drawn if one.phase == phase]
        looks = dict(zip(payloads, _TRANSFERS * len(payloads), strict=False))
        for payload in payloads:
            mine = [one for one in of_phase if one.payload == payload]
            shown = Look(f"transfer of {payload_name(payload)}", looks[payload].color, looks[payload].pattern)
            _pairs(figure, shown, mine, "transfer_ns", cell, numbered)
        _pairs(figure, ROLE["attention"], _with_attention(of_phase), "attention_ns", cell, numbered)
    figure = styled(figure, height=80 + _ROW * rows, x_title="hop" if numbered else "")
    value_axis(figure, "y", "ms")
    figure.update_xaxes(type="linear" if numbered else "category", showgrid=False, rangemode="normal")
    for place, phase in enumerate(phases if numbered else (), 1):
        last = max(one.hop for one in drawn if one.phase == phase)
        cell = {"row": 1, "col": place} if beside else {"row": place, "col": 1}
        ticks = {"tick0": 0, "dtick": max(1, -(-(last + 1) // 16)), "range": [-0.6, last + 0.6]}
        figure.update_xaxes(ticks, row=cell["row"], col=cell["col"])
    figure.update_layout(barmode="group", bargap=0.25, margin={"l": 8, "r": 16, "t": 28, "b": 8})
    _titles(figure, phases)
    return figure


def _by_number(drawn: Sequence[HopSum]) -> bool:
    """Whether hops of a ring are counted; else each transfer is named by what it sends."""
    return any(one.way == "hop" for one in drawn)


def _place(one: HopSum, sums: Sequence[HopSum], numbered: bool) -> int | str:
    """Where its bars stand: at its number, else at what it sends, with the number where several send that."""
    if numbered:
        return one.hop
    name = payload_name(one.payload)
    alike = sum((other.phase, other.payload) == (one.phase, one.payload) for other in sums)
    return f"{name} · {one.hop}" if alike > 1 else name


def _with_attention(sums: Sequence[HopSum]) -> list[HopSum]:
    """Of each hop number the first with attention beside it: what else travels then has the same beside."""
    first: dict[int, HopSum] = {}
    for one in sums:
        if one.attention_ns is not None:
            first.setdefault(one.hop, one)
    return list(first.values())


def _pairs(
    figure: go.Figure, look: Look, sums: Sequence[HopSum], name: str, cell: dict[str, int], numbered: bool
) -> None:
    """A bar for each hop in which this time is known, with its spread over ranks."""
    known = [one for one in sums if getattr(one, name) is not None]
    if not known:
        return
    values = [[ns for hop in one.hops if (ns := getattr(hop, name)) is not None] for one in known]
    middles = [getattr(one, name) for one in known]
    figure.add_bar(
        x=[_place(one, sums, numbered) for one in known],
        y=[ns / 1e6 for ns in middles],
        name=look.label,
        marker=marker(look),
        error_y=_spread(middles, values),
        hovertext=[
            _hover(one, look, ns, spread) for one, ns, spread in zip(known, middles, values, strict=True)
        ],
        hoverinfo="text",
        **cell,  # type: ignore[arg-type]
    )


def _titles(figure: go.Figure, titles: Sequence[str]) -> None:
    """A title above each panel, which goes where the panel goes."""
    for place, title in enumerate(titles, 1):
        number = "" if place == 1 else place
        figure.add_annotation(
            text=f"<b>{label(title)}</b>", x=0, y=1, xref=f"x{number} domain", yref=f"y{number} domain",
            xanchor="left", yanchor="bottom", showarrow=False, font={"size": 12}, borderpad=2,
        )  # fmt: skip


def _spread(middles: Sequence[int], values: Sequence[Sequence[int]]) -> dict[str, Any]:
    up = [(max(spread) - ns) / 1e6 for ns, spread in zip(middles, values, strict=True)]
    down = [(ns - min(spread)) / 1e6 for ns, spread in zip(middles, values, strict=True)]
    if not any(up) and not any(down):
        return {"visible": False}
    look = {"thickness": 1, "width": 2, "color": _LINE}
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down} | look


def _hover(one: HopSum, look: Look, ns: int, spread: Sequence[int]) -> str:
    lines = [f"{label(one.phase)}, hop {one.hop}", f"{look.label}: {duration(ns)}"]
    if min(spread) < max(spread):
        lines[-1] += f" ({duration(min(spread))} to {duration(max(spread))} over {len(spread)} ranks)"
    lines += [size(one.bytes)] if one.bytes is not None else []
    hidden = one.exposure.hidden_ratio
    lines += [f"hidden {percent(hidden)}"] if hidden is not None else []
    return "<br>".join(lines)


def work(found: Sequence[PhaseBalance]) -> go.Figure | None:
    """Attention of each rank in each ring step, as multiples of an even division: measured, and counted.

    Of several sets of ranks the least even one is drawn.
    """
    if not any(len(row) > 1 for one in found for row in one.least_even.work_ns):
        return None  # keys and values are all there: nothing happens step by step
    maps = [_thinned(drawn) for one in found if (drawn := _measured(one)) is not None]
    maps += [_thinned(_counted(one)) for one in found if one.least_even.scores is not None][:1]
    if not maps:
        return None
    figure = make_subplots(rows=1, cols=len(maps), horizontal_spacing=0.1)
    most = max(cell for drawn in maps for row in drawn.z for cell in row if cell is not None)
    ranks = max(len(drawn.z) for drawn in maps)
    for place, drawn in enumerate(maps, 1):
        small = len(drawn.z) <= MOST_NAMED and len(drawn.z[0]) <= MOST_NAMED
        figure.add_heatmap(
            z=drawn.z,
            y=drawn.names,
            x0=0,
            dx=drawn.steps,
            name=drawn.title,
            coloraxis="coloraxis",
            xgap=1 if ranks <= _MANY else 0,
            ygap=1 if ranks <= _MANY else 0,
            customdata=drawn.told,
            hovertemplate="%{y}, ring step %{x}<br>%{z:.3f} × even<br>"
            f"%{{customdata}} {drawn.unit}<extra></extra>",
            texttemplate="%{z:.2f}" if small else None,
            textfont={"size": 11},
            row=1,
            col=place,
        )
    figure = styled(figure, height=90 + max(150, min(24 * ranks, 420)), x_title="ring step")
    figure.update_xaxes(rangemode="normal", showgrid=False, dtick=_ticks(maps), tick0=0)
    figure.update_layout(
        coloraxis={
            "colorscale": "Cividis",
            "cmin": 0,
            "cmax": max(most, 1),
            "colorbar": {
                "title": {"text": "× even", "font": {"size": 12}},
                "thickness": 12,
                "outlinewidth": 0,
            },
        },
        margin={"l": 8, "r": 8, "t": 30, "b": 8},
    )
    _titles(figure, [drawn.title for drawn in maps])
    return figure


def _ticks(maps: Sequence[_Map]) -> int:
    """Ring steps from one tick to the next: at most 16 ticks."""
    last = max(len(drawn.z[0]) * drawn.steps for drawn in maps)
    return max(1, -(-last // 16))


@dataclass(frozen=True)
class _Map:
    """Cells by rank and ring step: multiples of an even division, and what that is of, in `unit`."""

    title: str
    z: list[list[float | None]]
    names: list[str]  # of the ranks
    told: list[list[Any]]
    unit: str
    steps: int = 1  # ring steps of a cell


def _thinned(drawn: _Map) -> _Map:
    """Of many ranks or ring steps neighbours are put together: cells become their means."""
    rows, steps = (-(-count // MOST_CELLS) for count in (len(drawn.z), len(drawn.z[0])))
    if max(rows, steps) == 1:
        return drawn
    blocks = [range(at, min(at + rows, len(drawn.z))) for at in range(0, len(drawn.z), rows)]
    columns = [range(at, min(at + steps, len(drawn.z[0]))) for at in range(0, len(drawn.z[0]), steps)]

    def means(cells: list[list[Any]]) -> list[list[Any]]:
        return [[_mean(cells[i][s] for i in some for s in column) for column in columns] for some in blocks]

    names = [f"{drawn.names[some[0]]} to {drawn.names[some[-1]].rpartition(' ')[2]}" for some in blocks]
    title = f"{drawn.title} ({rows} ranks and {steps} ring steps a cell)"
    return _Map(title, means(drawn.z), names, means(drawn.told), drawn.unit, steps)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 4) if known else None


def _measured(one: PhaseBalance) -> _Map | None:
    balance = one.least_even
    even = even_share(balance)
    if not even:
        return None
    cell = even / max(len(row) for row in balance.work_ns)
    z = [[None if ns is None else round(ns / cell, 4) for ns in row] for row in balance.work_ns]
    told: list[list[Any]] = [
        [None if ns is None else round(ns / 1e6, 4) for ns in row] for row in balance.work_ns
    ]
    names = [rank_name(rank) for rank in balance.ranks]
    return _Map(f"{one.phase}, measured", z, names, told, "ms of attention")


def _counted(one: PhaseBalance) -> _Map:
    balance = one.least_even
    scores = balance.scores or []
    cell = sum(map(sum, scores)) / sum(map(len, scores))
    z: list[list[float | None]] = [[round(count / cell, 4) for count in row] for row in scores]
    names = [rank_name(rank) for rank in balance.ranks]
    return _Map("by counting", z, names, [list(row) for row in scores], "scores")


def exposed(kinds: Sequence[Family], windows: int, per: str) -> go.Figure | None:
    """One bar per rank: what keeps its hops exposed. `windows`: what a rank's mean is taken over."""
    by_rank: dict[int | None, list[Any]] = {}
    for family in kinds:
        for hop in family.hops:
            by_rank.setdefault(hop.rank, []).append(hop)
    sums = {rank: exposure(mine) for rank, mine in by_rank.items()}
    most = sorted(sums, key=lambda rank: -sums[rank].exposed_ns)[:MOST_BARS]
    drawn = sorted(most, key=lambda rank: -1 if rank is None else rank)
    if not any(sums[rank].exposed_ns for rank in drawn):
        return None
    parts = [(look, [sums[rank].parts[key] / windows for rank in drawn]) for key, look in EXPOSED.items()]
    whole = [sums[rank].exposed_ns / windows for rank in drawn]
    names = [rank_name(rank) for rank in drawn]
    figure = stacked_bars(names, parts, whole, unit=1e6, text=duration, x_title=f"ms exposed{per}")
    if len(names) > _MANY:
        figure.update_layout(height=64 + 16 * len(names))
    return figure


def by_run(names: Sequence[str], sums: Sequence[Exposure], windows: Sequence[int]) -> go.Figure:
    """Runs beside each other: how much of the time in hops or all-to-alls is hidden, and what the rest is."""
    counts = [max(count, 1) for count in windows]

    def means(values: Sequence[int]) -> list[float]:
        return [value / count for value, count in zip(values, counts, strict=True)]

    hidden = Look("hidden", TIME["overlapped"].color, TIME["overlapped"].pattern)
    parts = [(hidden, means([one.hidden_ns for one in sums]))]
    parts += [(look, means([one.parts[key] for one in sums])) for key, look in EXPOSED.items()]
    whole = means([one.hidden_ns + one.exposed_ns for one in sums])
    return stacked_bars(names, parts, whole, unit=1e6, text=duration, x_title="ms per step and rank")
