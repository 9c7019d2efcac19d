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
    "matmul": 0,
    "linear": 0,  # its second one transposed: (out, in)
}


@dataclass(frozen=True)
class Product:
    """(batch, m, k) @ (batch, k, n).

    Of a grouped product, and of one whose second matrix all share, batch is 1.
    `first_transposed`: the first matrix is the transpose of a contiguous one (stride[-2] == 1), None where
    strides were not recorded or do not tell (a size of 1, an expanded tensor). Likewise the second.
    """

    batch: int
    m: int
    k: int
    n: int
    first_transposed: bool | None = None
    second_transposed: bool | None = None

    @property
    def flop(self) -> int:
        """2·batch·m·n·k."""
        return 2 * self.batch * self.m * self.n * self.k

    def __str__(self) -> str:
        batch = f"B={self.batch} " if self.batch > 1 else ""
        return f"{batch}M={self.m} N={self.n} K={self.k}"


def first_operand(operator: str) -> int | None:
    """Which of an operator's inputs is the first of its two matrices; None for no plain product."""
    return _FIRST_OPERAND.get(operator.removeprefix("aten::"))


@lru_cache(maxsize=65536)
def product_of(operator: str, dims: str | None, strides: str | None) -> Product | None:
    """The matrix product that an operator with these recorded inputs computes, None when they do not say."""
    place = first_operand(operator)
    if place is None:
        return None
    first, second = _sizes_at(dims, place), _sizes_at(dims, place + 1)
    if first is None or second is None:
        return None
    transposed = [is_transposed(first, _sizes_at(strides, place)), None]
    transposed[1] = is_transposed(second, _sizes_at(strides, place + 1))
    if operator.endswith(("linear", "matmul")):
        first, second, transposed[1] = _as_matrices(operator, first, second, transposed[1])
    if len(first) < 2 or len(second) < 2 or first[-1] != second[-2]:
        return None
    m, k, n = first[-2], first[-1], second[-1]
    if len(second) == 2 and len(first) > 2:
        return Product(1, math.prod(first[:-1]), k, n, *transposed)
    # A grouped product is one by pieces: only where both matrices are stacked it is a batch of them.
    is_grouped = "grouped" in operator and 2 in (len(first), len(second))
    return Product(1 if is_grouped else _batch(first, second), m, k, n, *transposed)


def _as_matrices(
    operator: str, first: list[int], second: list[int], transposed: bool | None
) -> tuple[list[int], list[int], bool | None]:
    """Operands of `linear` and `matmul` as matrices: vectors get a side of 1, a weight is turned."""
    if operator.endswith("linear"):
        second = [*second[:-2], *reversed(second[-2:])]
        transposed = None if transposed is None else not transposed
    return [1, *first] if len(first) == 1 else first, [*second, 1] if len(second) == 1 else second, transposed


def _batch(first: list[int], second: list[int]) -> int:
    """How many products two stacks of matrices make; a missing or single one goes with all of the other's."""
    more = max(len(first), len(second)) - 2
    pairs = zip(_stack(first, more), _stack(second, more), strict=True)
    return math.prod(max(pair) for pair in pairs)


def _stack(sizes: list[int], count: int) -> list[int]:
    return [1] * (count + 2 - len(sizes)) + sizes[:-2]


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
