"""How much GEMMs slow down while communication runs beside them, and what overlap gains in the end.

GEMMs of equal shape, dtype and role are compared: the median duration of those that communication overlaps
for at least half of their time, over the median of the others (DESIGN: Contention). Each operator is one
sample, whatever number of kernels it launches. Fewer than five samples on a side say nothing; that side
may come from another run, the baseline. On the CPU ranks, gloo and GEMMs share the cores: no comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sp_profiler.analysis.gemms import gemm_dtype, linked_operators
from sp_profiler.analysis.intervals import sum_by, union
from sp_profiler.analysis.results import ContentionFigures, GemmSamples, RankResult
from sp_profiler.analysis.steps import Windows
from sp_profiler.classify.shapes import product_of
from sp_profiler.classify.tables import Classified, Kind, Role
from sp_profiler.ledger import LedgerEntry
from sp_profiler.trace.tables import NONE, Int64, Trace

LEAST_SAMPLES = 5
NO_SHAPES = LedgerEntry(
    "contention-no-shapes",
    "note",
    "contention is null: no GEMM has a shape (record with record_shapes=True)",
)
Key = tuple[str, str | None, str]  # shape, dtype, role


@dataclass(frozen=True)
class Side:
    """The GEMMs of one key on one side: how many, and their median duration (None: too few)."""

    count: int
    median_ns: int | None


Baseline = Mapping[Key, tuple[Side, Side]]
"""By key: (while overlapped, while alone)."""


def gemm_samples(trace: Trace, classified: Classified, rows: Int64, windows: Windows) -> GemmSamples | None:
    """The GEMMs of known shape of one device that begin in a window; None for CPU runs."""
    if classified.is_cpu_only:
        return None
    activities, events = classified.activities, trace.events
    communicates = rows[activities.kind[rows] == Kind.COMMUNICATION]
    comm = union(activities.start_ns[communicates], activities.end_ns[communicates])
    rows = rows[activities.is_gemm[rows] & (activities.kind[rows] == Kind.COMPUTATION)]
    operator = linked_operators(trace, activities, rows, False)
    rows, operator = rows[operator != NONE], operator[operator != NONE]
    operators, first, place = np.unique(operator, return_index=True, return_inverse=True)
    start, end = activities.start_ns[rows], activities.end_ns[rows]
    dur = sum_by(place, end - start, len(operators))
    beside = sum_by(place, comm.overlap(start, end), len(operators))
    window = windows.holding(start[first])
    role = activities.role[rows[first]].astype(np.int64)
    described = (events.name, events.dims, events.types)
    table = np.stack([role, *(column[operators].astype(np.int64) for column in described)])
    kinds, kind = np.unique(table, axis=1, return_inverse=True)
    keys = [_key(trace, *column) for column in kinds.T.tolist()]
    code: dict[Key, int] = {}
    of_kind = [NONE if key is None else code.setdefault(key, len(code)) for key in keys]
    key = np.array(of_kind, np.int64)[kind.reshape(-1)] if keys else np.zeros(0, np.int64)
    keep = (key != NONE) & (window >= 0) & (dur > 0)
    return GemmSamples(tuple(code), key[keep], dur[keep], beside[keep], window[keep])


def _key(trace: Trace, role: int, name: int, dims: int, types: int) -> Key | None:
    operator = trace.strings[name] or ""
    shape = product_of(operator, trace.strings[dims], None)
    if shape is None:
        return None
    return str(shape), gemm_dtype(operator, trace.strings[types]), Role(role).name.lower()


def is_overlapped(samples: GemmSamples) -> np.ndarray:
    """Which samples communication overlaps for at least half of their time."""
    return 2 * samples.overlapped_ns >= samples.dur_ns


def contention(samples: Iterable[GemmSamples], baseline: Baseline | None = None) -> list[ContentionFigures]:
    """The comparison of a run, all its devices together; most time overlapped first."""
    durations: dict[Key, tuple[list[Int64], list[Int64]]] = {}
    for one in samples:
        overlapped = is_overlapped(one)
        for code, key in enumerate(one.keys):
            mine = one.key == code
            sides = durations.setdefault(key, ([], []))
            sides[0].append(one.dur_ns[mine & overlapped])
            sides[1].append(one.dur_ns[mine & ~overlapped])
    found = [
        _compared(key, np.concatenate(sides[0]), np.concatenate(sides[1]), (baseline or {}).get(key))
        for key, sides in durations.items()
    ]
    return in_order(found)


def in_order(found: Iterable[ContentionFigures]) -> list[ContentionFigures]:
    """Most time overlapped first."""
    return sorted(found, key=lambda one: (-one.overlapped_gemm_ns, one.shape, one.dtype or "", one.role))


def _compared(
    key: Key, overlapped: Int64, alone: Int64, other: tuple[Side, Side] | None
) -> ContentionFigures:
    """One key: its own sides where they have samples enough, else the baseline's."""
    own = (_side(overlapped), _side(alone))
    taken = [
        there.median_ns if here.median_ns is None and there is not None else here.median_ns
        for here, there in zip(own, other or (None, None), strict=True)
    ]
    borrowed = [
        name
        for name, here, used in zip(("overlapped", "alone"), own, taken, strict=True)
        if here.median_ns is None and used is not None
    ]
    if len(borrowed) == 2:  # nothing of this run is in it
        taken, borrowed = [None, None], []
    with_comm, without = taken
    known = with_comm is not None and without is not None and without > 0
    slower = max(0, with_comm - without) if known and with_comm is not None and without is not None else None
    return ContentionFigures(
        shape=key[0],
        dtype=key[1],
        role=key[2],
        overlapped_count=own[0].count,
        alone_count=own[1].count,
        median_overlapped_ns=with_comm,
        median_alone_ns=without,
        from_baseline=borrowed[0] if borrowed else None,
        slowdown_ratio=with_comm / without if known and with_comm and without else None,
        slowdown_ns=None if slower is None else slower * own[0].count,
        overlapped_gemm_ns=int(overlapped.sum()),
    )


def _side(durations: Int64) -> Side:
    """Its median in whole nanoseconds (of an even number the mean of the middle two, rounded down)."""
    count = len(durations)
    if count < LEAST_SAMPLES:
        return Side(count, None)
    ordered = np.sort(durations)
    return Side(count, (int(ordered[(count - 1) // 2]) + int(ordered[count // 2])) // 2)


def baseline_of(figures: Iterable[ContentionFigures]) -> dict[Key, tuple[Side, Side]]:
    """What another run can lend: its own medians, none that it borrowed itself."""
    lent: dict[Key, tuple[Side, Side]] = {}
    for one in figures:
        overlapped = None if one.from_baseline == "overlapped" else one.median_overlapped_ns
        alone = None if one.from_baseline == "alone" else one.median_alone_ns
        lent[(one.shape, one.dtype, one.role)] = (
            Side(one.overlapped_count, overlapped),
            Side(one.alone_count, alone),
        )
    return lent


def with_contention(
    results: Sequence[RankResult], baseline: Baseline | None = None
) -> tuple[list[RankResult], list[ContentionFigures] | None, list[LedgerEntry]]:
    """Compare the GEMMs of a run and fill slowdown and net gain of its ranks and steps.

    None for the comparison, with the reason, where no GEMM of known shape ran on a device.
    """
    samples = [one for result in results for one in result.gemm_samples if one is not None]
    if not samples:
        return list(results), None, []  # CPU runs, or nothing ran: said already
    found = contention(samples, baseline)
    if not found:
        return list(results), None, [NO_SHAPES]
    slower = slowdowns(found)
    filled = [with_slowdown(result, slower) for result in results]
    return filled, found, notes(found, sum(unknown_slowdowns(result) for result in filled))


def slowdowns(found: Sequence[ContentionFigures]) -> dict[Key, int]:
    """What one GEMM of each key loses while it is overlapped, ns, where that is known."""
    return {
        (one.shape, one.dtype, one.role): one.slowdown_ns // max(one.overlapped_count, 1)
        for one in found
        if one.slowdown_ns is not None
    }


def unknown_slowdowns(result: RankResult) -> int:
    """Devices on which communication overlaps computation, and nobody knows what that cost."""
    return sum(rank.slowdown_ns is None and bool(rank.overlapped_ns) for rank in result.ranks)


def notes(found: Sequence[ContentionFigures], unknown_devices: int) -> list[LedgerEntry]:
    """What the comparison of a run leaves open; `unknown_devices`: `unknown_slowdowns` of all ranks."""
    return _unknown(found) + _none_overlapped(unknown_devices, found)


def _unknown(found: Sequence[ContentionFigures]) -> list[LedgerEntry]:
    missing = sum(one.overlapped_count for one in found if one.slowdown_ns is None)
    if not missing:
        return []
    text = (
        f"overlapped GEMMs with fewer than {LEAST_SAMPLES} of their shape, dtype and role while overlapped "
        "or while not: their slowdown is null and in no net gain (--baseline RUN can lend the missing side)"
    )
    return [LedgerEntry("contention-few-samples", "note", text, count=missing)]


def _none_overlapped(unknown: int, found: Sequence[ContentionFigures]) -> list[LedgerEntry]:
    """Why the slowdown is null where communication overlaps computation, but no GEMM that is compared."""
    if not unknown or any(one.overlapped_count for one in found):
        return []
    text = (
        "slowdown and net gain are null: communication overlaps no GEMM of known shape for half of its time, "
        "so what overlap costs was not measured"
    )
    return [LedgerEntry("contention-none-overlapped", "note", text)]


def with_slowdown(result: RankResult, slower: Mapping[Key, int]) -> RankResult:
    """The result with `slowdown_ns` and `net_gain_ns` of its devices and their windows."""
    ranks, steps = list(result.ranks), list(result.steps)
    for number, samples in enumerate(result.gemm_samples):
        if samples is None:
            continue
        mine = [i for i, step in enumerate(steps) if step.device == ranks[number].device]
        cost = np.array([slower.get(key, NONE) for key in samples.keys], np.int64)[samples.key]
        overlapped = is_overlapped(samples)
        told = sum_by(samples.window, (overlapped & (cost != NONE)).astype(np.int64), len(mine))
        lost = sum_by(samples.window, np.where(overlapped & (cost != NONE), cost, 0), len(mine))
        # Where nothing overlaps nothing is lost; where only other kernels are overlapped nobody knows.
        nothing = np.array([steps[i].overlapped_ns == 0 for i in mine], np.bool_) & (len(samples.key) > 0)
        known = (told > 0) | nothing
        for i, is_known, ns in zip(mine, known.tolist(), lost.tolist(), strict=True):
            if is_known:
                steps[i] = replace(steps[i], slowdown_ns=ns, net_gain_ns=_less(steps[i].overlapped_ns, ns))
        if (told > 0).any() or (nothing.any() and ranks[number].overlapped_ns == 0):
            whole = int(lost.sum())
            gain = _less(ranks[number].overlapped_ns, whole)
            ranks[number] = replace(ranks[number], slowdown_ns=whole, net_gain_ns=gain)
    return replace(result, ranks=tuple(ranks), steps=tuple(steps))


def _less(whole_ns: int | None, part_ns: int) -> int | None:
    return None if whole_ns is None else whole_ns - part_ns
