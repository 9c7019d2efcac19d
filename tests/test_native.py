"""The compiled decoder reads the same from every text as the Python one: columns, ledger, sentences."""

from __future__ import annotations

import gzip
import random
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_texts import VALUES, by_both, document, event_pairs, events_going_on, events_with, read_by_both
from trace_helpers import CHUNK_SIZES

from sp_profiler.trace.decode import CHUNK_BYTES, decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.native import VARIABLE
from sp_profiler.trace.schema import Args
from sp_profiler.trace.tables import Trace
from sp_profiler.trace.write import TraceWriter

pytestmark = pytest.mark.native
REPOSITORY = Path(__file__).resolve().parent.parent
DEMO = sorted((REPOSITORY / "traces" / "demo").rglob("*.pt.trace.json.gz"))


def both(data: bytes, chunk_bytes: int = CHUNK_BYTES, **options) -> Trace | str:
    """Decode with both decoders, and expect one answer."""
    answer, is_same = read_by_both(data, chunk_bytes, **options)
    assert is_same, data[:4000]
    return answer


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value[:24]))
def test_any_value_in_any_place(value: bytes) -> None:
    for event in events_with(value):
        both(document(event))


def test_members_twice_missing_or_none() -> None:
    for event in event_pairs():
        both(document(event))


def test_an_event_that_may_go_on_is_not_taken() -> None:
    for event in events_going_on():
        for chunk_bytes in CHUNK_SIZES:
            both(document(event), chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
def test_many_odd_events_among_plain_ones(chunk_bytes: int) -> None:
    choose = random.Random(1)
    events = [event for value in VALUES for event in events_with(value)]
    readable = [event for event in events if b'"open' not in event and b"\\u" not in event]
    for _ in range(4):
        both(document(*choose.sample(readable, 40)), chunk_bytes)


def _small() -> bytes:
    writer = TraceWriter(rank=1, world_size=2, base_time_ns=10**15)
    for index in range(6):
        writer.cpu_op(f"op{index}", index, 0.5, external_id=index, dims=[[2, 3], []], types=["float", ""])
    return writer.collective("allreduce", 9, 1, seq=1).memory(9, 64).step(0, 0, 10).text().encode()


SMALL = _small()


def test_cut_at_every_byte() -> None:
    for length in range(len(SMALL)):
        both(SMALL[:length])


@pytest.mark.parametrize("bit", [3, 5, 7])
def test_a_flipped_bit(bit: int) -> None:
    for place in range(bit % 3, len(SMALL), 3):  # together: in every byte
        both(SMALL[:place] + bytes([SMALL[place] ^ 1 << bit]) + SMALL[place + 1 :])


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_texts_of_any_damage(data: st.DataObject) -> None:
    text = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(text)))
        piece = data.draw(st.sampled_from(VALUES) | st.binary(max_size=4))
        text[place : place + data.draw(st.integers(0, 30))] = piece
    both(bytes(text), data.draw(st.sampled_from(CHUNK_SIZES)))


@pytest.mark.parametrize(
    "limits",
    [
        Limits(events=3),
        Limits(string_bytes=200),
        Limits(distinct_string_bytes=40),
        Limits(inflated_bytes=500),
        Limits(nesting=1),
    ],
    ids=("events", "string", "strings", "inflated", "nesting"),
)
def test_limits_have_one_sentence(limits: Limits) -> None:
    both(SMALL, limits=limits)


@pytest.mark.parametrize("path", DEMO, ids=lambda path: f"{path.parent.name}-{path.name[:10]}")
def test_shipped_traces(path: Path) -> None:
    text = gzip.decompress(path.read_bytes())
    for chunk_bytes in (1 << 20, 5000):
        assert isinstance(both(text, chunk_bytes), Trace)


@pytest.mark.shared
def test_real_traces_and_cases(shared: Path) -> None:
    files = [one for folder in ("corpus", "cases") for one in sorted((shared / folder).rglob("*.json*"))]
    assert len(files) > 50
    for path in files:
        assert by_both(partial(decode_trace, str(path)))[1], path


def test_most_of_a_real_trace_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every test here would compare the Python decoder with itself."""
    from sp_profiler.trace import native

    taken: list[int] = []
    scan = native.ScannedChunks.take

    def counted(self: native.ScannedChunks, data: bytes, start: int, end: int) -> int:
        reached = scan(self, data, start, end)
        taken.append(reached - start)
        return reached

    monkeypatch.setattr(native.ScannedChunks, "take", counted)
    monkeypatch.setenv(VARIABLE, "native")
    trace = decode_trace(str(DEMO[0]))
    assert sum(taken) > 0.9 * trace.uncompressed_bytes


# --- fuzzing: `make fuzz` does this for longer, with libFuzzer ---------------------------------------------

FUZZ = REPOSITORY / "native" / "fuzz"
SANITIZED = ("-std=c++17", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def _compiler(folder: Path) -> str:
    """A C++ compiler that has the sanitizers."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is on this machine")
    (folder / "empty.cpp").write_text("int main() { return 0; }\n")
    command = [compiler, *SANITIZED, str(folder / "empty.cpp"), "-o", str(folder / "empty")]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"{compiler} comes without AddressSanitizer or UBSan")
    return compiler


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    subprocess.run([sys.executable, str(FUZZ / "material.py"), str(folder)], check=True, timeout=120)
    return folder


def test_no_read_outside_the_text_under_sanitizers(material: Path) -> None:
    """The scanner alone, built with AddressSanitizer and UBSan, over mutated traces."""
    command = [_compiler(material), *SANITIZED, "-DALONE", f"-I{material}", str(FUZZ / "scan.cpp")]
    subprocess.run([*command, "-o", str(material / "scan")], check=True, timeout=250)
    seeds = sorted((material / "seeds").iterdir())
    assert len(seeds) > 1000
    done = subprocess.run(
        [material / "scan", "5000", "1", *seeds[::4]],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "5000 mutated texts\n"


def test_mutated_texts_read_the_same(material: Path) -> None:
    seeds = sorted((material / "seeds").iterdir())[::10]
    command = [sys.executable, str(FUZZ / "both.py"), "1", "1", *map(str, seeds)]
    done = subprocess.run(command, cwd=material, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.fullmatch(r"\d+ texts of \d+ files, seed 1: the decoders read the same\n", done.stdout)


def test_the_dictionary_has_every_key(material: Path) -> None:
    """libFuzzer's form: a quoted word a line, bytes as \\xAB."""
    lines = (material / "scan.dict").read_text().splitlines()
    words = {bytes.fromhex(line[1:-1].replace("\\x", "")) for line in lines}
    assert {b'"' + key.encode() + b'":' for key in Args.__struct_encode_fields__} <= words
    assert max(map(len, words)) <= 64
