"""What one source asks (a file, the options, a call), how two sources join, and the budgets they come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sp_profiler.checking.budgets import (
    Budget,
    Budgets,
    Limit,
    NoWorse,
    meant,
    scope_of,
)
from sp_profiler.checking.figures import COMPARED, FIGURES, Figure
from sp_profiler.checking.parts import Scope, Within
from sp_profiler.checking.paths import Path
from sp_profiler.checking.tolerance import Tolerance, tolerance_of
from sp_profiler.errors import UsageError

EXAMPLE = "--max-exposed-ratio 0.2, or max-exposed-ratio = 0.2 in [tool.sp_profile.check] of pyproject.toml"


@dataclass(frozen=True)
class Settings:
    """`items`: budgets with a name of their own; `entries`: those that spell a figure and a bound."""

    items: list[Budget] = field(default_factory=list)
    entries: list[Budget] = field(default_factory=list)
    scope: str | None = None
    allow_unknown: bool = False
    baseline: str | None = None
    tolerance: Any = None  # of all figures
    tolerances: dict[str, Any] = field(default_factory=dict)  # of single ones, as written
    tolerance_origin: str = "tolerance"
    compared: list[str] | None = None  # figures compared with the baseline; None: the usual ones
    compared_origin: str = "baseline"
    use_noise: bool | None = None
    config: str | None = None

    def with_(self, **changes: Any) -> Settings:
        return replace(self, **changes)


def joined(file: Settings | None, options: Settings) -> Settings:
    """The options, and of the file what they do not say otherwise."""
    if file is None:
        return options
    said = {_key(one) for one in options.items}
    entries = {one.name for one in options.entries}
    both = options.tolerances | {k: v for k, v in file.tolerances.items() if k not in options.tolerances}
    takes_tolerance = options.tolerance is None
    return Settings(
        items=[*(one for one in file.items if _key(one) not in said), *options.items],
        entries=[*(one for one in file.entries if one.name not in entries), *options.entries],
        scope=options.scope or file.scope,
        allow_unknown=options.allow_unknown or file.allow_unknown,
        baseline=options.baseline or file.baseline,
        tolerance=file.tolerance if takes_tolerance else options.tolerance,
        tolerances=both,
        tolerance_origin=file.tolerance_origin if takes_tolerance else options.tolerance_origin,
        compared=file.compared if options.compared is None else options.compared,
        compared_origin=options.compared_origin
        if options.compared is not None or options.baseline is not None
        else file.compared_origin,
        use_noise=file.use_noise if options.use_noise is None else options.use_noise,
        config=file.config,
    )


def _key(budget: Budget) -> object:
    """Budgets of one key say the same otherwise: the scope is no part of it."""
    if isinstance(budget, (Limit, NoWorse)):
        return (budget.figure, getattr(budget, "bound", "no worse"), budget.within)
    return (type(budget), budget.what)


def budgets_of(settings: Settings) -> Budgets:
    """What is to be judged. Raises UsageError where nothing is asked, or asked that cannot be meant."""
    items: list[Budget] = [*settings.items, *settings.entries]
    compares = [one for one in items if isinstance(one, NoWorse)]
    if settings.baseline is None:
        if compares:
            raise UsageError(f"{compares[0].origin} compares with a baseline: name one with --baseline")
        if settings.tolerances or settings.tolerance is not None:
            _refuse_tolerance_alone(settings)
    else:
        asked = {_key(one) for one in compares}
        items += [one for one in _compared(settings) if _key(one) not in asked]
    if not items:
        raise UsageError(f"there is nothing to check: set a budget, such as {EXAMPLE}")
    use_noise = settings.use_noise is not False
    return Budgets(items, settings.allow_unknown, settings.baseline, settings.config, use_noise)


def _refuse_tolerance_alone(settings: Settings) -> None:
    """A tolerance in a file may wait for a baseline; one that was typed has nothing to act on."""
    if settings.tolerance_origin.startswith("--"):
        raise UsageError("--tolerance is how much worse than a baseline is allowed: it needs --baseline")


def _compared(settings: Settings) -> Iterable[NoWorse]:
    """The figures that are compared with the baseline."""
    chosen = COMPARED if settings.compared is None else settings.compared
    for name in dict.fromkeys([*chosen, *settings.tolerances]):
        origin = settings.tolerance_origin if name in settings.tolerances else settings.compared_origin
        figure = FIGURES.get(name.replace("_", "-"))
        if figure is None:
            hint = (
                ": of a path a budget must say which way is worse, such as figure = 'totals.comm_ns', "
                "worse = 'higher'"
            )
            raise UsageError(
                f"{origin}: '{name}' is no figure{hint if '.' in name else meant(name, FIGURES)}"
            )
        asked = settings.compared is not None or name in settings.tolerances
        tolerance = _tolerance(settings, figure, settings.tolerances.get(name))
        yield NoWorse(figure, figure.worse, tolerance, asked=asked, origin=origin)


def _tolerance(settings: Settings, figure: Figure | Path, given: Any) -> Tolerance:
    """The tolerance of a figure: its own, else the one of all, else the default."""
    origin = settings.tolerance_origin
    made = Tolerance()
    if settings.tolerance is not None:
        made = tolerance_of(settings.tolerance, "ratio", what=origin)
        if made.absolute is not None:
            raise UsageError(f"{origin}: the tolerance of all figures is a share, such as 5%")
    if given is None:
        return made
    return tolerance_of(given, figure.unit, what=f"{origin} of {figure.name}", default=made)


def no_worse(
    settings: Settings,
    figure: Figure | Path,
    worse: str | None,
    tolerance: Any,
    *,
    scope: str | None = None,
    within: Within | None = None,
    allow_unknown: bool = False,
    origin: str,
) -> NoWorse:
    """A comparison that somebody spelled out. `worse` may be left out where the figure tells it."""
    told = figure.worse if isinstance(figure, Figure) and worse is None else worse
    if told not in ("higher", "lower"):
        raise UsageError(f"{origin}: worse is '{told}', expected 'higher' or 'lower'")
    chosen: Scope = scope_of(scope, figure, origin)
    return NoWorse(
        figure,
        "higher" if told == "higher" else "lower",
        _tolerance(settings, figure, tolerance),
        chosen,
        within,
        allow_unknown,
        asked=True,
        origin=origin,
    )
