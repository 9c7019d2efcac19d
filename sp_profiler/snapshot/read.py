"""From a file to the columns of a snapshot. The pickle is read by `worker`, in a process under limits."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger
from sp_profiler.snapshot.tables import (
    Annotations,
    DeviceSnapshot,
    EndBlocks,
    Events,
    Ints,
    Segments,
    Snapshot,
    Stacks,
)
from sp_profiler.snapshot.worker.protocol import MAGIC, NONE
from sp_profiler.trace.metadata import rank_from_name
from sp_profiler.trace.places import open_binary
from sp_profiler.trace.remote import Remote, as_remote, fetch

MEBI = 1 << 20
GIBI = 1 << 30
ENDINGS = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_TRACES = (".json", ".json.gz")
_WORKER = Path(__file__).with_name("worker")  # its `__main__` is run, and finds the modules beside it
_CHUNK = 1 << 20
_MEMORY_PER_BYTE = 60  # of a pickle: a dict of eight keys in some 60 bytes, an empty list in one
_BYTES_PER_EVENT = 16  # half of the least that a dict of action, address, size and stream takes
_BYTES_PER_CPU_S = MEBI  # a tenth of the speed seen
_GZIP_RATIO = 20
_WALL_PER_CPU = 10  # a busy machine gives a process a tenth of a core


@dataclass(frozen=True)
class SnapshotLimits:
    """What reading one file may take; reaching a bound is an InputError that names it.

    `memory_bytes`, `cpu_s` and `events` (and as many blocks) are upper bounds: a small file gets less (1 GiB,
    10 s and 10,000, growing with it). A pickle may refer to one event a million times; a snapshot does not.
    """

    inflated_bytes: int = 64 * GIBI
    events: int = 50_000_000
    memory_bytes: int = 256 * GIBI
    cpu_s: int = 3600

    def for_file(self, file_bytes: int, *, packed: bool) -> SnapshotLimits:
        """The bounds for a file of this size, within these and what the machine has."""
        size = min(file_bytes * (_GZIP_RATIO if packed else 1), self.inflated_bytes)
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = min(GIBI + _MEMORY_PER_BYTE * size, self.memory_bytes, max(machine * 9 // 10, GIBI))
        events = min(10_000 + size // _BYTES_PER_EVENT, self.events)
        return SnapshotLimits(
            self.inflated_bytes, events, memory, min(10 + size // _BYTES_PER_CPU_S, self.cpu_s)
        )


def is_snapshot(path: str) -> bool:
    """Whether a file is to be read as a snapshot: by its name, else by a pickle's first bytes."""
    if path.lower().endswith(ENDINGS):
        return True
    if isinstance(path, Remote) and path.lower().endswith(_TRACES):
        return False  # not fetched to look
    if not isinstance(path, Remote) and not os.path.isfile(path):
        return False
    try:
        with open_binary(path) as file:
            head = file.read(2)
    except OSError:
        return False
    return len(head) == 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def read_snapshot(path: str, limits: SnapshotLimits | None = None) -> Snapshot:
    """Read one snapshot; the file may be gzipped.

    Raises InputError, in one sentence that names the file, for what is no snapshot, asks for a global, is
    cut off, or breaks a bound.
    """
    path = as_remote(path)
    if not isinstance(path, Remote) and os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path} is a folder, a pipe or a device: name a snapshot's file.")
    try:
        with _with_descriptor(path) as file:  # the worker reads on from where this stands
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            bounds = (limits or SnapshotLimits()).for_file(os.fstat(file.fileno()).st_size, packed=packed)
            output = _run_worker(path, file.fileno(), bounds)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    return _parse(path, output)


def _with_descriptor(path: str) -> BinaryIO:
    return fetch(path) if isinstance(path, Remote) else cast("BinaryIO", open(path, "rb", buffering=0))


def _run_worker(path: str, descriptor: int, bounds: SnapshotLimits) -> bytearray:
    """What the worker wrote. Raises InputError when it wrote nothing or took too long."""
    worker = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_WORKER), json.dumps(asdict(bounds))],
        stdin=descriptor,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
    )
    output = bytearray()
    deadline = time.monotonic() + bounds.cpu_s * _WALL_PER_CPU
    try:
        assert worker.stdout is not None
        with worker.stdout as pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise InputError(f"{path} {_TOO_LONG}.")
                chunk = os.read(pipe.fileno(), _CHUNK)
                if not chunk:
                    break
                output += chunk
                if len(output) > bounds.memory_bytes:
                    raise InputError(f"{path} {_REFUSALS['memory']}.")
    finally:
        if worker.poll() is None and sys.exc_info()[0] is not None:
            worker.kill()
        worker.wait()
    if worker.returncode != 0 or not output.startswith(MAGIC):
        raise InputError(f"{path} {_died(worker.returncode)}.")
    return output


_TOO_LONG = "is refused: reading it takes longer than a snapshot of this size could"
_REFUSALS = {
    "empty": "is empty",
    "zip": "is a zip archive, as torch.save writes it, and no memory snapshot "
    "(torch.cuda.memory._dump_snapshot writes those)",
    "no-pickle": "is no pickle, and so no memory snapshot",
    "truncated": "is cut off: the pickle ends before its end",
    "memory": "is refused: reading it takes more memory than a snapshot of this size could",
    "events": "is refused: it holds more events or blocks than a snapshot of this size could"
    " (a bound of {detail})",
    "inflated": "is refused: it unpacks to more than {detail} bytes",
    "persistent": "is refused: it refers to objects outside of the file, and a memory snapshot does not",
    "shape": "is a pickle, but of no memory snapshot: it holds no list of segments",
    "broken": "is a damaged pickle, or one of something else than a memory snapshot ({detail})",
    "failed": "cannot be read: the reader failed on it, which is a fault of the reader ({detail})",
}


def _died(code: int) -> str:
    if code == -signal.SIGXCPU:
        return _TOO_LONG
    if code == -signal.SIGKILL:
        return "is refused: the process that read it was killed, which is what happens when memory runs out"
    return "is refused: its pickle crashes the reader, and no memory snapshot does"


def _refused(path: str, kind: str, detail: str) -> InputError:
    if kind == "global":
        return InputError(
            f"{path} is refused: it asks for the global {detail}, which could run code, and a memory snapshot"
            " needs none."
        )
    sentence = _REFUSALS.get(kind, _REFUSALS["broken"]).replace("{detail}", detail)
    return InputError(f"{path} {sentence}.")


def _parse(path: str, output: bytearray) -> Snapshot:
    """The columns behind the header. The numbers are the worker's own, so only their order is checked."""
    start = len(MAGIC) + 8
    end = start + int.from_bytes(output[len(MAGIC) : start], "big")
    header: dict[str, Any] = json.loads(output[start:end].decode("ascii"))
    if "refused" in header:
        raise _refused(path, header["refused"], header["detail"])
    columns: dict[str, Ints] = {}
    for name, count in header["layout"]:
        columns[name] = np.frombuffer(output, dtype=np.int64, count=count, offset=end)
        end += count * 8
    ledger = Ledger(str(path))
    _enter(header, ledger)
    settings = header["settings"]
    return Snapshot(
        path=str(path),  # of a URL what may be shown
        rank=_rank(path),
        devices=tuple(_devices(columns)),
        stacks=Stacks(
            header["texts"],
            columns["frames.file"],
            columns["frames.line"],
            columns["frames.function"],
            columns["frames.origin"],
            columns["stacks.frames"],
            columns["stacks.ends"],
        ),
        has_history=bool(header["traces"]),
        expandable_segments=settings.get("expandable_segments"),
        allocator_conf=settings.get("conf"),
        ledger=ledger.entries,
    )


def _rank(path: str) -> int | None:
    """The rank that the file's name tells, else its folder's (`rank3/oom.pickle`)."""
    rank = rank_from_name(path)
    return rank_from_name(os.path.dirname(os.path.abspath(path))) if rank is None else rank


def _enter(header: dict[str, Any], ledger: Ledger) -> None:
    """What the worker passed over."""
    for table, count in header["malformed"].items():
        if count:
            ledger.add(
                "snapshot-malformed",
                "loss",
                f"{table} of the snapshot without what they must have, or with sizes no GPU has: left out",
                count=count,
            )
    if header["unknown_actions"]:
        ledger.add(
            "snapshot-unknown-action",
            "note",
            "events of the history of a kind that is not known: left out",
            count=header["unknown_actions"],
        )
    if header["trailing"]:
        ledger.add("snapshot-trailing", "note", "bytes follow the snapshot's pickle: not read")


def _devices(columns: dict[str, Ints]) -> list[DeviceSnapshot]:
    """Rows by device; a device that has neither segments nor events is left out."""
    of_events = columns["events.device"]
    of_segments = columns["segments.device"]
    of_blocks = of_segments[columns["blocks.segment"]]
    of_annotations = columns["annotations.device"]
    found: list[DeviceSnapshot] = []
    for device in np.unique(np.concatenate((of_events, of_segments))).tolist():
        segments = np.flatnonzero(of_segments == device)
        number = np.full(len(of_segments), NONE, dtype=np.int64)
        number[segments] = np.arange(len(segments))
        blocks = _rows(columns, "blocks", of_blocks == device)
        blocks["segment"] = number[blocks["segment"]]
        found.append(
            DeviceSnapshot(
                device,
                Events(**_rows(columns, "events", of_events == device)),
                Segments(**_rows(columns, "segments", of_segments == device)),
                EndBlocks(**blocks),
                Annotations(**_rows(columns, "annotations", of_annotations == device)),
            )
        )
    return found


def _rows(columns: dict[str, Ints], table: str, chosen: np.ndarray) -> dict[str, Ints]:
    """The columns of one table, without its device, for the chosen rows."""
    prefix = f"{table}."
    return {
        name.removeprefix(prefix): column[chosen]
        for name, column in columns.items()
        if name.startswith(prefix) and name != f"{table}.device"
    }
