"""The cache of decoded traces: equal results whatever happens to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sp_profiler.trace import cache
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.limits import Limits
from sp_profiler.trace.write import TraceWriter


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SP_PROFILER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 0)
    return tmp_path / "cache"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    writer = TraceWriter(rank=3, world_size=8)
    writer.step(1, 0, 500).kernel("gemm «ß»", 0, 100, stream=7).memory(5, 512, address=2**63 + 8)
    writer.collective("all_reduce", 50, 100, stream=20, ranks=[0, 1], seq=4, is_async=True)
    writer.cpu_op("aten::mm", 1, 3, dims=[[2, 3], [3, 4]])
    text = writer.text().replace('"dur":100', '"dur":-100', 1)  # a repair, so that the ledger is not empty
    path = tmp_path / "rank-00003.json"
    path.write_text(text)
    return str(path)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return one == other


def test_what_comes_back_is_what_was_decoded(folder: Path, trace: str) -> None:
    decoded = decode_trace(trace)
    assert decoded.ledger
    assert same(cache.decode_cached(trace), decoded)
    assert len(list(folder.iterdir())) == 1
    assert same(cache.decode_cached(trace), decoded)


def test_the_second_time_nothing_is_decoded(
    folder: Path, trace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = cache.decode_cached(trace)

    def never(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(cache, "decode_trace", never)
    assert same(cache.decode_cached(trace), decoded)
    with pytest.raises(AssertionError):  # another limit is another question
        cache.decode_cached(trace, Limits(events=10**6))


def test_another_path_with_the_same_content_speaks_of_itself(
    folder: Path, trace: str, tmp_path: Path
) -> None:
    cache.decode_cached(trace)
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(trace, tmp_path / "elsewhere")
    assert same(cache.decode_cached(copy), decode_trace(copy))
    assert len(list(folder.iterdir())) == 1


def test_changed_content_is_another_trace(folder: Path, trace: str) -> None:
    cache.decode_cached(trace)
    Path(trace).write_text(Path(trace).read_text().replace("gemm", "gemn"))
    assert any("gemn" in text for text in cache.decode_cached(trace).strings.pool)


@pytest.mark.parametrize("name", ["events.parquet", "flows.parquet", "memory.parquet", "about.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
def test_a_broken_entry_counts_as_absent_and_is_replaced(
    folder: Path, trace: str, name: str, damage: str
) -> None:
    decoded = cache.decode_cached(trace)
    (entry,) = folder.iterdir()
    file = entry / name
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9] if damage == "cut" else b"{}")
    assert same(cache.decode_cached(trace), decoded)
    (entry,) = folder.iterdir()
    assert same(cache._read(entry, trace), decoded)


def test_a_cache_that_cannot_be_written_changes_nothing(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SP_PROFILER_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "SMALLEST_BYTES", 0)
    assert same(cache.decode_cached(trace), decode_trace(trace))


def test_small_files_leave_nothing(tmp_path: Path, trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SP_PROFILER_CACHE", str(tmp_path / "cache"))
    cache.decode_cached(trace)
    assert not (tmp_path / "cache").exists()


def test_the_entry_used_longest_ago_makes_room(
    folder: Path, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.decode_cached(trace)
    (first,) = folder.iterdir()
    os.utime(first, (1, 1))
    size = sum(file.stat().st_size for file in first.iterdir())
    monkeypatch.setattr(cache, "LARGEST_BYTES", int(size * 1.5))
    other = tmp_path / "rank-00004.json"
    other.write_text(Path(trace).read_text())
    cache.decode_cached(str(other))
    (left,) = folder.iterdir()
    assert left != first


def test_many_at_once_all_get_the_trace_and_leave_one_entry(folder: Path, trace: str) -> None:
    program = (
        "import sys; from sp_profiler.trace import cache; cache.SMALLEST_BYTES = 0\n"
        "for _ in range(5): print(len(cache.decode_cached(sys.argv[1]).events))"
    )
    together = [
        subprocess.Popen([sys.executable, "-c", program, trace], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    expected = f"{len(decode_trace(trace).events)}\n" * 5
    assert [process.communicate(timeout=120)[0] for process in together] == [expected] * 4
    assert len(list(folder.iterdir())) == 1
    assert not any(path.name.startswith(".new-") for path in folder.iterdir())
