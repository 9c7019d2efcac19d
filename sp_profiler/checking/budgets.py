"""What a run is asked to keep: limits of figures, of the ledger, findings that may not be, no regression."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sp_profiler.checking.figures import FIGURES, Figure
from sp_profiler.checking.parts import PART_MAPS, SCOPES, Scope, Within
from sp_profiler.checking.paths import Path, parse_path
from sp_profiler.checking.quantities import quantity
from sp_profiler.checking.tolerance import Tolerance, Worse
from sp_profiler.errors import UsageError
from sp_profiler.ledger import SEVERITIES

LimitBound = Literal["max", "min", "equals"]
BOUNDS: tuple[LimitBound, ...] = ("max", "min", "equals")
FINDING_SEVERITIES = ("info", "advice", "warning")
"""From harmless to worst."""


@dataclass(frozen=True)
class Limit:
    """A figure, or a field of the report, may not be above, below or unlike `value` (in its base unit)."""

    figure: Figure | Path
    bound: LimitBound
    value: float | str | bool
    scope: Scope = "total"
    within: Within | None = None
    allow_unknown: bool = False
    origin: str = ""

    @property
    def name(self) -> str:
        """As in `max-exposed-ms`, `purpose dgrad: min-hidden-of-hideable`, `max totals.exposed_ns`."""
        return _named(self, self.bound)


@dataclass(frozen=True)
class NoWorse:
    """A figure, or a field, may not be worse than the baseline's by more than the tolerance.

    `asked`: somebody named it; otherwise it is one of those that are compared by default.
    """

    figure: Figure | Path
    worse: Worse
    tolerance: Tolerance
    scope: Scope = "total"
    within: Within | None = None
    allow_unknown: bool = False
    asked: bool = False
    origin: str = ""

    @property
    def name(self) -> str:
        return _named(self, "no worse")


@dataclass(frozen=True)
class LedgerLimit:
    """At most so many entries of a severity or code in the data-quality ledger."""

    what: str
    most: int
    origin: str = ""

    @property
    def name(self) -> str:
        return f"ledger: {self.what}"


@dataclass(frozen=True)
class NoFinding:
    """No finding of this code, or of this severity and worse ones."""

    what: str
    origin: str = ""

    @property
    def name(self) -> str:
        return f"no finding: {self.what}"


Budget = Limit | NoWorse | LedgerLimit | NoFinding


@dataclass(frozen=True)
class Budgets:
    """All that is asked. `baseline`: what `NoWorse` compares with."""

    items: list[Budget] = field(default_factory=list)
    allow_unknown: bool = False
    baseline: str | None = None
    config: str | None = None  # the file that some of them come from
    use_noise: bool = True


def _named(budget: Limit | NoWorse, bound: str) -> str:
    within = f"{budget.within}: " if budget.within is not None else ""
    scope = "" if budget.scope == "total" else f" (each {budget.scope})"
    if isinstance(budget.figure, Figure) and bound != "no worse":
        return f"{within}{bound}-{budget.figure.name}{scope}"
    return f"{within}{bound} {budget.figure.name}{scope}"


def figure_of(name: str, what: str) -> Figure | Path:
    """The named figure, else the path. Raises UsageError with the closest match."""
    known = FIGURES.get(name.replace("_", "-"))
    if known is not None:
        return known
    if "." not in name:
        raise UsageError(f"{what}: '{name}' is no figure{meant(name, FIGURES)}")
    return parse_path(name)


def meant(given: str, known: Iterable[str]) -> str:
    """`: did you mean max-step-ms?`, else all that there are."""
    names = list(known)
    close = difflib.get_close_matches(given.replace("_", "-"), names, 1, 0.5)
    return f": did you mean {close[0]}?" if close else f" (there are {', '.join(sorted(names))})"


def limit(
    figure: Figure | Path,
    bound: LimitBound,
    given: Any,
    *,
    scope: str | None = None,
    within: Within | None = None,
    allow_unknown: bool = False,
    origin: str,
) -> Limit:
    """A `Limit` from what was written. Raises UsageError, naming `origin`, for what cannot be meant."""
    chosen = scope_of(scope, figure, origin)
    if within is not None:
        refuse_within(figure, within, origin)
    if isinstance(figure, Figure):
        value: float | str | bool = quantity(given, figure.unit, plain=figure.plain, what=origin)
    elif bound == "equals" and _is_no_quantity(given, figure):
        value = given
    else:
        value = quantity(given, figure.unit, least=float("-inf"), what=origin)
    return Limit(figure, bound, value, chosen, within, allow_unknown, origin)


def _is_no_quantity(given: Any, path: Path) -> bool:
    """Truth values, and text where the field's name tells no unit."""
    return isinstance(given, bool) or (isinstance(given, str) and path.unit == "count")


def scope_of(scope: str | None, figure: Figure | Path, what: str) -> Scope:
    """The scope that is meant: a path's own choice of entries is its scope."""
    if scope is None:
        return "total"
    if scope not in SCOPES:
        raise UsageError(f"{what}: scope '{scope}' is none of {', '.join(SCOPES)}")
    if isinstance(figure, Path):
        raise UsageError(f"{what}: a path has no scope, write ranks[*] or steps[*] in it")
    if scope not in figure.scopes:
        raise UsageError(f"{what}: {figure.name} has no scope '{scope}', only {', '.join(figure.scopes)}")
    return next(one for one in SCOPES if one == scope)


def refuse_within(figure: Figure | Path, within: Within, what: str) -> None:
    """UsageError where a figure cannot be narrowed to such a part."""
    if within.kind not in PART_MAPS:
        raise UsageError(f"{what}: '{within.kind}' is no part{meant(within.kind, PART_MAPS)}")
    if isinstance(figure, Path) or within.kind not in figure.parts:
        raise UsageError(f"{what}: {figure.name} cannot be narrowed to one {within.kind}")


def ledger_limits(given: Mapping[str, Any], origin: str) -> list[LedgerLimit]:
    """`{"loss": 0, "truncated-gzip": 2}`. Raises UsageError for counts that are none, and unknown codes."""
    from sp_profiler.checking.codes import ledger_codes

    made: list[LedgerLimit] = []
    for what, count in given.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise UsageError(f"{origin}: {what}={count} is no count, expected one such as {what}=0")
        known = (*SEVERITIES, *ledger_codes())
        if what not in known:
            raise UsageError(f"{origin}: the ledger has no '{what}'{_close(what, known, SEVERITIES)}")
        made.append(LedgerLimit(what, count, origin))
    return made


def no_findings(given: Iterable[str], origin: str) -> list[NoFinding]:
    """Codes of findings, or severities. Raises UsageError for what is neither."""
    from sp_profiler.checking.codes import finding_codes

    made: list[NoFinding] = []
    for what in given:
        known = (*FINDING_SEVERITIES, *finding_codes())
        if what not in known:
            raise UsageError(
                f"{origin}: there is no finding '{what}'{_close(what, known, FINDING_SEVERITIES)}"
            )
        made.append(NoFinding(what, origin))
    return made


def _close(given: str, known: Iterable[str], first: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), 1, 0.5)
    words = ", ".join(first)
    return f": did you mean {close[0]}?" if close else f" (a code, or one of {words})"
