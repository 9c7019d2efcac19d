"""What was read of a device's passes, with its times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.context_parallel.families import BOTH, RECEIVES, SENDS, Passes, Transfers
from sp_profiler.analysis.context_parallel.lines import Line
from sp_profiler.analysis.intervals import sum_by, union_by_key
from sp_profiler.classify.tables import Collective
from sp_profiler.trace.tables import NONE, Bool, Int8, Int64

_FAR = 2**62
OUTSIDE, CUT, INSIDE = range(3)
_NEAREST = 4


@dataclass(frozen=True)
class Reads:
    """Transfers and attention with their passes, before anything is measured; int64 columns.

    `member` and `row` are rows of the line. Passes are numbered in order of launch.
    """

    member: Int64
    of_pass: Int64
    payload: Int64
    hop: Int64
    beside: Int64
    row: Int64
    row_pass: Int64
    row_step: Int64  # NONE: attention of the pass that is no block
    phase: Int64  # by pass
    is_read: Bool  # by pass
    steps: int
    payloads: tuple[str, ...]


def measured(
    line: Line, reads: Reads, rows: tuple[Collective, ...], inside: Int8, numbers: Int64
) -> tuple[Passes, Transfers]:
    """Passes and transfers with their times. `rows`, `inside` (OUTSIDE the windows, CUT, INSIDE) and
    `numbers` are by row of DeviceCollectives. Members and attention rows are in order of launch."""
    count, steps = len(reads.phase), reads.steps
    collective = line.collective[reads.member]
    whole = reads.is_read.copy()
    whole[reads.of_pass[inside[collective] < INSIDE]] = False
    outside = np.bincount(reads.of_pass, minlength=count) > 0
    outside[reads.of_pass[inside[collective] > OUTSIDE]] = False
    begin, end = np.full(count, _FAR, np.int64), np.full(count, -_FAR, np.int64)
    for at, of in ((reads.member, reads.of_pass), (reads.row, reads.row_pass)):
        np.minimum.at(begin, of, line.start_ns[at])
        np.maximum.at(end, of, line.end_ns[at])
    attention, step_begin, step_end = _steps(line, reads)
    travels = (reads.hop == reads.beside) & (reads.beside >= 0)
    cell = reads.of_pass[travels] * steps + reads.beside[travels]
    starts = np.full(count * steps, _FAR, np.int64)
    opens = np.array([payload.startswith(("kv", "k", "v")) for payload in reads.payloads], np.bool_)
    leads = opens[reads.payload[travels]]
    np.minimum.at(starts, cell[leads], line.start_ns[reads.member[travels][leads]])
    step_begin = np.minimum(np.where(step_begin == NONE, _FAR, step_begin), starts.reshape(count, steps))
    step_begin[step_begin == _FAR] = NONE

    order = np.lexsort((reads.member, reads.of_pass))
    place = np.empty(len(order), np.int64)
    starts_at = np.searchsorted(reads.of_pass[order], np.arange(count))
    place[order] = np.arange(len(order)) - starts_at[reads.of_pass[order]]
    before, needs = _gaps(line, reads)
    return (
        Passes(
            reads.phase,
            whole,
            ~whole & ~outside,
            begin,
            end,
            attention,
            step_begin,
            step_end,
        ),
        Transfers(
            number=numbers[collective],
            of_pass=reads.of_pass,
            payload=reads.payload,
            hop=reads.hop,
            beside=reads.beside,
            order=place,
            before_ns=before,
            needs=needs,
            follows=_last_ended(
                line, reads.member, np.arange(len(reads.member)), line.start_ns[reads.member]
            ),
            start_ns=line.start_ns[reads.member],
            end_ns=line.end_ns[reads.member],
            bytes=_bytes(rows, collective),
            way=np.array([_way(rows[at]) for at in collective.tolist()], np.int64),
            payloads=reads.payloads,
        ),
    )


def _gaps(line: Line, reads: Reads) -> tuple[Int64, Int64]:
    """Of each transfer the attention launched since the one before, and the row of the last transfer that had
    ended when that attention began; NONE without one."""
    gap = np.searchsorted(reads.member, reads.row)
    inside = gap < len(reads.member)
    row, gap = reads.row[inside], gap[inside]
    attention = sum_by(gap, line.end_ns[row] - line.start_ns[row], len(reads.member))
    begin = np.full(len(reads.member), -_FAR, np.int64)
    some, first = np.unique(gap, return_index=True)
    begin[some] = line.start_ns[row[first]]
    return attention, _last_ended(line, reads.member, np.arange(len(reads.member)), begin)


def _last_ended(line: Line, member: Int64, at: Int64, instant: Int64) -> Int64:
    """The last transfer before place `at` that had ended at an instant; only the nearest few are asked."""
    found = np.full(len(at), NONE, np.int64)
    for back in range(1, _NEAREST + 1):
        asked = np.flatnonzero((found == NONE) & (at >= back))
        other = at[asked] - back
        ended = line.end_ns[member[other]] <= instant[asked]
        found[asked[ended]] = other[ended]
    return found


def _way(one: Collective) -> int:
    if (one.source is None) == (one.target is None):
        return BOTH
    return SENDS if one.source is None else RECEIVES


def _bytes(rows: tuple[Collective, ...], collective: Int64) -> Int64:
    sizes = [rows[at].bytes for at in collective.tolist()]
    return np.array([NONE if size is None else min(size, _FAR) for size in sizes], np.int64)


def _steps(line: Line, reads: Reads) -> tuple[Int64, Int64, Int64]:
    """Attention of each (pass, step): the union's length, its begin and its end."""
    shape = (len(reads.phase), reads.steps)
    known = (reads.row_step >= 0) & (reads.row_step < reads.steps)
    row = reads.row[known]
    cell = reads.row_pass[known] * reads.steps + reads.row_step[known]
    size = shape[0] * shape[1]
    begin, end = np.full(size, _FAR, np.int64), np.full(size, NONE, np.int64)
    np.minimum.at(begin, cell, line.start_ns[row])
    np.maximum.at(end, cell, line.end_ns[row])
    begin[begin == _FAR] = NONE
    key, merged = union_by_key(cell, line.start_ns[row], line.end_ns[row])
    total = sum_by(key, merged.end - merged.start, size)
    return total.reshape(shape), begin.reshape(shape), end.reshape(shape)
