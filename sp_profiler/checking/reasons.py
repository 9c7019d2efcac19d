"""Why a figure is not known, with what the data-quality ledger says of it."""

from __future__ import annotations

from sp_profiler.checking.readings import Reading
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.format import visible
from sp_profiler.report.model import Report


def reason_of(report: Report, reading: Reading) -> str:
    """One clause, without a full stop."""
    reason = reading.reason or "nobody could look"
    at = f" of {reading.where.text}" if reading.where is not None and reading.where.text else ""
    entry = _entry(report, reading)
    told = "" if entry is None else f" (ledger, {entry.code}: {entry.text.rstrip('.')})"
    return visible(f"{reason}{at}{told}")


def _entry(report: Report, reading: Reading) -> LedgerEntry | None:
    """The entry about it: whose code is looked for, else one that says of it that something is null, else any
    that speaks of it."""
    for word in reading.looked_for:
        for entry in report.data_quality:
            if entry.code == word:
                return entry
    speaking = [
        entry
        for word in reading.looked_for
        for entry in report.data_quality
        if word in entry.text or word in entry.text.replace(" ", "_")
    ]
    return next((entry for entry in speaking if " null" in entry.text), next(iter(speaking), None))
