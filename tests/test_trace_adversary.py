"""Damage that once cost more than it had to: an event, another writer's events, or the rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_helpers import CHUNK_SIZES, HEAD, TAIL, codes, decode_bytes, entry, event_text, names, same


def _event(name: bytes = b"ok", args: bytes = b'"stream":7') -> bytes:
    return event_text(b'"' + name + b'"', args=args + b',"correlation":9')


@pytest.mark.parametrize(
    ("damaged", "code", "name"),
    [
        (_event(b'{"name": "x", "ts": 9}'), "unescaped-quote", '{"name": "x", "ts": 9}'),
        (_event(b'a"} b'), "unescaped-quote", 'a"} b'),
        (_event(b"C:\\dir\\"), "bad-escape", "C:\\dir\\"),
        (_event(args=b'"path":"C:\\dir\\","stream":7'), "bad-escape", "gemm"),
        (_event(args=b'"dtype":"BFloat16,"stream":7'), "lost-quote", "gemm"),
        (_event(args=b'"dtype":"BFloat16" "stream":7'), "lost-comma", "gemm"),
        (_event(args=b'"description":"{"a": [0, 1], "b": 2}","stream":7'), "unescaped-quote", "gemm"),
        (_event(args=b'"ranks":[0, 1, ...],"stream":7'), "unreadable-value", "gemm"),
        (_event(args=b'"ranks":[0, 1, ...,"stream":7'), "unreadable-value", "gemm"),
        (_event(args=b'"x":0x7f,"stream":7'), "unreadable-value", "gemm"),
        (_event(args=b'"x":1.#INF,"stream":7'), "non-finite-number", "gemm"),
    ],
)
def test_the_event_is_kept(tmp_path: Path, damaged: bytes, code: str, name: str) -> None:
    damaged = damaged.replace(b'"ok"', b'"gemm"')
    text = HEAD + _event() + b",\n" + damaged + b",\n" + _event() + TAIL
    trace = decode_bytes(tmp_path, text)
    assert names(trace) == ["ok", name, "ok"]
    assert trace.events.start_ns.tolist() == [5000] * 3
    assert trace.events.correlation.tolist() == [9] * 3
    assert trace.events.stream.tolist() == [7] * 3
    assert entry(trace, code).severity == "repair"
    assert entry(trace, code).first_offset == text.index(damaged)
    for size in CHUNK_SIZES:
        assert same(decode_bytes(tmp_path, text, chunk_bytes=size), trace)


@pytest.mark.parametrize("comma", [b"", b",\n"])
def test_a_whole_document_between_events(tmp_path: Path, comma: bytes) -> None:
    theirs = HEAD + _event(b"theirs") + TAIL
    text = HEAD + _event(b"first") + comma + theirs + b",\n" + _event(b"last") + TAIL
    trace = decode_bytes(tmp_path, text)
    assert names(trace) == ["first", "theirs", "last"]
    assert "stray-text" in codes(trace)
    for size in CHUNK_SIZES:
        assert same(decode_bytes(tmp_path, text, chunk_bytes=size), trace)


@pytest.mark.parametrize("before", [b'"ts":', b'"ts":5.0,"args":{"x":'])
def test_an_event_that_follows_a_cut_value(tmp_path: Path, before: bytes) -> None:
    text = HEAD + b'{"ph":"X","name":"cut",' + before + _event() + b",\n" + _event(b"last") + TAIL
    assert {"ok", "last"} <= set(names(decode_bytes(tmp_path, text)))


@pytest.mark.parametrize("cut", [60, 75, 90, 105, 112, 118])
def test_an_event_that_follows_one_cut_where_keys_are_sorted(tmp_path: Path, cut: int) -> None:
    """A file that another program wrote again with its keys in order."""
    event = '{"args": {"device": 0, "stream": 7}, "cat": "kernel", "dur": 1.5, "name": "%s", "ph": "X", '
    event += '"pid": 0, "tid": 7, "ts": 12.25}'
    whole = [(event % name).encode() for name in ("ok", "cut", "next", "last")]
    text = HEAD + whole[0] + b", " + whole[1][:cut] + whole[2] + b", " + whole[3] + TAIL
    found = decode_bytes(tmp_path, text)
    assert {"ok", "next", "last"} <= set(names(found))
    assert codes(found) & {"bad-event", "lost-bracket", "lost-quote", "empty-value", "unreadable-value"}


def test_no_bracket_before_the_events(tmp_path: Path) -> None:
    trace = decode_bytes(tmp_path, _event(b"first") + b"\n" + _event(b"last"))
    assert names(trace) == ["first", "last"]
    assert {"bad-metadata", "bad-separator", "truncated-file"} == codes(trace)


def test_an_object_that_is_no_event_is_counted(tmp_path: Path) -> None:
    text = HEAD + b'{},\n{"a":1},\n' + _event() + TAIL
    trace = decode_bytes(tmp_path, text)
    assert entry(trace, "bad-event").count == 1
    for size in CHUNK_SIZES[:2]:
        assert codes(decode_bytes(tmp_path, text, chunk_bytes=size)) == {"bad-event"}


@pytest.mark.parametrize(
    "members",
    [
        b'"distributedInfo":{"rank":3,"x":inf}',
        b'"distributedInfo":{"rank":3,"x":,"y":1}',
        b'"distributedInfo":{"groups":[{"desc":"a "q" b"}],"rank":3}',
        b'"x":"C:\\dir\\","distributedInfo":{"rank":3}',
        b'"x":"no end,"distributedInfo":{"rank":3}',
        b'"x":{"a":1}},"distributedInfo":{"rank":3}',
    ],
)
def test_the_rank_beside_damage(tmp_path: Path, members: bytes) -> None:
    events = b'"traceEvents":[' + _event() + b"]"
    for text in (b"{" + members + b"," + events + b"}", b"{" + events + b"," + members + b"}"):
        trace = decode_bytes(tmp_path, text)
        assert names(trace) == ["ok"]
        assert trace.rank == 3
        assert codes(trace) & {"bad-metadata", "stray-text"}
