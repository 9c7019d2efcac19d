"""A report and its budgets -> verdicts: pure, nothing is read or printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from sp_profiler.checking.budgets import (
    FINDING_SEVERITIES,
    Budget,
    Budgets,
    LedgerLimit,
    Limit,
    NoFinding,
    NoWorse,
)
from sp_profiler.checking.figures import Figure
from sp_profiler.checking.look import SAME_AS, where_in, where_to_look
from sp_profiler.checking.parts import Scope, Within
from sp_profiler.checking.paths import Path, follow
from sp_profiler.checking.quantities import both_shown
from sp_profiler.checking.readings import Reading
from sp_profiler.checking.reasons import reason_of
from sp_profiler.checking.regression import no_worse
from sp_profiler.checking.result import State, Verdict, Where
from sp_profiler.ledger import SEVERITIES
from sp_profiler.report.format import counted, visible
from sp_profiler.report.model import Report, by_step

_SHOWN_FINDINGS = 3


def judge(report: Report, budgets: Budgets, baseline: Report | None = None) -> list[Verdict]:
    """One verdict for each budget, in order, under names that are each its own.

    `baseline`: the report that `NoWorse` budgets compare with; there must be one where there are any.
    """
    made = [_judge(report, one, budgets, baseline) for one in budgets.items]
    used: dict[str, int] = {}
    for number, verdict in enumerate(made):
        used[verdict.budget] = used.get(verdict.budget, 0) + 1
        if used[verdict.budget] > 1:
            made[number] = replace(verdict, budget=f"{verdict.budget} ({used[verdict.budget]})")
    return made


def _judge(report: Report, budget: Budget, budgets: Budgets, baseline: Report | None) -> Verdict:
    if isinstance(budget, LedgerLimit):
        return _ledger(report, budget)
    if isinstance(budget, NoFinding):
        return _finding(report, budget)
    allowed = budgets.allow_unknown or budget.allow_unknown
    if isinstance(budget, Limit):
        return _limit(report, budget, allowed)
    assert baseline is not None
    here, there = readings_of(report, budget), readings_of(baseline, budget)
    verdict = no_worse(report, baseline, budget, here, there, use_noise=budgets.use_noise)
    return _failing(_pointed(report, budget, verdict, here), allowed)


def _failing(verdict: Verdict, allow_unknown: bool) -> Verdict:
    fails = verdict.state == "broken" or (verdict.state == "unknown" and not allow_unknown)
    return replace(verdict, fails=fails)


def _pointed(report: Report, budget: NoWorse, verdict: Verdict, readings: Sequence[Reading]) -> Verdict:
    if verdict.state != "broken":
        return verdict
    worst = _extreme(readings, max if budget.worse == "higher" else min)
    where = None if worst is None else _where(report, budget.figure, budget.within, worst)
    return replace(verdict, where=where, text=f"{verdict.text}{_look_at(where)}.")


# --- limits of figures -----------------------------------------------------------------------------------


def readings_of(report: Report, budget: Limit | NoWorse) -> list[Reading]:
    """What the budget's figure reads in this report: at least one reading."""
    if isinstance(budget.figure, Figure):
        made = list(budget.figure.read(report, budget.scope, budget.within))
        return made or [Reading(None, reason=f"the report has no {budget.scope} to read it of")]
    several = len({one.device for one in report.ranks}) > 1
    field = budget.figure.parts[-1].name
    looked_for = (field, field.rpartition("_")[0] or field, budget.figure.parts[0].name)
    found = follow(budget.figure, report)
    made = [
        Reading(
            _plain(one.value),
            where_in(one.entry, several),
            one.missing or (None if _plain(one.value) is not None else _why(one.value)),
            looked_for,
        )
        for one in found
    ]
    if report.fleet is not None and budget.figure.parts[0].name in ("collectives", "steps"):
        what = budget.figure.parts[0].name
        made.append(
            Reading(None, reason=f"the report of a run this large holds its most exposed {what} only")
        )
    return made or [Reading(None, reason="no entry of the list is the one that is named")]


def _plain(value: Any) -> Any:
    """What can be compared: numbers, text, truth values."""
    return value if isinstance(value, (int, float, str, bool)) else None


def _why(value: Any) -> str:
    return "nobody could look" if value is None else f"it is no single figure, but a {type(value).__name__}"


def _limit(report: Report, budget: Limit, allow_unknown: bool) -> Verdict:
    readings = readings_of(report, budget)
    state, reading = _decide(readings, budget)
    unit = budget.figure.unit
    limit = budget.value
    where = reading.where
    subject = _subject(report, budget.figure, budget.scope, budget.within, reading)
    if state == "unknown":
        text = f"{subject} is unknown: {reason_of(report, reading)}"
    else:
        text = _sentence(subject, reading, budget)
    if state == "broken":
        where = _where(report, budget.figure, budget.within, reading)
        is_told = isinstance(budget.figure, Path) or budget.scope != "total"  # by the subject
        text += "" if is_told and where == reading.where else _look_at(where)
    value = None if state == "unknown" and not reading.at_least else reading.value
    text_like = isinstance(limit, (str, bool))
    verdict = Verdict(
        budget=budget.name,
        figure=budget.figure.name,
        bound=budget.bound,
        state=state,
        fails=False,
        value=value,
        limit=limit,
        unit="text" if text_like else unit,
        scope=budget.scope,
        text=f"{text}.",
        where=where,
        origin=budget.origin,
    )
    return _failing(verdict, allow_unknown)


def _decide(readings: Sequence[Reading], budget: Limit) -> tuple[State, Reading]:
    """The state and the reading that decided it. What nobody could look at may be the worst: no pass."""
    known = [one for one in readings if one.value is not None]
    broken = [one for one in known if _breaks(one, budget)]
    if broken:
        return "broken", _extreme(broken, min if budget.bound == "min" else max) or broken[0]
    unsure = [one for one in readings if one.value is None or _unsure(one, budget)]
    if unsure:
        return "unknown", unsure[0]
    return "holds", _extreme(known, min if budget.bound == "min" else max) or known[0]


def _breaks(reading: Reading, budget: Limit) -> bool:
    value, limit = reading.value, budget.value
    if budget.bound == "equals":
        same_kind = isinstance(value, bool) == isinstance(limit, bool)
        return not reading.at_least and not (same_kind and value == limit)
    if not _is_number(value) or not _is_number(limit):
        return False
    return value > limit if budget.bound == "max" else value < limit and not reading.at_least


def _unsure(reading: Reading, budget: Limit) -> bool:
    """Whether a known value does not decide: it is a lower bound that the limit lies above, or no number."""
    if budget.bound == "equals":
        return reading.at_least
    if not _is_number(reading.value):
        return True
    if not reading.at_least:
        return False
    return budget.bound == "max" or not _is_number(budget.value) or reading.value < budget.value


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _extreme(readings: Sequence[Reading], which: Callable[..., Reading]) -> Reading | None:
    numbers = [one for one in readings if _is_number(one.value)]
    return which(numbers, key=lambda one: one.value) if numbers else None


def _sentence(subject: str, reading: Reading, budget: Limit) -> str:
    value, limit = reading.value, budget.value
    if _is_number(value) and _is_number(limit):
        here, there = both_shown(value, limit, budget.figure.unit)
    else:
        here, there = _literal(value), _literal(limit)
    note = f" ({reading.note})" if reading.note else ""
    if budget.bound == "equals":
        relation = "as asked" if value == limit else f"not {there}"
    elif value == limit:
        relation = f"the limit of {there}"
    else:
        above = value > limit  # type: ignore[operator]
        relation = f"{'above' if above else 'below'} the limit of {there}"
    return f"{subject} is {here}{note}, {relation}"


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else visible(value)


def _subject(
    report: Report, figure: Figure | Path, scope: Scope, within: Within | None, reading: Reading
) -> str:
    """What the sentence is about: `Exposed communication of purpose dgrad, per step and rank`."""
    if isinstance(figure, Path):
        at = f" of {reading.where.text}" if reading.where is not None and reading.where.text else ""
        return visible(f"{figure.name}{at}")
    words = figure.about + (f" of {within}" if within is not None else "")
    if figure.is_mean and scope != "step":
        mean = "per step" if by_step(report) else "over the whole trace"
        words += f" {mean} and rank" if scope == "total" and by_step(report) else f" {mean}"
    if scope != "total" and reading.where is not None:
        words += f" of {reading.where.text}"
    return visible(words[:1].upper() + words[1:])


def _where(report: Report, figure: Figure | Path, within: Within | None, reading: Reading) -> Where | None:
    if isinstance(figure, Path):
        same = SAME_AS.get(figure.parts[-1].name) if figure.parts[0].name == "totals" else None
        return reading.where if same is None else where_to_look(report, same, None, reading)
    return where_to_look(report, figure.name, within, reading)


def _look_at(where: Where | None) -> str:
    return f"; look at {visible(where.text)}" if where is not None and where.text else ""


# --- the ledger and the findings -------------------------------------------------------------------------


def _ledger(report: Report, budget: LedgerLimit) -> Verdict:
    by_severity = budget.what in SEVERITIES
    entries = [
        one for one in report.data_quality if (one.severity if by_severity else one.code) == budget.what
    ]
    count = sum(one.count for one in entries)
    is_broken = count > budget.most
    what = counted(count, _word(budget.what), _word(budget.what, plural=True))
    text = f"The data-quality ledger has {what}, at most {budget.most} allowed"
    where = None
    if is_broken:
        first = entries[0]
        at = f"{first.file}: " if first.file else ""
        where = Where(text=f"{at}{first.text.rstrip('.')}")
        text += f"; the first: {visible(where.text)}"
    return Verdict(
        budget=budget.name,
        figure=f"data_quality {budget.what}",
        bound="max",
        state="broken" if is_broken else "holds",
        fails=is_broken,
        value=count,
        limit=budget.most,
        unit="count",
        scope="total",
        text=f"{text}.",
        where=where,
        origin=budget.origin,
    )


def _word(what: str, *, plural: bool = False) -> str:
    if what not in SEVERITIES:
        return f"entries of {what}" if plural else f"entry of {what}"
    return {"loss": "losses"}.get(what, f"{what}s") if plural else what


def _finding(report: Report, budget: NoFinding) -> Verdict:
    """By code, or by severity: that one and all worse ones."""
    if budget.what in FINDING_SEVERITIES:
        worse = FINDING_SEVERITIES[FINDING_SEVERITIES.index(budget.what) :]
        found = [one for one in report.findings if one.severity in worse]
    else:
        found = [one for one in report.findings if one.code == budget.what]
    told = " ".join(f"{visible(one.text)} [{one.code}]" for one in found[:_SHOWN_FINDINGS])
    more = f" And {len(found) - _SHOWN_FINDINGS} more." if len(found) > _SHOWN_FINDINGS else ""
    text = f"{counted(len(found), 'finding')}: {told}{more}" if found else f"No finding {budget.what}."
    examples = [_example(one.evidence) for one in found]
    return Verdict(
        budget=budget.name,
        figure=f"findings {budget.what}",
        bound="none-of",
        state="broken" if found else "holds",
        fails=bool(found),
        value=len(found),
        limit=0,
        unit="count",
        scope="total",
        text=text,
        where=next((one for one in examples if one is not None), None),
        origin=budget.origin,
    )


def _example(evidence: dict[str, Any]) -> Where | None:
    """The first collective that the evidence names."""
    for value in _entries(evidence.values()):
        if isinstance(value.get("id"), int):
            text = f"collective {value['id']}" + (f" of {value['module']}" if value.get("module") else "")
            return Where(value.get("rank"), None, value.get("step"), value["id"], text)
    return None


def _entries(values: Iterable[Any]) -> Iterable[dict[str, Any]]:
    for value in values:
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield one
