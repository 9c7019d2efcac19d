"""The transfers of all ranks that share a sequence, side by side: one row for each kernel of a whole pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.columns import Numbers
from sp_profiler.analysis.context_parallel.families import UNKNOWN, Family
from sp_profiler.analysis.joined import Joined
from sp_profiler.analysis.results import RankResult
from sp_profiler.trace.tables import NONE, Bool, Int64

NO_GROUP = "unknown"


@dataclass(frozen=True)
class Shown:
    """One family, and where it was seen."""

    family: Family
    result: int  # index of the rank's result
    rank: int | None
    device: int
    is_cpu: bool

    @property
    def group(self) -> str:
        return self.family.group or NO_GROUP


@dataclass(frozen=True)
class Rows:
    """A row for each kernel; int64 columns, NONE where not known."""

    shown: Int64  # index of its family
    of_pass: Int64  # counted over all families
    payload: Int64  # index into `payloads`
    hop: Int64
    beside: Int64
    order: Int64
    before_ns: Int64
    needs: Int64  # rows, as in `families.Transfers`
    follows: Int64
    start_ns: Int64
    end_ns: Int64
    bytes: Int64
    way: Int64
    is_whole: Bool  # of a whole pass
    hidden_ns: Int64
    exposed_ns: Int64
    transfer_ns: Int64
    waited_ns: Int64  # until the last of its ranks arrived; NONE where ranks were not matched
    exposed_wait_ns: Int64  # the exposed part of that
    meeting: (
        Int64  # one entry for each row and meeting (with a neighbour, or all of a group): the meeting ...
    )
    meets: Int64  # ... and the row
    payloads: tuple[str, ...]
    first_pass: Int64  # where the passes of each family begin, and where all end


def shown_in(results: Sequence[RankResult]) -> list[Shown]:
    """All families, in order of group, rank and device: whatever the order of the results."""
    found = [
        Shown(family, i, result.ranks[0].rank if result.ranks else None, context.device, context.is_cpu)
        for i, result in enumerate(results)
        for context in result.context
        for family in context.families
    ]
    return sorted(found, key=lambda s: (s.group, s.family.kind, s.rank is None, s.rank or 0, s.device))


def kind_of(members: Sequence[Shown]) -> str:
    """The kind that most ranks show; unknown only where all do."""
    kinds = Counter(one.family.kind for one in members if one.family.kind != UNKNOWN)
    return min(kinds, key=lambda kind: (-kinds[kind], kind)) if kinds else UNKNOWN


def rows_of(shown: Sequence[Shown], results: Sequence[RankResult], run: Joined | None) -> Rows:
    """The rows of all families. `run` is what was matched; None with nothing to match."""
    names: dict[str, int] = {}
    parts: dict[str, list[Any]] = {}
    known = {i: _Known(results[i]) for i in {one.result for one in shown}}
    first_pass = np.cumsum([0, *(len(one.family.passes) for one in shown)])
    run_row: list[Int64] = []
    before = 0
    for s, one in enumerate(shown):
        transfers, of = one.family.transfers, known[one.result]
        codes = np.array([names.setdefault(name, len(names)) for name in transfers.payloads], np.int64)
        columns = {
            "shown": np.full(len(transfers), s, np.int64),
            "of_pass": transfers.of_pass + first_pass[s],
            "payload": codes[transfers.payload],
            "is_whole": one.family.passes.is_whole[transfers.of_pass],
            **{
                name: getattr(transfers, name)
                for name in ("hop", "beside", "order", "before_ns", "start_ns", "end_ns", "bytes", "way")
            },
            "needs": _moved(transfers.needs, before),
            "follows": _moved(transfers.follows, before),
            **of.figures(transfers.number),
        }
        before += len(transfers)
        for name, column in columns.items():
            parts.setdefault(name, []).append(column)
        run_row.append(_run_rows(run, results, one.result, transfers.number))
    joined: dict[str, Any] = {name: np.concatenate(columns) for name, columns in parts.items()}
    meeting, meets = _meetings(run, np.concatenate(run_row))
    return Rows(
        **joined,
        meeting=meeting,
        meets=meets,
        payloads=tuple(names),
        first_pass=first_pass,
    )


def _moved(row: Int64, by: int) -> Int64:
    return np.where(row >= 0, row + by, NONE)


class _Known:
    """What the figures of a rank's collectives tell of transfers, by their number."""

    def __init__(self, result: RankResult) -> None:
        collectives = Collectives.of(result.collectives)
        numbers = collectives.numbers("id").values
        self._row = np.full(int(numbers.max(initial=-1)) + 2, NONE, np.int64)
        self._row[numbers] = np.arange(len(numbers))
        wait, transfer = collectives.numbers("skew_wait_ns"), collectives.numbers("transfer_ns")
        early = _early(result, self._row, wait)
        # With a rank missing nobody knows when the last arrived.
        known = wait.is_known & ~collectives.words("transfer_is_bound").where(bool)
        self._columns = {
            "hidden_ns": collectives.numbers("overlapped_ns").values,
            "exposed_ns": collectives.numbers("exposed_ns").values,
            "transfer_ns": np.where(known & transfer.is_known, transfer.or_zero(), NONE),
            "waited_ns": np.where(known, wait.or_zero(), NONE),
            "exposed_wait_ns": np.where(known, early, NONE),
        }

    def figures(self, number: Int64) -> dict[str, Int64]:
        """NONE for a collective outside the windows."""
        row = self._row[np.minimum(number, len(self._row) - 1)]
        return {
            name: np.append(column, NONE)[np.where(row >= 0, row, len(column))]
            for name, column in self._columns.items()
        }


def _early(result: RankResult, row: Int64, wait: Numbers) -> Int64:
    """Of each collective of a result the exposed time before the last of its ranks arrived."""
    early = np.zeros(len(wait), np.int64)
    waits = np.append(wait.or_zero(), 0)
    for stretches in result.stretches:
        of = row[np.minimum(stretches.id, len(row) - 1)]
        arrival = (stretches.begins_ns + waits[of])[stretches.owner]
        amount = np.clip(np.minimum(stretches.end_ns, arrival) - stretches.start_ns, 0, None)
        inside = of[stretches.owner] >= 0
        np.add.at(early, of[stretches.owner][inside], amount[inside])
    return early


def _run_rows(run: Joined | None, results: Sequence[RankResult], index: int, number: Int64) -> Int64:
    """The rows that transfers have among the arrivals of all ranks."""
    arrivals = results[index].arrivals
    if run is None or arrivals is None or index not in run.taking:
        return np.full(len(number), NONE, np.int64)
    row = np.full(int(arrivals.source.max(initial=-1)) + 1, NONE, np.int64)
    row[arrivals.source] = np.arange(len(arrivals))
    return row[number] + int(run.first_row[run.taking.index(index)])


def _meetings(run: Joined | None, run_row: Int64) -> tuple[Int64, Int64]:
    """`Rows.meeting` and `meets`: instances of collectives, each end of a send/recv has its own."""
    nothing = np.zeros(0, np.int64)
    if run is None:
        return nothing, nothing
    back = np.full(int(run.first_row[-1]) + 1, NONE, np.int64)
    back[run_row[run_row >= 0]] = np.flatnonzero(run_row >= 0)
    instance = run.matched.instance
    kept = (instance >= 0) & (back[run.ends.row] >= 0)
    return instance[kept], back[run.ends.row[kept]]
