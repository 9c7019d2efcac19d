#!/usr/bin/env python3
"""Make a big trace by repeating a real one: `benchmarks/big_trace.py SOURCE TARGET.json.gz --copies 13`.

Copy k is the source moved k spans later, with correlation ids, flow ids, `External id`, sequence and
step numbers of its own, so that links stay within a copy and steps grow with the copies. The text keeps
Kineto's shape (indented, one key a line), because a decoder's speed depends on it.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

SHIFTED = ("correlation", "External id", "external id", "Sequence number")
ID_STRIDE = 10_000_000


def copies(document: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    """The events of every copy; metadata events only once."""
    events = document["traceEvents"]
    timed = [event for event in events if event.get("ph") == "X" and event.get("cat") is not None]
    first = min(event["ts"] for event in timed)
    span = max(event["ts"] + event["dur"] for event in timed) - first + 1000
    steps = sum(1 for event in timed if event["name"].startswith("ProfilerStep#"))
    for k in range(count):
        for event in events:
            if event["ph"] == "M":
                if k == 0:
                    yield event
                continue
            moved = {**event, "ts": event["ts"] + k * span}
            if "id" in event and isinstance(event["id"], int):
                moved["id"] = event["id"] + k * ID_STRIDE
            if str(event.get("name", "")).startswith("ProfilerStep#"):
                moved["name"] = f"ProfilerStep#{int(event['name'].split('#')[1]) + k * max(1, steps)}"
            if "args" in event:
                moved["args"] = {key: _shifted(key, value, k) for key, value in event["args"].items()}
            yield moved


def _shifted(key: str, value: Any, k: int) -> Any:
    return value + k * ID_STRIDE if key in SHIFTED and isinstance(value, int) and value else value


def make(source: Path, target: Path, count: int) -> tuple[int, int]:
    """Write the big trace (gzip when the name ends in .gz); returns (bytes of text, events)."""
    with _open(source, "rb") as file:
        document = json.loads(file.read(), parse_float=Decimal)
    head = {key: value for key, value in document.items() if key != "traceEvents"}
    written = events = 0
    with _open(target, "wb") as file:
        start = json.dumps(head, default=_number, indent=2)[:-2] + ',\n  "traceEvents": [\n'
        written += file.write(start.encode())
        for event in copies(document, count):
            text = (",\n" if events else "") + json.dumps(event, default=_number, indent=1)
            written += file.write(text.encode())
            events += 1
        written += file.write(b"\n]}\n")
    return written, events


def _open(path: Path, mode: str) -> Any:
    return gzip.open(path, mode, compresslevel=4) if path.suffix == ".gz" else path.open(mode)


def _number(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(type(value).__name__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--copies", type=int, default=13)
    args = parser.parse_args()
    size, events = make(args.source, args.target, args.copies)
    print(f"{args.target}: {size / 1e6:.0f} MB of text, {events / 1e6:.2f} M events")


if __name__ == "__main__":
    main()
