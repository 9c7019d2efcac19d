"""Runs analysed rank by rank on engines: the figures of `analyze_files`, its errors, and what is left out."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fleet_helpers import address, local_cluster
from fleet_truth import Truth, write_fleet

import sp_profiler
from sp_profiler.analysis.contention import Side
from sp_profiler.cli.main import main
from sp_profiler.engine import analyze_files
from sp_profiler.errors import InputError, SpProfilerError, UsageError
from sp_profiler.fleet.run import Options, analyze_fleet
from sp_profiler.report.json import to_plain
from sp_profiler.report.model import Report
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.find import find_runs

pytestmark = pytest.mark.timeout(180)

DEMO = Path(__file__).parent.parent / "traces" / "demo"
CASES = (
    "groups_sharing_a_name",
    "list_forms_and_broadcast",
    "no_device_activity",
    "not_only_nccl",
    "rank_list_cut",
    "ring_send_recv",
    "two_ranks_basic",
    "window_misses_a_collective",
)
NOT_FOLLOWED = ("memory", "context_parallel", "fleet")
"""What a fleet's report does not have, or alone has; its ledger says so."""
NOTES_APART = (
    "context-not-followed",
    "collectives-on-disk",
    "opportunity-times-not-on-cpu",  # of the memory that is not followed, as all codes `memory-...`
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_cluster() as found:
        yield found


@pytest.fixture(params=["in-process", "processes:2", "dask"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "dask":
        return address(request.getfixturevalue("cluster"))
    return request.param


def fleet(source: Path, work: Path, engine: str = "in-process", **options: Any) -> Report:
    (files,) = find_runs([str(source)])
    return analyze_fleet(files, options=Options(engine, str(work), **options))


def assert_same(whole: Report, by_rank: Report) -> None:
    """Every member is equal, but what is not followed, and the sentences on it. Means that are weighted over
    ranks in another order may differ in their last digit; entries of the ledger are counted over files."""
    one, two = to_plain(whole), to_plain(by_rank)
    for name in one.keys() - {*NOT_FOLLOWED, "summary", "findings", "data_quality"}:
        assert_close(two[name], one[name], name)
    whole_findings, findings = (
        [finding for finding in findings if not finding["code"].startswith(("memory", "context"))]
        for findings in (one["findings"], two["findings"])
    )
    assert_close(findings, whole_findings, "findings")
    assert all("activations" in text for text in two["summary"] if text not in one["summary"])
    if (by_rank.memory, by_rank.context_parallel) == (whole.memory, whole.context_parallel):
        assert two["summary"] == one["summary"]
    assert counted(by_rank) == counted(whole)


def assert_close(found: Any, expected: Any, where: str) -> None:
    """Equal, numbers that are no integers but for rounding."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12), where
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_close(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for place, value in enumerate(expected):
            assert_close(found[place], value, f"{where}[{place}]")
    else:
        assert found == expected, where


def counted(report: Report) -> dict[tuple[str, str], int]:
    """How often each kind of entry is in the ledger."""
    sums: Counter[tuple[str, str]] = Counter()
    for entry in report.data_quality:
        if entry.code not in NOTES_APART and not entry.code.startswith("memory-"):
            sums[entry.code, entry.severity] += entry.count
    return dict(sums)


# --- equality --------------------------------------------------------------------------------------------


def test_the_demo_has_the_same_figures_on_every_engine(engine: str, tmp_path: Path) -> None:
    report = fleet(DEMO / "sp-recompute", tmp_path / "work", engine)
    assert_same(sp_profiler.analyze(DEMO / "sp-recompute"), report)
    assert report.fleet is not None
    about_memory = {entry.code for entry in report.data_quality if entry.code.startswith("memory-")}
    assert about_memory == {"memory-not-followed"}  # and nothing that was assumed of figures it does not have


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_cases_have_the_same_figures(name: str, shared: Path, tmp_path: Path) -> None:
    case = shared / "cases" / name
    assert_same(sp_profiler.analyze(case), fleet(case, tmp_path / "work"))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth, Report]:
    """A run in which much is wrong, what is true of it, and the report of all in one."""
    run = tmp_path_factory.mktemp("damaged") / "run"
    truth = write_fleet(run, 16, missing=(7,), garbage=(9,), copies=(3,), cut={12: 1}, layers=1, steps=2)
    return run, truth, sp_profiler.analyze(run)


def test_a_damaged_fleet_has_its_true_figures_on_every_engine(
    engine: str, damaged: tuple[Path, Truth, Report], tmp_path: Path
) -> None:
    run, truth, whole = damaged
    report = fleet(run, tmp_path / "work", engine)
    truth.check(report)
    assert report.run.ranks_missing == [7, 9]
    codes = [entry.code for entry in report.data_quality]
    assert {"unreadable-file", "truncated-file", "identical-copy", "ranks-missing"} <= set(codes)
    assert_same(whole, report)


def test_all_collectives_lie_beside_as_parquet(tmp_path: Path) -> None:
    truth = write_fleet(tmp_path / "run", 16, layers=1, steps=2)
    report = fleet(tmp_path / "run", tmp_path / "work")
    assert report.fleet is not None
    folder = Path(report.fleet.collectives_at)
    table = pl.read_parquet(folder / "*.parquet")
    assert table.height == len(truth.collectives) * 16
    assert int(table["exposed_share_ns"].sum()) == int(truth.exposed_ns.sum())
    assert int(table["skew_wait_ns"].sum()) == int(truth.wait_ns[truth.wait_ns >= 0].sum())
    assert sorted(one.name for one in folder.iterdir()) == [f"rank-{r:05d}.parquet" for r in range(16)]
    os.unlink(tmp_path / "run" / "rank-00005.pt.trace.json.gz")
    fleet(tmp_path / "run", tmp_path / "work")
    assert not (folder / "rank-00005.parquet").exists()  # who reads the folder reads this run


def test_windows_and_steps_are_those_of_the_whole(tmp_path: Path) -> None:
    run = DEMO / "tp-async"
    for choice in ({"steps": (1, 2)}, {"window": "trace"}):
        by_rank = sp_profiler.analyze(run, engine="in-process", work=tmp_path / "work", **choice)  # type: ignore[arg-type]
        assert_same(sp_profiler.analyze(run, **choice), by_rank)  # type: ignore[arg-type]


def test_a_baseline_lends_what_it_lends_to_the_whole(tmp_path: Path) -> None:
    write_fleet(tmp_path / "run", 16, layers=1, steps=1)
    (files,) = find_runs([str(tmp_path / "run")])
    own = analyze_files(files)
    assert own.contention
    lent = {(one.shape, one.dtype, one.role): (Side(9, 7_000_000), Side(9, 5_000)) for one in own.contention}
    whole = analyze_files(files, baseline=lent)
    work = str(tmp_path / "work")
    assert_same(whole, analyze_fleet(files, options=Options(work=work), baseline=lent))
    assert_same(own, analyze_fleet(files, options=Options(work=work)))  # nothing of it is left


# --- ranks that nobody states ----------------------------------------------------------------------------


def without_ranks(source: Path, folder: Path) -> None:
    """The traces of a run under names and with metadata that say nothing of ranks."""
    folder.mkdir()
    for name, path in zip("abcdef", sorted(source.glob("*.json.gz")), strict=False):
        text = gzip.decompress(path.read_bytes()).replace(b'"distributedInfo"', b'"nobodyKnows"')
        (folder / f"{name}.json").write_bytes(text)


def test_files_of_unknown_rank_are_numbered_as_ever(tmp_path: Path) -> None:
    without_ranks(DEMO / "tp-async", tmp_path / "run")
    whole = sp_profiler.analyze(tmp_path / "run")
    assert [entry.code for entry in whole.data_quality].count("rank-assumed") == 2
    assert_same(whole, fleet(tmp_path / "run", tmp_path / "work", "processes:1"))
    assert_same(whole, fleet(tmp_path / "run", tmp_path / "work"))  # resumed


def test_a_single_file_need_not_tell_its_rank(tmp_path: Path) -> None:
    without_ranks(DEMO / "tp-async", tmp_path / "run")
    os.unlink(tmp_path / "run" / "b.json")
    assert_same(sp_profiler.analyze(tmp_path / "run"), fleet(tmp_path / "run", tmp_path / "work"))


# --- errors ----------------------------------------------------------------------------------------------


def both_say(source: Path, work: Path, **options: Any) -> SpProfilerError:
    """The error of `analyze_files`, which must be that of a fleet too."""
    with pytest.raises(SpProfilerError) as whole:
        sp_profiler.analyze(source, **options)
    with pytest.raises(SpProfilerError) as by_rank:
        sp_profiler.analyze(source, engine="in-process", work=work, **options)
    assert (type(by_rank.value), str(by_rank.value)) == (type(whole.value), str(whole.value))
    return by_rank.value


def test_errors_are_those_of_the_whole(tmp_path: Path) -> None:
    write_fleet(tmp_path / "claimed", 16, layers=1, steps=1, claimed={4: 6})
    assert "both hold rank 4" in str(both_say(tmp_path / "claimed", tmp_path / "w1"))
    write_fleet(tmp_path / "steps", 16, layers=1, steps=1)
    error = both_say(tmp_path / "steps", tmp_path / "w2", steps=(7, 9))
    assert isinstance(error, UsageError)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-00000.pt.trace.json.gz").write_bytes(b"no gzip")
    (tmp_path / "two" / "rank-00001.pt.trace.json.gz").write_bytes(b"no gzip either")
    assert isinstance(both_say(tmp_path / "one", tmp_path / "w3"), InputError)
    assert "none of the 2 trace files" in str(both_say(tmp_path / "two", tmp_path / "w4"))


def test_what_was_loaded_cannot_be_given_to_an_engine() -> None:
    with pytest.raises(UsageError, match="reads traces from files"):
        sp_profiler.analyze(sp_profiler.load(DEMO / "tp-async"), engine="in-process")


# --- quarantine ------------------------------------------------------------------------------------------


def test_a_slow_trace_is_left_out_and_listed_with_all_its_consequences(tmp_path: Path) -> None:
    truth = write_fleet(tmp_path / "run", 16, layers=1, steps=1, slow={5: 6_000_000})
    report = fleet(tmp_path / "run", tmp_path / "work", "processes:2", retries=1, task_timeout_s=2.0)
    (entry,) = [one for one in report.data_quality if one.code == "rank-quarantined"]
    path = str(tmp_path / "run" / "rank-00005.pt.trace.json.gz")
    assert (entry.severity, entry.file) == ("loss", path)
    assert entry.text == (
        f"{path} is left out: it was tried 2 times, and the last time it took longer than 2 s"
    )
    assert report.run.ranks_missing == [5]
    assert 5 not in report.run.ranks
    assert [one.exposed_ns for one in report.ranks] == [
        int(truth.exposed_ns[rank].sum()) for rank in range(16) if rank != 5
    ]


def test_a_trace_at_which_we_fail_is_left_out_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fleet(tmp_path / "run", 16, layers=1, steps=1)

    def decode(path: str, *args: Any) -> Any:
        if "rank-00002" in path:
            raise ZeroDivisionError("a defect of ours")
        return decode_trace(path, *args)

    monkeypatch.setattr("sp_profiler.fleet.survey.decode_trace", decode)
    report = fleet(tmp_path / "run", tmp_path / "work", retries=2)
    (entry,) = [one for one in report.data_quality if one.code == "rank-quarantined"]
    assert "it was tried 3 times, and the last time ZeroDivisionError: a defect of ours" in entry.text
    assert report.run.ranks_missing == [2]
    monkeypatch.undo()
    assert fleet(tmp_path / "run", tmp_path / "work").run.ranks_missing == []  # the next time it is tried


def test_only_traces_that_fail_make_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fleet(tmp_path / "run", 16, layers=1, steps=1)

    def decode(path: str, *args: Any) -> Any:
        raise ZeroDivisionError("a defect of ours")

    monkeypatch.setattr("sp_profiler.fleet.survey.decode_trace", decode)
    with pytest.raises(InputError, match=r"none of the 16 trace files .* a defect of ours"):
        fleet(tmp_path / "run", tmp_path / "work")


# --- the command -----------------------------------------------------------------------------------------


def test_the_command_reports_as_without_an_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(DEMO / "tp-async")
    assert main(["analyze", run, "--engine", "in-process", "--work", str(tmp_path / "work")]) == 0
    by_rank = capsys.readouterr().out
    assert main(["analyze", run]) == 0
    whole = capsys.readouterr().out
    first = [line for line in whole.splitlines() if "exposed" in line][:3]
    assert first
    assert all(line in by_rank for line in first)


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        (["--engine", "spark://x:1"], "expected in-process, processes, processes:N or dask://HOST:PORT", 2),
        (["--engine", "dask://x"], "expected dask://HOST:PORT", 2),
        (["--work", "x"], "--work goes with --engine", 2),
        (["--retries", "2"], "--retries goes with --engine", 2),
        (["--task-timeout", "2"], "--task-timeout goes with --engine", 2),
        (["--engine", "processes", "--retries", "-1"], "expected 0 or more", 2),
        (["--engine", "processes", "--task-timeout", "0"], "more than 0", 2),
        (["--engine", "processes", "--task-timeout", "nan"], "more than 0", 2),
        (["--engine", "in-process", "--task-timeout", "3"], "needs processes that can be ended", 2),
        (["--engine", "dask://127.0.0.1:9"], "no Dask scheduler answers at dask://127.0.0.1:9", 3),
    ],
)
def test_what_cannot_be_meant_is_said_in_a_sentence(
    words: list[str],
    says: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sp_profiler.fleet.cluster.CONNECT_S", 0.5)
    assert main(["analyze", str(DEMO / "tp-async"), *words]) == code
    told = capsys.readouterr().err
    assert says in told
    assert len(told.splitlines()) == 1


def test_work_is_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--engine", "in-process", "--work", str(tmp_path / "work")]
    assert main(["analyze", str(DEMO), *words]) == 2
    assert "--work is the folder of one run" in capsys.readouterr().err
    assert main(["analyze", str(DEMO / "tp-async"), *words]) == 0
    capsys.readouterr()
    assert main(["analyze", str(DEMO / "tp-sync"), *words]) == 2
    assert "is that of another run (tp-async in" in capsys.readouterr().err


def test_a_folder_with_other_files_is_no_work_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(UsageError, match="has files: name another one with --work"):
        fleet(DEMO / "tp-async", tmp_path / "mine")
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    with pytest.raises(UsageError, match="is a file"):
        fleet(DEMO / "tp-async", tmp_path / "mine" / "thesis.txt")


def test_strict_refuses_before_ranks_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fleet(tmp_path / "run", 16, layers=1, steps=2, cut={3: 1})
    words = ["--engine", "in-process", "--work", str(tmp_path / "work"), "--strict"]
    assert main(["analyze", str(tmp_path / "run"), *words]) == 3
    assert "--strict refuses" in capsys.readouterr().err
    assert not (tmp_path / "work" / "settle").exists()


# --- memory of this process ------------------------------------------------------------------------------

HIGH_WATER = """
import sys
import sp_profiler
report = sp_profiler.analyze(sys.argv[1], engine="processes:2", work=sys.argv[2])
with open("/proc/self/status") as status:
    (line,) = [line for line in status if line.startswith("VmHWM")]
print(len(report.ranks), line.split()[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_memory_of_the_coordinator_does_not_follow_the_size_of_traces(tmp_path: Path) -> None:
    """16 ranks, then the same with 30,000 more events each: 50 times the text."""
    peaks_kb: list[int] = []
    for name, events in (("small", 0), ("large", 30_000)):
        write_fleet(tmp_path / name, 16, layers=1, steps=2, slow=dict.fromkeys(range(16), events))
        done = subprocess.run(
            [sys.executable, "-c", HIGH_WATER, str(tmp_path / name), str(tmp_path / f"{name}-work")],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        ranks, peak_kb = map(int, done.stdout.split())
        assert ranks == 16
        peaks_kb.append(peak_kb)
        shutil.rmtree(tmp_path / name)
    assert peaks_kb[1] - peaks_kb[0] < 6_000  # one of these traces takes more


def test_analyze_files_is_what_it_was_without_an_engine() -> None:
    (files,) = find_runs([str(DEMO / "tp-async")])
    assert sp_profiler.analyze(DEMO / "tp-async").fleet is None
    assert analyze_files(files).fleet is None
