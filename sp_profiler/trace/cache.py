"""Decoded traces kept on disk, so that a big file is decoded once.

An entry is a folder of Parquet tables and one JSON file, named by the content of the trace file, its
base name (which may tell the rank and the host), the limits, and `VERSION`. It is written under another
name and renamed when whole: whoever opens it, at any time and from any process, sees all of it or
nothing. An entry that cannot be read counts as absent. The folder is `$SP_PROFILER_CACHE`, else
`sp-profiler` in the user's cache folder; the entries used longest ago make room.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sp_profiler import __version__
from sp_profiler.ledger import LedgerEntry
from sp_profiler.trace.decode import DEFAULT_LIMITS, decode_open, decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.places import open_binary, opened
from sp_profiler.trace.remote import Remote, as_remote
from sp_profiler.trace.tables import CollectiveArgs, Events, Flows, MemoryEvents, Metadata, Strings, Trace

if TYPE_CHECKING:
    import polars as pl

VERSION = 7
"""Part of every key: to be raised when the decoder's result or this format changes."""

SMALLEST_BYTES = 4 << 20
"""A file below this size decodes about as fast as an entry is read."""

LARGEST_BYTES = 8 << 30
"""What all entries may take together."""

WORK_FOLDERS = "work"
"""Beside the entries, and none of them: the work folders of large runs (`fleet.folder`)."""

_FOLDER_VARIABLE = "SP_PROFILER_CACHE"
_TABLES = {"events": Events, "flows": Flows, "memory": MemoryEvents}
_BROKEN = (OSError, ValueError, KeyError, TypeError)


def cache_folder() -> Path | None:
    """Where entries lie; None when there is no place for them (no home, and none was named)."""
    named = os.environ.get(_FOLDER_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base or Path.home() / ".cache") / "sp-profiler"
    except RuntimeError:
        return None


def decode_cached(path: str, limits: Limits = DEFAULT_LIMITS) -> Trace:
    """`decode_trace` with a memory: equal results, and equal errors.

    A cache that cannot be read or written (a full disk, another user's folder) changes nothing but
    the time it takes.
    """
    path = as_remote(path)
    folder = cache_folder()
    if folder is None:
        return decode_trace(path, limits)
    if isinstance(path, Remote):
        return _decode_fetched(path, folder, limits)
    if not os.path.isfile(path) or os.path.getsize(path) < SMALLEST_BYTES:
        return decode_trace(path, limits)
    return _kept(folder / content_key(path, limits), path, lambda: decode_trace(path, limits))


def _decode_fetched(path: Remote, folder: Path, limits: Limits) -> Trace:
    """The same of a file that has to be fetched before its content is known: once."""
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size < SMALLEST_BYTES:
            return decode_open(file, path, limits)
        entry = folder / _key(file, path, limits)
        file.seek(0)
        return _kept(entry, str(path), lambda: decode_open(file, path, limits))


def _kept(entry: Path, path: str, decode: Callable[[], Trace]) -> Trace:
    """The trace kept as `entry`, else what `decode` gives, which is then kept."""
    import polars as pl

    with contextlib.suppress(*_BROKEN, pl.exceptions.PolarsError):
        trace = _read(entry, path)
        os.utime(entry)
        return trace
    trace = decode()
    with contextlib.suppress(OSError):
        keep(entry, lambda scratch: _fill(scratch, trace))
    return trace


def content_key(path: str, limits: Limits) -> str:
    """The name under which a file is kept: another for other content, another base name, another decoder."""
    with open_binary(path) as file:
        return _key(file, path, limits)


def _key(file: io.BufferedReader, path: str, limits: Limits) -> str:
    digest = hashlib.file_digest(file, "blake2b")
    digest.update(repr((VERSION, __version__, os.path.basename(path), astuple(limits))).encode())
    return digest.hexdigest()[:40]


def keep(entry: Path, fill: Callable[[Path], None]) -> None:
    """Make the folder `entry` of what `fill` writes into the folder that it is given: all of it, or nothing.

    Entries used longest ago make room for it. Raises OSError when it cannot be written.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=entry.parent))
    try:
        fill(scratch)
        try:
            scratch.rename(entry)
        except OSError:  # there by now, whole: from another process, or broken: replaced
            shutil.rmtree(entry)
            scratch.rename(entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _make_room(entry.parent)


def _fill(scratch: Path, trace: Trace) -> None:
    import polars as pl

    for name, cls in _TABLES.items():
        table = getattr(trace, name)
        columns = {field.name: getattr(table, field.name) for field in fields(cls)}
        pl.DataFrame(columns).write_parquet(scratch / f"{name}.parquet", compression="lz4")
    about = {
        "strings": trace.strings.pool,
        "collectives": [astuple(one) for one in trace.collectives],
        "metadata": asdict(trace.metadata),
        "ledger": [asdict(one) for one in trace.ledger],
        "uncompressed_bytes": trace.uncompressed_bytes,
    }
    (scratch / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _read(entry: Path, path: str) -> Trace:
    import polars as pl

    about = json.loads((entry / "about.json").read_text(encoding="utf-8"))
    tables: dict[str, Any] = {}
    for name, cls in _TABLES.items():
        frame = pl.read_parquet(entry / f"{name}.parquet")
        tables[name] = cls(**{field.name: _column(frame[field.name]) for field in fields(cls)})
    meta = about["metadata"]
    ledger = tuple(LedgerEntry(**{**one, "file": path}) for one in about["ledger"])
    return Trace(
        path=path,
        metadata=Metadata(**{**meta, "devices": tuple(meta["devices"]), "groups": tuple(meta["groups"])}),
        strings=Strings(about["strings"]),
        collectives=tuple(CollectiveArgs(*one) for one in about["collectives"]),
        ledger=ledger,
        uncompressed_bytes=about["uncompressed_bytes"],
        **tables,
    )


def _column(series: pl.Series) -> np.ndarray:
    return np.ascontiguousarray(series.to_numpy())


def _make_room(folder: Path) -> None:
    """Remove the entries used longest ago until all fit, and what died while it was written."""
    entries = sorted(_entries(folder), key=lambda one: one[1], reverse=True)
    total = 0
    for entry, _, size in entries:
        total += size
        if total > LARGEST_BYTES:
            shutil.rmtree(entry, ignore_errors=True)


def _entries(folder: Path) -> Iterator[tuple[Path, float, int]]:
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):
            if entry.is_dir() and entry.name != WORK_FOLDERS:
                size = sum(file.stat().st_size for file in entry.iterdir())
                yield entry, entry.stat().st_mtime, size
