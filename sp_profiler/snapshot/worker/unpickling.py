"""The object that a pickle builds where it is one of plain data; every other pickle raises `Refused`."""

from __future__ import annotations

import gc
import gzip
import io
import pickle
from typing import Any, BinaryIO

_GZIP = b"\x1f\x8b"
_DETAIL = 200  # characters


def printable(text: str) -> str:
    """A text out of a hostile file as one that a terminal can be given."""
    return text.encode("unicode_escape").decode("ascii")[:_DETAIL]


class Refused(Exception):
    """The pickle is none of a snapshot; `kind` is known to the reading side, `detail` can be printed."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind = kind
        self.detail = printable(detail)


class PlainUnpickler(pickle.Unpickler):
    """Builds numbers, text, lists, tuples, dicts and sets, and nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise Refused("global", f"{module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("persistent")


class Bounded(io.RawIOBase):
    """A stream that ends with `Refused` after so many bytes: against files that unpack without end."""

    def __init__(self, source: BinaryIO, limit: int) -> None:
        self._source = source
        self._limit = self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._source.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise Refused("inflated", str(self._limit))
        buffer[: len(data)] = data
        return len(data)


def load(source: BinaryIO, inflated_bytes: int) -> tuple[Any, bool]:
    """The object that the pickle builds, and whether bytes follow it. Raises `Refused` and MemoryError."""
    gc.disable()  # only acyclic data can matter here, and collecting over millions of dicts takes minutes
    head = b""
    try:
        stream = _unpacked(source, inflated_bytes)
        head = stream.peek(4)[:4]
        if not head:
            raise Refused("empty")
        if head == b"PK\x03\x04":
            raise Refused("zip")
        root = PlainUnpickler(stream, encoding="utf-8", errors="replace").load()
        return root, bool(stream.read(1))
    except (Refused, MemoryError):
        raise
    # Opcodes in an order that no pickler writes raise TypeError, ValueError, KeyError, IndexError,
    # AttributeError, UnpicklingError, a damaged gzip OSError, EOFError, zlib.error; pickle's documentation
    # leaves open what else. All go on as `Refused`, with what they said.
    except Exception as error:
        raise Refused(_kind(error, head), f"{type(error).__name__}: {error}") from error


def _unpacked(source: BinaryIO, inflated_bytes: int) -> io.BufferedReader:
    buffered = io.BufferedReader(source) if isinstance(source, io.RawIOBase) else source
    head = buffered.peek(4)[:4] if isinstance(buffered, io.BufferedReader) else b""
    unpacked = gzip.GzipFile(fileobj=buffered) if head[:2] == _GZIP else buffered
    return io.BufferedReader(Bounded(unpacked, inflated_bytes), 1 << 20)  # type: ignore[arg-type]


def _kind(error: Exception, head: bytes) -> str:
    """What an error says of a file that begins so."""
    if head and not is_pickle(head):
        return "no-pickle"
    if isinstance(error, EOFError) or "truncated" in str(error) or "exhausted" in str(error):
        return "truncated"
    return "broken"


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins so is meant as a pickle: of protocol 2 to 5, or of the older ones."""
    return (head[:1] == b"\x80" and head[1:2] <= b"\x05") or head[:1] in (b"(", b"]", b"}")
