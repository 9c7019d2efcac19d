"""The collectives of all ranks, matched and on one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp_profiler.analysis.arrivals import UNKNOWN_OP, Arrivals
from sp_profiler.analysis.clocks import Clocks, hosts_of, solve_clocks
from sp_profiler.analysis.hosts import Potentials
from sp_profiler.analysis.matching import Ends, Key, Matched, ends_of, match, members_of
from sp_profiler.analysis.results import RankResult
from sp_profiler.analysis.skew import Instances, Skew, instances_of, skew_of
from sp_profiler.trace.tables import NONE, Bool, Int64

NO_GROUP = "unknown"
"""How reports call the group of collectives without one."""


@dataclass(frozen=True)
class Joined:
    """The collectives of a run, rank beside rank: from its arrivals to its skew.

    Rows are those of the arrivals of all ranks one after the other. Instances are numbered as in `matched`,
    keys as in `ends`.
    """

    taking: tuple[int, ...]  # of each of `arrivals`, which result it belongs to
    arrivals: tuple[Arrivals, ...]
    first_row: Int64  # where the rows of each of `arrivals` begin, and where all end
    traced: frozenset[int]  # ranks that have a trace here
    member_rank: tuple[int | None, ...]
    ends: Ends
    matched: Matched
    clocks: Clocks
    instances: Instances
    skew: Skew
    chosen: Bool  # rows inside the chosen windows
    key_of_row: Int64
    key_of: Int64  # by instance
    size: Int64  # ranks that an instance has
    shown: Bool  # instances of which some rank has its part inside a window
    needed: Int64  # by key: ranks that an instance has when none is missing
    needed_of_run: Int64  # ... and how many of those have a trace here
    users: tuple[tuple[int, ...], ...]  # by key: ranks that show it

    @property
    def lacking(self) -> Int64:
        """Instances that a rank with a trace lacks."""
        return np.flatnonzero(self.shown & (self.size < self.needed_of_run[self.key_of]))

    @property
    def assumed_size(self) -> int | None:
        """Ranks of the group that collectives without one are taken for; None with one rank alone."""
        sizes = [int(n) for n, key in zip(self.needed, self.ends.keys, strict=True) if key.is_assumed]
        return max(sizes, default=None) if len(self.traced) > 1 else None

    def op(self, code: int) -> str | None:
        name = self.ends.ops[code]
        return None if name == UNKNOWN_OP else name


def join(
    results: Sequence[RankResult],
    taking: Sequence[int],
    all_ranks: Sequence[int | None],
    run_json: Mapping[str, Any] | None,
    world_size: int | None,
) -> Joined:
    """Match the collectives of the results in `taking`, align their clocks, and see who waited for whom."""
    arrivals = [one for i in taking if (one := results[i].arrivals) is not None]
    ranks = [all_ranks[i] for i in taking]
    traced = frozenset(rank for rank in all_ranks if rank is not None)
    members = members_of(arrivals, ranks)
    hosts = hosts_of(run_json, ranks, [one.host for one in arrivals])
    member_rank = tuple(ranks[i] for i, _ in members)
    member_host = [hosts[i] for i, _ in members]
    ends = ends_of(arrivals, ranks, members)
    matched = match(ends, member_rank, Potentials(member_host))
    base = [arrivals[i].base_time_ns for i, _ in members]
    clocks = solve_clocks(ends, matched.instance, member_rank, member_host, base)
    return measured(taking, arrivals, traced, member_rank, ends, matched, clocks, world_size)


def measured(
    taking: Sequence[int],
    arrivals: Sequence[Arrivals],
    traced: frozenset[int],
    member_rank: Sequence[int | None],
    ends: Ends,
    matched: Matched,
    clocks: Clocks,
    world_size: int | None,
) -> Joined:
    """Who waited for whom, of collectives that are matched and clocks that are known.

    It serves all collectives of a run, or those of one group or of some instances of it; `traced` and
    `world_size` are those of the run.
    """
    instance, count = matched.instance, matched.count
    instances = instances_of(ends, instance, count, clocks)
    shared = instance >= 0
    key_of = np.full(count, NONE, np.int64)
    key_of[instance[shared]] = ends.key[shared]
    users = _users(ends, member_rank)
    needed, needed_of_run = _needed(ends.keys, users, traced, world_size)
    size = _distinct_ranks(instance[shared], ends.member[shared], member_rank, count)
    first_row = np.cumsum([0, *(len(one) for one in arrivals)])
    chosen = np.concatenate([one.figure for one in arrivals]) >= 0
    key_of_row = np.full(len(chosen), NONE, np.int64)
    key_of_row[ends.row] = ends.key
    shown = np.zeros(count, np.bool_)
    shown[instance[shared & chosen[ends.row]]] = True
    return Joined(
        taking=tuple(taking),
        arrivals=tuple(arrivals),
        first_row=first_row,
        traced=traced,
        member_rank=tuple(member_rank),
        ends=ends,
        matched=matched,
        clocks=clocks,
        instances=instances,
        skew=skew_of(ends, instance, instances, clocks, size >= needed[key_of], len(chosen)),
        chosen=chosen,
        key_of_row=key_of_row,
        key_of=key_of,
        size=size,
        shown=shown,
        needed=needed,
        needed_of_run=needed_of_run,
        users=users,
    )


def _users(ends: Ends, member_rank: Sequence[int | None]) -> tuple[tuple[int, ...], ...]:
    """By key the ranks that show it, sorted; a rank nobody knows is left out."""
    users: list[set[int]] = [set() for _ in ends.keys]
    width = max(len(member_rank), 1)
    for pair in np.unique(ends.key * width + ends.member).tolist():
        rank = member_rank[pair % width]
        if rank is not None:
            users[pair // width].add(rank)
    return tuple(tuple(sorted(one)) for one in users)


def _needed(
    keys: Sequence[Key],
    users: Sequence[tuple[int, ...]],
    traced: frozenset[int],
    world_size: int | None,
) -> tuple[Int64, Int64]:
    """By key: how many ranks an instance needs, and how many of them have a trace here."""
    needed, of_run = [], []
    for key, shown_by in zip(keys, users, strict=True):
        if key.expected:
            needed.append(len(key.expected))
            of_run.append(len(traced.intersection(key.expected)))
            continue
        whole = world_size if key.is_assumed else key.size
        if whole is None:  # a rank alone does not tell who else takes part
            whole = 2 if len(traced) < 2 else 0
        needed.append(max(whole, len(shown_by)))
        of_run.append(len(shown_by))
    return np.array(needed, np.int64), np.array(of_run, np.int64)


def _distinct_ranks(instance: Int64, member: Int64, member_rank: Sequence[int | None], count: int) -> Int64:
    """How many different ranks each instance has (a rank may take part with several devices)."""
    if len(set(member_rank)) == len(member_rank):
        return np.bincount(instance, minlength=count).astype(np.int64)
    codes = {rank: code for code, rank in enumerate(dict.fromkeys(member_rank))}
    rank = np.array([codes[one] for one in member_rank], np.int64)[member]
    pairs = np.unique(instance * len(codes) + rank)
    return np.bincount(pairs // len(codes), minlength=count).astype(np.int64)
