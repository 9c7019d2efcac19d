"""A figure against the baseline's: is it worse by more than the tolerance, and by more than the noise?

The noise comes from the spread of a run's own steps: of the means over ranks of each step, the median
absolute deviation m gives a standard error of their mean, 1.4826 m / sqrt(n) (1.4826 makes m the standard
deviation of normal data). Two runs may differ by twice the root of the sum of both squared. With fewer than
three steps in either it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from sp_profiler.checking.budgets import NoWorse
from sp_profiler.checking.figures import Figure
from sp_profiler.checking.quantities import Unit, both_shown, shown
from sp_profiler.checking.readings import Reading
from sp_profiler.checking.result import Verdict
from sp_profiler.checking.tolerance import Worse, is_regression, worsening
from sp_profiler.report.format import percent, visible
from sp_profiler.report.model import Report

_LEAST_STEPS = 3
_NORMAL = 1.4826
_SIGMAS = 2


def no_worse(
    report: Report,
    baseline: Report,
    budget: NoWorse,
    here: Sequence[Reading],
    there: Sequence[Reading],
    *,
    use_noise: bool,
) -> Verdict:
    """The verdict of one comparison; `here` and `there` are what the figure reads in both."""
    value, base = worst(here, budget.worse), worst(there, budget.worse)
    if value is None or base is None:
        return _not_compared(budget, here, there, value, base)
    unit = budget.figure.unit
    noise = noise_of(report, baseline, budget) if use_noise else None
    is_worse = is_regression(base, value, budget.worse, unit, budget.tolerance, noise)
    allowance = max(budget.tolerance.allowance(base, unit), noise or 0.0)
    limit = base + allowance if budget.worse == "higher" else base - allowance
    text = _sentence(budget, value, base, limit, noise, is_worse)
    return _verdict(budget, "broken" if is_worse else "holds", text, value, base, limit, noise)


def worst(readings: Sequence[Reading], worse: Worse) -> float | None:
    """The worst of them; None where any is not known exactly, since that one may be worse."""
    numbers = [
        one.value
        for one in readings
        if isinstance(one.value, (int, float)) and not isinstance(one.value, bool) and not one.at_least
    ]
    if len(numbers) < len(readings) or not numbers:
        return None
    return max(numbers) if worse == "higher" else min(numbers)


def noise_of(report: Report, baseline: Report, budget: NoWorse) -> float | None:
    """What the steps' spread lets the two differ by; None where it is not known."""
    if budget.scope != "total" or not isinstance(budget.figure, Figure):
        return None
    if "step" not in budget.figure.scopes:
        return None
    errors = [_standard_error(_by_step(one, budget)) for one in (report, baseline)]
    known = [one for one in errors if one is not None]
    return None if len(known) < len(errors) else _SIGMAS * math.hypot(*known)


def _by_step(report: Report, budget: NoWorse) -> list[float]:
    """The figure of each step, mean over ranks."""
    assert isinstance(budget.figure, Figure)
    steps: dict[int, list[float]] = {}
    for one in budget.figure.read(report, "step", budget.within):
        if one.where is not None and one.where.step is not None and isinstance(one.value, (int, float)):
            steps.setdefault(one.where.step, []).append(one.value)
    return [fmean(values) for values in steps.values()]


def _standard_error(values: Sequence[float]) -> float | None:
    if len(values) < _LEAST_STEPS:
        return None
    middle = median(values)
    return _NORMAL * median(abs(value - middle) for value in values) / math.sqrt(len(values))


def _not_compared(
    budget: NoWorse,
    here: Sequence[Reading],
    there: Sequence[Reading],
    value: float | None,
    base: float | None,
) -> Verdict:
    """A figure that the baseline has and this run lost is unknown; one that nobody asked for is skipped."""
    lost = value is None and base is not None
    state = "unknown" if lost or budget.asked else "skipped"
    missing = next(
        (one for one in (here if value is None else there) if one.value is None or one.at_least), None
    )
    why = (missing.reason if missing is not None else None) or "nobody could look"
    both = value is None and base is None
    known = (
        "known of neither run" if both else f"unknown in {'this run' if value is None else 'the baseline'}"
    )
    text = f"{_name(budget)} is {known}: {why}."
    return _verdict(budget, state, visible(text), value, base, None, None)


def _sentence(
    budget: NoWorse, value: float, base: float, limit: float, noise: float | None, is_worse: bool
) -> str:
    unit: Unit = budget.figure.unit
    here, there = both_shown(value, base, unit)
    by = worsening(base, value, budget.worse)
    change = (
        "the baseline's value" if by == 0 else f"{_by(abs(by), base, unit)} {'worse' if by > 0 else 'better'}"
    )
    text = f"{_name(budget)} is {here}, {change}" + ("" if by == 0 else f" than the baseline's {there}")
    if is_worse:
        return visible(f"{text}, allowed up to {shown(limit, unit)}{_noise(noise, unit)}")
    if by > budget.tolerance.allowance(base, unit):
        return visible(f"{text}, within the noise of the steps (±{shown(noise, unit)})") + "."
    return visible(text) + "."


def _by(amount: float, base: float, unit: Unit) -> str:
    """`8.1 %`; of ratios the difference in points, of a base of 0 the amount."""
    if unit == "ratio":
        return f"{amount * 100:.3g} points"
    return percent(amount / abs(base)) if base else shown(amount, unit)


def _noise(noise: float | None, unit: Unit) -> str:
    return "" if noise is None else f" (noise ±{shown(noise, unit)})"


def _name(budget: NoWorse) -> str:
    within = f" of {budget.within}" if budget.within is not None else ""
    words = budget.figure.about if isinstance(budget.figure, Figure) else budget.figure.text
    scope = f" of the worst {budget.scope}" if budget.scope != "total" else ""
    text = f"{words}{within}{scope}"
    return text if not isinstance(budget.figure, Figure) else text[:1].upper() + text[1:]


def _verdict(
    budget: NoWorse,
    state: str,
    text: str,
    value: float | None,
    base: float | None,
    limit: float | None,
    noise: float | None,
) -> Verdict:
    return Verdict(
        budget=budget.name,
        figure=budget.figure.name if isinstance(budget.figure, Figure) else budget.figure.text,
        bound="no-worse",
        state=state,  # type: ignore[arg-type]
        fails=False,
        value=value,
        limit=limit,
        unit=budget.figure.unit,
        scope=budget.scope,
        text=text,
        baseline=base,
        noise=noise,
        origin=budget.origin,
    )
