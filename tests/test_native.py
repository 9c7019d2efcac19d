"""The compiled decoder reads the same from every text as the Python one: columns, ledger, sentences."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_texts import VALUES, document, event_pairs, events_with
from trace_helpers import CHUNK_SIZES, same

from sp_profiler.errors import InputError
from sp_profiler.trace.decode import decode_open, decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.native import VARIABLE
from sp_profiler.trace.tables import Trace
from sp_profiler.trace.write import TraceWriter

pytestmark = pytest.mark.native
REPOSITORY = Path(__file__).resolve().parent.parent
DEMO = sorted((REPOSITORY / "traces" / "demo").rglob("*.pt.trace.json.gz"))


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch):
    """Decode with both decoders, and expect one answer."""

    def decode(data: bytes, chunk_bytes: int = 1 << 20, **options) -> Trace | str:
        answers: list[Trace | str] = []
        for decoder in ("python", "native"):
            monkeypatch.setenv(VARIABLE, decoder)
            try:
                answers.append(
                    decode_open(io.BytesIO(data), "rank0.json", chunk_bytes=chunk_bytes, **options)
                )
            except InputError as error:
                answers.append(str(error))
        assert _same(*answers), data[:4000]
        return answers[1]

    return decode


def _same(one: Trace | str, two: Trace | str) -> bool:
    if isinstance(one, str) or isinstance(two, str):
        return one == two
    return same(one, two)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value[:24]))
def test_any_value_in_any_place(both, value: bytes) -> None:
    for event in events_with(value):
        both(document(event))


def test_members_twice_missing_or_none(both) -> None:
    for event in event_pairs():
        both(document(event))


@pytest.mark.parametrize("chunk_bytes", CHUNK_SIZES)
def test_many_odd_events_among_plain_ones(both, chunk_bytes: int) -> None:
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


def test_cut_at_every_byte(both) -> None:
    for length in range(len(SMALL)):
        both(SMALL[:length])


@pytest.mark.parametrize("bit", [3, 5, 7])
def test_a_flipped_bit(both, bit: int) -> None:
    for place in range(bit % 3, len(SMALL), 3):  # together: in every byte
        both(SMALL[:place] + bytes([SMALL[place] ^ 1 << bit]) + SMALL[place + 1 :])


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_texts_of_any_damage(both, data: st.DataObject) -> None:
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
def test_limits_have_one_sentence(both, limits: Limits) -> None:
    both(SMALL, limits=limits)


@pytest.mark.parametrize("path", DEMO, ids=lambda path: f"{path.parent.name}-{path.name[:10]}")
def test_shipped_traces(both, path: Path) -> None:
    text = gzip.decompress(path.read_bytes())
    for chunk_bytes in (1 << 20, 5000):
        assert isinstance(both(text, chunk_bytes), Trace)


@pytest.mark.shared
def test_real_traces_and_cases(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    files = [one for folder in ("corpus", "cases") for one in sorted((shared / folder).rglob("*.json*"))]
    assert len(files) > 50
    for path in files:
        answers: list[Trace | str] = []
        for decoder in ("python", "native"):
            monkeypatch.setenv(VARIABLE, decoder)
            try:
                answers.append(decode_trace(str(path)))
            except InputError as error:
                answers.append(str(error))
        assert _same(*answers), path


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


def test_no_read_outside_the_text_under_sanitizers(tmp_path: Path) -> None:
    """The scanner alone, built with AddressSanitizer and UBSan, over mutated traces."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "scan"
    flags = [
        "-std=c++17",
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-DALONE",
    ]
    source = REPOSITORY / "native" / "fuzz" / "scan.cpp"
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True, timeout=250)
    seeds = []
    for number, data in enumerate([SMALL, gzip.decompress(DEMO[0].read_bytes())[:60_000]]):
        seeds.append(tmp_path / f"seed{number}")
        seeds[-1].write_bytes(data)
    done = subprocess.run([program, "20000", "1", *seeds], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "20000 mutated texts\n"
