"""The list of events: chunks decoded at once, single events where that fails, damage passed over."""

from __future__ import annotations

import re

import msgspec

from sp_profiler.errors import InputError
from sp_profiler.trace import scan
from sp_profiler.trace.columns import Columns
from sp_profiler.trace.faults import Faults
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.native import ScannedChunks
from sp_profiler.trace.repair import repair_event
from sp_profiler.trace.schema import NO_EVENT, Event
from sp_profiler.trace.values import string_too_long
from sp_profiler.trace.window import Window

_SMALL_CHUNK = 1 << 12  # below this, events are taken one by one
_MOST_SINGLE = 1 << 10
_HEAD_OF_EVENT = 1 << 12

_GAP = re.compile(rb"[ \t\r\n,]*")
_EMPTY = re.compile(rb"\{[ \t\r\n]*\}")
_NULS = re.compile(rb"[\0 \t\r\n]*")
_ERROR_BYTE = re.compile(r"\(byte (\d+)\)")

_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])


class EventReader:
    """Reads the events of one file into `columns`; the window stands where reading goes on."""

    def __init__(
        self,
        path: str,
        text: Window,
        limits: Limits,
        faults: Faults,
        columns: Columns,
        *,
        chunk_bytes: int,
        scanned: ScannedChunks | None = None,
    ) -> None:
        """`scanned` puts what is plain into the same columns; without it all is decoded here."""
        self.is_bare = False  # the file is a list, not an object
        self._path = path
        self._text = text
        self._limits = limits
        self._faults = faults
        self._columns = columns
        self._chunk_bytes = max(chunk_bytes, 1)
        self._scanned = scanned
        self._few_bytes = _SMALL_CHUNK
        self._no_border_before = 0  # an offset; looking again would cost the square of a damaged stretch
        self._single: list[tuple[Event, int]] = []  # events that were read one by one, with their offsets

    def event_follows(self) -> bool:
        """Whether the window stands at an event."""
        self._text.want(_HEAD_OF_EVENT)
        return scan.looks_like_event(self._text.data, self._text.at)

    def is_first(self) -> bool:
        """Whether the window stands at an event where the file should begin: a bracket is missing."""
        self._text.want(_HEAD_OF_EVENT)
        return scan.is_event_start(self._text.data, self._text.at)

    def list_follows(self) -> bool:
        """Whether the window stands at the bracket of a list that begins with an event."""
        text = self._text
        text.want(_HEAD_OF_EVENT)
        start = text.at + 1
        while text.data[start : start + 1] in (b" ", b"\t", b"\r", b"\n"):
            start += 1
        return scan.looks_like_event(text.data, start)

    def resumes_soon(self) -> bool:
        """Whether an event begins within the next bytes although there is damage before it."""
        text = self._text
        text.want(_HEAD_OF_EVENT)
        head = text.data[text.at : text.at + _HEAD_OF_EVENT]
        resume = scan.next_resume(head, 0, at_end=False, is_bare=False)
        return resume is not None and not resume.is_list_end

    def read_list(self) -> bool:
        """Events from `at` on, up to and including the `]`; False when the text ends first."""
        text = self._text
        span = self._chunk_bytes
        expected = 0  # commas before the next event; None after damage: any number
        while True:
            step = self._gap(expected)
            if step != "event":
                return step == "list-end"
            expected = 0  # they were passed; a smaller chunk may be tried from here
            text.want(span + scan.MARGIN)
            end = min(text.at + span, len(text.data))
            searched = self._no_border_before - text.base - scan.MARGIN
            border = scan.last_border(text.data, max(text.at, searched), end)
            if border is None:
                self._no_border_before = max(self._no_border_before, text.base + end)
                expected = self._one_event()
                span = min(max(2 * span, _SMALL_CHUNK), self._chunk_bytes)
                continue
            if self._scan(border[0]):
                expected = 1
                span = min(max(4 * span, _SMALL_CHUNK), self._chunk_bytes)
                continue
            border = self._border_of_few(border)
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
                self._faults.cut(text.offset)
                return "end"
            if byte == b"]":
                if expected is not None and commas > 0:
                    self._faults.repaired("bad-separator", start)
                text.at += 1
                return "list-end"
            if byte == b"{" and not self._document_follows():
                if expected is not None and commas != expected:
                    self._faults.repaired("bad-separator", start)
                return "event"
            if byte == b"\0":
                self.skip_nuls()
            else:
                self._faults.stray_text(text.offset)
                if not self.to_next_event():
                    self._faults.cut(text.offset)
                    return "end"
            expected = None

    def _document_follows(self) -> bool:
        """Whether another writer's whole document begins where an event should."""
        text = self._text
        text.want(scan.MARGIN)
        return scan.holds_document(text.data, text.at, len(text.data))

    def skip_nuls(self) -> None:
        """Pass over a hole of NUL bytes."""
        self._faults.nul_hole(self._text.offset)
        self._text.skip(_NULS)

    def to_next_event(self) -> bool:
        """Move to the next event or the end of the list; False (and `at` at the end) without one."""
        text = self._text
        while True:
            resume = scan.next_resume(text.data, text.at, at_end=text.is_end, is_bare=self.is_bare)
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
        if b'"traceEvents"' in raw:  # perhaps another document, whose events would count as one object
            return 0
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
        self.flush()
        base = text.base + start
        self._columns.add(events, lambda index: base + _nth_event(raw, index), lambda: _not_empty(raw))
        return None

    def _scan(self, end: int) -> bool:
        """Let the compiled scanner read as many events of [at, end) as are plain; False when it took none."""
        if self._scanned is None:
            return False
        text = self._text
        self.flush()
        reached = self._scanned.take(text.data, text.at, end)
        if reached == text.at:
            return False
        if reached - text.at >= self._few_bytes:
            self._few_bytes = _SMALL_CHUNK
        text.at = reached
        return True

    def _border_of_few(self, border: tuple[int, int]) -> tuple[int, int]:
        """A border soon after an event that the scanner did not take: the next ones may be plain again.

        The more often it stops, the more is decoded without it.
        """
        if self._scanned is None:
            return border
        text = self._text
        few = scan.last_border(text.data, text.at, min(text.at + self._few_bytes, border[0] + 1))
        self._few_bytes = min(2 * self._few_bytes, self._chunk_bytes)
        return border if few is None else few

    def _keep(self, event: Event, offset: int) -> None:
        """Hold an event that was read by itself; many go into the columns together."""
        self._single.append((event, offset))
        if len(self._single) >= _MOST_SINGLE:
            self.flush()

    def flush(self) -> None:
        """Put the events that were read one by one into the columns; call it after the last list."""
        single, self._single = self._single, []
        if single:
            self._columns.add([event for event, _ in single], lambda index: single[index][1])

    def _one_event(self) -> int | None:
        """Read the event at `at` by itself. Answers the commas to expect before the next one."""
        text = self._text
        found = scan_here(text, self._limits.string_bytes, self._path, self._limits)
        if found is None:
            raise string_too_long(self._path, self._limits)
        start = text.at
        offset = text.offset
        if found.outcome == "complete" and not self._is_too_short(found.end):
            raw = text.data[start : found.end]
            try:
                raw.decode()
                event = _EVENT.decode(raw)
            except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
                self._repair(raw, offset)
            else:
                if event == NO_EVENT and not _EMPTY.fullmatch(raw):
                    self._faults.lost_event(offset)
                else:
                    self._keep(event, offset)
            text.at = found.end
            return 1
        self._damaged_event(offset, ends_too_early=found.outcome == "more")
        return None

    def _damaged_event(self, offset: int, *, ends_too_early: bool) -> None:
        """The event at `at` does not parse. It reaches to where the next one seems to begin.

        `ends_too_early`: nothing is wrong with it but that the text ends.
        """
        text = self._text
        while True:
            resume = scan.next_resume(text.data, text.at + 1, at_end=text.is_end, is_bare=self.is_bare)
            certain = resume is not None and resume.position + scan.MARGIN <= len(text.data)
            if certain or text.is_end:
                break
            if len(text.data) - text.at > self._limits.string_bytes:
                self._faults.lost_event(offset)
                text.at += 1
                self.to_next_event()
                return
            text.want(2 * (len(text.data) - text.at) + 1)
        # Where only text is missing, a `]}` at its end closes something inside the event; but a lost quote
        # makes all that follows it seem to be a string without end.
        if resume is None or (ends_too_early and resume.is_list_end and not self._is_whole(resume.position)):
            self._faults.cut(text.offset)
            text.at = len(text.data)
            return
        raw = text.data[text.at : resume.position]
        self._repair(raw.rstrip(b" \t\r\n,\0"), offset)
        text.at = resume.position

    def _is_too_short(self, end: int) -> bool:
        """Whether the object that seems to end at `end` goes on: a raw quote in a name closed it too early.

        What follows is then neither a separator nor another object.
        """
        text = self._text
        follows = text.data[end : end + scan.MARGIN].lstrip(b" \t\r\n")[:1]
        if follows in (b",", b"]", b"{", b"}", b"\0", b""):
            return False
        resume = scan.next_resume(text.data, end, at_end=text.is_end, is_bare=self.is_bare)
        if resume is None:
            return False
        repaired = repair_event(text.data[text.at : resume.position].rstrip(b" \t\r\n,\0"))
        return repaired is not None and not repaired.has_more

    def _is_whole(self, end: int) -> bool:
        """Whether the damaged event up to `end` has all its brackets once its quotes are mended."""
        text = self._text
        repaired = repair_event(text.data[text.at : end].rstrip(b" \t\r\n,\0"))
        return repaired is not None and not repaired.has_more and "lost-bracket" not in repaired.codes

    def _repair(self, raw: bytes, offset: int) -> None:
        repaired = repair_event(raw)
        if repaired is None:
            self._faults.lost_event(offset)
            return
        for code in repaired.codes or ("wrong-type",):
            self._faults.repaired(code, offset)
        if repaired.has_more:
            self._faults.stray_text(offset)
        self._keep(repaired.event, offset)


def scan_here(text: Window, most: int, path: str, limits: Limits) -> scan.Scan | None:
    """Walk the value at the window, reading on as needed; None when it is longer than `most` bytes.

    Raises InputError when it nests deeper than the limits allow.
    """
    while True:
        found = scan.scan_value(text.data, text.at)
        if found.depth > limits.nesting:
            raise InputError(f"{path} nests lists and objects more than {limits.nesting} deep, the limit.")
        if found.outcome != "more":
            return found
        if text.is_end:  # a number may end with the text
            return scan.scan_value(text.data + b"\n", text.at)
        have = len(text.data) - text.at
        if have > most:
            return None
        text.want(2 * have + 1)


def _not_empty(raw: bytes) -> list[bool]:
    """Which objects in the text of a chunk that was decoded hold anything."""
    return [_EMPTY.fullmatch(one) is None for one in _TEXTS.decode(b"[" + raw + b"]")]


def _nth_event(raw: bytes, index: int) -> int:
    """Where the event with this index begins in the text of a chunk that was decoded."""
    position = 0
    for _ in range(index):
        position = scan.scan_value(raw, position).end
        gap = _GAP.match(raw, position)
        position = gap.end() if gap else position
    return position
