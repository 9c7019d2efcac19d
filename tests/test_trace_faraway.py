"""Events that lie absurdly far from all others: told, never moved or dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_helpers import codes, decode_bytes, entry, names

from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.faraway import CODE

HOUR_US = 3_600_000_000


def _trace(*starts_us: float, dur_us: float = 10) -> bytes:
    events = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k{place}","pid":0,"tid":7,"ts":{start},"dur":{dur_us},'
        f'"args":{{"stream":7}}}}'
        for place, start in enumerate(starts_us)
    )
    return f'{{"distributedInfo":{{"rank":0,"world_size":1}},"traceEvents":[{events}]}}'.encode()


@pytest.mark.parametrize("alone_us", [0, 30 * 365 * 24 * HOUR_US])
def test_a_stray_before_or_behind_is_told_and_kept(tmp_path: Path, alone_us: int) -> None:
    """Half an hour of kernels and one event decades away, in the middle of the file."""
    begin = 20 * 365 * 24 * HOUR_US
    starts = [begin + k * 1_000_000 for k in range(300)]
    trace = decode_bytes(tmp_path, _trace(*starts[:150], alone_us, *starts[150:]))
    told = entry(trace, CODE)
    assert told.severity == "assumption"
    assert told.count == 1
    assert told.text.startswith("1 of 301 events lies far from all others, up to ")
    assert "'k150'" in told.text
    assert ("20.0 years" if alone_us == 0 else "10.0 years") in told.text
    assert trace.events.start_ns[150] == alone_us * 1000
    assert names(trace)[150] == "k150"


def test_strays_on_both_sides_are_counted_together(tmp_path: Path) -> None:
    begin = 20 * 365 * 24 * HOUR_US
    starts = [begin + k * 1_000_000 for k in range(300)]
    told = entry(decode_bytes(tmp_path, _trace(0, *starts, 2 * begin)), CODE)
    assert told.count == 2


def test_sessions_hours_apart_are_no_strays(tmp_path: Path) -> None:
    """Two recordings in one file, the second of a few events."""
    first = [k * 1_000_000 for k in range(100)]
    second = [5 * HOUR_US + k * 1_000_000 for k in range(5)]
    assert CODE not in codes(decode_bytes(tmp_path, _trace(*first, *second)))


def test_an_event_behind_a_long_recording_is_no_stray(tmp_path: Path) -> None:
    """Ten seconds are recorded: two hours later is not yet 1000 times as long, three are."""
    starts = [k * 100_000 for k in range(100)]
    assert CODE not in codes(decode_bytes(tmp_path, _trace(*starts, 2 * HOUR_US)))
    assert CODE in codes(decode_bytes(tmp_path, _trace(*starts, 3 * HOUR_US)))


def test_a_long_event_bridges_the_time(tmp_path: Path) -> None:
    """Nothing lies alone where another event runs all the while."""
    data = _trace(0, 1000, 10 * HOUR_US).replace(b'"ts":0,"dur":10', b'"ts":0,"dur":%d' % (10 * HOUR_US))
    assert CODE not in codes(decode_bytes(tmp_path, data))


def test_the_far_ends_of_time_do_not_overflow(tmp_path: Path) -> None:
    years = 140 * 365 * 24 * HOUR_US
    told = entry(decode_bytes(tmp_path, _trace(-years, *range(0, 2000, 8), years)), CODE)
    assert "140.0 years" in told.text or "139.9 years" in told.text


@pytest.mark.shared
def test_no_real_trace_holds_one(shared: Path) -> None:
    for path in sorted((shared / "corpus").glob("*/*.json.gz")):
        assert CODE not in codes(decode_trace(str(path))), path
