"""Which process group of one run is which of the other: by key, else by name, else by what it is for.

`tp[0,1]` of two ranks and `tp[0,1,2,3]` of four are both `tp`; `default_pg[0,1]` that carries gradients of
activations and `tp[0,1]` that does too are matched by that role where each is the only one left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sp_profiler.comparing.side import Side

MatchedBy = Literal["key", "name", "role"]
NO_GROUP = "unknown group"
_ROLES = {
    "activation": "tensor parallel", "dgrad": "tensor parallel", "input-regather": "tensor parallel",
    "param-grad": "data parallel", "param-gather": "data parallel",
    "kv": "context parallel", "dkv": "context parallel", "layout": "context parallel",
    "pipeline": "pipeline", "expert": "expert",
}  # fmt: skip


@dataclass(frozen=True)
class Match:
    """Groups of both runs under one name. One side is empty where the other run has none like it."""

    name: str
    base: tuple[str, ...]
    here: tuple[str, ...]
    by: MatchedBy | None


class Groups:
    """The matches, and the common name of each key of either run."""

    def __init__(self, matches: Sequence[Match]) -> None:
        self.matches = matches
        self._names = (
            {key: match.name for match in matches for key in match.base},
            {key: match.name for match in matches for key in match.here},
        )

    def name(self, place: int, key: str | None) -> str:
        """The common name of a group of the base (`place` 0) or of the other run (1)."""
        return NO_GROUP if key is None else self._names[place].get(key, key)


def match_groups(base: Side, here: Side) -> Groups:
    """Every group of both runs in one match."""
    one, two = _keys(base), _keys(here)
    matches = [Match(key, (key,), (key,), "key") for key in one if key in two]
    only_one = [key for key in one if key not in two]
    only_two = [key for key in two if key not in one]
    # A name whose groups are the same in part, such as dp[0,2] of two halves, is matched whole.
    shared = {described(key) for key in only_one} & {described(key) for key in only_two}
    for name in sorted(shared):
        mine, theirs = ([key for key in keys if described(key) == name] for keys in (one, two))
        matches = [match for match in matches if described(match.name) != name]
        matches.append(Match(name, tuple(mine), tuple(theirs), "name"))
    left = ([key for key in keys if described(key) not in shared] for keys in (only_one, only_two))
    return Groups([*matches, *_by_role(base, here, *left)])


def _by_role(base: Side, here: Side, one: list[str], two: list[str]) -> list[Match]:
    """What is left, by role where a description of each run is the only one of it."""
    roles = [_roles(side, keys) for side, keys in ((base, one), (here, two))]
    found: list[Match] = []
    for role in sorted(roles[0].keys() & roles[1].keys()):
        mine, theirs = roles[0][role], roles[1][role]
        if len({described(key) for key in mine}) == len({described(key) for key in theirs}) == 1:
            found.append(Match(role, tuple(mine), tuple(theirs), "role"))
    used = {key for match in found for key in match.base}, {key for match in found for key in match.here}
    found += [Match(key, (key,), (), None) for key in one if key not in used[0]]
    return found + [Match(key, (), (key,), None) for key in two if key not in used[1]]


def _roles(side: Side, keys: Iterable[str]) -> dict[str, list[str]]:
    """The groups by the role that most of their communication has."""
    wanted = set(keys)
    kinds, place = side.collectives.kinds("group", "purpose")
    time = side.collectives.numbers("dur_ns").or_zero()
    sums: dict[str, dict[str, int]] = {}
    for code, (group, purpose) in enumerate(kinds):
        if group in wanted and purpose in _ROLES:
            of_group = sums.setdefault(group, {})
            of_group[_ROLES[purpose]] = of_group.get(_ROLES[purpose], 0) + int(time[place == code].sum())
    out: dict[str, list[str]] = {}
    for group, by_role in sums.items():
        out.setdefault(max(by_role, key=lambda role: by_role[role]), []).append(group)
    return out


def _keys(side: Side) -> list[str]:
    """The groups of a run, in the order of its report, then those that only its figures name."""
    totals = side.report.totals
    return list(dict.fromkeys([*(group.group for group in side.report.groups), *totals.exposed_by_group_ns]))


def described(key: str) -> str:
    """`tp[0,1]` -> `tp`."""
    return key.partition("[")[0] or key
