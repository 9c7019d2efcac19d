"""Single collectives of both runs, matched by rank, step, kind, module, layer and their order in the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from sp_profiler.analysis.intervals import sum_by
from sp_profiler.comparing.groups import Groups
from sp_profiler.comparing.model import CollectivePair, Matched, SiteChange
from sp_profiler.comparing.noise import delta
from sp_profiler.comparing.side import Side, resolution_ns
from sp_profiler.comparing.table import SITE, SideTable
from sp_profiler.trace.tables import Int64

LARGEST_PAIRS = 200


class _Placed:
    """The collectives of one run with the number of their site and of their place (rank, step, site).

    `sites`, `ranks` (with devices): shared by both runs, so that equal numbers mean the same.
    """

    def __init__(
        self, table: SideTable, sites: dict[tuple[Any, ...], int], ranks: dict[tuple[Any, ...], int]
    ) -> None:
        self.table = table
        kinds, code = table.kinds(SITE)
        ordinal = _ordinals(table, code)
        names = [(*kinds[c], o) for c, o in zip(code.tolist(), ordinal.tolist(), strict=True)]
        self.site = np.array([sites.setdefault(name, len(sites)) for name in names], np.int64)
        devices, device = table.table.kinds("rank", "device")
        numbers = [ranks.setdefault(one, len(ranks)) for one in devices]
        self.rank = np.array(numbers, np.int64)[device] if numbers else device


def match(base: Side, here: Side, groups: Groups) -> tuple[list[SiteChange], Matched]:
    """Every site of either run, largest difference first, and what was matched."""
    sites: dict[tuple[Any, ...], int] = {}
    ranks: dict[tuple[Any, ...], int] = {}
    runs = [_Placed(SideTable(side, groups, place), sites, ranks) for place, side in enumerate((base, here))]
    steps = max(base.step_count, here.step_count) + 1
    keys = [(run.site * len(ranks) + run.rank) * steps + run.table.step + 1 for run in runs]
    _, mine, theirs = np.intersect1d(keys[0], keys[1], assume_unique=False, return_indices=True)
    size = len(sites)
    pairs = np.bincount(runs[0].site[mine], minlength=size)
    counts = [np.bincount(run.site, minlength=size) for run in runs]
    exposed, duration = (
        [_per_site(run, values(run), size) for run in runs] for values in (_exposed, _inside)
    )
    resolution = resolution_ns(base, here)
    changes = []
    for name, site in sites.items():
        there = (bool(counts[0][site]), bool(counts[1][site]))
        both = [
            delta(
                figure,
                "",
                "ns",
                *(means[0][site] for means in of),
                resolution=resolution,
                samples=(of[0][1][site], of[1][1][site]),
                is_there=there,
            )
            for figure, of in (("exposed_share_ns", exposed), ("dur_ns", duration))
        ]
        only = [int(counts[place][site] - pairs[site]) for place in (0, 1)]
        fields = dict(zip((*SITE, "ordinal"), name, strict=True))
        changes.append(
            SiteChange(
                **fields,
                pairs=int(pairs[site]),
                only_base=only[0],
                only_here=only[1],
                exposed=both[0],
                duration=both[1],
            )
        )
    changes.sort(key=lambda one: -abs(one.exposed.contribution))
    matched = Matched(
        len(mine),
        len(runs[0].site) - len(mine),
        len(runs[1].site) - len(theirs),
        _largest(runs, mine, theirs, list(sites)),
    )
    return changes, matched


def _ordinals(table: SideTable, code: Int64) -> Int64:
    """Which of its kind each collective is in its step, on its rank and device, in order of start."""
    columns = table.table
    rank, device = columns.numbers("rank").or_zero(), columns.numbers("device").or_zero()
    start = columns.numbers("start_ns").or_zero()
    order = np.lexsort((start, code, table.step, device, rank))
    keys = np.stack([column[order] for column in (rank, device, table.step, code)])
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    first = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = np.arange(len(order)) - first
    return ordinal


def _exposed(run: _Placed) -> Int64:
    return run.table.column("exposed_share_ns")


def _inside(run: _Placed) -> Int64:
    return run.table.inside_ns


def _per_site(run: _Placed, values: Int64, size: int) -> tuple[list[float], list[list[float] | None]]:
    """Of each site the mean of one collective, and that of each step."""
    count = np.maximum(np.bincount(run.site, minlength=size), 1)
    means = [
        round(ns / n) for ns, n in zip(sum_by(run.site, values, size).tolist(), count.tolist(), strict=True)
    ]
    steps = run.table.side.step_count
    inside = run.table.step >= 0
    place = (run.site * steps + run.table.step)[inside]
    met = np.bincount(place, minlength=size * steps).reshape(size, steps)
    sums = sum_by(place, values[inside], size * steps).reshape(size, steps)
    each = sums / np.maximum(met, 1)
    samples = [row[n > 0].tolist() for row, n in zip(each, met, strict=True)]
    return means, list(samples)


def _largest(
    runs: list[_Placed], mine: Int64, theirs: Int64, names: list[tuple[Any, ...]]
) -> list[CollectivePair]:
    exposed = [_exposed(run)[rows] for run, rows in zip(runs, (mine, theirs), strict=True)]
    order = np.argsort(-np.abs(exposed[1] - exposed[0]), kind="stable")[:LARGEST_PAIRS]
    tables = [run.table.table.take(rows[order]) for run, rows in zip(runs, (mine, theirs), strict=True)]
    steps = runs[0].table.step[mine[order]].tolist()
    sites = runs[0].site[mine[order]].tolist()
    found = []
    for place, (one, two) in enumerate(zip(*tables, strict=True)):
        op, group, purpose, _, module, layer, _ = names[sites[place]]
        found.append(
            CollectivePair(
                rank=one.rank,
                ordinal_of_step=steps[place],
                base_id=one.id,
                here_id=two.id,
                op=op,
                group=group,
                purpose=purpose,
                module=module,
                layer=layer,
                base_exposed_ns=one.exposed_share_ns,
                here_exposed_ns=two.exposed_share_ns,
                base_dur_ns=one.dur_ns,
                here_dur_ns=two.dur_ns,
            )
        )
    return found
