"""How evenly context parallelism divides attention: layouts, uneven work, ranks that are slower than theirs.

And what its rules share: where to look, and what is worth a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sp_profiler.report.context import Exposure, Family, PhaseBalance, balances, plural
from sp_profiler.report.context_balance_view import even_share
from sp_profiler.report.findings.facts import EXAMPLES, Facts, finding
from sp_profiler.report.format import duration, listed, percent, rank_list
from sp_profiler.report.model import Finding

_EVEN = 0.9  # a layout that counting finds less even than this is worth changing
_OFF = 0.85  # ... and a measurement that is this far below what counting gives is worth a look
MASK_SAVES = ("ring", "usp")  # ring self-attention computes all scores, whatever the mask
OF_EXPOSED = 0.2  # a part of the exposed time is worth naming from here on ...
OF_TIME = 0.002  # ... and from this part of all time
ON_CPU = " On a CPU run this changes the structure, not the speed."


def ways(family: Family) -> str:
    return listed([plural(way) for way in family.by_way])


def where(family: Family) -> dict[str, Any]:
    """Where to look: in the evidence of every finding."""
    ranks = sorted({rank for scheme in family.schemes for rank in scheme.ranks})
    groups = [group for scheme in family.schemes for group in scheme.groups]
    told: dict[str, Any] = {"scheme": family.first.scheme, "ranks": rank_list(list(ranks))}
    told |= {"groups": groups[:EXAMPLES]} if groups else {}
    return told | ({"groups_in_all": len(groups)} if len(groups) > EXAMPLES else {})


def is_worth(facts: Facts, ns: int, whole: Exposure) -> bool:
    return ns >= OF_EXPOSED * whole.exposed_ns and facts.share_of_time(ns) >= OF_TIME


def _contiguous(facts: Facts, family: Family) -> Finding | None:
    """A causal mask over stretches of the sequence: the first rank computes one block, the last one all."""
    one = family.first
    found = [b for b in balances(family) if (_ratio(b) or 1.0) < _EVEN]
    if one.layout != "contiguous" or not one.causal or one.scheme not in MASK_SAVES or not found:
        return None
    worst = min(found, key=lambda b: _ratio(b) or 1.0)
    told: dict[str, Any] = {
        "layout": "contiguous",
        "phase": worst.phase,
        "measured_ratio": _rounded(worst.measured_ratio),
        "ideal_ratio": _rounded(worst.ideal_ratio),
        "limit_ratio": _rounded(worst.limit_ratio),
        "lost_ns_per_rank_and_pass": None if worst.lost_ns is None else round(worst.lost_ns),
        "imbalance_ns": family.exposure().imbalance_ns if family.hops else None,
        **_pass_times(worst),
    }
    counted = f"; counting gives {percent(worst.ideal_ratio)}" if worst.ideal_ratio is not None else ""
    text = (
        f"The contiguous layout divides causal attention unevenly: {worst.phase} is "
        f"{percent(worst.measured_ratio)} even{counted}."
        if worst.measured_ratio is not None
        else f"The contiguous layout divides causal attention unevenly: by counting {worst.phase} is "
        f"{percent(worst.ideal_ratio)} even."
    )
    text += _won(worst, is_cpu=facts.is_cpu)
    option = " (--layout zigzag)" if (facts.workload or {}).get("layout") == "contiguous" else ""
    advice = (
        f"Use the zigzag layout{option}: rank i of p holds chunks i and 2p-1-i of 2p, so that every ring "
        "step has the same work on every rank (balance 1 by counting)."
    )
    evidence = {key: value for key, value in told.items() if value is not None}
    return finding(
        "ring-layout-uneven",
        "advice",
        text,
        where(family) | evidence,
        advice + (ON_CPU if facts.is_cpu else ""),
    )


def _ratio(one: PhaseBalance) -> float | None:
    """By counting where that is known: a measurement may have other reasons."""
    return one.ideal_ratio if one.ideal_ratio is not None else one.measured_ratio


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _pass_times(one: PhaseBalance) -> dict[str, int]:
    """What attention of a pass takes with every step as long as its slowest rank's, and evenly divided."""
    balance = one.least_even
    even = even_share(balance)
    if even is None:
        return {}
    slowest = sum(max(ns or 0 for ns in step) for step in zip(*balance.work_ns, strict=True))
    return {"slowest_steps_ns_per_pass": slowest, "even_ns_per_pass": round(even)}


def _won(one: PhaseBalance, *, is_cpu: bool) -> str:
    times = _pass_times(one)
    if is_cpu or not times:
        return ""
    slowest, even = times["slowest_steps_ns_per_pass"], times["even_ns_per_pass"]
    return (
        f" Where each step lasts as long as on its slowest rank, attention of a {one.phase} pass takes "
        f"{duration(slowest)} instead of {duration(even)}."
    )


def _unlike_counting(facts: Facts, family: Family) -> Finding | None:
    """Ranks whose attention takes longer than their share of the scores: slower devices or kernels."""
    if facts.is_cpu:
        return None  # ranks share the cores
    known = [b for b in balances(family) if b.measured_ratio is not None and b.ideal_ratio]
    off = [b for b in known if (b.measured_ratio or 0) < _OFF * (b.ideal_ratio or 1)]
    if not off:
        return None
    worst = min(off, key=lambda b: (b.measured_ratio or 0) / (b.ideal_ratio or 1))
    slow = _slowest_per_score(worst)
    if slow is None:
        return None
    rank, times = slow
    evidence = {
        "phase": worst.phase,
        "measured_ratio": _rounded(worst.measured_ratio),
        "ideal_ratio": _rounded(worst.ideal_ratio),
        "slowest_rank": rank,
        "times_the_median_per_score": round(times, 3),
    }
    text = (
        f"Attention is less even than its layout: {worst.phase} is {percent(worst.measured_ratio)} even, "
        f"though counting gives {percent(worst.ideal_ratio)}. Rank {rank} takes {times:.2f} times as long "
        "per score as the median rank."
    )
    return finding(
        "ring-uneven-beyond-layout",
        "advice",
        text,
        where(family) | evidence,
        f"Look at rank {rank}'s device (clocks, temperature, other work on it) and at the attention kernel "
        "it runs for blocks with half a mask: the layout is not the reason.",
    )


def _slowest_per_score(one: PhaseBalance) -> tuple[int, float] | None:
    """The rank whose attention takes longest per score, and how many times the median that is."""
    balance = one.least_even
    if balance.scores is None:
        return None
    costs = [
        (sum(ns or 0 for ns in work) / sum(scores), rank)
        for rank, work, scores in zip(balance.ranks, balance.work_ns, balance.scores, strict=True)
        if None not in work and sum(scores)
    ]
    if len(costs) < 2:
        return None
    usual = sorted(cost for cost, _ in costs)[(len(costs) - 1) // 2]
    most, rank = max(costs)
    return (rank, most / usual) if usual else None


def _imbalance(facts: Facts, family: Family) -> Finding | None:
    """Waits for uneven attention of which the layout is not known: with a known one `_contiguous` tells."""
    whole = family.exposure()
    if facts.is_cpu or family.first.layout is not None or family.first.causal is False:
        return None
    if family.first.scheme not in (*MASK_SAVES, "all-gather"):
        return None
    known = [b for b in balances(family) if b.measured_ratio is not None and b.measured_ratio < _EVEN]
    if not known or not is_worth(facts, whole.imbalance_ns, whole):
        return None
    worst = min(known, key=lambda b: b.measured_ratio or 0)
    evidence = {
        "imbalance_ns": whole.imbalance_ns,
        "phase": worst.phase,
        "measured_ratio": _rounded(worst.measured_ratio),
    }
    evidence |= _pass_times(worst)
    return finding(
        "ring-work-uneven",
        "advice",
        f"{facts.mean(whole.imbalance_ns)} of {ways(family)} wait for ranks that have more attention to "
        f"compute: {worst.phase} is {percent(worst.measured_ratio)} even.",
        where(family) | evidence,
        "If the mask is causal, use a layout that divides it evenly: zigzag (rank i of p holds chunks i "
        "and 2p-1-i of 2p) has the same work on every rank. If documents are packed, give each rank the "
        "same sum of their squared lengths.",
    )


RULES: tuple[Callable[[Facts, Family], Finding | None], ...] = (_contiguous, _imbalance, _unlike_counting)
