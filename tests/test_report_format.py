"""Numbers for people: units chosen for reading, nothing rounded to nothing or to everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sp_profiler.report import format as fmt


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "unknown"),
        (0, "0 ms"),
        (0.4, "<1 ns"),
        (843, "843 ns"),
        (1_500, "1.50 µs"),
        (843_000, "843.0 µs"),
        (12_100_000, "12.1 ms"),
        (412_600_000, "412.6 ms"),
        (9_999_000_000, "9\u202f999 ms"),
        (12_345_000_000, "12.3 s"),
    ],
)
def test_duration(ns: float | None, text: str) -> None:
    assert fmt.duration(ns) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.00 kB"),
        (134_217_728, "134.2 MB"),
        (2_013_265_920, "2.01 GB"),
        (5 * 10**15, "5\u202f000 TB"),
    ],
)
def test_what_is_sent_has_decimal_prefixes(count: int | None, text: str) -> None:
    assert fmt.sent(count) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "unknown"),
        (0, "0 %"),
        (0.0004, "<0.1 %"),
        (0.043, "4.3 %"),
        (0.43, "43 %"),
        (0.9996, "99.9 %"),
        (1, "100 %"),
        (1.0, "100 %"),
    ],
)
def test_percent(ratio: float | None, text: str) -> None:
    assert fmt.percent(ratio) == text


@given(st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True))
def test_only_exact_values_read_as_nothing_or_all(ratio: float) -> None:
    assert fmt.percent(ratio) not in ("0 %", "0.0 %", "100 %", "100.0 %")


@given(st.integers(min_value=1, max_value=10**15))
def test_a_time_above_zero_never_reads_as_zero(ns: int) -> None:
    assert not fmt.milliseconds(ns).startswith("0.00")
    assert fmt.milliseconds(ns) != "0"
    assert fmt.duration(ns) != "0 ms"


def test_ranks_sizes_and_lists() -> None:
    assert fmt.rank_list([3, 0, 1, 2, 6]) == "0-3, 6"
    assert fmt.rank_list([5]) == "5"
    assert fmt.rank_list([None, 1]) == "1, unknown"
    assert fmt.size(6 * 1024 * 1024) == "6.00 MiB"
    assert fmt.size(1000) == "1000 B"
    assert fmt.listed(["a", "b", "c"]) == "a, b and c"
    assert fmt.counted(1, "rank") == "1 rank"


@given(st.text())
def test_visible_text_acts_on_nothing(text: str) -> None:
    shown = fmt.visible(text)
    shown.encode("utf-8")  # no lone surrogate is left
    assert all(char == " " or char.isprintable() or char == "\u3000" for char in shown if char.isascii())
    assert not set(shown) & set("\n\r\x1b\x9b\u202e\u2066\u2028\u200b\ufeff")


def test_visible_writes_out_what_acts() -> None:
    assert fmt.visible("a\x1b[31m\n\u202eb\ud800") == "a\\x1b[31m\\n\\u202eb\\ud800"
    assert fmt.visible("αβ 漢字") == "αβ 漢字"
