"""What an operator multiplies: sizes and layouts of its two matrices, as recorded with its inputs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# Where an operator's two matrices stand among its inputs.
_FIRST_OPERAND = {
    "mm": 0,
    "bmm": 0,
    "_scaled_mm": 0,
    "_int_mm": 0,
    "_grouped_mm": 0,
    "_scaled_grouped_mm": 0,
    "addmm": 1,
    "addmm_": 1,
    "baddbmm": 1,
    "baddbmm_": 1,
    "addbmm": 1,
    "_addmm_activation": 1,
}


@dataclass(frozen=True)
class Product:
    """(batch, m, k) @ (batch, k, n); a grouped product's batch is 1.

    `first_transposed`: the first matrix is the transpose of a contiguous one (stride[-2] == 1), None where
    strides were not recorded or do not tell (a size of 1, an expanded tensor). Likewise the second.
    """

    batch: int
    m: int
    k: int
    n: int
    first_transposed: bool | None = None
    second_transposed: bool | None = None


@lru_cache(maxsize=65536)
def product_of(operator: str, dims: str | None, strides: str | None) -> Product | None:
    """The matrix product that an operator with these recorded inputs computes, None when they do not say."""
    place = _FIRST_OPERAND.get(operator.removeprefix("aten::"))
    if place is None:
        return None
    first, second = _sizes_at(dims, place), _sizes_at(dims, place + 1)
    if first is None or second is None or len(first) < 2 or len(second) < 2:
        return None
    m, k, n = first[-2], first[-1], second[-1]
    if second[-2] != k:
        return None
    batch = 1 if "grouped" in operator else max(math.prod(first[:-2]), math.prod(second[:-2]))
    return Product(
        batch,
        m,
        k,
        n,
        is_transposed(first, _sizes_at(strides, place)),
        is_transposed(second, _sizes_at(strides, place + 1)),
    )


def is_transposed(sizes: list[int], strides: list[int] | None) -> bool | None:
    """Whether a matrix of these strides is stored column by column; None where they do not tell."""
    if strides is None or len(strides) != len(sizes) or len(sizes) < 2 or min(sizes[-2:]) <= 1:
        return None
    rows, columns = strides[-2:]
    if (rows == 1) == (columns == 1):
        return None
    return rows == 1


@lru_cache(maxsize=65536)
def first_input(dims: str | None, strides: str | None) -> tuple[tuple[int, ...], bool | None] | None:
    """Sizes of an operator's first input and whether it is stored transposed."""
    sizes = _sizes_at(dims, 0)
    return None if sizes is None else (tuple(sizes), is_transposed(sizes, _sizes_at(strides, 0)))


@lru_cache(maxsize=65536)
def _parsed(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return []  # damaged: the operator's shapes are then not known
    return value if isinstance(value, list) else []


def _sizes_at(text: str | None, place: int) -> list[int] | None:
    value = _parsed(text) if text else []
    sizes = value[place] if place < len(value) else None
    if isinstance(sizes, list) and sizes and all(isinstance(size, int) for size in sizes):
        return sizes
    return None
