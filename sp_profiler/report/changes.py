"""What changed between two runs, largest first: parts of the step, kinds of collectives, GEMMs, memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.intervals import sum_by
from sp_profiler.report.figures import label, styled
from sp_profiler.report.format import duration, short_group, size
from sp_profiler.report.memory import leading
from sp_profiler.report.model import Report, windows_of
from sp_profiler.report.palette import MEMORY, TIME, Look, marker
from sp_profiler.report.sentences import op_name
from sp_profiler.report.table import Column, Table, table_of
from sp_profiler.report.why import told_of_cause

LESS = Look("less than the base", "#0072B2")
MORE = Look("more than the base", "#D55E00", "x")
_MOST_BARS = 12


@dataclass(frozen=True)
class Change:
    """One figure of both runs, means per step and rank; None where a run does not tell."""

    what: str
    name: str
    base: float | None
    here: float | None

    @property
    def difference(self) -> float | None:
        return None if self.base is None or self.here is None else self.here - self.base

    @property
    def ratio(self) -> float | None:
        difference = self.difference
        return None if difference is None or not self.base else difference / self.base


def step_parts(base: Report, here: Report) -> list[Change]:
    """The parts that a step is made of. Their differences sum to the step's."""
    one, two = _parts(base), _parts(here)
    return [
        Change("step", name, one.get(name, 0.0) if one else None, two.get(name, 0.0) if two else None)
        for name in dict.fromkeys([*one, *two])
    ]


def _parts(report: Report) -> dict[str, float]:
    totals, count = report.totals, windows_of(report)
    if totals.window_ns is None:
        return {}
    exposed = totals.exposed_by_cause_ns
    found: dict[str, int] = {
        TIME["compute"].label: (totals.compute_ns or 0) - (totals.overlapped_ns or 0),
        TIME["overlapped"].label: totals.overlapped_ns or 0,
        TIME["memory"].label: totals.memory_op_only_ns or 0,
        TIME["idle"].label: totals.idle_ns or 0,
    }
    if exposed is None:
        found["exposed"] = totals.exposed_ns or 0
    else:
        found |= {f"exposed: {told_of_cause(cause)[0].lower()}": ns for cause, ns in exposed.items()}
    return {name: ns / count for name, ns in found.items()}


def collective_kinds(base: Report, here: Report) -> list[Change]:
    """Exposed time by operation, group and purpose."""
    return _both("exposed", _exposed_by_kind(base), _exposed_by_kind(here))


def _exposed_by_kind(report: Report) -> dict[str, float]:
    table = Collectives.of(report.collectives)
    kinds, place = table.kinds("op", "group", "purpose")
    sums = sum_by(place, table.numbers("exposed_share_ns").values, len(kinds)).tolist()
    count = windows_of(report)
    found: dict[str, float] = {}
    for (op, group, purpose), ns in zip(kinds, sums, strict=True):
        name = f"{op_name(op)} · {'unknown group' if group is None else short_group(group)} · {purpose}"
        found[name] = found.get(name, 0.0) + ns / count
    return found


def gemms(base: Report, here: Report) -> list[Change]:
    """Time of GEMMs by role and shape."""
    return _both("GEMM", _gemms(base), _gemms(here))


def _gemms(report: Report) -> dict[str, float]:
    count = windows_of(report)
    found: dict[str, float] = {}
    for one in report.gemms:
        name = f"{one.role} {one.shape or 'unknown shape'}"
        found[name] = found.get(name, 0.0) + one.total_ns / count
    return found


def memory(base: Report, here: Report) -> list[Change]:
    """The peak by category, bytes, of the rank with the highest one."""
    return _both("memory", _peak(base), _peak(here))


def _peak(report: Report) -> dict[str, float] | None:
    top = None if report.memory is None else leading(report.memory)
    if top is None or not top.peak_by_category:
        return None
    return {
        MEMORY[key].label if key in MEMORY else key: float(ns) for key, ns in top.peak_by_category.items()
    }


def _both(what: str, base: Mapping[str, float] | None, here: Mapping[str, float] | None) -> list[Change]:
    """What one run lacks is 0 there when the run tells of such things at all."""
    one, two = dict(base or {}), dict(here or {})
    made = [
        Change(
            what,
            name,
            None if base is None else one.get(name, 0.0),
            None if here is None else two.get(name, 0.0),
        )
        for name in {**one, **two}
    ]
    return largest_first(made)


def largest_first(changes: Iterable[Change]) -> list[Change]:
    return sorted(changes, key=lambda one: -abs(one.difference or 0.0))


def change_table(name: str, title: str, changes: Iterable[Change], note: str, kind: str = "ms") -> Table:
    """The changes as a table, largest first."""
    unit = "ms" if kind == "ms" else ""
    columns = [
        Column("name", "What", "text"),
        Column("base", "Base", kind, unit),
        Column("here", "This run", kind, unit),
        Column("difference", "Difference", kind, unit),
        Column("ratio", "Change", "ratio", "%"),
    ]
    return table_of(name, title, columns, largest_first(changes), note=note)


def change_bars(changes: Iterable[Change], *, is_bytes: bool = False) -> go.Figure | None:
    """Bars to the left (less) and right (more) of the base; None where nothing changed."""
    known = [one for one in largest_first(changes) if one.difference][:_MOST_BARS]
    if not known:
        return None
    unit, text = (2**20, size) if is_bytes else (1e6, duration)
    figure = go.Figure()
    names = [label(one.name, 44) for one in known]
    for look, sign in ((LESS, -1), (MORE, 1)):
        rows = [(n, one) for n, one in enumerate(known) if (one.difference or 0) * sign > 0]
        if rows:
            figure.add_bar(
                y=[n for n, _ in rows],
                x=[(one.difference or 0) / unit for _, one in rows],
                orientation="h",
                name=look.label,
                marker=marker(look),
                hovertext=[f"{names[n]}<br>{text(one.base)} → {text(one.here)}" for n, one in rows],
                hoverinfo="text",
            )
    figure = styled(
        figure, height=60 + 30 * len(known), x_title="MiB" if is_bytes else "ms per step and rank"
    )
    figure.update_yaxes(type="linear", tickvals=list(range(len(names))), ticktext=names)
    figure.update_yaxes(range=[len(names) - 0.5, -0.5], autorange=False)
    figure.update_xaxes(rangemode="normal", zeroline=True)
    return figure
