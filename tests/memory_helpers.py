"""What the tests of memory in traces share: events by hand, and the figures of a drawn trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np

from sp_profiler.analysis.memory.order import DeviceEvents, device_events
from sp_profiler.analysis.memory.rank import analyze_memory
from sp_profiler.analysis.memory.results import MemoryBlock, MemoryFigures
from sp_profiler.classify import classify
from sp_profiler.ledger import LedgerEntry
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.tables import NONE, MemoryEvents
from sp_profiler.trace.write import TraceWriter

MIB = 1 << 20


@dataclass(frozen=True)
class Instant:
    """One `[memory]` event."""

    ts: int
    bytes: int
    address: int = 0
    total: int = NONE
    tid: int = 0
    device: tuple[int, int] = (1, 0)


def memory_events(instants: Iterable[Instant]) -> MemoryEvents:
    """Events in this order of the file."""
    given = list(instants)
    return MemoryEvents(
        ts_ns=np.array([one.ts for one in given], dtype=np.int64),
        address=np.array([one.address for one in given], dtype=np.uint64),
        bytes=np.array([one.bytes for one in given], dtype=np.int64),
        total_allocated=np.array([one.total for one in given], dtype=np.int64),
        total_reserved=np.full(len(given), NONE, dtype=np.int64),
        device_type=np.array([one.device[0] for one in given], dtype=np.int32),
        device_id=np.array([one.device[1] for one in given], dtype=np.int32),
        tid=np.array([one.tid for one in given], dtype=np.int32),
        failed=np.zeros(len(given), dtype=np.bool_),
    )


def events_of(instants: Iterable[Instant], device: tuple[int, int] = (1, 0)) -> DeviceEvents:
    return device_events(memory_events(instants), device)


def analyzed(path: str) -> tuple[tuple[MemoryFigures, ...], dict[str, LedgerEntry]]:
    """The figures of a trace file by device, and the ledger's entries by code (one device each)."""
    trace = decode_trace(path)
    figures, ledger = analyze_memory(trace, classify(trace))
    return figures, {entry.code: entry for entry in ledger}


def drawn(writer: TraceWriter, folder: Path) -> tuple[MemoryFigures, dict[str, LedgerEntry]]:
    """The same of a drawn trace with one device."""
    (figures,), ledger = analyzed(writer.write(folder / "rank0.json"))
    return figures, ledger


class Training:
    """Steps of forward, backward and optimizer, with allocations that keep the allocator's total.

    Times in µs: a step of 100 has an operator in forward from 10, a node of backward from 50 and the
    optimizer from 80.
    """

    def __init__(self, steps: int = 1, *, start: int = 0, cpu: bool = False, totals: bool = True) -> None:
        self.writer = TraceWriter(cpu_only=cpu)
        self.total = start
        self._totals = totals
        self._device = {"device_type": 0, "device_id": -1} if cpu else {}
        for k in range(steps):
            t = 100 * k
            self.writer.step(k + 1, t, 100)
            self.writer.range("Optimizer.zero_grad#AdamW.zero_grad", t + 1, 4)
            self.writer.cpu_op("aten::linear", t + 10, 30, sequence=k + 1, fwd_thread=0)
            self.writer.cpu_op(
                "autograd::engine::evaluate_function: MmBackward0", t + 50, 20, sequence=k + 1, fwd_thread=1
            )
            self.writer.range("Optimizer.step#AdamW.step", t + 80, 10)
            self.writer.cpu_op("aten::_fused_adamw_", t + 81, 8)

    def event(self, ts: float | Decimal, size: int, address: int, tid: int | None = None) -> Training:
        self.total += size
        self.writer.memory(
            ts,
            size,
            address=address,
            total_allocated=self.total if self._totals else None,
            tid=tid,
            **self._device,
        )
        return self

    def block(self, birth: float, death: float | None, size: int, address: int = 1) -> Training:
        self.event(birth, size, address)
        return self if death is None else self.event(death, -size, address)

    def figures(self, folder: Path) -> MemoryFigures:
        return drawn(self.writer, folder)[0]


def only(figures: MemoryFigures) -> MemoryBlock:
    assert figures.blocks is not None
    (block,) = figures.blocks
    return block
