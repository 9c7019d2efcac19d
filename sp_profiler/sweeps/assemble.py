"""All cells beside each other: the baseline, what each is relative to it, and the sentences that follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from sp_profiler import __version__
from sp_profiler.errors import UsageError
from sp_profiler.ledger import Ledger, LedgerEntry
from sp_profiler.record.environment import package_version
from sp_profiler.record.runfile import utc_now
from sp_profiler.sweeps.model import Cell, Relative, Settings, Skipped, Spread, Sweep, SweepTool
from sp_profiler.sweeps.sentences import sentences_of

ALIASES = {"sp-basic": "sp-full-sync", "sp-recompute": "sp-shard-async", "tp": "tp-sync"}
"""Schemes by the names that papers give them."""


def assemble(
    cells: Sequence[Cell],
    settings: Settings,
    *,
    command: Sequence[str],
    skipped: Sequence[Skipped],
    baseline: str | None,
    hardware: str | None,
) -> Sweep:
    """The sweep of these cells, in this order. Raises UsageError for a baseline that is none of them."""
    scheme = baseline_scheme(cells, baseline)
    compared = with_relative(cells, scheme)
    return Sweep(
        tool=SweepTool("sp-profiler", __version__, package_version("torch")),
        created=utc_now(),
        command=list(command),
        settings=settings,
        baseline=scheme,
        hardware=hardware,
        sentences=sentences_of(compared, settings, scheme, skipped),
        cells=compared,
        skipped=list(skipped),
        data_quality=list(_ledger(compared)),
    )


def baseline_scheme(cells: Sequence[Cell], wanted: str | None) -> str | None:
    """The scheme to which others are relative: the one named, exactly or by how it begins; else the first.

    Raises UsageError for a name that fits none.
    """
    schemes = list(dict.fromkeys(cell.scheme for cell in cells))
    if wanted is None:
        return schemes[0] if schemes else None
    names = (wanted, ALIASES.get(wanted, wanted))
    exact = [scheme for scheme in schemes if scheme in names]
    begun = [scheme for scheme in schemes if scheme.startswith(f"{names[1]}-")]
    if not exact and not begun:
        raise UsageError(f"--baseline {wanted} is not among the schemes of this sweep: {', '.join(schemes)}")
    return (exact or begun)[0]


def with_relative(cells: Sequence[Cell], scheme: str | None) -> list[Cell]:
    """Every cell with what it is relative to the baseline's at the same sizes, where that has been run."""
    bases = {cell.at_sizes: cell for cell in cells if cell.scheme == scheme}
    return [dataclasses.replace(cell, relative=_relative(cell, bases.get(cell.at_sizes))) for cell in cells]


def _relative(cell: Cell, base: Cell | None) -> Relative | None:
    if base is None:
        return None
    one, other = cell.step, base.step
    return Relative(
        step=_over(one and one.median_ns, other and other.median_ns),
        step_q1=_over(one and one.q1_ns, other and other.median_ns),
        step_q3=_over(one and one.q3_ns, other and other.median_ns),
        step_within_spread=None if one is None or other is None else meet(one, other),
        memory=_over(cell.memory and cell.memory.peak_bytes, base.memory and base.memory.peak_bytes),
        tokens_per_s=_over(cell.tokens_per_s, base.tokens_per_s),
        work=cell.tokens_per_step / base.tokens_per_step,
    )


def _over(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def meet(one: Spread, other: Spread) -> bool:
    """Whether the boxes between the quartiles have a point in common."""
    return one.q1_ns <= other.q3_ns and other.q1_ns <= one.q3_ns


def _ledger(cells: Sequence[Cell]) -> Sequence[LedgerEntry]:
    """Why figures of cells that ran are null, counted by kind."""
    ledger = Ledger()
    for cell in cells:
        if cell.status != "ok":
            continue
        if cell.memory is not None and cell.memory.rss_peak_bytes is None:
            ledger.add("rss-unknown", "note", "the system does not tell resident memory of a process")
        if cell.profile is not None and cell.profile.step_ns is None:
            ledger.add("profiled-step-unknown", "note", "run.json tells no times of profiled steps")
        if cell.device_type == "cpu":
            text = "on CPUs the peak is what tensors hold: there is no allocator that could be asked"
            ledger.add("peak-of-tensors", "note", text)
    return ledger.entries
