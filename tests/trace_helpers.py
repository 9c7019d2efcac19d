"""What the tests of sp_profiler.trace share."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from sp_profiler.errors import InputError
from sp_profiler.trace import load
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.tables import Category, Trace
from sp_profiler.trace.write import TraceWriter

CHUNK_SIZES = (1, 64, 700, 1 << 20)
HEAD = b'{"schemaVersion":1,"distributedInfo":{"rank":0,"world_size":1},"traceEvents":[\n'
TAIL = b"\n]}"


def event_text(
    name: bytes = b'"gemm"', ts: bytes = b"5.0", dur: bytes = b"2.0", args: bytes = b'"stream":7'
) -> bytes:
    """The text of a kernel's event; each part as it stands in the file, damaged or not."""
    return (
        b'{"ph":"X","cat":"kernel","name":' + name + b',"pid":0,"tid":7,"ts":' + ts + b',"dur":' + dur
        + b',"args":{' + args + b"}}"
    )  # fmt: skip


def decode_bytes(folder: Path, data: bytes, *, name: str = "rank0.json", **options) -> Trace:
    path = folder / name
    path.unlink(missing_ok=True)  # ext4 writes a file that is overwritten to the disk at once
    path.write_bytes(data)
    return decode_trace(str(path), **options)


def outcome(folder: Path, data: bytes, chunk_bytes: int) -> Trace | str:
    """The trace, or the sentence with which the file is refused."""
    try:
        return decode_bytes(folder, data, chunk_bytes=chunk_bytes)
    except InputError as error:
        return str(error)


def read_runs_with(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """With two cores the next file of a run is decoded ahead, with one it is not, whatever is here."""
    monkeypatch.setattr(load, "usable_cores", lambda: cores)
    monkeypatch.setattr(load, "decoder_in_use", lambda: ("native", "asked for"))


def threads_ahead(others: Collection[threading.Thread]) -> list[threading.Thread]:
    """The threads of `ahead` that are at work, but for those that were there before."""
    return [one for one in threading.enumerate() if one.name.startswith("ahead") and one not in others]


def names(trace: Trace) -> list[str | None]:
    return [trace.strings[code] for code in trace.events.name]


def kernels(trace: Trace) -> int:
    return int((trace.events.category == Category.KERNEL).sum())


def codes(trace: Trace) -> set[str]:
    return {entry.code for entry in trace.ledger}


def entry(trace: Trace, code: str):
    """The one ledger entry with this code."""
    (found,) = [one for one in trace.ledger if one.code == code]
    return found


def same(one: Trace | str, other: Trace | str) -> bool:
    """Whether two decodings agree in every column, string, ledger entry and byte count."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    simple = ("path", "metadata", "strings", "collectives", "ledger", "uncompressed_bytes")
    tables = ("events", "flows", "memory")
    return all(getattr(one, name) == getattr(other, name) for name in simple) and all(
        np.array_equal(getattr(getattr(one, table), column.name), getattr(getattr(other, table), column.name))
        and getattr(getattr(one, table), column.name).dtype
        == getattr(getattr(other, table), column.name).dtype
        for table in tables
        for column in fields(getattr(one, table))
    )


def mixed_writer(count: int = 4) -> TraceWriter:
    """A small trace with every kind of event."""
    writer = TraceWriter(rank=1, world_size=2, base_time_ns=10**18)
    writer.step(0, 0, 100)
    for index in range(count):
        start = 10 * index
        writer.cpu_op(
            "aten::mm", start, 5, external_id=index, sequence=index, dims=[[2, 3], [3, 4]], types=["float"]
        )
        writer.kernel(f"gemm<{index}>", start + 2, 3.5, launch=start + 1, external_id=index)
    writer.collective("allreduce", 90, 5, launch=80, seq=3)
    writer.memory(7, 512, address=2**63, total_allocated=10)
    return writer.fwdbwd(1, 50)


LIMITS = Limits()
