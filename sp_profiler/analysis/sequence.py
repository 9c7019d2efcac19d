"""Whether `Seq` can be believed: it must agree with operations, sizes and times of what it joins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sp_profiler.analysis.hosts import SAME_CLOCK_NS, Potentials, middle, spread
from sp_profiler.analysis.line import Line, overlapping
from sp_profiler.analysis.order import align, estimate_shift, same_clock_matches
from sp_profiler.analysis.pairs import meet
from sp_profiler.trace.tables import NONE, Int64

if TYPE_CHECKING:
    from sp_profiler.analysis.matching import Ends

_SAME_INSTANT_NS = 10_000  # within which the ends of one collective agree, on aligned clocks
NEARLY_ALL = 0.8
_CHANCE = 2  # collectives whose ends may agree by chance


def slices(key: Int64) -> list[tuple[int, slice]]:
    """Where each key's ends lie in the sorted table."""
    if not len(key):
        return []
    starts = np.flatnonzero(np.r_[True, np.diff(key) != 0])
    stops = np.r_[starts[1:], len(key)]
    return [(int(key[a]), slice(int(a), int(b))) for a, b in zip(starts, stops, strict=True)]


def rows_by_value(values: Int64) -> dict[int, Int64]:
    """The rows of each value, in their order; the values ascending."""
    order = np.argsort(values, kind="stable")
    return {value: order[span] for value, span in slices(values[order])}


def line_of(ends: Ends, rows: Int64) -> Line:
    return Line(ends.start_ns[rows], ends.end_ns[rows], ends.op[rows], ends.token[rows], ends.together[rows])


def some_seq_differ(ends: Ends) -> bool:
    """Whether some member lacks numbers of a key that another has: a window that misses some, or a counter
    that is off."""
    for _, span in slices(ends.key):
        seq, member = ends.seq[span], ends.member[span]
        if (seq >= 0).any():
            _, of_member = np.unique(member[seq >= 0], return_inverse=True)
            numbers = np.unique(seq[seq >= 0], return_inverse=True)[1]
            pairs = np.unique(np.stack((of_member.ravel(), numbers.ravel())), axis=1)
            if pairs.shape[1] < (of_member.max() + 1) * (numbers.max() + 1):
                return True
    return False


def join_equal_clocks(ends: Ends, potentials: Potentials) -> None:
    """Enter which members have one clock, by the ends of their collectives alone, whatever `Seq` says."""
    for pair in agreeing(ends_that_agree(ends, potentials)):
        potentials.join(*pair, 0)


def ends_that_agree(ends: Ends, potentials: Potentials) -> dict[tuple[int, int], tuple[int, int]]:
    """Of pairs of members that nothing connects: how many ends agree on clocks as they are, and of how many.

    The numbers of several groups add up.
    """
    agree: dict[tuple[int, int], int] = {}
    all_of: dict[tuple[int, int], int] = {}
    for _, span in slices(ends.key):
        rows_of = {m: span.start + rows for m, rows in rows_by_value(ends.member[span]).items()}
        reference = max(rows_of, key=lambda m: len(rows_of[m]))
        master = line_of(ends, rows_of.pop(reference))
        for other, rows in rows_of.items():
            if potentials.between(other, reference) is not None:
                continue
            line = line_of(ends, rows)
            at = align(master, line)
            found = np.flatnonzero((at >= 0) & line.together)
            apart = np.abs(line.end_ns[found] - master.end_ns[at[found]])
            pair = (other, reference)
            agree[pair] = agree.get(pair, 0) + int((apart <= _SAME_INSTANT_NS).sum())
            all_of[pair] = all_of.get(pair, 0) + min(len(line), len(master))
    return {pair: (count, all_of[pair]) for pair, count in agree.items()}


def agreeing(counts: Mapping[tuple[int, int], tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs that have one clock: where nearly all end in the same instant on clocks as they are, no
    offset could make that up."""
    found = [pair for pair, (count, of) in counts.items() if count > _CHANCE and count >= NEARLY_ALL * of]
    return sorted(found, key=lambda pair: -counts[pair][0])


def has_seq(ends: Ends, span: slice) -> bool:
    """Whether every member of the key carries `Seq`."""
    seq, member = ends.seq[span], ends.member[span]
    return len(np.unique(member[seq >= 0])) == len(np.unique(member))


def by_seq(ends: Ends, span: slice) -> Int64 | None:
    """Numbers by `Seq`, NONE for ends without one; None when operations, sizes or counts contradict it."""
    seq, member = ends.seq[span], ends.member[span]
    rows = np.flatnonzero(seq >= 0)
    order = rows[np.lexsort((rows, member[rows], seq[rows]))]
    s, m = seq[order], member[order]
    is_new = np.r_[True, (np.diff(s) != 0) | (np.diff(m) != 0)]
    first = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
    ordinal = np.arange(len(order)) - first  # several kernels may share a number (coalesced operations)
    again = np.lexsort((m, ordinal, s))
    s, o, order = s[again], ordinal[again], order[again]
    starts = np.flatnonzero(np.r_[True, (np.diff(s) != 0) | (np.diff(o) != 0)])
    number = np.cumsum(np.bincount(starts, minlength=len(order)))[: len(order)] - 1
    if not _agree(ends, span, order, starts) or not _same_multiplicity(s, o, starts, len(order)):
        return None
    numbers = np.full(span.stop - span.start, NONE, np.int64)
    numbers[order] = number
    return numbers


def sends_agree(ends: Ends, span: slice, potentials: Potentials) -> bool:
    """Whether the numbers of the sends between two ranks agree: those that both have run together, and no
    fewer are joined by number than by order."""
    numbers, member = by_seq(ends, span), ends.member[span]
    members = np.unique(member)
    if numbers is None or len(members) != 2:
        return numbers is not None and len(members) == 1
    one, two = (np.flatnonzero(member == m) for m in members)
    _, at, to = np.intersect1d(numbers[one], numbers[two], return_indices=True)
    shift = potentials.between(int(members[1]), int(members[0])) or 0
    lines = [line_of(ends, span.start + rows) for rows in (one, two)]
    together = overlapping(lines[0].take(at), lines[1].take(to), shift)
    return len(at) > 0 and int(together.sum()) >= meet(lines[0], lines[1].moved(-shift))[1]


def _agree(ends: Ends, span: slice, order: Int64, starts: Int64) -> bool:
    """Whether operation and size are the same on all members of each instance."""
    op, token = ends.op[span][order], ends.token[span][order]
    if (np.maximum.reduceat(op, starts) != np.minimum.reduceat(op, starts)).any():
        return False
    least = np.minimum.reduceat(np.where(token == NONE, np.iinfo(np.int64).max, token), starts)
    most = np.maximum.reduceat(token, starts)
    return not ((most != NONE) & (most != least)).any()


def _same_multiplicity(s: Int64, ordinal: Int64, starts: Int64, count: int) -> bool:
    """Whether a number that repeats does so on every member that has it."""
    size = np.diff(np.r_[starts, count])
    first = ordinal[starts] == 0
    repeated = np.flatnonzero(~first)
    return bool((size[repeated] == size[repeated - 1]).all())


def times_agree(ends: Ends, span: slice, numbers: Int64, potentials: Potentials) -> bool:
    """Whether instances matched by `Seq` can be what they claim: no rank leaves before the last arrives.

    Between clocks that are not known to be one, a constant is allowed; unless order alone matches more of
    them with no clock offset at all, or as many on a constant that their `Seq` does not have. A counter that
    is off does that, and an offset cannot.
    """
    member = ends.member[span]
    order = np.lexsort((member, numbers))
    order = order[numbers[order] >= 0]
    rows_of = {m: order[rows] for m, rows in rows_by_value(member[order]).items()}
    reference = max(rows_of, key=lambda m: len(rows_of[m]))
    base = rows_of.pop(reference)
    return all(
        _pair_agrees(ends, span.start, numbers, (base, rows), potentials.between(other, reference))
        for other, rows in rows_of.items()
    )


def _pair_agrees(
    ends: Ends, first: int, numbers: Int64, pair: tuple[Int64, Int64], known_shift: int | None
) -> bool:
    """The same of two members. `pair` are their rows in the key, which begins at row `first`."""
    base, rows = pair
    _, at, to = np.intersect1d(numbers[base], numbers[rows], return_indices=True)
    one, two = line_of(ends, first + base[at]), line_of(ends, first + rows[to])
    together = one.together
    strays = False  # ends that `Seq` takes for one instant do not agree on any clock
    is_off = not len(at)  # no number in common: not proof, but reason to look
    if together.any():
        apart = (two.end_ns - one.end_ns)[together]
        shift = middle(apart) if known_shift is None else known_shift
        if np.mean(overlapping(one, two, shift)[together]) < 0.5:
            return False
        is_off = known_shift is None and abs(shift) >= SAME_CLOCK_NS
        strays = is_off and spread(apart) >= SAME_CLOCK_NS
    if not is_off:
        return True
    whole = [line_of(ends, first + np.sort(both)) for both in pair]
    by_order = same_clock_matches(whole[0], whole[1].moved(-(known_shift or 0)), SAME_CLOCK_NS)
    if strays and by_order <= _CHANCE:  # no one clock, but perhaps an offset on which the order agrees
        moved = whole[1].moved(-estimate_shift(whole[0], whole[1], _SAME_INSTANT_NS))
        by_order = same_clock_matches(whole[0], moved, _SAME_INSTANT_NS)
        return by_order < max(len(at), _CHANCE + 1)
    return by_order <= max(len(at), _CHANCE)


def windows_differ(ends: Ends, span: slice, numbers: Int64) -> bool:
    """Whether some member lacks numbers that the longest has while it has others: `times_match_more` then has
    something to compare."""
    base, rows_of, _ = _beside_longest(ends, span, numbers)
    return any(
        len(np.intersect1d(numbers[base], numbers[rows])) != min(len(base), len(rows))
        for rows in rows_of.values()
    )


def _beside_longest(ends: Ends, span: slice, numbers: Int64) -> tuple[Int64, dict[int, Int64], int]:
    """The rows of the member that has most numbers, those of the others, and which member it is."""
    rows_of = {m: rows[numbers[rows] >= 0] for m, rows in rows_by_value(ends.member[span]).items()}
    reference = max(rows_of, key=lambda m: len(rows_of[m]))
    return rows_of.pop(reference), rows_of, reference


def times_match_more(ends: Ends, span: slice, numbers: Int64, potentials: Potentials) -> bool:
    """Whether on clocks that are known by now more collectives end together than share a `Seq`.

    A counter that is off leaves collectives without a partner on both sides that end in the same instant;
    windows that differ by a collective do not.
    """
    base, rows_of, reference = _beside_longest(ends, span, numbers)
    master = line_of(ends, span.start + base)
    for other, rows in rows_of.items():
        shift = potentials.between(other, reference)
        common = len(np.intersect1d(numbers[base], numbers[rows]))
        if shift is None or common == min(len(base), len(rows)):
            continue
        line = line_of(ends, span.start + rows).moved(-shift)
        at = align(master, line)
        found = np.flatnonzero((at >= 0) & line.together)
        apart = np.abs(line.end_ns[found] - master.end_ns[at[found]])
        if int((apart <= _SAME_INSTANT_NS).sum()) > common:
            return True
    return False
