"""What fuzzing the scanner starts from:  material.py FOLDER

FOLDER/rules.inc   what sp_profiler tells the scanner, for scan.cpp
FOLDER/scan.dict   keys, words and odd values, for libFuzzer
FOLDER/seeds/      many small texts, as the scanner gets them: out of the shipped traces, and events with
                   every odd value in some of the places

Nothing of it is kept in the repository: it is made anew from the schema and cannot fall behind it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))

from native_texts import ARGS_KEYS, EVENT_KEYS, NEIGHBOUR, VALUES, event_pairs, events_with

from sp_profiler.trace.native import rules

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SEED_BYTES = 2000
_BORDER = re.compile(rb"\},\s*(?=\{)")
_LONGEST_WORD = 64  # of libFuzzer


def rules_inc() -> str:
    """C++ statements that fill an `sp::Rules made`."""
    told = rules()
    lines = []
    for what, use in (("integers", "kInteger"), ("texts", "kText"), ("collectives", "kCollective")):
        for place, key in enumerate(told[what]):
            lines.append(f"made.args.push_back({{{json.dumps(key)}, sp::Use::{use}, {place}}});")
    for what in ("memory_names", "concrete_names"):
        lines += [f"made.{what} = {{{', '.join(map(json.dumps, told[what]))}}};"]
    for what in ("ignored_phases", "most_time_ns", "most_duration_ns"):
        lines += [f"made.{what} = {json.dumps(told[what])};"]
    return "\n".join(lines) + "\n"


def dictionary() -> str:
    told = rules()
    words = [b'"' + key + b'":' for key in (*EVENT_KEYS, *ARGS_KEYS)]
    words += [f'"ph":"{phase}"'.encode() for phase in "Xisf" + told["ignored_phases"]]
    words += [b'"' + name.encode() for name in (*told["memory_names"], *told["concrete_names"])]
    words += [value for value in VALUES if 0 < len(value) <= _LONGEST_WORD]
    words += [b'"args":{', b'"traceEvents"', b"},{", b",", NEIGHBOUR[:60], b"\\u", b"\xf4\x90\x80\x80"]
    return "".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in dict.fromkeys(words))


def seeds() -> Iterator[bytes]:
    yield from VALUES  # numbers are checked by themselves
    for number, value in enumerate(VALUES):
        yield from (event + b"," + NEIGHBOUR for event in list(events_with(value))[number % 5 :: 5])
    yield from event_pairs()
    for path in sorted((REPOSITORY / "traces" / "demo").rglob("*.pt.trace.json.gz")):
        text = gzip.decompress(path.read_bytes())
        borders = [match.end() for match in _BORDER.finditer(text)]
        for start in borders[:: max(1, len(borders) // 60)]:
            yield text[start : start + SEED_BYTES].rpartition(b"}")[0] + b"}"


def main(folder: Path) -> None:
    (folder / "seeds").mkdir(parents=True, exist_ok=True)
    (folder / "found").mkdir(exist_ok=True)
    (folder / "rules.inc").write_text(rules_inc())
    (folder / "scan.dict").write_text(dictionary())
    for seed in seeds():
        (folder / "seeds" / hashlib.sha1(seed).hexdigest()).write_bytes(seed)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("material.py FOLDER")
    main(Path(sys.argv[1]))
