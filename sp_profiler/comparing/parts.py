"""What a difference in exposed time is made of: an exact sum of parts, each with its reason.

Of one kind of collectives let a window (one step of one rank) hold n of them, each exposing e on average: the
kind exposes n e. Between two runs, with the mean of the two in place of either (so that no run is preferred),

    delta(n e) = delta(n) mean(e) + mean(n) delta(e)

The first is `count`. What one exposes is e = d - o - s: its duration, less what overlaps computation
(`overlap`, by the role of the partner it runs under), less what it shares with collectives that are exposed
at the same time (`concurrency`). The duration is d = w + t, the wait for the last rank (`skew-wait`) and the
transfer, and the transfer is t = b r, bytes times time per byte: delta(t) = delta(b) mean(r) + mean(b)
delta(r), `bytes` and `rate`. Where waits are not known the duration is one part, where bytes are not, the
transfer is. All of it in exact fractions, rounded together to whole ns at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from sp_profiler.comparing.model import Part

Reason = tuple[str, str | None]


@dataclass(frozen=True)
class Sums:
    """Sums over all collectives of one kind in one run, inside its windows. Times in ns.

    `skew_wait` and `transfer` are None unless both are known of all and make up their durations, `bytes`
    unless known of all and not 0.
    """

    windows: int
    count: int = 0
    duration: int = 0
    overlapped: int = 0
    exposed: int = 0
    share: int = 0  # of the exposed time, divided among those exposed at once
    skew_wait: int | None = None
    transfer: int | None = None
    bytes: int | None = None
    under: dict[str, int] = field(default_factory=dict)  # hidden under the partner, by its role

    @property
    def mean(self) -> Fraction:
        """Exposed ns per window."""
        return Fraction(self.share, self.windows)


def parts(base: Sums, here: Sums) -> dict[Reason, Fraction]:
    """The parts, ns per window; they sum to `here.mean - base.mean`."""
    if not base.count or not here.count:
        whole = here.mean - base.mean
        return {} if not whole else {("came" if here.count else "gone", None): whole}
    count = [Fraction(one.count, one.windows) for one in (base, here)]
    each = [Fraction(one.share, one.count) for one in (base, here)]
    middle = (count[0] + count[1]) / 2
    found: dict[Reason, Fraction] = {("count", None): (count[1] - count[0]) * (each[0] + each[1]) / 2}
    for reason, change in _of_one(base, here).items():
        found[reason] = middle * change
    return {reason: ns for reason, ns in found.items() if ns}


def _of_one(base: Sums, here: Sums) -> dict[Reason, Fraction]:
    """The parts of what one collective exposes."""

    def change(one: int, two: int) -> Fraction:
        return Fraction(two, here.count) - Fraction(one, base.count)

    found: dict[Reason, Fraction] = {}
    if base.transfer is None or here.transfer is None or base.skew_wait is None or here.skew_wait is None:
        found["duration", None] = change(base.duration, here.duration)
    else:
        found["skew-wait", None] = change(base.skew_wait, here.skew_wait)
        if base.bytes is None or here.bytes is None:
            found["transfer", None] = change(base.transfer, here.transfer)
        else:
            sizes = Fraction(base.bytes, base.count), Fraction(here.bytes, here.count)
            rates = Fraction(base.transfer, base.bytes), Fraction(here.transfer, here.bytes)
            found["bytes", None] = (sizes[1] - sizes[0]) * (rates[0] + rates[1]) / 2
            found["rate", None] = (rates[1] - rates[0]) * (sizes[0] + sizes[1]) / 2
    for role in dict.fromkeys([*base.under, *here.under]):
        found["overlap", role] = -change(base.under.get(role, 0), here.under.get(role, 0))
    rest = [one.overlapped - sum(one.under.values()) for one in (base, here)]
    found["overlap", "other"] = found.get(("overlap", "other"), Fraction()) - change(rest[0], rest[1])
    found["concurrency", None] = -change(base.exposed - base.share, here.exposed - here.share)
    return found


def added(every: Iterable[dict[Reason, Fraction]]) -> dict[Reason, Fraction]:
    """The parts of several kinds together."""
    found: dict[Reason, Fraction] = {}
    for one in every:
        for reason, ns in one.items():
            found[reason] = found.get(reason, Fraction()) + ns
    return found


def rounded(found: dict[Reason, Fraction], whole: int) -> list[Part]:
    """The parts in whole ns that sum to `whole`, largest first; `whole` may be off their sum by rounding."""
    reasons = list(found)
    shares = shared([found[reason] for reason in reasons], whole)
    made = [Part(*reason, ns) for reason, ns in zip(reasons, shares, strict=True) if ns]
    return sorted(made, key=lambda part: -abs(part.ns))


def shared(values: Sequence[Fraction], whole: int) -> list[int]:
    """Whole numbers that sum to `whole`, each next to its value: the largest remainders are rounded up."""
    low = [floor(value) for value in values]
    if not low:
        return []
    order = sorted(range(len(values)), key=lambda place: low[place] - values[place])
    missing = whole - sum(low)
    for turn in range(abs(missing)):
        low[order[turn % len(order)]] += 1 if missing > 0 else -1
    return low
