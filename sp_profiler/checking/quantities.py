"""Numbers with units, as people write limits: `4.1 ms`, `17 MiB`, `20 %`; and the way back.

Figures are compared in base units: nanoseconds, bytes, ratios in [0, 1], 1e9 bytes a second, counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

from sp_profiler.errors import UsageError
from sp_profiler.report import format as text

Unit = Literal["ns", "bytes", "ratio", "gbps", "count"]

_TIMES = {"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9}
_SIZES = {"B": 1} | {
    f"{prefix}{ending}": base**power
    for ending, base in (("iB", 1024), ("B", 1000))
    for power, prefix in enumerate("KMGT", 1)
}
_SUFFIXES: dict[Unit, Mapping[str, float]] = {
    "ns": _TIMES,
    "bytes": _SIZES | {"kB": 1000},
    "ratio": {"%": 0.01},
    "gbps": {"GB/s": 1},
    "count": {},
}
_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)", re.ASCII)
_EXAMPLES: dict[Unit, str] = {
    "ns": "'4.1 ms'",
    "bytes": "'17 MiB'",
    "ratio": "0.2 or '20 %'",
    "gbps": "'150 GB/s'",
    "count": "3",
}


def quantity(given: object, unit: Unit, *, plain: float = 1, least: float = 0, what: str) -> float:
    """A limit in base units. A number without a unit counts `plain` base units each.

    Raises UsageError, naming `what`, for what is no number of this unit, is below `least` or not finite, and
    for a ratio above 1: 20 can only be meant as 20 %, and would never be exceeded.
    """
    value = _value(given, unit, plain)
    if value is None or not math.isfinite(value) or value < least:
        raise UsageError(f"{what}: '{given}' is no limit, expected one such as {_EXAMPLES[unit]}")
    if unit == "ratio" and value > 1:
        raise UsageError(f"{what}: {given} is a ratio above 1, expected one such as {_EXAMPLES[unit]}")
    return value


def _value(given: object, unit: Unit, plain: float) -> float | None:
    if isinstance(given, bool):
        return None
    if isinstance(given, (int, float)):
        return given * plain
    found = _NUMBER.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        return None
    number, suffix = float(found[1].replace("_", "")), found[2]
    if not suffix:
        return number * plain
    factor = _SUFFIXES[unit].get(suffix)
    return None if factor is None else number / 100 if suffix == "%" else number * factor


def shown(value: float | None, unit: Unit) -> str:
    """A value for people. None: `unknown`."""
    if value is None:
        return text.UNKNOWN
    if unit == "ns":
        return text.duration(value)
    if unit == "bytes":
        return text.size(value)
    if unit == "ratio":
        return _percent(value)
    number = f"{value:.10g}"
    return f"{number} GB/s" if unit == "gbps" else number


def _percent(ratio: float) -> str:
    """With a digit more than reports have: a limit and what breaks it must not read the same."""
    value = ratio * 100
    if value == 0 or not math.isfinite(value):
        return "0 %"
    number = f"{value:.2f}" if abs(value) >= 0.01 else f"{value:.2g}"
    whole = number.rstrip("0").rstrip(".") if "." in number and "e" not in number else number
    return f"{whole} %" if ratio == 1 or whole != "100" else "<100 %"


def both_shown(one: float, two: float, unit: Unit) -> tuple[str, str]:
    """Two values that differ, so that they can be told apart: with more digits where rounding hides it."""
    first, second = shown(one, unit), shown(two, unit)
    if one == two or first != second:
        return first, second
    base = {"ns": "ns", "bytes": "B", "gbps": "GB/s"}.get(unit)
    ending = "" if base is None else f" {base}"
    return f"{_exactly(one)}{ending}", f"{_exactly(two)}{ending}"


def _exactly(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
