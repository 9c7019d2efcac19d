"""The traces of a run, against each other."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from trace_helpers import read_runs_with, threads_ahead

from sp_profiler.errors import InputError
from sp_profiler.trace.ahead import is_unwanted
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.find import find_runs
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.load import check_run, load_run
from sp_profiler.trace.tables import Trace, TraceSet
from sp_profiler.trace.write import TraceWriter


def _write(folder: Path, name: str, rank: int | None, *, world_size: int = 2, kernel: str = "k") -> str:
    return TraceWriter(rank=rank, world_size=world_size).kernel(kernel, 0, 1).write(folder / name)


def _load(folder: Path, **options) -> TraceSet:
    (run,) = find_runs([str(folder)])
    return load_run(run, **options)


def _entries(run: TraceSet) -> list[tuple[str, str]]:
    return [(one.code, one.severity) for one in run.ledger]


def test_ranks_are_sorted_and_files_announced(tmp_path: Path) -> None:
    for rank in (2, 10, 0, 1):
        _write(tmp_path, f"rank{rank}.json", rank, world_size=11)
    seen: list[str] = []
    run = _load(tmp_path, on_file=seen.append)
    assert run.ranks == (0, 1, 2, 10)
    assert sorted(seen) == [str(tmp_path / f"rank{rank}.json") for rank in (0, 1, 10, 2)]
    (missing,) = run.ledger
    assert (missing.code, missing.severity, missing.count) == ("ranks-missing", "note", 7)
    assert "3, 4, 5" in missing.text


def test_the_rank_comes_from_the_name_when_the_file_is_silent(tmp_path: Path) -> None:
    _write(tmp_path, "rank-1.Jul_15.1074.pt.trace.json.gz", None)
    _write(tmp_path, "rank0.json", None)
    run = _load(tmp_path)
    assert run.ranks == (0, 1)
    assert [trace.metadata.rank_source for trace in run.traces] == ["file-name", "file-name"]
    assert run.ledger == ()


def test_a_single_file_may_have_no_rank(tmp_path: Path) -> None:
    _write(tmp_path, "trace.json", None)
    run = _load(tmp_path)
    assert run.ranks == (None,)
    assert _entries(run) == [("rank-unknown", "assumption")]


def test_several_files_without_ranks_are_numbered_by_name(tmp_path: Path) -> None:
    _write(tmp_path, "a.json", None)
    _write(tmp_path, "b.json", 0)
    _write(tmp_path, "c.json", None, kernel="other")
    run = _load(tmp_path)
    assert [(trace.rank, Path(trace.path).name) for trace in run.traces] == [
        (0, "b.json"),
        (1, "a.json"),
        (2, "c.json"),
    ]
    assert _entries(run).count(("rank-assumed", "assumption")) == 2


def test_workers_and_folders_are_hints(tmp_path: Path) -> None:
    _write(tmp_path, "worker3.1623212756351.pt.trace.json", None)
    _write(tmp_path, "worker1.1623212756352.pt.trace.json", None, kernel="other")
    assert _load(tmp_path).ranks == (1, 3)
    for rank in (4, 6):
        (tmp_path / "folders" / f"rank{rank}").mkdir(parents=True)
        _write(tmp_path / "folders" / f"rank{rank}", "trace.json", None, kernel=str(rank))
    assert _load(tmp_path / "folders").ranks == (4, 6)


def test_two_files_with_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [_write(tmp_path, "rank0.json", 0), _write(tmp_path, "again.json", 0, kernel="other")]
    with pytest.raises(InputError) as caught:
        _load(tmp_path)
    assert "both hold rank 0" in str(caught.value)
    assert all(path in str(caught.value) for path in paths)


def test_identical_copies_count_once(tmp_path: Path) -> None:
    _write(tmp_path, "rank0.json", 0, world_size=1)
    _write(tmp_path, "rank0.json.gz", 0, world_size=1)
    shutil.copy(tmp_path / "rank0.json", tmp_path / "copy_of_rank0.json")
    run = _load(tmp_path)
    assert run.ranks == (0,)
    assert _entries(run) == [("identical-copy", "note")] * 2


def test_an_unreadable_file_among_others_is_a_loss(tmp_path: Path) -> None:
    _write(tmp_path, "rank0.json", 0)
    (tmp_path / "rank1.json").write_bytes(b"")
    run = _load(tmp_path)
    assert run.ranks == (0,)
    assert _entries(run) == [("unreadable-file", "loss"), ("ranks-missing", "note")]
    assert run.ledger[0].file == str(tmp_path / "rank1.json")
    assert "is empty" in run.ledger[0].text


def test_nothing_readable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(b"")
    with pytest.raises(InputError, match=r"rank0\.json is empty"):
        _load(tmp_path)
    (tmp_path / "rank1.json").write_bytes(b"")
    with pytest.raises(InputError, match="none of the 2 trace files"):
        _load(tmp_path)


def test_limits_reach_every_file(tmp_path: Path) -> None:
    _write(tmp_path, "rank0.json", 0)
    with pytest.raises(InputError, match="more than 10 bytes"):
        _load(tmp_path, limits=Limits(inflated_bytes=10))


def test_worlds_that_disagree(tmp_path: Path) -> None:
    _write(tmp_path, "rank0.json", 0, world_size=2)
    _write(tmp_path, "rank5.json", 5, world_size=4)
    run = _load(tmp_path)
    assert _entries(run) == [
        ("world-size-disagrees", "assumption"),
        ("rank-outside-world", "assumption"),
        ("ranks-missing", "note"),
    ]
    assert run.ledger[-1].count == 3


@pytest.mark.shared
def test_eight_ranks_of_the_corpus(shared: Path) -> None:
    run = _load(shared / "corpus" / "dlrm_v100_8ranks")
    assert run.ranks == tuple(range(8))
    assert run.ledger == ()


def _launches(pid: int, shift_us: int) -> list[dict[str, object]]:
    """Three launches and their kernels, as every rank numbers them."""
    events: list[dict[str, object]] = []
    for number in (1, 2, 3):
        at = {"ph": "X", "ts": 100 * number + shift_us, "args": {"correlation": number}}
        events.append(
            {**at, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": pid, "dur": 1}
        )
        kernel = {"correlation": number, "device": 0, "stream": 7}
        events.append({**at, "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 50, "args": kernel})
    return events


@pytest.mark.parametrize(("pids", "told"), [((100, 200), "pids 100, 200"), ((1, 1), "more than once")])
def test_ranks_merged_into_one_file_are_refused(tmp_path: Path, pids: tuple[int, int], told: str) -> None:
    """Their kernels share devices and correlation ids: figures of the mixture would be of nobody."""
    events = [event for i, pid in enumerate(pids) for event in _launches(pid, 7 * i)]
    (tmp_path / "merged_trace.json").write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(InputError, match=f"merged into one file .*{told}"):
        _load(tmp_path)
    (tmp_path / "rank0_trace.json").write_text(json.dumps({"traceEvents": _launches(1, 0)}))
    assert ("unreadable-file", "loss") in _entries(_load(tmp_path))


def test_ranks_that_wrote_into_one_another_keep_what_is_intact(tmp_path: Path) -> None:
    events = [json.dumps(event) for pid in (100, 200) for event in _launches(pid, 0)]
    events[3] = events[3][:40] + events[3]
    (tmp_path / "rank0_trace.json").write_text('{"traceEvents": [' + ",".join(events) + "]}")
    run = _load(tmp_path)
    assert ("several-processes", "assumption") in _entries(run)
    assert len(run.traces[0].events) >= len(events) - 1


@pytest.mark.parametrize("cores", [1, 2])
def test_the_next_file_is_decoded_meanwhile_where_there_is_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    """Order, ledger and errors are the same; of two files one is decoded before the other was taken."""
    for rank in (0, 1, 3):
        _write(tmp_path, f"rank{rank}.json", rank, world_size=4)
    (tmp_path / "rank2.json").write_text("no trace")
    read_runs_with(monkeypatch, cores)
    (files,) = find_runs([str(tmp_path)])
    decoded: list[str] = []
    second = threading.Event()

    def decode(path: str, limits: Limits) -> Trace:
        decoded.append(Path(path).name)
        if len(decoded) == 2:
            second.set()
        return decode_trace(path, limits)

    taken: list[int | None] = []

    def take(trace: Trace) -> None:
        if not taken:
            assert second.wait(60 if cores > 1 else 0) == (cores > 1)
        taken.append(trace.rank)

    run = check_run(files, take, pytest.fail, limits=Limits(), on_file=None, decode=decode)
    assert decoded == [f"rank{rank}.json" for rank in range(4)]
    assert taken == [0, 1, 3]
    assert [entry.code for entry in run.ledger] == ["unreadable-file", "ranks-missing"]


def test_an_interrupt_ends_the_decoding_of_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        _write(tmp_path, f"rank{rank}.json", rank)
    read_runs_with(monkeypatch, cores=2)
    (files,) = find_runs([str(tmp_path)])
    others = threading.enumerate()
    waits = threading.Event()

    def decode(path: str, limits: Limits) -> Trace:
        if path.endswith("rank1.json"):
            waits.set()
            while not is_unwanted():
                time.sleep(0.001)
        return decode_trace(path, limits)  # refuses at its first block

    def take(trace: Trace) -> None:
        assert waits.wait(60)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_run(files, take, pytest.fail, limits=Limits(), on_file=None, decode=decode)
    assert not threads_ahead(others)
