"""Context parallelism of both runs: what of its hops is hidden, how even the work is, hop by hop.

Reports hold hops summed over steps: the noise of their times is not known. What is counted has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from sp_profiler.comparing.figures import largest_first
from sp_profiler.comparing.model import Delta, Unit
from sp_profiler.comparing.noise import LEAST_NS, LEAST_RATIO, delta
from sp_profiler.comparing.side import Side, resolution_ns
from sp_profiler.report.context import Family, HopSum, families, payload_name
from sp_profiler.report.context_compare import evenness


def context_parallel(base: Side, here: Side) -> list[Delta]:
    """Of each scheme that either run has; the n-th of a kind is compared with the n-th."""
    both = [_named(families(side.report.context_parallel)) for side in (base, here)]
    found: list[Delta] = []
    for name in dict.fromkeys([*both[0], *both[1]]):
        found += _scheme(base, here, name, both[0].get(name), both[1].get(name))
    return largest_first([one for one in found if one.verdict != "unknown"])


def _named(found: Sequence[Family]) -> dict[str, Family]:
    named: dict[str, Family] = {}
    for family in found:
        scheme = family.first.scheme
        count = sum(name.split(" ")[0] == scheme for name in named)
        named[f"{scheme} {count + 1}" if count else scheme] = family
    return named


def _scheme(base: Side, here: Side, name: str, one: Family | None, two: Family | None) -> list[Delta]:
    there = (one is not None, two is not None)
    resolution = resolution_ns(base, here)

    def add(
        figure: str, part: str, unit: Unit, values: Sequence[float | None], is_counted: bool = False
    ) -> None:
        least = {"ns": resolution, "ratio": LEAST_RATIO}.get(unit, 0.0)
        found.append(
            delta(
                f"context_parallel.{figure}",
                f"{name} {part}".strip(),
                unit,
                *values,
                resolution=least,
                noise_from="counted" if is_counted else None,
                is_there=there,
            )
        )

    found: list[Delta] = []
    both = [_times(family, side.windows) for family, side in ((one, base), (two, here))]
    for figure in both[0]:
        add(figure, "", "ns", [times[figure] for times in both])
    for phase in ("forward", "backward"):
        ratios = [None if f is None else f.exposure(phase).hidden_ratio for f in (one, two)]
        add("hidden_ratio", phase, "ratio", ratios)
    even = [(None, None) if f is None else evenness(f) for f in (one, two)]
    add("measured_ratio", "", "ratio", [pair[0] for pair in even])
    add("ideal_ratio", "", "ratio", [pair[1] for pair in even], is_counted=True)
    return found + _hops(name, one, two)


def _times(family: Family | None, windows: int) -> dict[str, float | None]:
    """Sums over hops, ns per step and rank."""
    keys = ("hidden_ns", "exposed_ns", "communication_ns", "imbalance_ns", "skew_ns", "layout_copy_ns")
    if family is None:
        return dict.fromkeys(keys)
    whole = family.exposure()
    known = bool(family.hops)
    copies = sum(one.copy_ns for one in family.layout_copies) if family.layout_copies else None
    sums = [getattr(whole, key) if known else None for key in keys[:-1]]
    values = [None if ns is None else round(ns / windows) for ns in (*sums, copies)]
    return dict(zip(keys, values, strict=True))


def _hops(name: str, one: Family | None, two: Family | None) -> list[Delta]:
    """Hop by hop the medians: how long the transfer takes, and the attention beside it."""
    both = [{_place(hop): hop for hop in ([] if f is None else f.hop_sums)} for f in (one, two)]
    found: list[Delta] = []
    for place in dict.fromkeys([*both[0], *both[1]]):
        hops = [of.get(place) for of in both]
        way, phase, payload, hop = place
        told = f"{name} {phase} {payload_name(payload)} {way} {hop}"
        for figure in ("transfer_ns", "attention_ns", "bytes"):
            is_size = figure == "bytes"
            found.append(
                delta(
                    f"context_parallel.hops.{figure}",
                    told,
                    "bytes" if is_size else "ns",
                    *(None if h is None else getattr(h, figure) for h in hops),
                    resolution=0.0 if is_size else LEAST_NS,
                    noise_from="counted" if is_size else None,
                    is_there=(hops[0] is not None, hops[1] is not None),
                )
            )
    return found


def _place(hop: HopSum) -> tuple[str, str, str, int]:
    return hop.way, hop.phase, hop.payload, hop.hop
