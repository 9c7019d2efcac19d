"""Columns, times and metadata of whole files, in every form in which files come."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_helpers import CHUNK_SIZES, codes, decode_bytes, entry, kernels, mixed_writer, names, same

from sp_profiler.errors import InputError
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.tables import NONE, Category
from sp_profiler.trace.write import TraceWriter, ns_to_text


def test_columns_of_a_small_trace(tmp_path: Path) -> None:
    writer = TraceWriter(rank=3, world_size=8).cpu_op(
        "aten::mm", 1, 2, external_id=11, sequence=5, fwd_thread=2, dims=[[2, 3], []], strides=[[3, 1], []],
        types=["float", ""], tid=140589156634432,
    )  # fmt: skip
    writer.kernel("gemm", 10.001, 20.5, launch=4, external_id=11, stream=7, device=2)
    trace = decode_trace(writer.write(tmp_path / "a.json"))
    events = trace.events
    assert names(trace) == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert events.category.tolist() == [Category.CPU_OP, Category.RUNTIME, Category.KERNEL]
    assert events.start_ns.tolist() == [1000, 4000, 10_001]
    assert events.dur_ns.tolist() == [2000, 1000, 20_500]
    assert events.end_ns.tolist() == [3000, 5000, 30_501]
    assert events.device.tolist() == [NONE, NONE, 2]
    assert events.stream.tolist() == [NONE, NONE, 7]
    assert events.correlation.tolist() == [NONE, 1, 1]
    assert events.external_id.tolist() == [11, 11, 11]
    assert events.sequence.tolist() == [5, NONE, NONE]
    assert events.fwd_thread.tolist() == [2, NONE, NONE]
    assert [trace.strings[code] for code in events.tid] == ["140589156634432", "100", "7"]
    assert [trace.strings[code] for code in events.dims] == ["[[2,3],[]]", None, None]
    assert [trace.strings[code] for code in events.strides] == ["[[3,1],[]]", None, None]
    assert [trace.strings[code] for code in events.types] == ['["float",""]', None, None]
    assert [trace.strings[code] for code in trace.flows.kind] == ["ac2g", "ac2g"]
    assert trace.flows.is_start.tolist() == [True, False]
    assert trace.flows.id.tolist() == [1, 1]
    assert trace.flows.ts_ns.tolist() == [4000, 10_001]
    assert (trace.rank, trace.metadata.world_size, trace.metadata.backend) == (3, 8, "nccl")
    assert trace.ledger == ()


def test_values_of_the_inputs_of_collectives_alone(tmp_path: Path) -> None:
    writer = TraceWriter()
    for name in ("c10d::allreduce_", "aten::mm", "_c10d_functional::all_reduce", "record_param_comms"):
        writer.cpu_op(name, 0, 1, **{"Concrete Inputs": ["", "", "False", "-1"]})
    writer.cpu_op("c10d::barrier", 2, 1).kernel("c10d::not_an_operator", 3, 1)
    text = writer.text()
    for data in (text, text.replace("aten::mm", 'aten::"mm')):  # the second is mended, event by event
        for chunk_bytes in CHUNK_SIZES:
            trace = decode_bytes(tmp_path, data.encode(), chunk_bytes=chunk_bytes)
            found = [trace.strings[code] for code in trace.events.concrete]
            kept = '["","","False","-1"]'
            assert found == [kept, None, kept, *[None] * (len(found) - 3)]
    mended = text.replace("c10d::allreduce_", 'c10d::"allreduce_')
    trace = decode_bytes(tmp_path, mended.encode())
    assert trace.strings[trace.events.concrete[0]] == '["","","False","-1"]'
    assert codes(trace)


def test_collective_metadata(tmp_path: Path) -> None:
    writer = TraceWriter().collective(
        "_allgather_base", 0, 1, ranks=[0, 2], group="7", description="tp", in_elements=8, seq=4,
        is_async=True,
        **{"Comms Id": 2**70, "Src Rank": 1, "Global rank start": 0, "Global rank stride": 2},
    )  # fmt: skip
    writer.kernel("plain", 5, 1)
    trace = decode_trace(writer.write(tmp_path / "a.json"))
    assert trace.events.collective.tolist() == [0, NONE]
    (args,) = trace.collectives
    assert (args.name, args.in_elements, args.out_elements, args.dtype) == (
        "_allgather_base",
        8,
        16,
        "BFloat16",
    )
    assert (args.group_name, args.group_description, args.group_ranks, args.group_size) == (
        "7",
        "tp",
        "[0, 2]",
        2,
    )
    assert (args.seq, args.is_async, args.src_rank, args.dst_rank) == (4, True, 1, None)
    assert (args.rank_start, args.rank_stride, args.comms_id) == (0, 2, str(2**70))


def test_memory_events(tmp_path: Path) -> None:
    writer = TraceWriter().memory(1.5, 512, address=2**63 + 8, total_allocated=600, total_reserved=1000)
    writer.memory(2, -512, device_type=0, device_id=-1)
    trace = decode_trace(writer.write(tmp_path / "a.json"))
    assert trace.memory.ts_ns.tolist() == [1500, 2000]
    assert trace.memory.bytes.tolist() == [512, -512]
    assert trace.memory.address.tolist() == [2**63 + 8, 0]
    assert trace.memory.total_allocated.tolist() == [600, NONE]
    assert trace.memory.device_type.tolist() == [1, 0]
    assert trace.memory.device_id.tolist() == [0, -1]


@pytest.mark.parametrize("base", [0, 1_719_853_884_000_000_000, -5])
@pytest.mark.parametrize("place", ["before", "after"])
def test_base_time_counts_wherever_it_stands(tmp_path: Path, base: int, place: str) -> None:
    events = '[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1212075548353.304,"dur":0.001}]'
    members = [f'"baseTimeNanoseconds":{base}', f'"traceEvents":{events}']
    text = "{" + ",".join(members if place == "before" else reversed(members)) + "}"
    trace = decode_bytes(tmp_path, text.encode())
    assert trace.events.start_ns.tolist() == [base + 1_212_075_548_353_304]
    assert trace.events.dur_ns.tolist() == [1]
    assert trace.metadata.base_time_ns == base


@pytest.mark.parametrize("base", ['"soon"', "1e30", "99999999999999999999", "[1]", "1.5"])
def test_a_base_time_that_is_none_is_an_assumption(tmp_path: Path, base: str) -> None:
    text = (
        TraceWriter().kernel("k", 1, 1).text().replace('{"schema', f'{{"baseTimeNanoseconds":{base},"schema')
    )
    trace = decode_bytes(tmp_path, text.encode())
    assert trace.events.start_ns.tolist() == [1000]
    assert entry(trace, "bad-base-time").severity == "assumption"


def test_old_schema(tmp_path: Path) -> None:
    text = """{"traceEvents": [
      {"ph": "X", "cat": "Operator", "name": "aten::add", "pid": 5, "tid": "5", "ts": 10, "dur": 3,
       "args": {"Device": 5, "External id": 2, "Input Dims": [ [1, 2], [] ]}},
      {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": "5", "ts": 11, "dur": 1,
       "args": {"cbid": 4, "correlation": 9, "external id": 2, "stream": "0x55d0"}},
      {"ph": "s", "id": 9, "pid": 5, "tid": 5, "ts": 11, "cat": "async", "name": "launch"},
      {"ph": "X", "cat": "Kernel", "name": "add", "pid": 1, "tid": "stream 7", "ts": 12, "dur": 2,
       "args": {"correlation": 9, "external id": 2}},
      {"ph": "X", "cat": "Memcpy", "name": "Memcpy DtoD", "pid": 1, "tid": "stream 7", "ts": 15, "dur": 2,
       "args": {"device": 0, "stream": 8}},
      {"ph": "X", "cat": "Memset", "name": "Memset", "pid": "Spans", "tid": "x", "ts": 18, "dur": 2}
    ]}"""
    trace = decode_bytes(tmp_path, text.encode())
    C = Category
    assert trace.events.category.tolist() == [C.CPU_OP, C.RUNTIME, C.KERNEL, C.MEMCPY, C.MEMSET]
    assert trace.events.device.tolist() == [NONE, NONE, 1, 0, NONE]
    assert trace.events.stream.tolist() == [NONE, NONE, 7, 8, NONE]
    assert trace.events.external_id.tolist() == [2, 2, 2, NONE, NONE]
    assert trace.strings[trace.events.dims[0]] == "[[1,2],[]]"
    assert trace.strings[trace.events.tid[0]] == trace.strings[trace.flows.tid[0]] == "5"
    assert trace.strings[trace.flows.kind[0]] == "async"


@pytest.mark.parametrize(
    ("cat", "name", "expected"),
    [
        ("cuda_driver", "cuLaunchKernelEx", Category.RUNTIME),
        ("xpu_runtime", "urEnqueueKernelLaunch", Category.RUNTIME),
        ("mtia_runtime", "x", Category.RUNTIME),
        ("privateuse1_runtime", "x", Category.RUNTIME),
        ("cuda_sync", "Stream Wait Event", Category.DEVICE_SYNC),
        ("kernel", "Context Sync", Category.DEVICE_SYNC),
        ("kernel", "Event Synchronize", Category.DEVICE_SYNC),
        ("kernel", "SyncBatchNorm_kernel", Category.KERNEL),
        ("gpu_user_annotation", "nccl:all_reduce", Category.DEVICE_ANNOTATION),
        ("user_annotation", "nccl:all_reduce", Category.CPU_ANNOTATION),
        ("python_function", "train.py(1): f", Category.PYTHON),
        ("overhead", "Activity Buffer Request", Category.OTHER),
        ("Trace", "PyTorch Profiler (0)", Category.OTHER),
        ("something new", "x", Category.OTHER),
    ],
)
def test_categories(tmp_path: Path, cat: str, name: str, expected: Category) -> None:
    trace = decode_trace(TraceWriter().complete(cat, name, 0, 1).write(tmp_path / "a.json"))
    assert trace.events.category.tolist() == [expected]


@pytest.mark.parametrize(
    "args", ["", ',"args":{}', ',"args":null', ',"args":{"stream":null,"correlation":"12"}']
)
def test_events_with_few_arguments(tmp_path: Path, args: str) -> None:
    event = f'{{"ph":"X","name":"k","ts":1,"dur":1{args}}}'
    trace = decode_bytes(tmp_path, f'{{"traceEvents":[{event}]}}'.encode())
    assert trace.events.category.tolist() == [Category.OTHER]
    assert trace.events.correlation.tolist() == [12 if "12" in args else NONE]
    assert trace.events.pid.tolist() == [NONE]
    assert codes(trace) == set()


def test_a_word_may_be_anything(tmp_path: Path) -> None:
    text = (
        '{"traceEvents":[{"ph":"X","name":["a"],"cat":["c"],"pid":{"x":1},"tid":1.5,"ts":1,"dur":1},'
        '{"ph":"X","name":7,"cat":null,"pid":7,"tid":"7","ts":1,"dur":1}]}'
    )
    trace = decode_bytes(tmp_path, text.encode())
    assert names(trace) == ['["a"]', "7"]
    assert trace.strings[trace.events.pid[0]] == '{"x":1}'
    assert trace.events.pid[1] == trace.events.tid[1] == trace.events.name[1]


def _packings(text: bytes) -> dict[str, bytes]:
    half = len(text) // 2
    return {
        "plain.json": text,
        "named_gz.json.gz": text,
        "gzip.json.gz": gzip.compress(text),
        "named_json.json": gzip.compress(text),
        "no_extension": gzip.compress(text),
        "members.json.gz": gzip.compress(text[:half]) + gzip.compress(b"") + gzip.compress(text[half:]),
        "padded.json.gz": gzip.compress(text) + b"\0" * 512,
        "stored.json.gz": gzip.compress(text, compresslevel=0),
        "bom.json": b"\xef\xbb\xbf" + text,
        "spaces.json": b" \n" + text + b"\n\n",
    }


@pytest.mark.parametrize("name", _packings(b"x"))
def test_however_it_is_packed(tmp_path: Path, name: str) -> None:
    text = mixed_writer().text().encode()
    trace = decode_bytes(tmp_path, _packings(text)[name], name=name)
    plain = decode_bytes(tmp_path, text)
    assert trace.events.start_ns.tolist() == plain.events.start_ns.tolist()
    assert trace.strings == plain.strings
    assert trace.ledger == plain.ledger == ()


def test_garbage_behind_gzip_is_noted(tmp_path: Path) -> None:
    trace = decode_bytes(
        tmp_path, gzip.compress(mixed_writer().text().encode()) + b"garbage", name="a.json.gz"
    )
    assert entry(trace, "trailing-garbage").severity == "note"


def test_a_wrong_checksum_costs_nothing_but_is_a_loss(tmp_path: Path) -> None:
    text = mixed_writer(200).text().encode()
    data = bytearray(gzip.compress(text))
    data[-8] ^= 1
    trace = decode_bytes(tmp_path, bytes(data), name="rank1.json.gz")
    assert len(trace.events) == len(decode_bytes(tmp_path, text).events)
    assert codes(trace) == {"bad-checksum"}
    assert trace.uncompressed_bytes == len(text)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_cut_gzip_keeps_what_zlib_can_give(tmp_path: Path, share: float) -> None:
    text = mixed_writer(300).text().encode()
    data = gzip.compress(text)
    data = data[: int(len(data) * share)]
    given_text = zlib.decompressobj(31).decompress(data)
    trace = decode_bytes(tmp_path, data, name="rank1.json.gz")
    assert trace.uncompressed_bytes == len(given_text)
    assert len(trace.events) == len(decode_bytes(tmp_path, given_text).events)
    assert "truncated-gzip" in codes(trace)
    assert entry(trace, "truncated-gzip").first_offset == len(given_text)


def test_damaged_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    text = mixed_writer(300).text().encode()
    data = bytearray(gzip.compress(text))
    middle = slice(len(data) // 2, len(data) // 2 + 100)
    data[middle] = bytes(byte ^ 0x55 for byte in data[middle])
    trace = decode_bytes(tmp_path, bytes(data), name="rank1.json.gz")
    assert len(trace.events) > 300
    assert codes(trace) & {"damaged-gzip", "bad-checksum"}


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("empty.json", b"", "is empty"),
        ("blank.json", b" \n ", "is empty"),
        ("empty.json.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("page.html", b"<!DOCTYPE html><html></html>", "is not a trace"),
        ("other.json", b'{"a": [1, 2], "b": {"traceEvent": 1}}', "is not a trace"),
        ("list.json", b"[1, 2, 3]", "is not a trace"),
        ("nothing.json", b"[]", "is not a trace"),
        ("objects.json", b'[{"a": 1}]', "is not a trace"),
        ("null.json", b'{"traceEvents": null}', "is not a trace"),
        ("noise.json", bytes(range(256)) * 20, "is not a trace"),
        ("cut.json", b'{"schemaVersion": 1, "device', "is cut off before its first event"),
        ("run.nsys-rep", b"whatever", "is an Nsight file"),
        ("run.sqlite", b"SQLite format 3\0....", "is an Nsight file"),
        ("renamed.json", b"SQLite format 3\0....", "is an Nsight file"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(
    tmp_path: Path, name: str, data: bytes, sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        decode_bytes(tmp_path, data, name=name)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / name))
    assert sentence in message
    assert message.count("\n") == 0


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        decode_trace(str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="is a folder"):
        decode_trace(str(tmp_path))


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (Limits(inflated_bytes=1000), "unpacks to more than 1000 bytes"),
        (Limits(events=5), "holds more than 5 events"),
        (Limits(string_bytes=10), "holds a string of more than 10 bytes"),
        (Limits(distinct_string_bytes=40), "more than 40 bytes of distinct strings"),
    ],
)
def test_limits(tmp_path: Path, limits: Limits, sentence: str) -> None:
    data = gzip.compress(mixed_writer().text().encode())
    for size in CHUNK_SIZES:
        with pytest.raises(InputError, match=sentence):
            decode_bytes(tmp_path, data, limits=limits, chunk_bytes=size)


def test_a_gzip_bomb_is_stopped(tmp_path: Path) -> None:
    bomb = gzip.compress(b'{"traceEvents":[' + b" " * (1 << 25))
    with pytest.raises(InputError, match="unpacks to more than 1048576 bytes"):
        decode_bytes(tmp_path, bomb, limits=Limits(inflated_bytes=1 << 20))


@pytest.mark.parametrize("size", CHUNK_SIZES)
@pytest.mark.parametrize(
    "nested",
    [
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"traceEvents":[]}',
        b'{"traceEvents":[{"ph":"X","ts":1,"dur":1,"args":{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}",
        b'{"traceEvents":[{"ph":"X","ts":1,"dur":1,"args":{"Input Dims":' + b'{"a":' * 50_000,
    ],
)
def test_deep_nesting_is_refused(tmp_path: Path, nested: bytes, size: int) -> None:
    with pytest.raises(InputError, match="nests lists and objects more than 200 deep"):
        decode_bytes(tmp_path, nested, chunk_bytes=size)


def test_a_value_too_long_for_metadata(tmp_path: Path) -> None:
    data = b'{"log":"' + b"x" * 3_000_000 + b'","traceEvents":[]}'
    with pytest.raises(InputError, match="more than 1000 bytes under 'log'"):
        decode_bytes(tmp_path, data, limits=Limits(metadata_bytes=1000))


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NS = st.integers(0, 2**61)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    events=st.lists(
        st.tuples(_TEXTS, _NS, st.integers(0, 10**15), st.integers(0, 2**62), st.integers(0, 15)), max_size=12
    ),
    base=st.integers(0, 2**61),
    packed=st.booleans(),
    chunk=st.sampled_from([1, 50, 300, 1 << 20]),
)
def test_what_is_written_is_read(tmp_path: Path, events, base: int, packed: bool, chunk: int) -> None:
    writer = TraceWriter(rank=2, world_size=4, base_time_ns=base)
    for name, start, dur, correlation, stream in events:
        writer.kernel(name, ns_to_text(start), ns_to_text(dur), correlation=correlation, stream=stream)
    trace = decode_trace(writer.write(tmp_path / ("a.json.gz" if packed else "a.json")), chunk_bytes=chunk)
    assert names(trace) == [event[0] for event in events]
    assert trace.events.start_ns.tolist() == [event[1] + base for event in events]
    assert trace.events.dur_ns.tolist() == [event[2] for event in events]
    assert trace.events.correlation.tolist() == [event[3] for event in events]
    assert trace.events.stream.tolist() == [event[4] for event in events]
    assert kernels(trace) == len(events)
    assert codes(trace) <= {"far-away-event"}  # the times drawn are far apart


def test_any_chunk_size_gives_the_same(tmp_path: Path) -> None:
    text = mixed_writer(40).text()
    pretty = json.dumps(json.loads(text), indent=2)
    for form in (text, pretty, json.dumps(json.loads(text)), json.dumps(json.loads(text), sort_keys=True)):
        whole = decode_bytes(tmp_path, form.encode())
        assert len(whole.events) == 123
        assert whole.ledger == ()
        for size in (1, 63, 64, 100, 333, 1000, 4096, 1 << 14):
            assert same(decode_bytes(tmp_path, form.encode(), chunk_bytes=size), whole)


def test_strings_are_sorted_and_distinct(tmp_path: Path) -> None:
    pool = decode_bytes(tmp_path, mixed_writer().text().encode()).strings.pool
    assert pool == sorted(set(pool))


def test_dtypes(tmp_path: Path) -> None:
    trace = decode_bytes(tmp_path, b'{"traceEvents":[]}')
    assert len(trace.events) == 0
    assert trace.events.start_ns.dtype == np.int64
    assert trace.events.category.dtype == np.int8
    assert trace.memory.address.dtype == np.uint64
    assert trace.flows.is_start.dtype == np.bool_
