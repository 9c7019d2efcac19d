"""A figure against the baseline's: is it worse by more than the tolerance, and by more than the noise?

The noise is that of `sp-profile compare` (`comparing.noise`): what the spread of the steps, each the mean
over ranks, lets the means of two runs differ by. With fewer than three steps in either it is not known here:
two steps tell so little that a gate would let everything pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from sp_profiler.checking.budgets import NoWorse
from sp_profiler.checking.figures import Figure
from sp_profiler.checking.quantities import Unit, both_shown, shown
from sp_profiler.checking.readings import Reading
from sp_profiler.checking.reasons import reason_of
from sp_profiler.checking.result import State, Verdict
from sp_profiler.checking.tolerance import Worse, is_regression, worsening
from sp_profiler.comparing import noise as comparing
from sp_profiler.report.format import percent, visible
from sp_profiler.report.model import Report, StepAcross

LEAST_STEPS = 3
_OF_FLEET: dict[str, Callable[[StepAcross], tuple[int, int]]] = {
    "step-ms": lambda one: (one.window_ns, one.windows),
    "exposed-ms": lambda one: (one.exposed_ns, one.windows),
    "exposed-ratio": lambda one: (one.exposed_ns, one.window_ns),
    "idle-ratio": lambda one: (one.idle_ns, one.window_ns),
    "overlap-ratio": lambda one: (one.overlapped_ns, one.comm_ns),
}
"""Figures of a step over all ranks that the report of a fleet holds."""


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
        return _not_compared(budget, (report, here, value), (baseline, there, base))
    unit = budget.figure.unit
    noise = noise_of(report, baseline, budget) if use_noise else None
    is_worse = is_regression(base, value, budget.worse, unit, budget.tolerance, noise)
    allowance = max(budget.tolerance.allowance(base, unit), noise or 0.0)
    limit = base + allowance if budget.worse == "higher" else base - allowance
    if budget.worse == "lower" and base >= 0:
        limit = max(limit, 0.0)  # no figure that has no negative values can be worse than that
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
    samples = [_by_step(one, budget) for one in (baseline, report)]
    if min(len(one) for one in samples) < LEAST_STEPS:
        return None
    return comparing.noise_of(*samples)


def _by_step(report: Report, budget: NoWorse) -> list[float]:
    """The figure of each step, mean over ranks."""
    assert isinstance(budget.figure, Figure)
    if report.fleet is not None:
        parts = _OF_FLEET.get(budget.figure.name)
        if parts is None or budget.within is not None:
            return []
        pairs = [parts(one) for one in report.fleet.steps]
        return [part / whole for part, whole in pairs if whole]
    steps: dict[int, list[float]] = {}
    for one in budget.figure.read(report, "step", budget.within):
        if one.where is not None and one.where.step is not None and isinstance(one.value, (int, float)):
            steps.setdefault(one.where.step, []).append(one.value)
    return [fmean(values) for values in steps.values()]


def _not_compared(
    budget: NoWorse,
    here: tuple[Report, Sequence[Reading], float | None],
    there: tuple[Report, Sequence[Reading], float | None],
) -> Verdict:
    """A figure that the baseline has and this run lost is unknown; one that nobody asked for is skipped."""
    value, base = here[2], there[2]
    lost = value is None and base is not None
    state: State = "unknown" if lost or budget.asked else "skipped"
    report, readings, _ = here if value is None else there
    missing = next((one for one in readings if one.value is None or one.at_least), Reading(None))
    both = value is None and base is None
    known = (
        "known of neither run" if both else f"unknown in {'this run' if value is None else 'the baseline'}"
    )
    text = f"{_name(budget)} is {known}: {reason_of(report, missing)}."
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
    words = budget.figure.about if isinstance(budget.figure, Figure) else budget.figure.name
    scope = f" of the worst {budget.scope}" if budget.scope != "total" else ""
    text = f"{words}{within}{scope}"
    return text if not isinstance(budget.figure, Figure) else text[:1].upper() + text[1:]


def _verdict(
    budget: NoWorse,
    state: State,
    text: str,
    value: float | None,
    base: float | None,
    limit: float | None,
    noise: float | None,
) -> Verdict:
    return Verdict(
        budget=budget.name,
        figure=budget.figure.name,
        bound="no-worse",
        state=state,
        fails=False,
        value=value,
        limit=limit,
        unit=budget.figure.unit,
        scope=budget.scope,
        text=text,
        baseline=base,
        worse=budget.worse,
        noise=noise,
        origin=budget.origin,
    )
