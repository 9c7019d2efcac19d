"""Why each collective was exposed: its exposed nanoseconds divided among causes (DESIGN section 6).

In order, what applies first takes the nanosecond:

peer-skew          before the last rank arrived (only where ranks were matched)
synchronous        the rest of a collective that is known to be synchronous
partner-too-short  asynchronous with a partner: what exceeds min(|c|, |w|) (the last exposed nanoseconds of
                   the collective), or comes after the partner ended
late-partner       before the partner, or before a later part of it, that started after the collective
queued             after the partner ended, of a collective that began more than twice the median late while
                   the same group's previous collective ran, or the device was full: begun in time it would
                   have run under its partner. What exceeds min(|c|, |w|) stays partner-too-short.
no-partner         asynchronous, no computation launched before the wait (gradients also where the wait
                   follows at once)
unknown            the launch or the wait is not in the trace

Two passes. `explain` looks at one device and marks, for each collective, at which instants its cause changes.
`settle` then walks the exposed stretches and gives each stretch's share to its cause; it can be repeated when
the arrivals of the other ranks are known. A stretch that is cut at an instant has its share divided in
proportion to time, the earlier part rounded down, so the parts sum to the collective's share exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Column, Numbers, Parts, Records, Words, joined
from sp_profiler.analysis.exposure import DeviceCollectives, Exposure
from sp_profiler.analysis.intervals import TimeSet, divided_stretches, subtract, sum_by, union, unite
from sp_profiler.analysis.overlap import DeviceSets, IdentityError
from sp_profiler.analysis.partners import Partners
from sp_profiler.analysis.results import CauseEvidence, ExposedStretches, RankResult
from sp_profiler.classify.tables import Classified, Kind
from sp_profiler.trace.tables import NONE, Bool, Int32, Int64

CAUSES = (
    "peer-skew",
    "synchronous",
    "partner-too-short",
    "late-partner",
    "queued",
    "no-partner",
    "unknown",
)
"""In the order in which they apply; the earlier one is named where two are equally large."""
SKEW, SYNCHRONOUS, TOO_SHORT, LATE, QUEUED, NO_PARTNER, UNKNOWN = range(len(CAUSES))

RULES = (
    "declared-synchronous",  # by its annotation, its metadata or the inputs of its operator
    "on-compute-stream",
    "waited-at-once",  # the launching thread waits, and launched nothing in between
    "thread-idle",  # CPU runs, which show no waits: no operator began until the collective ended
    "partner",
    "nothing-launched-before-wait",
    "launch-not-in-trace",
    "wait-not-in-trace",
)
_DECLARED, _ON_STREAM, _AT_ONCE, _IDLE, _PARTNER, _NOTHING, _NO_LAUNCH, _NO_WAIT = range(len(RULES))

AT_ONCE_NS = 100_000
"""A wait that begins this soon after the launch, or within a tenth of the collective, follows at once."""
BEHIND_GROUP = 0.5
"""Queued behind its own group: the group's collectives run for this part of the delay at least."""
FULL_DEVICE = 0.9
"""Queued behind a full device: the device is busy for this part of the delay at least."""


@dataclass(frozen=True)
class _Asked:
    """What the rules ask about each collective of a device; int64 columns, NONE where not known."""

    launch: Int64
    launch_end: Int64
    wait: Int64
    wait_end: Int64
    delay: Int64  # start - launch, NONE where the launch is not known or later than the start
    launched_before_wait: Int64  # computation launched between launch and wait, NONE where not known
    anything_before_wait: Int64  # any activity launched in between
    is_sync: Bool
    is_async: Bool


def explain(
    classified: Classified,
    rows: Int64,
    collectives: DeviceCollectives,
    exposed: Exposure,
    sets: DeviceSets,
    partners: Partners,
) -> ExposedStretches:
    """What is exposed of each collective, stretch by stretch, and where its causes change.

    Knows nothing of other ranks: `settle` puts peer-skew in front.
    """
    asked = _asked_of(classified, rows, collectives)
    pieces = exposed.pieces
    shares = divided_stretches(pieces.start, pieces.end, subtract(sets.comm, sets.compute))
    owner = pieces.owner[shares.owner]
    if (sum_by(owner, shares.ns, len(collectives)) != exposed.share_ns).any():
        raise IdentityError("the stretches of the collectives do not sum to their shares")
    rule = _rules(classified, rows, collectives, asked, partners)
    behind_group, behind_device = _queued(classified, collectives, asked, sets)
    queued = behind_group | behind_device
    first, second = _turns(collectives, exposed, partners, owner, shares.end - shares.start, shares.start)
    causes = _causes_of_rules(rule)
    causes[_last_gradients(collectives, asked) & np.isin(rule, (_AT_ONCE, _IDLE))] = NO_PARTNER
    by_partner = rule == _PARTNER
    causes[by_partner] = (LATE, TOO_SHORT, TOO_SHORT)
    causes[by_partner & queued, 1] = QUEUED
    return ExposedStretches(
        id=collectives.id,
        begins_ns=collectives.start_ns,
        first_turn_ns=first,
        second_turn_ns=second,
        causes=causes,
        evidence=_evidence(collectives, asked, partners, rule, behind_group, behind_device),
        delay_ns=asked.delay,
        owner=owner,
        window=pieces.window[shares.owner],
        start_ns=shares.start,
        end_ns=shares.end,
        share_ns=shares.ns,
    )


def _asked_of(classified: Classified, rows: Int64, collectives: DeviceCollectives) -> _Asked:
    activities, told = classified.activities, collectives.rows

    def column(values: list[int | None]) -> Int64:
        return np.array([NONE if value is None else value for value in values], np.int64)

    launch = column([row.launch_ns for row in told])
    launch_end = column([row.launch_end_ns for row in told])
    launch_end = np.where(launch_end == NONE, launch, launch_end)
    wait = column([row.wait_start_ns for row in told])
    late = (launch == NONE) | (launch > collectives.start_ns)
    launches = activities.launch_ns[rows]
    if classified.is_cpu_only:
        launches = np.where(launches == NONE, activities.start_ns[rows], launches)
    computes = (activities.kind[rows] == Kind.COMPUTATION) & (
        activities.end_ns[rows] > activities.start_ns[rows]
    )
    known = (launch != NONE) & (wait != NONE)

    def between(mask: Bool) -> Int64:
        times = np.sort(launches[mask & (launches != NONE)])
        low, high = np.searchsorted(times, launch_end, side="left"), np.searchsorted(times, wait, side="left")
        return np.where(known, np.maximum(high - low, 0), NONE)

    return _Asked(
        launch=launch,
        launch_end=launch_end,
        wait=wait,
        wait_end=column([row.wait_end_ns for row in told]),
        delay=np.where(late, NONE, collectives.start_ns - launch),
        launched_before_wait=between(computes),
        anything_before_wait=between(np.ones(len(rows), np.bool_)),
        is_sync=np.array([row.is_async is False for row in told], np.bool_),
        is_async=np.array([row.is_async is True for row in told], np.bool_),
    )


# --- which rule ------------------------------------------------------------------------------------


def _rules(
    classified: Classified, rows: Int64, collectives: DeviceCollectives, asked: _Asked, partners: Partners
) -> Int64:
    """Index into RULES of the first rule that applies to each collective."""
    dur = collectives.end_ns - collectives.start_ns
    both = (asked.launch != NONE) & (asked.wait != NONE)
    at_once = both & (asked.anything_before_wait == 0)
    at_once &= asked.wait - asked.launch_end <= np.maximum(dur // 10, AT_ONCE_NS)
    nothing = both & (asked.launched_before_wait == 0) & (partners.hidden_ns == 0)
    # Nothing says whether it is asynchronous: that it ran under its partner does.
    ran_under = partners.known & (asked.is_async | both | (partners.hidden_ns > 0))
    conditions = (
        asked.is_sync,
        _on_compute_stream(classified, rows, collectives) & ~asked.is_async,
        at_once,
        _thread_idle(classified, rows, collectives, asked) & ~(asked.is_async & partners.known),
        nothing,
        ran_under,
        asked.launch == NONE,
    )
    choices = (_DECLARED, _ON_STREAM, _AT_ONCE, _IDLE, _NOTHING, _PARTNER, _NO_LAUNCH)
    return np.select(conditions, choices, _NO_WAIT).astype(np.int64)


def _on_compute_stream(classified: Classified, rows: Int64, collectives: DeviceCollectives) -> Bool:
    """Whether each runs on the stream that holds most of the device's computation (never in CPU files)."""
    activities = classified.activities
    computing = rows[activities.kind[rows] == Kind.COMPUTATION]
    if classified.is_cpu_only or len(computing) == 0:
        return np.zeros(len(collectives), np.bool_)
    streams, place = np.unique(activities.stream[computing], return_inverse=True)
    time = sum_by(place, activities.end_ns[computing] - activities.start_ns[computing], len(streams))
    return activities.stream[collectives.activity] == streams[int(np.argmax(time))]


def _thread_idle(classified: Classified, rows: Int64, collectives: DeviceCollectives, asked: _Asked) -> Bool:
    """CPU files show no waits. Where no operator began until the collective ended, the thread sat in one.

    The launching thread began nothing, whatever others do; or nothing was computed at all.
    """
    told = np.array([row.bandwidth_known for row in collectives.rows], np.bool_)
    told &= (asked.launch != NONE) & (asked.wait == NONE) & ~asked.is_sync
    if not classified.is_cpu_only or not told.any():
        return np.zeros(len(collectives), np.bool_)
    activities = classified.activities
    begins = np.sort(activities.start_ns[rows[activities.kind[rows] == Kind.COMPUTATION]])
    next_one = np.searchsorted(begins, asked.launch_end, side="left")
    after = np.searchsorted(begins, collectives.end_ns, side="left")
    sat_idle = np.array([row.thread_sat_idle for row in collectives.rows], np.bool_)
    return told & (sat_idle | (next_one == after))


def _queued(
    classified: Classified, collectives: DeviceCollectives, asked: _Asked, sets: DeviceSets
) -> tuple[Bool, Bool]:
    """Which began late (more than twice the median after their launch) behind their own group, and which
    behind a full device."""
    known = asked.delay != NONE
    nobody = np.zeros(len(collectives), np.bool_)
    if not known.any():
        return nobody, nobody
    delays = np.sort(asked.delay[known])
    late = known & (asked.delay > 2 * delays[(len(delays) - 1) // 2])
    behind_group = nobody.copy()
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(collectives.rows):
        if row.group is not None:
            groups.setdefault(row.group.key, []).append(i)
    for members in groups.values():
        mine = np.array(members, np.int64)
        asking = mine[late[mine]]
        if len(asking):
            busy = union(collectives.start_ns[mine], collectives.end_ns[mine])
            behind_group[asking] = _part(busy, asked, asking, BEHIND_GROUP)
    asking = np.flatnonzero(late & ~behind_group)
    behind_device = nobody.copy()
    if len(asking) and not classified.is_cpu_only:
        busy = unite(sets.comm, sets.compute, sets.memory)
        behind_device[asking] = _part(busy, asked, asking, FULL_DEVICE)
    return behind_group, behind_device


def _part(busy: TimeSet, asked: _Asked, who: Int64, least: float) -> Bool:
    """Whether `busy` covers at least that part of the time from launch to start."""
    launch, delay = asked.launch[who], asked.delay[who]
    return busy.overlap(launch, launch + delay) >= least * delay


def _causes_of_rules(rule: Int64) -> Int64:
    """The causes before, between and after the two turns; shape (collectives, 3)."""
    of_rule = np.full(len(RULES), UNKNOWN, np.int64)
    of_rule[[_DECLARED, _ON_STREAM, _AT_ONCE, _IDLE]] = SYNCHRONOUS
    of_rule[_NOTHING] = NO_PARTNER
    return np.repeat(of_rule[rule], 3).reshape(-1, 3)


def _last_gradients(collectives: DeviceCollectives, asked: _Asked) -> Bool:
    """Gradients and parameters that are moved asynchronously. Where they are waited for at once, as DDP's
    last bucket is, they were launched as they should be: what is missing is computation to run under."""
    parameters = ("param-grad", "param-gather")
    return asked.is_async & np.array([row.purpose in parameters for row in collectives.rows], np.bool_)


def _turns(
    collectives: DeviceCollectives,
    exposed: Exposure,
    partners: Partners,
    owner: Int64,
    length: Int64,
    start: Int64,
) -> tuple[Int64, Int64]:
    """Where the causes of a collective with a partner change, two instants for each collective.

    From the second on lie its last exposed nanoseconds, as many as it is longer than its partner: no schedule
    could hide those under it. The first is the partner's end where that comes before.
    """
    n = len(collectives)
    whole = sum_by(owner, length, n)
    excess = np.minimum(np.maximum(exposed.inside_ns - partners.dur_ns, 0), whole)
    second = collectives.end_ns.copy()
    if len(owner):
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)))  # in all stretches, in order
        first_of = np.searchsorted(owner, np.arange(n), side="left")
        target = before[first_of] + whole - excess
        stretch = np.clip(np.searchsorted(before, target, side="right") - 1, 0, len(owner) - 1)
        some = excess > 0
        second[some] = (start[stretch] + target - before[stretch])[some]
    ends = np.where(partners.end_ns == NONE, collectives.start_ns, partners.end_ns)
    return np.minimum(ends, second), second


def _evidence(
    collectives: DeviceCollectives,
    asked: _Asked,
    partners: Partners,
    rule: Int64,
    behind_group: Bool,
    behind_device: Bool,
) -> Records:
    """What a person can look up in the trace, for each collective."""
    behind = np.where(behind_group, 0, np.where(behind_device, 1, NONE))
    columns: dict[str, Column[Any]] = {
        "rule": Words(rule.astype(np.int32), RULES),
        "queued_behind": Words(behind.astype(np.int32), ("same-group", "full-device")),
        "wait_start_ns": Numbers.but(asked.wait),
        "wait_end_ns": Numbers.but(asked.wait_end),
        "launched_before_wait": Numbers.but(asked.launched_before_wait),
        "partner_launch_ns": Numbers.but(partners.launch_ns),
        "partner_start_ns": Numbers.but(partners.start_ns),
        "partner_end_ns": Numbers.but(partners.end_ns),
    }
    return Records(CauseEvidence, tuple(columns[field.name] for field in fields(CauseEvidence)))


# --- dividing the shares ---------------------------------------------------------------------------


def settle(result: RankResult) -> RankResult:
    """Fill cause and exposed_by_cause of collectives, steps and ranks from `result.stretches`.

    A collective whose `skew_wait_ns` is known waits for its peers from its start on for that long. Calling it
    again, with other skew, replaces what was filled before.
    Raises IdentityError when the parts of a rank do not sum to its exposed time.
    """
    if not result.stretches:
        return result
    collectives = Collectives.of(result.collectives)
    number = np.concatenate([stretches.id for stretches in result.stretches])
    row = _rows_of(collectives, number)
    waits = np.append(collectives.numbers("skew_wait_ns").or_zero(), 0)[row]
    steps, ranks = list(result.steps), list(result.ranks)
    shared: list[Int64] = []
    longest: list[Int64] = []
    first = 0
    for place, stretches in enumerate(result.stretches):
        rank, many = ranks[place], len(stretches.id)
        arrival = stretches.begins_ns + waits[first : first + many]
        first += many
        shares = _divide(stretches, arrival, stretches.share_ns)
        lengths = _divide(stretches, arrival, stretches.end_ns - stretches.start_ns)
        shared.append(_sums(stretches.owner, shares, many))
        longest.append(_sums(stretches.owner, lengths, many))
        mine = [i for i, step in enumerate(steps) if step.device == rank.device]
        for i, parts in zip(mine, _named(_sums(stretches.window, shares, len(mine))), strict=True):
            steps[i] = replace(steps[i], exposed_by_cause_ns=parts)
        (whole,) = _named(shares.sum(axis=0, keepdims=True))
        if sum(whole.values()) != rank.exposed_ns:
            raise IdentityError("the causes do not sum to the exposed time")
        ranks[place] = replace(rank, exposed_by_cause_ns=whole)
    filled = _with_causes(collectives, row, result.stretches, np.concatenate(shared), np.concatenate(longest))
    return replace(result, collectives=filled, steps=tuple(steps), ranks=tuple(ranks))


def _rows_of(collectives: Collectives, number: Int64) -> Int64:
    """The row of each of these numbers among the collectives, NONE for one outside the chosen windows."""
    mine = collectives.numbers("id").values
    row = np.full(int(max(number.max(initial=-1), mine.max(initial=-1))) + 1, NONE, np.int64)
    row[mine] = np.arange(len(mine))
    return row[number]


def _with_causes(
    collectives: Collectives, row: Int64, every: Sequence[ExposedStretches], shared: Int64, longest: Int64
) -> Collectives:
    """The collectives with their causes; `row` says whose each row of what was found is."""
    at = np.full(len(collectives), NONE, np.int64)
    inside = np.flatnonzero(row >= 0)
    at[row[inside]] = inside
    if (at < 0).any():
        raise IdentityError("a collective inside the windows was not explained")
    shared, longest = shared[at], longest[at]
    delay = np.concatenate([stretches.delay_ns for stretches in every])[at]
    evidence = joined([stretches.evidence for stretches in every])
    return collectives.changed(
        cause=Words(_largest(shared, longest), CAUSES),
        exposed_by_cause_ns=Parts(CAUSES, shared),
        queue_delay_ns=Numbers.but(delay),
        cause_evidence=evidence.take(at),
    )


def _divide(stretches: ExposedStretches, arrival: Int64, amount: Int64) -> Int64:
    """What each cause gets of `amount` of each stretch; int64, shape (stretches, causes)."""
    owner, length = stretches.owner, stretches.end_ns - stretches.start_ns
    parts = np.zeros((len(owner), len(CAUSES)), np.int64)

    def before(instant: Int64) -> Int64:
        inside = np.clip(instant[owner], stretches.start_ns, stretches.end_ns) - stretches.start_ns
        return amount * inside // length

    turns = [arrival, *(np.maximum(t, arrival) for t in (stretches.first_turn_ns, stretches.second_turn_ns))]
    done = np.zeros(len(owner), np.int64)
    causes = np.column_stack((np.full(len(stretches.id), SKEW), stretches.causes))[owner]
    every = np.arange(len(owner))
    for k, until in enumerate([*(before(turn) for turn in turns), amount]):
        np.add.at(parts, (every, causes[:, k]), until - done)
        done = until
    return parts


def _sums(key: Int64, parts: Int64, size: int) -> Int64:
    sums = np.zeros((size, len(CAUSES)), np.int64)
    np.add.at(sums, key, parts)
    return sums


def _named(parts: Int64) -> list[dict[str, int]]:
    """One dictionary a row, without the causes that have no part."""
    return [row or {} for row in Parts(CAUSES, parts).tolist()]


def _largest(share: Int64, length: Int64) -> Int32:
    """The cause with the largest part of each row; where it is exposed and its share 0, of its own time."""
    parts = np.where(share.any(axis=1, keepdims=True), share, length)
    return np.where(parts.any(axis=1), np.argmax(parts, axis=1), NONE).astype(np.int32)
