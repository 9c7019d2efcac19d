"""Any damage: no crash, no intact event lost, and the same answer whatever the chunk size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_helpers import decode_bytes, names, outcome, same

from sp_profiler.ledger import refused_by_strict
from sp_profiler.trace.write import TraceWriter


def _text() -> bytes:
    """Ten events, one a line, each with its own name."""
    writer = TraceWriter(rank=1, world_size=2, base_time_ns=10**15)
    for index in range(8):
        writer.cpu_op(f"op{index}", index, 0.5, external_id=index, dims=[[2, 3], []], types=["float", ""])
    return writer.collective("allreduce", 9, 1, seq=1).memory(9, 64).step(0, 0, 10).text().encode()


TEXT = _text()
LINES = TEXT.split(b"\n")
FIRST_EVENT = len(LINES[0]) + 1
NAMES = [f"op{index}" for index in range(8)]


def _intact(data: bytes) -> list[str]:
    """Names of the operators whose line is still whole."""
    return [name for name, line in zip(NAMES, LINES[1:9], strict=True) if line.rstrip(b",") in data]


def test_cut_at_every_byte(tmp_path: Path) -> None:
    for length in range(FIRST_EVENT, len(TEXT)):
        data = TEXT[:length]
        trace = decode_bytes(tmp_path, data, chunk_bytes=900)
        kept = [name for name in names(trace) if name in NAMES]
        assert kept == _intact(data), length
        assert {"truncated-file"} <= {one.code for one in refused_by_strict(trace.ledger)}, length


def test_cut_before_the_first_event(tmp_path: Path) -> None:
    for length in range(TEXT.index(b"[\n{") + 1):
        answer = outcome(tmp_path, TEXT[:length], 1 << 20)
        assert isinstance(answer, str), length
        assert "is cut off before its first event" in answer or "is empty" in answer, length


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_byte_anywhere(tmp_path: Path, seed: int) -> None:
    """A wrong byte costs at most the event it lies in (and the one it makes unreadable in front)."""
    choose = random.Random(seed)
    for place in range(FIRST_EVENT, len(TEXT)):
        wrong = choose.choice([b'"', b"}", b"{", b"]", b",", b"\\", b"\0", b"\xff", b"7"])
        _expect_others_kept(tmp_path, place, wrong)


@pytest.mark.parametrize("bit", [0, 1, 5, 7])
def test_a_flipped_bit_in_every_byte(tmp_path: Path, bit: int) -> None:
    for place in range(FIRST_EVENT, len(TEXT)):
        _expect_others_kept(tmp_path, place, bytes([TEXT[place] ^ 1 << bit]))


def _expect_others_kept(tmp_path: Path, place: int, wrong: bytes) -> None:
    data = TEXT[:place] + wrong + TEXT[place + 1 :]
    trace = decode_bytes(tmp_path, data)
    hit = data[FIRST_EVENT:].split(b"\n")[TEXT[FIRST_EVENT:place].count(b"\n")]
    untouched = [name for name in _intact(data) if name.encode() not in hit]
    assert set(untouched) <= set(names(trace)), (place, wrong)
    if len(trace.events) < 10:
        assert refused_by_strict(trace.ledger), (place, wrong)


_DAMAGE = st.sampled_from(
    [b'"', b"}", b"{", b"]", b"[", b",", b":", b"\\", b"\0\0", b"\xff", b"\n", b"inf", LINES[2]]
)
_PLACES = st.integers(0, len(TEXT))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(_PLACES, st.integers(0, 40), _DAMAGE), min_size=1, max_size=4))
def test_any_damage_gives_one_answer(tmp_path: Path, damage: list[tuple[int, int, bytes]]) -> None:
    """Bytes removed and inserted anywhere, metadata included."""
    data = TEXT
    for place, removed, inserted in damage:
        data = data[:place] + inserted + data[place + removed :]
    answers = [outcome(tmp_path, data, size) for size in (40, 600, 1 << 20)]
    assert all(same(answer, answers[0]) for answer in answers[1:])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b'{"traceEvents":[', b"[{", b"\x1f\x8b\x08\0\0\0\0\0\0\xff"]),
)
def test_any_bytes_give_an_answer(tmp_path: Path, data: bytes, head: bytes) -> None:
    answers = [outcome(tmp_path, head + data, size) for size in (10, 1 << 20)]
    assert same(answers[0], answers[1])
