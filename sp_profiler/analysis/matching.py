"""Which collectives of different ranks are the same one (DESIGN section 4: Across ranks).

An instance is matched by its group and `Seq` where all its ranks carry a `Seq` that agrees with operations,
sizes and times (`sequence.py`), else by order within the group (`order.py`). A send/recv is matched with each
of its peers.

Everything works on *ends*: a collective of one rank has one, a send/recv one for each peer. Ends that share
a key (the group, or the pair) on different members (rank and device) are candidates for one instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sp_profiler.analysis.arrivals import SEND_RECV, Arrivals
from sp_profiler.analysis.hosts import SAME_CLOCK_NS, Potentials
from sp_profiler.analysis.line import Line
from sp_profiler.analysis.order import align, estimate_shift
from sp_profiler.analysis.pairs import meet
from sp_profiler.analysis.sequence import (
    NEARLY_ALL,
    by_seq,
    has_seq,
    join_equal_clocks,
    line_of,
    rows_by_value,
    sends_agree,
    slices,
    some_seq_differ,
    times_agree,
    times_match_more,
)
from sp_profiler.classify.tables import Group
from sp_profiler.trace.tables import NONE, Bool, Int64

ENDS_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""No rank can leave these before every rank has arrived, and all leave together."""
_SIZES_DIFFER = frozenset({"all_to_all", "gather", "scatter"})  # between ranks, legally
_ORDER_BY_OP = "?"  # key of collectives without a group: those of one operation are taken for one sequence


@dataclass(frozen=True)
class Key:
    """What identifies a sequence of instances: a process group, or the two ends of send/recv."""

    label: str | None  # the group's key
    expected: tuple[int, ...]  # ranks that take part; empty when the trace does not tell
    size: int | None
    is_assumed: bool  # the trace names no group: all ranks that show the operation are assumed to take part
    is_known: bool = True  # False: nobody knows who waits for whom (send/recv without peers)


@dataclass(frozen=True)
class Ends:
    """All ends of a run; int64 columns."""

    row: Int64  # row of the arrivals of all ranks, one after the other
    member: Int64  # index of (rank, device)
    key: Int64  # index into `keys`
    op: Int64  # index into `ops`
    token: Int64  # (op, size): what must agree between ranks; NONE for a size that may differ or is unknown
    seq: Int64
    start_ns: Int64
    end_ns: Int64
    together: Bool  # the operation ends together by construction
    is_measured: Bool
    ops: tuple[str, ...]
    keys: tuple[Key, ...]

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class BySeq:
    """What `Seq` matched, and what is left for order."""

    instance: Int64  # as in `Matched`
    count: int
    believed: tuple[int, ...]  # keys whose Seq agrees with operations, sizes and times
    inconsistent: tuple[int, ...]
    ambiguous: tuple[int, ...]
    rest: tuple[tuple[int, Int64], ...]  # keys to match by order, and their ends


@dataclass(frozen=True)
class Matched:
    """`instance` of each end: equal numbers are one collective. NONE where nothing can be matched."""

    instance: Int64
    count: int
    inconsistent: tuple[int, ...]  # keys whose Seq contradicts operations, sizes or times
    by_order: tuple[int, ...]  # keys matched by order
    ambiguous: tuple[int, ...]  # keys that stand for more ranks than the group has


def members_of(arrivals: Sequence[Arrivals], ranks: Sequence[int | None]) -> list[tuple[int, int]]:
    """(index of the result, device) of every device with communication, in order of ranks."""
    order = sorted(range(len(arrivals)), key=lambda i: (ranks[i] is None, ranks[i] or 0, i))
    return [(i, int(device)) for i in order for device in np.unique(arrivals[i].device)]


def ends_of(
    arrivals: Sequence[Arrivals], ranks: Sequence[int | None], members: Sequence[tuple[int, int]]
) -> Ends:
    """The ends of all ranks, sorted by (key, member, start); `row` counts through the ranks as given."""
    table = _Keys(arrivals, ranks)
    member_of = {pair: number for number, pair in enumerate(members)}
    parts = [_ends_of_rank(i, one, ranks[i], member_of, table) for i, one in enumerate(arrivals)]
    before = np.cumsum([0, *(len(one) for one in arrivals)])
    for part, first in zip(parts, before.tolist(), strict=False):
        part["row"] = part["row"] + first
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    ops = table.ops
    together = np.array([op in ENDS_TOGETHER for op in ops], np.bool_)
    differs = np.array([op in _SIZES_DIFFER for op in ops], np.bool_)
    op, size = columns["op"], columns.pop("bytes")
    sizes, code = np.unique(size, return_inverse=True)
    token = np.where((size == NONE) | differs[op], NONE, op * len(sizes) + code)
    order = np.lexsort((columns["end_ns"], columns["start_ns"], columns["member"], columns["key"]))
    columns = {name: column[order] for name, column in columns.items()}
    return Ends(
        **columns,
        token=token[order],
        together=together[columns["op"]],
        ops=tuple(ops),
        keys=tuple(table.keys),
    )


class _Keys:
    """Numbers the operations and keys of a run."""

    def __init__(self, arrivals: Sequence[Arrivals], ranks: Sequence[int | None]) -> None:
        self.ops: list[str] = []
        self.keys: list[Key] = []
        self._ops: dict[str, int] = {}
        self._keys: dict[tuple[object, ...], int] = {}
        self._names = _one_name_per_group(arrivals, ranks)

    def op(self, name: str) -> int:
        if name not in self._ops:
            self._ops[name] = len(self.ops)
            self.ops.append(name)
        return self._ops[name]

    def of(self, group: Group | None, op: str, pair: tuple[int, int] | None) -> int:
        name = None if group is None else self._names.get((group.description, group.ranks), group.key)
        kind = _ORDER_BY_OP + op if group is None else "p2p" if op == SEND_RECV else ""
        identity = (name, kind, pair)
        if identity not in self._keys:
            self._keys[identity] = len(self.keys)
            self.keys.append(self._key(group, op, pair))
        return self._keys[identity]

    def _key(self, group: Group | None, op: str, pair: tuple[int, int] | None) -> Key:
        label = None if group is None else group.key
        if pair is not None:
            return Key(label, pair, 2, False)
        alone = op != SEND_RECV
        if group is None:
            return Key(None, (), None, True, alone)
        return Key(label, group.ranks, group.size or len(group.ranks) or None, False, alone)


def _one_name_per_group(
    arrivals: Sequence[Arrivals], ranks: Sequence[int | None]
) -> dict[tuple[str, tuple[int, ...]], str]:
    """Names of groups that are described differently by their ranks: the same ranks, no rank in both."""
    users: dict[tuple[int, ...], dict[Group, set[int | None]]] = {}
    for one, rank in zip(arrivals, ranks, strict=True):
        for group in one.groups:
            if group.ranks:
                users.setdefault(group.ranks, {}).setdefault(group, set()).add(rank)
    names: dict[tuple[str, tuple[int, ...]], str] = {}
    for members, by_group in users.items():
        described = {group.description: group.key for group in by_group}
        seen = [rank for used in by_group.values() for rank in used]
        if len(described) > 1 and len(seen) == len(set(seen)):
            described = dict.fromkeys(described, next(iter(described.values())))
        names |= {(description, members): key for description, key in described.items()}
    return names


def _ends_of_rank(
    index: int,
    one: Arrivals,
    rank: int | None,
    member_of: dict[tuple[int, int], int],
    table: _Keys,
) -> dict[str, Any]:
    """Columns of the ends of one rank; `row` counts within the rank."""
    ops = np.array([table.op(name) for name in one.ops], np.int64)
    rows = np.arange(len(one), dtype=np.int64)
    alone = np.ones(len(one), np.bool_)
    alone[one.peer_row] = False
    key = np.full(len(one), NONE, np.int64)
    combined = one.group * max(len(one.ops), 1) + one.op
    for code in np.unique(combined[alone]).tolist():
        group, op = divmod(code, max(len(one.ops), 1))
        named = one.groups[group] if group >= 0 else None
        key[alone & (combined == code)] = table.of(named, one.ops[op], None)
    pair_key = np.full(len(one.peer), NONE, np.int64)
    for group, peer in sorted(set(zip(one.group[one.peer_row].tolist(), one.peer.tolist(), strict=True))):
        pair = (min(peer, rank or 0), max(peer, rank or 0))
        chosen = (one.group[one.peer_row] == group) & (one.peer == peer)
        pair_key[chosen] = table.of(one.groups[group] if group >= 0 else None, SEND_RECV, pair)
    row = np.concatenate([rows[alone], one.peer_row])
    devices = np.array([member_of.get((index, int(d)), NONE) for d in np.unique(one.device)], np.int64)
    member = devices[np.searchsorted(np.unique(one.device), one.device)] if len(one) else rows
    return {
        "row": row,
        "member": member[row],
        "key": np.concatenate([key[alone], pair_key]),
        "op": ops[one.op[row]] if len(ops) else row,
        "bytes": one.bytes[row],
        "seq": one.seq[row],
        "start_ns": one.start_ns[row],
        "end_ns": one.end_ns[row],
        "is_measured": one.is_measured[row],
    }


def match(ends: Ends, member_rank: Sequence[int | None], potentials: Potentials) -> Matched:
    """Number the instances. `potentials` gathers what is learnt of the clocks on the way."""
    if some_seq_differ(ends):
        join_equal_clocks(ends, potentials)
    found = match_by_seq(ends, member_rank, potentials)
    potentials.learn_from(found.instance, ends)
    found = doubted(ends, found, potentials)
    return match_rest(ends, found, potentials)


def match_by_seq(ends: Ends, member_rank: Sequence[int | None], potentials: Potentials) -> BySeq:
    """Number the instances of the keys whose `Seq` can be believed; each key is looked at alone."""
    instance = np.full(len(ends), NONE, np.int64)
    count = 0
    believed: list[int] = []
    inconsistent: list[int] = []
    ambiguous: list[int] = []
    rest: list[tuple[int, Int64]] = []
    for key, span in slices(ends.key):
        if _too_many(ends, key, span, member_rank):
            ambiguous.append(key)
            continue
        if not ends.keys[key].is_known:
            continue
        left = np.ones(span.stop - span.start, np.bool_)
        # Each rank counts its sends to and from all others: numbers may differ between two of them.
        if has_seq(ends, span) and (not _is_pair(ends, span) or sends_agree(ends, span, potentials)):
            numbers = by_seq(ends, span)
            if numbers is not None and times_agree(ends, span, numbers, potentials):
                left = numbers < 0  # what carries no Seq beside collectives that do is a sequence of its own
                believed.append(key)
                instance[span] = np.where(left, NONE, numbers + count)
                count += int(numbers.max()) + 1
            else:
                inconsistent.append(key)
        if left.any():
            rest.append((key, np.arange(span.start, span.stop)[left]))
    return BySeq(instance, count, tuple(believed), tuple(inconsistent), tuple(ambiguous), tuple(rest))


def doubted(ends: Ends, found: BySeq, potentials: Potentials) -> BySeq:
    """The same without the keys of which more match by time, on clocks that are known by now."""
    spans = dict(slices(ends.key))
    wrong = [
        key
        for key in found.believed
        if times_match_more(ends, spans[key], found.instance[spans[key]], potentials)
    ]
    if not wrong:
        return found
    instance = found.instance.copy()
    for key in wrong:
        instance[spans[key]] = NONE
    rest = [one for one in found.rest if one[0] not in wrong]
    rest += [(key, np.arange(spans[key].start, spans[key].stop)) for key in wrong]
    return replace(
        found,
        instance=instance,
        believed=tuple(key for key in found.believed if key not in wrong),
        inconsistent=(*found.inconsistent, *wrong),
        rest=tuple(rest),
    )


def match_rest(ends: Ends, found: BySeq, potentials: Potentials) -> Matched:
    """Number what is left by order, the longest sequences first: their clocks serve the others."""
    instance, count = found.instance.copy(), found.count
    for _, chosen in sorted(found.rest, key=lambda one: -len(one[1])):
        numbers = by_order(ends, chosen, potentials)
        instance[chosen] = numbers + count
        count += int(numbers.max()) + 1
    ordered = tuple(key for key, _ in found.rest)
    return Matched(instance, count, found.inconsistent, ordered, found.ambiguous)


def _too_many(ends: Ends, key: int, span: slice, member_rank: Sequence[int | None]) -> bool:
    """Whether more ranks use a key without a rank list than its group has: several groups share it."""
    one = ends.keys[key]
    if one.expected or one.size is None:
        return False
    return len({member_rank[member] for member in np.unique(ends.member[span]).tolist()}) > one.size


def _is_pair(ends: Ends, span: slice) -> bool:
    """Whether a key is that of the sends between two ranks."""
    return ends.ops[int(ends.op[span.start])] == SEND_RECV


def _on_one_clock(one: Line, two: Line) -> bool:
    """Whether sends run together on clocks as they are, as far as there are any."""
    if one.together.any() or two.together.any():
        return False
    matched, together = meet(one, two)
    return together >= NEARLY_ALL * matched > 0


def by_order(ends: Ends, chosen: Int64, potentials: Potentials) -> Int64:
    """Numbers by order: each member's line is aligned with the master line, and adds what it alone has.

    Clocks that nothing connected yet are entered into `potentials`.
    """
    rows_of = rows_by_value(ends.member[chosen])
    by_size = sorted(rows_of, key=lambda m: (-len(rows_of[m]), m))
    first = by_size[0]
    numbers = np.full(len(chosen), NONE, np.int64)
    master = line_of(ends, chosen[rows_of[first]])
    of_master = np.arange(len(master), dtype=np.int64)
    numbers[rows_of[first]] = of_master
    count = len(master)
    for other in by_size[1:]:
        rows = rows_of[other]
        line = line_of(ends, chosen[rows])
        shift = potentials.between(other, first)
        if shift is None:
            shift = 0 if _on_one_clock(master, line) else estimate_shift(master, line, SAME_CLOCK_NS)
            if line.together.any():
                potentials.join(other, first, shift)
        line = line.moved(-shift)
        at = align(master, line)
        numbers[rows] = np.where(at >= 0, of_master[at], NONE)
        new = np.flatnonzero(at < 0)
        numbers[rows[new]] = np.arange(count, count + len(new))
        of_master = np.r_[of_master, numbers[rows[new]]]
        count += len(new)
        master = master.with_rows(line.take(new))
        order = np.lexsort((master.end_ns, master.start_ns))
        master, of_master = master.take(order), of_master[order]
    return numbers
