"""Events with every kind of value in every place: plain ones, odd ones, and what is no JSON; and what both
decoders read from a text."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator

from trace_helpers import same

from sp_profiler.errors import InputError
from sp_profiler.trace.decode import CHUNK_BYTES, decode_open
from sp_profiler.trace.native import VARIABLE
from sp_profiler.trace.schema import Args
from sp_profiler.trace.tables import Trace

VALUES = (
    b"0", b"7", b"-1", b"-0", b"-0.0", b"01", b"1.", b".5", b"+1", b"1e3", b"1E+2", b"1e999", b"-1e-5",
    b"0.0005", b"0.0015", b"12.3456", b"12.34549999", b"5.5000000000000001", b"1700000000123456.789",
    b"99999999999999999.5", b"4611686018427387", b"4602678819172646.912", b"4602678819172646.913",
    b"2592000000000", b"2592000000000.001", b"2147483648", b"-2147483649", b"999999999999999999",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551615", b"18446744073709551616",
    b"123456789012345678901234567890", b"true", b"false", b"null", b"nul", b"NaN", b"Infinity",
    b"-Infinity", b'""', b'"X"', b'"i"', b'"s"', b'"f"', b'"M"', b'"B"', b'"E"', b'"XX"', b'"7"',
    b'" 7 "', b'"12.5"', b'"inf"', b'"[memory]"', b'"\\u005bmemory]"', b'"[OutOfMemory]"', b'"kernel"',
    b'"Kernel"', b'"c10d::x"', b'"\\u0063\\u0031\\u0030d::x"', b'"_c10d_functional::y"',
    b'"a\\n\\t\\"\\\\\\/\\b\\f\\r"', b'"\\u00e9"', b'"\\ud83d\\ude00"', b'"\\ud83d"', b'"\\ude00"',
    b'"\\ud83dx"', b'"\\x"', b'"\\u12"', b'"\\u12g4"', b'"\x01"', b'"\x7f"', b'"\xc3\xa9"',
    b'"\xf0\x9f\x98\x80"', b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"open', b'"traceEvents"',
    b'"x \\"traceEvents\\" y"', b"[]", b"[1, 2]", b"[[4096, 768],[ 768 ,2304]]", b'["float", ""]',
    b"[1,]", b"[,]", b"[1 2]", b"{}", b'{"a": 1}', b'{"a": {"b": [null, {"c": "d"}]}}', b'{"a"}',
    b'{"a":}', b"{,}", b"{'a': 1}", b'{"a":1,}', b"[" * 63 + b"]" * 63, b"[" * 70 + b"]" * 70,
    b"[" * 199 + b"]" * 199, b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", b'{"a":' + b"[" * 64 + b"]" * 65,
    b"// x", b"",
)  # fmt: skip
EVENT_KEYS = (
    b"ph",
    b"cat",
    b"name",
    b"pid",
    b"tid",
    b"ts",
    b"dur",
    b"id",
    b"args",
    b"s",
    b"other",
    b"n\\u0061me",
)
ARGS_KEYS = (*(key.encode() for key in Args.__struct_encode_fields__), b"other", b"str\\u0065am")

_KERNEL = (
    (b"ph", b'"X"'), (b"cat", b'"kernel"'), (b"name", b'"gemm"'), (b"pid", b"0"), (b"tid", b'"stream 7"'),
    (b"ts", b"5.25"), (b"dur", b"2"),
)  # fmt: skip
_MEMORY = (
    (b"ph", b'"i"'), (b"cat", b'"cpu_instant_event"'), (b"name", b'"[memory]"'), (b"pid", b"1"),
    (b"tid", b"2"), (b"ts", b"6.125"), (b"s", b'"t"'),
)  # fmt: skip
_FLOW = (
    (b"ph", b'"s"'), (b"id", b"12"), (b"pid", b"1"), (b"tid", b"2"), (b"ts", b"7"), (b"cat", b'"ac2g"'),
    (b"name", b'"ac2g"'),
)  # fmt: skip
_COLLECTIVE = (
    (b"Collective name", b'"allreduce"'), (b"In msg nelems", b"4"), (b"Process Group Ranks", b'"[0, 1]"'),
    (b"Seq", b"3"), (b"stream", b"20"), (b"External id", b"9"), (b"Concrete Inputs", b'["", "[1]"]'),
)  # fmt: skip
_BLOCK = (
    (b"Bytes", b"-512"), (b"Addr", b"140000000000000"), (b"Total Allocated", b"4096"), (b"Device Type", b"1"),
    (b"Device Id", b"0"),
)  # fmt: skip
NEIGHBOUR = (
    b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":2,"ts":1,"dur":3,"args":{"External id":4}}'
)


def members(pairs: tuple[tuple[bytes, bytes], ...]) -> bytes:
    return b"{" + b",".join(b'"' + key + b'": ' + value for key, value in pairs) + b"}"


def _with(
    pairs: tuple[tuple[bytes, bytes], ...], key: bytes, value: bytes
) -> tuple[tuple[bytes, bytes], ...]:
    """The members with one replaced, or added at the end."""
    if any(name == key for name, _ in pairs):
        return tuple((name, value if name == key else old) for name, old in pairs)
    return (*pairs, (key, value))


def events_with(value: bytes) -> Iterator[bytes]:
    """Events of every sort with this value in each place in turn."""
    for event, args in ((_KERNEL, _COLLECTIVE), (_MEMORY, _BLOCK), (_FLOW, ())):
        whole = (*event, (b"args", members(args)))
        for key in EVENT_KEYS:
            yield members(_with(whole, key, value))
        if args:
            for key in ARGS_KEYS:
                yield members((*event, (b"args", members(_with(args, key, value)))))


def event_pairs() -> Iterator[bytes]:
    """Events with a member twice, without one, and with nothing."""
    for event, args in ((_KERNEL, _COLLECTIVE), (_MEMORY, _BLOCK), (_FLOW, ())):
        whole = (*event, (b"args", members(args)))
        for place in range(len(whole)):
            yield members((*whole, whole[place]))
            yield members((*whole[:place], *whole[place + 1 :]))
        for place in range(len(args)):
            yield members((*event, (b"args", members((*args, args[place])))))
    yield from (b"{}", b"{ }", b"[]", b"7", b"null", b'"x"', b"{,}", b"{]", b"", b"\0\0", b"garbage")


def events_going_on() -> Iterator[bytes]:
    """Events with text behind them that is no separator: a raw quote may have closed them too early."""
    rests = (
        b'": 6.125, "s": "t"}',
        b'": 6.125, "args": {"Bytes": -512, "Addr": 1}}',
        b'"}',
        b'x"}',
        b": 7}",
        b'"',
    )
    for event, args in ((_KERNEL, _COLLECTIVE), (_MEMORY, _BLOCK), (_FLOW, ())):
        whole = members((*event, (b"args", members(args)), (b"s", b'"t"')))
        for rest in (*rests, *(bytes((byte,)) for byte in b"x7:}]{[\0\\'/\xc3"), b"{}", b"[]"):
            yield from (whole + rest, whole + b" \n" + rest)


def document(*events: bytes) -> bytes:
    """A trace of these events, each between two plain ones."""
    rows = [NEIGHBOUR]
    for event in events:
        rows += [event, NEIGHBOUR]
    return b'{"schemaVersion":1,"traceEvents":[\n' + b",\n".join(rows) + b"\n]}"


def read_by(decoder: str, decode: Callable[[], Trace]) -> Trace | str:
    """What this decoder reads, or the sentence with which it refuses."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = decoder
    try:
        return decode()
    except InputError as error:
        return str(error)
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def by_both(decode: Callable[[], Trace]) -> tuple[Trace | str, bool]:
    """What the compiled decoder reads; and whether the Python one reads the same: columns, strings, ledger,
    sentence."""
    native = read_by("native", decode)
    return native, same(read_by("python", decode), native)


def decoding(data: bytes, chunk_bytes: int = CHUNK_BYTES, **options) -> Callable[[], Trace]:
    return lambda: decode_open(io.BytesIO(data), "rank0.json", chunk_bytes=chunk_bytes, **options)


def read_by_both(data: bytes, chunk_bytes: int = CHUNK_BYTES, **options) -> tuple[Trace | str, bool]:
    """The same of a text."""
    return by_both(decoding(data, chunk_bytes, **options))
