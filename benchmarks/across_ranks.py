"""What comparing ranks costs: 64 ranks with 16,000 collectives each, matched, aligned and measured.

    python benchmarks/across_ranks.py [--ranks 64] [--collectives 16000]

Each rank takes part in a tensor-parallel group of 8, a data-parallel group and the group of all; hosts of 8
ranks have clocks up to a second apart; some collectives are missing on some ranks. Once every collective
carries a Seq, once none does. Prints CPU seconds, peak memory, and how both grow from a quarter of the
collectives to all. Checks that clocks and the slow rank are found.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from sp_profiler.analysis.across import AcrossRanks, across_ranks
from sp_profiler.analysis.arrivals import Arrivals
from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.results import CollectiveFigures, RankFigures, RankResult
from sp_profiler.analysis.totals import total
from sp_profiler.classify.tables import Group

_HOST = 8  # ranks of a host, and of a tensor-parallel group
_SLOW = 3  # the rank that arrives late
_MS = 1_000_000
_BYTES = 6 << 20


def schedule(ranks: int, count: int) -> tuple[list[Group], np.ndarray, np.ndarray, np.ndarray]:
    """Groups by rank and kind, the kind of each collective, arrivals (rank, k) and ends (rank, k)."""
    rng = np.random.default_rng(1)
    kind = rng.choice(3, count, p=[0.8, 0.15, 0.05])
    begin = np.cumsum(rng.integers(_MS, 3 * _MS, count))
    arrival = begin + rng.integers(0, 20_000, (ranks, count))
    arrival[_SLOW] += 300_000
    groups: list[Group] = []
    end = np.empty_like(arrival)
    for k, members in enumerate(_members(ranks)):
        for one in members:
            name = ("tp", "dp", "world")[k]
            groups.append(Group(f"{name}[{','.join(map(str, one))}]", name, tuple(one), len(one), "nccl"))
            mine = np.ix_(one, np.flatnonzero(kind == k))
            end[mine] = arrival[mine].max(axis=0) + 400_000
    return groups, kind, arrival, end


def _members(ranks: int) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    hosts = [list(range(first, min(first + _HOST, ranks))) for first in range(0, ranks, _HOST)]
    columns = [list(range(first, ranks, _HOST)) for first in range(min(_HOST, ranks))]
    return hosts, columns, [list(range(ranks))]


def results_of(ranks: int, count: int, with_seq: bool) -> tuple[list[RankResult], list[int]]:
    """The ranks' results, as the analysis of each leaves them, and how far each clock is ahead."""
    groups, kind, arrival, end = schedule(ranks, count)
    rng = np.random.default_rng(2)
    ahead = [0, *rng.integers(-1000 * _MS, 1000 * _MS, -(-ranks // _HOST) - 1).tolist()]
    found = []
    for rank in range(ranks):
        mine = [
            next(g for g in groups if g.description == d and rank in g.ranks) for d in ("tp", "dp", "world")
        ]
        kept = np.flatnonzero(rng.random(count) > 0.001)
        start, stop = arrival[rank][kept] + ahead[rank // _HOST], end[rank][kept] + ahead[rank // _HOST]
        seq = kept if with_seq else np.full(len(kept), -1)
        none = np.zeros(0, np.int64)
        arrivals = Arrivals(
            source=np.arange(len(kept)), figure=np.arange(len(kept)), device=np.zeros(len(kept), np.int64),
            start_ns=start, end_ns=stop, op=np.zeros(len(kept), np.int64), group=kind[kept],
            bytes=np.full(len(kept), _BYTES), seq=seq, is_measured=np.ones(len(kept), np.bool_),
            ops=("all_reduce",), groups=tuple(mine), peer_row=none, peer=none, host=f"host{rank // _HOST}",
        )  # fmt: skip
        lists = [list(group.ranks) for group in mine]
        columns = zip(kind[kept].tolist(), start.tolist(), (stop - start).tolist(), seq.tolist(), strict=True)
        collectives = Collectives.of(
            CollectiveFigures(
                i, rank, 0, 20, 0, "all_reduce", mine[k].key, lists[k], _BYTES, "bfloat16", number, True,
                "dgrad", "annotation", "backward", None, None, at, at, dur, 0, dur, dur, None, None, None,
            )
            for i, (k, at, dur, number) in enumerate(columns)
        )  # fmt: skip
        figures = RankFigures(**vars(total([])), rank=rank)
        found.append(RankResult((figures,), (), collectives, (), (), None, None, None, (), arrivals=arrivals))
    return found, ahead


def check(found: AcrossRanks, ahead: Sequence[int]) -> None:
    told = [clock.offset_ns for clock in found.clocks or []]
    if any(one is None or abs(one - true) > 10_000 for one, true in zip(told, ahead, strict=True)):
        raise SystemExit(f"clock offsets are {told}, not {ahead}")
    if not found.stragglers or found.stragglers[0].rank != _SLOW:
        raise SystemExit(f"the slow rank was not found: {found.stragglers}")


def one_case(ranks: int, count: int, with_seq: bool) -> None:
    """Prints CPU seconds, peak memory before and after in MB, unmatched."""
    results, ahead = results_of(ranks, count, with_seq)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    found = across_ranks(results, None, ranks)
    seconds = time.process_time() - begin
    check(found, ahead)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(seconds, before / 1e3, after / 1e3, len(found.unmatched))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--collectives", type=int, default=16_000, help="of each rank")
    parser.add_argument(
        "--case", choices=("seq", "order"), help="run one case in this process, print its figures"
    )
    asked = parser.parse_args()
    if asked.ranks <= _SLOW:
        parser.error(f"--ranks must exceed {_SLOW}: rank {_SLOW} is the slow one")
    if asked.case:
        one_case(asked.ranks, asked.collectives, asked.case == "seq")
        return
    print(f"{asked.ranks} ranks x {asked.collectives:,} collectives; the results alone, and with the stage")
    for case in ("seq", "order"):
        seconds = []
        for count in (asked.collectives // 4, asked.collectives):
            command = [sys.executable, __file__, "--ranks", str(asked.ranks), "--collectives", str(count)]
            told = subprocess.run(
                [*command, "--case", case], check=True, capture_output=True, text=True
            ).stdout
            cpu, before, after, unmatched = map(float, told.split())
            seconds.append(cpu)
            print(
                f"  by {case:5} {count:7,} each: {cpu:6.1f} s CPU, peak {before:6,.0f} MB before and "
                f"{after:6,.0f} MB after, {unmatched:,.0f} unmatched"
            )
        print(f"  by {case:5} four times the collectives take {seconds[1] / seconds[0]:.1f} times the CPU")


if __name__ == "__main__":
    main()
