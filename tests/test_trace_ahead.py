"""Work ahead of its use: the same items and errors as without, and no thread that outlives its user."""

from __future__ import annotations

import contextlib
import gzip
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from native_texts import NEIGHBOUR, document
from trace_helpers import threads_ahead

from sp_profiler.errors import InputError
from sp_profiler.ledger import Ledger
from sp_profiler.trace import inflate
from sp_profiler.trace.ahead import ahead, is_unwanted
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.limits import Limits

_others: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _of_other_tests() -> None:
    """A reader that another test left at work is not ours."""
    _others.clear()
    _others.update(threading.enumerate())


def _threads() -> list[threading.Thread]:
    """Threads of `ahead` that the test left."""
    return threads_ahead(_others)


def _numbers(count: int, made: list[int]) -> Generator[int, None, None]:
    for number in range(1, count + 1):
        made.append(number)
        yield number


@pytest.mark.parametrize("count", [1, 2, 50])
def test_the_same_items_in_the_same_order(count: int) -> None:
    assert list(ahead(_numbers(20, []), count)) == list(range(1, 21))
    assert not _threads()


def test_no_more_are_made_than_wait() -> None:
    made: list[int] = []
    with contextlib.closing(ahead(_numbers(20, made), 2)) as numbers:
        assert next(numbers) == 1
        assert next(numbers) == 2
    assert made[:2] == [1, 2]
    assert len(made) <= 4
    assert not _threads()


def test_an_error_comes_in_its_place() -> None:
    def failing() -> Generator[str, None, None]:
        yield "before"
        raise InputError("broken")

    items = ahead(failing(), 2)
    assert next(items) == "before"
    with pytest.raises(InputError, match="broken"):
        next(items)
    assert not _threads()


def test_what_nobody_takes_ends_early_through_all_threads() -> None:
    """The inner thread learns that the outer one is closed, and neither is left behind."""
    started, ended = threading.Event(), threading.Event()

    def endless() -> Generator[int, None, None]:
        yield 1
        started.set()
        while not is_unwanted():
            ended.wait(0.001)
        ended.set()

    def outer() -> Generator[int, None, None]:
        yield from ahead(endless(), 1)

    with contextlib.closing(ahead(outer(), 2)) as items:
        assert next(items) == 1
        assert started.wait(60)
        assert not ended.is_set()
    assert ended.is_set()
    assert not _threads()
    assert not is_unwanted()


_WAITS = """
import os, signal, threading, time
from sp_profiler.trace.ahead import ahead, is_unwanted

def endless():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    while not is_unwanted():
        time.sleep(0.01)
    yield 1

signal.siginterrupt(signal.SIGINT, False)  # as polars does
try:
    next(ahead(endless(), 1))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_ends_the_wait_for_work_also_where_system_calls_go_on() -> None:
    done = subprocess.run([sys.executable, "-c", _WAITS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


def _packed(folder: Path, *, damage: int | None) -> str:
    """Three members, the second of many blocks; `damage` is a byte of the file that is inverted."""
    many = document(*[NEIGHBOUR] * 30_000)
    third = len(many) // 3
    parts = [many[:third], many[third : 2 * third], many[2 * third :]]
    data = bytearray(b"".join(gzip.compress(part, 1, mtime=0) for part in parts))
    if damage is not None:
        data[damage] ^= 0xFF
    path = folder / "rank0.json.gz"
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("damage", [None, 5_000, 20_000, -4])
def test_a_packed_file_reads_the_same_with_one_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: int | None
) -> None:
    monkeypatch.setattr(inflate, "_INFLATE_BYTES", 1 << 14)
    path = _packed(tmp_path, damage=damage)
    monkeypatch.setattr(inflate, "usable_cores", lambda: 1)
    alone = decode_trace(path)
    monkeypatch.setattr(inflate, "usable_cores", lambda: 2)
    beside = decode_trace(path)
    assert len(alone.events) == len(beside.events) > 0
    assert alone.ledger == beside.ledger
    assert bool(alone.ledger) == (damage is not None)
    assert not _threads()


def test_text_of_small_members_is_handed_over_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each piece the threads would take turns, which costs many times what inflating does."""
    text = document(*[NEIGHBOUR] * 30)
    parts = [gzip.compress(text[at : at + 1], 1, mtime=0) for at in range(len(text))]
    damaged = bytearray(gzip.compress(text, 1, mtime=0))
    damaged[-5] ^= 0xFF
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(b"".join(parts) + bytes(damaged))
    pieces = 0

    def counted(items: Generator[object, None, None], count: int) -> Generator[object, None, None]:
        nonlocal pieces
        for item in ahead(items, count):
            pieces += 1
            yield item

    monkeypatch.setattr(inflate, "ahead", counted)
    monkeypatch.setattr(inflate, "usable_cores", lambda: 2)
    ledger = Ledger(str(path))
    with path.open("rb") as file, inflate.read_text(file, str(path), Limits(), ledger) as blocks:
        assert b"".join(blocks) == text + text
    assert [(entry.code, entry.first_offset) for entry in ledger.entries] == [("bad-checksum", 2 * len(text))]
    assert pieces == 2  # the text, and where it is damaged


def test_a_refused_file_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflate, "_INFLATE_BYTES", 1 << 14)
    monkeypatch.setattr(inflate, "usable_cores", lambda: 2)
    with pytest.raises(InputError, match="limit"):
        decode_trace(_packed(tmp_path, damage=None), Limits(events=100))
    assert not _threads()
