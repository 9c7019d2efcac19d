"""How much of what could be hidden is hidden, and what hiding the rest would save (DESIGN: Hiding).

Each collective with a known partner is one term, counted whole in the window in which it begins to run, so
that windows sum to the rank. Without a partner it is left out and counted. No term at all: null.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.exposure import DeviceCollectives, Exposure, Keys
from sp_profiler.analysis.intervals import cut_at_windows, sum_by, union
from sp_profiler.analysis.partners import Partners
from sp_profiler.analysis.results import Hiding
from sp_profiler.analysis.steps import Windows
from sp_profiler.classify.tables import Activities, Kind, Role
from sp_profiler.trace.tables import Int64


def hiding(hidden_ns: int | None, hideable_ns: int | None) -> Hiding:
    """The three figures from their sums; the ratio is None where nothing can be hidden."""
    share = hidden_ns / hideable_ns if hidden_ns is not None and hideable_ns else None
    return Hiding(hidden_ns, hideable_ns, share)


def step_ns_if_all_hidden(window_ns: int | None, exposed_ns: int | None, figures: Hiding) -> int | None:
    """`window − min(exposed, hideable − hidden)`; None where it is not known what could be hidden."""
    if window_ns is None or exposed_ns is None:
        return None
    if exposed_ns == 0:
        return window_ns  # nothing left to hide, whatever the partners
    if figures.partner_hidden_ns is None or figures.partner_hideable_ns is None:
        return None
    return window_ns - min(exposed_ns, figures.partner_hideable_ns - figures.partner_hidden_ns)


@dataclass(frozen=True)
class WindowHiding:
    """The hiding figures of one window."""

    all: Hiding
    by_purpose: dict[str, Hiding]
    partner_unknown: int  # collectives without a known partner


def hiding_by_window(
    partners: Partners, collectives: DeviceCollectives, exposed: Exposure, purposes: Keys, windows: Windows
) -> list[WindowHiding]:
    """Sum the terms of each window, in all and by purpose. Fused kernels are no terms."""
    counted = (exposed.window >= 0) & ~collectives.is_fused
    words = max(1, len(purposes.names))
    cell, place = np.unique((exposed.window * words + purposes.codes)[counted], return_inverse=True)
    columns = [
        sum_by(place, column[counted].astype(np.int64), len(cell)).tolist()
        for column in (partners.hidden_ns, partners.hideable_ns, partners.known, ~partners.known)
    ]
    sums: list[dict[str, tuple[int, ...]]] = [{} for _ in range(len(windows))]
    for where, *row in zip(cell.tolist(), *columns, strict=True):
        sums[where // words][purposes.names[where % words]] = tuple(row)
    return [_window_hiding(by_purpose) for by_purpose in sums]


def _window_hiding(sums: dict[str, tuple[int, ...]]) -> WindowHiding:
    def of(hidden: int, hideable: int, known: int, _unknown: int) -> Hiding:
        return hiding(hidden, hideable) if known else Hiding()

    everything = [sum(column) for column in zip(*sums.values(), strict=True)] or [0, 0, 0, 0]
    return WindowHiding(of(*everything), {word: of(*row) for word, row in sums.items()}, everything[3])


@dataclass(frozen=True)
class DgradUnderWgrad:
    """For each window |D| and |D ∩ wgrad|; None where the roles of GEMMs are not known."""

    dgrad_comm_ns: Int64
    wgrad_overlapped_ns: Int64 | None


def dgrad_under_wgrad(
    activities: Activities, rows: Int64, collectives: DeviceCollectives, windows: Windows
) -> DgradUnderWgrad:
    """How much of the communication of dgrads (D, a union) wgrad GEMMs run over, in each window.

    Fused kernels are in neither set. Where there is communication of dgrads, GEMMs without a role, and no
    wgrad GEMM known, nobody can say what ran over it: None, not 0.
    """
    is_dgrad = np.array([row.purpose == "dgrad" for row in collectives.rows], np.bool_)
    is_dgrad &= ~collectives.is_fused
    dgrad = union(collectives.start_ns[is_dgrad], collectives.end_ns[is_dgrad])
    mine = rows[activities.kind[rows] == Kind.COMPUTATION]
    role = activities.role[mine]
    is_wgrad = role == Role.WGRAD
    blind = not is_wgrad.any() and (activities.is_gemm[mine] & (role == Role.UNKNOWN)).any()
    dgrad_ns = windows.measure(dgrad)
    if blind and dgrad_ns.any():
        return DgradUnderWgrad(dgrad_ns, None)
    wgrad = union(activities.start_ns[mine[is_wgrad]], activities.end_ns[mine[is_wgrad]])
    pieces = cut_at_windows(dgrad.start, dgrad.end, windows.start_ns, windows.end_ns)
    over = sum_by(pieces.window, wgrad.overlap(pieces.start, pieces.end), len(windows))
    return DgradUnderWgrad(dgrad_ns, over)
