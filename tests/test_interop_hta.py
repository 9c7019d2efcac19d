"""HTA behind one module: absent or failing it costs a report nothing; present, its figures are explained."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import REPOSITORY, SHARED
from report_helpers import make_report

from sp_profiler.analysis.steps import WindowRule
from sp_profiler.engine import analyze_run
from sp_profiler.interop import hta
from sp_profiler.report.model import Report
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.load import load_run
from sp_profiler.trace.write import TraceWriter

needs_hta = pytest.mark.skipif(not hta.is_installed(), reason="HTA is not installed (extra 'hta')")


def analysed(path: Path, rule: str = "step") -> tuple[Report, hta.Looked]:
    (files,) = find_runs([str(path)])
    traces = load_run(files)
    return analyze_run(traces, WindowRule(rule)), hta.look(traces.traces)  # type: ignore[arg-type]


def device_trace(path: Path, kernel: str | None = None) -> Path:
    """Two steps of a GEMM and an all-reduce that runs half under it; one GEMM whose launch is not there."""
    writer = TraceWriter(rank=0, world_size=2)
    writer.kernel("gemm_before", 10, 40.5, correlation=999_999)
    for k in range(2):
        start = 1000 * (k + 1)
        writer.step(k, start, 900)
        writer.cpu_op("aten::mm", start + 5, 20, external_id=10 + k)
        writer.kernel("gemm", start + 50, 100.25, launch=start + 10, external_id=10 + k)
        writer.collective("allreduce", start + 100, 100, launch=start + 30, seq=k, kernel=kernel)
    return Path(writer.write(path))


# --- without HTA, and when it fails ----------------------------------------------------------------


def test_nothing_imports_hta_unasked() -> None:
    code = "import sys, sp_profiler.interop.hta, sp_profiler.cli.analyze; assert 'hta' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_absent_is_null_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hta, "is_installed", lambda: False)
    report = hta.with_critical_path(make_report())
    assert report.critical_path is None
    (entry,) = [e for e in report.data_quality if e.code == "critical-path-failed"]
    assert "sp-profiler[hta]" in entry.text
    assert entry.severity == "note"


def test_a_cpu_run_is_null_with_the_reason() -> None:
    report = hta.with_critical_path(make_report(device="cpu"))
    assert report.critical_path is None
    assert any("CPU run" in entry.text for entry in report.data_quality)


def test_the_reason_that_nobody_asked_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = analysed(device_trace(tmp_path / "rank0.json"))
    assert hta.NOT_ASKED in {entry.code for entry in report.data_quality}
    monkeypatch.setattr(hta, "is_installed", lambda: False)
    codes = {entry.code for entry in hta.with_critical_path(report).data_quality}
    assert "critical-path-failed" in codes
    assert hta.NOT_ASKED not in codes


def test_a_worker_that_dies_or_hangs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hta, "is_installed", lambda: True)
    monkeypatch.setattr(hta, "sys", type("S", (), {"executable": "/bin/false"}))
    with pytest.raises(hta.HtaError, match="ended without an answer"):
        hta.ask({"action": "figures", "files": {}, "last_step": True})


def test_answers_become_a_critical_path(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(request: dict, **_: object) -> dict:
        asked.append(request)
        part = {"name": "gemm", "kind": "gpu_compute_bound", "count": 2, "ns": 30}
        kinds = {"gpu_compute_bound": 30, "cpu_bound": 12}
        return {"tool": "traceinsight 0.6.1", "by_kind_ns": kinds, "longest": [part], "is_complete": True}

    monkeypatch.setattr(hta, "ask", answer)
    found = hta.with_critical_path(make_report(steps=3)).critical_path
    assert found is not None
    assert (found.rank, found.step, found.total_ns) == (0, 1, 42)
    assert found.longest[0].name == "gemm"
    assert asked[0]["annotation"] == "ProfilerStep#1"


def test_differences_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours + launch not seen + classification + dropped step + rounding = HTA's default, figure by figure."""
    report, looked = analysed(device_trace(tmp_path / "rank0.json"), "trace")
    #  computation: ours 40.5 + 2 x 100.25 µs; HTA without the first, without the last step, rounded
    answers = iter([200_500.0, 100_250.0, 100_000.0])

    def answer(request: dict, **_: object) -> dict:
        kinds = dict.fromkeys(request["names"], "COMPUTATION")
        besides = [{"name": "triton", "category": "cpu_op", "kind": "COMPUTATION", "count": 1, "ns": 300_000}]
        ranks = {"0": {"compute_ns": next(answers)}}
        return {"tool": "t", "ranks": ranks, "kinds": kinds, "besides": besides}

    monkeypatch.setattr(hta, "ask", answer)
    compared = hta.compare(report, looked)
    one = next(d for d in compared.differences if d.figure == "compute_ns")
    assert (one.ours, one.hta_exact, one.hta) == (241_000, 200_500, 100_000)
    assert (one.launch_unseen, one.classification) == (-40_500, 0)
    assert (one.dropped_step, one.rounding) == (-100_250, -250)
    # the stub takes the all-reduce for computation, and an operator for a kernel
    assert [(m.ours, m.hta, m.count, m.ns) for m in compared.misclassified] == [
        ("(cpu_op)", "computation", 1, 300_000),
        ("communication", "computation", 2, 200_000),
    ]


def test_of_one_step_hta_drops_nothing(tmp_path: Path) -> None:
    """It drops what was launched behind the last step, and what has no launch, where there are several."""
    writer = TraceWriter(rank=0, world_size=2)
    writer.step(0, 1000, 900)
    writer.kernel("gemm", 1100, 100, launch=1010, correlation=1)
    writer.kernel("gemm", 2100, 200, launch=2010, correlation=2)
    writer.kernel("gemm", 3100, 400, correlation=999_999)
    one = Path(writer.write(tmp_path / "rank0.json"))
    assert analysed(one, "trace")[1].kept_by_hta[0]["compute_ns"] == 700_000
    writer.step(1, 1901, 50)
    two = Path(writer.write(tmp_path / "rank0.json"))
    assert analysed(two, "trace")[1].kept_by_hta[0]["compute_ns"] == 100_000


def test_figures_of_a_cpu_run_are_refused_with_the_reason() -> None:
    with pytest.raises(hta.HtaError, match="CPU run"):
        hta.compare(make_report(device="cpu"), hta.Looked({}, {}))


def test_a_failure_without_words_names_its_place() -> None:
    code = "from sp_profiler.interop import hta_worker as w\n"
    code += "def f():\n    assert False\ntry:\n    f()\nexcept AssertionError as e:\n    print(w._place(e))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout.strip() == "in f (<string>, line 3)"


# --- with HTA --------------------------------------------------------------------------------------


@pytest.mark.hta
@needs_hta
def test_shipped_traces_load_in_hta() -> None:
    """What `run` writes is a trace for HTA too, although a CPU run gives it nothing to measure."""
    code = (
        "import sys; from hta.common.trace import Trace; "
        "t = Trace(trace_files={0: sys.argv[1], 1: sys.argv[2]}); t.parse_traces(use_multiprocessing=False); "
        "assert all(len(t.get_trace(rank)) > 100 for rank in (0, 1))"
    )
    for run in sorted((REPOSITORY / "traces" / "demo").iterdir()):
        ranks = [str(path) for path in sorted(run.glob("rank-*.json.gz"))]
        if ranks:
            subprocess.run([sys.executable, "-c", code, *ranks], check=True, timeout=200, capture_output=True)


@pytest.mark.hta
@needs_hta
def test_hta_agrees_once_its_differences_are_named(tmp_path: Path) -> None:
    report, looked = analysed(device_trace(tmp_path / "rank0.json"), "trace")
    compared = hta.compare(report, looked)
    assert compared.misclassified == []
    for one in compared.differences:
        assert one.classification == pytest.approx(0, abs=1), one.figure


@pytest.mark.hta
@needs_hta
def test_misclassified_kernels_are_named(tmp_path: Path) -> None:
    name = "void multimem_all_reduce_kernel<c10::BFloat16, 16>(...)"
    report, looked = analysed(device_trace(tmp_path / "rank0.json", kernel=name), "trace")
    compared = hta.compare(report, looked)
    (wrong,) = compared.misclassified
    assert (wrong.name, wrong.ours, wrong.hta) == (name, "communication", "computation")
    by_figure = {one.figure: one for one in compared.differences}
    assert by_figure["compute_ns"].classification
    assert by_figure["overlap_ratio"].ours == pytest.approx(100.5 / 200)


@pytest.mark.hta
@needs_hta
@pytest.mark.shared
def test_critical_path_and_exact_agreement_on_a_real_trace() -> None:
    path = SHARED / "corpus" / "dlrm_v100_8ranks"
    compared = hta.compare(*analysed(path, "trace"))
    assert {one.rank for one in compared.differences} == set(range(8))
    for one in compared.differences:
        assert one.launch_unseen == 0
        assert one.classification == pytest.approx(0, abs=1e-3)
    report, _ = analysed(sorted(path.glob("worker0*.gz"))[0], "trace")
    found = hta.with_critical_path(replace(report, window=replace(report.window, steps=[])))
    assert found.critical_path is not None or any("failed" in e.text for e in found.data_quality)
    found = hta.with_critical_path(analysed(sorted(path.glob("worker0*.gz"))[0])[0])
    assert found.critical_path is not None
    assert found.critical_path.total_ns == sum(found.critical_path.by_kind_ns.values()) > 0


@pytest.mark.hta
@needs_hta
@pytest.mark.shared
@pytest.mark.parametrize(
    "name", ["alltoall_a100_rank0_of_16", "resnet_ddp_mi300x_rank0_of_8", "resnet_v100_memory"]
)
def test_real_traces_agree_to_the_nanosecond(name: str) -> None:
    """HTA computes in µs as floats, of which a ratio has four digits."""
    compared = hta.compare(*analysed(SHARED / "corpus" / name, "trace"))
    assert compared.misclassified == []
    for one in compared.differences:
        if one.classification is None:
            assert one.hta is None
        else:
            slack = 1e-4 if one.figure == "overlap_ratio" else 1
            assert one.classification == pytest.approx(0, abs=slack), one.figure


@pytest.mark.hta
@needs_hta
@pytest.mark.shared
def test_operators_that_hta_takes_for_kernels_are_named() -> None:
    compared = hta.compare(*analysed(SHARED / "corpus" / "compiled_triton", "trace"))
    assert len(compared.misclassified) == 4
    assert {(one.ours, one.hta) for one in compared.misclassified} == {("(cpu_op)", "computation")}


@pytest.mark.hta
@needs_hta
@pytest.mark.shared
def test_a_failure_of_hta_is_a_reason() -> None:
    """HTA's critical path ends in an assertion without words on this trace; the reason says where."""
    filled = hta.with_critical_path(analysed(SHARED / "corpus" / "toy_mi250")[0])
    assert filled.critical_path is None
    (entry,) = [entry for entry in filled.data_quality if entry.code == "critical-path-failed"]
    assert "failed: AssertionError: in " in entry.text
