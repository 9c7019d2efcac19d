"""The data-quality ledger: everything that was repaired, dropped or assumed, counted by kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["loss", "repair", "assumption", "note"]

SEVERITIES: tuple[Severity, ...] = ("loss", "repair", "assumption", "note")
"""From worst to harmless. `--strict` refuses on the first two."""


@dataclass(frozen=True)
class LedgerEntry:
    """One kind of irregularity in one file.

    `code` is stable and hyphenated (`truncated-gzip`); `file` the path as given, or null when the
    entry is about the run; `first_offset` the byte offset, in the uncompressed text, of the first
    place; `text` one sentence for a person.
    """

    code: str
    severity: Severity
    text: str
    file: str | None = None
    count: int = 1
    first_offset: int | None = None


class Ledger:
    """Collects entries and counts equal ones together."""

    def __init__(self, file: str | None = None) -> None:
        self._file = file
        self._entries: dict[tuple[str, Severity, str, str | None], LedgerEntry] = {}

    def add(
        self, code: str, severity: Severity, text: str, *, count: int = 1, offset: int | None = None
    ) -> None:
        """Enter `count` irregularities of this kind, the first at byte `offset`."""
        self.extend([LedgerEntry(code, severity, text, self._file, count, offset)])

    def extend(self, entries: Iterable[LedgerEntry]) -> None:
        """Enter what another ledger collected."""
        for new in entries:
            key = (new.code, new.severity, new.text, new.file)
            old = self._entries.get(key)
            if old is None:
                self._entries[key] = new
                continue
            offsets = [o for o in (old.first_offset, new.first_offset) if o is not None]
            self._entries[key] = LedgerEntry(
                new.code, new.severity, new.text, new.file, old.count + new.count, min(offsets, default=None)
            )

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All entries, worst first, otherwise in the order they were met."""
        return tuple(sorted(self._entries.values(), key=lambda entry: SEVERITIES.index(entry.severity)))


def refused_by_strict(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """The entries on which `--strict` refuses: losses and repairs, never what is legal."""
    return [entry for entry in entries if entry.severity in ("loss", "repair")]
