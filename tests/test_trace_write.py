"""The writer of synthetic traces writes what it says."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from sp_profiler.trace.write import TraceWriter, collective_args, micros_to_ns, ns_to_text


@pytest.mark.parametrize(
    ("micros", "ns"),
    [
        (1, 1000),
        (0.001, 1),
        ("1778655624745710.730", 1_778_655_624_745_710_730),
        (Decimal("2.5"), 2500),
        (-1, -1000),
    ],
)
def test_micros(micros, ns: int) -> None:
    assert micros_to_ns(micros) == ns
    assert micros_to_ns(ns_to_text(ns)) == ns


def test_less_than_a_nanosecond_is_refused() -> None:
    with pytest.raises(ValueError, match="not a whole number of nanoseconds"):
        TraceWriter().kernel("k", 0.0001, 1)


def test_the_text_is_json_with_the_drawn_events() -> None:
    writer = (
        TraceWriter(rank=1, world_size=2).kernel("gemm", 10, 20.001, launch=5, external_id=3).step(4, 0, 50)
    )
    content = json.loads(writer.text(), parse_float=str)
    assert content["distributedInfo"] == {"backend": "nccl", "rank": 1, "world_size": 2}
    launch, start, kernel, end, step = content["traceEvents"]
    assert (launch["cat"], launch["ts"], launch["args"]["correlation"]) == ("cuda_runtime", "5.000", 1)
    assert (start["ph"], start["ts"], end["ph"], end["ts"]) == ("s", "5.000", "f", "10.000")
    assert (kernel["ts"], kernel["dur"], kernel["args"]["stream"]) == ("10.000", "20.001", 7)
    assert (step["name"], step["dur"]) == ("ProfilerStep#4", "50.000")


@pytest.mark.parametrize(
    ("op", "elements", "kernel"),
    [
        ("allreduce", (8, 8), "AllReduce_Sum_bf16"),
        ("_allgather_base", (8, 32), "AllGather"),
        ("reduce_scatter_tensor_coalesced", (8, 2), "ReduceScatter"),
        ("broadcast", (8, 8), "Broadcast"),
        ("all_to_allv", (8, 8), "SendRecv"),
        ("send", (8, 8), "SendRecv"),
        ("reduce", (8, 8), "Reduce"),
    ],
)
def test_collectives(op: str, elements: tuple[int, int], kernel: str) -> None:
    args = collective_args(op, ranks=[0, 1, 2, 3], in_elements=8)
    assert (args["In msg nelems"], args["Out msg nelems"]) == elements
    assert args["Process Group Ranks"] == "[0, 1, 2, 3]"
    (event,) = TraceWriter().collective(op, 0, 1).events
    assert event["name"].startswith(f"ncclDevKernel_{kernel}_RING")
    (bare,) = TraceWriter().collective(op, 0, 1, metadata=False).events
    assert "Collective name" not in bare["args"]


def test_files_are_packed_by_their_name(tmp_path: Path) -> None:
    writer = TraceWriter().gloo("all_reduce", 0, 1, dims=[[3]])
    assert Path(writer.write(tmp_path / "a.json")).read_text() == writer.text()
    assert Path(writer.write(tmp_path / "a.json.gz")).read_bytes()[:2] == b"\x1f\x8b"
