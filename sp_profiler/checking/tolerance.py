"""How much worse than a baseline a figure may be before that counts as a regression.

The allowance is the largest of three: a share of the baseline's value, an absolute floor (so that tiny
figures do not flap), and the noise, where it is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sp_profiler.checking.quantities import Unit, quantity
from sp_profiler.errors import UsageError

Worse = Literal["higher", "lower"]
DEFAULT_RELATIVE = 0.05
FLOORS: dict[Unit, float] = {"ns": 50_000, "bytes": 1 << 20, "ratio": 0.01, "gbps": 0.5, "count": 0}
"""Differences too small to be spoken of: 50 µs, 1 MiB, one point of a ratio, 0.5 GB/s."""


@dataclass(frozen=True)
class Tolerance:
    """`relative` of the baseline's value, in [0, 1]; `absolute` in the base unit of the figure."""

    relative: float = DEFAULT_RELATIVE
    absolute: float | None = None  # None: the floor of the figure's unit

    def allowance(self, base: float, unit: Unit) -> float:
        """How much worse than `base` is allowed, without noise; in the figure's base unit."""
        floor = FLOORS[unit] if self.absolute is None else self.absolute
        return max(self.relative * abs(base), floor)


def tolerance_of(given: object, unit: Unit, *, what: str, default: Tolerance | None = None) -> Tolerance:
    """`"5%"`, `0.05`, `"0.2 ms"`, `["5%", "0.2 ms"]`, or a table of `relative` and `absolute`.

    What is not given is that of `default`. A number is relative. Raises UsageError for anything else.
    """
    made = Tolerance() if default is None else default
    if isinstance(given, Mapping):
        unknown = sorted(set(given) - {"relative", "absolute"})
        if unknown or not given:
            raise UsageError(f"{what}: expected relative, absolute or both, not '{', '.join(unknown)}'")
        parts: Sequence[object] = [
            _worded(value, unit, absolute=name == "absolute", what=what) for name, value in given.items()
        ]
    elif isinstance(given, list):
        parts = given
    else:
        parts = [given]
    for part in parts:
        name, value = part if isinstance(part, tuple) else _told(part, unit, what)
        made = replace(made, **{name: value})
    if isinstance(given, list) and len(given) != 2:
        raise UsageError(f"{what}: expected two values such as ['5%', '0.2 ms']")
    return made


def _worded(value: object, unit: Unit, *, absolute: bool, what: str) -> tuple[str, float]:
    if absolute:
        return "absolute", quantity(value, unit, what=f"{what}.absolute")
    return "relative", quantity(value, "ratio", what=f"{what}.relative")


def _told(value: object, unit: Unit, what: str) -> tuple[str, float]:
    """Whether it is a share of the baseline or an amount: amounts have a unit, shares none or `%`."""
    if isinstance(value, str) and not value.strip().endswith("%") and not value.strip()[-1:].isdigit():
        return "absolute", quantity(value, unit, what=what)
    return "relative", quantity(value, "ratio", what=what)


def worsening(base: float, here: float, worse: Worse) -> float:
    """By how much `here` is worse than `base`; negative where it is better."""
    return here - base if worse == "higher" else base - here


def is_regression(
    base: float, here: float, worse: Worse, unit: Unit, tolerance: Tolerance, noise: float | None
) -> bool:
    """Whether it is worse by more than is allowed and more than the noise. All in the figure's base unit."""
    allowed = max(tolerance.allowance(base, unit), noise or 0.0)
    return worsening(base, here, worse) > allowed
