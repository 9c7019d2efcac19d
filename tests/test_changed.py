"""Frozen dataclasses with other values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from sp_profiler.changed import changer


@dataclass(frozen=True)
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


def test_equal_instances_hash_alike() -> None:
    @dataclass(frozen=True)
    class Named:
        name: str
        size: int = 0

    assert hash(changer(Named, "size")(Named("a"), 1)) == hash(Named("a", 1))


def test_only_classes_whose_fields_are_all_there_is() -> None:
    @dataclass(frozen=True, slots=True)
    class Slots:
        one: int

    @dataclass(frozen=True)
    class Checked:
        one: int

        def __post_init__(self) -> None:
            raise AssertionError

    for cls in (Slots, Checked):
        with pytest.raises(ValueError, match=cls.__name__):
            changer(cls, "one")
