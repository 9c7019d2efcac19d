"""Every file of cases/malformed, against the table in cases/README.md; damage seen elsewhere beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from trace_helpers import (
    CHUNK_SIZES,
    HEAD,
    TAIL,
    codes,
    decode_bytes,
    entry,
    event_text,
    kernels,
    names,
    same,
)

from sp_profiler.errors import InputError
from sp_profiler.ledger import refused_by_strict
from sp_profiler.trace.decode import decode_trace

# number of the file: kernels kept, whether --strict refuses, rank, codes in the ledger
CASES = {
    "01": (2, True, 0, {"unescaped-quote"}),
    "02": (2, True, 0, {"control-character"}),
    "05": (2, True, 0, {"bad-utf8"}),
    "06": (2, True, 0, {"non-finite-number"}),
    "08": (2, True, 0, {"truncated-file"}),
    "10": (2, False, None, {"rank-unknown"}),
    "10b": (2, True, None, {"truncated-file", "rank-unknown"}),
    "12": (2, False, 0, set()),
    "13": (2, True, 0, {"negative-duration"}),
    "15": (2, False, 0, set()),
    "17": (2, True, 0, {"quoted-number", "far-away-event"}),
    "19": (2, False, 0, set()),
    "22": (1, False, None, {"rank-unknown"}),
    "23": (2, True, 0, {"empty-value"}),
    "25": (1, False, 3, set()),
    "26": (1, False, 0, set()),
    "28": (1, False, 0, set()),
    "31": (2, False, 0, set()),
    "33": (1, False, 0, set()),
    "38": (1, False, 0, set()),
    "50": (1, True, 0, {"truncated-gzip"}),
    "52": (1, False, 0, set()),
    "54": (1, False, 0, set()),
}


def _file(shared: Path, number: str) -> str:
    (path,) = (shared / "cases" / "malformed").glob(f"{number}_*")
    return str(path)


@pytest.mark.shared
def test_the_table_is_complete(shared: Path) -> None:
    present = {name.split("_")[0] for name in os.listdir(shared / "cases" / "malformed")}
    assert present == set(CASES) | {"37"}


@pytest.mark.shared
@pytest.mark.parametrize("number", CASES)
def test_malformed_file(shared: Path, number: str) -> None:
    expected_kernels, refused, rank, expected_codes = CASES[number]
    trace = decode_trace(_file(shared, number))
    assert kernels(trace) == expected_kernels
    assert bool(refused_by_strict(trace.ledger)) == refused
    assert trace.rank == rank
    assert codes(trace) == expected_codes
    for one in refused_by_strict(trace.ledger):
        assert one.first_offset is not None
        assert 0 < one.first_offset <= trace.uncompressed_bytes


@pytest.mark.shared
@pytest.mark.parametrize("number", CASES)
def test_malformed_file_in_any_chunk_size(shared: Path, number: str) -> None:
    whole = decode_trace(_file(shared, number))
    for size in CHUNK_SIZES:
        assert same(decode_trace(_file(shared, number), chunk_bytes=size), whole)


@pytest.mark.shared
def test_the_empty_file_is_refused_in_one_sentence(shared: Path) -> None:
    with pytest.raises(InputError, match=r"^\S*37_empty\.json is empty\.$"):
        decode_trace(_file(shared, "37"))


@pytest.mark.shared
def test_what_repaired_events_hold(shared: Path) -> None:
    assert names(decode_trace(_file(shared, "01")))[1] == '{"device": "cpu"}(12): run'
    assert names(decode_trace(_file(shared, "02")))[1] == "lib = 1\n(1): <module>"
    negative = decode_trace(_file(shared, "13"))
    assert negative.events.dur_ns.tolist() == [10_000, 0]
    quoted = decode_trace(_file(shared, "17"))
    assert quoted.events.start_ns.tolist() == [100_000, 1_778_655_624_745_710_730]
    wide = decode_trace(_file(shared, "19"))
    assert wide.strings[wide.events.tid[1]] == "140589156634432"
    empty = decode_trace(_file(shared, "23"))
    assert empty.collectives[empty.events.collective[1]].group_description is None
    assert empty.collectives[empty.events.collective[1]].group_ranks == "[]"
    cut = decode_trace(_file(shared, "31"))
    assert cut.collectives[cut.events.collective[1]].group_ranks == "[0, 1, 2, ..."


GOOD = b'{"ph":"X","cat":"kernel","name":"ok","pid":0,"tid":7,"ts":100.000,"dur":10.000,"args":{"stream":7}}'


@pytest.mark.parametrize(
    ("damaged", "code", "name"),
    [
        (event_text(b'"a "quoted", name"'), "unescaped-quote", 'a "quoted", name'),
        (event_text(b'"C:\\dir\\"'), "bad-escape", "C:\\dir\\"),
        (event_text(b'"\\ud800"'), "bad-escape", "?"),
        (event_text(b'"tab\there"'), "control-character", "tab\there"),
        (event_text(b'"nul\0byte"'), "control-character", "nul\0byte"),
        (event_text(b'"\xc3\x28"'), "bad-utf8", "\ufffd("),
        (event_text(args=b'"x":NaN'), "non-finite-number", "gemm"),
        (event_text(args=b'"x":-Infinity,"stream":7'), "non-finite-number", "gemm"),
        (event_text(args=b'"x":-nan(ind),"stream":7'), "non-finite-number", "gemm"),
        (event_text(args=b'"Seq": , "stream":7'), "empty-value", "gemm"),
        (event_text(b'"gemm'), "lost-quote", "gemm"),
        (event_text(b'gemm"'), "lost-quote", "gemm"),
        (event_text().replace(b'"pid"', b'pid"'), "lost-quote", "gemm"),
        (event_text().replace(b'"pid"', b'"pid'), "lost-quote", "gemm"),
        (event_text()[:-1], "lost-bracket", "gemm"),
        (event_text().replace(b'"args":{"stream":7}', b'"args":"none"'), "wrong-type", "gemm"),
        (event_text(ts=b'"5.0"'), "quoted-number", "gemm"),
        (event_text(dur=b"-1"), "negative-duration", "gemm"),
        (event_text(dur=b"1e15"), "overflow-duration", "gemm"),
        (event_text(dur=b"18446744073709551615"), "overflow-duration", "gemm"),
        (event_text(dur=b"inf"), "non-finite-duration", "gemm"),
        (event_text(dur=b"null"), "missing-duration", "gemm"),
        (event_text().replace(b',"dur":2.0', b""), "missing-duration", "gemm"),
    ],
)
def test_a_damaged_event_is_repaired(tmp_path: Path, damaged: bytes, code: str, name: str) -> None:
    text = HEAD + GOOD + b",\n" + damaged + b",\n" + GOOD + TAIL
    trace = decode_bytes(tmp_path, text)
    assert names(trace) == ["ok", name, "ok"]
    assert trace.events.start_ns.tolist() == [100_000, 5000, 100_000]
    assert entry(trace, code).severity == "repair"
    assert entry(trace, code).first_offset == text.index(damaged)
    assert entry(trace, code).count == 1
    if code.endswith("-duration"):
        assert trace.events.dur_ns[1] == 0
    for size in CHUNK_SIZES:
        assert same(decode_bytes(tmp_path, text, chunk_bytes=size), trace)


@pytest.mark.parametrize(
    ("damaged", "code"),
    [
        (b'{"ph":"X","name":"cut', "bad-event"),
        (b'{"ph":"X","name":"no time","pid":0}', "bad-event"),
        (b'{"name":"no phase","ts":1,"dur":1}', "bad-event"),
        (b'{"ph":"X","name":"bad time","ts":[1],"dur":1}', "bad-event"),
        (b'{"ph":"X","name":"never","ts":inf,"dur":1}', "non-finite-time"),
        (b'{"ph":"X","name":"far","ts":1e19,"dur":1}', "time-out-of-range"),
        (b'"a word"', "stray-text"),
        (b"\0\0\0\0", "nul-hole"),
        (b'me":"gemm","pid":0,"ts":1,"dur":1,"args":{}}', "stray-text"),
    ],
)
def test_what_cannot_be_repaired_is_a_loss_of_one_event(tmp_path: Path, damaged: bytes, code: str) -> None:
    text = HEAD + GOOD + b",\n" + damaged + b",\n" + GOOD + TAIL
    trace = decode_bytes(tmp_path, text)
    assert names(trace) == ["ok", "ok"]
    assert entry(trace, code).severity == "loss"
    assert entry(trace, code).first_offset == text.index(damaged)
    for size in CHUNK_SIZES:
        assert same(decode_bytes(tmp_path, text, chunk_bytes=size), trace)


def test_two_writers_in_one_file(tmp_path: Path) -> None:
    """Another rank's write in the middle of an event: only that event is lost."""
    inserted = b'{"schemaVersion":1,"traceEvents":[\n' + event_text(b'"theirs"') + TAIL
    text = HEAD + GOOD + b",\n" + GOOD[:40] + inserted + GOOD[40:] + b",\n" + GOOD + TAIL
    trace = decode_bytes(tmp_path, text)
    assert names(trace) == ["ok", "theirs", "ok"]
    assert refused_by_strict(trace.ledger)
    for size in CHUNK_SIZES:
        assert same(decode_bytes(tmp_path, text, chunk_bytes=size), trace)


@pytest.mark.parametrize(
    "head",
    [
        b'{"INFO":["a "raw" quote: {x}"],"schemaVersion":1,"distributedInfo":{"rank":0},"traceEvents":[\n',
        b'{"schemaVersion:1,"distributedInfo":{"rank":0},"traceEvents":[\n',
        b'{"schemaVersion":,"distributedInfo":{"rank":0},"traceEvents":[\n',
        b'x"schemaVersion":1,"distributedInfo":{"rank":0},"traceEvents":[\n',
        b'{"distributedInfo":{"rank":0},"trac\x01Events":[\n',
        b'{"distributedInfo":{"rank":0},"tracXEvents":[\n',
        b'{"distributedInfo":{"rank":0},"traceEvents":x\n',
    ],
)
def test_damaged_metadata_costs_noevent_text(tmp_path: Path, head: bytes) -> None:
    text = head + GOOD + b",\n" + GOOD + b'\n],"traceName":"x"}'
    trace = decode_bytes(tmp_path, text)
    assert names(trace) == ["ok", "ok"]
    assert trace.rank == 0
    assert trace.metadata.top_level["traceName"] == "x"
    assert entry(trace, "bad-metadata").severity == "loss"
    for size in CHUNK_SIZES:
        assert same(decode_bytes(tmp_path, text, chunk_bytes=size), trace)


@pytest.mark.parametrize("between", [b"\n", b",,\n"])
def test_separators(tmp_path: Path, between: bytes) -> None:
    text = HEAD + GOOD + between + GOOD + TAIL
    trace = decode_bytes(tmp_path, text)
    assert kernels(trace) == 2
    assert codes(trace) == {"bad-separator"}
    assert entry(trace, "bad-separator").first_offset == len(HEAD + GOOD)


def test_a_file_full_of_faults_is_counted_and_located_once(tmp_path: Path) -> None:
    event = event_text(ts=b'"5.0"', dur=b"-1")
    trace = decode_bytes(tmp_path, HEAD + b",\n".join([event] * 3000) + TAIL)
    assert len(trace.events) == 3000
    assert {(one.code, one.count, one.first_offset) for one in trace.ledger} == {
        ("quoted-number", 3000, len(HEAD)),
        ("negative-duration", 3000, len(HEAD)),
    }


def test_an_empty_object_and_unread_phases_are_no_loss(tmp_path: Path) -> None:
    begin = b'{"ph":"B","name":"begin","ts":1,"pid":0,"tid":0}'
    trace = decode_bytes(tmp_path, HEAD + begin + b",\n" + GOOD + b",\n{}" + TAIL)
    assert kernels(trace) == 1
    assert codes(trace) == {"phase-not-read"}
    assert not refused_by_strict(trace.ledger)
