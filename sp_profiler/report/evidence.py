"""The evidence of a finding as screens show it: of many ranks or groups what a reader can take in.

`report.json` holds all of it. What is short stays as it is.
"""

from __future__ import annotations

from typing import Any

from sp_profiler.report.format import counted, rank_list, shown_group

MOST_SHOWN = 16
"""Values of a list that are all shown; of more the first `_FIRST`, of ranks their stretches."""
_FIRST = 8


def readable(key: str, value: Any) -> Any:
    """A value of the evidence, a list or text shortened where it is long."""
    if isinstance(value, str):
        return shown_group(value)
    if isinstance(value, dict):
        return {name: readable(name, part) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > MOST_SHOWN and key.startswith("ranks") and all(isinstance(one, int) for one in value):
        return ranks_of_many(value)
    shown = [readable("", one) for one in value]
    if len(shown) > MOST_SHOWN:
        return [*shown[:_FIRST], f"and {counted(len(shown) - _FIRST, 'more', 'more')}"]
    return shown


def ranks_of_many(ranks: list[int]) -> str:
    """`0-63, 72-127 (120 ranks)`; of scattered ones the first."""
    parts = rank_list(ranks).split(", ")
    more = (
        f", and {counted(len(parts) - _FIRST, 'more stretch', 'more stretches')}"
        if len(parts) > _FIRST
        else ""
    )
    return f"{', '.join(parts[:_FIRST])}{more} ({counted(len(ranks), 'rank')})"
