"""A trace's text with more events at the end of its own, block by block: memory does not follow its size.

An intact file is copied byte for byte, and the events go in front of the `]` that ends its own. A damaged
one is written anew: its readable metadata, its intact events as they stand, those that can be mended as JSON.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

import msgspec
from isal import isal_zlib

from sp_profiler.errors import InputError
from sp_profiler.export.layout import Layout
from sp_profiler.ledger import Ledger
from sp_profiler.trace.inflate import GZIP_MAGIC, read_text
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.places import open_binary
from sp_profiler.trace.repair import mended_text

_GZIP_WINDOW = 31  # zlib's window-bits value for "gzip header and trailer"
_BLOCK_BYTES = 1 << 20


def with_events(path: str, layout: Layout, events: Iterable[bytes], limits: Limits) -> Iterator[bytes]:
    """The text of the trace with `events`, each the JSON of one, behind its own.

    `layout` is that of the same file; InputError where the file is no longer what it was, or cannot be read.
    """
    try:
        with open_binary(path) as file, read_text(file, path, limits, Ledger(path)) as blocks:
            if layout.list_end is not None:
                yield from _spliced(path, blocks, layout.list_end, _joined(events, layout.has_events))
            else:
                yield from _anew(path, blocks, layout, events)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None


def gzipped(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same packed with gzip; no time stamp, so that equal text gives equal files."""
    packer = isal_zlib.compressobj(2, wbits=_GZIP_WINDOW)
    for block in blocks:
        if packed := packer.compress(block):
            yield packed
    yield packer.flush()


def is_gzip(path: str) -> bool:
    """Whether the file is packed with gzip, whatever its name says."""
    try:
        with open_binary(path) as file:
            return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    except OSError:
        return False  # who reads it will say so


def _joined(events: Iterable[bytes], follows: bool) -> Iterator[bytes]:
    """Blocks of the events with a comma between them, and in front of the first where it `follows` one."""
    lines: list[bytes] = []
    held = 0
    for event in events:
        lines.append((b",\n" if follows else b"\n") + event)
        follows = True
        held += len(event)
        if held >= _BLOCK_BYTES:
            yield b"".join(lines)
            lines, held = [], 0
    yield b"".join([*lines, b"\n"])


def _spliced(path: str, blocks: Iterator[bytes], list_end: int, added: Iterator[bytes]) -> Iterator[bytes]:
    """The text as it is, with what is added in front of the byte at `list_end`; a byte order mark is dropped,
    because Perfetto refuses it."""
    base = 0
    is_done = False
    for block in blocks:
        end = base + len(block)
        start = len(codecs.BOM_UTF8) if base == 0 and block.startswith(codecs.BOM_UTF8) else 0
        if not is_done and list_end < end:
            cut = list_end - base
            if block[cut : cut + 1] != b"]":
                raise _changed(path)
            yield block[start:cut]
            yield from added
            yield block[cut:]
            is_done = True
        else:
            yield block[start:]
        base = end
    if not is_done:
        raise _changed(path)


def _anew(path: str, blocks: Iterator[bytes], layout: Layout, events: Iterable[bytes]) -> Iterator[bytes]:
    text = _Text(path, blocks)
    members = {key: value for key, value in layout.members.items() if key != "traceEvents"}
    head = b"".join(_member(key, value) + b",\n" for key, value in members.items())
    yield b"{" + head + b'"traceEvents": [\n'
    pieces = layout.pieces
    for place in range(0, len(pieces), 3):
        start, end, mend = pieces[place : place + 3]
        if place:
            yield b",\n"
        if mend:
            mended = mended_text(b"".join(text.between(start, end)))
            if mended is None:
                raise _changed(path)
            yield mended
        else:
            yield from text.between(start, end)
    yield from _joined(events, bool(pieces))
    yield b"]}\n"


def _member(key: str, value: object) -> bytes:
    return msgspec.json.encode(key) + b": " + msgspec.json.encode(value)


class _Text:
    """Gives stretches of the text, in order, and forgets what lies before them."""

    def __init__(self, path: str, blocks: Iterator[bytes]) -> None:
        self._path = path
        self._blocks = blocks
        self._data = b""
        self._base = 0

    def between(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            have = self._base + len(self._data)
            if start >= have:
                self._base = have
                self._data = next(self._blocks, b"")
                if not self._data:
                    raise _changed(self._path)
                continue
            stop = min(end, have)
            yield self._data[start - self._base : stop - self._base]
            start = stop


def _changed(path: str) -> InputError:
    return InputError(f"{path} changed while it was read: export it again.")
