"""Exposed time of transfers, divided: communication, imbalance, skew.

    exposed = communication + imbalance + skew

What is exposed after the last of its ranks arrived is communication. Of what is exposed before, imbalance is
the part that is explained by attention: a rank arrives late because it, since its pass began, had more
attention to compute (or had itself waited for a rank that had). The rest is skew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.context_parallel.tables import Rows
from sp_profiler.trace.tables import NONE, Int64


@dataclass(frozen=True)
class Split:
    """By row; int64 ns, NONE where ranks were not matched."""

    communication_ns: Int64
    imbalance_ns: Int64
    skew_ns: Int64


def split(rows: Rows) -> Split:
    """Divide the exposed time of all rows.

    `busy` of a row is the attention that its rank was given since its pass began, and what it lost in this
    pass, exposed, to the attention of others. A wait is explained by as much as the awaited rank's exceeds
    the own one's. Rows of a pass are taken in order, all ranks at once.
    """
    known = rows.waited_ns >= 0
    waited = np.where(known, np.minimum(rows.waited_ns, rows.exposed_ns), 0)
    lost = np.zeros(int(rows.first_pass[-1]) + 1, np.int64)  # by pass: to others' attention so far
    imbalance = np.zeros(len(waited), np.int64)
    has_peer = known & (rows.awaited >= 0) & (waited > 0)
    order = np.argsort(rows.order, kind="stable")
    bounds = np.searchsorted(rows.order[order], np.arange(int(rows.order.max(initial=-1)) + 2))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        at = order[low:high]
        at = at[has_peer[at]]
        peer = rows.awaited[at]
        own = rows.before_ns[at] + lost[rows.of_pass[at]]
        others = rows.before_ns[peer] + lost[rows.of_pass[peer]]
        imbalance[at] = np.clip(others - own, 0, waited[at])
        np.add.at(lost, rows.of_pass[at], imbalance[at])
    return Split(
        np.where(known, rows.exposed_ns - waited, NONE),
        np.where(known, imbalance, NONE),
        np.where(known, waited - imbalance, NONE),
    )
