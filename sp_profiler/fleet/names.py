"""Names of process groups where thousands of ranks would make them long, or many."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from sp_profiler.classify.groups import parse_group_key
from sp_profiler.report.format import stretches

LONG = 64
"""Ranks in a group's key; of more the key names them in stretches."""
_LONGEST = 160  # characters of such stretches; beyond that a number and a digest stand for the ranks
_STRETCH = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_SHORT = re.compile(r"(?P<description>.*)\[(?P<inside>[^\[\]]*)\]", re.DOTALL)
_COUNTED = re.compile(r"(\d+) ranks(?:, \w+)?")


@lru_cache(maxsize=1 << 14)
def short_name(key: str) -> str:
    """The key of a group as a fleet's report has it: `dp[0-1016:8]` for every eighth of 1,024 ranks.

    Groups of at most `LONG` ranks keep their key. Different groups have different names.
    """
    parsed = parse_group_key(key)
    if parsed is None or len(parsed[1]) <= LONG:
        return key
    description, ranks = parsed
    inside = stretches(ranks)
    if len(inside) > _LONGEST:
        digest = hashlib.sha256(key.encode()).hexdigest()[:8]
        inside = f"{len(ranks)} ranks, {digest}"
    return f"{description}[{inside}]"


def ranks_in(name: str) -> list[int] | None:
    """The ranks that a name of `short_name` tells; None where it does not."""
    found = _SHORT.fullmatch(name)
    if found is None:
        return None
    ranks: list[int] = []
    for part in found["inside"].split(","):
        stretch = _STRETCH.fullmatch(part)
        if stretch is None:
            return None
        first, last, step = stretch.groups()
        ranks += range(int(first), int(last or first) + 1, int(step or 1))
    return ranks


@lru_cache(maxsize=1 << 14)
def pattern(name: str) -> str:
    """What groups of one kind have in common: `tp[8 ranks]` of `tp[0,1,2,3,4,5,6,7]`."""
    found = _SHORT.fullmatch(name)
    if found is None:
        return name
    ranks = ranks_in(name)
    counted = _COUNTED.fullmatch(found["inside"])
    size = len(ranks) if ranks is not None else int(counted[1]) if counted is not None else None
    if size is None:
        return name
    return f"{found['description']}[{size} rank{'' if size == 1 else 's'}]"
