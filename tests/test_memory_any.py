"""Whatever a trace holds: no error, parts that sum to their total, nothing lost."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from memory_helpers import analyzed

from sp_profiler.analysis.memory.results import MemoryFigures
from sp_profiler.trace.write import TraceWriter

NAMES = (
    "aten::mm",
    "aten::empty",
    "autograd::engine::evaluate_function: MmBackward0",
    "MmBackward0",
    "Optimizer.step#SGD.step",
    "Optimizer.zero_grad#SGD.zero_grad",
    "ProfilerStep#1",
    "ProfilerStep#2",
    "sp::fwd|module=layers.0.q|layer=0",
    "sp::comm|op=all_gather|group=tp[0,1]|bytes=512|module=layers.0.q|layer=0",
    "c10d::_allgather_base_",
    "gloo:all_gather",
    "DistributedDataParallel.forward",
    "nn.Module: Block_0",
)
TIMES = st.integers(0, 60)
TRACES = st.tuples(
    st.lists(st.tuples(st.sampled_from(NAMES), TIMES, st.integers(0, 30), st.integers(1, 2)), max_size=25),
    st.lists(
        st.tuples(
            TIMES,
            st.sampled_from([-1024, -512, 0, 512, 1024, 1 << 60]),
            st.one_of(st.none(), st.integers(0, 4)),
            st.one_of(st.none(), st.integers(-4, 4).map(lambda n: 512 * n)),
            st.integers(1, 3),
            st.sampled_from([(0, -1), (1, 0), (-1, -1), (99, 3)]),
        ),
        min_size=1,
        max_size=25,
    ),
)


def write(drawn: tuple[list[tuple], list[tuple]], path: Path) -> str:
    writer = TraceWriter(cpu_only=True)
    for name, start, dur, tid in drawn[0]:
        if name.startswith("nn.Module"):
            writer.python(name, start, dur, tid=tid)
        elif name.startswith(("sp::", "ProfilerStep", "Optimizer", "gloo:", "Distributed")):
            writer.range(name, start, dur, tid=tid)
        else:
            sequence = len(name) if "Backward" in name else None
            writer.cpu_op(name, start, dur, tid=tid, sequence=sequence, dims=[[128]], types=["float"])
    for ts, size, address, total, tid, (kind, number) in drawn[1]:
        writer.memory(
            ts, size, address=address, total_allocated=total, tid=tid, device_type=kind, device_id=number
        )
    return writer.write(path)


def check(figures: MemoryFigures) -> None:
    if figures.peak_by_category is not None and figures.peak_bytes is not None:
        for parts in (figures.peak_by_category, figures.peak_by_operator, figures.peak_by_module):
            assert sum((parts or {}).values()) == figures.peak_bytes
    if figures.curve is not None and figures.curve.by_category:
        parts = [sum(values) for values in zip(*figures.curve.by_category.values(), strict=True)]
        assert parts == figures.curve.allocated_bytes
    if figures.peak_bytes is not None and figures.curve is not None:
        assert figures.peak_bytes >= max(figures.curve.allocated_bytes)
        assert (
            figures.peak_bytes in (*figures.curve.allocated_bytes, figures.start_bytes) or figures.is_relative
        )
    for border in figures.borders:
        for parts in (border.by_module, border.by_layer, border.by_category, border.by_operator):
            assert sum(parts.values()) == border.bytes
        by_both = {layer: sum(parts.values()) for layer, parts in border.by_layer_category.items()}
        assert by_both == border.by_layer
    for block in figures.blocks or ():
        assert block.bytes > 0
        assert block.lifetime_ns is None or block.lifetime_ns >= 0


@given(TRACES)
@settings(max_examples=250, deadline=None)
def test_any_trace(drawn: tuple[list[tuple], list[tuple]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures, _ = analyzed(write(drawn, Path(folder) / "rank0.json"))
    devices = {(kind, number) for *_, (kind, number) in drawn[1]}
    assert len(figures) == len(devices)
    assert sum(one.events for one in figures) == len(drawn[1])
    for one in figures:
        check(one)
