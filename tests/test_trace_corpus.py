"""Every real trace decodes whole: as many events as json.load finds, exact times, an empty ledger."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest
from conftest import SHARED
from trace_helpers import same

from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.tables import Category

FILES = sorted(path.relative_to(SHARED / "corpus").as_posix() for path in (SHARED / "corpus").glob("*/*.gz"))
CATEGORIES = {
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "user_annotation": Category.CPU_ANNOTATION,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "python_function": Category.PYTHON,
    "trace": Category.OTHER,
}


@pytest.mark.shared
def test_there_are_files() -> None:
    assert len(FILES) == 17


@pytest.mark.shared
@pytest.mark.parametrize("name", FILES)
def test_against_json(shared: Path, name: str) -> None:
    path = shared / "corpus" / name
    content = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    complete = [event for event in content["traceEvents"] if event["ph"] == "X"]
    base = content.get("baseTimeNanoseconds", 0)
    trace = decode_trace(str(path))
    events = trace.events
    assert len(events) == len(complete)
    assert events.start_ns.tolist() == [int(Decimal(event["ts"]) * 1000) + base for event in complete]
    assert events.dur_ns.tolist() == [int(Decimal(event["dur"]) * 1000) for event in complete]
    assert events.category.tolist() == [CATEGORIES[event["cat"].lower()] for event in complete]
    assert [trace.strings[code] for code in events.name] == [event["name"] for event in complete]
    arguments = [event.get("args", {}) for event in complete]
    assert events.correlation.tolist() == [args.get("correlation", -1) for args in arguments]
    external = [args.get("External id", args.get("external id", -1)) for args in arguments]
    assert events.external_id.tolist() == external
    assert [code >= 0 for code in events.collective] == ["Collective name" in args for args in arguments]
    flows = sum(event["ph"] in ("s", "f") for event in content["traceEvents"])
    assert len(trace.flows.id) == flows
    memory = [event for event in content["traceEvents"] if event["name"] == "[memory]"]
    assert trace.memory.bytes.tolist() == [event["args"]["Bytes"] for event in memory]
    assert {entry.code for entry in trace.ledger} <= {"rank-unknown"}


@pytest.mark.shared
@pytest.mark.parametrize("name", FILES)
def test_rank(shared: Path, name: str) -> None:
    expected = json.loads((shared / "corpus" / "expected.json").read_text())[name]["rank"]
    assert decode_trace(str(shared / "corpus" / name)).rank == expected


@pytest.mark.shared
def test_chunk_sizes(shared: Path) -> None:
    path = str(next((shared / "corpus" / "bert_h100").glob("*.gz")))
    whole = decode_trace(path)
    for size in (2000, 50_000, 1 << 24):
        assert same(decode_trace(path, chunk_bytes=size), whole)
