"""How far a figure strays by itself, and whether a difference is more than that.

A figure of a step is its mean over ranks. With s1, s2 the standard deviations of the steps' figures and
n1, n2 the steps of the two runs, the difference of the runs' means has the standard error
sqrt(s1^2/n1 + s2^2/n2). That times Student's t, of 99 % and n1 + n2 - 2 degrees of freedom, is the noise.
With a single step on a side nothing tells how far it strays: the noise is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import variance
from typing import Literal

from sp_profiler.comparing.model import Delta, Unit, Verdict

NoiseFrom = Literal["steps", "computation", "counted"]

_NORMAL_995 = 2.5758293035489004
_T_995 = (
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947,
    2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
)  # fmt: skip
"""The 0.995 quantile of Student's t for 1, 2, ... degrees of freedom."""

LEAST_NS = 1_000
SHARE_OF_STEP = 0.001
LEAST_BYTES = 512
SHARE_OF_BYTES = 0.001
LEAST_RATIO = 0.005
"""Resolutions: of times the larger of a microsecond and a thousandth of the step, of sizes of an allocator's
block and a thousandth, of shares half a point. Less is never called a change."""


def student_995(freedom: int) -> float:
    """The 0.995 quantile of Student's t: both sides leave 1 %. Beyond the table by Peiser's expansion."""
    if freedom <= len(_T_995):
        return _T_995[freedom - 1]
    z = _NORMAL_995
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def noise_of(base: Sequence[float] | None, here: Sequence[float] | None) -> float | None:
    """The half-width of the 99 % interval of the difference of the means of two samples, one value a step."""
    if base is None or here is None or min(len(base), len(here)) < 2:
        return None
    error = math.sqrt(variance(base) / len(base) + variance(here) / len(here))
    return student_995(len(base) + len(here) - 2) * error


def delta(
    figure: str,
    name: str,
    unit: Unit,
    base: float | None,
    here: float | None,
    *,
    resolution: float,
    samples: tuple[Sequence[float] | None, Sequence[float] | None] | None = None,
    noise: float | None = None,
    noise_from: NoiseFrom | None = None,
    is_there: tuple[bool, bool] = (True, True),
) -> Delta:
    """The delta of one figure, judged.

    `samples`: the figure of each step of both runs; else `noise` with where it is from. `is_there`: whether
    each run has the thing at all (else its figure is None).
    """
    if samples is not None:
        noise, noise_from = noise_of(*samples), "steps"
    if noise is None and noise_from != "counted":
        noise_from = None
    base, here = (value if there else None for value, there in zip((base, here), is_there, strict=True))
    difference = None if base is None or here is None else here - base
    verdict: Verdict
    if base is None or here is None:
        verdict = "unknown"
        if is_there[0] != is_there[1] and (base is not None or here is not None):
            verdict = "only-base" if is_there[0] else "only-here"
    elif not difference:
        verdict = "equal"
    elif samples is not None and _came(*samples, resolution):
        verdict = "came"
    elif samples is not None and _came(samples[1], samples[0], resolution):
        verdict = "went"
    else:
        verdict = _judged(abs(difference or 0), noise, noise_from, resolution)
    relative = None if difference is None or not base else difference / base
    return Delta(figure, name, unit, base, here, difference, relative, noise, noise_from, resolution, verdict)


def _judged(size: float, noise: float | None, noise_from: NoiseFrom | None, resolution: float) -> Verdict:
    if size <= resolution:
        return "within-noise"
    if noise_from == "counted":
        return "changed"
    if noise is None:
        return "noise-unknown"
    return "changed" if size > noise else "within-noise"


def _came(base: Sequence[float] | None, here: Sequence[float] | None, resolution: float) -> bool:
    """Whether it is exactly 0 in every step of one run and above the resolution in every step of the other:
    no spread explains that. Needs two steps of each."""
    if base is None or here is None or min(len(base), len(here)) < 2:
        return False
    return not any(base) and all(abs(value) > resolution for value in here)
