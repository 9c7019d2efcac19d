"""How long communication that is not there yet would take, from what this run measured of its like."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from sp_profiler.analysis.collective_table import Collectives
from sp_profiler.analysis.results import CollectiveFigures, GemmFigures
from sp_profiler.classify.dtypes import dtype_bytes

_SHAPE = re.compile(r"M=(\d+) N=(\d+) K=(\d+)\Z")

Wanted = tuple[str, int]  # op and bytes of the full tensor


@dataclass(frozen=True)
class Takes:
    """Of one rank and step: what communication takes, the computation it can hide under, what is left.

    None where this run has nothing to measure it by.
    """

    comm_ns: int | None
    hideable_ns: int | None
    exposed_ns: int | None


class Measured:
    """A run's own collectives and GEMMs, asked for durations. `windows`: number of (rank, device, step)."""

    def __init__(
        self,
        collectives: Iterable[CollectiveFigures],
        gemms: Sequence[GemmFigures],
        windows: int,
        is_cpu: bool,
    ) -> None:
        self._is_cpu = is_cpu
        self._windows = max(windows, 1)
        self._gemms = gemms
        self._collectives = Collectives.of(collectives)
        self._typical: dict[Wanted, int | None] = {}

    def unknown(self) -> Takes:
        """Nothing here tells."""
        return Takes(None, None, None)

    def typical_ns(self, wanted: Wanted) -> int | None:
        """The median of this run's collectives of that operation and size: without the wait for late ranks
        where that is known. None on CPU runs and where there is none."""
        if self._is_cpu:
            return None
        if wanted not in self._typical:
            self._typical[wanted] = self._median(*wanted)
        return self._typical[wanted]

    def _median(self, op: str, size: int) -> int | None:
        sizes = self._collectives.numbers("bytes")
        alike = self._collectives.words("op").where(lambda known: known == op)
        alike &= sizes.is_known & (sizes.or_zero() == size)
        found = self._collectives.take(alike)
        if not len(found):
            return None
        transfer, dur = found.numbers("transfer_ns"), found.numbers("dur_ns")
        return int(median(np.where(transfer.is_known, transfer.or_zero(), dur.or_zero()).tolist()))

    def alone(self, added: Sequence[Wanted]) -> Takes:
        """Of collectives that are waited for where they are launched: all of it is exposed."""
        if not added:
            return Takes(0, 0, 0)
        each = [self.typical_ns(one) for one in added]
        if any(one is None for one in each):
            return self.unknown()
        whole = sum(one or 0 for one in each)
        return Takes(whole, 0, whole)

    def under_dgrad(self, added: Sequence[Wanted]) -> Takes:
        """Of gathers that run under the dgrad GEMMs of their linears, one under each.

        The dgrad GEMM of a linear whose input is gathered makes the gradient of that input, so its result
        has the gather's size. None unless the run has just as many of these GEMMs as gathers are added.
        """
        whole = self.alone(added)
        if whole.comm_ns is None or not added:
            return whole
        if len(set(added)) != 1:
            return Takes(whole.comm_ns, None, None)
        gather = self.typical_ns(added[0]) or 0
        partners = [gemm for gemm in self._gemms if _is_dgrad_of(gemm, added[0][1])]
        if sum(gemm.count for gemm in partners) != len(added) * self._windows:
            return Takes(whole.comm_ns, None, None)
        hideable = sum(gemm.count * min(gather, gemm.total_ns / gemm.count) for gemm in partners)
        hidden = round(hideable / self._windows)
        return Takes(whole.comm_ns, hidden, max(0, whole.comm_ns - hidden))


def _is_dgrad_of(gemm: GemmFigures, input_bytes: int) -> bool:
    """Whether the GEMM makes a gradient of that many bytes."""
    found = _SHAPE.search(gemm.shape or "")
    element = dtype_bytes(gemm.dtype)
    if gemm.role != "dgrad" or not gemm.count or found is None or element is None:
        return False
    return int(found[1]) * int(found[2]) * element == input_bytes
