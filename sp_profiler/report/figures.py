"""Plotly figures of a report, for the HTML page and the dashboard alike.

Every text that comes from a trace passes `label`: plotly reads a small HTML in labels and hovers.
Times are shown in ms, means per step where the report has steps.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from sp_profiler.analysis.kind_figures import KindFigures
from sp_profiler.analysis.results import RankFigures, Segment
from sp_profiler.report.format import by_number, duration, percent, short_group, visible
from sp_profiler.report.many_ranks import unlike
from sp_profiler.report.model import Report, Timeline, by_step, kinds_of, windows_by_rank, windows_of
from sp_profiler.report.palette import KIND, ROLE, TIME, Look, marker
from sp_profiler.report.sentences import op_name

MOST_BARS = 48
"""Ranks or collectives in one chart; of more collectives the ones with most exposed time are drawn."""
FEW_BARS = 24
"""Ranks with a bar where there are more than `MOST_BARS`: every rank has a point then (`rank_figures`)."""

_FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
_NAME_LENGTH = 30


def label(text: object, most: int = 80) -> str:
    """Text from a trace that plotly shows as it stands, shortened in the middle."""
    shown = visible(text)
    if len(shown) > most:
        shown = f"{shown[: most // 2]}…{shown[-(most - most // 2 - 1) :]}"
    return html.escape(shown, quote=False)


def step_time(report: Report) -> go.Figure:
    """One bar per rank and device: computation only, overlapped, exposed, copies, idle; in all the window."""
    parts: list[tuple[Look, Callable[[RankFigures], int]]] = [
        (TIME["compute"], lambda r: (r.compute_ns or 0) - (r.overlapped_ns or 0)),
        (TIME["overlapped"], lambda r: r.overlapped_ns or 0),
        (TIME["exposed"], lambda r: r.exposed_ns or 0),
        (TIME["memory"], lambda r: r.memory_op_only_ns or 0),
        (TIME["idle"], lambda r: r.idle_ns or 0),
    ]
    return by_rank(report, parts, lambda r: r.window_ns or 0, _per(report))


def hidden_under(report: Report) -> go.Figure:
    """One bar per rank and device: communication by the role that runs meanwhile, and the exposed rest."""

    def of_role(role: str) -> Callable[[RankFigures], int]:
        return lambda r: r.overlapped_by_role_ns.get(role, 0)

    parts = [(look, of_role(role)) for role, look in ROLE.items()]
    parts.append((TIME["exposed"], lambda r: r.exposed_ns or 0))
    return by_rank(report, parts, lambda r: r.comm_ns or 0, f"communication, {_per(report)}")


def _per(report: Report) -> str:
    return "ms per step" if by_step(report) else "ms"


def by_rank(
    report: Report,
    parts: Sequence[tuple[Look, Callable[[RankFigures], int]]],
    whole: Callable[[RankFigures], int],
    title: str,
) -> go.Figure:
    """Stacked bars, one per rank and device, of means per window; `whole`: what shares are of."""
    ranks = drawn_ranks(report)
    several = len({r.device for r in ranks}) > 1
    names = [f"{rank_name(r.rank)}{f' · device {r.device}' if several else ''}" for r in ranks]
    windows = windows_by_rank(report)
    counts = [windows.get((r.rank, r.device), 1) for r in ranks]
    shown = [
        (look, [part(r) / count for r, count in zip(ranks, counts, strict=True)]) for look, part in parts
    ]
    means = [whole(r) / count for r, count in zip(ranks, counts, strict=True)]
    return stacked_bars(names, shown, means, unit=1e6, text=duration, x_title=title)


def _percent_inside(_: float, share: float) -> str:
    return percent(share) if share >= 0.06 else ""


def stacked_bars(
    names: Sequence[str],
    parts: Iterable[tuple[Look, Sequence[float]]],
    whole: Sequence[float],
    *,
    unit: float,
    text: Callable[[float], str],
    x_title: str,
    inside: Callable[[float, float], str] = _percent_inside,
) -> go.Figure:
    """One horizontal bar per name, stacked of the parts that are anywhere above 0.

    `whole`: what a part's share is of; `unit`: of the axis; `text`: a value in words, for the hover;
    `inside`: what stands in a part of this value and share.
    """
    figure = go.Figure()
    for look, values in parts:
        if not any(values):
            continue
        shares = [value / all_of if all_of else 0.0 for value, all_of in zip(values, whole, strict=True)]
        figure.add_bar(
            y=list(names),
            x=[value / unit for value in values],
            orientation="h",
            name=look.label,
            marker=marker(look),
            text=[inside(value, share) for value, share in zip(values, shares, strict=True)],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": "#000000" if look.pattern else "#ffffff", "size": 12, "weight": 600},
            hovertext=[
                f"{name}<br>{look.label}: {text(value)}, {percent(share)}"
                for name, value, share in zip(names, values, shares, strict=True)
            ],
            hoverinfo="text",
        )
    figure = styled(figure, height=64 + 34 * max(len(names), 1), x_title=x_title)
    figure.update_layout(uniformtext={"minsize": 11, "mode": "hide"})  # else plotly shrinks what does not fit
    return figure


def rank_name(rank: int | None) -> str:
    return "rank unknown" if rank is None else f"rank {rank}"


def drawn_ranks(report: Report) -> list[RankFigures]:
    """Those that get a bar, in order of rank: all up to `MOST_BARS`.

    Of more the first that are unlike the others and the most exposed ones, `FEW_BARS` in all.
    """
    chosen = sorted(report.ranks, key=lambda r: -(r.exposed_ns or 0))
    if len(chosen) > MOST_BARS:
        far = {(one.rank.rank, one.rank.device): one.rank for one in unlike(report)}
        first = list(far.values())[: FEW_BARS // 2]
        others = [r for r in chosen if (r.rank, r.device) not in far]
        chosen = [*first, *others[: FEW_BARS - len(first)]]
    return sorted(chosen, key=lambda r: (r.rank if r.rank is not None else -1, r.device))


def bars_left_out(report: Report) -> str:
    """Which ranks have bars, where not all do; empty where they do."""
    if len(report.ranks) <= MOST_BARS:
        return ""
    return f"the most exposed ranks and those unlike the others, {FEW_BARS} of {len(report.ranks)}"


def collectives(report: Report) -> go.Figure:
    """One bar per op, group and purpose: overlapped and exposed time of all its collectives."""
    sums = {key: (one.overlapped_ns, one.exposed_ns, one.collectives) for key, one in by_kind(report).items()}
    drawn = sorted(sums.items(), key=lambda item: -item[1][1])[:MOST_BARS]
    count = windows_of(report)
    # Category names are told apart by their number, so that two shortened names never share a bar.
    names = [label(f"{op} · {short_group(group)} · {purpose}", 46) for (op, group, purpose), _ in drawn]
    figure = go.Figure()
    for place, look in ((0, TIME["overlapped"]), (1, TIME["exposed"])):
        hover = [
            f"{name}<br>{look.label}: {duration(values[place] / count)} of "
            f"{duration((values[0] + values[1]) / count)} {'per step' if by_step(report) else ''}"
            f"<br>{values[2]} collectives"
            for name, (_, values) in zip(names, drawn, strict=True)
        ]
        figure.add_bar(
            y=list(range(len(drawn))),
            x=[values[place] / count / 1e6 for _, values in drawn],
            orientation="h",
            name=look.label,
            marker=marker(look),
            hovertext=hover,
            hoverinfo="text",
        )
    figure = styled(
        figure,
        height=60 + 32 * max(len(drawn), 1),
        x_title="ms per step and rank" if by_step(report) else "ms per rank",
    )
    figure.update_yaxes(type="linear", tickvals=list(range(len(drawn))), ticktext=names)
    figure.update_yaxes(range=[len(drawn) - 0.5, -0.5], autorange=False)
    return figure


def by_kind(report: Report) -> dict[tuple[str, str, str], KindFigures]:
    """Sums over all collectives by operation, group and purpose as they are shown, in order of appearance."""
    sums: dict[tuple[str, str, str], KindFigures] = {}
    for one in kinds_of(report):
        key = (op_name(one.op), one.group or "unknown group", one.purpose or "unknown")
        sums[key] = sums[key] + one if key in sums else one
    return sums


def timeline(drawn: Timeline) -> go.Figure:
    """One step as lanes: computation by role, communication, and where communication is exposed."""
    figure = go.Figure()
    lanes = lane_order(drawn.segments)
    add_lanes(figure, drawn.segments, drawn.exposed, drawn.start_ns, lanes, set())
    ticks = [label(lane, _NAME_LENGTH) for lane in lanes]
    ticks += ["exposed"] if _communicates(drawn.segments) else []
    figure = styled(figure, height=94 + 44 * len(ticks), x_title="ms since the start of the step")
    figure.update_yaxes(type="linear", tickvals=list(range(len(ticks))), ticktext=ticks, fixedrange=True)
    figure.update_xaxes(range=[0, (drawn.end_ns - drawn.start_ns) / 1e6])
    figure.update_yaxes(range=[len(ticks) - 0.5, -0.5], autorange=False)
    figure.update_layout(barmode="overlay", dragmode="zoom", margin={"t": 34})
    return figure


def caption(drawn: Timeline) -> str:
    """Which step is drawn, and how to read what is drawn of it."""
    parts = [rank_name(drawn.rank) + (f", step {drawn.step}" if drawn.step is not None else "")]
    parts += reading(drawn.segments)
    return "; ".join([*parts, "drag to zoom, double-click to reset"])


def reading(segments: Sequence[Segment]) -> list[str]:
    """What a reader has to know of these stretches; nothing of what is not among them."""
    told = ["wgrad is hatched green"] if any(s.role == "wgrad" for s in segments) else []
    return (
        [*told, "the lowest lane shows where communication is exposed"] if _communicates(segments) else told
    )


def _communicates(segments: Sequence[Segment]) -> bool:
    return any(s.kind in ("communication", "fused") for s in segments)


def lane_order(segments: Sequence[Segment]) -> list[str]:
    """Lanes with computation first, then communication, then copies; each by name, numbers by value."""
    place: dict[str, int] = {}
    order = {"computation": 0, "fused": 0, "communication": 1}
    for segment in segments:
        kind = order.get(segment.kind, 2)
        place[segment.lane] = min(place.get(segment.lane, kind), kind)
    return sorted(place, key=lambda lane: (place[lane], by_number(lane)))


def add_lanes(
    figure: go.Figure,
    segments: Sequence[Segment],
    exposed: Sequence[Sequence[int]],
    zero_ns: int,
    lanes: Sequence[str],
    in_legend: set[str],
    **cell: int,
) -> None:
    """Draw stretches at y = 0, 1, ... per lane and the exposed ones below them.

    `in_legend` collects what the legend already shows; `cell` is row and col of a subplot.
    """
    place = {lane: index for index, lane in enumerate(lanes)}
    by_look: dict[str, list[Segment]] = {}
    for segment in segments:
        by_look.setdefault(look_of(segment).label, []).append(segment)
    order = [look.label for look in (*ROLE.values(), *KIND.values())]
    for name in sorted(by_look, key=order.index):
        drawn = by_look[name]
        look = look_of(drawn[0])
        bars = [(place[s.lane], s.start_ns, s.end_ns, _hover(s, zero_ns)) for s in drawn]
        _add_bars(figure, look, bars, zero_ns, in_legend, cell)
    bars = [
        (len(lanes), start, end, f"exposed: {duration(end - start)} at {duration(start - zero_ns)}")
        for start, end in exposed
    ]
    _add_bars(figure, TIME["exposed"], bars, zero_ns, in_legend, cell)


def _add_bars(
    figure: go.Figure,
    look: Look,
    bars: Sequence[tuple[int, int, int, str]],
    zero_ns: int,
    in_legend: set[str],
    cell: dict[str, int],
) -> None:
    if not bars:
        return
    figure.add_bar(
        y=[bar[0] for bar in bars],
        base=[(bar[1] - zero_ns) / 1e6 for bar in bars],
        x=[(bar[2] - bar[1]) / 1e6 for bar in bars],
        width=0.72,
        orientation="h",
        name=look.label,
        legendgroup=look.label,
        showlegend=look.label not in in_legend,
        marker=marker(look),
        hovertext=[bar[3] for bar in bars],
        hoverinfo="text",
        **cell,  # type: ignore[arg-type]
    )
    in_legend.add(look.label)


def look_of(segment: Segment) -> Look:
    """Computation is drawn by its role, everything else by its kind."""
    if segment.kind == "computation":
        return ROLE.get(segment.role, ROLE["unknown"])
    return KIND.get(segment.kind, KIND["memory"])


def _hover(segment: Segment, zero_ns: int) -> str:
    where = [label(segment.module, 60)] if segment.module else []
    where += [f"layer {segment.layer}"] if segment.layer is not None and not segment.module else []
    where += [label(segment.phase)] if segment.phase != "unknown" else []
    length = duration(segment.end_ns - segment.start_ns)
    lines = [f"{look_of(segment).label}: {length} at {duration(segment.start_ns - zero_ns)}"]
    return "<br>".join([*lines, label(segment.name, 70), " · ".join(where)]).removesuffix("<br>")


_LEAST_HIGH = 112  # one bar: below that plotly writes the title of the axis over its ticks


def styled(figure: go.Figure, *, height: int, x_title: str) -> go.Figure:
    """The common look: horizontal bars from the top down, legend above, no title (the page has it)."""
    figure.update_layout(
        template=None,
        barmode="stack",
        bargap=0.28,
        height=max(height, _LEAST_HIGH),
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        font={"family": _FONT, "size": 12},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "traceorder": "normal",
        },
        hoverlabel={"align": "left"},
        modebar={"bgcolor": "rgba(0,0,0,0)"},
        showlegend=True,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(
        title={"text": x_title, "standoff": 6, "font": {"size": 12}},
        automargin=True,
        zeroline=False,
        rangemode="tozero",
    )
    figure.update_yaxes(type="category", autorange="reversed", automargin=True, ticklabelstandoff=6)
    figure.update_yaxes(showgrid=False, zeroline=False)
    return figure


def value_axis(figure: go.Figure, axis: str, title: str) -> None:
    """Make the axis, x or y, a numeric one from zero."""
    update = figure.update_yaxes if axis == "y" else figure.update_xaxes
    text = {"text": title, "standoff": 6, "font": {"size": 12}}
    update(type="linear", autorange=True, rangemode="tozero", title=text, showgrid=True, zeroline=False)


def narrow_patch(figure: go.Figure) -> tuple[dict[str, Any], dict[str, Any]]:
    """What brings the figure onto a narrow screen and back: labels of lanes stand above them, not beside.

    Panels that stand beside each other stand one below the other. Empty where there is neither. The space
    above a bar (`bargap`) holds one line of text.
    """
    layout = figure.to_plotly_json()["layout"]
    beside = [name for name in axes_of(figure) if name[0] == "x" and "domain" in layout[name]]
    if len({tuple(layout[name]["domain"]) for name in beside}) > 1:
        return _one_below_the_other(layout, sorted(beside, key=lambda name: layout[name]["domain"]))
    axes = [name for name in axes_of(figure) if name[0] == "y" and len(layout[name].get("tickvals") or ())]
    if not axes:
        return {}, {}
    lanes = sum(len(layout[name]["tickvals"]) for name in axes)
    titles = list(layout.get("annotations") or ())
    narrow: dict[str, Any] = {"height": layout["height"] + 16 * lanes}
    wide: dict[str, Any] = {"height": layout["height"], "annotations": titles}
    labels = []
    for name in axes:
        count = len(layout[name]["tickvals"])
        narrow |= {f"{name}.range": [count - 0.5, -0.72], f"{name}.showticklabels": False}
        wide |= {f"{name}.range": [count - 0.5, -0.5], f"{name}.showticklabels": True}
        labels += [
            {
                "text": text, "x": 0, "xref": "paper", "xanchor": "left", "showarrow": False,
                "y": place - 0.5, "yref": name.replace("axis", ""), "yanchor": "middle",
                "font": {"size": 11}, "borderpad": 0,
            }
            for place, text in zip(layout[name]["tickvals"], layout[name]["ticktext"], strict=True)
        ]  # fmt: skip
    narrow["annotations"] = [*titles, *labels]
    return narrow, wide


def _one_below_the_other(
    layout: dict[str, Any], beside: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The patches that stack panels which stand beside each other, the left one on top, and lay them back."""
    count = len(beside)
    gap = 0.3 / count
    high = (1 - gap * (count - 1)) / count
    narrow: dict[str, Any] = {"height": round(layout["height"] * count * 0.9)}
    wide: dict[str, Any] = {"height": layout["height"]}
    for place, name in enumerate(beside):
        top = 1 - place * (high + gap)
        below = f"y{name[1:]}"
        narrow |= {f"{name}.domain": [0, 1], f"{below}.domain": [max(top - high, 0), top]}
        wide |= {f"{name}.domain": list(layout[name]["domain"]), f"{below}.domain": [0, 1]}
    return narrow, wide


def axes_of(figure: go.Figure) -> list[str]:
    """Names of the figure's axes: xaxis, yaxis, xaxis2..., and of its colours: coloraxis."""
    names = figure.to_plotly_json()["layout"]
    return sorted(name for name in names if name.startswith(("xaxis", "yaxis", "coloraxis")))


def unflattened(patch: dict[str, str]) -> dict[str, object]:
    """A patch with dotted paths as the nested dictionaries that a layout is."""
    tree: dict[str, object] = {}
    for path, value in patch.items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            child = node.setdefault(parent, {})
            assert isinstance(child, dict)
            node = child
        node[leaf] = value
    return tree
