"""One time axis for all ranks (DESIGN section 4: Clocks).

Ranks of one host share a clock. Between hosts the clock offset is the median difference of end times over
collectives that end together by construction, solved over the graph of hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from sp_profiler.analysis.arrivals import SEND_RECV
from sp_profiler.analysis.hosts import (
    SAME_CLOCK_NS,
    Differences,
    Link,
    differences,
    left_of,
    links,
    middle,
)
from sp_profiler.analysis.matching import Ends
from sp_profiler.analysis.results import Clock
from sp_profiler.analysis.sequence import rows_by_value
from sp_profiler.trace.tables import NONE, Int64

TIMES_SPREAD = 3
"""An offset is applied when it exceeds this many spreads; arrivals closer than this many are ties."""
_SEVERAL = 3  # sends that run at the same time as their counterparts are no chance
_FINEST_NS = 1_000  # devices start no two kernels closer than this, and old traces count in µs


@dataclass(frozen=True)
class Clocks:
    """The clocks of a run, by member."""

    clocks: tuple[Clock, ...]
    offset_ns: Int64  # to subtract from the member's times
    component: Int64  # members with different numbers share no time axis
    tie_ns: Int64  # arrivals closer than this are ties, by member
    assumed_one_host: bool  # nothing names a host, and the ends say that it is one


def hosts_of(
    run_json: Mapping[str, Any] | None, ranks: Sequence[int | None], told: Sequence[str | None]
) -> list[str | None]:
    """The host of each rank: run.json's word, else the trace's (`host_name`, the file's name).

    `localhost` is a name of every host, and so of none.
    """
    by_rank: dict[int, str] = {}
    entries = (run_json or {}).get("hosts")
    for entry in entries if isinstance(entries, list) else ():
        listed = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(listed, list) and entry.get("host"):
            by_rank |= {rank: str(entry["host"]) for rank in listed if isinstance(rank, int)}
    named = [
        by_rank.get(rank, host) if rank is not None else host for rank, host in zip(ranks, told, strict=True)
    ]
    return [None if (host or "").lower().partition(".")[0] in ("", "localhost") else host for host in named]


def solve_clocks(
    ends: Ends,
    instance: Int64,
    member_rank: Sequence[int | None],
    member_host: Sequence[str | None],
    member_base_ns: Sequence[int],
) -> Clocks:
    """Offsets of all hosts against the host of the lowest rank (the first member)."""
    near: set[tuple[int, int]] = set()
    if None in member_host:
        near = near_members(ends, instance, len(member_host))
    place, assumed = places_of(member_host, member_base_ns, near)
    found = differences_of_places(ends, instance, place)
    count = int(place.max(initial=-1)) + 1
    all_links = links(found)
    solved = solve(all_links, count)
    residual = _residuals(found, solved.moved, count)
    return clocks_of(solved, all_links, residual, place, member_rank, member_host, assumed)


def differences_of_places(ends: Ends, instance: Int64, place: Int64) -> Differences:
    """The differences of ends that tell of clocks, by the host (`place`) of each member."""
    usable = ends.together & ends.is_measured
    return differences(instance, usable, place[ends.member], ends.member, ends.end_ns)


def clocks_of(
    solution: Solution,
    all_links: Sequence[Link],
    residual: Sequence[int | None],
    place: Int64,
    member_rank: Sequence[int | None],
    member_host: Sequence[str | None],
    assumed: bool,
) -> Clocks:
    """The clocks of all members; `residual`: by host, of `residual_of`."""
    solved, moved = solution.hosts, solution.moved
    inner = {link.place: link for link in all_links if link.place == link.other}
    host_of: dict[int, str | None] = {}
    ranks: dict[int, set[int]] = defaultdict(set)
    for member, at in enumerate(place.tolist()):
        host_of[at] = host_of.get(at) or member_host[member]
        rank = member_rank[member]
        if rank is not None:
            ranks[at].add(rank)
    clocks: list[Clock] = []
    ties: list[int] = []
    for host, one in enumerate(solved):
        inside = inner.get(host)
        spread_ns = one.spread_ns if one.spread_ns is not None else inside.spread_ns if inside else None
        clocks.append(
            Clock(
                host=host_of[host],
                ranks=sorted(ranks[host]),
                offset_ns=one.offset_ns if one.is_connected else None,
                spread_ns=spread_ns,
                residual_ns=residual[host],
                applied=one.applied,
                collectives=one.samples or (inside.samples if inside else 0),
            )
        )
        widest = max(spread_ns or 0, inside.spread_ns if inside else 0)
        ties.append(max(TIMES_SPREAD * widest, residual[host] or 0, _FINEST_NS))
    return Clocks(
        clocks=tuple(clocks),
        offset_ns=np.array([moved[p] for p in place], np.int64),
        component=np.array([solved[p].component for p in place], np.int64),
        tie_ns=np.array([ties[p] for p in place], np.int64),
        assumed_one_host=assumed,
    )


def near_members(ends: Ends, instance: Int64, members: int) -> set[tuple[int, int]]:
    """Pairs of members whose clocks are one, as far as their ends tell."""
    found = differences_of_members(ends, instance, members)
    return are_near(links(found)) | always_meet(meetings(ends, instance))


def differences_of_members(ends: Ends, instance: Int64, members: int) -> Differences:
    """The differences of ends between members, those of send/recv too: good enough to recognise a clock,
    not to correct one."""
    p2p = ends.ops.index(SEND_RECV) if SEND_RECV in ends.ops else NONE
    usable = (ends.together | (ends.op == p2p)) & ends.is_measured
    place = np.arange(members, dtype=np.int64)
    return differences(instance, usable, place[ends.member], ends.member, ends.end_ns)


def are_near(found: Sequence[Link]) -> set[tuple[int, int]]:
    """The pairs whose ends agree."""
    return {(link.place, link.other) for link in found if abs(link.offset_ns) < SAME_CLOCK_NS}


def places_of(
    member_host: Sequence[str | None], member_base_ns: Sequence[int], near: Iterable[tuple[int, int]]
) -> tuple[Int64, bool]:
    """The host of each member, numbered in order of members, and whether that was assumed.

    Members without a named host share one when their base times are equal and their ends agree, or their
    sends and receives all run at the same time as their counterparts (`near`).
    """
    same = list(range(len(member_host)))  # members of one host point to each other, the last to itself

    def last(member: int) -> int:
        while same[member] != member:
            same[member] = member = same[same[member]]
        return member

    assumed = False
    for one, other in near:
        nameless = member_host[one] is None and member_host[other] is None
        if nameless and member_base_ns[one] == member_base_ns[other]:
            assumed = assumed or last(one) != last(other)
            same[last(one)] = last(other)
    numbers: dict[object, int] = {}
    label = [last(member) if host is None else host for member, host in enumerate(member_host)]
    return np.array([numbers.setdefault(one, len(numbers)) for one in label], np.int64), assumed


def always_meet(found: Mapping[tuple[int, int], tuple[int, int]]) -> set[tuple[int, int]]:
    """The pairs of whose sends to each other, several of them, all run at the same time."""
    return {pair for pair, (met, sends) in found.items() if sends >= _SEVERAL and met == sends}


def meetings(ends: Ends, instance: Int64) -> dict[tuple[int, int], tuple[int, int]]:
    """Pairs of members that send to each other: how many of their sends run at the same time as the
    counterpart, and of how many. The numbers of several groups add up."""
    if SEND_RECV not in ends.ops:
        return {}
    rows = np.flatnonzero((ends.op == ends.ops.index(SEND_RECV)) & (instance >= 0) & ends.is_measured)
    rows = rows[np.lexsort((ends.member[rows], instance[rows]))]
    pairs = np.flatnonzero(np.diff(instance[rows]) == 0)
    one, two = rows[pairs], rows[pairs + 1]
    meets = (ends.start_ns[one] <= ends.end_ns[two]) & (ends.start_ns[two] <= ends.end_ns[one])
    found: dict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for a, b, together in zip(
        ends.member[two].tolist(), ends.member[one].tolist(), meets.tolist(), strict=True
    ):
        met, sends = found[a, b]
        found[a, b] = met + together, sends + 1
    return dict(found)


@dataclass(frozen=True)
class Solved:
    """The clock of one host; `component` is named by its first host."""

    offset_ns: int = 0
    spread_ns: int | None = None
    samples: int = 0
    applied: bool = False
    is_connected: bool = True
    component: int = 0


@dataclass(frozen=True)
class Solution:
    """The clocks of all hosts."""

    hosts: tuple[Solved, ...]

    @property
    def moved(self) -> list[int]:
        """What is subtracted from the times of each host."""
        return [one.offset_ns if one.applied else 0 for one in self.hosts]


def solve(all_links: Sequence[Link], count: int) -> Solution:
    """Offsets over the graph: exact along the best tree, then corrected by least squares over all edges."""
    edges = [link for link in all_links if link.place != link.other]
    tree, component = _tree(edges, count)
    offset = [0] * count
    variance = [0] * count
    samples = [0] * count
    for root in sorted(set(component)):
        pending = [root]
        seen = {root}
        while pending:
            at = pending.pop()
            for link in tree[at]:
                other, ahead = (
                    (link.place, link.offset_ns) if link.other == at else (link.other, -link.offset_ns)
                )
                if other not in seen:
                    seen.add(other)
                    offset[other] = offset[at] + ahead
                    variance[other] = variance[at] + link.spread_ns**2
                    samples[other] = link.samples
                    pending.append(other)
    for host, correction in enumerate(_corrections(edges, offset, component)):
        offset[host] += correction
    solved: list[Solved] = []
    for host in range(count):
        root = component[host]
        if host == root:
            solved.append(Solved(is_connected=root == 0, component=root))
            continue
        spread_ns = isqrt(variance[host])
        applied = abs(offset[host]) > TIMES_SPREAD * spread_ns
        solved.append(Solved(offset[host], spread_ns, samples[host], applied, root == 0, root))
    return Solution(tuple(solved))


def _tree(edges: Sequence[Link], count: int) -> tuple[dict[int, list[Link]], list[int]]:
    """The spanning forest with the surest edges, and each host's component, named by its first host."""
    component = list(range(count))
    tree: dict[int, list[Link]] = defaultdict(list)
    for link in sorted(edges, key=lambda e: (e.spread_ns / e.samples**0.5, -e.samples, e.place, e.other)):
        one, other = component[link.place], component[link.other]
        if one != other:
            component = [min(one, other) if c in (one, other) else c for c in component]
            tree[link.place].append(link)
            tree[link.other].append(link)
    return tree, component


def _corrections(edges: Sequence[Link], offset: Sequence[int], component: Sequence[int]) -> list[int]:
    """What least squares adds to the tree's offsets: zero where the edges agree."""
    count = len(offset)
    rest = [edge.offset_ns - (offset[edge.place] - offset[edge.other]) for edge in edges]
    if not any(rest):
        return [0] * count
    laplacian, right = np.zeros((count, count)), np.zeros(count)
    for edge, left in zip(edges, rest, strict=True):
        weight = edge.samples / max(edge.spread_ns, _FINEST_NS) ** 2 * _FINEST_NS**2
        for one, other, sign in ((edge.place, edge.other, 1), (edge.other, edge.place, -1)):
            laplacian[one, one] += weight
            laplacian[one, other] -= weight
            right[one] += sign * weight * left
    free = np.array([host for host in range(count) if component[host] != host], np.int64)
    result = [0] * count
    solution = np.linalg.solve(laplacian[np.ix_(free, free)], right[free])
    for host, value in zip(free.tolist(), solution.tolist(), strict=True):
        result[host] = round(value)
    return result


def _residuals(found: Differences, moved: Sequence[int], count: int) -> list[int | None]:
    """The median disagreement of ends that is left at each host, by its differences to others or inside."""
    left = left_of(found, moved)
    result: list[int | None] = [None] * count
    for host, rows in rows_by_value(found.place).items():
        outside = rows[found.other[rows] != host]
        result[host] = middle(left[outside if len(outside) else rows])
    return result
