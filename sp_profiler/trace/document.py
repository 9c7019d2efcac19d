"""The top level of a trace file: an object with the events among other members, or a bare list."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sp_profiler.errors import InputError
from sp_profiler.trace import scan
from sp_profiler.trace.events import EventReader, scan_here
from sp_profiler.trace.faults import Faults
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.repair import repair_value
from sp_profiler.trace.window import Window

_BOM = b"\xef\xbb\xbf"
_GAP = re.compile(rb"[ \t\r\n,]*")
_BLANK = re.compile(rb"[ \t\r\n]*")
_KEY = re.compile(rb'"([^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*)"[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_LIST_OF_EVENTS = re.compile(rb'"traceEvents"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}(?=\[)')
_CUT_KEY = re.compile(rb'"[^"\\\x00-\x1f]*(?:"[ \t\r\n]*:?[ \t\r\n]*)?\Z')
_SEARCHED_HEAD = 1 << 20
_FIRST_LOOK = 1 << 16


class DocumentReader:
    """Reads one file: its events through an `EventReader`, everything else into `members`."""

    def __init__(self, path: str, text: Window, limits: Limits, faults: Faults, events: EventReader) -> None:
        self.members: dict[str, Any] = {}
        self._path = path
        self._text = text
        self._limits = limits
        self._faults = faults
        self._events = events
        self._found_events = False

    def read(self) -> None:
        text = self._text
        text.want(len(_BOM))
        if text.data.startswith(_BOM):
            text.at = len(_BOM)
        text.skip(_BLANK)
        if not text.byte:
            cut = self._faults.gzip_is_damaged
            why = "holds no readable text: its gzip data is cut off or damaged" if cut else "is empty"
            raise InputError(f"{self._path} {why}.")
        if text.byte == b"[":
            goes_on = self._bare_list()
        elif self._events.is_first():
            self._faults.bad_metadata(text.offset)  # the bracket in front of the events is missing
            self._found_events = self._events.is_bare = True
            goes_on = self._events.read_list()
        elif text.byte == b"{":
            text.at += 1
            goes_on = self._object()
        else:
            self._damaged_head()
            goes_on = self._object()
        while goes_on and self._more_behind_the_end():
            goes_on = self._object()
        self._events.flush()
        if not self._found_events:
            raise self._not_a_trace()

    def _not_a_trace(self) -> InputError:
        if self._faults.is_cut:
            return InputError(f"{self._path} is cut off before its first event.")
        is_no_list = "traceEvents" in self.members
        holds = "its traceEvents is no list" if is_no_list else "it holds neither traceEvents nor a list"
        return InputError(
            f"{self._path} is not a trace: {holds} of events; record one with torch.profiler"
            " (export_chrome_trace)."
        )

    def _bare_list(self) -> bool:
        """The whole file is a list of events, without metadata. False when the text ends first."""
        text = self._text
        text.at += 1
        text.skip(_BLANK)
        if not self._events.event_follows() and not self._events.resumes_soon():
            raise self._not_a_trace()
        self._found_events = self._events.is_bare = True
        return self._events.read_list()

    def _damaged_head(self) -> None:
        """The first byte is wrong. It is a trace all the same if `traceEvents` follows soon."""
        text = self._text
        text.want(_SEARCHED_HEAD)
        match = _LIST_OF_EVENTS.search(text.data, text.at, text.at + _SEARCHED_HEAD)
        member = scan.next_member(text.data, text.at)
        if match is None or member is None:
            raise self._not_a_trace()
        self._faults.bad_metadata(text.offset)
        text.at = member

    def _object(self) -> bool:
        """The members of the top-level object, up to its closing brace; False when the text ends first."""
        text = self._text
        expected: int | None = None if self._found_events else 0  # commas before the next member
        while True:
            start = text.offset
            commas = text.skip(_GAP)
            byte = text.byte
            if byte == b"}":
                if commas and expected is not None:
                    self._faults.repaired("bad-separator", start)
                text.at += 1
                return True
            if byte == b'"' and expected not in (None, commas):
                self._faults.repaired("bad-separator", start)
            expected = 1
            if byte == b"{" and self._found_events and self._events.event_follows():
                self._faults.repaired("bad-separator", text.offset)
                goes_on = self._events.read_list()
            elif not byte or self._key_is_cut():
                self._faults.cut(text.offset)
                return False
            else:
                key = self._key()
                losses = self._faults.losses
                goes_on = self._after_damage(text.offset) if key is None else self._member(key)
                if self._faults.losses != losses:
                    expected = None
            if not goes_on:
                return False

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
            if not is_events and key not in scan.TOP_LEVEL_KEYS and self._events.list_follows():
                self._faults.bad_metadata(start)  # the key must have been traceEvents
                is_events = True
            if is_events:
                text.at += 1
                self._found_events = True
                return self._events.read_list()
        elif key == "traceEvents" and self._events.resumes_soon():
            self._faults.bad_metadata(start)  # something else stands where a bracket should be
            self._found_events = True
            return self._events.read_list()
        return self._value(key, start)

    def _value(self, key: str, start: int) -> bool:
        """Read a value that is not the events; False at the end of the text."""
        text = self._text
        found = self._scan_metadata(key)
        if found is None:
            return self._after_damage(start)
        if found.outcome == "more":
            return self._value_is_cut(start)
        if found.outcome == "broken" or not self._can_end(found.end):
            return self._after_damage(start, key)
        raw = text.data[text.at : found.end]
        text.at = found.end
        try:
            self.members[key] = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._faults.bad_metadata(start)
            self._keep_readable(key, raw)
        return True

    def _can_end(self, position: int) -> bool:
        """Whether a value may end here, by what follows; if not, one of its quotes is missing or too many."""
        follows = self._text.data[position : position + scan.MARGIN].lstrip(b" \t\r\n")[:1]
        return follows in (b",", b"}", b"]", b"\0", b"")

    def _keep_readable(self, key: str, raw: bytes) -> None:
        """Take from a damaged object what can be read: the rank must not be lost with the rest."""
        value = repair_value(raw) if raw.startswith(b"{") and key in scan.TOP_LEVEL_KEYS else None
        if value:
            self.members[key] = value

    def _scan_metadata(self, key: str) -> scan.Scan | None:
        """Walk the value at the window. None when the events lie inside it: it lost a closing bracket."""
        text = self._text
        most = min(_FIRST_LOOK, self._limits.metadata_bytes)
        while True:
            found = scan_here(text, most, self._path, self._limits)
            end = text.at + most if found is None else found.end
            if key != "traceEvents" and scan.holds_events(text.data, text.at, end):
                return None
            if found is not None:
                return found
            if most >= self._limits.metadata_bytes:
                raise InputError(
                    f"{self._path} holds a value of more than {self._limits.metadata_bytes} bytes under"
                    f" {key!r}, the limit for metadata."
                )
            most = min(8 * most, self._limits.metadata_bytes)

    def _value_is_cut(self, start: int) -> bool:
        """The text ends inside a value, perhaps only because a lost quote makes it seem so."""
        text = self._text
        if scan.next_member(text.data, text.at + 1) is not None:
            return self._after_damage(start)
        self._faults.cut(text.offset)
        return False

    def _after_damage(self, start: int, key: str = "") -> bool:
        """Pass over damaged metadata to the next known key or the events; False at the end of the text.

        Of an object, the value of `key`, that begins at the window what can be read is kept.
        """
        text = self._text
        self._faults.bad_metadata(start)
        end = scan.next_landmark(text.data, text.at + 1)
        damaged = text.data[text.at : len(text.data) if end is None else end[0]]
        self._keep_readable(key, damaged[:_FIRST_LOOK].rstrip(b" \t\r\n,"))
        text.at += text.byte == b'"'  # the key here was looked at; anything else may begin a landmark
        while True:
            found = scan.next_landmark(text.data, text.at)
            if found and (text.is_end or found[0] + scan.MARGIN <= len(text.data)):
                break
            if text.is_end:
                text.at = len(text.data)
                return False
            if not found:
                text.at = max(text.at, len(text.data) - scan.MARGIN)
            text.grow()
        text.at, is_key = found
        if is_key:
            return True
        self._found_events = True
        return self._events.read_list()

    def _more_behind_the_end(self) -> bool:
        """Go on after the end of the top-level value where another write into the same file follows.

        True when its events were read and the rest of an object remains.
        """
        text = self._text
        text.skip(_BLANK)
        if text.byte == b"\0":
            self._events.skip_nuls()
        if not text.byte:
            return False
        if not self._found_events:  # a stray brace may have ended the object before its events
            return self._after_damage(text.offset)
        if text.byte == b"," and scan.next_member(text.data[: text.at + scan.MARGIN], text.at) is not None:
            return self._after_damage(text.offset)  # a stray brace before the last members
        self._faults.stray_text(text.offset)
        return self._events.to_next_event() and self._events.read_list()
