"""What a page shows of the ranks beside each other: stragglers, bandwidths, clocks, what did not match.

Columns and rows only, for `view` and the terminal. Text from a trace stays as it is: who shows it escapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sp_profiler.report.format import counted, rank_list, short_group
from sp_profiler.report.model import Report, by_step
from sp_profiler.report.sentences import op_name

_GROUPS = 3  # groups named in a cell
_LONG = 48  # characters of their names from which they are shortened


@dataclass(frozen=True)
class Listing:
    """`columns`: (label, kind, unit) as in `table.Column`; a row holds a value for each."""

    id: str
    title: str
    columns: Sequence[tuple[str, str, str]]
    rows: list[list[Any]]
    note: str
    basis: str = ""  # what its times and sizes are sums of
    adds: Sequence[int] = ()  # places of the columns whose values add up
    first_dropped: Sequence[int] = (
        -1,
        2,
    )  # what narrow terminals leave out first, then the last ones


def _sums(report: Report) -> str:
    return "sums over all ranks and steps" if by_step(report) else "sums over all ranks"


def listings(report: Report) -> list[Listing]:
    """Those that hold anything, most asked first."""
    made = (stragglers(report), bandwidths(report), clocks(report), unmatched(report))
    return [one for one in made if one.rows]


def stragglers(report: Report) -> Listing:
    whole = sum(one.cost_ns for one in report.stragglers or ())
    rows = [
        [
            one.rank,
            one.cost_ns,
            one.cost_ns / whole if whole else None,
            one.collectives,
            _groups(one.cost_by_group_ns),
        ]
        for one in report.stragglers or ()
    ]
    columns = (
        ("Rank", "int", ""),
        ("Others lost", "ms", "ms"),
        ("Of all", "ratio", "%"),
        ("Last in", "int", ""),
        ("Groups", "text", ""),
    )
    note = "Time the other ranks waited in collectives at which this rank arrived last. Ties are nobody's."
    title = "Across ranks: who the others waited for"
    return Listing("stragglers", title, columns, rows, note, _sums(report), adds=(1, 2, 3))


def _groups(cost_by_group_ns: dict[str, int]) -> str:
    names = list(cost_by_group_ns)
    if len(", ".join(names[:_GROUPS])) > _LONG:
        names = [short_group(name) for name in names]
    more = f" and {counted(len(names) - _GROUPS, 'more', 'more')}" if len(names) > _GROUPS else ""
    return ", ".join(names[:_GROUPS]) + more


def bandwidths(report: Report) -> Listing:
    rows = [
        [
            group.group, op_name(one.op), one.collectives, one.bytes, one.transfer_ns,
            one.algbw_gbps, one.busbw_gbps, "lower bound" if one.is_bound else "",
        ]
        for group in report.groups
        for one in group.bandwidth or ()
    ]  # fmt: skip
    columns = (
        ("Group", "text", ""),
        ("Collective", "text", ""),
        ("Count", "int", ""),
        ("Size", "bytes", ""),
        ("Transfer", "ms", "ms"),
        ("algbw", "number", "GB/s"),
        ("busbw", "number", "GB/s"),
        ("", "text", ""),
    )
    note = (
        "Size over transfer (from the last arrival to the end), busbw with the factors of nccl-tests; "
        "1 GB = 1e9 bytes."
    )
    return Listing("bandwidth", "Across ranks: bandwidth", columns, rows, note, _sums(report), adds=(2, 3, 4))


def clocks(report: Report) -> Listing:
    """Only where there is something to say: several clocks, or one that was corrected."""
    told = report.clocks or []
    rows = [
        [
            one.host, rank_list(list(one.ranks)), one.offset_ns, one.spread_ns, one.residual_ns,
            "yes" if one.applied else "no", one.collectives,
        ]
        for one in (told if len(told) > 1 else [])
    ]  # fmt: skip
    columns = (
        ("Host", "text", ""),
        ("Ranks", "text", ""),
        ("Ahead by", "us", "µs"),
        ("Spread", "us", "µs"),
        ("Left", "us", "µs"),
        ("Corrected", "text", ""),
        ("Ends compared", "int", ""),
    )
    note = "Against the host of the lowest rank, by the ends of collectives that end together."
    return Listing("clocks", "Across ranks: clocks", columns, rows, note)


def unmatched(report: Report) -> Listing:
    reasons = {"not-in-trace": "not in their traces", "no-trace": "no trace here"}
    rows = [
        [
            one.group, op_name(one.op), one.seq, one.collectives, rank_list(list(one.ranks_present)),
            rank_list(list(one.ranks_missing)), reasons.get(one.reason, one.reason),
        ]
        for one in report.unmatched or ()
    ]  # fmt: skip
    columns = (
        ("Group", "text", ""),
        ("Collective", "text", ""),
        ("Seq", "int", ""),
        ("Count", "int", ""),
        ("Ranks here", "text", ""),
        ("Ranks missing", "text", ""),
        ("Why", "text", ""),
    )
    note = "Collectives that some of their ranks lack: transfers are upper, bandwidths lower bounds."
    return Listing("unmatched", "Across ranks: not matched", columns, rows, note, adds=(3,))


def left_out(report: Report) -> Listing:
    """What lies outside every window, and so in no figure."""
    rows = [
        [rank.rank, rank.device, entry.reason, entry.kind, entry.events, entry.ns]
        for rank in report.ranks
        for entry in rank.left_out
    ]
    columns = (
        ("Rank", "int", ""),
        ("Device", "int", ""),
        ("Why", "text", ""),
        ("Kind", "text", ""),
        ("Events", "int", ""),
        ("Time", "ms", "ms"),
    )
    return Listing("left_out", "Left out of every window", columns, rows, "", adds=(4, 5))
