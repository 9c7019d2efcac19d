"""Writes a finished torch profile as `rank-00000.pt.trace.json.gz`, whole or not at all."""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.profiler import profile

CHUNK_BYTES = 1 << 20
COMPRESSION_LEVEL = 2  # of isal: about the size of zlib's level 3 at ten times its speed


def trace_name(rank: int) -> str:
    """The file name of a rank's trace."""
    return f"rank-{rank:05d}.pt.trace.json.gz"


def step_is_empty(profile: Any, step: int) -> bool:
    """Whether nothing ran since the range `ProfilerStep#<step>` was opened."""
    events = profile.profiler.kineto_results.events()
    name = f"ProfilerStep#{step}"
    start_ns = next((event.start_ns() for event in reversed(events) if event.name() == name), None)
    if start_ns is None:
        return False
    return not any(e.start_ns() >= start_ns and e.duration_ns() > 0 and e.name() != name for e in events)


def export_trace(profile: profile, folder: Path, rank: int, *, drop_step: int | None = None) -> Path:
    """Write the trace of `rank` into `folder` and return its path.

    torch writes plain JSON to a temporary file; it is compressed to a second one, which then takes its
    name in one step. `traceName`, torch's note of the path, becomes the bare file name. `drop_step`
    leaves out the range of a step in which nothing ran. Raises OSError, leaving no file behind.
    """
    path = folder / trace_name(rank)
    plain = folder / f".{path.name}.{os.getpid()}.json.tmp"
    packed = folder / f".{path.name}.{os.getpid()}.gz.tmp"
    try:
        profile.export_chrome_trace(str(plain))
        _compress(plain, packed, _cuts(plain, path.name, drop_step))
        os.replace(packed, path)
    finally:
        plain.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
    return path


Cut = tuple[int, int, bytes]
"""Bytes [start, end) are replaced by the third."""


def _cuts(plain: Path, name: str, drop_step: int | None) -> list[Cut]:
    cuts: list[Cut] = []
    with plain.open("rb") as file, closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as text:
        if drop_step is not None:
            block = re.compile(
                rb'\{\s*"ph": "X",\s*"cat": "user_annotation",\s*"name": "ProfilerStep#%d",'
                rb"[^{}]*(?:\{[^{}]*\}[^{}]*)?\},\s*" % drop_step
            )
            if found := block.search(text):
                cuts.append((found.start(), found.end(), b""))
        written = b'"traceName": ' + json.dumps(str(plain)).encode()
        at = text.rfind(written)
        if at >= 0:
            cuts.append((at, at + len(written), b'"traceName": ' + json.dumps(name).encode()))
    return cuts


def _pieces(plain: Path, cuts: list[Cut]) -> Iterator[bytes]:
    with plain.open("rb") as file:
        for start, end, replacement in cuts:
            while (left := start - file.tell()) > 0:
                yield file.read(min(left, CHUNK_BYTES))
            yield replacement
            file.seek(end)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _compress(plain: Path, packed: Path, cuts: list[Cut]) -> None:
    from isal import igzip

    with igzip.IGzipFile(packed, "wb", compresslevel=COMPRESSION_LEVEL) as out:
        for piece in _pieces(plain, cuts):
            out.write(piece)
