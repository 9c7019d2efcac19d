"""When a figure is worse than the baseline's by more than is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.checking.quantities import Unit
from sp_profiler.checking.tolerance import FLOORS, Tolerance, is_regression, tolerance_of, worsening
from sp_profiler.errors import UsageError

VALUES = st.floats(0, 1e12, allow_subnormal=False)
UNITS = st.sampled_from(["ns", "bytes", "ratio", "gbps", "count"])
WORSE = st.sampled_from(["higher", "lower"])
TOLERANCES = st.builds(Tolerance, st.floats(0, 1), st.none() | st.floats(0, 1e9))
NOISE = st.none() | st.floats(0, 1e9)


@pytest.mark.parametrize(
    ("given_", "unit", "relative", "absolute"),
    [
        ("5%", "ns", 0.05, None),
        ("0.1", "ns", 0.1, None),
        (0.1, "ns", 0.1, None),
        (0, "ns", 0, None),
        ("0.2 ms", "ns", 0.05, 200_000),
        ("64 MiB", "bytes", 0.05, 64 * 2**20),
        (["10%", "0.2 ms"], "ns", 0.1, 200_000),
        (["0.2 ms", "10%"], "ns", 0.1, 200_000),
        ({"relative": "10%", "absolute": "0.2 ms"}, "ns", 0.1, 200_000),
        ({"absolute": 5}, "ns", 0.05, 5),
        ({"absolute": 0.02}, "ratio", 0.05, 0.02),
    ],
)
def test_how_it_is_written(given_: object, unit: Unit, relative: float, absolute: float | None) -> None:
    assert tolerance_of(given_, unit, what="x") == Tolerance(pytest.approx(relative), absolute)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given_",
    [
        "",
        "five",
        "5",
        "-5%",
        "3 MiB",
        True,
        None,
        {},
        {"rel": 1},
        ["5%"],
        ["5%", "1ms", "2ms"],
        {"relative": 7},
    ],
)
def test_what_cannot_be_meant(given_: object) -> None:
    with pytest.raises(UsageError, match="tolerance"):
        tolerance_of(given_, "ns", what="tolerance")


def test_the_allowance_is_the_largest_of_share_floor_and_noise() -> None:
    def regresses(base: float, here: float, noise: float | None = None, how: Tolerance | None = None) -> bool:
        return is_regression(base, here, "higher", "ns", how or Tolerance(), noise)

    assert not regresses(100e6, 105e6)  # 5 % of 100 ms
    assert regresses(100e6, 105e6 + 1)
    assert not regresses(100e3, 150e3)  # 50 µs, though half of 100 µs
    assert regresses(100e3, 150e3 + 1)
    assert not regresses(100e6, 120e6, noise=20e6)
    assert regresses(100e6, 120e6 + 1, noise=20e6)
    assert regresses(100e3, 106e3, how=Tolerance(0.05, 0))
    assert is_regression(0.8, 0.75, "lower", "ratio", Tolerance(0.05), None)  # 0.04 would be allowed
    assert not is_regression(0.8, 0.77, "lower", "ratio", Tolerance(0.05), None)


@given(VALUES, UNITS, WORSE, TOLERANCES, NOISE)
def test_the_same_value_is_no_regression(
    base: float, unit: Unit, worse: str, how: Tolerance, noise: float | None
) -> None:
    assert not is_regression(base, base, worse, unit, how, noise)  # type: ignore[arg-type]


@given(VALUES, VALUES, UNITS, WORSE, TOLERANCES, NOISE)
def test_what_got_better_is_none_and_both_ways_are_mirrored(
    base: float, here: float, unit: Unit, worse: str, how: Tolerance, noise: float | None
) -> None:
    regresses = is_regression(base, here, worse, unit, how, noise)  # type: ignore[arg-type]
    by = worsening(base, here, worse)  # type: ignore[arg-type]
    assert by == -worsening(base, here, "lower" if worse == "higher" else "higher")
    if by <= 0:
        assert not regresses
    if regresses:
        assert by > FLOORS[unit] or how.absolute is not None


@given(VALUES, VALUES, VALUES, UNITS, WORSE, TOLERANCES, NOISE)
def test_further_worse_never_passes_what_failed(
    base: float, one: float, two: float, unit: Unit, worse: str, how: Tolerance, noise: float | None
) -> None:
    near, far = sorted([one, two], key=lambda value: worsening(base, value, worse))  # type: ignore[arg-type]
    if is_regression(base, near, worse, unit, how, noise):  # type: ignore[arg-type]
        assert is_regression(base, far, worse, unit, how, noise)  # type: ignore[arg-type]


@given(VALUES, VALUES, UNITS, WORSE, st.floats(0, 1), st.floats(0, 1), NOISE)
def test_a_larger_tolerance_and_noise_never_fail_what_passed(
    base: float, here: float, unit: Unit, worse: str, one: float, two: float, noise: float | None
) -> None:
    small, large = sorted([one, two])
    if not is_regression(base, here, worse, unit, Tolerance(small), None):  # type: ignore[arg-type]
        assert not is_regression(base, here, worse, unit, Tolerance(large), noise)  # type: ignore[arg-type]


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(2, 1000), st.integers(0, 100))
def test_a_share_does_not_depend_on_the_unit(base: int, more: int, factor: int, percent: int) -> None:
    how = Tolerance(percent / 100, absolute=0)
    allowed = how.allowance(base, "ns")
    if abs(more - allowed) > 1e-6 * allowed + 1e-6:  # not on the edge, where floats round
        one = is_regression(base, base + more, "higher", "ns", how, None)
        two = is_regression(base * factor, (base + more) * factor, "higher", "ns", how, None)
        assert one == two
