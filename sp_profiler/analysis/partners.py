"""Under which computation each collective should hide.

The partner of a collective (DESIGN: Hiding) is, first that applies:

annotation    its `sp::comm` range names it (`partner=wgrad`): the nearest range of that kind, module and
              layer; of its own autograd node where that is known. "Nearest" is the range around the launch,
              for an asynchronous collective else the next one before its wait, else the closest in time.
same-linear   the GEMMs of its autograd node: the wgrad GEMMs for what reduces a dgrad, the dgrad GEMMs for an
              input-regather; for anything else that is asynchronous those launched between it and its
              wait. (The all-gather of a row-parallel linear's backward feeds both its GEMMs: it cannot
              hide under them.)
between-launch-and-wait   whatever was launched in between, for an asynchronous collective.

A partner is computation of the collective's own device. Fused kernels hide nothing and are no terms here:
their overlap is by construction.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sp_profiler.analysis.exposure import DeviceCollectives, Exposure
from sp_profiler.analysis.intervals import (
    TimeSet,
    chunks_of,
    cut_at_windows,
    expand_ranges,
    union,
    union_by_key,
)
from sp_profiler.analysis.steps import Windows
from sp_profiler.classify.tables import Activities, Classified, Collective, Kind, Role
from sp_profiler.trace.tables import NONE, Bool, Int64

NO_RULE, ANNOTATION, SAME_LINEAR, BETWEEN = range(4)
RULES = ("", "annotation", "same-linear", "between-launch-and-wait")

_PAIRS_AT_ONCE = 4_000_000
_FAR = 2**62


@dataclass(frozen=True)
class Partners:
    """The partner of each collective of a device; all columns int64, one row a collective."""

    rule: Int64  # NO_RULE where no partner is known
    role: Int64  # Role of the partner
    activities: Int64  # how many activities it has
    dur_ns: Int64  # |w|
    hidden_ns: Int64  # |c ∩ w| inside the windows
    hideable_ns: Int64  # min(|c|, |w|), |c| inside the windows
    start_ns: Int64  # start of its first activity; these three are NONE where it has none that took time
    end_ns: Int64  # end of its last activity
    launch_ns: Int64  # when its first activity was launched

    @property
    def known(self) -> Bool:
        return self.rule != NO_RULE


@dataclass(frozen=True)
class _Compute:
    """The computation of one device in order of launch; int64 columns."""

    row: Int64  # row of Activities
    start: Int64
    end: Int64
    launch: Int64
    role: Int64
    node: Int64
    is_gemm: Bool

    @property
    def under_way(self) -> _Compute:
        """Without what has no known launch or took no time: nothing hides under it."""
        keep = (self.launch != NONE) & (self.end > self.start)
        return _Compute(*(getattr(self, column.name)[keep] for column in fields(self)))


@dataclass(frozen=True)
class _Asked:
    """What the rules ask about each collective; int64 columns, NONE (-1) where not known."""

    launch: Int64
    launch_end: Int64
    wait: Int64
    node: Int64
    named: Int64  # Role that the annotation names
    is_sync: Bool
    is_async: Bool
    purpose: np.ndarray  # str
    gathers: Bool  # an all-gather
    countable: Bool  # not fused


@dataclass(frozen=True)
class _Chosen:
    """Partner activities as pairs (collective, place in `_Compute`), and the collectives they are for."""

    owner: Int64
    place: Int64


def find_partners(
    classified: Classified, rows: Int64, collectives: DeviceCollectives, exposed: Exposure, windows: Windows
) -> Partners:
    """The partners of the collectives of the device whose activities are `rows`."""
    compute = _compute_of(classified, rows)
    asked = _asked_of(classified.activities, collectives)
    n = len(collectives)
    found = _nothing_found(n)
    if n == 0 or len(compute.row) == 0:
        return _without_marks(found)
    inside = _Inside(collectives, exposed, windows)
    for rule, choose in ((ANNOTATION, _by_annotation), (SAME_LINEAR, _by_node)):
        open_ = asked.countable & ~found.known
        chosen = choose(classified, compute, asked, np.flatnonzero(open_), collectives)
        _enter(found, rule, chosen, compute, inside)
    _enter_between(found, compute, asked, inside)
    np.copyto(found.hideable_ns, np.minimum(exposed.inside_ns, found.dur_ns))
    return _without_marks(found)


def _nothing_found(n: int) -> Partners:
    """No partner for any of n collectives; extremes begin at the far ends of time."""
    extremes = {"start_ns": _FAR, "end_ns": -_FAR, "launch_ns": _FAR}
    names = [column.name for column in fields(Partners)]
    return Partners(**{name: np.full(n, extremes.get(name, 0), np.int64) for name in names})


def _without_marks(found: Partners) -> Partners:
    """NONE where no activity that took time set an extreme."""
    for column, mark in ((found.start_ns, _FAR), (found.end_ns, -_FAR), (found.launch_ns, _FAR)):
        column[column == mark] = NONE
    return found


def _compute_of(classified: Classified, rows: Int64) -> _Compute:
    activities = classified.activities
    rows = rows[activities.kind[rows] == Kind.COMPUTATION]  # also what took no time: it names a range
    launch = activities.launch_ns[rows]
    if classified.is_cpu_only:
        launch = np.where(launch == NONE, activities.start_ns[rows], launch)  # an operator launches itself
    order = np.argsort(launch, kind="stable")
    rows = rows[order]
    return _Compute(
        rows,
        activities.start_ns[rows],
        activities.end_ns[rows],
        launch[order],
        activities.role[rows].astype(np.int64),
        activities.node[rows],
        activities.is_gemm[rows],
    )


def _asked_of(activities: Activities, collectives: DeviceCollectives) -> _Asked:
    rows = collectives.rows
    roles = {role.name.lower(): int(role) for role in Role if role not in (Role.OTHER, Role.UNKNOWN)}

    def column(values: list[int | None]) -> Int64:
        return np.array([NONE if value is None else value for value in values], np.int64)

    launch = column([row.launch_ns for row in rows])
    launch_end = column([row.launch_end_ns for row in rows])
    return _Asked(
        launch=launch,
        launch_end=np.where(launch_end == NONE, launch, launch_end),
        wait=column([_waits_from(row) for row in rows]),
        node=activities.node[collectives.activity],
        named=column([roles.get(row.partner_what or "") for row in rows]),
        is_sync=np.array([row.is_async is False for row in rows], np.bool_),
        is_async=np.array([row.is_async is True for row in rows], np.bool_),
        purpose=np.array([row.purpose for row in rows], np.str_),
        gathers=np.array([row.op == "all_gather" for row in rows], np.bool_),
        countable=~collectives.is_fused,
    )


def _waits_from(row: Collective) -> int | None:
    """A thread that began nothing until the end of a collective that nothing calls asynchronous waited."""
    if row.wait_start_ns is None and row.is_async is None and row.thread_sat_idle:
        return row.launch_end_ns
    return row.wait_start_ns


# --- annotation ------------------------------------------------------------------------------------


def _by_annotation(
    classified: Classified, compute: _Compute, asked: _Asked, who: Int64, collectives: DeviceCollectives
) -> _Chosen:
    """The nearest range that the annotation names. Ranges are told apart by where they start."""
    activities = classified.activities
    who = who[(asked.named[who] != NONE) & (asked.launch[who] != NONE)]
    ranged = np.flatnonzero(activities.range_start_ns[compute.row] != NONE)
    if len(who) == 0 or len(ranged) == 0:
        return _Chosen(who[:0], who[:0])
    row = compute.row[ranged]
    begins = activities.range_start_ns[row]
    module, layer = activities.module[row].astype(np.int64), activities.layer[row].astype(np.int64)
    order = np.lexsort((begins, layer, module, compute.role[ranged]))
    table = np.stack((compute.role[ranged], module, layer, begins))[:, order]
    new = np.concatenate(([True], (table[:, 1:] != table[:, :-1]).any(axis=0)))
    first = np.append(np.flatnonzero(new), len(order))
    place = ranged[order]
    ends = np.maximum.reduceat(compute.launch[place], first[:-1])
    nodes = compute.node[place[first[:-1]]]
    table = table[:, first[:-1]]

    code = {name: i for i, name in enumerate(classified.names)}
    words = [
        (int(asked.named[i]), code.get(row.module or "", NONE), NONE if row.layer is None else row.layer)
        for i in who.tolist()
        for row in (collectives.rows[i],)
    ]
    picked = np.full(len(who), -1, np.int64)
    keys, key_of = np.unique(np.array(words, np.int64), axis=0, return_inverse=True)
    by_key = np.argsort(key_of.ravel(), kind="stable")
    bounds = np.searchsorted(key_of.ravel()[by_key], np.arange(len(keys) + 1))
    for k, key in enumerate(keys):
        low, high = _rows_of_key(table[:3], key)
        mine = by_key[bounds[k] : bounds[k + 1]]
        if low < high:
            part = slice(low, high)
            near = _nearest(table[3, part], ends[part], nodes[part], asked, who[mine])
            picked[mine] = np.where(near >= 0, low + near, -1)
    found = picked >= 0
    owner, index = expand_ranges(first[picked[found]], first[picked[found] + 1])
    return _Chosen(who[found][owner], place[index])


def _rows_of_key(table: Int64, key: Int64) -> tuple[int, int]:
    """Where the columns of a lexically sorted (3, n) table equal the key: [low, high)."""
    low, high = 0, table.shape[1]
    for column, value in zip(table, key.tolist(), strict=True):
        part = column[low:high]
        low, high = (
            low + int(np.searchsorted(part, value, side="left")),
            low + int(np.searchsorted(part, value, side="right")),
        )
    return low, high


def _nearest(begins: Int64, ends: Int64, nodes: Int64, asked: _Asked, who: Int64) -> Int64:
    """Of sorted ranges (start, last launch, autograd node) the partner's for each collective, or -1."""
    launch, node = asked.launch[who], asked.node[who]
    after = np.searchsorted(begins, launch, side="left")
    before = after - 1
    has_after, has_before = after < len(begins), before >= 0
    after, before = np.minimum(after, len(begins) - 1), np.maximum(before, 0)
    to_after = np.where(has_after, begins[after] - launch, _FAR)
    to_before = np.where(has_before, launch - ends[before], _FAR)  # below 0: around the launch

    next_is_it = has_after & asked.is_async[who] & (begins[after] < _wait_or_never(asked, who))
    choose_after = np.where(to_before <= 0, False, next_is_it | (to_after <= to_before))
    # The same autograd node beats the distance.
    own_after, own_before = has_after & (nodes[after] == node), has_before & (nodes[before] == node)
    decided = (node != NONE) & (own_after != own_before)
    picked = np.where(np.where(decided, own_after, choose_after), after, before)
    # A range of another node (another microbatch) that is launched neither around an asynchronous
    # collective's launch nor before its wait is not what it hides under: the one meant is not in the trace.
    foreign = (node != NONE) & (nodes[picked] != NONE) & (nodes[picked] != node)
    in_reach = (ends[picked] >= launch) & (begins[picked] < _wait_or_never(asked, who))
    lost = foreign & asked.is_async[who] & (asked.wait[who] != NONE) & ~in_reach
    return np.where(lost, -1, picked)


def _wait_or_never(asked: _Asked, who: Int64) -> Int64:
    return np.where(asked.wait[who] == NONE, _FAR, asked.wait[who])


# --- the same linear -------------------------------------------------------------------------------


def _by_node(
    classified: Classified, compute: _Compute, asked: _Asked, who: Int64, collectives: DeviceCollectives
) -> _Chosen:
    """GEMMs of the collective's autograd node."""
    who = who[asked.node[who] != NONE]
    gemms = np.flatnonzero(compute.is_gemm & (compute.node != NONE))
    gemms = gemms[np.argsort(compute.node[gemms], kind="stable")]
    nodes = compute.node[gemms]
    low = np.searchsorted(nodes, asked.node[who], side="left")
    high = np.searchsorted(nodes, asked.node[who], side="right")
    owner, index = expand_ranges(low, high)
    place, who = gemms[index], who[owner]
    purpose, role = asked.purpose[who], compute.role[place]
    launch = compute.launch[place]
    after = (asked.launch[who] != NONE) & (launch > asked.launch[who]) & (launch < _wait_or_never(asked, who))
    after &= ~asked.is_sync[who]
    # A gradient gathered for a row linear is needed by both GEMMs, and what a repeated forward gathers or
    # reduces by all that follows: unless it is known to be asynchronous, that follows its end.
    known_async = asked.is_async[who] | (asked.wait[who] != NONE)
    awaited = (purpose == "activation") | ((purpose == "dgrad") & asked.gathers[who])
    after &= ~awaited | known_async
    reduces = (purpose == "dgrad") & ~asked.gathers[who]
    regathers = purpose == "input-regather"
    keep = np.where(reduces, role == Role.WGRAD, np.where(regathers, role == Role.DGRAD, after))
    return _Chosen(who[keep], place[keep])


# --- launched between its launch and its wait ------------------------------------------------------


@dataclass(frozen=True)
class _Blocks:
    """Computation in order of launch, cut where everything launched before also ended before.

    Blocks follow each other in time, so the union of whole blocks is a difference of two prefix sums;
    on one stream each activity is a block. `first[b]` is the block's first place, with the end appended;
    `begin[b]` the start of its first activity, with the end of the last appended.
    """

    first: Int64
    begin: Int64
    stop: Int64  # end of each block's last activity
    all: TimeSet

    @staticmethod
    def of(compute: _Compute) -> _Blocks:
        ended = np.maximum.accumulate(compute.end)
        begins = np.minimum.accumulate(compute.start[::-1])[::-1]
        cut = np.flatnonzero(np.concatenate(([True], begins[1:] >= ended[:-1])))
        first = np.append(cut, len(compute.row))
        return _Blocks(
            first,
            np.append(begins[cut], ended[-1]),
            ended[first[1:] - 1],
            union(compute.start, compute.end),
        )


def _enter_between(found: Partners, compute: _Compute, asked: _Asked, inside: _Inside) -> None:
    """Enter as partner whatever was launched between launch and wait, for what is still open."""
    compute = compute.under_way
    who = np.flatnonzero(
        asked.countable & ~found.known & ~asked.is_sync & (asked.launch != NONE) & (asked.wait != NONE)
    )
    low = np.searchsorted(compute.launch, asked.launch_end[who], side="left")
    high = np.searchsorted(compute.launch, asked.wait[who], side="left")
    some = high > low
    who, low, high = who[some], low[some], high[some]
    if len(who) == 0:
        return
    blocks = _Blocks.of(compute)
    left = np.searchsorted(blocks.first, low, side="left")
    right = np.searchsorted(blocks.first, high, side="right") - 1
    whole = left <= right
    left, right = np.where(whole, left, 0), np.where(whole, right, 0)

    begin, end = blocks.begin[left], blocks.begin[right]
    np.add.at(found.dur_ns, who, blocks.all.overlap(begin, end))
    spans = left < right
    np.minimum.at(found.start_ns, who[spans], begin[spans])
    np.maximum.at(found.end_ns, who[spans], blocks.stop[right[spans] - 1])
    np.minimum.at(found.launch_ns, who, compute.launch[low])
    start = np.clip(inside.start[who], begin, end)
    stop = np.clip(inside.end[who], start, end)
    clipped = _clip_to(blocks.all, inside.windows)
    np.add.at(found.hidden_ns, who, clipped.overlap(start, stop))

    # What is left at both ends of the range lies in other blocks, or is all of it.
    edges_low = np.concatenate((low, np.where(whole, blocks.first[right], high)))
    edges_high = np.concatenate((np.where(whole, blocks.first[left], high), high))
    _measure(found, np.concatenate((who, who)), edges_low, edges_high, compute, inside)
    found.activities[who] = high - low
    found.rule[who] = BETWEEN
    found.role[who] = _leading_role(compute, low, high)


def _leading_role(compute: _Compute, low: Int64, high: Int64) -> Int64:
    """The role with most time among the places [low, high), for each range; ties in the order of Role."""
    best, role_of = np.full(len(low), -1, np.int64), np.zeros(len(low), np.int64)
    for role in Role:
        amount = np.where(compute.role == role, compute.end - compute.start, 0)
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(amount)))
        time = before[high] - before[low]
        role_of[time > best] = role
        best = np.maximum(best, time)
    return role_of


# --- measuring -------------------------------------------------------------------------------------


class _Inside:
    """Where each collective runs inside the windows: its hull [start, end), empty where it does not."""

    def __init__(self, collectives: DeviceCollectives, exposed: Exposure, windows: Windows) -> None:
        pieces = exposed.pieces
        self.windows = windows
        self.start = collectives.start_ns.copy()
        self.end = collectives.start_ns.copy()
        owner, first = np.unique(pieces.owner, return_index=True)
        self.start[owner] = pieces.start[first]
        np.maximum.at(self.end, pieces.owner, pieces.end)


def _clip_to(instants: TimeSet, windows: Windows) -> TimeSet:
    pieces = cut_at_windows(instants.start, instants.end, windows.start_ns, windows.end_ns)
    return union(pieces.start, pieces.end)


def _enter(found: Partners, rule: int, chosen: _Chosen, compute: _Compute, inside: _Inside) -> None:
    """Enter pairs (sorted by collective) as the partners of their collectives."""
    who, first = np.unique(chosen.owner, return_index=True)
    if len(who) == 0:
        return
    counts = np.diff(np.append(first, len(chosen.owner)))
    for chunk in chunks_of(counts, _PAIRS_AT_ONCE):
        pairs = slice(int(first[chunk.start]), int(first[chunk.start] + counts[chunk].sum()))
        _measure_pairs(found, chosen.owner[pairs], chosen.place[pairs], compute, inside)
    launch = compute.launch[chosen.place]
    told = launch != NONE
    np.minimum.at(found.launch_ns, chosen.owner[told], launch[told])
    found.rule[who] = rule
    found.role[who] = compute.role[chosen.place[first]]
    np.add.at(found.activities, chosen.owner, 1)


def _measure(
    found: Partners, who: Int64, low: Int64, high: Int64, compute: _Compute, inside: _Inside
) -> None:
    """Add the unions of the places [low, high) to `dur_ns` and `hidden_ns`, few pairs at a time.

    A collective's ranges need to be disjoint in time, and each is measured in one go.
    """
    for chunk in chunks_of(high - low, _PAIRS_AT_ONCE):
        owner, place = expand_ranges(low[chunk], high[chunk])
        _measure_pairs(found, who[chunk][owner], place, compute, inside)


def _measure_pairs(found: Partners, who: Int64, place: Int64, compute: _Compute, inside: _Inside) -> None:
    key, merged = union_by_key(who, compute.start[place], compute.end[place])
    np.add.at(found.dur_ns, key, merged.end - merged.start)
    np.minimum.at(found.start_ns, key, merged.start)
    np.maximum.at(found.end_ns, key, merged.end)
    pieces = cut_at_windows(merged.start, merged.end, inside.windows.start_ns, inside.windows.end_ns)
    key = key[pieces.owner]
    together = np.minimum(pieces.end, inside.end[key]) - np.maximum(pieces.start, inside.start[key])
    np.add.at(found.hidden_ns, key, np.maximum(together, 0))
