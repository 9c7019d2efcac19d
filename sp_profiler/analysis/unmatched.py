"""Collectives that some of their ranks lack."""

from __future__ import annotations

import numpy as np

from sp_profiler.analysis.joined import Joined
from sp_profiler.analysis.results import Unmatched
from sp_profiler.trace.tables import NONE, Int64


def unmatched(run: Joined) -> list[Unmatched]:
    """Instances that ranks with a trace lack, each; and by group and operation what has no trace."""
    return [one for _, one in lacking(run)] + without_trace(run)


def lacking(run: Joined, most: int | None = None) -> list[tuple[int, Unmatched]]:
    """Instances that ranks with a trace lack, with the start of the first of their parts, by that; `most`:
    only so many, the earliest."""
    first = np.full(run.matched.count, len(run.ends), np.int64)
    rows = np.flatnonzero(run.matched.instance >= 0)
    np.minimum.at(first, run.matched.instance[rows], rows)
    instances = run.lacking
    starts = run.ends.start_ns[first[instances]]
    chosen = instances[np.argsort(starts, kind="stable")[:most]]
    return _told(run, np.sort(chosen))


def without_trace(run: Joined) -> list[Unmatched]:
    """Collectives some of whose ranks have no trace here, by group and operation."""
    found: list[Unmatched] = []
    absent = [tuple(rank for rank in key.expected if rank not in run.traced) for key in run.ends.keys]
    has_absent = np.array([bool(ranks) for ranks in absent], np.bool_)
    rows = np.flatnonzero((run.matched.instance >= 0) & has_absent[run.ends.key])
    rows = rows[run.shown[run.matched.instance[rows]]]
    _, first = np.unique(run.matched.instance[rows], return_index=True)
    rows = rows[first]
    width = max(len(run.ends.ops), 1)
    kinds, at, count = np.unique(
        run.ends.key[rows] * width + run.ends.op[rows], return_index=True, return_counts=True
    )
    for kind, place, number in zip(kinds.tolist(), at.tolist(), count.tolist(), strict=True):
        key, op = divmod(kind, width)
        one = run.ends.keys[key]
        present = [rank for rank in one.expected if rank in run.traced]
        seq = int(run.ends.seq[rows[place]]) if number == 1 else NONE
        found.append(
            Unmatched(
                one.label, run.op(op), None if seq == NONE else seq, present, list(absent[key]),
                "no-trace", number,
            )
        )  # fmt: skip
    return found


def _told(run: Joined, instances: Int64) -> list[tuple[int, Unmatched]]:
    if not len(instances):
        return []
    order = np.flatnonzero(np.isin(run.matched.instance, instances))
    order = order[np.argsort(run.matched.instance[order], kind="stable")]
    bounds = np.searchsorted(run.matched.instance[order], np.r_[instances, run.matched.count])
    bounds[-1] = len(order)
    found: list[tuple[int, Unmatched]] = []
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        rows = order[start:stop]
        key = run.ends.keys[run.ends.key[rows[0]]]
        present = sorted({r for m in run.ends.member[rows].tolist() if (r := run.member_rank[m]) is not None})
        expected = key.expected or run.users[run.ends.key[rows[0]]]
        missing = [rank for rank in expected if rank in run.traced and rank not in present]
        seq = int(run.ends.seq[rows[0]])
        one = Unmatched(
            key.label,
            run.op(int(run.ends.op[rows[0]])),
            None if seq == NONE else seq,
            present,
            missing,
        )
        found.append((int(run.ends.start_ns[rows[0]]), one))
    return sorted(found, key=lambda pair: pair[0])
