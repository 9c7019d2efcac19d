"""How a file's text is encoded, UTF-8 or what Windows tools make of it; and packings that are not read."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger

_LOOKED_AT = 512  # a tar archive names itself this early

_PACKINGS = (
    (b"\x1f\x8b", "compressed with gzip twice; unpack it once"),
    (b"PK\x03\x04", "a zip archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd, which is not read; unpack it, or pack it with gzip"),
    (b"\xfd7zXZ\0", "compressed with xz, which is not read; unpack it, or pack it with gzip"),
    (b"BZh", "compressed with bzip2, which is not read; unpack it, or pack it with gzip"),
    (codecs.BOM_UTF32_LE, "UTF-32 text, which is not read; save it as UTF-8"),
    (codecs.BOM_UTF32_BE, "UTF-32 text, which is not read; save it as UTF-8"),
    (b"\x04\x22\x4d\x18", "compressed with lz4, which is not read; unpack it, or pack it with gzip"),
)
_TAR_MAGIC = b"ustar"
_TAR_MAGIC_AT = 257

_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# The first two characters of JSON are ASCII, so they tell without a mark too (RFC 4627, section 3).
_ZEROS = {(False, True, False, True): "utf-16-le", (True, False, True, False): "utf-16-be"}


def refuse_other_packing(blocks: Iterator[bytes], path: str) -> Iterator[bytes]:
    """The same blocks. Raises InputError where they begin as an archive or another compression."""
    head, blocks = _with_head(blocks, _LOOKED_AT)
    packing = next((text for magic, text in _PACKINGS if head.startswith(magic)), None)
    if packing is None and head[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC):
        packing = "a tar archive; unpack it"
    if packing is not None:
        raise InputError(f"{path} is {packing}.")
    yield from blocks


def as_utf8(blocks: Iterator[bytes], ledger: Ledger) -> Iterator[bytes]:
    """The same text in UTF-8. UTF-16, which `>` of PowerShell writes, is a note."""
    head, blocks = _with_head(blocks, 4)
    encoding, mark_bytes = _encoding(head)
    if encoding is None:
        yield from blocks
        return
    ledger.add(
        "encoding",
        "note",
        f"the text is {encoding.upper()}; byte offsets count its UTF-8 form",
        offset=0,
    )
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    to_skip = mark_bytes
    for block in blocks:
        text = decoder.decode(block[to_skip:])
        to_skip = max(0, to_skip - len(block))
        yield text.encode("utf-8", "surrogatepass")


def _encoding(head: bytes) -> tuple[str | None, int]:
    """The encoding by the first four bytes, None for UTF-8, and how long its byte order mark is."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding, len(mark)
    if len(head) < 4 or not head.strip(b"\0"):
        return None, 0
    return _ZEROS.get((head[0] == 0, head[1] == 0, head[2] == 0, head[3] == 0)), 0


def _with_head(blocks: Iterator[bytes], count: int) -> tuple[bytes, Iterator[bytes]]:
    """The first `count` bytes, and an iterator that still gives all of them."""
    head: list[bytes] = []
    have = 0
    for block in blocks:
        head.append(block)
        have += len(block)
        if have >= count:
            break
    return b"".join(head)[:count], _chain(head, blocks)


def _chain(head: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    yield from head
    yield from rest
