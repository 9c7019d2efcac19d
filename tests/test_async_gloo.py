"""What torch's own operators say of `async_op`, on a recorded run of two gloo ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gloo_helpers import run_ranks

from sp_profiler.classify import classify
from sp_profiler.classify.blocking import declared_async
from sp_profiler.engine import analyze_run
from sp_profiler.report.model import Report
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.load import load_run
from sp_profiler.trace.tables import Category, Trace

pytestmark = pytest.mark.gloo

SAYS_NOTHING = {"c10d::send", "c10d::recv_"}
OPERATORS = {
    "all_reduce": "c10d::allreduce_",
    "all_gather_base": "c10d::_allgather_base_",
    "all_gather": "c10d::allgather_",
    "reduce_scatter_base": "c10d::_reduce_scatter_base_",
    "reduce_scatter": "c10d::reduce_scatter_",
    "all_to_all_base": "c10d::alltoall_base_",
    "all_to_all": "c10d::alltoall_",
    "broadcast": "c10d::broadcast_",
    "reduce": "c10d::reduce_",
    "gather": "c10d::gather_",
    "scatter": "c10d::scatter_",
    "barrier": "c10d::barrier",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("async")
    run_ranks("async_gloo_worker", out)
    return out


@pytest.fixture(scope="module")
def ddp(recorded: Path) -> Report:
    folder = recorded / "ddp"
    folder.mkdir()
    for file in recorded.glob("ddp.*.json"):
        file.rename(folder / file.name)
    (run,) = find_runs([str(folder)])
    return analyze_run(load_run(run))


def calls_of(trace: Trace) -> list[tuple[str, bool, str, bool | None]]:
    """(call, async_op, operator, what the operator says) of every c10d operator inside a call."""
    events, strings = trace.events, trace.strings
    is_call = (events.category == Category.CPU_ANNOTATION) & strings.match(
        events.name, lambda name: name.startswith("call::")
    )
    is_operator = strings.match(events.name, lambda name: name.startswith("c10d::"))
    found = []
    for call in np.flatnonzero(is_call).tolist():
        _, name, is_async = (strings[events.name[call]] or "").split("::")
        inside = is_operator & (events.start_ns >= events.start_ns[call])
        inside &= events.start_ns < events.end_ns[call]
        for row in np.flatnonzero(inside).tolist():
            operator = strings[events.name[row]] or ""
            said = declared_async(operator, strings[events.concrete[row]])
            found.append((name, is_async == "True", operator, said))
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_each_operator_says_whether_it_is_asynchronous(recorded: Path, rank: int) -> None:
    found = calls_of(decode_trace(str(recorded / f"calls.rank-{rank:05d}.json")))
    for name, operator in OPERATORS.items():
        said = [(is_async, what) for call, is_async, one, what in found if (call, one) == (name, operator)]
        assert said == [(False, False), (True, True)], name
    sent = [what for *_, operator, what in found if operator in SAYS_NOTHING]
    assert sent == [None, None]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_reduce_scatter_of_lists_leaves_no_range_without_its_launch(recorded: Path, rank: int) -> None:
    """gloo shows it as an all-reduce for each of the two ranks, 8 floats each; the others are one range."""
    classified = classify(decode_trace(str(recorded / f"calls.rank-{rank:05d}.json")))
    assert all(one.launch_ns is not None for one in classified.collectives)
    scattered = [one for one in classified.collectives if one.op == "reduce_scatter"]
    told = [(one.is_async, one.bytes) for one in scattered]
    assert told == [(False, 64), (True, 64), (False, 32), (False, 32), (True, 32), (True, 32)]
    reduced = [one for one in classified.collectives if one.op == "all_reduce"]
    assert [(one.is_async, one.bytes) for one in reduced] == [(False, 32), (True, 32)]
    (note,) = [one for one in classified.ledger if one.code == "list-reduce-scatter"]
    assert (note.severity, note.count) == ("note", 2)


def test_ddp_is_asynchronous_and_its_waits_are_seen(recorded: Path, ddp: Report) -> None:
    for rank in range(2):
        mine = [c for c in ddp.collectives if c.rank == rank and c.purpose == "param-grad"]
        assert len(mine) > 1
        assert {c.is_async for c in mine} == {True}
        for one in mine:
            assert one.cause_evidence is not None
            wait = one.cause_evidence.wait_start_ns
            assert wait is not None
            assert one.launch_ns is not None
            assert wait > one.launch_ns
            assert one.cause_evidence.rule != "declared-synchronous"
            assert "synchronous" not in (one.exposed_by_cause_ns or {})
    trace = decode_trace(str(recorded / "ddp" / "ddp.rank-00000.json"))
    starts = set(trace.events.start_ns.tolist())
    for one in classify(trace).collectives:
        if one.purpose == "param-grad":  # until the reducer copies the bucket into the gradients
            assert one.wait_end_ns in starts


def test_nobody_is_told_to_launch_ddp_asynchronously(ddp: Report) -> None:
    for one in ddp.findings:
        assert "asynchronously" not in (one.advice or ""), one
        assert "collectives are synchronous" not in one.text, one
