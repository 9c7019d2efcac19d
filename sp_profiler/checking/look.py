"""Where to look first when a budget is broken: the worst rank, its worst step, the collective there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from typing import TypeVar

import numpy as np

from sp_profiler.analysis.causes import CAUSES
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Words
from sp_profiler.analysis.results import CollectiveFigures, Figures, RankFigures, StepFigures
from sp_profiler.checking.parts import PART_MAPS, Within
from sp_profiler.checking.readings import Reading, place
from sp_profiler.checking.result import Where
from sp_profiler.report.format import counted, duration, short_group, size
from sp_profiler.report.memory import leading
from sp_profiler.report.model import Report
from sp_profiler.report.sentences import op_name
from sp_profiler.trace.tables import Bool, Int64

Cost = Callable[[Figures], int | None]
AnyFigures = TypeVar("AnyFigures", bound=Figures)


SAME_AS = {"exposed_ns": "exposed-ms", "window_ns": "step-ms", "idle_ns": "idle-ratio"}
"""Fields of `totals` that are looked for as a named figure is."""


def where_to_look(report: Report, figure: str, within: Within | None, reading: Reading) -> Where | None:
    """What to look at for a named figure. None where the report has nothing to point at."""
    chosen = reading.where
    if figure in ("exposed-ms", "exposed-ratio", "overlap-ratio"):
        found = _worst(report, chosen, _exposed_by(within))
        return _with_collective(report, found, _exposed_share(within), within)
    if figure in ("hidden-of-hideable", "wgrad-hidden"):
        purpose = Within("purpose", "dgrad") if figure == "wgrad-hidden" else within
        found = _worst(report, chosen, _unhidden(purpose))
        return _with_collective(report, found, _unhidden_of, purpose)
    if figure == "step-ms":
        return _worst(report, chosen, lambda one: one.window_ns)
    if figure == "idle-ratio":
        return _worst(report, chosen, lambda one: one.idle_ns)
    if figure == "skew-ratio":
        return _straggler(report)
    if figure == "memory-gib":
        return _peak(report, chosen)
    if figure == "saved-gib":
        return _kept(report, chosen)
    return chosen


def where_in(entry: object, several: bool) -> Where | None:
    """The place of an entry of one of the report's lists, as far as it has one."""
    if isinstance(entry, CollectiveFigures):
        return Where(entry.rank, entry.device, entry.step, entry.id, _collective_text(entry))
    if isinstance(entry, (RankFigures, StepFigures)):
        step = entry.step if isinstance(entry, StepFigures) else None
        return place(entry.rank, entry.device, step, several=several)
    if not is_dataclass(entry):
        return None
    name = next(
        (getattr(entry, key) for key in ("group", "name", "shape", "host") if hasattr(entry, key)), None
    )
    rank = getattr(entry, "rank", None)
    text = str(name) if name is not None else f"rank {rank}" if rank is not None else ""
    return Where(rank if isinstance(rank, int) else None, text=text)


def _exposed_by(within: Within | None) -> Cost:
    def cost(one: Figures) -> int | None:
        if within is None:
            return one.exposed_ns
        values = getattr(one, PART_MAPS[within.kind])
        return None if values is None else sum(ns for key, ns in values.items() if within.matches(key))

    return cost


def _unhidden(within: Within | None) -> Cost:
    """What could be hidden and is not."""

    def cost(one: Figures) -> int | None:
        terms = [(one.partner_hidden_ns, one.partner_hideable_ns)]
        if within is not None:
            chosen = (h for key, h in one.hiding_by_purpose.items() if within.matches(key))
            terms = [(h.partner_hidden_ns, h.partner_hideable_ns) for h in chosen]
        known = [able - hidden for hidden, able in terms if hidden is not None and able is not None]
        return sum(known) if known else None

    return cost


def _worst(report: Report, chosen: Where | None, cost: Cost) -> Where | None:
    """The rank that costs most and its step that does; only those that the reading is from, if any."""
    several = len({one.device for one in report.ranks}) > 1
    ranks = [one for one in report.ranks if chosen is None or _is_of(one, chosen)]
    rank = _largest(ranks, cost)
    if rank is None:
        return chosen
    steps = [one for one in report.steps if (one.rank, one.device) == (rank.rank, rank.device)]
    if chosen is not None and chosen.step is not None:
        steps = [one for one in steps if one.step == chosen.step]
    step = _largest(steps, cost)
    if step is None and chosen is not None and chosen.step is not None:
        return chosen  # of a fleet not every step is held
    where = place(rank.rank, rank.device, None if step is None else step.step, several=several)
    value = cost(rank if step is None else step)
    return where if value is None else replace(where, text=f"{where.text} ({duration(value)})")


def _is_of(one: RankFigures, where: Where) -> bool:
    return one.rank == where.rank and where.device in (None, one.device)


def _largest(rows: Sequence[AnyFigures], cost: Cost) -> AnyFigures | None:
    known = [(value, -number) for number, row in enumerate(rows) if (value := cost(row)) is not None]
    return rows[-max(known)[1]] if known else None


def _with_collective(
    report: Report, where: Where | None, score: Callable[[Collectives], Int64], within: Within | None
) -> Where | None:
    """The place, with the collective there that scores highest."""
    table = Collectives.of(report.collectives)
    if where is None or not len(table):
        return where
    here = _is(table, "rank", where.rank) & _is(table, "device", where.device)
    if where.step is not None:
        here &= _is(table, "step", where.step)
    if within is not None and within.kind != "cause":
        here &= _matches(table, within)
    points = np.where(here, score(table), -1)
    best = int(points.argmax())
    if points[best] <= 0:
        return where
    one = table[best]
    text = f"{where.text}, there {_collective_text(one)} ({duration(int(points[best]))})"
    return replace(where, collective=one.id, text=text)


def _is(table: Collectives, name: str, value: int | None) -> Bool:
    numbers = table.numbers(name)
    return ~numbers.is_known if value is None else numbers.is_known & (numbers.or_zero() == value)


def _matches(table: Collectives, within: Within) -> Bool:
    """Which collectives are of the part."""
    column = table.column(within.kind)
    if isinstance(column, Words):
        return column.where(lambda value: within.matches("unknown" if value is None else str(value)))
    keys = ("unknown" if value is None else str(value) for value in column.tolist())
    return np.fromiter((within.matches(key) for key in keys), np.bool_, len(table))


def _exposed_share(within: Within | None) -> Callable[[Collectives], Int64]:
    """The share of exposed time, or the part of it that has a cause."""

    def score(table: Collectives) -> Int64:
        if within is None or within.kind != "cause":
            return table.numbers("exposed_share_ns").or_zero()
        parts = [table.exposed_by_cause(cause) for cause in CAUSES if within.matches(cause)]
        return sum(parts, np.zeros(len(table), np.int64))

    return score


def _unhidden_of(table: Collectives) -> Int64:
    return table.numbers("hideable_ns").or_zero() - table.numbers("hidden_ns").or_zero()


def _collective_text(one: CollectiveFigures) -> str:
    of = f" of {one.module}" if one.module else ""
    group = f" in {short_group(one.group)}" if one.group else ""
    return f"{op_name(one.op)}{of}{group}, collective {one.id}"


def _straggler(report: Report) -> Where | None:
    first = max(report.stragglers or (), key=lambda one: one.cost_ns, default=None)
    if first is None:
        return None
    count = counted(first.collectives, "collective")
    text = f"rank {first.rank}, which came last in {count} and cost the others {duration(first.cost_ns)}"
    return Where(first.rank, text=text)


def _peak(report: Report, chosen: Where | None) -> Where | None:
    section = report.memory
    top = None if section is None else leading(section)
    if section is not None and chosen is not None:
        top = next((o for o in section.ranks if (o.rank, o.device) == (chosen.rank, chosen.device)), top)
    if top is None:
        return chosen
    words = f"rank {top.rank}"
    words += f", step {top.peak_step}" if top.peak_step is not None else ""
    words += f", in {top.peak_phase}" if top.peak_phase else ""
    largest = max((top.peak_by_category or {}).items(), key=lambda item: item[1], default=None)
    words += f", most of it {largest[0]} ({size(largest[1])})" if largest is not None else ""
    return Where(top.rank, top.device, top.peak_step, None, words)


def _kept(report: Report, chosen: Where | None) -> Where | None:
    section = report.memory
    if section is None or chosen is None:
        return chosen
    one = next((saved for saved in section.saved if saved.rank == chosen.rank), None)
    device = next((o for o in section.ranks if o.rank == chosen.rank), None)
    modules = one.by_module if one is not None else (device and device.across_border_by_module) or {}
    largest = max(modules.items(), key=lambda item: item[1], default=None)
    if largest is None:
        return chosen
    return replace(chosen, text=f"{chosen.text}, most of it in {largest[0]} ({size(largest[1])})")
