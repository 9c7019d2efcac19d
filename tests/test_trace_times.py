"""µs text becomes int64 ns without a float."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.trace.times import OUT_OF_RANGE, Irregular, text_to_ns, times_to_ns


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("1778655624745710.730", 1_778_655_624_745_710_730),  # epoch µs: float64 has a step of 250 ns here
        ("1778655624745710.731", 1_778_655_624_745_710_731),
        ("1778655624745710.73", 1_778_655_624_745_710_730),
        ("0", 0),
        ("-3.25", -3250),
        ("12.5", 12_500),
        ("00012.001", None),  # no JSON number, but harmless
        ("1.5e3", 1_500_000),
        ("1.5E+3", 1_500_000),
        ("25e-4", 2),  # 2.5 ns: half to even
        ("35e-4", 4),  # 3.5 ns
        ("0.0005", 0),
        ("0.0015", 2),
        ("0.00150000000000000000000000000000000000000000000000000000000000000000000000000001", 2),
        ("0.00050000000000000000000000000000000000000000000000000000000000000000000000000001", 1),
        ("1e-400", 0),
        ("0e99999999999", 0),
        ("9223372036854775.807", 2**63 - 1),
        ("9223372036854775.808", 2**63),
        ("1e300", OUT_OF_RANGE),
        ("-1e99999999999999999999", -OUT_OF_RANGE),
        ("1" * 5000, OUT_OF_RANGE),
        ("0." + "0" * 6000 + "1", 0),
    ],
)
def test_text_is_exact(text: str, expected_ns: int | None) -> None:
    if expected_ns is not None:
        assert text_to_ns(text.encode()) == expected_ns
    else:
        assert times_to_ns([msgspec.Raw(text.encode())])[0].tolist() == [12_001]


@pytest.mark.parametrize("text", ["", "null", "abc", "1.2.3", "inf", "--1", "1e", ".5", "5."])
def test_no_number(text: str) -> None:
    assert text_to_ns(text.encode()) is None


def test_many_times_at_once() -> None:
    texts = [
        "1778655624745710.730", "", "5", '"17.001"', "-2.5", "NaN", "1,2", '"x"',
        "9223372036854775.808", "1e2", "-inf", "null",
    ]  # fmt: skip
    values, irregular, outside = times_to_ns([msgspec.Raw(text.encode()) for text in texts])
    assert values.tolist() == [1_778_655_624_745_710_730, 0, 5000, 17_001, -2500, 0, 0, 0, 0, 100_000, 0, 0]
    assert irregular == [
        Irregular(1, "missing"),
        Irregular(3, "quoted"),
        Irregular(5, "non-finite"),
        Irregular(6, "not-a-number"),
        Irregular(7, "not-a-number"),
        Irregular(10, "non-finite"),
        Irregular(11, "missing"),
    ]
    assert outside == [(8, 2**63)]


def _expected_ns(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value(rounding=ROUND_HALF_EVEN))


_DIGITS = st.text("0123456789", min_size=1, max_size=19).map(lambda digits: digits.lstrip("0") or "0")
_NUMBER_TEXTS = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(["", "-"]),
    _DIGITS,
    st.one_of(st.just(""), st.text("0123456789", min_size=1, max_size=8).map(lambda digits: "." + digits)),
    st.one_of(st.just(""), st.integers(-25, 6).map(lambda power: f"e{power}")),
)


@given(st.lists(_NUMBER_TEXTS, min_size=1, max_size=12))
def test_agrees_with_decimal(texts: list[str]) -> None:
    """Each in its own way of being read: alone, and among others in one column."""
    values, irregular, outside = times_to_ns([msgspec.Raw(text.encode()) for text in texts])
    too_large = dict(outside)
    assert irregular == []
    for index, text in enumerate(texts):
        exact = _expected_ns(text)
        if -(2**63) <= exact < 2**63:
            assert values[index] == exact
            assert text_to_ns(text.encode()) == exact
        else:
            assert (too_large[index] > 0) == (exact > 0)
