"""The memory of one run from its snapshots, its traces, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sp_profiler.analysis.memory.results import Memory, MemoryFigures
from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger, LedgerEntry
from sp_profiler.report.memory import assemble, listed_within
from sp_profiler.report.model import Report
from sp_profiler.snapshot.analyze import analyze_snapshot
from sp_profiler.snapshot.find import Source
from sp_profiler.snapshot.read import read_snapshot
from sp_profiler.trace.tables import RunFiles


@dataclass(frozen=True)
class Section:
    """The memory of one run, ready to be shown; `memory` is None where no file tells of any."""

    name: str
    memory: Memory | None
    ledger: tuple[LedgerEntry, ...]


def section_of(source: Source, analyze: Callable[[RunFiles], Report]) -> Section:
    """Read and analyse what belongs to one run; `analyze` makes the report of its traces.

    Raises InputError when none of its files can be read.
    """
    report = None if source.traces is None else analyze(source.traces)
    figures, entries = _snapshots(source.snapshots)
    traced = None if report is None else report.memory
    if report is not None:
        entries = (*_of_memory(report.data_quality), *entries)
    if not figures and traced is not None:
        return Section(source.name, traced, entries)
    ranks, left_out = listed_within([*(traced.ranks if traced is not None else ()), *figures])
    memory = assemble(
        ranks,
        saved=traced.saved if traced is not None else (),
        opportunities=traced.opportunities if traced is not None else (),
    )
    return Section(source.name, memory, (*entries, *left_out))


def _of_memory(entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """What the ledger of a run says of its memory events and of damage to its files."""
    about = ("memory-", "no-memory-", "no-backward-")
    return [
        entry for entry in entries if entry.code.startswith(about) or entry.severity in ("loss", "repair")
    ]


def _snapshots(paths: Sequence[str]) -> tuple[list[MemoryFigures], tuple[LedgerEntry, ...]]:
    """Figures of all devices of these snapshots.

    One that cannot be read is a loss; InputError when none can.
    """
    ledger = Ledger()
    figures: list[MemoryFigures] = []
    errors: list[InputError] = []
    for path in paths:
        try:
            found, entries = analyze_snapshot(read_snapshot(path))
        except InputError as error:
            errors.append(error)
            text = str(error).removeprefix(f"{path} ")
            ledger.extend([LedgerEntry("unreadable-file", "loss", text, file=path)])
            continue
        ledger.extend(entries)
        figures += found
        if not found:
            ledger.extend([LedgerEntry("snapshot-empty", "note", "no device had any memory", file=path)])
    if errors and len(errors) == len(paths):
        raise errors[0]
    ranks = [(one.rank, one.device) for one in figures]
    for rank, device in sorted({key for key in ranks if key[0] is not None and ranks.count(key) > 1}):
        text = f"several snapshots are of rank {rank}, device {device}: all are shown"
        ledger.extend([LedgerEntry("snapshot-same-rank", "note", text, count=ranks.count((rank, device)))])
    return figures, ledger.entries
