"""The tables of how evenly a ring's attention is divided: by phase, by ring step, by rank.

Text from a trace stays as it is: who shows it escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sp_profiler.analysis.context_parallel.results import Balance, Hop
from sp_profiler.report.context import Family, PhaseBalance, balances, exposure, phase_place
from sp_profiler.report.context_cells import (
    INT,
    MS,
    PARTS,
    PARTS_NOTE,
    RATIO,
    TEXT,
    UNKNOWN_PART,
    Columns,
    Row,
    cells,
    part_cells,
)
from sp_profiler.report.view_ranks import Listing


def balance(kinds: Sequence[Family]) -> Listing:
    """How evenly the attention is divided, measured and by counting."""
    columns: Columns = (
        ("Phase", TEXT, ""),
        ("Layout", TEXT, ""),
        ("Even, measured", RATIO, "%"),
        ("By counting", RATIO, "%"),
        ("Endless sequence", RATIO, "%"),
        ("Lost", MS, "ms"),
        ("Lost most", MS, "ms"),
        ("By rank", INT, ""),
    )
    rows = [(family, _balance_row(family, one)) for family in kinds for one in balances(family)]
    shown, made = cells(kinds, columns, rows, ("Layout", "By counting", "Endless sequence"))
    note = (
        "Even: an even division over the sum of the ring steps' slowest ranks. By counting: the scores that "
        "the mask leaves in this layout. Lost: of a rank and pass, the steps' maxima less its own work."
    )
    title = "How evenly attention is divided"
    return Listing("context-balance", title, shown, made, note, "of one pass", (), [-1, -2, -4])


def _balance_row(family: Family, one: PhaseBalance) -> Row:
    losses = [
        (ns, rank)
        for balance in one.balances
        for ns, rank in zip(balance.lost_ns or (), balance.ranks, strict=False)
    ]
    most_ns, loser = max(losses, default=(None, None), key=lambda loss: loss[0])
    return [
        one.phase, family.first.layout, one.measured_ratio, one.ideal_ratio, one.limit_ratio, one.lost_ns,
        most_ns, loser if most_ns else None,
    ]  # fmt: skip


def steps(kinds: Sequence[Family], most: int | None = None) -> Listing:
    """Ring step by ring step: what an even division would take, and the slowest rank. Where there are more
    than `most`, the least even ones first."""
    columns: Columns = (
        ("Phase", TEXT, ""),
        ("Ring step", INT, ""),
        ("Attention, mean", MS, "ms"),
        ("Slowest", MS, "ms"),
        ("Rank", INT, ""),
        ("Least", MS, "ms"),
        ("Even, measured", RATIO, "%"),
        ("By counting", RATIO, "%"),
    )
    rows = [
        (family, [one.phase, *row])
        for family in kinds
        for one in balances(family)
        for row in _step_rows(one.least_even)
    ]
    first = ""
    if most is not None and len(rows) > most:
        rows.sort(key=lambda pair: 2.0 if (even := pair[1][6]) is None else even)
        first = ", least even first"
    shown, made = cells(kinds, columns, rows, ("By counting",))
    several = any(len(one.balances) > 1 for family in kinds for one in balances(family))
    note = "Medians of the ranks' passes; even: mean over slowest."
    note += " Of several sets of ranks the least even one." if several else ""
    title = f"Attention by ring step{first}"
    return Listing("context-steps", title, shown, made, note, "of one pass", (), [-1, 5])


def _step_rows(one: Balance) -> list[Row]:
    rows: list[Row] = []
    for step in range(max((len(row) for row in one.work_ns), default=0)):
        work = [row[step] if step < len(row) else None for row in one.work_ns]
        known = [(ns, rank) for ns, rank in zip(work, one.ranks, strict=True) if ns is not None]
        if not known:
            rows.append([step, None, None, None, None, None, None])
            continue
        most, slowest = max(known, key=lambda pair: pair[0])
        whole = len(known) == len(work)  # else a mean over some ranks says nothing of how even they are
        mean = sum(ns for ns, _ in known) / len(known)
        scores = None if one.scores is None else [row[step] for row in one.scores]
        counted = sum(scores) / len(scores) / max(scores) if scores and max(scores) else None
        even = mean / most if whole and most else None
        rows.append([step, mean, most, slowest, min(known)[0], even, counted])
    return rows


def ranks(kinds: Sequence[Family]) -> Listing:
    """Each rank: its attention of a pass, what it loses, and what its hops' exposed time is made of."""
    columns: Columns = (
        ("Phase", TEXT, ""),
        ("Rank", INT, ""),
        ("Attention", MS, "ms"),
        ("Of an even share", RATIO, "%"),
        ("Lost", MS, "ms"),
        ("Hidden", RATIO, "%"),
        ("Exposed", MS, "ms"),
        *PARTS,
    )
    rows = [(family, row) for family in kinds for row in _rank_rows(family)]
    shown, made = cells(kinds, columns, rows, (UNKNOWN_PART, "Attention", "Of an even share"))
    note = f"Of one pass: attention of all its ring steps, what all its hops leave exposed. {PARTS_NOTE}"
    return Listing("context-ranks", "Context parallelism by rank", shown, made, note)


def _rank_rows(family: Family) -> list[Row]:
    by_rank: dict[tuple[str, int | None], list[Hop]] = {}
    for hop in family.hops:
        by_rank.setdefault((hop.phase, hop.rank), []).append(hop)
    work: dict[tuple[str, int | None], tuple[int | None, int | None, float | None]] = {
        (one.phase, rank): (own, lost, even_share(one))
        for one in family.balance
        for rank, own, lost in zip(
            one.ranks, map(_sum, one.work_ns), one.lost_ns or [None] * len(one.ranks), strict=True
        )
    }
    keys = sorted(by_rank.keys() | work.keys(), key=lambda key: (phase_place(key[0]), key[1] or 0))
    rows: list[Row] = []
    for phase, rank in keys:
        mine = by_rank.get((phase, rank), [])
        own, lost, even = work.get((phase, rank), (None, None, None))
        share = own / even if own is not None and even else None
        passes = max((hop.passes for hop in mine), default=0)
        rows.append([phase, rank, own, share, lost, *part_cells(exposure(mine), passes)])
    return rows


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)


def even_share(one: Balance) -> float | None:
    """A rank's work of a pass were it divided evenly, ns; None where some of it is not known."""
    whole = _sum(ns for row in one.work_ns for ns in row)
    return None if whole is None or not one.ranks else whole / len(one.ranks)
