"""What the tables of context parallelism share: columns, and the cells of what is exposed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sp_profiler.report.context import Exposure, Family

TEXT, INT, MS, US, RATIO, BYTES = "text", "int", "ms", "us", "ratio", "bytes"

Columns = Sequence[tuple[str, str, str]]
Row = list[Any]

UNKNOWN_PART = "Cause not known"
PARTS: Columns = (
    ("Communication", MS, "ms"),
    ("Imbalance", MS, "ms"),
    ("Skew", MS, "ms"),
    (UNKNOWN_PART, MS, "ms"),
)
PARTS_NOTE = (
    "Exposed (each hop by itself: two at once both count) is communication (every peer was there), "
    "imbalance (waiting for a peer that had more attention "
    "to compute) and skew (waiting for one late for another reason)."
)


def cells(
    kinds: Sequence[Family],
    columns: Columns,
    rows: Iterable[tuple[Family, Row]],
    optional: Sequence[str] = (),
    leave_out: Sequence[str] = (),
) -> tuple[list[tuple[str, str, str]], list[Row]]:
    """Columns and rows of a listing, the scheme in front where there is more than one kind; `optional` and
    `leave_out` as in `without_empty`."""
    several = len(kinds) > 1
    shown = [("Scheme", TEXT, ""), *columns] if several else list(columns)
    made = [[family.short_name, *row] if several else row for family, row in rows]
    return without_empty(shown, made, optional, leave_out)


def without_empty(
    columns: Columns, rows: Sequence[Row], optional: Sequence[str], leave_out: Sequence[str] = ()
) -> tuple[list[tuple[str, str, str]], list[Row]]:
    """Without the columns `leave_out` (labels), and those of `optional` in which no row has a value; 0 counts
    as none."""
    kept = [
        at
        for at, (label, *_) in enumerate(columns)
        if label not in leave_out and (label not in optional or any(row[at] for row in rows))
    ]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def places(columns: Columns, *labels: str) -> list[int]:
    """Where the columns of these labels stand, in the order of the labels."""
    return [at for name in labels for at, column in enumerate(columns) if column[0] == name]


def part_cells(one: Exposure, passes: int) -> Row:
    """Hidden share, exposed time and its parts, means of a pass. Parts of which nothing is known: null."""

    def mean(ns: int) -> float | None:
        return round(ns / passes, 1) if passes else None

    nothing_known = bool(one.unknown_ns) and one.unknown_ns == one.exposed_ns
    parts = [None if nothing_known else mean(ns) for key, ns in one.parts.items() if key != "unknown"]
    return [one.hidden_ratio, mean(one.exposed_ns), *parts, mean(one.unknown_ns)]
