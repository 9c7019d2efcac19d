"""Adding figures up: the steps of a device to a rank's figures, ranks to a run's.

Sums of integers, so the order and the number of workers change nothing. Ratios are recomputed from the
sums. A figure that is None in some is the sum of the others, and None where nobody knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sp_profiler.analysis.hiding import hiding, step_ns_if_all_hidden
from sp_profiler.analysis.results import Coverage, Figures, Hiding, Known

_RATIOS = {
    "overlap_ratio": ("overlapped_ns", "comm_ns"),
    "wgrad_overlap_ratio": ("wgrad_overlapped_ns", "dgrad_comm_ns"),
    "hidden_of_hideable": ("partner_hidden_ns", "partner_hideable_ns"),
}
_DICTIONARIES = (
    "overlapped_by_role_ns",
    "exposed_by_group_ns",
    "exposed_by_op_ns",
    "exposed_by_purpose_ns",
    "exposed_by_phase_ns",
    "exposed_by_module_ns",
    "exposed_by_layer_ns",
    "exposed_union_by_group_ns",
)
_SPECIAL = ("hiding_by_purpose", "step_ns_if_all_hidden", *_RATIOS)


def total(figures: Sequence[Figures]) -> Figures:
    """The figures of a run from those of its ranks and devices.

    `step_ns_if_all_hidden` is the maximum: the slowest rank decides. It is None when a rank that could be
    looked at does not know its own.
    """
    looked_at = [one for one in figures if one.window_ns is not None]
    candidates = [one.step_ns_if_all_hidden for one in looked_at]
    known = [ns for ns in candidates if ns is not None]
    return _sum(figures, lambda _: max(known) if known and len(known) == len(candidates) else None)


def sum_of_windows(figures: Sequence[Figures]) -> Figures:
    """The figures of one device from those of its windows; what it would take without the hideable part
    follows from the sums."""

    def recomputed(sums: dict[str, Any]) -> int | None:
        whole = hiding(sums["partner_hidden_ns"], sums["partner_hideable_ns"])
        return step_ns_if_all_hidden(sums["window_ns"], sums["exposed_ns"], whole)

    return _sum(figures, recomputed)


def ratio(part: int | None, whole: int | None) -> float | None:
    """A share in [0, 1]; None where there is nothing to have a share of, never NaN."""
    return part / whole if part is not None and whole else None


def _sum(figures: Sequence[Figures], step_if_all_hidden: Callable[[dict[str, Any]], int | None]) -> Figures:
    sums: dict[str, Any] = {}
    for field in fields(Figures):
        if field.name not in _SPECIAL:
            added = _added([getattr(one, field.name) for one in figures])
            sums[field.name] = {} if added is None and field.name in _DICTIONARIES else added
    for name, (part, whole) in _RATIOS.items():
        both = [(getattr(one, part), getattr(one, whole)) for one in figures]
        known = [(x, y) for x, y in both if x is not None and y is not None]
        sums[name] = ratio(sum(x for x, _ in known), sum(y for _, y in known))
    sums["hiding_by_purpose"] = _added_hiding([one.hiding_by_purpose for one in figures])
    sums["step_ns_if_all_hidden"] = step_if_all_hidden(sums)
    return Figures(**sums)


def _added(values: list[Any]) -> Any:
    """The sum of numbers, or of dictionaries key by key; None where all are None."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return added_parts(known) if isinstance(known[0], dict) else sum(known)


def added_parts(
    several: Iterable[Mapping[str, int]], name_of: Callable[[str], str] | None = None
) -> dict[str, int]:
    """Dictionaries added key by key. With `name_of` under other names, of which several may become one."""
    whole: dict[str, int] = {}
    for parts in several:
        for key, value in parts.items():
            name = key if name_of is None else name_of(key)
            whole[name] = whole.get(name, 0) + value
    return whole


def _added_hiding(values: list[dict[str, Hiding]]) -> dict[str, Hiding]:
    purposes = {purpose: None for one in values for purpose in one}
    return {
        purpose: hiding(
            _added([one[purpose].partner_hidden_ns for one in values if purpose in one]),
            _added([one[purpose].partner_hideable_ns for one in values if purpose in one]),
        )
        for purpose in purposes
    }


def total_coverage(parts: Sequence[Coverage]) -> Coverage:
    """The coverage of a run from that of its ranks, weighted by time."""

    def added(name: str) -> Known:
        known = [getattr(part, name) for part in parts]
        return Known(sum(one.known_ns for one in known), sum(one.total_ns for one in known))

    return Coverage(**{field.name: added(field.name) for field in fields(Coverage)})
