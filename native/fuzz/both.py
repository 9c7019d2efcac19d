"""Hold the two decoders against each other over mutated texts:  both.py SECONDS SEED FILE-OR-FOLDER...

The files are traces, or pieces of one as material.py makes and libFuzzer finds them. Each is read as it is,
then mutated ones are, in chunks of any size. What the decoders read differently, or where one fails, is kept
in the working folder as `differs-*.json`, and the exit status is 1. So is, but with status 0, what the Python
decoder reads differently in chunks of another size: of such a text it cannot say what is right.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))

from native_texts import ARGS_KEYS, EVENT_KEYS, VALUES, decoding, document, read_by, read_by_both
from trace_helpers import CHUNK_SIZES, same

MOST_BYTES = 20_000
PIECES = (
    *VALUES, *(b'"' + key + b'":' for key in (*EVENT_KEYS, *ARGS_KEYS)), b'"', b"\\", b"{", b"}", b"[", b"]",
    b",", b":", b"},{", b"]}", b"\n", b"\0", b"\\u", b"\\ud83d", b"\xff", b'"ph":"X"', b'"ph":"i"',
    b'"ph":"s"', b'"args":{', b'"traceEvents":[',
)  # fmt: skip


def seeds_of(paths: list[Path]) -> list[bytes]:
    files = [file for path in paths for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    texts = [file.read_bytes() for file in files if file.is_file()]
    return [gzip.decompress(text) if text.startswith(b"\x1f\x8b") else text for text in texts]


def as_document(text: bytes) -> bytes:
    return text if b'"traceEvents"' in text else document(text)


def mutated(seeds: list[bytes], chance: random.Random) -> bytes:
    text = bytearray(chance.choice(seeds))
    if len(text) > MOST_BYTES:
        start = chance.randrange(len(text) - MOST_BYTES)
        text = text[start : start + MOST_BYTES]
    for _ in range(chance.randint(1, 6)):
        place = chance.randint(0, len(text))
        match chance.randrange(6):
            case 0:
                text[place : place + 1] = bytes([chance.randrange(256)])
            case 1 if place < len(text):
                text[place] ^= 1 << chance.randrange(8)
            case 2:
                del text[place : place + chance.randint(1, 32)]
            case 3:
                text[place : place + chance.choice((0, 0, 1, 8))] = chance.choice(PIECES)
            case 4:
                other = chance.choice(seeds)
                start = chance.randint(0, len(other))
                text[place:place] = other[start : start + chance.randint(1, 400)]
            case _ if not chance.randrange(8):
                del text[place:]
    return bytes(text)


def texts(seeds: list[bytes], chance: random.Random) -> Iterator[bytes]:
    yield from map(as_document, seeds)
    while True:
        text = mutated(seeds, chance)
        yield document(text) if chance.randrange(4) else as_document(text)


def is_one_answer(text: bytes, chunk_bytes: int) -> bool:
    """Whether the Python decoder reads the same in chunks of any size: if not, it is itself at fault."""
    first = read_by("python", decoding(text, chunk_bytes))
    return all(same(first, read_by("python", decoding(text, size))) for size in CHUNK_SIZES)


def keep(text: bytes, chunk_bytes: int, what: str) -> None:
    name = f"differs-{hashlib.sha1(text).hexdigest()[:12]}-{chunk_bytes}.json"
    Path(name).write_bytes(text)
    print(f"{what}: {name}, in chunks of {chunk_bytes} bytes", flush=True)


def main(seconds: float, seed: int, paths: list[Path]) -> int:
    chance = random.Random(seed)
    seeds = seeds_of(paths)
    end = time.monotonic() + seconds
    count = differing = undecided = 0
    for text in texts(seeds, chance):
        if count >= len(seeds) and time.monotonic() > end:
            break
        count += 1
        chunk_bytes = chance.choice((*CHUNK_SIZES, chance.randint(1, 3000)))
        try:
            _, is_same = read_by_both(text, chunk_bytes)
        except BaseException:
            keep(text, chunk_bytes, "a decoder fails")
            raise
        if not is_same and is_one_answer(text, chunk_bytes):
            differing += 1
            keep(text, chunk_bytes, "the decoders differ")
        elif not is_same:
            undecided += 1
            keep(text, chunk_bytes, "the Python decoder differs from itself in other chunks")
    told = f"{differing} are read differently" if differing else "the decoders read the same"
    if undecided:
        told += f", but for {undecided} that the Python one does not read the same in chunks of any size"
    print(f"{count} texts of {len(seeds)} files, seed {seed}: {told}")
    return 1 if differing else 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("both.py SECONDS SEED FILE-OR-FOLDER...")
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]), [Path(one) for one in sys.argv[3:]]))
