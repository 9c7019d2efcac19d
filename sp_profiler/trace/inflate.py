"""The text of a file, in blocks: plain, gzip, several gzip members, cut or damaged gzip."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from isal import igzip_lib

from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger
from sp_profiler.trace.limits import Limits

GZIP_MAGIC = b"\x1f\x8b"
_READ_BYTES = 1 << 20
_INFLATE_BYTES = 1 << 22
_GZIP_WITH_HEADER = 31  # zlib's window-bits value for "gzip header and trailer"


def read_text(file: BinaryIO, path: str, limits: Limits, ledger: Ledger) -> Iterator[bytes]:
    """Blocks of the uncompressed text of an open file, whatever its name says.

    What can be read of a cut or damaged gzip file is read and the damage entered in the ledger.
    Raises InputError when the text is longer than `limits.inflated_bytes`.
    """
    head = file.read(len(GZIP_MAGIC))
    file.seek(0)
    blocks = _gzip_blocks(file, ledger) if head == GZIP_MAGIC else iter(lambda: file.read(_READ_BYTES), b"")
    total = 0
    for block in blocks:
        total += len(block)
        if total > limits.inflated_bytes:
            raise InputError(
                f"{path} unpacks to more than {limits.inflated_bytes} bytes, the limit on the size of one"
                " trace's text."
            )
        yield block


def _gzip_blocks(file: BinaryIO, ledger: Ledger) -> Iterator[bytes]:
    total = 0
    member_start = 0  # in the compressed file
    data = file.read(_READ_BYTES)
    while data[: len(GZIP_MAGIC)] == GZIP_MAGIC:
        inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        member_text = consumed = 0
        while not inflater.eof:
            if not data and inflater.needs_input:
                data = file.read(_READ_BYTES)
                if not data:
                    # The fast inflater may still hold text that it gives out only with more input.
                    rest = b"".join(_salvage(file, member_start, member_text, Ledger()))
                    total += len(rest)
                    yield rest
                    ledger.add(
                        "truncated-gzip",
                        "loss",
                        "the gzip file is cut off; what came before the cut was read",
                        offset=total,
                    )
                    return
            try:
                text = inflater.decompress(data, _INFLATE_BYTES)
            except igzip_lib.IsalError:  # pyright: ignore[reportGeneralTypeIssues]
                for text in _salvage(file, member_start, member_text, ledger, total):
                    yield text
                return
            consumed += len(data)
            data = b""
            member_text += len(text)
            total += len(text)
            if text:
                yield text
        data = inflater.unused_data
        member_start += consumed - len(data)
        data = data or file.read(_READ_BYTES)
        while data and not data.strip(b"\0"):  # tape-style padding
            member_start += len(data)
            data = file.read(_READ_BYTES)
        stripped = data.lstrip(b"\0")
        member_start += len(data) - len(stripped)
        data = stripped
        if len(data) == 1:
            data += file.read(_READ_BYTES)
    if data:
        ledger.add(
            "trailing-garbage", "note", "bytes after the end of the gzip data were not read", offset=total
        )


def _salvage(
    file: BinaryIO, member_start: int, already: int, ledger: Ledger, total: int = 0
) -> Iterator[bytes]:
    """Inflate a damaged member again, slowly, up to the last byte before the damage.

    The fast inflater keeps nothing of the call in which it meets the damage; zlib, fed byte by byte
    near the damage, gives everything before it. `already` bytes of text were read before.
    """
    file.seek(member_start)
    inflater = zlib.decompressobj(_GZIP_WITH_HEADER)
    seen = 0
    while not inflater.eof:
        data = file.read(1 << 16)
        if not data:
            return
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
                total += len(fresh)
                yield fresh
        if error is not None:
            checksum = "check" in str(error)
            ledger.add(
                "bad-checksum" if checksum else "damaged-gzip",
                "loss",
                "the checksum of the gzip file is wrong; its text was read all the same"
                if checksum
                else "the gzip data is damaged; what came before the damage was read",
                offset=total,
            )
            return


def _byte_by_byte(inflater: zlib._Decompress, data: bytes) -> tuple[list[bytes], zlib.error | None]:
    pieces: list[bytes] = []
    for index in range(len(data)):
        try:
            pieces.append(inflater.decompress(data[index : index + 1]))
        except zlib.error as error:
            return pieces, error
    return pieces, None
