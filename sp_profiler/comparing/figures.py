"""The figures of whole runs, of ranks, and what a step is made of, each beside the other run's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp_profiler.analysis.results import Figures, Hiding, RankFigures
from sp_profiler.comparing.groups import Groups
from sp_profiler.comparing.model import Delta, RankChange
from sp_profiler.comparing.noise import LEAST_RATIO, delta
from sp_profiler.comparing.side import Get, Side, resolution_ns

TIMES = (
    "window_ns", "compute_ns", "comm_ns", "overlapped_ns", "exposed_ns", "memory_op_ns", "memory_op_only_ns",
    "busy_ns", "idle_ns", "dgrad_comm_ns", "wgrad_overlapped_ns", "partner_hidden_ns", "partner_hideable_ns",
    "host_bound_ns", "slowdown_ns", "net_gain_ns", "fused_ns",
)  # fmt: skip
RATIOS = (
    ("overlap_ratio", "overlapped_ns", "comm_ns"),
    ("wgrad_overlap_ratio", "wgrad_overlapped_ns", "dgrad_comm_ns"),
    ("hidden_of_hideable", "partner_hidden_ns", "partner_hideable_ns"),
)
DIMENSIONS = ("cause", "purpose", "op", "group", "phase", "layer", "module")
"""What exposed time is told by; "role" tells by what communication is hidden."""
_FIXED = ("role", "cause")
"""Whose keys are all there are: one that is absent is 0, not missing."""


def largest_first(deltas: Sequence[Delta]) -> list[Delta]:
    """By size of the difference; what only one run has by its own size, what nobody knows last."""
    return sorted(deltas, key=lambda one: (one.base is None and one.here is None, -abs(one.contribution)))


def getter(name: str) -> Get:
    return lambda figures: getattr(figures, name)


def time_delta(
    base: Side, here: Side, figure: str, get: Get, name: str = "", is_there: tuple[bool, bool] = (True, True)
) -> Delta:
    """A time per step and rank, with the noise of the steps."""
    return delta(
        figure,
        name,
        "ns",
        base.mean(get),
        here.mean(get),
        resolution=resolution_ns(base, here),
        samples=(base.samples(get), here.samples(get)),
        is_there=is_there,
    )


def totals(base: Side, here: Side) -> list[Delta]:
    """All figures of the whole run."""
    found = [time_delta(base, here, name, getter(name)) for name in TIMES]
    found.append(_if_all_hidden(base, here))
    for name, part, whole in RATIOS:
        found.append(
            delta(
                name,
                "",
                "ratio",
                getattr(base.report.totals, name),
                getattr(here.report.totals, name),
                resolution=LEAST_RATIO,
                samples=(
                    base.ratios(getter(part), getter(whole)),
                    here.ratios(getter(part), getter(whole)),
                ),
            )
        )
    found.append(
        delta(
            "partner_unknown",
            "",
            "count",
            *(_per_window(side, side.report.totals.partner_unknown) for side in (base, here)),
            resolution=1e-9,
            samples=(base.samples(getter("partner_unknown")), here.samples(getter("partner_unknown"))),
        )
    )
    return found


def _per_window(side: Side, value: int | None) -> float | None:
    return None if value is None else value / side.windows


def _if_all_hidden(base: Side, here: Side) -> Delta:
    """The step if all that can be hidden were: of the slowest rank."""
    values: list[float | None] = []
    samples: list[list[float] | None] = []
    for side in (base, here):
        ranks = [(rank.step_ns_if_all_hidden, side.windows_of(rank)) for rank in side.report.ranks]
        known = [round(ns / count) for ns, count in ranks if ns is not None]
        values.append(max(known) if known and len(known) == len(ranks) else None)
        steps = [[one.step_ns_if_all_hidden for one in step] for step in side.steps]
        complete = all(None not in step for step in steps)
        samples.append([max(ns or 0 for ns in step) for step in steps] if complete else None)
    return delta(
        "step_ns_if_all_hidden",
        "",
        "ns",
        *values,
        resolution=resolution_ns(base, here),
        samples=(samples[0], samples[1]),
    )


def step_parts(base: Side, here: Side) -> list[Delta]:
    """What a step is made of: computation only, overlapped, copies, idle, and exposed time by cause.

    Their differences sum to the step's, to the ns of rounding.
    """
    causes: dict[str, None] | None = {}
    for side in (base, here):
        told = side.report.totals.exposed_by_cause_ns
        causes = None if causes is None or told is None else causes | dict.fromkeys(told)
    parts: list[tuple[str, Get]] = [
        ("compute_only", lambda f: _less(f.compute_ns, f.overlapped_ns)),
        ("overlapped", getter("overlapped_ns")),
        ("memory_op_only", getter("memory_op_only_ns")),
        ("idle", getter("idle_ns")),
    ]
    if causes is None:
        parts.append(("exposed", getter("exposed_ns")))
    else:
        parts += [(f"exposed.{cause}", _of_key("exposed_by_cause_ns", cause)) for cause in causes]
    return largest_first([time_delta(base, here, "step", get, name) for name, get in parts])


def _less(one: int | None, two: int | None) -> int | None:
    return None if one is None or two is None else one - two


def _of_key(figure: str, key: str) -> Get:
    """One entry of a figure that is told by key; 0 where there is none, None where nobody knows any."""

    def get(figures: Figures) -> int | None:
        told = getattr(figures, figure)
        return None if told is None else told.get(key, 0)

    return get


def by_dimension(base: Side, here: Side, groups: Groups) -> dict[str, list[Delta]]:
    """Exposed time by cause, purpose, ...; hidden time by the role it runs under."""
    found = {"role": _by_key(base, here, "overlapped_by_role_ns", "role", None)}
    for dimension in DIMENSIONS:
        figure = f"exposed_by_{dimension}_ns"
        found[dimension] = _by_key(base, here, figure, dimension, groups if dimension == "group" else None)
    return found


def _by_key(base: Side, here: Side, figure: str, dimension: str, groups: Groups | None) -> list[Delta]:
    told = [getattr(side.report.totals, figure) for side in (base, here)]
    if None in told:
        return []
    names: dict[str, tuple[list[str], list[str]]] = {}
    for place, keys in enumerate(told):
        for key in keys:
            name = key if groups is None else groups.name(place, key)
            names.setdefault(name, ([], []))[place].append(key)
    found: list[Delta] = []
    for name, (one, two) in names.items():
        there = (True, True) if dimension in _FIXED else (bool(one), bool(two))
        gets = [_of_keys(figure, keys or [name]) for keys in (one, two)]
        found.append(
            delta(
                figure,
                name,
                "ns",
                base.mean(gets[0]),
                here.mean(gets[1]),
                resolution=resolution_ns(base, here),
                samples=(base.samples(gets[0]), here.samples(gets[1])),
                is_there=there,
            )
        )
    return largest_first(found)


def _of_keys(figure: str, keys: Sequence[str]) -> Get:
    def get(figures: Figures) -> int:
        told: dict[str, int] = getattr(figures, figure) or {}
        return sum(told.get(key, 0) for key in keys)

    return get


def hiding_by_purpose(base: Side, here: Side) -> list[Delta]:
    """How much of what could be hidden is hidden, purpose by purpose: the two times and their ratio."""
    told = [side.report.totals.hiding_by_purpose for side in (base, here)]
    found: list[Delta] = []
    for purpose in dict.fromkeys([*told[0], *told[1]]):
        there = (purpose in told[0], purpose in told[1])
        for name in ("partner_hidden_ns", "partner_hideable_ns"):
            get = _of_purpose(purpose, name)
            found.append(time_delta(base, here, f"hiding_by_purpose.{name}", get, purpose, there))
        ratios = [side.get(purpose, Hiding()).hidden_of_hideable for side in told]
        part, whole = (_of_purpose(purpose, f"partner_{what}_ns") for what in ("hidden", "hideable"))
        figure = "hiding_by_purpose.hidden_of_hideable"
        samples = (base.ratios(part, whole), here.ratios(part, whole))
        found.append(
            delta(figure, purpose, "ratio", *ratios, resolution=LEAST_RATIO, samples=samples, is_there=there)
        )
    return found


def _of_purpose(purpose: str, name: str) -> Get:
    def get(figures: Figures) -> int | None:
        hiding = figures.hiding_by_purpose.get(purpose)
        return None if hiding is None else getattr(hiding, name)

    return get


def ranks(base: Side, here: Side) -> list[RankChange]:
    """The times of each rank and device that either run has, means per step."""
    found: dict[tuple[int | None, int], list[RankFigures | None]] = {}
    for place, side in enumerate((base, here)):
        for rank in side.report.ranks:
            found.setdefault((rank.rank, rank.device), [None, None])[place] = rank
    changes = [_rank(base, here, key, pair) for key, pair in found.items()]
    return sorted(changes, key=lambda one: -max(abs(f.contribution) for f in one.figures))


def _rank(
    base: Side, here: Side, key: tuple[int | None, int], pair: Sequence[RankFigures | None]
) -> RankChange:
    there = (pair[0] is not None, pair[1] is not None)
    steps = [
        [] if rank is None else side.of_rank(rank) for side, rank in zip((base, here), pair, strict=True)
    ]

    def one(name: str) -> Delta:
        values: list[float | None] = []
        samples: list[list[float] | None] = []
        for side, rank, mine in zip((base, here), pair, steps, strict=True):
            whole: Any = None if rank is None else getattr(rank, name)
            count = 1 if rank is None else side.windows_of(rank)
            values.append(None if whole is None else round(whole / count))
            each = [getattr(step, name) for step in mine]
            samples.append(None if None in each or len(each) < count else each)
        return delta(
            name,
            "",
            "ns",
            *values,
            resolution=resolution_ns(base, here),
            samples=(samples[0], samples[1]),
            is_there=there,
        )

    return RankChange(*key, [one(name) for name in TIMES])
