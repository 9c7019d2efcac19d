"""Real traces: the corpus and the cases with their known sums, and a gloo run of two processes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import SHARED
from gloo_helpers import run_ranks

from sp_profiler.classify import classify
from sp_profiler.classify.tables import Activities, Classified, Kind, Phase, Role
from sp_profiler.trace.decode import decode_trace

Segments = list[tuple[int, int]]


def union(activities: Activities, rows: np.ndarray) -> Segments:
    """The union of half-open intervals, by the book."""
    segments: Segments = []
    for start, end in sorted(
        zip(activities.start_ns[rows].tolist(), activities.end_ns[rows].tolist(), strict=True)
    ):
        if end <= start:
            continue
        if segments and start <= segments[-1][1]:
            segments[-1] = (segments[-1][0], max(segments[-1][1], end))
        else:
            segments.append((start, end))
    return segments


def length(segments: Segments) -> int:
    return sum(end - start for start, end in segments)


def figures(classified: Classified) -> dict[str, int]:
    """The whole trace's sums, per device, then added (DESIGN section 4)."""
    activities = classified.activities
    sums = dict.fromkeys(
        (
            "comm_ns",
            "compute_ns",
            "exposed_ns",
            "overlapped_ns",
            "memory_op_only_ns",
            "busy_ns",
            "comm_kernels",
        ),
        0,
    )
    for device in np.unique(activities.device):

        def of(*kinds: Kind, device: int = device) -> np.ndarray:
            return (activities.device == device) & np.isin(activities.kind, kinds)

        communication = of(Kind.COMMUNICATION, Kind.FUSED)
        computation = of(Kind.COMPUTATION, Kind.FUSED)
        comm, compute = length(union(activities, communication)), length(union(activities, computation))
        either = length(union(activities, communication | computation))
        busy = length(union(activities, activities.device == device))
        sums["comm_ns"] += comm
        sums["compute_ns"] += compute
        sums["exposed_ns"] += either - compute
        sums["overlapped_ns"] += comm + compute - either
        sums["memory_op_only_ns"] += busy - either
        sums["busy_ns"] += busy
        sums["comm_kernels"] += int(communication.sum())
    return sums


EXPECTED = SHARED / "corpus" / "expected.json"
CORPUS = sorted(json.loads(EXPECTED.read_text())) if EXPECTED.is_file() else ["(absent)"]


@pytest.mark.shared
@pytest.mark.parametrize("name", CORPUS)
def test_corpus(name: str) -> None:
    """Every sum equals the independent program's, to the nanosecond."""
    expected = json.loads(EXPECTED.read_text())[name]
    classified = classify(decode_trace(str(SHARED / "corpus" / name)))
    found = figures(classified)
    assert found == {key: expected[key] for key in found}
    assert len(np.unique(classified.activities.device)) == expected["devices"]


CASES = {  # C / K / over / exp in µs, as cases/README.md has them
    "two_ranks_basic/rank0": (3400, 3000, 1300, 2100),
    "two_ranks_basic/rank1": (3100, 3000, 1000, 2100),
    **{f"groups_sharing_a_name/rank{rank}": (3400, 3000, 1300, 2100) for rank in range(4)},
    "window_misses_a_collective/rank0": (3400, 3000, 1300, 2100),
    "window_misses_a_collective/rank1": (2400, 3000, 800, 1600),
    "ring_send_recv/rank0": (6200, 6600, 4100, 2100),
    "ring_send_recv/rank1": (6200, 6600, 4100, 2100),
    "not_only_nccl/rank0": (6400, 3000, 1300, 5100),
    "list_forms_and_broadcast/rank0": (4900, 3000, 1300, 3600),
    "rank_list_cut/rank0": (1000, 0, 0, 1000),
}


def case(name: str) -> Classified:
    return classify(decode_trace(str(SHARED / "cases" / f"{name}_trace.json")))


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    found = figures(case(name))
    keys = ("comm_ns", "compute_ns", "overlapped_ns", "exposed_ns")
    assert tuple(found[key] // 1000 for key in keys) == CASES[name]


@pytest.mark.shared
def test_what_the_cases_say_of_their_collectives() -> None:
    ring = case("ring_send_recv/rank0")
    shifts = [c for c in ring.collectives if c.op == "send_recv"]
    assert [(c.group.key if c.group else None, c.bytes, c.peers) for c in shifts] == [
        ("cp[0,1]", 33_554_432, (1,))
    ] * 4
    assert sum(ring.activities.role == Role.ATTENTION) == 4
    lists = case("list_forms_and_broadcast/rank0").collectives[-3:]
    assert [(c.op, c.bytes) for c in lists] == [
        ("reduce_scatter", 4_194_304),
        ("all_gather", 4_194_304),
        ("broadcast", 4_194_304),
    ]
    quantised = [c for c in case("not_only_nccl/rank0").collectives if c.dtype == "float8_e4m3fn"]
    assert [(c.op, c.bytes) for c in quantised] == [("all_gather", 2_097_152)]
    cut = case("rank_list_cut/rank0")
    assert cut.groups[0].ranks == tuple(range(64))
    assert [entry.code for entry in cut.ledger] == ["rank-list-rebuilt"]
    shared_name = {case(f"groups_sharing_a_name/rank{rank}").groups[0].key for rank in range(4)}
    assert shared_name == {"1[0,1]", "1[2,3]"}
    assert len(case("no_device_activity/rank0").activities) == 0


@pytest.mark.shared
def test_links_in_a_real_trace() -> None:
    """MI300X: 12 of 17 collectives carry metadata; 968 activities were launched before the window."""
    classified = classify(
        decode_trace(str(SHARED / "corpus/resnet_ddp_mi300x_rank0_of_8/resnet_act_checkpoint.json.gz"))
    )
    assert [step.number for step in classified.steps] == [15, 16, 17]
    assert int((classified.activities.launch_ns >= 0).sum()) == 2685
    ops = [c.op for c in classified.collectives]
    assert (ops.count("all_reduce"), ops.count("broadcast"), ops.count(None)) == (6, 6, 5)
    assert {c.group.key for c in classified.collectives if c.group} == {"default_pg[0,1,2,3,4,5,6,7]"}
    by_phase = {phase: classified.activities.phase == phase for phase in Phase}
    reduced = [c for c in classified.collectives if c.op == "all_reduce"]
    assert all(by_phase[Phase.BACKWARD][c.activity] for c in reduced)


# ---------------------------------------------------------------- a real gloo run


@pytest.fixture(scope="module")
def gloo_run(tmp_path_factory: pytest.TempPathFactory) -> list[Classified]:
    out = tmp_path_factory.mktemp("gloo")
    run_ranks("classify_gloo_worker", out)
    traces = [decode_trace(str(path)) for path in sorted(out.glob("rank-*.pt.trace.json.gz"))]
    assert len(traces) == 2
    return [classify(trace) for trace in traces]


def overlap_ns(classified: Classified, collective: int, role: Role | None = None) -> int:
    activities = classified.activities
    c = classified.collectives[collective].activity
    rows = activities.kind == Kind.COMPUTATION
    if role is not None:
        rows &= activities.role == role
    return sum(
        max(0, min(end, int(activities.end_ns[c])) - max(start, int(activities.start_ns[c])))
        for start, end in union(activities, rows)
    )


@pytest.mark.gloo
def test_every_gloo_range_is_matched(gloo_run: list[Classified]) -> None:
    for classified in gloo_run:
        assert classified.is_cpu_only
        assert classified.ledger == ()  # no leftovers on either side
        assert [group.key for group in classified.groups] == ["tp[0,1]"]
        seqs = [c.seq for c in classified.collectives]
        assert seqs == list(range(5, 15))  # the warm-up step launched 0 to 4
        assert [c.op for c in classified.collectives] == [
            "all_reduce",
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
        ] * 2
        assert {(c.op, c.bytes) for c in classified.collectives} == {
            ("all_reduce", 2048 * 512 * 4),
            ("all_gather", 2 * 2048 * 512 * 4),
            ("reduce_scatter", 2048 * 512 * 4),
            ("all_to_all", 2048 * 512 * 4),
        }
        steps = [step.number for step in classified.steps]
        rows = [c.activity for c in classified.collectives]
        assert classified.activities.step[rows].tolist() == [steps[0]] * 5 + [steps[1]] * 5
        phases = [Phase(p).name for p in classified.activities.phase[rows]]
        assert phases == ["BACKWARD", "BACKWARD", "FORWARD", "FORWARD", "FORWARD"] * 2


@pytest.mark.gloo
def test_synchronous_collectives_overlap_nothing_asynchronous_ones_wgrad(gloo_run: list[Classified]) -> None:
    for classified in gloo_run:
        for index, collective in enumerate(classified.collectives):
            if not collective.is_async:
                assert overlap_ns(classified, index) == 0
                assert collective.wait_end_ns is None
            else:
                assert collective.partner_what == "wgrad"
                assert collective.wait_end_ns is not None
        under = [
            overlap_ns(classified, i, Role.WGRAD) for i, c in enumerate(classified.collectives) if c.is_async
        ]
        assert len(under) == 2
        assert sum(under) > 0


@pytest.mark.gloo
def test_gemms_of_the_run_have_the_roles_of_their_ranges(gloo_run: list[Classified]) -> None:
    for classified in gloo_run:
        activities = classified.activities
        gemms = activities.is_gemm
        per_role = {
            role: len(set(activities.event[gemms & (activities.role == role)].tolist()))
            for role in (Role.FWD, Role.DGRAD, Role.WGRAD, Role.UNKNOWN)
        }
        assert per_role == {Role.FWD: 4, Role.DGRAD: 4, Role.WGRAD: 4, Role.UNKNOWN: 0}
        wgrad = gemms & (activities.role == Role.WGRAD)
        assert set(activities.phase[wgrad].tolist()) == {Phase.BACKWARD}
        assert (activities.node[wgrad] >= 0).all()
