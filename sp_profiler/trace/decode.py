"""One trace file becomes one `Trace`: streaming, exact, and tolerant of every damage seen so far.

The text is inflated block by block and cut where one event seems to end; each chunk is decoded at once
into typed records and from there into columns. A wrong cut, or damage, makes the decoding fail: then the
chunk shrinks around the place and, where nothing else helps, single events are walked and repaired.
Which way an event was read never shows in the result, so any chunk size gives the same columns and
ledger.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from sp_profiler.errors import InputError
from sp_profiler.ledger import SEVERITIES, Ledger, LedgerEntry
from sp_profiler.trace import scan
from sp_profiler.trace.columns import Columns, string_too_long
from sp_profiler.trace.inflate import read_text
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.metadata import read_metadata
from sp_profiler.trace.repair import REPAIRS, repair_event
from sp_profiler.trace.schema import Event
from sp_profiler.trace.tables import Trace

__all__ = ["Limits", "decode_trace"]

CHUNK_BYTES = 1 << 20
DEFAULT_LIMITS = Limits()
_SMALL_CHUNK = 1 << 12  # below this, events are taken one by one
_BOM = b"\xef\xbb\xbf"
_NSIGHT = (".nsys-rep", ".qdrep", ".ncu-rep", ".sqlite")
_SQLITE_MAGIC = b"SQLite format 3"

_GAP = re.compile(rb"[ \t\r\n,]*")
_BLANK = re.compile(rb"[ \t\r\n]*")
_NULS = re.compile(rb"[\0 \t\r\n]*")
_KEY = re.compile(rb'"([^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*)"[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_ERROR_BYTE = re.compile(r"\(byte (\d+)\)")
_LIST_OF_EVENTS = re.compile(rb'"traceEvents"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}(?=\[)')
_CUT_KEY = re.compile(rb'"[^"\\\x00-\x1f]*(?:"[ \t\r\n]*:?[ \t\r\n]*)?\Z')
_SEARCHED_HEAD = 1 << 20
_HEAD_OF_EVENT = 1 << 12
_MOST_SINGLE = 1 << 10

_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)


def decode_trace(path: str, limits: Limits = DEFAULT_LIMITS, *, chunk_bytes: int = CHUNK_BYTES) -> Trace:
    """Read one Kineto trace: `.json` or `.json.gz`, complete or damaged, any schema version.

    All intact events are kept; every repair, loss and assumption is in `Trace.ledger` with its byte
    offset in the uncompressed text. `chunk_bytes` changes speed and memory, never the result.

    Raises InputError, in one sentence that names the file, when the file cannot be opened, is not a
    trace, or exceeds `limits`.
    """
    _refuse_other_formats(path)
    ledger = Ledger(path)
    columns = Columns(path, limits, ledger)
    try:
        with open(path, "rb") as file:
            if file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC:
                raise _nsight_error(path)
            file.seek(0)
            text = _Text(read_text(file, path, limits, ledger))
            reader = _Reader(path, text, limits, ledger, columns, chunk_bytes)
            reader.read()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, not a trace file.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    metadata = read_metadata(reader.members, path, ledger)
    strings, events, collectives, flows, memory = columns.finish(metadata.base_time_ns)
    return Trace(
        path=path,
        metadata=metadata,
        strings=strings,
        events=events,
        collectives=collectives,
        flows=flows,
        memory=memory,
        ledger=_in_order(ledger.entries),
        uncompressed_bytes=text.total,
    )


def _refuse_other_formats(path: str) -> None:
    if path.lower().endswith(_NSIGHT) and os.path.isfile(path):
        raise _nsight_error(path)


def _nsight_error(path: str) -> InputError:
    return InputError(
        f"{path} is an Nsight file, which is not read; record the run with torch.profiler"
        " (export_chrome_trace) or with `sp-profile run -- CMD`."
    )


def _in_order(entries: tuple[LedgerEntry, ...]) -> tuple[LedgerEntry, ...]:
    """Worst first, then by place: an order that does not depend on how the text was cut."""
    return tuple(
        sorted(
            entries,
            key=lambda entry: (
                SEVERITIES.index(entry.severity),
                entry.first_offset is None,
                entry.first_offset or 0,
                entry.code,
            ),
        )
    )


class _Text:
    """A window on the text: `data` begins at byte `base` of the file's text, `at` is where we read."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self.data = b""
        self.base = 0
        self.at = 0
        self.is_end = False

    @property
    def total(self) -> int:
        """Bytes of text seen; all of them once reading is over."""
        return self.base + len(self.data)

    @property
    def offset(self) -> int:
        return self.base + self.at

    def want(self, count: int) -> bool:
        """Have at least `count` bytes from `at` on; False when the text ends before. `at` becomes 0
        whenever more is read."""
        missing = count - (len(self.data) - self.at)
        if missing <= 0:
            return True
        pieces = [self.data[self.at :]]
        while missing > 0 and not self.is_end:
            block = next(self._blocks, None)
            if block is None:
                self.is_end = True
            else:
                pieces.append(block)
                missing -= len(block)
        self.base += self.at
        self.at = 0
        self.data = b"".join(pieces)
        return missing <= 0

    def grow(self) -> bool:
        """Read some more; False at the end of the text."""
        return self.want(len(self.data) - self.at + 1)

    def skip(self, pattern: re.Pattern[bytes]) -> int:
        """Pass over all that matches from `at` on, however long; returns the number of commas in it."""
        commas = 0
        while True:
            match = pattern.match(self.data, self.at)
            if match is not None:
                commas += match[0].count(b",")
                self.at = match.end()
            if self.at < len(self.data) or not self.want(1):
                return commas

    @property
    def byte(self) -> bytes:
        """The byte at `at`, empty at the end of the text."""
        if self.at >= len(self.data):
            self.want(1)
        return self.data[self.at : self.at + 1]


class _Reader:
    """Reads the top level of one file and its events into `columns` and `members`."""

    def __init__(
        self, path: str, text: _Text, limits: Limits, ledger: Ledger, columns: Columns, chunk_bytes: int
    ) -> None:
        self.members: dict[str, Any] = {}
        self._path = path
        self._text = text
        self._limits = limits
        self._ledger = ledger
        self._columns = columns
        self._chunk_bytes = max(chunk_bytes, 1)
        self._found_events = False
        self._is_bare = False  # the file is a list, not an object
        self._is_cut = False
        self._single: list[tuple[Event, int]] = []  # events that were read one by one, with their offsets

    # --- top level ---------------------------------------------------------------------------

    def read(self) -> None:
        text = self._text
        text.want(len(_BOM))
        if text.data.startswith(_BOM):
            text.at = len(_BOM)
        text.skip(_BLANK)
        if not text.byte:
            raise InputError(f"{self._path} is empty.")
        if text.byte == b"[":
            goes_on = self._bare_list()
        elif text.byte == b"{":
            text.at += 1
            goes_on = self._object()
        else:
            self._damaged_head()
            goes_on = self._object()
        while goes_on and self._more_behind_the_end():
            goes_on = self._object()
        if not self._found_events:
            raise self._not_a_trace()

    def _not_a_trace(self) -> InputError:
        if self._text.is_end and any(e.code == "truncated-file" for e in self._ledger.entries):
            return InputError(f"{self._path} is cut off before its first event.")
        return InputError(
            f"{self._path} is not a trace: it holds neither traceEvents nor a list of events; record one"
            " with torch.profiler (export_chrome_trace)."
        )

    def _bare_list(self) -> bool:
        """The whole file is a list of events, without metadata. False when the text ends first."""
        text = self._text
        text.at += 1
        text.skip(_BLANK)
        text.want(_HEAD_OF_EVENT)
        if not scan.looks_like_event(text.data, text.at) and not self._resumes_soon():
            raise self._not_a_trace()
        self._found_events = self._is_bare = True
        return self._events()

    def _resumes_soon(self) -> bool:
        """Whether an event begins within the next bytes although there is damage before it."""
        text = self._text
        text.want(_HEAD_OF_EVENT)
        resume = scan.next_resume(
            text.data[text.at : text.at + _HEAD_OF_EVENT], 0, at_end=False, is_bare=False
        )
        return resume is not None and not resume.is_list_end

    def _damaged_head(self) -> None:
        """The first byte is wrong. It is a trace all the same if `traceEvents` follows soon."""
        text = self._text
        text.want(_SEARCHED_HEAD)
        match = _LIST_OF_EVENTS.search(text.data, text.at, text.at + _SEARCHED_HEAD)
        member = scan.next_member(text.data, text.at)
        if match is None or member is None:
            raise self._not_a_trace()
        self._bad_metadata(text.offset)
        text.at = member

    def _bad_metadata(self, offset: int) -> None:
        self._ledger.add(
            "bad-metadata",
            "loss",
            "metadata outside the events is damaged; it was passed over",
            offset=offset,
        )

    def _stray_text(self, offset: int) -> None:
        self._ledger.add(
            "stray-text",
            "loss",
            "text that is no event lies between or behind the events; it was passed over",
            offset=offset,
        )

    def _truncated(self) -> None:
        if not self._is_cut:
            self._is_cut = True
            self._ledger.add(
                "truncated-file",
                "loss",
                "the file ends before it is complete; an event that was cut is left out",
                offset=self._text.offset,
            )

    def _object(self) -> bool:
        """The members of the top-level object, up to its closing brace; False when the text ends first."""
        text = self._text
        while True:
            text.skip(_GAP)
            byte = text.byte
            if byte == b"}":
                text.at += 1
                return True
            if byte == b"{" and self._found_events and self._event_follows():
                self._separator_fault()
                goes_on = self._events()
            elif not byte or self._key_is_cut():
                self._truncated()
                return False
            else:
                key = self._key()
                goes_on = self._after_damage(text.offset) if key is None else self._member(key)
            if not goes_on:
                return False

    def _event_follows(self) -> bool:
        self._text.want(_HEAD_OF_EVENT)
        return scan.looks_like_event(self._text.data, self._text.at)

    def _key(self) -> str | None:
        text = self._text
        while True:
            text.want(scan.MARGIN)
            match = _KEY.match(text.data, text.at)
            complete = match is not None and match.end() < len(text.data)
            if complete or text.is_end or len(text.data) - text.at > self._limits.string_bytes:
                break
            text.grow()
        if match is None:
            return None
        text.at = match.end()
        return match[1].decode(errors="replace")

    def _key_is_cut(self) -> bool:
        text = self._text
        return not text.want(scan.MARGIN) and _CUT_KEY.match(text.data, text.at) is not None

    def _member(self, key: str) -> bool:
        """Read the value of a top-level key; False at the end of the text."""
        text = self._text
        start = text.offset
        if text.byte == b"[":
            is_events = key == "traceEvents"
            if not is_events and key not in scan.TOP_LEVEL_KEYS and self._list_of_events_follows():
                self._bad_metadata(start)  # the key must have been traceEvents
                is_events = True
            if is_events:
                text.at += 1
                self._found_events = True
                return self._events()
        elif key == "traceEvents" and self._resumes_soon():
            self._bad_metadata(start)  # something else stands where a bracket should be
            self._found_events = True
            return self._events()
        return self._value(key, start)

    def _list_of_events_follows(self) -> bool:
        text = self._text
        text.want(_HEAD_OF_EVENT)
        blank = _BLANK.match(text.data, text.at + 1)
        return blank is not None and scan.looks_like_event(text.data, blank.end())

    def _value(self, key: str, start: int) -> bool:
        """Read a value that is not the events; False at the end of the text."""
        text = self._text
        found = self._scan(self._limits.metadata_bytes)
        if found is None:
            raise InputError(
                f"{self._path} holds a value of more than {self._limits.metadata_bytes} bytes under"
                f" {key!r}, the limit for metadata."
            )
        if found.outcome == "more":
            return self._value_is_cut(start)
        if found.outcome == "broken":
            return self._after_damage(start)
        raw = text.data[text.at : found.end]
        text.at = found.end
        try:
            self.members[key] = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._bad_metadata(start)
        return True

    def _scan(self, most: int) -> scan.Scan | None:
        """Walk the value at `at`, reading on as needed; None when it is longer than `most` bytes."""
        text = self._text
        while True:
            found = scan.scan_value(text.data, text.at)
            self._check_nesting(found.depth)
            if found.outcome != "more":
                return found
            if text.is_end:  # a number may end with the text
                return scan.scan_value(text.data + b"\n", text.at)
            have = len(text.data) - text.at
            if have > most:
                return None
            text.want(2 * have + 1)

    def _value_is_cut(self, start: int) -> bool:
        """The text ends inside a value, perhaps only because a lost quote makes it seem so."""
        text = self._text
        if scan.next_member(text.data, text.at + 1) is not None:
            return self._after_damage(start)
        self._truncated()
        return False

    def _after_damage(self, start: int) -> bool:
        """Pass over damaged metadata to the next known key or the events; False at the end of the text."""
        text = self._text
        self._bad_metadata(start)
        text.at += 1
        while True:
            member = scan.next_member(text.data, text.at)
            opening = None if self._found_events else scan.next_list_of_events(text.data, text.at)
            places = [place for place in (member, opening) if place is not None]
            if places and (text.is_end or min(places) + scan.MARGIN <= len(text.data)):
                break
            if text.is_end:
                text.at = len(text.data)
                return False
            if not places:
                text.at = max(text.at, len(text.data) - scan.MARGIN)
            text.grow()
        text.at = min(places)
        if text.at == member:
            return True
        text.at += 1
        self._found_events = True
        return self._events()

    def _more_behind_the_end(self) -> bool:
        """Go on after the end of the top-level value where another write into the same file follows.

        True when its events were read and the rest of an object remains.
        """
        text = self._text
        text.skip(_BLANK)
        if text.byte == b"\0":
            self._nul_hole()
        if not text.byte or not self._found_events:
            return False
        self._stray_text(text.offset)
        return self._to_next_event() and self._events()

    # --- events ------------------------------------------------------------------------------

    def _events(self) -> bool:
        """Events from `at` on, up to and including the `]`; False when the text ends first."""
        text = self._text
        span = self._chunk_bytes
        expected = 0  # commas before the next event; None after damage: any number
        while True:
            step = self._gap(expected)
            if step != "event":
                self._flush()
                return step == "list-end"
            expected = 0  # they were passed; a smaller chunk may be tried from here
            text.want(span + scan.MARGIN)
            end = min(text.at + span, len(text.data))
            border = scan.last_border(text.data, text.at, end)
            if border is None:
                expected = self._one_event()
                span = min(max(2 * span, _SMALL_CHUNK), self._chunk_bytes)
                continue
            failure = self._chunk(border[0])
            if failure is None:
                text.at = border[0]
                expected = 1
                span = min(max(4 * span, _SMALL_CHUNK), self._chunk_bytes)
            elif 0 < failure < border[0] - text.at:
                span = failure  # all before the damage can be read at once
            elif border[0] - text.at > _SMALL_CHUNK:
                span = (border[0] - text.at) // 8
            else:
                expected = self._one_event()

    def _gap(self, expected: int | None) -> str:
        """Pass over what separates events. Answers event | list-end | end (of the text)."""
        text = self._text
        while True:
            start = text.offset
            commas = text.skip(_GAP)
            byte = text.byte
            if not byte:
                self._truncated()
                return "end"
            if byte == b"]":
                if expected is not None and commas > 0:
                    self._separator_fault(start)
                text.at += 1
                return "list-end"
            if byte == b"{":
                if expected is not None and commas != expected:
                    self._separator_fault(start)
                return "event"
            if byte == b"\0":
                self._nul_hole()
            else:
                self._stray_text(text.offset)
                if not self._to_next_event():
                    self._truncated()
                    return "end"
            expected = None

    def _nul_hole(self) -> None:
        self._ledger.add(
            "nul-hole", "loss", "a hole of NUL bytes lies where text should be", offset=self._text.offset
        )
        self._text.skip(_NULS)

    def _separator_fault(self, offset: int | None = None) -> None:
        self._ledger.add(
            "bad-separator",
            "repair",
            REPAIRS["bad-separator"],
            offset=self._text.offset if offset is None else offset,
        )

    def _to_next_event(self) -> bool:
        """Move to the next event or the end of the list; False (and `at` at the end) without one."""
        text = self._text
        while True:
            resume = scan.next_resume(text.data, text.at, at_end=text.is_end, is_bare=self._is_bare)
            # Near the end of what was read, more text may show an earlier match.
            if resume is not None and (text.is_end or resume.position + scan.MARGIN <= len(text.data)):
                text.at = resume.position
                return True
            if text.is_end:
                text.at = len(text.data)
                return False
            if resume is None:
                text.at = max(text.at, len(text.data) - 2 * scan.MARGIN)
            text.grow()

    def _chunk(self, end: int) -> int | None:
        """Decode all events in [at, end) at once. Answers None on success, else about how many bytes
        are good (0 when that is not known)."""
        text = self._text
        start = text.at
        raw = text.data[start:end]
        try:
            if not raw.isascii():
                raw.decode()
            events = _EVENTS.decode(b"[" + raw + b"]")
        except UnicodeDecodeError as error:
            return error.start
        except msgspec.DecodeError as error:
            place = _ERROR_BYTE.search(str(error))
            return int(place[1]) - 1 if place else 0
        except RecursionError:
            return 0
        self._flush()
        base = text.base + start
        self._columns.add(events, lambda index: base + _nth_event(raw, index))
        return None

    def _keep(self, event: Event, offset: int) -> None:
        """Hold an event that was read by itself; many go into the columns together."""
        self._single.append((event, offset))
        if len(self._single) >= _MOST_SINGLE:
            self._flush()

    def _flush(self) -> None:
        single, self._single = self._single, []
        if single:
            self._columns.add([event for event, _ in single], lambda index: single[index][1])

    def _one_event(self) -> int | None:
        """Read the event at `at` by itself. Answers the commas to expect before the next one."""
        text = self._text
        found = self._scan(self._limits.string_bytes)
        if found is None:
            raise string_too_long(self._path, self._limits)
        start = text.at
        offset = text.offset
        if found.outcome == "complete":
            raw = text.data[start : found.end]
            try:
                raw.decode()
                event = _EVENT.decode(raw)
            except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
                self._repair(raw, offset)
            else:
                self._keep(event, offset)
            text.at = found.end
            return 1
        return self._damaged_event(offset)

    def _damaged_event(self, offset: int) -> int | None:
        """The event at `at` does not parse. It reaches to where the next one seems to begin."""
        text = self._text
        while True:
            resume = scan.next_resume(text.data, text.at + 1, at_end=text.is_end, is_bare=self._is_bare)
            certain = resume is not None and resume.position + scan.MARGIN <= len(text.data)
            if certain or text.is_end:
                break
            if len(text.data) - text.at > self._limits.string_bytes:
                self._lost(offset)
                text.at += 1
                self._to_next_event()
                return None
            text.want(2 * (len(text.data) - text.at) + 1)
        if resume is None:
            self._truncated()
            text.at = len(text.data)
            return None
        raw = text.data[text.at : resume.position]
        self._repair(raw.rstrip(b" \t\r\n,\0"), offset)
        text.at = resume.position
        return None

    def _repair(self, raw: bytes, offset: int) -> None:
        repaired = repair_event(raw)
        if repaired is None:
            self._lost(offset)
            return
        for code in repaired.codes or ("wrong-type",):
            self._ledger.add(code, "repair", REPAIRS[code], offset=offset)
        if repaired.has_more:
            self._stray_text(offset)
        self._keep(repaired.event, offset)

    def _lost(self, offset: int) -> None:
        self._ledger.add(
            "bad-event", "loss", "an event is damaged beyond repair; it was left out", offset=offset
        )

    def _check_nesting(self, depth: int) -> None:
        if depth > self._limits.nesting:
            raise InputError(
                f"{self._path} nests lists and objects more than {self._limits.nesting} deep, the limit."
            )


def _nth_event(raw: bytes, index: int) -> int:
    """Where the event with this index begins in the text of a chunk that was decoded."""
    position = 0
    for _ in range(index):
        position = scan.scan_value(raw, position).end
        gap = _GAP.match(raw, position)
        position = gap.end() if gap else position
    return position
