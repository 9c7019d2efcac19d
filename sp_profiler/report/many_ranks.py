"""Many ranks beside each other: how their figures spread, which ranks are unlike the others, how steps went.

Figures are means per step of each rank, so that ranks with fewer steps compare. A rank is unlike the others
where a figure of it lies beyond three times the middle half's width from that half ("far out", Tukey,
Exploratory Data Analysis, 1977, section 2D), and by at least a hundredth of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.results import RankFigures
from sp_profiler.report.format import counted
from sp_profiler.report.model import Report, by_step, windows_by_rank
from sp_profiler.report.view_ranks import Listing

MANY = 16
"""Ranks and devices that a reader compares one by one; of more screens show the spread."""
_MOST_UNLIKE = 48
_FAR = 3.0  # widths of the middle half
_LEAST = 0.01  # of the time

FIGURES = {
    "window_ns": "Time",
    "compute_ns": "Compute",
    "comm_ns": "Comm",
    "overlapped_ns": "Overlapped",
    "exposed_ns": "Exposed",
    "memory_op_only_ns": "Copies only",
    "idle_ns": "Idle",
}


@dataclass(frozen=True)
class Spread:
    """One figure over all ranks and devices that know it, ns per window."""

    name: str
    least: float
    least_rank: RankFigures
    low: float  # of 5 % it is less
    median: float
    high: float  # of 5 % it is more
    most: float
    most_rank: RankFigures


@dataclass(frozen=True)
class Unlike:
    """A figure of a rank that is far from those of the others."""

    rank: RankFigures
    name: str
    ns: float
    median: float


@dataclass(frozen=True)
class _Column:
    name: str
    ranks: list[RankFigures]
    values: np.ndarray  # float64


def has_many(report: Report) -> bool:
    return len(report.ranks) > MANY


def _columns(report: Report) -> list[_Column]:
    """The figures that any rank has some of."""
    counts = windows_by_rank(report)
    found: list[_Column] = []
    for name in FIGURES:
        told = [
            (rank, ns / counts.get((rank.rank, rank.device), 1))
            for rank in report.ranks
            if (ns := getattr(rank, name)) is not None
        ]
        values = np.array([ns for _, ns in told])
        if len(told) and values.any():
            found.append(_Column(name, [r for r, _ in told], values))
    return found


def spreads(report: Report) -> list[Spread]:
    """Of each figure how it spreads over the ranks."""
    made: list[Spread] = []
    for one in _columns(report):
        low, median, high = np.percentile(one.values, (5, 50, 95)).tolist()
        least, most = int(one.values.argmin()), int(one.values.argmax())
        ends = (float(one.values[least]), one.ranks[least]), (float(one.values[most]), one.ranks[most])
        made.append(Spread(one.name, *ends[0], low, median, high, *ends[1]))
    return made


def unlike(report: Report) -> list[Unlike]:
    """The ranks that are unlike the others, furthest first; none among few ranks."""
    columns = _columns(report)
    window = next((np.median(one.values) for one in columns if one.name == "window_ns"), 0.0)
    found: list[Unlike] = []
    for one in columns if has_many(report) else ():
        first, median, third = np.percentile(one.values, (25, 50, 75)).tolist()
        beyond = np.maximum(first - one.values, one.values - third)
        far = (beyond > _FAR * (third - first)) & (np.abs(one.values - median) > _LEAST * window)
        found += [
            Unlike(one.ranks[place], one.name, float(one.values[place]), median)
            for place in np.flatnonzero(far).tolist()
        ]
    return sorted(found, key=lambda u: (-abs(u.ns - u.median), u.rank.rank or 0, u.rank.device, u.name))


def device_name(report: Report, rank: RankFigures) -> str:
    """`5`, or `5 device 1` where ranks have several devices."""
    name = "unknown" if rank.rank is None else str(rank.rank)
    return f"{name} device {rank.device}" if len({one.device for one in report.ranks}) > 1 else name


def listings(report: Report) -> list[Listing]:
    """What screens show of many ranks; nothing of few."""
    made = [_spread(report), _unlike(report)] if has_many(report) else []
    return [one for one in (*made, _steps(report)) if one.rows]


def _spread(report: Report) -> Listing:
    rows = [
        [
            FIGURES[one.name], round(one.least), device_name(report, one.least_rank), round(one.low),
            round(one.median), round(one.high), round(one.most), device_name(report, one.most_rank),
        ]
        for one in spreads(report)
    ]  # fmt: skip
    columns = (
        ("Figure", "text", ""), ("Least", "ms", "ms"), ("Of rank", "text", ""), ("5 % less", "ms", "ms"),
        ("Median", "ms", "ms"), ("5 % more", "ms", "ms"), ("Most", "ms", "ms"), ("Of rank ", "text", ""),
    )  # fmt: skip
    note = "Of each figure the least and the most of any rank, and what lies between them."
    return Listing("spread", f"How {len(report.ranks)} ranks spread", columns, rows, note, _means(report))


def _means(report: Report) -> str:
    return "means per step" if by_step(report) else "whole trace"


def _unlike(report: Report) -> Listing:
    found = unlike(report)
    rows = [
        [
            device_name(report, one.rank), FIGURES[one.name], round(one.ns), round(one.median),
            round(one.ns - one.median),
        ]
        for one in found[:_MOST_UNLIKE]
    ]  # fmt: skip
    columns = (
        ("Rank", "text", ""), ("Figure", "text", ""), ("Its own", "ms", "ms"), ("Median", "ms", "ms"),
        ("More", "ms", "ms"),
    )  # fmt: skip
    note = "Figures further from the middle half of all ranks than three times its width."
    if len(found) > _MOST_UNLIKE:
        note += f" The {_MOST_UNLIKE} furthest of {counted(len(found), 'figure')}."
    return Listing("unlike", "Ranks unlike the others", columns, rows, note, _means(report))


def _steps(report: Report) -> Listing:
    """Each step over all ranks; only where the report does not list every step of every rank."""
    steps = () if report.fleet is None or report.fleet.windows == len(report.steps) else report.fleet.steps
    several = len({one.device for one in report.ranks}) > 1
    rows = [
        [
            one.step, one.windows, one.window_ns // one.windows, one.longest_ns, one.longest_rank,
            one.exposed_ns // one.windows, one.most_exposed_ns, one.most_exposed_rank,
        ]
        for one in steps
    ]  # fmt: skip
    columns = (
        ("Step", "int", ""), ("Ranks and devices" if several else "Ranks", "int", ""), ("Time", "ms", "ms"),
        ("Longest", "ms", "ms"), ("Of rank", "int", ""), ("Exposed", "ms", "ms"), ("Most", "ms", "ms"),
        ("Of rank ", "int", ""),
    )  # fmt: skip
    note = "Means over all ranks, and the rank with most."
    return Listing("steps-across", "Steps, over all ranks", columns, rows, note, "")
