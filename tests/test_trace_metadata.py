"""Rank, host and world of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_helpers import codes, decode_bytes

from sp_profiler.ledger import Ledger
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.metadata import host_from_name, rank_from_name, read_metadata, worker_from_name
from sp_profiler.trace.write import TraceWriter


@pytest.mark.parametrize(
    ("name", "rank", "worker", "host"),
    [
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34, None, None),
        ("rank0.json", 0, None, None),
        ("rank0_trace.json", 0, None, None),
        ("rank-00012.pt.trace.json.gz", 12, None, None),
        ("sampled_rank-1.json.gz", 1, None, None),
        ("trace_RANK_7.json", 7, None, None),
        ("global_rank2.json", 2, None, None),
        ("worker3_step_12.1694128201557.pt.trace.json.gz", 3, 3, None),
        ("worker0.1623212756351.pt.trace.json.gz", None, 0, None),
        ("node7.example_4242.1694128201557.pt.trace.json.gz", None, None, "node7.example"),
        ("local_rank3.json", None, None, None),
        ("frank7.json", None, None, None),
        ("22_no_rank.json", None, None, None),
        ("mi250_minitoy_train_ROCm6_2_kineto.json.gz", None, None, None),
        ("rank.json", None, None, None),
    ],
)
def test_names(name: str, rank: int | None, worker: int | None, host: str | None) -> None:
    assert rank_from_name(f"/data/rank9/{name}") == rank
    assert worker_from_name(name) == worker
    assert host_from_name(name) == host


@pytest.mark.parametrize("stated", ["null", "-1", '"x"', "1.5", "true", "99999999999"])
def test_a_rank_that_is_none_falls_back_to_the_name(tmp_path: Path, stated: str) -> None:
    text = f'{{"distributedInfo":{{"rank":{stated}}},"traceEvents":[]}}'.encode()
    assert decode_bytes(tmp_path, text, name="rank5.json").rank == 5
    trace = decode_bytes(tmp_path, text, name="trace.json")
    assert (trace.rank, trace.metadata.rank_source) == (None, "unknown")
    assert codes(trace) == {"rank-unknown"}


def test_an_unrelated_rank_is_not_the_rank(tmp_path: Path) -> None:
    writer = TraceWriter(rank=None).cpu_op("x", 0, 1, rank=7, Rank=7)
    assert decode_trace(writer.write(tmp_path / "trace.json")).rank is None


def test_everything_a_file_says(tmp_path: Path) -> None:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
    writer = TraceWriter(rank=1, world_size=2, backend="gloo", pg_config=groups, host_name="a", cpu_only=True)
    writer.metadata |= {"traceName": "fit-[Strategy]}", "INFO": ["x" * 70_000], "with_stack": 1}
    trace = decode_trace(writer.cpu_op("x", 0, 1).write(tmp_path / "rank0.json"))
    metadata = trace.metadata
    assert (metadata.rank, metadata.rank_source, metadata.world_size) == (1, "distributedInfo", 2)
    assert (metadata.backend, metadata.host, metadata.schema_version) == ("gloo", "a", 1)
    assert metadata.groups == tuple(groups)
    assert metadata.top_level == {
        "schemaVersion": 1, "host_name": "a", "traceName": "fit-[Strategy]}", "with_stack": 1,
    }  # fmt: skip
    assert not metadata.has_device_properties
    assert trace.is_cpu_only


def test_metadata_of_any_type() -> None:
    odd = {"distributedInfo": [1], "deviceProperties": {"a": 1}, "schemaVersion": "1", "host_name": 3}
    metadata = read_metadata(odd, "rank4.json", Ledger())
    assert (metadata.rank, metadata.schema_version, metadata.host) == (4, 1, None)
    assert metadata.devices == metadata.groups == ()
