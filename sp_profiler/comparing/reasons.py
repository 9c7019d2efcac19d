"""Why exposed time changed, in words: the largest parts of a difference, and where its causes moved."""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler.comparing.model import KindChange, Part
from sp_profiler.comparing.names import CAUSE_WORDS, role_name
from sp_profiler.report.format import duration, listed, size, visible

SHARE = 0.2
"""From this part of a difference on a reason is worth naming."""
_MOST_REASONS = 2


def because(kind: KindChange) -> str:
    """Why the exposed time of a kind changed: what it is now, the largest parts, and where causes moved."""
    difference = kind.exposed.difference
    if not difference:
        return ""
    parts = reasons(kind.parts, difference, kind)
    now = f"it is {kind.became}hronous now" if kind.became else ""
    text = listed([one for one in (now, parts) if one])
    moved = [c for c in kind.by_cause if c.difference and abs(c.difference) >= SHARE * abs(difference)]
    words = [f"{CAUSE_WORDS.get(c.name, visible(c.name))} {signed(c.difference or 0)}" for c in moved[:3]]
    return f"{text} ({', '.join(words)})" if words else text


def reasons(parts: Sequence[Part], difference: float, kind: KindChange | None = None) -> str:
    """The largest parts that go the way of the difference, in words."""
    alike = [part for part in parts if part.ns * difference > 0 and abs(part.ns) >= SHARE * abs(difference)]
    return listed([_reason(part, kind) for part in alike[:_MOST_REASONS]])


def _reason(part: Part, kind: KindChange | None) -> str:
    more, amount = part.ns > 0, duration(abs(part.ns))
    if part.reason == "overlap":
        where = "computation" if part.under in (None, "other", "unknown") else role_name(part.under)
        return f"{amount} {'less' if more else 'more'} of it runs under {where}"
    counts = next((f for f in kind.figures if f.figure == "count"), None) if kind is not None else None
    if part.reason == "count" and counts is not None:
        return f"there are {number(counts.here)} of them instead of {number(counts.base)} ({amount})"
    sizes = next((f for f in kind.figures if f.figure == "bytes"), None) if kind is not None else None
    if part.reason == "bytes" and sizes is not None:
        return f"each moves {size(sizes.here)} instead of {size(sizes.base)} ({amount})"
    words = {
        "came": ("new collectives add", ""),
        "gone": ("collectives that are gone took", ""),
        "count": ("there are more of them", "there are fewer of them"),
        "bytes": ("they are larger", "they are smaller"),
        "rate": ("transfers of the same size take longer", "transfers of the same size are shorter"),
        "transfer": ("transfers take longer", "transfers are shorter"),
        "skew-wait": ("ranks wait longer for each other", "ranks wait less for each other"),
        "duration": ("each takes longer", "each is shorter"),
        "concurrency": (
            "fewer other collectives are exposed beside it and share the time",
            "other collectives are exposed beside it and share the time",
        ),
    }.get(part.reason, (part.reason, part.reason))
    if part.reason in ("came", "gone"):
        return f"{words[0]} {amount}"
    return f"{words[0] if more else words[1]} ({amount})"


def number(value: float | None) -> str:
    return "?" if value is None else f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '−'}{duration(abs(ns))}"
