"""`sp-profile plan` as a user meets it, and a real run beside its plan."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jsonschema
import pytest
from context_run_worker import run_in_forks
from plan_helpers import executions_shared

from sp_profiler.cli.main import main
from sp_profiler.report.planned.json import SCHEMA_PATH

SIZES = ("--seq-len", "64", "--hidden", "96", "--heads", "8", "--kv-heads", "4", "--vocab", "72")
TIMES = ("--flops", "1e12", "--bandwidth", "1e9", "--latency", "5e-6", "--memory-bandwidth", "1e11")


@pytest.fixture(scope="module", autouse=True)
def _executed_once() -> Iterator[None]:
    with executions_shared():
        yield


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a plan prints."""
    assert main(["plan", *SIZES, *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence with which a plan is refused."""
    assert main(["plan", *SIZES, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_it_prints_sentences_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys, "--layers", "1", "2", *TIMES)
    assert "With 2 layers SP recompute keeps least for backward" in out
    assert "equals the closed form to the byte for all 12 schemes" in out
    assert "SP basic − SP recompute" in out
    assert "Estimated step on as given" in out
    assert "GEMMs and attention take their FLOPs / (peak x efficiency)" in out


def test_json_on_the_screen_follows_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    plain = json.loads(plan(capsys, "--json", "--modes", "tp", "sp", "--save", "full", "--layers", "2"))
    jsonschema.validate(plain, json.loads(SCHEMA_PATH.read_text()))
    assert [scheme["label"] for scheme in plain["schemes"]] == ["TP sync", "SP basic"]


def test_every_format_in_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    formats = ("json", "html", "markdown", "csv", "parquet")
    plan(capsys, "--layers", "1", "2", *TIMES, "--format", *formats, "-o", f"{tmp_path}/plan/")
    names = {path.name for path in (tmp_path / "plan").iterdir()}
    tables = {f"{table}.{end}" for table in ("schemes", "terms", "differences") for end in ("csv", "parquet")}
    assert names == {"plan.json", "plan.html", "plan.md"} | tables
    plain = json.loads((tmp_path / "plan" / "plan.json").read_text())
    rows = list(csv.DictReader(io.StringIO((tmp_path / "plan" / "schemes.csv").read_text())))
    assert [int(row["saved_bytes"]) for row in rows] == [s["saved_bytes"] for s in plain["schemes"]]
    assert [int(row["theory.time.gemm_ns"]) for row in rows] == [
        s["theory"]["time"]["gemm_ns"] for s in plain["schemes"]
    ]
    page = (tmp_path / "plan" / "plan.html").read_text()
    for name in ("plan-saved", "plan-layers", "plan-step", "plan-comm"):
        assert f'id="plot-{name}"' in page
    for name in ("plan-memory", "plan-differences", "plan-times", "plan-terms"):
        assert f'id="table-{name}"' in page
    assert "| SP basic − SP recompute |" in (tmp_path / "plan" / "plan.md").read_text()


def test_one_format_in_one_file_that_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "p.json"
    out = plan(capsys, "--modes", "tp", "--format", "json", "-o", str(file))
    assert f"written: {file}" in out
    assert json.loads(file.read_text())["schema"] == "sp-profile/plan"
    assert "exists already" in refused(capsys, "--format", "json", "-o", str(file))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tp", "3"], "--heads 8 is not divisible by --tp 3 in mode tp"),
        (
            ["--hardware", "nothing"],
            "unknown hardware 'nothing', expected one of a100-nvlink, a100-ib",
        ),
        (["--hardware", "h100-wifi"], "unknown hardware 'h100-wifi', expected one of a100-nvlink"),
        (["--bandwidth", "10e9"], "--flops, --latency are missing"),
        (["--layers", "0"], "--layers is 0, expected a whole number of at least 1"),
        (["--format", "html"], "--format html needs -o OUT"),
        (["--json", "-o", "x"], "--json prints to the screen"),
        (["--format", "json", "markdown"], "several formats need -o DIR"),
        (["-o", "x"], "-o OUT needs --format"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in refused(capsys, *arguments)


def test_without_torch_it_says_how_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert 'pip install "sp-profiler[run]"' in refused(capsys)


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from sp_profiler.cli.main import main\n"
        "try: main(['plan', '--help'])\n"
        "except SystemExit: print('torch' in sys.modules, 'polars' in sys.modules, 'plotly' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.endswith("False False False\n")


SEVENTY_BILLION = {
    "--layers": 80,
    "--hidden": 8192,
    "--heads": 64,
    "--kv-heads": 8,
    "--ffn": 28672,
    "--vocab": 128256,
    "--seq-len": 8192,
    "--micro-batch": 1,
    "--tp": 8,
}
COSTS = """
import resource, sys
from sp_profiler.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
peak_kib = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(used.ru_utime + used.ru_stime, int(peak_kib) * 1024, file=sys.stderr)
sys.exit(code)
"""
"""Not ru_maxrss: it keeps the size of the process that started this one, here that of the test run."""


def test_a_70b_shape_takes_a_minute_of_cpu_and_a_gigabyte_at_most() -> None:
    """80 layers over 8 ranks, all three schemes, the whole command."""
    options = [str(part) for option in SEVENTY_BILLION.items() for part in option]
    command = [sys.executable, "-c", COSTS, "plan", *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=280)
    cpu_s, peak_bytes = map(float, done.stderr.split())
    assert cpu_s < 60
    assert peak_bytes < 1e9
    schemes = json.loads(done.stdout)["schemes"]
    assert [scheme["label"] for scheme in schemes] == ["TP sync", "SP basic", "SP recompute"]
    parameters = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672) // 8 + 161 * 8192 + 2 * 128256 * 8192
    assert {scheme["parameter_bytes"] for scheme in schemes} == {2 * parameters}
    f = 2 * 8192 * 8192
    assert (schemes[1]["saved_bytes"] - schemes[2]["saved_bytes"]) * 8 == 80 * (5 * 8 - 2) * f


RUN = (*SIZES, "--layers", "2", "--micro-batch", "3", "--dtype", "bf16")


def total(entries: list[dict[str, Any]]) -> dict[str, int]:
    by_term: dict[str, int] = {}
    for entry in entries:
        by_term[entry["term"]] = by_term.get(entry["term"], 0) + entry["bytes"]
    return by_term


@pytest.mark.gloo
@pytest.mark.parametrize(
    "schedule",
    [
        ("tp", "--comm", "sync"),
        ("sp", "--save", "full", "--comm", "sync", "--projections", "fused"),
        ("sp", "--save", "shard", "--comm", "async", "--norm", "fused"),
    ],
    ids=lambda schedule: "-".join(schedule[::2]),
)
def test_a_real_run_keeps_what_its_plan_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, schedule: tuple[str, ...]
) -> None:
    """Two ranks over gloo: saved bytes by term, and what is held, to the byte."""
    steps = ("--warmup", "1", "--active-steps", "1", "--ranks", "2", "--backend", "gloo")
    with mock.patch("sp_profiler.record.workload.run_job", run_in_forks):
        assert main(["run", *schedule, *RUN, *steps, "--out", str(tmp_path / "run")]) == 0
    measured = json.loads((tmp_path / "run" / "run.json").read_text())["saved_tensors"]
    capsys.readouterr()
    assert main(["plan", "--modes", *schedule, *RUN, "--tp", "2", "--json"]) == 0
    (planned,) = json.loads(capsys.readouterr().out)["schemes"]
    assert set(measured) == {"0", "1"}
    for rank in measured.values():
        assert rank["saved_bytes"] == planned["saved_bytes"]
        by_term = {term: size for term, size in planned["saved_by_term"].items() if size}
        assert total(rank["tensors"]) == by_term
        for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
            assert rank[name] == planned[name]


def test_one_scheme_alone_prints_its_terms(capsys: pytest.CaptureFixture[str]) -> None:
    """A table of two columns has none that narrow terminals could leave out."""
    out = plan(capsys, "--modes", "tp", "--layers", "1")
    assert "Saved for backward by term, 1 layer" in out
