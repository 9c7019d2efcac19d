"""Traces of context parallelism as users have them: what each activity is, against the schedules' truth."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from context_facts import Transfer
from context_kernels import LIBRARIES
from context_traces import CASES, Case, Drawn, draw

from sp_profiler.classify import classify
from sp_profiler.classify.tables import Classified, Collective, Kind, Phase, Role
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.tables import Trace

NAMES = [case.name for case in CASES]
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Drawn]:
    folder = tmp_path_factory.mktemp("context")
    return {case.name: draw(case, folder) for case in CASES}


def ranks_of(case: Case) -> list[int]:
    return list(case.write.get("only", range(case.ranks)))


def read(drawn: Drawn, rank: int) -> Classified:
    return _read(str(drawn.folder / f"rank{rank}.json"))[1]


@cache
def _read(path: str) -> tuple[Trace, Classified]:
    trace = decode_trace(path)
    return trace, classify(trace)


def pairs(drawn: Drawn, rank: int, classified: Classified) -> list[tuple[Transfer, Collective]]:
    """The rank's transfers beside what was found of them, in order of start."""
    activities = classified.activities
    found = sorted(
        classified.collectives,
        key=lambda one: (activities.start_ns[one.activity], activities.end_ns[one.activity]),
    )
    return list(zip(drawn.of(rank), found, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_times(drawn: dict[str, Drawn], name: str) -> None:
    for rank in ranks_of(BY_NAME[name]):
        classified = read(drawn[name], rank)
        for truth, found in pairs(drawn[name], rank, classified):
            row = found.activity
            assert classified.activities.kind[row] == Kind.COMMUNICATION
            assert classified.activities.start_ns[row] == truth.start_ns
            assert classified.activities.end_ns[row] == truth.end_ns
            assert (found.launch_ns is not None) == truth.launched


@pytest.mark.parametrize("name", NAMES)
def test_operation_group_size_and_peers(drawn: dict[str, Drawn], name: str) -> None:
    style = BY_NAME[name].style
    for rank in ranks_of(BY_NAME[name]):
        for truth, found in pairs(drawn[name], rank, read(drawn[name], rank)):
            assert found.op == truth.op
            if style.metadata == "none":
                assert (found.group, found.bytes, found.dtype, found.peers) == (None, None, None, ())
                continue
            if not truth.launched and not (style.batch_metadata and style.metadata == "kernel"):
                continue  # the records before the launch are not in the window
            assert found.group is not None
            assert found.group.key == truth.group.key
            assert (found.bytes, found.dtype) == (truth.bytes, truth.dtype)
            if truth.op == "send_recv" and not style.batch_records and "te-p2p" not in name:
                assert (found.source, found.target) == (None, truth.target)
            elif truth.launched:
                assert found.peers == truth.peers
                ends = (truth.source, truth.target) if truth.op == "send_recv" else (None, None)
                assert (found.source, found.target) == ends


# What nobody can tell: where hops of equal size between two blocks carry K, V or their gradients, and in a
# window without any launch what anything carries.
OPEN = {"ring-bf16-gradients": "backward", "ring-old": "backward", "cut-late": "forward backward"}


@pytest.mark.parametrize("name", NAMES)
def test_purpose(drawn: dict[str, Drawn], name: str) -> None:
    for rank in ranks_of(BY_NAME[name]):
        for truth, found in pairs(drawn[name], rank, read(drawn[name], rank)):
            is_open = truth.said.phase in OPEN.get(name, "") and truth.said.purpose in ("kv", "dkv")
            expected = "unknown" if is_open else truth.said.purpose
            # What was launched before the window is known by others of its kind, where there are any.
            assert found.purpose == expected or (not truth.launched and found.purpose == "unknown"), truth


@pytest.mark.parametrize("name", NAMES)
def test_roles(drawn: dict[str, Drawn], name: str) -> None:
    """Attention is what its library calls so; neither merges nor copies are."""
    library = LIBRARIES[BY_NAME[name].style.forward]
    own = {library.forward, *(kernel for kernel, _ in library.backward)}
    for rank in ranks_of(BY_NAME[name]):
        trace, classified = _read(str(drawn[name].folder / f"rank{rank}.json"))
        activities = classified.activities
        computes = np.flatnonzero(activities.kind == Kind.COMPUTATION)
        assert len(computes) > 0
        for row in computes.tolist():
            kernel = trace.strings[int(activities.name[row])]
            is_attention = activities.role[row] == Role.ATTENTION
            assert is_attention == (kernel in own), kernel
            assert activities.is_gemm[row] == ("gemm" in (kernel or ""))


# Where a window begins within a pass, the waits for what was launched before it are taken for others'.
@pytest.mark.parametrize(
    "name", [name for name in NAMES if BY_NAME[name].style.host and not name.startswith("cut")]
)
def test_every_hop_has_its_wait(drawn: dict[str, Drawn], name: str) -> None:
    for rank in ranks_of(BY_NAME[name]):
        for truth, found in pairs(drawn[name], rank, read(drawn[name], rank)):
            if truth.launched and truth.said.purpose in ("kv", "dkv", "layout"):
                assert found.wait_start_ns == truth.wait_call_ns, truth


@pytest.mark.parametrize("name", NAMES)
def test_phase(drawn: dict[str, Drawn], name: str) -> None:
    for rank in ranks_of(BY_NAME[name]):
        classified = read(drawn[name], rank)
        for truth, found in pairs(drawn[name], rank, classified):
            if truth.launched and truth.said.purpose in ("kv", "dkv", "layout"):
                phase = Phase(classified.activities.phase[found.activity])
                in_backward = truth.said.phase == "backward" or truth.said.repeated
                expected = Phase.BACKWARD if in_backward else Phase.FORWARD
                assert bool(classified.activities.recomputed[found.activity]) == truth.said.repeated
                # Without operators only attention's kernels tell, and of forward nothing does.
                told = BY_NAME[name].style.host or expected == Phase.BACKWARD
                assert phase == (expected if told else Phase.UNKNOWN)
