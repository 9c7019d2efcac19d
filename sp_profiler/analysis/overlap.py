"""How much communication runs under computation, and under which: C, K, M and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sp_profiler.analysis.intervals import TimeSet, intersect, subtract, union, unite
from sp_profiler.analysis.steps import Windows
from sp_profiler.classify.tables import Activities, Kind, Role
from sp_profiler.trace.tables import Int64

SHARES = 840
"""A nanosecond has 840 shares: divisible by every number of roles from 1 to 8."""


class IdentityError(AssertionError):
    """Figures that must add up do not: a defect of the analysis, never of the trace."""


@dataclass(frozen=True)
class DeviceSets:
    """The unions of one device, not clipped to windows."""

    comm: TimeSet  # C
    compute: TimeSet  # K
    memory: TimeSet  # M
    fused: TimeSet  # in C and K
    by_role: tuple[TimeSet, ...]  # of computation, one for each Role


def device_sets(activities: Activities, rows: Int64) -> DeviceSets:
    """C, K, M of the device whose activities are `rows`. A fused kernel enters C and K."""
    start, end = activities.start_ns[rows], activities.end_ns[rows]
    kind, role = activities.kind[rows], activities.role[rows]
    fused = kind == Kind.FUSED
    computes = (kind == Kind.COMPUTATION) | fused

    def of(mask: np.ndarray) -> TimeSet:
        return union(start[mask], end[mask])

    by_role = tuple(of(computes & (role == one)) for one in Role)
    return DeviceSets(
        of((kind == Kind.COMMUNICATION) | fused), unite(*by_role), of(kind == Kind.MEMORY), of(fused), by_role
    )


@dataclass(frozen=True)
class Overlap:
    """The figures of each window, int64 nanoseconds of shape (windows,); by role (windows, roles)."""

    window_ns: Int64
    comm_ns: Int64
    compute_ns: Int64
    memory_op_ns: Int64
    memory_op_only_ns: Int64
    busy_ns: Int64
    idle_ns: Int64
    overlapped_ns: Int64
    exposed_ns: Int64
    fused_ns: Int64
    overlapped_by_role_ns: Int64


def overlap(sets: DeviceSets, windows: Windows) -> Overlap:
    """C, K and M clipped to each window and measured (DESIGN section 4).

    Raises IdentityError when `compute + exposed + memory_op_only + idle == window` does not hold with
    every term from its own set operation.
    """
    both, exposed = intersect(sets.comm, sets.compute), subtract(sets.comm, sets.compute)
    kernels = unite(sets.comm, sets.compute)
    window_ns = windows.end_ns - windows.start_ns
    busy_ns = windows.measure(unite(kernels, sets.memory))
    result = Overlap(
        window_ns=window_ns,
        comm_ns=windows.measure(sets.comm),
        compute_ns=windows.measure(sets.compute),
        memory_op_ns=windows.measure(sets.memory),
        memory_op_only_ns=windows.measure(subtract(sets.memory, kernels)),
        busy_ns=busy_ns,
        idle_ns=window_ns - busy_ns,
        overlapped_ns=windows.measure(both),
        exposed_ns=windows.measure(exposed),
        fused_ns=windows.measure(sets.fused),
        overlapped_by_role_ns=overlapped_by_role(sets, both, windows),
    )
    _check(result)
    return result


def _check(figures: Overlap) -> None:
    total = figures.compute_ns + figures.exposed_ns + figures.memory_op_only_ns + figures.idle_ns
    for name, holds in (
        ("compute + exposed + memory_op_only + idle = window", total == figures.window_ns),
        ("overlapped + exposed = comm", figures.overlapped_ns + figures.exposed_ns == figures.comm_ns),
        ("idle >= 0", figures.idle_ns >= 0),
        ("the roles sum to overlapped", figures.overlapped_by_role_ns.sum(axis=1) == figures.overlapped_ns),
    ):
        if not holds.all():
            raise IdentityError(f"{name} does not hold in window {int(np.argmin(holds))}")


def overlapped_by_role(sets: DeviceSets, both: TimeSet, windows: Windows) -> Int64:
    """Whole nanoseconds of `both` = C ∩ K for each window and role; shape (windows, roles).

    Each instant is shared equally between the distinct roles that run then, in shares of 1/840 ns; each
    window is rounded once, by largest remainder, ties in the order of Role (DESIGN: By role).
    """
    shares = _shares_by_role([intersect(one, both) for one in sets.by_role], windows)
    overlapped = windows.measure(both)
    if (shares.sum(axis=1) != overlapped * SHARES).any():
        raise IdentityError("the shares of the roles do not sum to the overlapped time")
    whole, remainder = np.divmod(shares, SHARES)
    missing = overlapped - whole.sum(axis=1)
    order = np.argsort(-remainder, axis=1, kind="stable")
    place = np.argsort(order, axis=1, kind="stable")
    return whole + (place < missing[:, None])


def _shares_by_role(by_role: list[TimeSet], windows: Windows) -> Int64:
    """Shares of 1/840 ns; a sweep over the stretches in which the same roles run."""
    starts = np.concatenate([one.start for one in by_role])
    ends = np.concatenate([one.end for one in by_role])
    bits = np.concatenate([np.full(len(one), 1 << r, np.int64) for r, one in enumerate(by_role)])
    shares = np.zeros((len(windows), len(by_role)), np.int64)
    if len(starts) == 0:
        return shares
    # A role's own intervals are disjoint, so adding and subtracting its bit keeps a set of roles.
    points, place = np.unique(np.concatenate((starts, ends)), return_inverse=True)
    change = np.zeros(len(points), np.int64)
    np.add.at(change, place, np.concatenate((bits, -bits)))
    running = np.cumsum(change)[:-1]
    length = np.diff(points)
    split = SHARES // np.maximum(np.bitwise_count(running), 1).astype(np.int64)
    for role in range(len(by_role)):
        rate = np.where(running >> role & 1, split, 0)
        shares[:, role] = _integral(points, rate * length, windows.end_ns, rate)
        shares[:, role] -= _integral(points, rate * length, windows.start_ns, rate)
    return shares


def _integral(points: Int64, amounts: Int64, instant: Int64, rate: Int64) -> Int64:
    """What has accumulated by each instant, `rate[i]` a nanosecond between points i and i + 1."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(amounts)))
    inside = np.clip(instant, points[0], points[-1])
    stretch = np.minimum(np.searchsorted(points, inside, side="right") - 1, len(rate) - 1)
    return before[stretch] + (inside - points[stretch]) * rate[stretch]
