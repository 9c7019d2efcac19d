"""The forest of CPU events against a plain stack, for intervals that nest and for those that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sp_profiler.classify.cpu import innermost_stretches
from sp_profiler.classify.nesting import build_nest, last_exceeding
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.tables import Trace
from sp_profiler.trace.write import TraceWriter

Interval = tuple[int, int, int]  # thread, start, duration


def trace_of(intervals: list[Interval], folder: Path) -> Trace:
    writer = TraceWriter(cpu_only=True)
    for index, (thread, start, dur) in enumerate(intervals):
        writer.cpu_op(f"aten::op{index}", start, dur, tid=thread)
    return decode_trace(writer.write(folder / "rank0.json"))


@given(st.lists(st.integers(-5, 9), max_size=70), st.data())
def test_last_exceeding(values: list[int], data: st.DataObject) -> None:
    """The last j < before with values[j] > threshold."""
    queries = data.draw(st.lists(st.tuples(st.integers(0, len(values)), st.integers(-6, 10)), max_size=40))
    before = np.array([query[0] for query in queries], dtype=np.int64)
    thresholds = np.array([query[1] for query in queries], dtype=np.int64)
    expected = [max((j for j in range(b) if values[j] > t), default=-1) for b, t in queries]
    found = last_exceeding(np.array(values, dtype=np.int64), before, thresholds)
    assert found.tolist() == expected


intervals = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 30), st.integers(0, 12)), max_size=25)


@settings(max_examples=60, deadline=None)
@given(intervals)
def test_parents_and_nearest(tmp_path_factory, drawn: list[Interval]) -> None:
    trace = trace_of(drawn, tmp_path_factory.mktemp("nest"))
    nest = build_nest(trace.events)
    # The parent is the last event opened before on the thread that is still open.
    order = sorted(range(len(drawn)), key=lambda i: (drawn[i][0], drawn[i][1], -drawn[i][2], i))
    parent: dict[int, int] = {}
    for at, i in enumerate(order):
        thread, start, _ = drawn[i]
        covers = [j for j in order[:at] if drawn[j][0] == thread and drawn[j][1] + drawn[j][2] > start]
        parent[i] = covers[-1] if covers else -1
    found = {int(r): int(nest.row[p]) if p >= 0 else -1 for r, p in zip(nest.row, nest.parent, strict=True)}
    assert found == parent

    marked = {i for i in parent if i % 3 == 0}

    def nearest(i: int) -> int:
        while i >= 0 and i not in marked:
            i = parent[i]
        return i

    result = nest.nearest(np.isin(nest.row, sorted(marked)))
    assert {
        int(r): int(nest.row[p]) if p >= 0 else -1 for r, p in zip(nest.row, result[:-1], strict=True)
    } == {i: nearest(i) for i in parent}
    assert result[-1] == -1


@settings(max_examples=60, deadline=None)
@given(intervals)
def test_innermost_stretches(tmp_path_factory, drawn: list[Interval]) -> None:
    """Every instant of a thread belongs to the operator opened last among those that cover it."""
    trace = trace_of(drawn, tmp_path_factory.mktemp("self"))
    found: dict[tuple[int, int], int] = {}
    stretches = innermost_stretches(trace)
    for row, start, end in zip(stretches.row, stretches.start_ns, stretches.end_ns, strict=True):
        assert start < end
        for instant in range(int(start), int(end), 1000):
            key = (drawn[row][0], instant // 1000)
            assert key not in found
            found[key] = int(row)
    expected: dict[tuple[int, int], int] = {}
    for i in sorted(range(len(drawn)), key=lambda i: (drawn[i][1], -drawn[i][2], i)):
        thread, start, dur = drawn[i]
        expected |= {(thread, instant): i for instant in range(start, start + dur)}
    assert found == expected
    same = stretches.row[1:] == stretches.row[:-1]
    assert not (same & (stretches.start_ns[1:] == stretches.end_ns[:-1])).any()  # maximal


def test_no_events(tmp_path: Path) -> None:
    nest = build_nest(trace_of([], tmp_path).events)
    assert len(nest.row) == 0
    assert nest.nearest(np.zeros(0, dtype=np.bool_)).tolist() == [-1]
