"""Gzip that is damaged between or inside its members, text that is not UTF-8, other compressions."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest
from trace_helpers import codes, decode_bytes, mixed_writer, names

from sp_profiler.errors import InputError
from sp_profiler.trace.write import TraceWriter

TEXT = mixed_writer(60).text().encode()
HALF = len(TEXT) // 2
FIRST, SECOND = gzip.compress(TEXT[:HALF]), gzip.compress(TEXT[HALF:])


def _wrong_checksum(member: bytes) -> bytes:
    return member[:-8] + bytes([member[-8] ^ 1]) + member[-7:]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (FIRST + b"garbage" + SECOND, "damaged-gzip"),
        (FIRST + b"x" + SECOND, "damaged-gzip"),
        (FIRST + b"\0\0x\0" + SECOND, "damaged-gzip"),
        (_wrong_checksum(FIRST) + SECOND, "bad-checksum"),
        (_wrong_checksum(FIRST) + b"garbage" + SECOND, "bad-checksum"),
        (FIRST + gzip.compress(b"")[:-3] + SECOND, "bad-checksum"),
    ],
)
def test_members_behind_damage_are_read(tmp_path: Path, data: bytes, code: str) -> None:
    whole = decode_bytes(tmp_path, TEXT)
    for chunk_bytes in (64, 1 << 20):
        trace = decode_bytes(tmp_path, data, name="rank1.json.gz", chunk_bytes=chunk_bytes)
        assert names(trace) == names(whole)
        assert codes(trace) == {code}


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_member_that_is_cut_costs_only_its_rest(tmp_path: Path, kept: float) -> None:
    events = [f"gemm_{index}_{index * 7919 % 104729}" for index in range(400)]
    lines = TraceWriter()
    for index, name in enumerate(events):
        lines.kernel(name, 10 * index, 5)
    text = lines.text().encode()
    third = text.index(b'"gemm_133_')
    parts = [gzip.compress(text[:third]), gzip.compress(text[third:])]
    cut = parts[0][: int(len(parts[0]) * kept)]
    found = set(names(decode_bytes(tmp_path, cut + parts[1], name="a.json.gz")))
    assert set(events[134:]) <= found
    alone = set(names(decode_bytes(tmp_path, cut, name="b.json.gz")))
    assert alone & set(events[:20]) <= found


def test_chance_headers_and_their_number(tmp_path: Path) -> None:
    """What only looks like the head of a member is passed over, however often it occurs."""
    noise = b"\x1f\x8b\x08\x00\0\0\0\0\0\x03\xff" * 3
    trace = decode_bytes(tmp_path, FIRST + noise + SECOND, name="rank1.json.gz")
    assert names(trace) == names(decode_bytes(tmp_path, TEXT))
    trace = decode_bytes(tmp_path, FIRST + SECOND + noise * 5000, name="rank1.json.gz")
    assert names(trace) == names(decode_bytes(tmp_path, TEXT))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("packed", [False, True])
def test_utf_16_as_powershell_writes_it(tmp_path: Path, encoding: str, packed: bool) -> None:
    text = TraceWriter(rank=3).kernel("gemm é \U0001f600", 1, 2).text()
    data = text.encode(encoding)
    trace = decode_bytes(tmp_path, gzip.compress(data) if packed else data, name="t.json")
    assert names(trace) == ["gemm é \U0001f600"]
    assert trace.rank == 3
    assert [(one.code, one.severity) for one in trace.ledger] == [("encoding", "note")]


def test_utf_16_with_half_a_pair(tmp_path: Path) -> None:
    data = TraceWriter(rank=3).kernel("gemm @", 1, 2).text().encode("utf-16-le").replace(b"@\0", b"\x3d\xd8")
    trace = decode_bytes(tmp_path, data, name="t.json")
    assert len(trace.events) == 1
    assert codes(trace) == {"encoding", "bad-utf8"}


def _zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rank0.json", TEXT)
    return file.getvalue()


def _tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        member = tarfile.TarInfo("rank0.json")
        member.size = len(TEXT)
        archive.addfile(member, io.BytesIO(TEXT))
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (gzip.compress(gzip.compress(TEXT)), "is compressed with gzip twice; unpack it once."),
        (bz2.compress(TEXT), "is compressed with bzip2"),
        (lzma.compress(TEXT), "is compressed with xz"),
        (b"\x28\xb5\x2f\xfd" + TEXT, "is compressed with zstd"),
        (_zipped(), "is a zip archive; unpack it."),
        (_tarred(), "is a tar archive; unpack it."),
        (TEXT.decode().encode("utf-32"), "is UTF-32 text"),
        (b'{"traceEvents": null, "schemaVersion": 1}', "its traceEvents is no list of events"),
    ],
)
def test_what_is_not_read_is_named(tmp_path: Path, data: bytes, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        decode_bytes(tmp_path, data, name="rank0.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1,, "distributedInfo": {"rank": 3}, "traceEvents": []}',
        '{, "distributedInfo": {"rank": 3}, "traceEvents": []}',
        '{"a": 1 "distributedInfo": {"rank": 3}, "traceEvents": []}',
        '{"traceEvents": [], "distributedInfo": {"rank": 3},}',
        '{"traceEvents": [] "distributedInfo": {"rank": 3}}',
    ],
)
def test_commas_between_members(tmp_path: Path, text: str) -> None:
    trace = decode_bytes(tmp_path, text.encode(), name="t.json")
    assert trace.rank == 3
    assert codes(trace) <= {"bad-separator", "bad-metadata"}
    assert codes(trace)


def test_a_base_time_that_is_a_truth_value(tmp_path: Path) -> None:
    text = '{"baseTimeNanoseconds": true, "distributedInfo": {"rank": 3}, "traceEvents": []}'
    trace = decode_bytes(tmp_path, text.encode(), name="t.json")
    assert trace.metadata.base_time_ns == 0
    assert codes(trace) == {"bad-base-time"}


def test_many_garbage_bytes_between_many_members(tmp_path: Path) -> None:
    """Damage in more places than failed searches are allowed costs nothing while members follow."""
    events = [
        f'{{"ph":"X","cat":"kernel","name":"k{i}","pid":0,"tid":7,"ts":{i},"dur":1}}' for i in range(1500)
    ]
    data = gzip.compress(b"[") + b"".join(gzip.compress(one.encode() + b",\n") + b"zz" for one in events)
    trace = decode_bytes(tmp_path, data, name="a.json.gz")
    assert len(trace.events) == 1500
    (damaged,) = (one for one in trace.ledger if one.code == "damaged-gzip")
    assert damaged.count == 1499
