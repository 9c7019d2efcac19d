"""Where the events of a trace's text end, and what in it is taken: all that a copy with more events needs.

The text is read by the decoder's own readers, so that what counts as an intact event is decided in one place.
Nothing of the text is kept: what a damaged file is made of is remembered as places in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger
from sp_profiler.trace.columns import Columns
from sp_profiler.trace.decode import CHUNK_BYTES
from sp_profiler.trace.document import DocumentReader
from sp_profiler.trace.events import EventReader
from sp_profiler.trace.faults import Faults
from sp_profiler.trace.inflate import read_text
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.places import opened
from sp_profiler.trace.repair import mended_text
from sp_profiler.trace.schema import Event
from sp_profiler.trace.values import word_text
from sp_profiler.trace.window import Window

CATEGORY = "sp-profile"
"""`cat` of every event that we add."""

_LARGEST_ID = 1 << 51
_UNPACKING = ("truncated-gzip", "damaged-gzip", "bad-checksum")


@dataclass(frozen=True)
class Layout:
    """The text of one trace file. Offsets count bytes of its uncompressed UTF-8 text.

    `list_end` is the place of the `]` behind the events of an intact file, None for a damaged one. That is
    made of `pieces` (start, end, whether it must be mended), three numbers each, with one comma between them.
    """

    list_end: int | None
    has_events: bool
    pieces: array[int]
    members: dict[str, Any]  # what the top level of a damaged file holds besides the events
    pids: dict[str, Any]  # by its text, a pid as it stands in the file: a number or a word
    tids: dict[str, Any]
    largest_id: int  # of flows and asynchronous events

    @property
    def mended(self) -> int:
        """Damaged events that can be read."""
        return sum(self.pieces[2::3])


def find_layout(path: str, limits: Limits) -> Layout:
    """Read the text of a trace. Raises InputError where `decode_trace` would, or for an export of ours."""
    ledger = Ledger(path)
    seen = _Seen(path)
    with opened(path) as file, read_text(file, path, limits, ledger) as blocks:
        text = Window(blocks)
        faults = _Counted(ledger)
        events = _Places(path, text, limits, faults, seen)
        document = DocumentReader(path, text, limits, faults, events)
        document.read()
    unpacked = not any(entry.code in _UNPACKING for entry in ledger.entries)
    intact = faults.count == 0 and events.lists == 1 and events.list_end is not None and unpacked
    return Layout(
        list_end=events.list_end if intact else None,
        has_events=seen.count > 0,
        pieces=array("q") if intact else events.pieces,
        members={} if intact else document.members,
        pids=seen.pids,
        tids=seen.tids,
        largest_id=seen.largest_id,
    )


def is_json_object(text: bytes) -> bool:
    """Whether the text is one intact JSON object."""
    try:
        text.decode()
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


class _Counted(Faults):
    """Counts what is wrong with the text, repaired or not."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.count = 0

    def repaired(self, code: str, offset: int) -> None:
        self.count += 1
        super().repaired(code, offset)

    def _loss(self, code: str, text: str, offset: int) -> None:
        self.count += 1
        super()._loss(code, text, offset)


class _Seen:
    """What the events of a file use that ours may not: in the place of the decoder's columns."""

    def __init__(self, path: str) -> None:
        self.count = 0
        self.pids: dict[str, Any] = {}
        self.tids: dict[str, Any] = {}
        self.largest_id = 0
        self._path = path

    def add(
        self,
        events: Sequence[Event],
        offset_of: Callable[[int], int],
        not_empty: Callable[[], Sequence[bool]] | None = None,
    ) -> None:
        del offset_of, not_empty  # they are for the ledger of what is decoded
        self.count += len(events)
        _take(self.pids, [event.pid for event in events])
        _take(self.tids, [event.tid for event in events])
        for event in events:
            if event.ph == "X":
                continue
            if event.cat == CATEGORY:
                raise InputError(
                    f"{self._path} holds tracks that sp-profile export added: export the original trace."
                )
            if isinstance(event.id, int) and self.largest_id < event.id < _LARGEST_ID:
                self.largest_id = event.id


def _take(known: dict[str, Any], values: list[Any]) -> None:
    """Add the distinct pids or tids by their text; numbers come before words that read the same."""
    for value in {one for one in values if isinstance(one, (str, int, float))}:
        text = word_text(value)
        if text is not None and not isinstance(known.get(text), int):
            known[text] = value


class _Places(EventReader):
    """Reads the events as the decoder does and remembers where they are."""

    def __init__(self, path: str, text: Window, limits: Limits, faults: _Counted, seen: _Seen) -> None:
        # `_Seen` has the one method of the columns that is called.
        super().__init__(path, text, limits, faults, cast(Columns, seen), chunk_bytes=CHUNK_BYTES)
        self.lists = 0
        self.list_end: int | None = None
        self.pieces: array[int] = array("q")
        self._counted = faults
        self._apart = True  # the next piece does not follow the last one after a comma
        self._repaired: list[tuple[int, int]] = []  # of the event being read

    def read_list(self) -> bool:
        self.lists += 1
        self._apart = True
        goes_on = super().read_list()
        self.list_end = self._text.offset - 1 if goes_on else None
        return goes_on

    def _gap(self, expected: int | None) -> str:
        before = self._counted.count
        step = super()._gap(expected)
        self._apart |= expected is None or self._counted.count != before
        return step

    def _chunk(self, end: int) -> int | None:
        start = self._text.offset
        failure = super()._chunk(end)
        if failure is None:
            self._add(start, self._text.base + end)
        return failure

    def _one_event(self) -> int | None:
        text = self._text
        start, before = text.offset, self._counted.count
        self._repaired.clear()
        commas = super()._one_event()
        if commas == 1:  # it ends where it seems to
            raw = text.data[start - text.base : text.at]
            if is_json_object(raw):
                self._counted.count = before  # what we cannot use of it is no damage
                self._add(start, text.offset)
                return commas
        self._apart = True
        for begin, end in self._repaired:
            self._add(begin, end, mend=True)
            self._apart = True
        return commas

    def _repair(self, raw: bytes, offset: int) -> None:
        super()._repair(raw, offset)
        if mended_text(raw) is not None:
            self._repaired.append((offset, offset + len(raw)))

    def _add(self, start: int, end: int, *, mend: bool = False) -> None:
        if self.pieces and not self._apart:
            self.pieces[-2] = end
        else:
            self.pieces.extend((start, end, int(mend)))
        self._apart = False
