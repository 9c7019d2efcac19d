"""Runs of many ranks of which everything is known: traces of a size to order, and what is true of them.

    truth = write_fleet(tmp_path, 1024)       # a file for each rank, as Kineto writes them
    truth.exposed_ns[rank, step]              # from the construction, not from any analysis
    truth.check(sp_profiler.analyze(tmp_path))

fleet_schedule.py plays the run, fleet_text.py writes it down. In truth's arrays a row is a rank, also of one
that has no file; `has` says which ranks and steps can be seen, and all other figures follow from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from fleet_schedule import DATA, HOST, TENSOR, WORLD, Comm, Late, Played, group_ranks, members, play
from fleet_text import NAMES, Rank, events_of, head
from isal import igzip

from sp_profiler.trace.tables import NONE, Bool, Int64

__all__ = ["DEFAULT_LATE", "Late", "Truth", "write_fleet"]

DEFAULT_LATE = (Late(5, WORLD, 300_000), Late(11, WORLD, 700_000, steps=(1,)))
"""Rank 5 makes all others wait at the end of each step, in step 1 rank 11 does."""

_NOISE = 10_000  # events of no meaning that one gzip member holds
_TIE_NS = 1_000  # arrivals closer than this count as one: a device starts no two kernels closer
_CLOCK_NS = 1_000_000_000  # clocks of hosts differ by less


@dataclass(frozen=True)
class Truth:
    """What is true of a fleet. Times in ns; arrays of shape (ranks, steps) or (collectives, ranks)."""

    played: Played
    clock_ns: Int64  # by rank: how far its host's clock is ahead of the first host's
    has: Bool  # (ranks, steps)

    @property
    def ranks(self) -> list[int]:
        """Those that can be seen."""
        return np.flatnonzero(self.has.any(axis=1)).tolist()

    @property
    def collectives(self) -> tuple[Comm, ...]:
        return self.played.comms

    def _by_step(self, of: Mapping[int, Int64]) -> Int64:
        """(ranks, steps), 0 where nothing can be seen, from the columns of each step."""
        table = np.zeros(self.has.shape, np.int64)
        for step, column in of.items():
            table[:, step] = column
        return np.where(self.has, table, 0)

    def _of_comms(self, column: str, kind: str | None = None, purpose: str | None = None) -> Int64:
        sums: dict[int, Int64] = {}
        for one in self.collectives:
            if kind in (None, one.kind) and purpose in (None, one.purpose):
                took = one.end_ns - one.start_ns
                values = {
                    "comm": took, "overlapped": one.overlapped_ns, "exposed": took - one.overlapped_ns
                }  # fmt: skip
                sums[one.step] = sums.get(one.step, 0) + values[column]
        return self._by_step(sums)

    @cached_property
    def comm_ns(self) -> Int64:
        return self._of_comms("comm")

    @cached_property
    def overlapped_ns(self) -> Int64:
        return self._of_comms("overlapped")

    @cached_property
    def wgrad_overlapped_ns(self) -> Int64:
        return self._of_comms("overlapped", purpose="dgrad")

    @cached_property
    def exposed_ns(self) -> Int64:
        return self._of_comms("exposed")

    def exposed_of_kind_ns(self, kind: str) -> Int64:
        """What collectives of a kind of group (`tp`, `dp`, `world`) leave exposed."""
        return self._of_comms("exposed", kind)

    @cached_property
    def compute_ns(self) -> Int64:
        sums: dict[int, Int64] = {}
        for one in self.played.computes:
            sums[one.step] = sums.get(one.step, 0) + one.end_ns - one.start_ns
        return self._by_step(sums)

    @cached_property
    def window_ns(self) -> Int64:
        """From the first kernel of a step to that of the next; of the last there is to its range's end."""
        first, end = self.played.first_ns, self.played.end_ns + 3_000
        following = np.append(first[:, 1:], end[:, -1:], axis=1)
        is_last = self.has & ~np.append(self.has[:, 1:], np.zeros((len(first), 1), np.bool_), axis=1)
        return np.where(self.has, np.where(is_last, end, following) - first, 0)

    @property
    def idle_ns(self) -> Int64:
        return self.window_ns - self.compute_ns - self.exposed_ns

    def _last_arrival(self, one: Comm) -> tuple[Int64, Int64, Int64]:
        """By rank, of its group and those that can be seen: the last arrival, who that is (NONE of several
        that cannot be told apart), and how many there are."""
        group, seen = members(one.kind, self.played.ranks), self.has[:, one.step]
        count = np.bincount(group, seen).astype(np.int64)
        last = np.full(len(count), np.iinfo(np.int64).min)
        np.maximum.at(last, group[seen], one.start_ns[seen])
        who = np.full(len(count), NONE)
        at_last = np.flatnonzero(seen & (last[group] - one.start_ns <= _TIE_NS))
        who[group[at_last]] = at_last
        who[np.bincount(group[at_last], minlength=len(count)) > 1] = NONE
        return last[group], who[group], count[group]

    @cached_property
    def wait_ns(self) -> Int64:
        """Last arrival - start, (collectives, ranks); NONE where the rank or all its peers cannot be seen."""
        return np.array([self._waits(one)[0] for one in self.collectives])

    @cached_property
    def transfer_ns(self) -> Int64:
        """End - last arrival, (collectives, ranks); NONE as in `wait_ns`."""
        return np.array([self._waits(one)[1] for one in self.collectives])

    def _waits(self, one: Comm) -> tuple[Int64, Int64]:
        last, _, count = self._last_arrival(one)
        known = self.has[:, one.step] & (count > 1)
        return np.where(known, last - one.start_ns, NONE), np.where(known, one.end_ns - last, NONE)

    @cached_property
    def costs(self) -> dict[int, int]:
        """By rank the time the others lost in collectives at which it was the last to arrive."""
        costs: dict[int, int] = {}
        for one, waits in zip(self.collectives, self.wait_ns, strict=True):
            _, who, _ = self._last_arrival(one)
            waited = (waits > 0) & (who >= 0)
            for rank, ns in zip(who[waited].tolist(), waits[waited].tolist(), strict=True):
                costs[rank] = costs.get(rank, 0) + ns
        return costs

    @property
    def ranked(self) -> list[int]:
        """Ranks by what the others lost to them, worst first."""
        return sorted(self.costs, key=lambda rank: (-self.costs[rank], rank))

    def check(self, report: Any) -> None:
        """AssertionError, with what differs, unless every figure of the Report is true."""
        self.check_ranks(report)
        self.check_steps(report)
        self.check_across(report)
        rows = sum(int(self.has[:, one.step].sum()) for one in self.collectives)
        if len(report.collectives) == rows:
            self.check_collectives(report)

    def check_ranks(self, report: Any) -> None:
        """The figures of every rank, and the totals."""
        assert [one.rank for one in report.ranks] == self.ranks
        for name in ("window_ns", "comm_ns", "compute_ns", "overlapped_ns", "exposed_ns", "idle_ns"):
            by_rank = getattr(self, name).sum(axis=1)[self.ranks].tolist()
            assert [getattr(one, name) for one in report.ranks] == by_rank, name
            assert getattr(report.totals, name) == sum(by_rank), name
        by_rank = self.wgrad_overlapped_ns.sum(axis=1)[self.ranks].tolist()
        assert [one.wgrad_overlapped_ns for one in report.ranks] == by_rank
        for kind in (TENSOR, DATA, WORLD):
            told = [_of_kind(one.exposed_by_group_ns, kind) for one in report.ranks]
            assert told == self.exposed_of_kind_ns(kind).sum(axis=1)[self.ranks].tolist(), kind

    def check_steps(self, report: Any) -> None:
        """The figures of those steps that the report has."""
        for one in report.steps:
            for name in ("window_ns", "comm_ns", "compute_ns", "overlapped_ns", "exposed_ns", "idle_ns"):
                told = getattr(one, name)
                assert told == getattr(self, name)[one.rank, one.step], (name, one.rank, one.step)

    def check_across(self, report: Any) -> None:
        """Clocks and stragglers."""
        first = self.clock_ns[self.ranks[0]]
        told = {rank: clock.offset_ns for clock in report.clocks for rank in clock.ranks}
        assert told == {rank: int(self.clock_ns[rank] - first) for rank in self.ranks}
        costs = {one.rank: one.cost_ns for one in report.stragglers}
        assert costs == {rank: self.costs[rank] for rank in list(costs)}
        assert list(costs) == self.ranked[: len(costs)]
        assert costs or not self.costs

    def check_collectives(self, report: Any) -> None:
        """Every collective of every rank, in order of start."""
        mine: dict[int, list[Any]] = {rank: [] for rank in self.ranks}
        for row in report.collectives:
            mine[row.rank].append(row)
        for rank, rows in mine.items():
            rows.sort(key=lambda row: row.start_ns)
            seen = [i for i, one in enumerate(self.collectives) if self.has[rank, one.step]]
            for i, row in zip(seen, rows, strict=True):
                one, clock = self.collectives[i], int(self.clock_ns[rank])
                told = (
                    row.step, row.op, row.purpose, row.is_async, tuple(row.ranks), row.exposed_ns,
                    row.start_ns - min(r.start_ns for r in rows), row.skew_wait_ns, row.transfer_ns,
                )  # fmt: skip
                begin = int(self.collectives[seen[0]].start_ns[rank])
                true = (
                    one.step, "all_reduce", one.purpose, one.is_async,
                    tuple(group_ranks(one.kind, rank, self.played.ranks)),
                    int((one.end_ns - one.start_ns - one.overlapped_ns)[rank]),
                    int(one.start_ns[rank]) - begin, *self._told(i, rank),
                )  # fmt: skip
                assert told == true, (rank, i, clock)

    def _told(self, i: int, rank: int) -> tuple[int | None, int | None]:
        """Wait and transfer; of one without visible peers the first is not known, the second its duration."""
        if self.wait_ns[i, rank] >= 0:
            return int(self.wait_ns[i, rank]), int(self.transfer_ns[i, rank])
        one = self.collectives[i]
        return None, int(one.end_ns[rank] - one.start_ns[rank])


def _of_kind(by_group: Mapping[str, int], kind: str) -> int:
    return sum(ns for key, ns in by_group.items() if key.partition("[")[0] == NAMES[kind])


def write_fleet(
    folder: Path,
    ranks: int,
    *,
    steps: int = 4,
    layers: int = 3,
    late: Sequence[Late] = DEFAULT_LATE,
    seed: int = 1,
    seq: bool = True,
    clocks: bool = True,
    missing: Sequence[int] = (),
    garbage: Sequence[int] = (),
    cut: Mapping[int, int] | None = None,
    slow: Mapping[int, int] | None = None,
    copies: Sequence[int] = (),
    claimed: Mapping[int, int] | None = None,
) -> Truth:
    """Write a run's files into `folder` (made if need be), hosts of 8 ranks, and tell what is true of it.

    `missing` ranks have no file, those of `garbage` one that nobody can read; of those of `cut` as many whole
    steps are left, then the text ends. `slow`: by rank so many more events that say nothing but have to be
    read. `copies`: ranks whose trace lies there a second time, which changes nothing. `claimed`: a second
    file that says it is rank `key`, with the events of rank `value`. `seq` writes sequence numbers, `clocks`
    sets the clocks of hosts apart. Raises ValueError unless ranks fill two hosts or more.
    """
    cut, slow = dict(cut or {}), dict(slow or {})
    played = play(ranks, steps, layers, late, seed)
    ahead = np.random.default_rng(seed + 1).integers(-_CLOCK_NS, _CLOCK_NS, ranks // HOST)
    clock = np.repeat(ahead * clocks, HOST)
    has = np.ones((ranks, steps), np.bool_)
    has[[*missing, *garbage]] = False
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        has[rank, cut.get(rank, steps) :] = False
        if rank in missing:
            continue
        path = folder / f"rank-{rank:05d}.pt.trace.json.gz"
        if rank in garbage:
            path.write_bytes(np.random.default_rng(rank).bytes(2_000))
            continue
        one = Rank(rank, int(clock[rank]), seq, range(cut.get(rank, steps)))
        packed = igzip.compress(_text(played, one, whole=rank not in cut).encode(), 1)
        path.write_bytes(_slowed(packed, slow[rank]) if rank in slow else packed)
        if rank in copies:
            (folder / f"copy-of-{path.name}").write_bytes(path.read_bytes())
    for rank, other in (claimed or {}).items():
        text = _text(played, Rank(other, int(clock[other]), seq, range(steps)), whole=True)
        text = text.replace(f'"rank": {other},', f'"rank": {rank},', 1)
        (folder / f"other-{rank}.pt.trace.json.gz").write_bytes(igzip.compress(text.encode(), 1))
    return Truth(played, clock - clock[0], has)


def _text(played: Played, rank: Rank, *, whole: bool) -> str:
    text = head(rank, played.ranks) + ",\n".join(events_of(played, rank))
    return text + ("\n]}\n" if whole else ",\n  {\n    " + '"ph": "X", "cat": "kern')


def _slowed(packed: bytes, events: int) -> bytes:
    """The file with so many instants before its end, in gzip members that are all alike."""
    text = igzip.decompress(packed).decode().removesuffix("\n]}\n")
    noise = ',\n  {"ph": "i", "cat": "noise", "name": "nothing", "pid": 1, "tid": 1, "ts": 1.000, "s": "t"}'
    member = igzip.compress((noise * _NOISE).encode(), 1)
    rest = igzip.compress((noise * (events % _NOISE) + "\n]}\n").encode(), 1)
    return igzip.compress(text.encode(), 1) + member * (events // _NOISE) + rest
