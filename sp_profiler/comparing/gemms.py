"""GEMMs of both runs by shape, dtype and role, and what overlap costs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sp_profiler.analysis.results import ContentionFigures, GemmFigures
from sp_profiler.comparing.figures import getter, largest_first
from sp_profiler.comparing.model import Delta, GemmChange
from sp_profiler.comparing.noise import LEAST_RATIO, delta, noise_of
from sp_profiler.comparing.side import Side, resolution_ns

Key = tuple[str | None, str | None, str]


def gemms(base: Side, here: Side) -> list[GemmChange]:
    """Every kind of GEMM of either run, largest difference in time per step and rank first.

    Reports do not hold the GEMMs of single steps. A kind of GEMM is a part of a step's computation, which
    strays at least as far where its parts do not make up for each other: its noise stands for theirs.
    """
    noise = noise_of(base.samples(getter("compute_ns")), here.samples(getter("compute_ns")))
    both = [_by_kind(side.report.gemms) for side in (base, here)]
    made = [_change(base, here, key, both, noise) for key in dict.fromkeys([*both[0], *both[1]])]
    return sorted(made, key=lambda one: -abs(one.time.contribution))


def _by_kind(gemms: Sequence[GemmFigures]) -> dict[Key, list[GemmFigures]]:
    found: dict[Key, list[GemmFigures]] = {}
    for one in gemms:
        found.setdefault((one.shape, one.dtype, one.role), []).append(one)
    return found


def _change(
    base: Side, here: Side, key: Key, both: Sequence[dict[Key, list[GemmFigures]]], noise: float | None
) -> GemmChange:
    mine = [gemms.get(key, []) for gemms in both]
    there = (bool(mine[0]), bool(mine[1]))
    totals = [sum(one.total_ns for one in gemms) for gemms in mine]
    counts = [sum(one.count for one in gemms) for gemms in mine]
    windows = (base.windows, here.windows)
    resolution = resolution_ns(base, here)
    per_step = [round(ns / n) for ns, n in zip(totals, windows, strict=True)]
    most = max(count / n for count, n in zip(counts, windows, strict=True)) or 1
    time = delta("gemms.total_ns", "", "ns", *per_step, resolution=resolution, noise=noise,
                 noise_from="computation", is_there=there)  # fmt: skip
    each = delta(
        "gemms.mean_ns",
        "",
        "ns",
        *(round(ns / count) if count else None for ns, count in zip(totals, counts, strict=True)),
        resolution=resolution / most,
        noise=None if noise is None else noise / most,
        noise_from="computation",
        is_there=there,
    )
    count = delta("gemms.count", "", "count", *(c / n for c, n in zip(counts, windows, strict=True)),
                  resolution=1e-9, noise_from="counted", is_there=there)  # fmt: skip
    kernels = [sorted({one.name for one in gemms}) for gemms in mine]
    return GemmChange(*key, kernels[0], kernels[1], time, count, each)


_OF_CONTENTION: tuple[tuple[str, Any, float], ...] = (
    ("slowdown_ratio", "ratio", LEAST_RATIO),
    ("slowdown_ns", "ns", 1000.0),
    ("median_overlapped_ns", "ns", 1000.0),
    ("median_alone_ns", "ns", 1000.0),
)


def contention(base: Side, here: Side) -> list[Delta]:
    """What GEMMs lose to the communication beside them; empty where neither run tells.

    Medians over all steps, without their spread: the noise is not known.
    """
    both = [
        {(one.shape, one.dtype, one.role): one for one in side.report.contention or ()}
        for side in (base, here)
    ]
    found: list[Delta] = []
    for key in dict.fromkeys([*both[0], *both[1]]):
        one, two = (rows.get(key) for rows in both)
        name = " ".join(str(part) for part in (key[2], key[0], key[1]) if part)
        for figure, unit, resolution in _OF_CONTENTION:
            found.append(
                delta(
                    f"contention.{figure}",
                    name,
                    unit,
                    _of(one, figure, base),
                    _of(two, figure, here),
                    resolution=resolution,
                    is_there=(one is not None, two is not None),
                )
            )
    return largest_first([one for one in found if one.verdict != "unknown"])


def _of(row: ContentionFigures | None, figure: str, side: Side) -> float | None:
    value = None if row is None else getattr(row, figure)
    return round(value / side.windows) if figure == "slowdown_ns" and value is not None else value
