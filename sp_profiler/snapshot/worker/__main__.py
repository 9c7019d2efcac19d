"""Reads one pickle from stdin and writes the columns of a snapshot to stdout; its limits are its argument."""

from __future__ import annotations

import io
import json
import os
import resource
import sys
from array import array
from typing import Any, BinaryIO

from extraction import extract
from protocol import MAGIC
from unpickling import Refused, load, printable

_OPEN_FILES = 16


def limit(memory_bytes: int, cpu_s: int) -> None:
    """What this process may use from here on. No files can be written and no processes be started."""
    for what, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(what)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # At the soft bound of CPU time comes the signal that says why, at the hard one SIGKILL.
        room = 1 if what == resource.RLIMIT_CPU and least != hard else 0
        resource.setrlimit(what, (least, least + room))


def answer(out: BinaryIO, header: dict[str, Any], columns: list[array[int]]) -> None:
    text = json.dumps(header).encode("ascii")
    out.write(MAGIC + len(text).to_bytes(8, "big") + text)
    for column in columns:
        out.write(memoryview(column).cast("B"))
    out.flush()


def read(source: BinaryIO, limits: dict[str, int]) -> tuple[dict[str, Any], list[array[int]]]:
    """Header and columns of the snapshot in `source`, or the header of a refusal."""
    try:
        root, trailing = load(source, limits["inflated_bytes"])
        header, columns = extract(root, limits["events"])
    except Refused as error:
        return {"refused": error.kind, "detail": error.detail}, []
    except MemoryError:
        return {"refused": "memory", "detail": ""}, []
    except Exception as error:  # noqa: BLE001 - plain data should raise none: a fault of ours, told with its place
        return {"refused": "failed", "detail": _placed(error)}, []
    return {**header, "trailing": trailing}, columns


def _placed(error: Exception) -> str:
    """An error and the line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return printable(f"{type(error).__name__}: {error}")
    file = os.path.basename(trace.tb_frame.f_code.co_filename)
    return printable(f"{type(error).__name__} in line {trace.tb_lineno} of {file}: {error}")


def main() -> None:
    limits: dict[str, int] = json.loads(sys.argv[1])
    limit(limits["memory_bytes"], limits["cpu_s"])
    header, columns = read(io.FileIO(0), limits)  # type: ignore[arg-type]
    answer(sys.stdout.buffer, header, columns)
    os._exit(0)  # freeing millions of objects one by one would only take time


if __name__ == "__main__":
    main()
