"""Medians of many groups at once."""

from __future__ import annotations

import numpy as np

from sp_profiler.trace.tables import NONE, Int64


def medians(key: Int64, values: Int64, count: int) -> Int64:
    """The median of the values of each key below `count`, the mean of two in the middle rounded down; NONE
    where one is not known or there is none."""
    order = np.lexsort((values, key))
    begins = np.searchsorted(key[order], np.arange(count))
    sizes = np.bincount(key, minlength=count)
    result = np.full(count, NONE, np.int64)
    some = sizes > 0
    low = order[(begins + (sizes - 1) // 2)[some]]
    high = order[(begins + sizes // 2)[some]]
    least = order[begins[some]]
    middle = values[low] + (values[high] - values[low]) // 2
    result[some] = np.where(values[least] == NONE, NONE, middle)
    return result
