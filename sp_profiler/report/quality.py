"""The data-quality ledger as screens show it: equal entries of several files together, each said once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sp_profiler.ledger import SEVERITIES, LedgerEntry
from sp_profiler.report.format import counted

_NOT_ASKED = "not-analysed"  # codes of what nobody asked for: no matter of the data's quality


def shown(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """What a person is shown, worst first: one entry per code and text, counts summed, without the file where
    there are several."""
    merged: dict[tuple[str, str, str], LedgerEntry] = {}
    for new in entries:
        if new.code.startswith(_NOT_ASKED):
            continue
        key = (new.severity, new.code, new.text)
        old = merged.get(key)
        if old is None:
            merged[key] = new
            continue
        same = old.file == new.file
        merged[key] = replace(
            old,
            count=old.count + new.count,
            file=old.file if same else None,
            first_offset=old.first_offset if same else None,
        )
    return sorted(merged.values(), key=lambda entry: SEVERITIES.index(entry.severity))


def totals(entries: Iterable[LedgerEntry]) -> str:
    """`1 assumption, 2 notes` of the entries shown."""
    severities = [entry.severity for entry in entries]
    return ", ".join(
        counted(severities.count(severity), severity, "losses" if severity == "loss" else None)
        for severity in SEVERITIES
        if severity in severities
    )
