"""Bars of what changed, to the left (less) and right (more) of the base; for the page and the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import plotly.graph_objects as go

from sp_profiler.comparing import tables
from sp_profiler.comparing.model import Comparison, Delta
from sp_profiler.comparing.names import VERDICTS
from sp_profiler.report.figures import label, styled
from sp_profiler.report.format import duration, size
from sp_profiler.report.palette import Look, marker

LESS = Look("less than the base", "#0072B2")
MORE = Look("more than the base", "#D55E00", "x")
_MOST_BARS = 12
_FAINT = 0.4  # opacity of what is within noise


@dataclass(frozen=True)
class Bars:
    """A figure with its id, title, and what is drawn."""

    id: str
    title: str
    text: str
    figure: go.Figure


def bars(found: Comparison) -> list[Bars]:
    """The figures that have anything to draw."""
    return list(_bars(found))


def _bars(found: Comparison) -> Iterator[Bars]:
    kinds = [(tables.kind_name(kind), kind.exposed) for kind in found.kinds or ()]
    drawn = (
        ("parts", "Where the step changed", "the differences sum to the step's",
         [(tables.part_name(one), one) for one in found.step_parts]),
        ("kinds", "Exposed collectives", "by operation, group and purpose", kinds),
        ("gemms", "GEMMs", "by role and shape", [(tables.gemm_name(one), one.time) for one in found.gemms]),
        ("peaks", "Peak memory", "by category, of the rank with the highest peak",
         [(tables.category_label(one), one) for one in found.memory
          if one.figure == "memory.peak_by_category"]),
    )  # fmt: skip
    faint = "faint: within noise, or its noise is not known"
    for name, title, text, named in drawn:
        figure = change_bars(named)
        if figure is not None:
            has_faint = any(one.contribution and not one.is_changed for _, one in named)
            yield Bars(f"change-{name}", title, f"{text}; {faint}" if has_faint else text, figure)


def change_bars(named: Iterable[tuple[str, Delta]]) -> go.Figure | None:
    """Bars of the largest differences, times or sizes; None where nothing changed. What only one run has is
    drawn whole."""
    known = [(name, one) for name, one in named if one.contribution]
    known = sorted(known, key=lambda pair: -abs(pair[1].contribution))[:_MOST_BARS]
    if not known:
        return None
    is_bytes = known[0][1].unit == "bytes"
    unit, text = (2**20, size) if is_bytes else (1e6, duration)
    figure = go.Figure()
    names = [label(name, 44) for name, _ in known]
    for look, sign in ((LESS, -1), (MORE, 1)):
        rows = [(place, one) for place, (_, one) in enumerate(known) if one.contribution * sign > 0]
        if rows:
            figure.add_bar(
                y=[place for place, _ in rows],
                x=[one.contribution / unit for _, one in rows],
                orientation="h",
                name=look.label,
                marker=marker(look) | {"opacity": [1 if one.is_changed else _FAINT for _, one in rows]},
                hovertext=[f"{names[place]}<br>{_hover(one, text)}" for place, one in rows],
                hoverinfo="text",
            )
    figure = styled(
        figure, height=60 + 30 * len(known), x_title="MiB" if is_bytes else "ms per step and rank"
    )
    figure.update_yaxes(type="linear", tickvals=list(range(len(names))), ticktext=names)
    figure.update_yaxes(range=[len(names) - 0.5, -0.5], autorange=False)
    figure.update_xaxes(rangemode="normal", zeroline=True)
    return figure


def _hover(one: Delta, text: Callable[[float | None], str]) -> str:
    both = f"{'–' if one.base is None else text(one.base)} → {'–' if one.here is None else text(one.here)}"
    noise = f", noise ±{text(one.noise)}" if one.noise is not None else ""
    return f"{both}<br>{VERDICTS[one.verdict]}{noise}"
