"""Where things end in JSON text: values, events, and the next intact event after damage.

The walk here is as strict as the JSON decoder about grammar, so it stops at the first byte that
cannot be right and never runs away over the rest of a big file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"'
_SCALAR = rb"(?:" + _STRING + rb"|-?[0-9][0-9.eE+-]*+|true|false|null)"
_KEY = _STRING + rb"[ \t\r\n]*+:[ \t\r\n]*+"
_SPACE = rb"[ \t\r\n]*+"

# One step inside an object or a list: an entry with what follows it, or the closing bracket.
_ENTRY = rb"(?:(?P<open>[{\[])|" + _SCALAR + _SPACE + rb"(?:(?P<comma>,)|(?P<close>[}\]])))"
_IN_OBJECT = re.compile(_SPACE + _KEY + _ENTRY, re.DOTALL)
_IN_LIST = re.compile(_SPACE + _ENTRY, re.DOTALL)
_EMPTY = re.compile(_SPACE + rb"(?P<close>[}\]])")
_AFTER_VALUE = re.compile(_SPACE + rb"(?:(?P<comma>,)|(?P<close>[}\]]))")
_ONE_SCALAR = re.compile(_SCALAR, re.DOTALL)
_OPENERS = {ord("{"): ord("}"), ord("["): ord("]")}

_EVENT_KEY = rb'"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)"'
_EVENT_START = re.compile(rb"\{[ \t\r\n]{0,64}" + _EVENT_KEY + rb"[ \t]{0,8}:")
_KINETO_START = re.compile(rb'\{[ \t\r\n]{0,64}"ph"[ \t]{0,8}:')
_SORTED_START = re.compile(rb'\{[ \t\r\n]{0,64}"args"[ \t]{0,8}:[ \t\r\n]{0,64}\{')
_BORDER = re.compile(rb'\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*")')

TOP_LEVEL_KEYS = (
    "traceEvents",
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "traceName",
    "displayTimeUnit",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
    "trace_id",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
    "nccl_version",
    "host_name",
    "username",
    "metadata",
    "INFO",
    "WARNING",
    "ERROR",
)
_MEMBER = re.compile(rb'"(?:' + "|".join(TOP_LEVEL_KEYS).encode() + rb')"[ \t\r\n]{0,64}:')
_LIST_END = rb"\][ \t\r\n]{0,64},[ \t\r\n]{0,64}(?=" + _MEMBER.pattern + rb")"
_FILE_END = re.compile(rb"\][ \t\r\n]*+\}[ \t\r\n]*+\Z")
_BARE_END = re.compile(rb"\][ \t\r\n]*+\Z")
_KINETO_FOLLOWS = rb'(?=\{[ \t\r\n]{0,64}"ph"[ \t]{0,8}:)'
_KEY_OR_EVENTS = re.compile(
    _MEMBER.pattern
    + rb"|[\[,][ \t\r\n]{0,64}" + _KINETO_FOLLOWS
    + rb'|traceEvents"?[ \t\r\n]{0,64}:?[ \t\r\n]{0,64}\[[ \t\r\n]{0,64}(?=\{)'
)  # fmt: skip
_EVENTS_WITHIN = re.compile(
    rb'"traceEvents"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}\[|\[[ \t\r\n]{0,64}' + _KINETO_FOLLOWS
)
_RESUME = re.compile(_EVENT_START.pattern + rb"|" + _LIST_END)
_DOCUMENT = re.compile(rb"\{[ \t\r\n]{0,64}" + _MEMBER.pattern)

MARGIN = 256
"""A match of the patterns above is never longer; searches that go on overlap by so much."""


@dataclass(frozen=True)
class Scan:
    """How far a walk came. `outcome`: complete (end is past the value), more (the text ends inside
    the value) or broken (`end` is near the first wrong byte). `depth` is the deepest nesting met.
    """

    outcome: str
    end: int
    depth: int


def scan_value(text: bytes, start: int) -> Scan:
    """Walk the JSON value that begins at `start` (no white space before it)."""
    closer = _OPENERS.get(text[start]) if start < len(text) else None
    if closer is None:
        match = _ONE_SCALAR.match(text, start)
        if match and match.end() < len(text):
            return Scan("complete", match.end(), 0)
        return _stopped(text, start, 0)
    stack = bytearray([closer])
    position = start + 1
    deepest = 1
    may_close = True  # an object or list may be empty; after a comma it may not end
    after_value = False
    while True:
        pattern = _AFTER_VALUE if after_value else (_IN_OBJECT if stack[-1] == ord("}") else _IN_LIST)
        match = pattern.match(text, position)
        if match is None and may_close and not after_value:
            match = _EMPTY.match(text, position)
        if match is None:
            return _stopped(text, position, deepest)
        position = match.end()
        last = text[position - 1]
        after_value = may_close = False
        if last in _OPENERS:
            stack.append(_OPENERS[last])
            deepest = max(deepest, len(stack))
            may_close = True
        elif last != ord(","):
            if last != stack.pop():
                return Scan("broken", position - 1, deepest)
            if not stack:
                return Scan("complete", position, deepest)
            after_value = True


# The text may end inside a key, a string, a number or a literal, or after any of them.
_CUT_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+(?:\\|"' + _SPACE + rb":?)?"
_CUT_LITERAL = rb"t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?"
_PARTIAL = re.compile(
    _SPACE
    + rb"(?:" + _KEY + rb")?+"
    + rb"(?:" + _CUT_STRING + rb"|-?[0-9.eE+-]*|" + _CUT_LITERAL + rb")?"
    + _SPACE + rb"\Z",
    re.DOTALL,
)  # fmt: skip


def _stopped(text: bytes, position: int, depth: int) -> Scan:
    """The walk cannot go on: because the text ends here, or because it is wrong."""
    return Scan("more" if _PARTIAL.match(text, position) else "broken", position, depth)


def last_border(text: bytes, start: int, end: int) -> tuple[int, int] | None:
    """The last place in [start, end) where one event seems to end and the next to begin.

    Returns the end of the event and the start of the next; None where there is none. It may lie inside
    a string or a nested list: only decoding up to it tells.
    """
    for window in (1 << 14, 1 << 18, end - start):
        found = None
        for match in _BORDER.finditer(text, max(start, end - window), end):
            found = match
        if found is not None:
            return found.start() + 1, found.end()
    return None


@dataclass(frozen=True)
class Resume:
    """A place where reading can go on: at an event, or at the `]` that ends the events."""

    position: int
    is_list_end: bool


def next_resume(text: bytes, start: int, *, at_end: bool, is_bare: bool) -> Resume | None:
    """The first place at or after `start` where an event seems to begin or the list to end.

    An object after a colon is a value inside an event, so it is none. After a colon, and after text that
    should not be there, only Kineto's own first key (`ph`), or that of sorted keys (`args`), is taken for a
    new event, after such text also one on its own line. `at_end`: the text ends the file; `is_bare`: the
    list is the whole file.
    """
    for match in _RESUME.finditer(text, start):
        if text[match.start()] == ord("]"):
            return Resume(match.start(), True)
        if _may_begin_event(text, match.start()):
            return Resume(match.start(), False)
    # Elsewhere `]}` closes lists inside arguments; only what ends the file ends the events.
    last = (_BARE_END if is_bare else _FILE_END).search(text, start) if at_end else None
    return None if last is None else Resume(last.start(), True)


def _may_begin_event(text: bytes, start: int) -> bool:
    gap = text[max(0, start - 64) : start]
    ahead = gap.rstrip(b" \t\r\n")
    before = ahead[-1:]
    if before in (b",", b"[", b"]", b"}", b"\0", b""):
        return True
    if before != b":" and b"\n" in gap[len(ahead) :]:
        return True
    return bool(_KINETO_START.match(text, start) or _SORTED_START.match(text, start))


def next_member(text: bytes, start: int) -> int | None:
    """The first place at or after `start` where a known top-level key stands."""
    match = _MEMBER.search(text, start)
    return match.start() if match else None


def next_landmark(text: bytes, start: int) -> tuple[int, bool] | None:
    """The first known top-level key, or the first event in a list, at or after `start`.

    Returns the place and whether it is a key; None where there is neither.
    """
    match = _KEY_OR_EVENTS.search(text, start)
    if match is None:
        return None
    is_key = text[match.start()] == ord('"')
    return (match.start() if is_key else match.end()), is_key


def holds_events(text: bytes, start: int, end: int) -> bool:
    """Whether the list of events lies within [start, end), where a metadata value should be."""
    return _EVENTS_WITHIN.search(text, start, end) is not None


def holds_document(text: bytes, start: int, end: int) -> bool:
    """Whether the object in [start, end) is the beginning of another trace, not an event."""
    return _DOCUMENT.match(text, start, end) is not None


def is_event_start(text: bytes, start: int) -> bool:
    """Whether the file's first object is itself an event: it begins as one, before any list of events."""
    if _EVENT_START.match(text, start) is None:
        return False
    phase = text.find(b'"ph"', start, start + 4096)
    return phase >= 0 and text.find(b'"traceEvents"', start, phase) < 0


def looks_like_event(text: bytes, start: int) -> bool:
    """Whether an event (an object with a `ph` among its first keys) begins at `start`."""
    return text[start : start + 1] == b"{" and b'"ph"' in text[start : start + 4096]
