"""Read what can be read of one damaged event.

The kinds of damage are those seen from PyTorch and Kineto: unescaped quotes, raw newlines and control
bytes in names, bare backslashes, invalid UTF-8, `inf` and `NaN`, empty values, keys or values that lost
a quote. A value that nothing explains is left out and the rest of the event kept. Every repair has a
code, so that the ledger can tell.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from sp_profiler.trace.schema import NO_ARGS, NO_TEXT, Args, Event

REPAIRS = {
    "bad-utf8": "text is not valid UTF-8; the invalid bytes were replaced",
    "unescaped-quote": "a string holds quotes that are not escaped",
    "control-character": "a string holds raw newlines or control bytes",
    "bad-escape": "a string holds a backslash that escapes nothing",
    "non-finite-number": "a number is inf or NaN, which JSON does not know; it was left out",
    "empty-value": "a key has no value",
    "lost-quote": "a key or string lost one of its quotes",
    "lost-comma": "two members of an event are not separated by a comma",
    "lost-bracket": "an event lost a closing bracket",
    "unreadable-value": "a value inside an event cannot be read; it was left out",
    "bad-separator": "events, or members of the file, are not separated by one comma",
    "wrong-type": "a value has a type that the format does not allow there; it was left out",
}
"""What each repair code says."""

_MAX_DEPTH = 64
_SPACE = b" \t\r\n"
_EVENT_KEYS = rb"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)"

_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?=[ \t\r\n]*(?:[,}\]]|\Z))")
_LITERAL = re.compile(rb"(true|false|null)(?=[ \t\r\n]*(?:[,}\]]|\Z))")
_NON_FINITE = re.compile(
    rb"[+-]?(?:infinity|inf|nan|1\.#[a-z]+)(?:\([a-z]*\))?(?=[ \t\r\n]*(?:[,}\]]|\Z))", re.IGNORECASE
)
_KEY = re.compile(rb'"((?:[^"\\\x00-\x1f]|\\.){0,200}?)"[ \t\r\n]*:')
_LOOSE_KEY = re.compile(rb'"?([A-Za-z_][\w .()/%-]{0,80}?)"?[ \t]*:')
_BARE_WORD = re.compile(rb'([^",{}\[\]\n:]{1,400})"(?=[ \t\r\n]*[,}\]])')
# What follows the quote that really ends a string, in an object and in a list.
_ENDS_MEMBER = re.compile(
    rb'[ \t\r\n]*(?:,[ \t\r\n]*"?[A-Za-z_][^":,{}\[\]\n]{0,80}"?[ \t\r\n]*:(?!:)'
    rb"|\}[ \t\r\n]*(?:[,}\]]|\Z)|\Z)"
)
_ENDS_ITEM = re.compile(rb"[ \t\r\n]*(?:[,\]]|\Z)")
_LOST_END = re.compile(rb',[ \t\r\n]*"' + _EVENT_KEYS + rb'"[ \t\r\n]*:')
# A member that follows where a string should go on: its closing quote or the comma is missing, or the
# quote seems escaped because a path ends in a backslash. Told by the first quote in the string.
_MEMBER = rb'"[A-Za-z_][^":,{}\[\]\n]{0,80}"[ \t\r\n]*:[ \t\r\n]*(?:["{\[0-9,}\]-]|true|false|null|inf|nan)'
_RUNS_ON = re.compile(
    rb'[^"]*?(?:(?P<path>\\")(?=[ \t\r\n]*\}?[ \t\r\n]*,[ \t\r\n]*' + _MEMBER + rb")"
    rb"|(?P<quote>(?=\}?[ \t\r\n]*,[ \t\r\n]*" + _MEMBER + rb"))"
    rb'|(?P<comma>")(?=[ \t\r\n]*' + _MEMBER + rb"))",
    re.IGNORECASE,
)  # fmt: skip
_STRUCTURE = re.compile(rb'["{}\[\]()]')
_CLOSERS = {b"{": b"}", b"[": b"]", b"(": b")"}
# Where reading goes on after what cannot be read.
_NEXT_MEMBER = re.compile(
    rb',[ \t\r\n]*"[A-Za-z_][^":,{}\[\]\n]{0,80}"[ \t\r\n]*:|\}(?=[ \t\r\n]*(?:[,}\]]|\Z))'
)
_ODD_ITEM = re.compile(rb'[^,"{}\[\]\n]{1,400}(?=[,\]])')
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt])|u([0-9a-fA-F]{4}))')
_UNESCAPED_QUOTE = re.compile(rb'(?<!\\)(?:\\\\)*"')
_BACKSLASH_FREE = re.compile(rb'[^\\"\x00-\x1f]*')
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Unrepairable(ValueError):
    """The event cannot be read."""


@dataclass(frozen=True)
class Repaired:
    """An event and the codes of what was repaired in it."""

    event: Event
    codes: tuple[str, ...]
    has_more: bool  # text follows the event that belongs to nothing


class _NonFinite:
    """Stands for inf and NaN among values."""


_INFINITE = _NonFinite()
_NON_FINITE_TEXT = msgspec.Raw(b"NaN")


def repair_event(text: bytes) -> Repaired | None:
    """Read the damaged event that begins at the start of `text`; None when nothing sensible is in it."""
    reader = _Reader(text)
    try:
        members = reader.read_object(0)
        event = _event(members, reader.codes)
    except Unrepairable:
        return None
    if event is None:
        return None
    has_more = bool(text[reader.position :].strip(b" \t\r\n,\0"))
    return Repaired(event, tuple(sorted(reader.codes)), has_more)


def mended_text(text: bytes) -> bytes | None:
    """The damaged event at the start of `text` as JSON: every member that can be read, numbers as written.

    None when nothing sensible is in it.
    """
    reader = _Reader(text)
    try:
        members = reader.read_object(0)
    except Unrepairable:
        return None
    return None if _event(members, reader.codes) is None else msgspec.json.encode(_writable(members))


def repair_value(text: bytes) -> Any:
    """What can be read of a damaged value outside the events; None when nothing can."""
    reader = _Reader(text)
    try:
        return _plain(reader.read_object(0))
    except Unrepairable:
        return None


class _Reader:
    """A forgiving JSON reader. Numbers stay text (`msgspec.Raw`), so times lose nothing."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.position = 0
        self.codes: set[str] = set()
        # Text that may be looked at a second time: a bound on what damage in a big event costs.
        self._second_looks = (1 << 20) + 16 * len(text)

    def read_object(self, depth: int) -> dict[str, Any]:
        self._expect(b"{", depth)
        members: dict[str, Any] = {}
        while True:
            self._skip(_SPACE + b",")
            if self.position >= len(self.text):
                self.codes.add("lost-bracket")
                return members
            if self._byte() == b"}":
                self.position += 1
                return members
            start = self.position
            try:
                key = self._key()
                self._skip(_SPACE)
                start = self.position
                members[key] = self._value(depth + 1, _ENDS_MEMBER)
            except Unrepairable:
                self._go_on_behind(start)

    def _go_on_behind(self, start: int) -> None:
        """Give up the member at `start`; read on at the next one, or at the end of the object."""
        self._second_looks -= len(self.text) - start
        match = _NEXT_MEMBER.search(self.text, start) if self._second_looks > 0 else None
        if match is None:
            raise Unrepairable("nothing more can be read")
        self.codes.add("unreadable-value")
        self.position = match.start()

    def _read_list(self, depth: int) -> list[Any]:
        self._expect(b"[", depth)
        items: list[Any] = []
        while True:
            self._skip(_SPACE + b",")
            if self.position >= len(self.text) or self._byte() == b"}":
                raise Unrepairable("a list does not end")
            if self._byte() == b"]":
                self.position += 1
                return items
            items.append(self._value(depth + 1, _ENDS_ITEM))

    def _expect(self, bracket: bytes, depth: int) -> None:
        if self._byte() != bracket or depth > _MAX_DEPTH:
            raise Unrepairable("no value that can be read")
        self.position += 1

    def _byte(self) -> bytes:
        return self.text[self.position : self.position + 1]

    def _skip(self, characters: bytes) -> None:
        while self._byte() and self._byte() in characters:
            self.position += 1

    def _key(self) -> str:
        match = _KEY.match(self.text, self.position)
        if match is None:
            match = _LOOSE_KEY.match(self.text, self.position)
            self.codes.add("lost-quote")
        if match is None:
            raise Unrepairable("no key")
        self.position = match.end()
        return self._text(match[1])

    def _value(self, depth: int, ends: re.Pattern[bytes]) -> Any:
        first = self._byte()
        if first == b'"':
            return self._string(ends)
        if first == b"{":
            return self.read_object(depth)
        if first == b"[":
            return self._read_list(depth)
        if first in (b",", b"}", b"]", b""):
            self.codes.add("empty-value")
            return None
        if match := _NUMBER.match(self.text, self.position):
            self.position = match.end()
            return msgspec.Raw(match[0])
        if match := _LITERAL.match(self.text, self.position):
            self.position = match.end()
            return {b"true": True, b"false": False, b"null": None}[match[1]]
        if match := _NON_FINITE.match(self.text, self.position):
            self.position = match.end()
            self.codes.add("non-finite-number")
            return _INFINITE
        if match := _BARE_WORD.match(self.text, self.position):
            self.position = match.end()
            self.codes.add("lost-quote")
            return self._text(match[1])
        match = _ODD_ITEM.match(self.text, self.position) if ends is _ENDS_ITEM else None
        if match is not None:
            self.position = match.end()
            self.codes.add("unreadable-value")
            return None
        raise Unrepairable("no value that can be read")

    def _string(self, ends: re.Pattern[bytes]) -> str:
        start = self.position + 1
        if self.text[start : start + 1] in (b"{", b"["):
            end = self._balanced_end(start, ends)
            if end is not None:
                self.position = end + 1
                return self._text(self.text[start:end])
        end = self._closing_quote(start, ends)
        stop = len(self.text) if end is None else end
        if ends is _ENDS_MEMBER and (runs_on := _RUNS_ON.match(self.text, start, stop)) is not None:
            return self._string_that_runs_on(start, runs_on)
        lost = _LOST_END.search(self.text, start, stop)
        if lost is not None:
            self.codes.add("lost-quote")
            self.position = lost.start()
            return self._text(self.text[start : lost.start()])
        if end is None:
            raise Unrepairable("a string does not end")
        self.position = end + 1
        return self._text(self.text[start:end])

    def _string_that_runs_on(self, start: int, found: re.Match[bytes]) -> str:
        """The string ends at `found`, where the next member shows that it must."""
        self.position = found.end()
        if found.lastgroup == "path":
            return self._text(self.text[start : self.position - 1])
        if found.lastgroup == "comma":
            self.codes.add("lost-comma")
            return self._text(self.text[start : self.position - 1])
        self.codes.add("lost-quote")
        return self._text(self.text[start : self.position])

    def _balanced_end(self, start: int, ends: re.Pattern[bytes]) -> int | None:
        """Where a string that holds brackets, perhaps JSON with raw quotes, ends: with all of them closed."""
        open_brackets: list[bytes] = []
        end = min(len(self.text), start + self._second_looks)
        position = start
        for match in _STRUCTURE.finditer(self.text, start, end):
            position = match.start()
            mark = match[0]
            if mark in _CLOSERS:
                open_brackets.append(_CLOSERS[mark])
            elif mark != b'"':
                if not open_brackets or open_brackets.pop() != mark:
                    break
            elif not open_brackets and ends.match(self.text, position + 1):
                return position
        self._second_looks -= position - start
        return None

    def _closing_quote(self, start: int, ends: re.Pattern[bytes]) -> int | None:
        for match in _UNESCAPED_QUOTE.finditer(self.text, start):
            if ends.match(self.text, match.end()):
                return match.end() - 1
        quote = self.text.find(b'"', start)
        while quote >= 0:  # a backslash before the closing quote: a path that ends in one
            if ends.match(self.text, quote + 1):
                return quote
            quote = self.text.find(b'"', quote + 1)
        return None

    def _text(self, raw: bytes) -> str:
        """The string that the raw text between two quotes stands for."""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            self.codes.add("bad-utf8")
            text = raw.decode(errors="replace")
        if _BACKSLASH_FREE.fullmatch(raw):
            return text
        try:
            text.encode().decode()
            value = json.loads(f'"{text}"')
            value.encode()
            return value
        except (ValueError, UnicodeError):
            pass
        if _UNESCAPED_QUOTE.search(raw):
            self.codes.add("unescaped-quote")
        if any(byte < 32 for byte in raw):
            self.codes.add("control-character")
        value = _ESCAPE.sub(_unescape, text)
        if "\\" in _ESCAPE.sub("", text) or _has_surrogate(value):
            self.codes.add("bad-escape")
        return value.encode(errors="replace").decode()


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPED.get(match[1], match[1]) if match[1] else chr(int(match[2], 16))


def _has_surrogate(text: str) -> bool:
    return any(0xD800 <= ord(character) < 0xE000 for character in text)


def _event(members: dict[str, Any], codes: set[str]) -> Event | None:
    phase = members.get("ph")
    if not isinstance(phase, str) or not phase or (phase in _TIMED_PHASES and "ts" not in members):
        return None
    given = members.get("args")
    if given is not None and not isinstance(given, dict):
        codes.add("wrong-type")
    return Event(
        ph=phase,
        cat=_plain(members.get("cat")),
        name=_plain(members.get("name")),
        pid=_plain(members.get("pid")),
        tid=_plain(members.get("tid")),
        ts=_time_text(members.get("ts")),
        dur=_time_text(members.get("dur")),
        args=_args(given) if isinstance(given, dict) else NO_ARGS,
        id=_plain(members.get("id", -1)),
    )


_TIMED_PHASES = ("X", "i", "s", "f")
_ARGS_FIELDS = tuple(zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True))
_RAW_ARGS = ("dims", "strides", "types", "concrete")


def _args(given: dict[str, Any]) -> Args:
    values: dict[str, Any] = {}
    for name, key in _ARGS_FIELDS:
        value = given.get(key)
        if value is None or isinstance(value, _NonFinite):
            continue
        values[name] = msgspec.Raw(_json_bytes(value)) if name in _RAW_ARGS else _plain(value)
    return Args(**values)


def _plain(value: Any) -> Any:
    """A value as the typed decoder would have given it."""
    if isinstance(value, msgspec.Raw):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, _NonFinite) else value


def _writable(value: Any) -> Any:
    """A value as it can be written: numbers as they stand where that is JSON, null for inf and NaN."""
    if isinstance(value, list):
        return [_writable(item) for item in value]
    if isinstance(value, dict):
        return {key: _writable(item) for key, item in value.items()}
    if isinstance(value, msgspec.Raw) and _plain(value) is not None:
        return value
    return _plain(value)


def _json_bytes(value: Any) -> bytes:
    return msgspec.json.encode(_plain(value))


def _time_text(value: Any) -> msgspec.Raw:
    if isinstance(value, _NonFinite):
        return _NON_FINITE_TEXT
    if isinstance(value, msgspec.Raw):
        return value
    return NO_TEXT if value is None else msgspec.Raw(_json_bytes(value))
