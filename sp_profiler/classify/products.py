"""The matrix products of a trace's operators, read once for each distinct record of their inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.classify.shapes import Product, product_of
from sp_profiler.trace.tables import NONE, Int64, Trace


@dataclass(frozen=True)
class Products:
    """What operators multiply: `distinct[code[i]]`, None for code NONE and for what is no product."""

    code: Int64
    distinct: tuple[Product | None, ...]

    def of(self, i: int) -> Product | None:
        code = int(self.code[i])
        return self.distinct[code] if code != NONE else None


def products_at(trace: Trace, rows: Int64) -> Products:
    """The product of the operator at each event row (or NONE). Equal inputs of an operator share a code."""
    events, strings = trace.events, trace.strings
    known = rows != NONE
    operators = rows[known]
    inputs = _inputs_of(trace, operators)
    first = np.unique(inputs, return_index=True)[1]
    code = np.full(len(rows), NONE, np.int64)
    code[known] = inputs
    distinct = (
        product_of(
            strings[int(events.name[row])] or "",
            strings[int(events.dims[row])],
            strings[int(events.strides[row])],
        )
        for row in operators[first].tolist()
    )
    return Products(code, tuple(distinct))


def _inputs_of(trace: Trace, rows: Int64) -> Int64:
    """Numbers from 0, equal for equal names, sizes and strides of the operators at these event rows."""
    events = trace.events
    width = len(trace.strings.pool) + 1
    code = np.zeros(len(rows), np.int64)
    for column in (events.name, events.dims, events.strides):
        code = np.unique(code * width + column[rows] + 1, return_inverse=True)[1].reshape(-1)
    return code
