"""What ranks add to a run besides their rows: GEMMs, steps, the ledger. Any order gives the same sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from sp_profiler.analysis.results import GemmFigures, StepFigures
from sp_profiler.ledger import LedgerEntry, Severity
from sp_profiler.report.model import StepAcross

# --- GEMMs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GemmSum:
    """GEMMs of one kind. `work` and `peak` are rates times nanoseconds as exact fractions (`n/d`), None where
    the rate of some is not known: sums of floats would depend on their order."""

    name: str
    shape: str | None
    dtype: str | None
    role: str
    count: int
    total_ns: int
    work: str | None
    peak: str | None


def gemm_sum(one: GemmFigures) -> GemmSum:
    def product(rate: float | None) -> str | None:
        return None if rate is None else str(Fraction(rate) * one.total_ns)

    key = (one.name, one.shape, one.dtype, one.role)
    return GemmSum(*key, one.count, one.total_ns, product(one.tflops), product(one.share_of_peak))


def added_gemms(several: Iterable[GemmSum]) -> tuple[GemmSum, ...]:
    found: dict[tuple[str, str | None, str | None, str], GemmSum] = {}
    for new in several:
        key = (new.name, new.shape, new.dtype, new.role)
        old = found.get(key)
        found[key] = (
            new
            if old is None
            else replace(
                old,
                count=old.count + new.count,
                total_ns=old.total_ns + new.total_ns,
                work=_added(old.work, new.work),
                peak=_added(old.peak, new.peak),
            )
        )
    return tuple(sorted(found.values(), key=str))


def _added(one: str | None, two: str | None) -> str | None:
    return None if one is None or two is None else str(Fraction(one) + Fraction(two))


def gemm_figures(sums: Iterable[GemmSum]) -> list[GemmFigures]:
    """As `report.build.merge_gemms` has them: most time first."""

    def rate(product: str | None, ns: int) -> float | None:
        return None if product is None or not ns else float(Fraction(product) / ns)

    figures = [
        GemmFigures(
            one.name,
            one.shape,
            one.dtype,
            one.role,
            one.count,
            one.total_ns,
            rate(one.work, one.total_ns),
            rate(one.peak, one.total_ns),
        )
        for one in sums
    ]
    return sorted(figures, key=lambda g: (-g.total_ns, g.name, g.shape or "", g.dtype or "", g.role))


# --- steps ---------------------------------------------------------------------------------------------


def step_across(steps: Sequence[StepFigures]) -> list[StepAcross]:
    """Each step over these windows, in order of the steps."""
    return added_steps(
        StepAcross(
            step=one.step,
            windows=1,
            window_ns=one.window_ns or 0,
            comm_ns=one.comm_ns or 0,
            compute_ns=one.compute_ns or 0,
            overlapped_ns=one.overlapped_ns or 0,
            exposed_ns=one.exposed_ns or 0,
            idle_ns=one.idle_ns or 0,
            longest_ns=one.window_ns or 0,
            longest_rank=one.rank,
            most_exposed_ns=one.exposed_ns or 0,
            most_exposed_rank=one.rank,
        )
        for one in steps
        if one.window_ns is not None
    )


def added_steps(several: Iterable[StepAcross]) -> list[StepAcross]:
    found: dict[int | None, StepAcross] = {}
    for new in several:
        old = found.get(new.step)
        found[new.step] = new if old is None else _add_steps(old, new)
    return sorted(found.values(), key=lambda one: (one.step is not None, one.step or 0))


def _add_steps(one: StepAcross, two: StepAcross) -> StepAcross:
    def most(ns: str, rank: str) -> tuple[int, int | None]:
        """The larger of both; of equal ones that of the lower rank."""
        pairs = [(getattr(each, ns), getattr(each, rank)) for each in (one, two)]
        return min(pairs, key=lambda pair: (-pair[0], pair[1] is None, pair[1] or 0))

    longest, most_exposed = most("longest_ns", "longest_rank"), most("most_exposed_ns", "most_exposed_rank")
    return StepAcross(
        step=one.step,
        windows=one.windows + two.windows,
        window_ns=one.window_ns + two.window_ns,
        comm_ns=one.comm_ns + two.comm_ns,
        compute_ns=one.compute_ns + two.compute_ns,
        overlapped_ns=one.overlapped_ns + two.overlapped_ns,
        exposed_ns=one.exposed_ns + two.exposed_ns,
        idle_ns=one.idle_ns + two.idle_ns,
        longest_ns=longest[0],
        longest_rank=longest[1],
        most_exposed_ns=most_exposed[0],
        most_exposed_rank=most_exposed[1],
    )


# --- the ledger ----------------------------------------------------------------------------------------

MOST_FILES = 8
"""Files of which one entry is listed by itself; of more their number is told."""
MOST_TEXTS = 16
"""Texts of one code that are told apart; of more the first stands for all."""


@dataclass(frozen=True)
class Told:
    """An entry of a trace's ledger: `place` and `number` order those of a run."""

    place: int
    number: int
    entry: LedgerEntry


@dataclass(frozen=True)
class LedgerSum:
    """Equal entries of several traces: `entries` of them, counts added; `told`: all if few, or the first."""

    entries: int
    count: int
    told: tuple[Told, ...]


@dataclass(frozen=True)
class CodeSum:
    """The entries of one code, by text; with more than `MOST_TEXTS` texts in one sum."""

    code: str
    severity: Severity
    texts: dict[str, LedgerSum]
    is_cut: bool = False


def ledger_sums(place: int, entries: Sequence[LedgerEntry]) -> tuple[CodeSum, ...]:
    """Of one trace's ledger."""
    return added_ledgers(
        CodeSum(e.code, e.severity, {e.text: LedgerSum(1, e.count, (Told(place, number, e),))})
        for number, e in enumerate(entries)
    )


def added_ledgers(several: Iterable[CodeSum]) -> tuple[CodeSum, ...]:
    found: dict[tuple[str, str], list[CodeSum]] = {}
    for one in several:
        found.setdefault((one.code, one.severity), []).append(one)
    return tuple(_add_codes(found[key]) for key in sorted(found))


def _add_codes(several: Sequence[CodeSum]) -> CodeSum:
    first = several[0]
    texts: dict[str, list[LedgerSum]] = {}
    for one in several:
        for text, told in one.texts.items():
            texts.setdefault(text, []).append(told)
    summed = {text: _add_entries(sums) for text, sums in texts.items()}
    is_cut = any(one.is_cut for one in several) or len(summed) > MOST_TEXTS
    if is_cut:
        whole = _add_entries(list(summed.values()))
        whole = replace(whole, told=whole.told[:1])
        summed = {whole.told[0].entry.text: whole}
    return CodeSum(first.code, first.severity, summed, is_cut)


def _add_entries(several: Sequence[LedgerSum]) -> LedgerSum:
    entries = sum(one.entries for one in several)
    told = sorted((t for one in several for t in one.told), key=lambda t: (t.place, t.number))
    return LedgerSum(
        entries, sum(one.count for one in several), tuple(told[: entries if entries <= MOST_FILES else 1])
    )


def ledger_entries(sums: Iterable[CodeSum]) -> list[LedgerEntry]:
    """The entries as a report has them, in order of the traces."""
    found: list[Told] = []
    for code in sums:
        for one in code.texts.values():
            first = one.told[0]
            if len(one.told) == one.entries:
                found += one.told
                continue
            more = f" (the first of {one.entries} such entries)" if code.is_cut else ""
            entry = replace(
                first.entry, text=first.entry.text + more, file=None, count=one.count, first_offset=None
            )
            found.append(replace(first, entry=entry))
    return [told.entry for told in sorted(found, key=lambda told: (told.place, told.number))]
