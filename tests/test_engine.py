"""A run from its files, with one or two traces in memory at a time, is the run that was loaded whole."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
from trace_helpers import read_runs_with

from sp_profiler import engine
from sp_profiler.analysis.steps import WindowRule
from sp_profiler.engine import analyze_files, analyze_run
from sp_profiler.errors import InputError, SpProfilerError, UsageError
from sp_profiler.ledger import LedgerEntry
from sp_profiler.report.json import render
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.load import load_run
from sp_profiler.trace.tables import RunFiles, Trace
from sp_profiler.trace.write import TraceWriter


def write(folder: Path, name: str, rank: int | None, late: int = 0, world_size: int = 4) -> Path:
    """Step 0 with a GEMM and an all-reduce; `late` shifts what the device does."""
    writer = TraceWriter(rank=rank, world_size=world_size).step(0, 0, 100)
    writer.kernel("gemm", 10 + late, 20, launch=5)
    metadata = {
        "Collective name": "allreduce",
        "Group size": world_size,
        "Process Group Name": "0",
        "Process Group Description": "tp",
        "Process Group Ranks": str(list(range(world_size))),
        "In msg nelems": 64,
        "Out msg nelems": 64,
        "dtype": "BFloat16",
        "Seq": 1,
    }
    name_of = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()"
    writer.kernel(name_of, 20 + late, 40 - late, stream=20, launch=6, **metadata)
    return Path(writer.write(folder / name))


def files_of(folder: Path) -> RunFiles:
    (files,) = find_runs([str(folder)])
    return files


def assert_equal(files: RunFiles, rule: WindowRule | None = None) -> str:
    streamed = render(analyze_files(files, rule))
    assert streamed == render(analyze_run(load_run(files), rule))
    return streamed


def test_both_ways_give_the_same_report(tmp_path: Path) -> None:
    for rank in (10, 2, 0, 1):
        write(tmp_path, f"rank{rank}.json", rank, late=rank, world_size=11)
    assert '"rank":10' in assert_equal(files_of(tmp_path))
    assert_equal(files_of(tmp_path), WindowRule("trace"))


def test_the_drawn_rank_is_the_first_in_any_order_of_files(tmp_path: Path) -> None:
    for rank, name in ((3, "a.json"), (1, "b.json"), (2, "c.json"), (0, "d.json")):
        write(tmp_path, name, rank, late=rank)
    report = analyze_files(files_of(tmp_path))
    assert report.timeline is not None
    assert report.timeline.rank == 0
    assert [rank.rank for rank in report.ranks] == [0, 1, 2, 3]
    assert_equal(files_of(tmp_path))


def test_copies_unreadable_and_nameless_files(tmp_path: Path) -> None:
    first = write(tmp_path, "rank0.json", 0)
    shutil.copy(first, tmp_path / "rank0-copy.json")
    write(tmp_path, "rank1.json", 1, late=3)
    write(tmp_path, "first.json", None, late=5)
    write(tmp_path, "second.json", None, late=7)
    (tmp_path / "rank7.json").write_text('{"traceEvents": 3}')
    text = assert_equal(files_of(tmp_path))
    for code in ("identical-copy", "unreadable-file", "rank-assumed"):
        assert f'"code":"{code}"' in text


def test_a_single_nameless_file(tmp_path: Path) -> None:
    write(tmp_path, "trace.json", None, world_size=1)
    assert '"rank-unknown"' in assert_equal(files_of(tmp_path))


def test_nameless_traces_beyond_what_is_held_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        write(tmp_path, f"part{number}.json", None, late=number)
    files = files_of(tmp_path)
    expected = render(analyze_files(files))
    read: list[str] = []

    def decode(path: str, limits: Limits) -> Trace:
        read.append(path)
        return decode_trace(path, limits)

    monkeypatch.setattr(engine, "_HELD_BYTES", 0)
    assert render(analyze_files(files, decode=decode)) == expected
    assert sorted(read) == sorted(2 * files.files)


@pytest.mark.parametrize("cores", [1, 2])
def test_one_trace_is_in_memory_while_another_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    """Where there is no core to decode it meanwhile, not even one."""
    read_runs_with(monkeypatch, cores)
    for rank in range(4):
        write(tmp_path, f"rank{rank}.json", rank, late=rank)
    alive: list[weakref.ref[Trace]] = []
    seen: list[int] = []

    def decode(path: str, limits: Limits) -> Trace:
        seen.append(sum(one() is not None for one in alive))
        trace = decode_trace(path, limits)
        alive.append(weakref.ref(trace))
        return trace

    analyze_files(files_of(tmp_path), decode=decode)
    assert len(seen) == 4
    assert max(seen) < cores


def test_what_the_files_are_refused_for_comes_before_what_their_analysis_is(tmp_path: Path) -> None:
    write(tmp_path, "rank0.json", 0)
    write(tmp_path, "rank1.json", 1)
    no_step = WindowRule(steps=(7, 9))
    told: list[int] = []

    def refuse(ledger: Sequence[LedgerEntry]) -> None:
        told.append(len(ledger))
        raise InputError("refused")

    with pytest.raises(InputError, match="refused"):
        analyze_files(files_of(tmp_path), no_step, on_loaded=refuse)
    assert told == [1]  # ranks 2 and 3 are missing
    with pytest.raises(UsageError) as streamed:
        analyze_files(files_of(tmp_path), no_step)
    with pytest.raises(UsageError) as loaded:
        analyze_run(load_run(files_of(tmp_path)), no_step)
    assert str(streamed.value) == str(loaded.value)


def test_two_files_of_one_rank_are_refused_alike(tmp_path: Path) -> None:
    write(tmp_path, "a.json", 1)
    write(tmp_path, "b.json", 1, late=2)
    texts: list[str] = []
    for analyze in (analyze_files, lambda files: analyze_run(load_run(files))):
        with pytest.raises(SpProfilerError) as refused:
            analyze(files_of(tmp_path))
        texts.append(str(refused.value))
    assert texts[0] == texts[1]
    assert "both hold rank 1" in texts[0]


def test_files_and_ranks_are_announced(tmp_path: Path) -> None:
    for rank in (1, 0):
        write(tmp_path, f"rank{rank}.json", rank)
    files, told = files_of(tmp_path), []
    analyze_files(files, on_file=told.append, on_rank=told.append)
    assert told == [path for path in files.files for _ in range(2)]


@pytest.mark.parametrize(
    ("stated", "taken", "disagree"),
    [(2, 4, "2, 4"), (8, 8, "4, 8"), (True, 4, ""), (-3, 4, ""), (10**12, 4, ""), ("many", 4, "")],
)
def test_the_report_has_the_world_size_that_its_ledger_says_was_taken(
    stated: object, taken: int, disagree: str, tmp_path: Path
) -> None:
    write(tmp_path, "rank0.json", 0, world_size=4)
    (tmp_path / "run.json").write_text(json.dumps({"world_size": stated}))
    report = analyze_files(files_of(tmp_path))
    assert report.run.world_size == taken
    said = [entry.text for entry in report.data_quality if entry.code == "world-size-disagrees"]
    whole = f"the files state different world sizes, {disagree}; {taken} was taken"
    assert said == ([whole] if disagree else [])
