"""What is a change and what is noise: the rule of docs/compare.md, on samples drawn by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.comparing.noise import delta, noise_of, student_995


def student_tail(t: float, freedom: int) -> float:
    """The probability of Student's t above t, by Simpson's rule on x = tan(u)."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    low, high, count = math.atan(t), math.pi / 2 - 1e-9, 4000

    def density(u: float) -> float:
        return scale * (1 + math.tan(u) ** 2 / freedom) ** (-(freedom + 1) / 2) / math.cos(u) ** 2

    width = (high - low) / count
    inner = sum((4 if place % 2 else 2) * density(low + place * width) for place in range(1, count))
    return (density(low) + inner + density(high)) * width / 3


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 18, 30, 31, 60, 120, 1000])
def test_the_quantile_leaves_half_a_percent_above_it(freedom: int) -> None:
    assert student_tail(student_995(freedom), freedom) == pytest.approx(0.005, rel=2e-3)


def test_the_noise_of_two_and_two_steps() -> None:
    # means 12 and 21; variances 8 and 2: error sqrt(8/2 + 2/2) = sqrt(5); t of 2 degrees 9.925
    assert noise_of([10, 14], [20, 22]) == pytest.approx(9.925 * math.sqrt(5))
    assert noise_of([10], [20, 22]) is None
    assert noise_of(None, [20, 22]) is None
    assert noise_of([3, 3, 3], [5, 5]) == 0


def judged(base: list[float], here: list[float], resolution: float = 1.0) -> str:
    one, two = sum(base) / len(base), sum(here) / len(here)
    return delta("x", "", "ns", one, two, resolution=resolution, samples=(base, here)).verdict


def test_beyond_noise_is_a_change_and_within_it_none() -> None:
    assert judged([100, 102], [130, 132]) == "changed"  # noise 9.925 * sqrt(2) = 14
    assert judged([100, 102], [112, 114]) == "within-noise"
    assert judged([100, 102], [100, 102]) == "equal"
    assert judged([100, 100], [101, 101], resolution=1.0) == "within-noise"  # no spread: the resolution holds
    assert judged([100, 100], [102, 102], resolution=1.0) == "changed"


def test_one_step_alone_tells_no_noise() -> None:
    one = delta("x", "", "ns", 100, 900, resolution=1.0, samples=([100], [900]))
    assert (one.verdict, one.noise, one.noise_from) == ("noise-unknown", None, None)
    assert judged([0], [900]) == "noise-unknown"  # that it came, too, needs two steps of each
    assert judged([100], [100]) == "equal"
    assert judged([100], [100.5]) == "within-noise"  # below the resolution whatever the noise


def test_what_was_none_in_every_step_and_is_there_in_every_step_came() -> None:
    assert judged([0, 0], [5, 900]) == "came"  # whatever its spread
    assert judged([5, 900], [0, 0]) == "went"
    assert judged([0, 0], [0.5, 900]) == "within-noise"  # not above the resolution in every step
    assert judged([0, 1], [5, 900]) == "within-noise"


def test_what_a_run_lacks_is_null_and_named() -> None:
    one = delta("x", "k", "ns", 0, 7, resolution=1.0, is_there=(False, True))
    assert (one.base, one.here, one.difference, one.relative, one.verdict) == (
        None,
        7,
        None,
        None,
        "only-here",
    )
    assert one.is_changed
    two = delta("x", "", "ns", None, 7, resolution=1.0)
    assert (two.verdict, two.is_changed, two.contribution) == ("unknown", False, 0.0)


@given(
    st.lists(st.integers(0, 10**9), min_size=2, max_size=12),
    st.lists(st.integers(0, 10**9), min_size=2, max_size=12),
    st.randoms(),
)
def test_the_order_of_steps_does_not_matter(base: list[int], here: list[int], random: object) -> None:
    one, two = [*map(float, base)], [*map(float, here)]
    before = noise_of(one, two)
    random.shuffle(one)  # type: ignore[attr-defined]
    random.shuffle(two)  # type: ignore[attr-defined]
    assert noise_of(one, two) == before
