"""What can be wrong with the text of a trace, each with one sentence for the ledger."""

from __future__ import annotations

from sp_profiler.ledger import Ledger
from sp_profiler.trace.repair import REPAIRS


class Faults:
    """Enters the faults of one file's text. `offset` is a byte offset in the uncompressed text."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.is_cut = False
        self.losses = 0

    @property
    def gzip_is_damaged(self) -> bool:
        """Whether the text could not be unpacked to its end."""
        return any(entry.code in ("truncated-gzip", "damaged-gzip") for entry in self._ledger.entries)

    def cut(self, offset: int) -> None:
        """The text ends too early. However often that is noticed, it happened once."""
        if not self.is_cut:
            self.is_cut = True
            self._loss(
                "truncated-file",
                "the file ends before it is complete; an event that was cut is left out",
                offset,
            )

    def bad_metadata(self, offset: int) -> None:
        self._loss(
            "bad-metadata",
            "metadata outside the events is damaged; what cannot be read of it was passed over",
            offset,
        )

    def stray_text(self, offset: int) -> None:
        self._loss(
            "stray-text",
            "text that is no event lies between or behind the events; it was passed over",
            offset,
        )

    def nul_hole(self, offset: int) -> None:
        self._loss("nul-hole", "a hole of NUL bytes lies where text should be", offset)

    def lost_event(self, offset: int) -> None:
        self._loss("bad-event", "an event is damaged beyond repair; it was left out", offset)

    def repaired(self, code: str, offset: int) -> None:
        """`code` is one of `repair.REPAIRS`."""
        self._ledger.add(code, "repair", REPAIRS[code], offset=offset)

    def _loss(self, code: str, text: str, offset: int) -> None:
        self.losses += 1
        self._ledger.add(code, "loss", text, offset=offset)
