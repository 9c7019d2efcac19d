"""One trace file becomes one `Trace`: streaming, exact, and tolerant of every damage seen so far.

The text is inflated block by block and cut where one event seems to end; each chunk is decoded at once
into typed records and from there into columns. A wrong cut, or damage, makes the decoding fail: then the
chunk shrinks around the place and, where nothing else helps, single events are walked and repaired.
Which way an event was read never shows in the result, so any chunk size gives the same columns and
ledger.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from sp_profiler.errors import InputError
from sp_profiler.ledger import SEVERITIES, Ledger, LedgerEntry
from sp_profiler.trace.columns import Columns
from sp_profiler.trace.document import DocumentReader
from sp_profiler.trace.events import EventReader
from sp_profiler.trace.faraway import enter_far_away
from sp_profiler.trace.faults import Faults
from sp_profiler.trace.inflate import read_text
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.metadata import read_metadata
from sp_profiler.trace.native import scanned_chunks
from sp_profiler.trace.places import opened
from sp_profiler.trace.remote import as_remote
from sp_profiler.trace.tables import Trace
from sp_profiler.trace.window import Window

__all__ = ["Limits", "decode_trace"]

CHUNK_BYTES = 1 << 20
DEFAULT_LIMITS = Limits()
_NSIGHT = (".nsys-rep", ".qdrep", ".ncu-rep", ".sqlite")
_SQLITE_MAGIC = b"SQLite format 3"


def decode_trace(path: str, limits: Limits = DEFAULT_LIMITS, *, chunk_bytes: int = CHUNK_BYTES) -> Trace:
    """Read one Kineto trace, of a path or URL: `.json` or `.json.gz`, complete or damaged, of any version.

    All intact events are kept; every repair, loss and assumption is in `Trace.ledger` with its byte
    offset in the uncompressed text. `chunk_bytes` changes speed and memory, never the result.

    Raises InputError, in one sentence that names the file, when the file cannot be opened, is not a
    trace, or exceeds `limits`.
    """
    path = as_remote(path)
    _refuse_other_formats(path)
    with opened(path) as file:
        return decode_open(file, path, limits, chunk_bytes=chunk_bytes)


def decode_open(
    file: BinaryIO, path: str, limits: Limits = DEFAULT_LIMITS, *, chunk_bytes: int = CHUNK_BYTES
) -> Trace:
    """The same of a file that is open, at its beginning; `path` is its name. Raises OSError, too."""
    path = str(path)  # of a URL what may be shown
    if file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC:
        raise _nsight_error(path)
    file.seek(0)
    ledger = Ledger(path)
    columns = Columns(path, limits, ledger)
    faults = Faults(ledger)
    scanned = scanned_chunks(columns)
    with read_text(file, path, limits, ledger) as blocks:
        text = Window(blocks)
        events = EventReader(path, text, limits, faults, columns, chunk_bytes=chunk_bytes, scanned=scanned)
        document = DocumentReader(path, text, limits, faults, events)
        document.read()
    metadata = read_metadata(document.members, path, ledger)
    strings, table, collectives, flows, memory = columns.finish(metadata.base_time_ns)
    enter_far_away(table, strings, ledger)
    return Trace(
        path=path,
        metadata=metadata,
        strings=strings,
        events=table,
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
