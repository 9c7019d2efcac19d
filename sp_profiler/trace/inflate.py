"""The text of a file, in blocks: plain, gzip, several gzip members, cut or damaged gzip; any Unicode."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError
from typing import BinaryIO, NamedTuple

from isal import igzip_lib

from sp_profiler.cores import usable_cores
from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger, Severity
from sp_profiler.trace.ahead import ahead, is_unwanted
from sp_profiler.trace.encodings import as_utf8, refuse_other_packing
from sp_profiler.trace.limits import Limits

GZIP_MAGIC = b"\x1f\x8b"
_READ_BYTES = 1 << 20
_PACKED_BYTES = 1 << 18  # read at a time: behind a member the rest is copied, and members may be small
_INFLATE_BYTES = 1 << 22
_GATHERED_BYTES = 1 << 20
_BLOCKS_AHEAD = 2
_GZIP_WITH_HEADER = 31  # zlib's window-bits value for "gzip header and trailer"
_MEMBER_HEAD = re.compile(rb"\x1f\x8b\x08[\x00-\x1f]")  # with the only method, and the flags there are
_MEMBER_HEAD_BYTES = 4
_TRIED_BYTES = 1 << 16  # of what may be a member
_ENOUGH_TEXT = 1 << 10  # noise does not inflate to so much
_MOST_TRIALS = 1000  # in one file: a bound on what damage costs


class _Damage(NamedTuple):
    """An entry for the ledger, in its place among the blocks."""

    code: str
    severity: Severity
    text: str
    offset: int


def read_text(
    file: BinaryIO, path: str, limits: Limits, ledger: Ledger
) -> contextlib.AbstractContextManager[Iterator[bytes]]:
    """Blocks of the uncompressed UTF-8 text of an open file, whatever its name says, as a context: the file
    may be closed when it is left.

    What can be read of a cut or damaged gzip file is read and the damage entered in the ledger.
    The blocks raise InputError when the text is longer than `limits.inflated_bytes`, or otherwise packed, and
    CancelledError in a thread whose work nobody takes any more (`ahead`).
    """
    return contextlib.closing(_text(file, path, limits, ledger))


def _text(file: BinaryIO, path: str, limits: Limits, ledger: Ledger) -> Generator[bytes, None, None]:
    total = 0
    with contextlib.closing(_unpacked(file, ledger)) as blocks:
        for block in as_utf8(refuse_other_packing(blocks, path), ledger):
            if is_unwanted():
                raise CancelledError
            total += len(block)
            if total > limits.inflated_bytes:
                raise InputError(
                    f"{path} unpacks to more than {limits.inflated_bytes} bytes, the limit on the size of one"
                    " trace's text."
                )
            yield block


def _unpacked(file: BinaryIO, ledger: Ledger) -> Generator[bytes, None, None]:
    """The blocks of a plain or a packed file. A packed one is inflated by another thread where there is a
    core for it, unless reading may wait for a network: that could not be interrupted."""
    head = file.read(len(GZIP_MAGIC))
    file.seek(0)
    if head != GZIP_MAGIC:
        yield from iter(lambda: file.read(_READ_BYTES), b"")
        return
    pieces = _gathered(_inflated(file))
    if usable_cores() > 1 and _is_local(file):
        pieces = ahead(pieces, _BLOCKS_AHEAD)
    with contextlib.closing(pieces):
        for piece in pieces:
            if isinstance(piece, _Damage):
                ledger.add(piece.code, piece.severity, piece.text, offset=piece.offset)
            else:
                yield piece


def _is_local(file: BinaryIO) -> bool:
    try:
        file.fileno()
    except OSError:
        return False
    return True


def _gathered(pieces: Generator[bytes | _Damage, None, None]) -> Generator[bytes | _Damage, None, None]:
    """The same in fewer pieces: to hand over the text of a small member costs more than to inflate it."""
    held: list[bytes] = []
    held_bytes = 0
    with contextlib.closing(pieces):
        for piece in pieces:
            if is_unwanted():
                raise CancelledError
            if not isinstance(piece, _Damage):
                held.append(piece)
                held_bytes += len(piece)
                if held_bytes < _GATHERED_BYTES:
                    continue
            if held:
                yield b"".join(held)
                held, held_bytes = [], 0
            if isinstance(piece, _Damage):
                yield piece
        if held:
            yield b"".join(held)


class _Packed:
    """The compressed file: blocks from `at` on, and what a member leaves over comes again."""

    def __init__(self, file: BinaryIO) -> None:
        self.at = 0
        self._file = file
        self._left = b""
        self._trials_left = _MOST_TRIALS

    def read(self) -> bytes:
        data = self._left or self._file.read(_PACKED_BYTES)
        self._left = b""
        self.at += len(data)
        return data

    def give_back(self, data: bytes) -> None:
        self._left = data + self._left
        self.at -= len(data)

    def seek(self, offset: int) -> None:
        self._file.seek(offset)
        self._left = b""
        self.at = offset

    def starts_member(self) -> bool:
        """Whether a gzip header follows; at the end, whether something of one does."""
        data = self.read()
        while 0 < len(data) < len(GZIP_MAGIC) and (more := self.read()):
            data += more
        self.give_back(data)
        return data[: len(GZIP_MAGIC)] == GZIP_MAGIC

    @property
    def gave_up(self) -> bool:
        """Whether too much looked like a member and was none."""
        return self._trials_left == 0

    def next_member(self, start: int) -> int | None:
        """Where the next gzip member begins at or after `start`; None where there is none.

        The magic bytes also occur by chance, so a member must inflate for a while or to its end.
        """
        offset = start
        carried = b""
        self._file.seek(start)
        while block := self._file.read(_READ_BYTES):
            data = carried + block
            for match in _MEMBER_HEAD.finditer(data):
                if self._trials_left == 0:
                    return None
                if self._inflates(offset + match.start()):
                    return offset + match.start()
                self._trials_left -= 1
            carried = data[1 - _MEMBER_HEAD_BYTES :]
            offset += len(data) - len(carried)
            self._file.seek(offset + len(carried))
        return None

    def _inflates(self, start: int) -> bool:
        self._file.seek(start)
        inflater = zlib.decompressobj(_GZIP_WITH_HEADER)
        try:
            text = inflater.decompress(self._file.read(_TRIED_BYTES), _ENOUGH_TEXT)
        except zlib.error:
            return False
        return inflater.eof or len(text) >= _ENOUGH_TEXT

    def skip_padding(self) -> bool:
        """Pass over NUL bytes, as on a tape; False at the end of the file."""
        while data := self.read():
            rest = data.lstrip(b"\0")
            self.give_back(rest)
            if rest:
                return True
        return False


def _inflated(file: BinaryIO) -> Generator[bytes | _Damage, None, None]:
    """The text of all members. After damage reading goes on at the next member, if there is one."""
    packed = _Packed(file)
    total = 0
    while packed.skip_padding():
        start = packed.at
        found = Ledger()
        if packed.starts_member():
            for text in _member(packed, file, found):
                total += len(text)
                yield text
            if not found.entries:
                continue
        next_start = packed.next_member(start + 1)
        for entry in found.entries:
            goes_on = entry.code == "truncated-gzip" and next_start is not None
            code, what = ("damaged-gzip", _DAMAGED) if goes_on else (entry.code, entry.text)
            yield _Damage(code, "loss", what, total)
        if next_start is None:
            if packed.gave_up:
                yield _Damage("damaged-gzip", "loss", _TOO_DAMAGED, total)
            elif not found.entries:
                yield _Damage("trailing-garbage", "note", _BEHIND, total)
            return
        if not found.entries:
            yield _Damage("damaged-gzip", "loss", _BETWEEN, total)
        packed.seek(next_start)


_CUT = "the gzip file is cut off; what came before the cut was read"
_DAMAGED = "the gzip data is damaged; what came before the damage was read"
_TOO_DAMAGED = "the gzip file is damaged in so many places that its rest was not read"
_BEHIND = "bytes after the end of the gzip data were not read"
_BETWEEN = "bytes that are no gzip data lie between its members; they were passed over"
_WRONG_CHECKSUM = "the checksum of the gzip file is wrong; its text was read all the same"


def _member(packed: _Packed, file: BinaryIO, faults: Ledger) -> Iterator[bytes]:
    """The text of the member that begins here; `packed` then stands behind it, unless it is faulty."""
    start = packed.at
    inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    given = 0
    data = packed.read()
    while not inflater.eof:
        if not data and inflater.needs_input:
            data = packed.read()
            if not data:
                # The fast inflater may still hold text that it gives out only with more input.
                yield from _salvage(file, start, given, Ledger())
                faults.add("truncated-gzip", "loss", _CUT)
                return
        try:
            text = inflater.decompress(data, _INFLATE_BYTES)
        except igzip_lib.IsalError:  # pyright: ignore[reportGeneralTypeIssues]
            yield from _salvage(file, start, given, faults)
            return
        data = b""
        given += len(text)
        if text:
            yield text
    packed.give_back(inflater.unused_data)


def _salvage(file: BinaryIO, start: int, already: int, faults: Ledger) -> Iterator[bytes]:
    """Inflate a damaged member again, slowly, up to the last byte before the damage.

    The fast inflater keeps nothing of the call in which it meets the damage; zlib, fed byte by byte
    near the damage, gives everything before it. `already` bytes of text were read before.
    """
    file.seek(start)
    inflater = zlib.decompressobj(_GZIP_WITH_HEADER)
    seen = 0
    while not inflater.eof:
        data = file.read(_TRIED_BYTES)
        if not data:
            break
        saved = inflater.copy()
        try:
            pieces = [inflater.decompress(data)]
        except zlib.error:
            pieces, error = _byte_by_byte(saved, data)
        else:
            error = None
        for piece in pieces:
            fresh = piece[max(0, already - seen) :]
            seen += len(piece)
            if fresh:
                yield fresh
        if error is not None:
            checksum = "check" in str(error)
            code, what = ("bad-checksum", _WRONG_CHECKSUM) if checksum else ("damaged-gzip", _DAMAGED)
            faults.add(code, "loss", what)
            return
    if not faults.entries:  # only the fast inflater stumbled
        faults.add("damaged-gzip", "loss", _DAMAGED)


def _byte_by_byte(inflater: zlib._Decompress, data: bytes) -> tuple[list[bytes], zlib.error | None]:
    pieces: list[bytes] = []
    for index in range(len(data)):
        try:
            pieces.append(inflater.decompress(data[index : index + 1]))
        except zlib.error as error:
            return pieces, error
    return pieces, None
