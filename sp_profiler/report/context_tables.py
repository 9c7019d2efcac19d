"""Context parallelism as rows for the data files: every rank, sums and medians as they were measured.

`context_balance` has a row for each ring step of each rank, and one with `ring_step` null for all of them,
which has what the rank loses and the ratios of its group.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from sp_profiler.analysis.context_parallel.results import (
    Balance,
    ContextParallel,
    Hop,
    LayoutCopies,
    Scheme,
    StepModel,
)
from sp_profiler.report.json import to_plain

_RATIOS = ["measured_ratio", "ideal_ratio", "limit_ratio"]
_OF_RANK = ["lost_ns", "imbalance_ns", "communication_ns", "skew_ns"]
_LISTS = {
    "context_schemes": ("schemes", Scheme),
    "context_hops": ("hops", Hop),
    "context_models": ("models", StepModel),
    "context_layout_copies": ("layout_copies", LayoutCopies),
}

COLUMNS: dict[str, list[str]] = {
    **{name: [f.name for f in fields(cls)] for name, (_, cls) in _LISTS.items()},
    "context_balance": ["group", "phase", "rank", "ring_step", "work_ns", "score", *_OF_RANK, *_RATIOS],
}

Row = dict[str, Any]


def kinds(table: str) -> dict[str, type]:
    """Of the columns of one of `COLUMNS` the types of their values (of a list those of its items), so that a
    column without any value has one too."""
    if table in _LISTS:
        return {name: _type(hint) for name, hint in typing.get_type_hints(_LISTS[table][1]).items()}
    words, ratios = dict.fromkeys(("group", "phase"), str), dict.fromkeys(_RATIOS, float)
    return dict.fromkeys(COLUMNS[table], int) | words | ratios


def _type(hint: Any) -> type:
    """`int | None` and `list[int]` -> int; the words of a Literal -> str."""
    options = [one for one in (typing.get_args(hint) or (hint,)) if one is not type(None)]
    return options[0] if isinstance(options[0], type) else str


def rows(found: ContextParallel | None, table: str) -> Iterator[Row]:
    """The rows of one of `COLUMNS`; none where no context parallelism was found."""
    if found is None:
        return
    if table == "context_balance":
        for one in found.balance:
            yield from _balance(one)
        return
    for one in getattr(found, _LISTS[table][0]):
        yield to_plain(one)


def _balance(one: Balance) -> Iterator[Row]:
    ratios = {name: getattr(one, name) for name in _RATIOS}
    lists = {name: getattr(one, name) for name in _OF_RANK}
    for place, rank in enumerate(one.ranks):
        where = {"group": one.group, "phase": one.phase, "rank": rank}
        work = one.work_ns[place]
        scores = one.scores[place] if one.scores is not None else None
        of_rank = {name: None if values is None else values[place] for name, values in lists.items()}
        yield (
            where
            | {
                "ring_step": None,
                "work_ns": None if None in work else sum(ns or 0 for ns in work),
                "score": None if scores is None else sum(scores),
            }
            | of_rank
            | ratios
        )
        for step, ns in enumerate(work):
            at = {"ring_step": step, "work_ns": ns, "score": None if scores is None else scores[step]}
            yield where | at | dict.fromkeys((*_OF_RANK, *_RATIOS))
