#!/usr/bin/env python3
"""How fast memory events become blocks, categories, peaks and borders: `benchmarks/memory.py [--events N]`.

A trace of the shipped demo is decoded once and its columns repeated, one after the other in time, until they
hold N memory events (a million) beside their operators and ranges. Then `analyze_memory` is timed, in CPU
seconds, and the stages that it is made of. Reading the file and classifying are not part of it.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sp_profiler.analysis.memory.cpu import read_cpu_side
from sp_profiler.analysis.memory.gathers import find_launches, inside_communication
from sp_profiler.analysis.memory.modules import find_modules
from sp_profiler.analysis.memory.order import check_totals, device_events, device_keys
from sp_profiler.analysis.memory.pairing import pair
from sp_profiler.analysis.memory.rank import analyze_memory
from sp_profiler.analysis.steps import profiled_steps
from sp_profiler.classify import classify
from sp_profiler.trace.decode import decode_trace
from sp_profiler.trace.tables import Trace

SOURCE = Path(__file__).resolve().parent.parent / "traces/demo/sp-basic/rank-00000.pt.trace.json.gz"
Result = TypeVar("Result")


def repeated(trace: Trace, copies: int) -> Trace:
    """The trace `copies` times in a row; totals go on from copy to copy."""
    events, memory = trace.events, trace.memory
    span = int(max(events.end_ns.max(), memory.ts_ns.max()) - events.start_ns.min()) + 1000
    by_time = np.argsort(memory.ts_ns, kind="stable")
    first, last = by_time[0], by_time[-1]
    grown = int(memory.total_allocated[last] - memory.total_allocated[first] + memory.bytes[first])

    def tiled(table: Any, **steps: int) -> Any:
        columns = {field.name: np.tile(getattr(table, field.name), copies) for field in fields(table)}
        for name, step in steps.items():
            columns[name] = columns[name] + np.repeat(np.arange(copies), len(getattr(table, name))) * step
        return type(table)(**columns)

    return replace(
        trace,
        events=tiled(events, start_ns=span),
        memory=tiled(memory, ts_ns=span, total_allocated=grown),
        flows=tiled(trace.flows, ts_ns=span),
    )


def timed(what: str, events: int, work: Callable[[], Result]) -> Result:
    start = time.process_time()
    result = work()
    spent = time.process_time() - start
    print(f"{what:<28}{spent:8.2f} s CPU {events / max(spent, 1e-9):14,.0f} events/s")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="memory events (default: a million)")
    count = parser.parse_args().events
    small = decode_trace(str(SOURCE))
    trace = repeated(small, max(1, -(-count // len(small.memory.ts_ns))))
    events = len(trace.memory.ts_ns)
    print(f"{events:,} memory events, {len(trace.events):,} others")
    classified = timed("classify (for comparison)", events, lambda: classify(trace))
    (figures,), _ = timed("analyze_memory", events, lambda: analyze_memory(trace, classified))
    print(
        f"  {figures.blocks_count:,} blocks, {len(figures.borders):,} borders, peak {figures.peak_bytes:,} B"
    )
    print("of which")
    (key,) = device_keys(trace.memory)
    ordered = timed("  order", events, lambda: device_events(trace.memory, key))
    timed("  totals", events, lambda: check_totals(ordered))
    timed("  pairing", events, lambda: pair(ordered))
    cpu = timed("  operators around", events, lambda: read_cpu_side(trace, profiled_steps(classified)))
    timed("  phases", events, lambda: cpu.runs)
    timed("  modules", events, lambda: find_modules(cpu, classified))
    timed("  collectives", events, lambda: find_launches(cpu, inside_communication(cpu)))
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
