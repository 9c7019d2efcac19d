"""Without annotations the classifier finds what they say: on runs of our workloads, and on their twins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from device_twin import device_twin
from gloo_helpers import run_ranks
from roles_worker import RUNS

from sp_profiler.analysis.rank import analyze_rank
from sp_profiler.analysis.results import RankResult
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.classify import classify
from sp_profiler.classify.tables import Classified, Kind, Phase, Role
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.tables import Trace

pytestmark = pytest.mark.gloo


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("roles")
    run_ranks("roles_worker", out)
    for name in RUNS:
        device_twin(out / f"{name}.rank-00000.json", out / f"{name}.twin.json")
        device_twin(out / f"{name}.rank-00000.json", out / f"{name}.old-twin.json", tells_async=False)
    return out


def both(recorded: Path, name: str, kind: str) -> tuple[Trace, Classified, Classified]:
    """The trace, classified with and without its annotations."""
    file = {"cpu": "rank-00000", "device": "twin", "device of old": "old-twin"}[kind]
    trace = decode_trace(str(recorded / f"{name}.{file}.json"))
    return trace, classify(trace), classify(trace, use_annotations=False)


def roles(classified: Classified, rows: np.ndarray) -> list[str]:
    return [Role(role).name for role in classified.activities.role[rows]]


@pytest.mark.parametrize("kind", ["cpu", "device"])
@pytest.mark.parametrize("name", RUNS)
def test_roles_agree_with_the_annotations(recorded: Path, name: str, kind: str) -> None:
    _, annotated, blind = both(recorded, name, kind)
    assert annotated.is_cpu_only == (kind == "cpu")
    gemms = np.flatnonzero(annotated.activities.is_gemm)
    np.testing.assert_array_equal(gemms, np.flatnonzero(blind.activities.is_gemm))
    truth = roles(annotated, gemms)
    known = Counter(truth)
    assert known["FWD"] == known["WGRAD"] > 0  # the truth is one
    assert "UNKNOWN" not in known
    assert roles(blind, gemms) == truth
    used = {blind.rules[rule] for rule in blind.activities.role_rule[gemms]}
    assert not used & {"none", "annotation", "kernel-layout", "node-order"}
    assert ("strides" in used) == ("square" in name or "wide" in name)


@pytest.mark.parametrize("kind", ["cpu", "device"])
@pytest.mark.parametrize("name", [name for name in RUNS if "recompute" in name])
def test_forward_gemms_in_backward_are_recompute(recorded: Path, name: str, kind: str) -> None:
    """With and without annotations: every forward GEMM of a block once more, the head's not. A core that is
    repeated is attention, forward collectives that are repeated belong to backward."""
    _, *readings = both(recorded, name, kind)
    options = RUNS[name]
    fused = options.get("projections") == "fused"
    linears = 2 * (4 if fused else 7)  # of two blocks
    again = 0 if options["recompute"] == "selective" else linears
    for classified in readings:
        gemms = np.flatnonzero(classified.activities.is_gemm)
        found = Counter(roles(classified, gemms))
        pieces = found["FWD"] // (linears + 1)  # of a GEMM: on the CPU its operator's stretches of self time
        assert pieces == 1 or kind == "cpu"
        assert (found["FWD"], found["RECOMPUTE"]) == (pieces * (linears + 1), pieces * again)
        repeated = gemms[classified.activities.role[gemms] == Role.RECOMPUTE]
        assert set(classified.activities.phase[repeated].tolist()) <= {int(Phase.BACKWARD)}
        collectives = classified.activities.collective >= 0
        phases = classified.activities.phase[collectives]
        purposes = np.array([c.purpose for c in classified.collectives])
        forward = Counter(phases[purposes == "activation"].tolist())
        once = {"ddp": 0, "tp": 2 * 2, "sp": 2 * (4 if fused else 7)}[options["mode"]]
        assert forward[int(Phase.BACKWARD)] == (once if again else 0)
        assert forward[int(Phase.FORWARD)] == once + (options["mode"] == "sp")


@pytest.mark.parametrize("kind", ["cpu", "device"])
@pytest.mark.parametrize("name", RUNS)
def test_attention_and_optimizer_agree(recorded: Path, name: str, kind: str) -> None:
    """All computation, not only GEMMs: a workload's ranges name attention and the optimizer whole."""
    _, annotated, blind = both(recorded, name, kind)
    rows = annotated.activities.kind == Kind.COMPUTATION
    for role in (Role.ATTENTION, Role.OPTIMIZER):
        mine = (annotated.activities.role == role) & rows
        assert mine.any() or kind == "device"
        # A range around a node holds a few views and copies that are outside the attention operator.
        core = mine & ~np.isin(blind.activities.role, [Role.OTHER])
        # A core that is repeated lies in its node, with views around its range.
        views = (annotated.activities.role == Role.RECOMPUTE) & ~annotated.activities.is_gemm
        np.testing.assert_array_equal(core, (blind.activities.role == role) & rows & ~views)


@pytest.mark.parametrize("kind", ["cpu", "device"])
@pytest.mark.parametrize("name", RUNS)
def test_purposes_agree_with_the_annotations(recorded: Path, name: str, kind: str) -> None:
    _, annotated, blind = both(recorded, name, kind)
    assert len(annotated.collectives) == len(blind.collectives) > 0
    assert [c.op for c in annotated.collectives] == [c.op for c in blind.collectives]
    truth = [c.purpose for c in annotated.collectives]
    assert "unknown" not in truth
    assert [c.purpose for c in blind.collectives] == truth
    said, found = (
        classified.activities.phase[classified.activities.collective >= 0]
        for classified in (annotated, blind)
    )
    np.testing.assert_array_equal(said, found)
    if kind == "device":
        assert {c.group.key for c in blind.collectives if c.group} == {"1[0,1]"}  # the name gave nothing away


def analysed(trace: Trace, classified: Classified) -> RankResult:
    return analyze_rank(trace, classified, WindowRule("step", None))


@pytest.mark.parametrize("kind", ["device", "device of old"])
@pytest.mark.parametrize("name", [name for name in RUNS if name[:2] in ("tp", "sp")])
def test_what_hides_under_what_agrees(recorded: Path, name: str, kind: str) -> None:
    """The partner rule "same linear" finds what the annotations say, also where none tells what is async."""
    trace, annotated, blind = both(recorded, name, kind)
    expected, found = (analysed(trace, classified).ranks[0] for classified in (annotated, blind))
    assert expected.partner_hideable_ns
    for field in ("partner_hidden_ns", "partner_hideable_ns", "dgrad_comm_ns", "wgrad_overlapped_ns"):
        assert getattr(found, field) == getattr(expected, field), field
    assert found.hiding_by_purpose == expected.hiding_by_purpose
    if "async" in name:
        assert found.partner_hidden_ns
        assert found.wgrad_overlapped_ns
