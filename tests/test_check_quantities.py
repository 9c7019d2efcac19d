"""Limits as people write them, and values as they are shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.checking.quantities import Unit, both_shown, quantity, shown
from sp_profiler.errors import UsageError


@pytest.mark.parametrize(
    ("text", "unit", "plain", "value"),
    [
        ("0.2", "ratio", 1, 0.2),
        ("20%", "ratio", 1, 0.2),
        ("20 %", "ratio", 1, 0.2),
        (0.2, "ratio", 1, 0.2),
        (1, "ratio", 1, 1),
        ("3", "ns", 1e6, 3e6),
        (3, "ns", 1e6, 3e6),
        ("3 ms", "ns", 1e6, 3e6),
        ("250us", "ns", 1e6, 250e3),
        ("250 µs", "ns", 1, 250e3),
        ("1_000ns", "ns", 1, 1000),
        ("1.5s", "ns", 1, 1.5e9),
        ("1e3", "ns", 1, 1000),
        ("70", "bytes", 2**30, 70 * 2**30),
        ("70GiB", "bytes", 2**30, 70 * 2**30),
        ("17 MiB", "bytes", 2**30, 17 * 2**20),
        ("1 GB", "bytes", 1, 10**9),
        ("1 kB", "bytes", 1, 1000),
        ("512B", "bytes", 2**30, 512),
        ("150 GB/s", "gbps", 1, 150),
        (".5", "count", 1, 0.5),
        ("7", "count", 1, 7),
    ],
)
def test_what_is_read(text: object, unit: Unit, plain: float, value: float) -> None:
    assert quantity(text, unit, plain=plain, what="x") == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", "ratio"),
        ("abc", "ratio"),
        ("20", "ratio"),  # can only be meant as 20 %, and would never be exceeded
        ("120%", "ratio"),
        ("-1%", "ratio"),
        (True, "ratio"),
        (None, "ratio"),
        ([1], "ratio"),
        ("3 MiB", "ns"),
        ("3 ms", "bytes"),
        ("3 ms ms", "ns"),
        ("nan", "ns"),
        ("inf", "ns"),
        (math.inf, "ns"),
        (math.nan, "ns"),
        ("1e999", "ns"),
        ("-3", "ns"),
        ("٣", "count"),  # digits of other scripts
        ("0x10", "count"),
        ("5%", "count"),
    ],
)
def test_what_cannot_be_meant(text: object, unit: Unit) -> None:
    with pytest.raises(UsageError, match="--max-x"):
        quantity(text, unit, what="--max-x")


def test_figures_that_can_be_negative_take_negative_limits() -> None:
    assert quantity("-3 ms", "ns", least=-math.inf, what="x") == -3e6


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ns", "unknown"),
        (0.2954, "ratio", "29.54 %"),
        (0.2, "ratio", "20 %"),
        (1, "ratio", "100 %"),
        (0.99999999, "ratio", "<100 %"),
        (0, "ratio", "0 %"),
        (1e-9, "ratio", "1e-07 %"),
        (12_100_000, "ns", "12.1 ms"),
        (17 * 2**20, "bytes", "17.0 MiB"),
        (150, "gbps", "150 GB/s"),
        (3, "count", "3"),
    ],
)
def test_what_is_shown(value: float | None, unit: Unit, text: str) -> None:
    assert shown(value, unit) == text


@given(
    st.integers(0, 10**15),
    st.integers(1, 10**6),
    st.sampled_from(["ns", "bytes", "gbps", "count"]),
)
def test_values_that_differ_never_read_the_same(value: int, more: int, unit: Unit) -> None:
    """ "3.00 ms, above the limit of 3.00 ms" would help nobody."""
    one, two = both_shown(value + more, value, unit)
    assert one != two
    assert both_shown(value, value, unit)[0] == shown(value, unit)
