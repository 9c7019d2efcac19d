"""CPU-only (gloo) traces drawn by hand: self time, and which launch a gloo range belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sp_profiler.classify import classify
from sp_profiler.classify.blocking import declared_async
from sp_profiler.classify.cpu import computes
from sp_profiler.classify.tables import UNKNOWN_STEP, Classified, Collective, Kind, Phase, Role
from sp_profiler.record.annotate import format_range
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.tables import Trace
from sp_profiler.trace.write import TraceWriter

FLOAT = {"Input type": ["float"]}
EVALUATE = "autograd::engine::evaluate_function: "
PG = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]


def draw(**options: Any) -> TraceWriter:
    return TraceWriter(world_size=2, backend="gloo", cpu_only=True, **options)


def read(writer: TraceWriter, folder: Path) -> tuple[Trace, Classified]:
    trace = decode_trace(writer.write(folder / "rank0.json"))
    classified = classify(trace)
    assert classified.is_cpu_only
    assert classified.cpu_comm_ns is None
    return trace, classified


def spans(trace: Trace, classified: Classified, kind: Kind) -> list[tuple[str | None, int, int]]:
    """(name, start, end) in µs."""
    a = classified.activities
    return [
        (trace.strings[a.name[i]], int(a.start_ns[i]) // 1000, int(a.end_ns[i]) // 1000)
        for i in range(len(a))
        if a.kind[i] == kind
    ]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("aten::mm", True),
        ("aten::convolution_backward", True),
        ("torchvision::nms", True),
        ("mylib::fused_thing", True),
        ("c10d::allreduce_", False),
        ("_c10d_functional::wait_tensor", False),
        ("_c10d_functional_autograd::all_gather_into_tensor", False),
        ("record_param_comms", False),
        ("autograd::engine::evaluate_function: MmBackward0", False),
        ("torch::autograd::AccumulateGrad", False),
        ("MmBackward0", False),
        ("mylib::ThingBackward", False),
        ("Optimizer.step#AdamW.step", False),
        ("gloo:all_reduce", False),
        ("sp::fwd|module=m", False),
        ("ProfilerStep#3", False),
        ("detach", False),
        ("MyFunction", False),
    ],
)
def test_computes(name: str, counts: bool) -> None:
    assert computes(name) is counts


def test_innermost_operators_self_time(tmp_path: Path) -> None:
    """
    thread 100  |node 0-60   |linear 5-50   |mm 10-40 |empty 20-25|       |c10d 52-58|
    ranges (sp::, ProfilerStep) cover nothing; the node and c10d count for nobody.
    """
    writer = draw().step(1, 0, 100)
    writer.cpu_op("autograd::engine::evaluate_function: LinearBackward0", 0, 60)
    writer.cpu_op("aten::linear", 5, 45).range(format_range("dgrad", module="m"), 8, 35)
    writer.cpu_op("aten::mm", 10, 30).cpu_op("aten::empty", 20, 5).cpu_op("c10d::allreduce_", 52, 6)
    trace, classified = read(writer, tmp_path)
    assert spans(trace, classified, Kind.COMPUTATION) == [
        ("aten::linear", 5, 10),
        ("aten::mm", 10, 20),
        ("aten::empty", 20, 25),
        ("aten::mm", 25, 40),
        ("aten::linear", 40, 50),
    ]
    a = classified.activities
    assert [Role(r).name for r in a.role] == ["OTHER", "DGRAD", "DGRAD", "DGRAD", "OTHER"]
    assert [Phase(p).name for p in a.phase] == ["BACKWARD"] * 5
    assert a.is_gemm.tolist() == [False, True, False, True, False]
    assert a.launch_ns.tolist() == [5000, 10_000, 20_000, 10_000, 5000]  # where its operator began
    assert set(a.step.tolist()) == {1}
    assert {trace.strings[trace.events.name[n]] for n in a.node} == {
        "autograd::engine::evaluate_function: LinearBackward0"
    }


def test_worker_threads_do_not_compute_but_senders_do(tmp_path: Path) -> None:
    """Operators on a thread that carries a gloo range are gloo's; send and recv run on the caller's."""
    writer = draw().gloo("all_reduce", 0, 10, tid=200).cpu_op("aten::add_", 2, 3, tid=200)
    writer.cpu_op("aten::copy_", 20, 3, tid=200)
    writer.gloo("send", 0, 10, tid=100).cpu_op("aten::mm", 4, 3, tid=100)
    trace, classified = read(writer, tmp_path)
    assert spans(trace, classified, Kind.COMPUTATION) == [("aten::mm", 4, 7)]
    assert spans(trace, classified, Kind.COMMUNICATION) == [("gloo:all_reduce", 0, 10), ("gloo:send", 0, 10)]
    assert classified.activities.stream.tolist() == [0, 1, 1]
    assert [c.bandwidth_known for c in classified.collectives] == [True, False]
    assert [(e.code, e.severity, e.count) for e in classified.ledger] == [
        ("p2p-interval-is-post-to-wait", "assumption", 1)
    ]


def test_a_send_that_nothing_claims_launched_itself(tmp_path: Path) -> None:
    """Its range runs on the calling thread from post to wait: step, phase, module and launch are known."""
    writer = draw().step(3, 0, 50).cpu_op("MyFunctionBackward", 5, 40, fwd_thread=1)
    writer.range("sp::dgrad|module=m|layer=2", 6, 30).gloo("send", 10, 20, tid=100).cpu_op("aten::mm", 12, 5)
    writer.gloo("all_reduce", 60, 5, tid=200)
    _, classified = read(writer, tmp_path)
    sent, reduced = classified.collectives
    assert (sent.op, sent.launch_ns, sent.wait_end_ns) == ("send_recv", 10_000, 30_000)
    assert (sent.module, sent.layer, sent.group) == ("m", 2, None)
    place = sent.activity
    assert classified.activities.step[place] == 3
    assert classified.activities.phase[place] == Phase.BACKWARD
    assert (reduced.launch_ns, classified.activities.step[reduced.activity]) == (None, UNKNOWN_STEP)


def test_gloo_filed_as_an_operator(tmp_path: Path) -> None:
    writer = draw().cpu_op("gloo:all_reduce", 0, 10, tid=200).cpu_op("aten::mm", 0, 4)
    trace, classified = read(writer, tmp_path)
    assert spans(trace, classified, Kind.COMMUNICATION) == [("gloo:all_reduce", 0, 10)]
    assert spans(trace, classified, Kind.COMPUTATION) == [("aten::mm", 0, 4)]


def test_a_functional_collective_waits_inside_an_outer_operator(tmp_path: Path) -> None:
    writer = draw().cpu_op("aten::mm", 0, 30).cpu_op("_c10d_functional::wait_tensor", 5, 20)
    trace, classified = read(writer, tmp_path)
    assert spans(trace, classified, Kind.COMPUTATION) == [("aten::mm", 0, 5), ("aten::mm", 25, 30)]


# ---------------------------------------------------------------- matching gloo ranges to launches


def comm(op: str, seq: int, elements: int, *, is_async: bool = True, **fields: Any) -> str:
    named = {"op": op, "group": "tp[0,1]", "bytes": 4 * elements, "dtype": "float32", "seq": seq}
    return format_range("comm", async_=is_async, **(named | fields))


def wait(seq: int) -> str:
    return format_range("wait", op="all_reduce", group="tp[0,1]", seq=seq)


def by_seq(classified: Classified) -> list[int | None]:
    return [c.seq for c in classified.collectives]


def test_an_asynchronous_collective_with_all_its_metadata(tmp_path: Path) -> None:
    writer = draw().step(3, 0, 100).cpu_op("autograd::engine::evaluate_function: X", 5, 60)
    fields = {"purpose": "dgrad", "partner": "wgrad", "module": "m.q", "layer": 2}
    writer.range(comm("all_reduce", 0, 64, **fields), 10, 2).gloo("all_reduce", 15, 20, dims=[[8, 8]])
    writer.range(wait(0), 30, 8)
    _, classified = read(writer, tmp_path)
    assert classified.collectives == (
        Collective(
            activity=0,
            op="all_reduce",
            group=classified.groups[0],
            bytes=256,
            dtype="float32",
            seq=0,
            is_async=True,
            purpose="dgrad",
            purpose_rule="annotation",
            module="m.q",
            layer=2,
            partner_what="wgrad",
            launch_ns=10_000,
            launch_end_ns=12_000,
            wait_start_ns=30_000,
            wait_end_ns=38_000,
        ),
    )
    a = classified.activities
    assert (a.launch_ns[0], a.step[0], a.phase[0], a.range_start_ns[0]) == (10_000, 3, Phase.BACKWARD, 10_000)
    assert a.node[0] >= 0
    assert classified.groups[0].key == "tp[0,1]"
    assert classified.ledger == ()


def test_names_and_dimensions_tell_ranges_apart(tmp_path: Path) -> None:
    """A reduce-scatter shows as all-reduce of its input; an all-gather shows its shard."""
    writer = draw().range(comm("all_reduce", 0, 64), 0, 1).range(comm("reduce_scatter", 1, 32), 2, 1)
    writer.range(comm("all_gather", 2, 64), 4, 1).range(comm("all_to_all", 3, 64), 6, 1)
    writer.gloo("all_to_all", 10, 5, dims=[[8, 8]]).gloo("all_reduce", 11, 5, dims=[[4, 8]])
    writer.gloo("all_reduce", 12, 5, dims=[[8, 8]]).gloo("all_gather", 13, 5, dims=[[4, 8]])
    for seq in range(4):
        writer.range(wait(seq), 20 + seq, 1)
    _, classified = read(writer, tmp_path)
    assert by_seq(classified) == [3, 1, 0, 2]
    assert [c.op for c in classified.collectives] == [
        "all_to_all",
        "reduce_scatter",
        "all_reduce",
        "all_gather",
    ]
    assert [c.bytes for c in classified.collectives] == [256, 128, 256, 256]
    assert classified.ledger == ()


def test_equal_collectives_match_earliest_first_and_only_before_their_wait_ends(tmp_path: Path) -> None:
    """0 and 1 are in flight together; 2's range is missing, so the range at 60 belongs to 3."""
    writer = draw()
    for seq, launch, waits in ((0, 0, 20), (1, 2, 22), (2, 30, 40), (3, 50, 70)):
        writer.range(comm("all_reduce", seq, 8), launch, 1).range(wait(seq), waits, 5)
    writer.gloo("all_reduce", 5, 6, tid=201, dims=[[8]]).gloo("all_reduce", 4, 8, tid=200, dims=[[8]])
    writer.gloo("all_reduce", 60, 8, dims=[[8]]).gloo("all_reduce", 90, 5, dims=[[8]])
    _, classified = read(writer, tmp_path)
    assert by_seq(classified) == [0, 1, 3, None]
    assert sorted((e.code, e.severity, e.count) for e in classified.ledger) == [
        ("comm-range-unmatched", "note", 1),
        ("gloo-range-unmatched", "note", 1),
    ]
    last = classified.collectives[-1]
    assert (last.op, last.group, last.purpose, last.launch_ns) == ("all_reduce", None, "unknown", None)
    assert classified.activities.step.tolist()[-1] == UNKNOWN_STEP


def test_a_synchronous_range_covers_its_collective(tmp_path: Path) -> None:
    writer = draw().range(comm("all_reduce", 0, 8, is_async=False), 0, 20)
    writer.gloo("all_reduce", 5, 10, dims=[[8]]).gloo("all_reduce", 25, 10, dims=[[8]])
    _, classified = read(writer, tmp_path)
    first = classified.collectives[0]
    assert by_seq(classified) == [0, None]
    assert (first.is_async, first.launch_ns, first.launch_end_ns) == (False, 0, 20_000)
    assert (first.wait_start_ns, first.wait_end_ns) == (None, None)


def test_ranges_without_dimensions_match_by_name(tmp_path: Path) -> None:
    writer = draw().range(comm("all_gather", 0, 8), 0, 1).range(comm("all_reduce", 1, 8), 2, 1)
    writer.gloo("all_reduce", 5, 5).gloo("all_gather", 6, 5)
    _, classified = read(writer, tmp_path)
    assert by_seq(classified) == [1, 0]


def test_a_ring_shift_shows_as_all_to_all(tmp_path: Path) -> None:
    writer = draw().range(comm("send_recv", 0, 8, purpose="kv"), 0, 1).gloo("all_to_all", 5, 5, dims=[[8]])
    _, classified = read(writer, tmp_path)
    (found,) = classified.collectives
    assert (found.op, found.purpose, found.bandwidth_known) == ("send_recv", "kv", True)


def test_unannotated_ranges_by_their_operators_in_order(tmp_path: Path) -> None:
    """Counts and dimensions agree for all_gather and all_reduce; for broadcast an operator is missing."""
    writer = draw(pg_config=PG).step(1, 0, 100)
    writer.cpu_op("c10d::_reduce_scatter_base_", 0, 2, dims=[[4], [8], []], types=["float", "float", ""])
    writer.cpu_op("c10d::allreduce_", 3, 2, dims=[[[16]], []], types=["TensorList", ""])
    writer.cpu_op("c10d::_allgather_base_", 6, 2, dims=[[8], [4], []], types=["float", "float", ""])
    writer.cpu_op("c10d::broadcast_", 9, 2, dims=[[[8]]], types=["TensorList"])
    writer.range("gloo:all_reduce", 12, 2, tid=200, **{"Input Dims": [[8]]}, **FLOAT)
    writer.range("gloo:all_reduce", 15, 2, tid=200, **{"Input Dims": [[16]]}, **FLOAT)
    writer.range("gloo:all_gather", 18, 2, tid=200, **{"Input Dims": [[4]]}, **FLOAT)
    writer.range("gloo:broadcast", 21, 2, tid=200, **{"Input Dims": [[8]]}, **FLOAT)
    writer.range("gloo:broadcast", 24, 2, tid=200, **{"Input Dims": [[8]]}, **FLOAT)
    _, classified = read(writer, tmp_path)
    assert [(c.op, c.bytes, c.launch_ns) for c in classified.collectives] == [
        ("reduce_scatter", 32, 0),
        ("all_reduce", 64, 3000),
        ("all_gather", 32, 6000),
        ("broadcast", 32, None),
        ("broadcast", 32, None),
    ]
    assert {c.group.key for c in classified.collectives if c.group} == {"default_pg[0,1]"}
    assert {c.is_async for c in classified.collectives} == {None}
    assert {c.purpose for c in classified.collectives} == {"unknown"}
    comms = classified.activities.kind == Kind.COMMUNICATION
    assert classified.activities.step[comms].tolist() == [1, 1, 1, UNKNOWN_STEP, UNKNOWN_STEP]


@pytest.mark.parametrize(
    ("pieces", "known_group", "launched"),
    [
        (2, True, [0, 0, 3000, 6000, 6000]),
        (2, False, [0, 0, 3000, 6000, 6000]),
        (3, True, [None] * 7),  # the group has two ranks: something else is amiss
        (3, False, [0, 0, 0, 3000, 6000, 6000, 6000]),
    ],
)
def test_a_list_reduce_scatter_shows_as_an_all_reduce_per_rank(
    tmp_path: Path, pieces: int, known_group: bool, launched: list[int | None]
) -> None:
    writer = draw(**({"pg_config": PG} if known_group else {}))
    lists = [0, 6]
    for start in (0, 3, 6):
        name = "c10d::reduce_scatter_" if start in lists else "c10d::allreduce_"
        writer.cpu_op(name, start, 2, dims=[[[8]], []], types=["TensorList", ""])
    at = 12
    for count in (pieces, 1, pieces):
        for _ in range(count):
            writer.range("gloo:all_reduce", at, 2, tid=200, **{"Input Dims": [[8]]}, **FLOAT)
            at += 3
    _, classified = read(writer, tmp_path)
    assert [c.launch_ns for c in classified.collectives] == launched
    assert {c.bytes for c in classified.collectives} == {32}
    noted = [entry.count for entry in classified.ledger if entry.code == "list-reduce-scatter"]
    assert noted == ([2] if launched[0] is not None else [])


def test_pieces_of_different_number_are_not_divided(tmp_path: Path) -> None:
    """Two lists and five ranges: groups of two and three, and nobody knows which is which."""
    writer = draw()
    for start in (0, 3):
        writer.cpu_op("c10d::reduce_scatter_", start, 2, dims=[[[8]], []], types=["TensorList", ""])
    for k in range(5):
        writer.range("gloo:all_reduce", 12 + 3 * k, 2, tid=200, **{"Input Dims": [[8]]}, **FLOAT)
    _, classified = read(writer, tmp_path)
    assert [c.launch_ns for c in classified.collectives] == [None] * 5


def declared(*inputs: str) -> dict[str, Any]:
    return {"Concrete Inputs": list(inputs)}


@pytest.mark.parametrize(
    ("operator", "inputs", "is_async"),
    [
        ("c10d::allreduce_", '["","","","","True","-1"]', True),
        ("c10d::allreduce_", '["","","","","False","-1"]', False),
        ("c10d::allreduce_", '["","","","false","600000"]', False),
        ("c10d::alltoall_base_", '["","","","[3, 5]","[3, 5]","False","-1"]', False),
        ("c10d::allreduce_", '["","","","","-1"]', None),  # before torch said it
        ("c10d::broadcast_", '["","","0","0","-1"]', None),
        ("c10d::monitored_barrier_", '["","","[]","-1","True"]', None),  # wait_all_ranks
        ("c10d::send", '["","","1","0"]', None),
        ("c10d::allreduce_", '["True"]', None),
        ("c10d::allreduce_", '{"True":-1}', None),
        ("c10d::allreduce_", '["","True","-1"', None),
        ("c10d::allreduce_", None, None),
        ("_c10d_functional::all_reduce", '["","True","-1"]', None),
    ],
)
def test_what_an_operator_says_of_itself(operator: str, inputs: str | None, is_async: bool | None) -> None:
    assert declared_async(operator, inputs) is is_async


def test_an_idle_thread_does_not_make_a_collective_synchronous(tmp_path: Path) -> None:
    """The thread begins nothing from each call to the end of its collective; operators say what they are."""
    writer = draw(pg_config=PG)
    for i, inputs in enumerate((declared("", "True", "-1"), declared("", "False", "-1"), {})):
        start = 20 * i
        writer.cpu_op("c10d::allreduce_", start, 2, dims=[[[8]]], types=["TensorList"], **inputs)
        writer.range("gloo:all_reduce", start + 4, 8, tid=200, **{"Input Dims": [[8]]}, **FLOAT)
        writer.cpu_op("aten::mm", start + 14, 2)
    _, classified = read(writer, tmp_path)
    assert [c.is_async for c in classified.collectives] == [True, False, None]
    assert [c.thread_sat_idle for c in classified.collectives] == [True, True, True]


def test_a_thread_that_went_on_did_not_sit_idle(tmp_path: Path) -> None:
    writer = draw(pg_config=PG).cpu_op("c10d::allreduce_", 0, 2, dims=[[[8]]], **declared("", "True", "-1"))
    writer.range("gloo:all_reduce", 4, 8, tid=200, **{"Input Dims": [[8]]}, **FLOAT)
    writer.cpu_op("aten::mm", 6, 9)
    (found,) = read(writer, tmp_path)[1].collectives
    assert (found.is_async, found.thread_sat_idle, found.wait_start_ns) == (True, False, None)


COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


def test_the_reducer_waits_until_it_copies(tmp_path: Path) -> None:
    """
    thread  node+launch 0,2 mm 4,6   node+launch 20,3  mm 24,6   wait   copy 40,2   wait   copy 50,2
    gloo              [3,                  35)   [23,                             45)
    The first gap is [30, 40). The second all-reduce ends in the gap [42, 50), the wait for it.
    """
    writer = draw(pg_config=PG)
    for start, end in ((0, 35), (20, 45)):
        writer.cpu_op(EVALUATE + "torch::autograd::AccumulateGrad", start, 3, fwd_thread=1)
        inputs = declared("", "", "", "", "True", "-1")
        writer.cpu_op("c10d::allreduce_", start + 1, 1, dims=[[[800]]], types=["TensorList"], **inputs)
        writer.range(
            "gloo:all_reduce", start + 3, end - start - 3, tid=200, **{"Input Dims": [[800]]}, **FLOAT
        )
        writer.cpu_op("aten::mm", start + 4, 6)
    writer.cpu_op(COPY, 40, 2).cpu_op("aten::copy_", 40.5, 1).cpu_op(COPY, 50, 2)
    _, classified = read(writer, tmp_path)
    found = [(c.purpose, c.is_async, c.wait_start_ns, c.wait_end_ns) for c in classified.collectives]
    assert found == [("param-grad", True, 30_000, 40_000), ("param-grad", True, 42_000, 50_000)]


def test_without_copies_the_reducers_wait_is_not_known(tmp_path: Path) -> None:
    """`gradient_as_bucket_view`; and what is launched after the copies belongs to no later copy."""
    for copied_at in ((), (0,)):
        writer = draw(pg_config=PG)
        for start in copied_at:
            writer.cpu_op(COPY, start, 2)
        writer.cpu_op(EVALUATE + "torch::autograd::AccumulateGrad", 10, 3, fwd_thread=1)
        inputs = declared("", "", "", "", "True", "-1")
        writer.cpu_op("c10d::allreduce_", 11, 1, dims=[[[800]]], types=["TensorList"], **inputs)
        writer.range("gloo:all_reduce", 13, 20, tid=200, **{"Input Dims": [[800]]}, **FLOAT)
        writer.cpu_op("aten::mm", 15, 6)
        (found,) = read(writer, tmp_path)[1].collectives
        assert (found.purpose, found.is_async, found.wait_start_ns) == ("param-grad", True, None)


def test_operators_whose_dimensions_disagree_are_not_matched(tmp_path: Path) -> None:
    writer = draw().cpu_op("c10d::allreduce_", 0, 2, dims=[[[16]]], types=["TensorList"])
    writer.range("gloo:all_reduce", 5, 2, tid=200, **{"Input Dims": [[8]]}, **FLOAT)
    _, classified = read(writer, tmp_path)
    (found,) = classified.collectives
    assert (found.launch_ns, found.bytes, found.group) == (None, 32, None)
