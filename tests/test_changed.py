"""Frozen dataclasses with other values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from sp_profiler.changed import changer


@dataclass(frozen=True, slots=True)
class Row:
    one: int
    two: str
    three: list[int]


def test_equals_replace() -> None:
    row = Row(1, "a", [3])
    changed = changer(Row, "three", "one")(row, [4], 2)
    assert changed == replace(row, three=[4], one=2) == Row(2, "a", [4])
    assert row == Row(1, "a", [3])
    assert changed.two is row.two


def test_names_and_values_must_fit() -> None:
    with pytest.raises(ValueError, match="four"):
        changer(Row, "four")
    with pytest.raises(ValueError):
        changer(Row, "one", "two")(Row(1, "a", []), 5)
