"""Communities: the rows of all ranks that can meet, each small enough for one task.

Collectives of different ranks can be the same one only within a process group, whatever their ranks call it,
or where nothing names their group. So the arrivals of a rank are kept by community, and a task that matches
one community opens of each member's table only its rows. What travels is bounded: a `CommunityPart` for each
group of a rank, with counts. Rank lists stay on disk, for a group of all ranks has as many numbers as the run
has ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.arrivals import SEND_RECV, Arrivals
from sp_profiler.classify.groups import group_key
from sp_profiler.classify.tables import Group
from sp_profiler.fleet.work import Table, Work
from sp_profiler.trace.tables import NONE, Int64

GROUPLESS = "groupless"
"""The community of all collectives whose group nothing names."""

COLUMNS = ("source", "figure", "device", "start_ns", "end_ns", "op", "group", "bytes", "seq", "is_measured")
"""The rows of a table of arrivals; `source` is the row of the rank's own arrivals."""

_LONG = 64  # ranks of a group whose list is kept once for all that are in it


@dataclass(frozen=True)
class DeviceRows:
    """The rows of one device of a rank in one group: how many, how many carry `Seq`, and which."""

    device: int
    rows: int
    with_seq: int
    first_seq: int  # NONE where none carries one
    last_seq: int
    numbers: str  # a digest of the set of `Seq`: equal for equal sets


@dataclass(frozen=True)
class CommunityPart:
    """What a rank has of one group, in as many bytes whatever the trace."""

    community: str
    description: str  # how this rank calls the group
    has_ranks: bool  # the group has a list of ranks
    has_sends: bool
    devices: tuple[DeviceRows, ...]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.devices)


@dataclass(frozen=True)
class RankIn:
    """What the stages across ranks know of a rank.

    `number` names its tables; `parts` are those of `split_arrivals`, none where a trace shows no
    communication; host and base time are those of its `Arrivals`.
    """

    number: int
    rank: int | None
    host: str | None
    base_time_ns: int
    parts: tuple[CommunityPart, ...]


@dataclass(frozen=True)
class Community:
    """One community. `places`: of its ranks in the sequence of `RankIn`, ascending."""

    key: str
    order: int  # communities are numbered by the first rank that shows them
    places: tuple[int, ...]
    parts: tuple[CommunityPart, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def is_sliceable(self) -> bool:
        """Whether all of it is one sequence of numbered collectives of a group whose ranks are known."""
        return len(self.places) == len(self.parts) and all(
            part.has_ranks and not part.has_sends and all(d.with_seq == d.rows for d in part.devices)
            for part in self.parts
        )

    @property
    def may_differ(self) -> bool | None:
        """Whether a member lacks numbers that another has; None where the parts do not tell."""
        one_sequence = len(self.places) == len(self.parts) and len({p.description for p in self.parts}) == 1
        if not one_sequence or any(p.has_sends or p.community == GROUPLESS for p in self.parts):
            return None
        return len({d.numbers for part in self.parts for d in part.devices if d.with_seq}) > 1


def communities(ranks: Sequence[RankIn]) -> list[Community]:
    """The communities of a run, in order of the first rank that shows them."""
    found: dict[str, tuple[dict[int, None], list[CommunityPart]]] = {}
    for place, one in enumerate(ranks):
        for part in one.parts:
            places, parts = found.setdefault(part.community, ({}, []))
            places[place] = None
            parts.append(part)
    return [
        Community(key, order, tuple(places), tuple(parts))
        for order, (key, (places, parts)) in enumerate(found.items())
    ]


# --- on disk -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredGroup:
    """A group as tables hold it: `ranks` are in a table of their own where there are many."""

    community: str
    key: str | None  # None: it is `group_key` of the rest
    description: str
    ranks: tuple[int, ...] | None
    size: int | None
    backend: str | None


@dataclass(frozen=True)
class StoredFacts:
    """What a rank's table of arrivals says besides its rows. `groups` are those of `Arrivals`."""

    ops: tuple[str, ...]
    groups: tuple[StoredGroup, ...]
    communities: tuple[str, ...]  # the k-th has the arrays rows-k and peers-k
    host: str | None
    base_time_ns: int
    is_cpu: bool


def split_arrivals(work: Work, number: int, arrivals: Arrivals | None) -> tuple[CommunityPart, ...]:
    """Keep the arrivals of rank `number` in the work folder, by community (table `arrivals/<number>`), and
    return what travels. Raises OSError."""
    if arrivals is None or not len(arrivals):
        return ()
    names = [_name_of(group) for group in arrivals.groups]
    of_group = np.array([*names, GROUPLESS])  # the last: of no group (-1)
    order = dict.fromkeys(of_group[np.unique(arrivals.group)].tolist())
    row_community = of_group[arrivals.group]
    row_of_peer = row_community[arrivals.peer_row]
    arrays: dict[str, np.ndarray] = {}
    rows = np.stack([_column(arrivals, name) for name in COLUMNS])
    for k, name in enumerate(order):
        mine = np.flatnonzero(row_community == name)
        arrays[f"rows-{k}"] = rows[:, mine]
        peers = row_of_peer == name
        arrays[f"peers-{k}"] = np.stack(
            (np.searchsorted(mine, arrivals.peer_row[peers]), arrivals.peer[peers])
        )
    stored = tuple(_stored(work, one, name) for one, name in zip(arrivals.groups, names, strict=True))
    facts = StoredFacts(
        arrivals.ops, stored, tuple(order), arrivals.host, arrivals.base_time_ns, arrivals.is_cpu
    )
    work.save(f"arrivals/{number:05d}", arrays, facts)
    return tuple(_part(arrivals, code, of_group[code].item()) for code in np.unique(arrivals.group).tolist())


def _name_of(group: Group) -> str:
    """Groups of the same ranks are one community, whatever their description; else the key tells."""
    told = ",".join(map(str, group.ranks)) if group.ranks else f"key:{group.key}"
    return hashlib.blake2b(told.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _column(arrivals: Arrivals, name: str) -> Int64:
    if name == "source":
        return np.arange(len(arrivals), dtype=np.int64)
    return getattr(arrivals, name).astype(np.int64)


def _stored(work: Work, group: Group, community: str) -> StoredGroup:
    ranks: tuple[int, ...] | None = group.ranks
    if len(group.ranks) > _LONG:
        ranks = None
        if not work.path(f"groups/{community}.npz").exists():
            work.save(f"groups/{community}", {"ranks": np.array(group.ranks, np.int64)})
    key = None if group.key == group_key(group.description, group.ranks, group.size) else group.key
    return StoredGroup(community, key, group.description, ranks, group.size, group.backend)


def _part(arrivals: Arrivals, code: int, community: str) -> CommunityPart:
    mine = np.flatnonzero(arrivals.group == code)
    group = arrivals.groups[code] if code >= 0 else None
    sends = arrivals.ops.index(SEND_RECV) if SEND_RECV in arrivals.ops else NONE
    return CommunityPart(
        community=community,
        description="" if group is None else group.description,
        has_ranks=group is not None and bool(group.ranks),
        has_sends=bool((arrivals.op[mine] == sends).any()),
        devices=tuple(
            _device_rows(int(device), arrivals.seq[mine[arrivals.device[mine] == device]])
            for device in np.unique(arrivals.device[mine])
        ),
    )


def _device_rows(device: int, seq: Int64) -> DeviceRows:
    numbers = np.unique(seq[seq >= 0])
    return DeviceRows(
        device=device,
        rows=len(seq),
        with_seq=int((seq >= 0).sum()),
        first_seq=int(numbers[0]) if len(numbers) else NONE,
        last_seq=int(numbers[-1]) if len(numbers) else NONE,
        numbers=hashlib.blake2b(numbers.tobytes(), digest_size=16).hexdigest(),
    )


class Groups:
    """The groups of tables of arrivals, each list of ranks read once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._ranks: dict[str, tuple[int, ...]] = {}
        self._made: dict[StoredGroup, Group] = {}

    def of(self, stored: StoredGroup) -> Group:
        if stored not in self._made:
            ranks = self._ranks_of(stored)
            key = stored.key if stored.key is not None else group_key(stored.description, ranks, stored.size)
            self._made[stored] = Group(key, stored.description, ranks, stored.size, stored.backend)
        return self._made[stored]

    def _ranks_of(self, stored: StoredGroup) -> tuple[int, ...]:
        if stored.ranks is not None:
            return stored.ranks
        if stored.community not in self._ranks:
            with self._work.open(f"groups/{stored.community}") as table:
                self._ranks[stored.community] = tuple(table["ranks"].tolist())
        return self._ranks[stored.community]


def part_of(table: Table, community: str, groups: Groups) -> Arrivals:
    """The arrivals of one rank in one community, from its open table; `group` counts among those of the
    community. `source` holds the rows of the rank's own arrivals."""
    facts = table.facts(StoredFacts)
    k = facts.communities.index(community)
    rows = dict(zip(COLUMNS, table[f"rows-{k}"], strict=True))
    peer_row, peer = table[f"peers-{k}"]
    mine = [i for i, one in enumerate(facts.groups) if one.community == community]
    code = np.full(len(facts.groups) + 1, NONE, np.int64)
    code[mine] = np.arange(len(mine))
    rows["group"] = code[rows["group"]]
    measured = rows.pop("is_measured").astype(np.bool_)
    return Arrivals(
        **rows,
        is_measured=measured,
        ops=facts.ops,
        groups=tuple(groups.of(facts.groups[i]) for i in mine),
        peer_row=peer_row,
        peer=peer,
        host=facts.host,
        base_time_ns=facts.base_time_ns,
        is_cpu=facts.is_cpu,
    )
